"""Totals over lists: those of one destination, in detail, and a page of all destinations."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from heapq import merge

from tidegate.broker.lists.pending_list import PendingList
from tidegate.broker.operate.paging import key_after
from tidegate.broker.tally.counting import PAUSED, Entry, InFlight, Sums
from tidegate.broker.tally.order import Key
from tidegate.broker.tally.tally import Tally
from tidegate.broker.turn.walks import STEP_LISTS
from tidegate.spi import names
from tidegate.spi.operate import FEEDS_MAX, DestinationTotals, ListDestinations


@dataclass(slots=True)
class Totals:
    """Totals over the lists of one destination.

    Attributes: see Destination; body_bytes: None: not counted; paging, others: some lists fed from
        pages, and from memory.
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
        """The lists shown individually."""
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


class Choice:
    """Which destinations a request wants.

    Args: request: its ``match``, ``contains`` and ``dead_letters`` say that.
    Attributes: is_all: it wants all of them.
    """

    def __init__(self, request: ListDestinations) -> None:
        self._match = request.match
        self._part = request.contains.casefold()
        self._dead_letters = request.dead_letters
        self.is_all = not (request.match or request.contains or request.dead_letters)

    def has(self, destination: str, entry: Entry | None) -> bool:
        """The request wants *destination*. Args: entry: None: it has no list."""
        return self.is_all or (
            (not self._match or covers(self._match, destination))
            and (not self._part or self._part in destination.casefold())
            and (not self._dead_letters or (entry is not None and entry.is_dead))
        )


@dataclass(slots=True)
class Chosen:
    """A page of the destinations that a request wants, and the totals of all of them.

    Args: tally: locked meanwhile; paused: destinations whose producers are paused.
    Attributes: shown: their names; after: for the next page; totals: None: not requested.
    """

    tally: Tally
    request: ListDestinations
    paused: Collection[str]
    shown: list[str] = field(default_factory=list[str])
    after: str = ""
    totals: DestinationTotals | None = None

    def steps(self) -> Iterator[None]:
        """Choose them, in steps. Raises: RequestError for an invalid ``after``."""
        request, tally, choice = self.request, self.tally, Choice(self.request)
        begin = key_after(request.after)
        yield from tally.sort(request.sort)
        entries, limit = tally.entries, request.limit
        paused = [item for item in self.paused if choice.has(item, entries.get(item))]
        others = [item for item in paused if item not in entries and names.is_topic(item)]
        keys = [key for key in sorted((0, item) for item in others) if begin is None or key > begin]
        found: list[Key] = []
        for count, key in enumerate(merge(tally.ordered(request.sort).behind(begin), keys), 1):
            if choice.has(key[1], entries.get(key[1])):
                found.append(key)
                if len(found) > limit:
                    last = found[limit - 1]
                    self.after = f"{-last[0]} {last[1]}"
                    break
            if not count % STEP_LISTS:
                yield
        self.shown = [key[1] for key in found[:limit]]
        if request.with_totals:
            sums = tally.sums
            if not choice.is_all:
                sums = Sums()
                for count, (destination, entry) in enumerate(entries.items(), 1):
                    if choice.has(destination, entry):
                        sums.add(entry)
                    if not count % STEP_LISTS:
                        yield
            there = [entries[item] for item in paused if item in entries]
            more = len(others) + sum(not entry.numbers[PAUSED] for entry in there)
            self.totals = sums.totals(others=len(others), paused=more)


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
