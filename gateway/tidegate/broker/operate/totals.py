"""What lists have together: those of one destination, and those of all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidegate.broker.lists.pending_list import Consumer, PendingList
from tidegate.broker.operate.messages.dead_letters import DeadLetters
from tidegate.broker.operate.paging import Shortlist
from tidegate.broker.turn.walks import STEP_LISTS
from tidegate.spi import names
from tidegate.spi.operate import FEEDS_MAX, DestinationSort, DestinationTotals, ListDestinations


class InFlight:
    """How much of each list is in flight: each consumer is counted once, however many lists it consumes from."""

    def __init__(self) -> None:
        self._counted: dict[Consumer, Counter[PendingList]] = {}

    def of(self, pending_list: PendingList, consumers: Sequence[Consumer]) -> int:
        """Args: consumers: of the list."""
        found = 0
        for consumer in consumers:
            if consumer.destination == pending_list.destination:
                found += len(consumer.in_flight)  # it has no other list
            elif consumer.in_flight:
                counted = self._counted.get(consumer)
                if counted is None:
                    counted = Counter([entry[1] for entry in consumer.in_flight.values()])
                    self._counted[consumer] = counted
                found += counted[pending_list]
        return found


@dataclass(slots=True)
class Totals:
    """What the lists of one destination have together.

    Attributes: see Destination; body_bytes: None: not counted; paging, others: some lists that are fed
        from pages, and from memory.
    """

    lists: int = 0
    pending: int = 0
    in_flight: int = 0
    consumers: int = 0
    body_bytes: int | None = 0
    memory_bytes: int = 0
    is_full: bool = False
    overflow: set[str] = field(default_factory=set[str])
    dropped: int = 0
    paging: list[PendingList] = field(default_factory=list["PendingList"])
    others: list[PendingList] = field(default_factory=list["PendingList"])

    def shown(self) -> list[PendingList]:
        """Those that are shown one by one."""
        return [*self.paging, *self.others][:FEEDS_MAX]

    def add(self, pending_list: PendingList, overflow: str, in_flight: InFlight) -> None:
        """Args: overflow: what happens at its limit; "": it has none."""
        cursor, consumers = pending_list.cursor, pending_list.all_consumers()
        self.lists += 1
        if overflow:
            self.overflow.add(overflow)
        self.pending += cursor.size
        self.consumers += len(consumers)
        self.in_flight += in_flight.of(pending_list, consumers)
        self.memory_bytes += cursor.memory_bytes
        self.is_full = self.is_full or pending_list.is_full
        self.dropped += pending_list.lost
        some = self.paging if cursor.feed.is_paging else self.others
        if len(some) < FEEDS_MAX:
            some.append(pending_list)
        limit = pending_list.limit
        if limit is None or not limit.weighs:
            self.body_bytes = None
        elif self.body_bytes is not None:
            self.body_bytes += limit.bytes


#: What destinations are sorted by: of each of their lists, which are added up.
_NUMBERS: Final[Mapping[DestinationSort, Callable[[PendingList], int]]] = {
    DestinationSort.NAME: lambda _: 0,
    DestinationSort.PENDING: lambda item: item.cursor.size,
    DestinationSort.CONSUMERS: lambda item: len(item.all_consumers()),
    DestinationSort.MEMORY: lambda item: item.cursor.memory_bytes,
    DestinationSort.DROPPED: lambda item: item.lost,
}


class Survey:
    """A look at all destinations, or at what *request* wants of them. There may be very many, of which few are shown,
    so they are looked at no closer than it takes to know which.

    Args: dead_letters: where they go.
    Attributes: shortlist: of the destinations.
    """

    def __init__(self, request: ListDestinations, dead_letters: DeadLetters) -> None:
        """Raises: RequestError for an ``after`` that is none."""
        self.shortlist = Shortlist[str](request.after, request.limit)
        self._first: dict[str, PendingList] = {}  # list of each filter of topics
        self._more: dict[str, list[PendingList]] = {}
        self._in_flight = InFlight()
        self._request = request
        self._number = _NUMBERS[request.sort]
        self._dead_letters = dead_letters
        self._part = request.contains.casefold()
        self._count = 0
        self._pending = self._in_flight_count = self._consumers = self._memory_bytes = 0
        self._dropped = self._full = self._paused = self._unattended = self._dead = 0

    def lists_of(self, topic: str) -> list[PendingList]:
        """Those of a filter of topics that it has seen."""
        first = self._first.get(topic)
        return [] if first is None else [first, *self._more.get(topic, ())]

    def look(self, lists: Iterable[PendingList], paused: Collection[str]) -> Iterator[None]:
        """In steps. Args: paused: destinations whose producers are."""
        request, number, offer = self._request, self._number, self.shortlist.offer
        wants_all = not (request.match or request.contains or request.dead_letters)
        first, more, queues = self._first, self._more, 0
        for count, pending_list in enumerate(lists, 1):
            destination = pending_list.destination
            if not pending_list.is_removed and (wants_all or self._is_wanted(destination)):
                if pending_list.is_queue:
                    queues += 1
                    offer((-number(pending_list), destination), destination)
                    if request.with_totals:
                        self._add_queue(pending_list, destination in paused)
                elif first.setdefault(destination, pending_list) is not pending_list:
                    more.setdefault(destination, []).append(pending_list)
            if not count % STEP_LISTS:
                yield
        self._count = queues + len(first)
        for count, (destination, pending_list) in enumerate(first.items(), 1):
            if destination in more:
                yield from self._look_at_all(destination, destination in paused)
            else:
                offer((-number(pending_list), destination), destination)
                if request.with_totals:
                    self._add_topic(self._add(pending_list), pending_list.is_full)
                    self._paused += destination in paused
            if not count % STEP_LISTS:
                yield
        for destination in list(paused):
            is_other = names.is_topic(destination) and destination not in first
            if is_other and (wants_all or self._is_wanted(destination)):
                offer((0, destination), destination)
                self._count += 1
                self._paused += 1

    def sums(self) -> DestinationTotals:
        """Of all that were looked at closely."""
        return DestinationTotals(
            destinations=self._count,
            pending=self._pending,
            in_flight=self._in_flight_count,
            consumers=self._consumers,
            memory_bytes=self._memory_bytes,
            dropped=self._dropped,
            full=self._full,
            paused=self._paused,
            unattended=self._unattended,
            dead_letters=self._dead,
        )

    def _is_wanted(self, destination: str) -> bool:
        request, part = self._request, self._part
        return (
            (not request.match or covers(request.match, destination))
            and (not part or part in destination.casefold())
            and (not request.dead_letters or self._dead_letters.go_to(destination))
        )

    def _look_at_all(self, topic: str, is_paused: bool) -> Iterator[None]:
        """A filter that has several lists."""
        number, pending, consumers, is_full = 0, 0, 0, False
        for count, pending_list in enumerate(self.lists_of(topic), 1):
            number += self._number(pending_list)
            if self._request.with_totals:
                more_pending, more_consumers = self._add(pending_list)
                pending += more_pending
                consumers += more_consumers
                is_full = is_full or pending_list.is_full
            if not count % STEP_LISTS:
                yield
        self.shortlist.offer((-number, topic), topic)
        self._add_topic((pending, consumers), is_full)
        self._paused += is_paused

    def _add(self, pending_list: PendingList) -> tuple[int, int]:
        """Returns: what is pending in it, and its consumers."""
        cursor, consumers = pending_list.cursor, pending_list.all_consumers()
        pending, count = cursor.size, len(consumers)
        self._pending += pending
        self._memory_bytes += cursor.memory_bytes
        self._dropped += pending_list.lost
        if count:
            self._consumers += count
            self._in_flight_count += self._in_flight.of(pending_list, consumers)
        return pending, count

    def _add_queue(self, queue: PendingList, is_paused: bool) -> None:
        pending, consumers = self._add(queue)
        self._full += queue.is_full
        self._paused += is_paused or queue.is_paused
        if pending:
            if self._dead_letters.go_to(queue.destination):
                self._dead += pending
            elif not consumers:
                self._unattended += 1

    def _add_topic(self, of_all: tuple[int, int], is_full: bool) -> None:
        """Args: of_all: what is pending in its lists, and their consumers."""
        pending, consumers = of_all
        self._full += is_full
        self._unattended += bool(pending and not consumers)


def covers(match: str, destination: str) -> bool:
    """Whether the filter *match* of a request, "" for all, covers *destination*."""
    if not match:
        return True
    pattern, name = match, names.name_of(destination)
    if names.is_queue(match) or names.is_topic(match):
        if names.is_queue(match) is not names.is_queue(destination):
            return False
        pattern = names.name_of(match)
    return pattern == name or names.matches(pattern, name)
