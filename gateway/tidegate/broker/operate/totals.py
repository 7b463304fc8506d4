"""What lists have together: those of one destination, and those of all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidegate.broker.lists.pending_list import Consumer, PendingList
from tidegate.broker.operate.messages.dead_letters import DeadLetters
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
            if consumer.in_flight:
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


#: What destinations are sorted by: of a queue, and of what the lists of a topic have together.
_NUMBERS: Final[Mapping[DestinationSort, Callable[[PendingList], int]]] = {
    DestinationSort.NAME: lambda _: 0,
    DestinationSort.PENDING: lambda queue: queue.cursor.size,
    DestinationSort.CONSUMERS: lambda queue: len(queue.all_consumers()),
    DestinationSort.MEMORY: lambda queue: queue.cursor.memory_bytes,
    DestinationSort.DROPPED: lambda queue: queue.lost,
}
_TOPIC_NUMBERS: Final[Mapping[DestinationSort, Callable[[Totals], int]]] = {
    DestinationSort.NAME: lambda _: 0,
    DestinationSort.PENDING: lambda totals: totals.pending,
    DestinationSort.CONSUMERS: lambda totals: totals.consumers,
    DestinationSort.MEMORY: lambda totals: totals.memory_bytes,
    DestinationSort.DROPPED: lambda totals: totals.dropped,
}


class Survey:
    """A look at all destinations, or at what *request* wants of them: queues, of which there may be very many,
    are looked at no closer than it asks for.

    Args: overflow: what happens at the limit of a list; "": it has none; dead_letters: where they go.

    Attributes:
        numbers: by destination, what it is sorted by; 0 for all in a list by name.
        topics: what the lists of each filter of topics have together.
    """

    def __init__(
        self,
        request: ListDestinations,
        overflow: Callable[[PendingList], str],
        dead_letters: DeadLetters,
    ) -> None:
        self.numbers: dict[str, int] = {}
        self.topics: dict[str, Totals] = {}
        self.in_flight = InFlight()
        self._request = request
        self._overflow = overflow
        self._dead_letters = dead_letters
        self._part = request.contains.casefold()
        self._pending = self._in_flight = self._consumers = self._memory_bytes = self._dropped = 0
        self._full = self._paused = self._unattended = self._dead = 0

    def look(self, lists: Iterable[PendingList], paused: Collection[str]) -> Iterator[None]:
        """In steps. Args: paused: destinations whose producers are."""
        request = self._request
        number = _NUMBERS[request.sort]
        wants_all = not (request.match or request.contains or request.dead_letters)
        for count, pending_list in enumerate(lists, 1):
            destination = pending_list.destination
            if not pending_list.is_removed and (wants_all or self._is_wanted(destination)):
                if not pending_list.is_queue:
                    totals = self.topics.setdefault(destination, Totals())
                    totals.add(pending_list, self._overflow(pending_list), self.in_flight)
                else:
                    self.numbers[destination] = number(pending_list)
                    if request.with_totals:
                        self._add(pending_list, destination in paused)
            if not count % STEP_LISTS:
                yield
        for destination in list(paused):
            if names.is_topic(destination) and self._is_wanted(destination):
                self.topics.setdefault(destination, Totals())
        for count, (destination, totals) in enumerate(self.topics.items(), 1):
            self._topic(destination, totals, destination in paused)
            if not count % STEP_LISTS:
                yield

    def sums(self) -> DestinationTotals:
        """Of all that were looked at closely."""
        return DestinationTotals(
            destinations=len(self.numbers),
            pending=self._pending,
            in_flight=self._in_flight,
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

    def _add(self, queue: PendingList, is_paused: bool) -> None:
        cursor, consumers = queue.cursor, queue.all_consumers()
        pending = cursor.size
        self._pending += pending
        self._memory_bytes += cursor.memory_bytes
        self._dropped += queue.lost
        self._full += queue.is_full
        self._paused += is_paused or queue.is_paused
        if consumers:
            self._consumers += len(consumers)
            self._in_flight += self.in_flight.of(queue, consumers)
        if pending:
            if self._dead_letters.go_to(queue.destination):
                self._dead += pending
            elif not consumers:
                self._unattended += 1

    def _topic(self, destination: str, totals: Totals, is_paused: bool) -> None:
        self._pending += totals.pending
        self._in_flight += totals.in_flight
        self._consumers += totals.consumers
        self._memory_bytes += totals.memory_bytes
        self._dropped += totals.dropped
        self._full += totals.is_full
        self._paused += is_paused
        self._unattended += bool(totals.pending and not totals.consumers)
        self.numbers[destination] = _TOPIC_NUMBERS[self._request.sort](totals)


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
