"""Totals over all destinations, kept from look to look.

Operators look every few seconds at what may be a hundred thousand destinations, most of them unchanged. So a look
reads only the lists that changed since the last one (:meth:`PendingList.changed`), and applies the differences to
sums and orders.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from tidegate.broker.lists.pending_list import Figures, PendingList
from tidegate.broker.tally import counting
from tidegate.broker.tally.counting import ADDED, NOTHING, Entry, InFlight, Sums, figures_of
from tidegate.broker.tally.dead_letters import DeadLetters
from tidegate.broker.tally.order import Key, Order
from tidegate.broker.turn.walks import STEP_LISTS
from tidegate.config import DestinationPolicy
from tidegate.spi.operate import DestinationSort

#: The figure that destinations are sorted by; -1: their name.
_FIGURES: Final[Mapping[DestinationSort, int]] = {
    DestinationSort.NAME: -1,
    DestinationSort.PENDING: counting.PENDING,
    DestinationSort.CONSUMERS: counting.CONSUMERS,
    DestinationSort.MEMORY: counting.MEMORY,
    DestinationSort.DROPPED: counting.DROPPED,
}

#: Lists read between looks at the clock: a changed one takes some microseconds.
READ_AT_ONCE: Final = 8


class Tally:
    """See the module.

    Args: unseen: lists that may have changed since they were read, including new ones.
    Attributes:
        lock: held during a look. The next look finds most of the work done.
        entries: by destination; sums: of all of them. Both as the last look left them.
    """

    def __init__(self, unseen: set[PendingList]) -> None:
        self.lock = asyncio.Lock()
        self.entries: dict[str, Entry] = {}
        self.sums = Sums()
        self._unseen = unseen
        self._orders: dict[int, Order] = {}  # by the figure they sort by
        self._policies: Sequence[DestinationPolicy] = ()
        self._dead_letters = DeadLetters(())

    def catch_up(self, policies: Sequence[DestinationPolicy]) -> Iterator[None]:
        """Read what has changed, in steps; stopping early loses nothing. Args: policies: the current ones."""
        if policies is not self._policies:
            yield from self._sort_out_dead_letters(policies)
        in_flight = InFlight()
        for count, pending_list in enumerate(list(self._unseen), 1):
            self._read(pending_list, in_flight)
            if not count % READ_AT_ONCE:
                yield

    def sort(self, by: DestinationSort) -> Iterator[None]:
        """Make an order for :meth:`ordered`, in steps."""
        figure = _FIGURES[by]
        if figure in self._orders:
            return
        order = Order()
        for count, (destination, entry) in enumerate(self.entries.items(), 1):
            order.add(_key(destination, entry, figure))
            if not count % STEP_LISTS:
                yield
        self._orders[figure] = order

    def ordered(self, by: DestinationSort) -> Order:
        """All destinations, in the order that :meth:`sort` made."""
        return self._orders[_FIGURES[by]]

    def lists_of(self, topic: str) -> Collection[PendingList]:
        """The lists of a topic filter."""
        entry = self.entries.get(topic)
        return () if entry is None or entry.lists is None else list(entry.lists)

    def _sort_out_dead_letters(self, policies: Sequence[DestinationPolicy]) -> Iterator[None]:
        """A reload may have changed where they go."""
        self._dead_letters = dead_letters = DeadLetters(policies)
        for count, (destination, entry) in enumerate(self.entries.items(), 1):
            if entry.lists is None:
                self.sums.count(entry, -1)
                entry.is_dead = dead_letters.go_to(destination)
                self.sums.count(entry, 1)
            if not count % STEP_LISTS:
                yield
        self._policies = policies

    def _read(self, pending_list: PendingList, in_flight: InFlight) -> None:
        old, new, is_restless = pending_list.figures, None, False
        if not pending_list.is_removed:
            new, is_restless = figures_of(pending_list, in_flight)
        if not is_restless:
            self._unseen.discard(pending_list)
            pending_list.is_seen = new is not None
        if new == old:
            return
        pending_list.figures = new
        destination, sums = pending_list.destination, self.sums
        entry = self.entries.get(destination) or self._begin(pending_list)
        if old is None:
            entry.count += 1
            if entry.lists is not None:
                entry.lists[pending_list] = None
        elif new is None:
            entry.count -= 1
            if entry.lists is not None:
                del entry.lists[pending_list]
        sums.count(entry, -1)
        self._put(destination, entry, old or NOTHING, new or NOTHING)
        sums.count(entry, 1)
        if not entry.count:
            self._end(destination, entry)

    def _put(self, destination: str, entry: Entry, old: Figures, new: Figures) -> None:
        """The figures of one of its lists have changed."""
        numbers, sums, orders = entry.numbers, self.sums.numbers, self._orders
        for figure, (was, now) in enumerate(zip(old, new, strict=True)):
            if was != now:
                number = numbers[figure] + now - was
                order = orders.get(figure)
                if order is not None:
                    order.remove((-numbers[figure], destination))
                    order.add((-number, destination))
                numbers[figure] = number
                if figure < ADDED:
                    sums[figure] += now - was

    def _begin(self, pending_list: PendingList) -> Entry:
        destination, is_queue = pending_list.destination, pending_list.is_queue
        is_dead = is_queue and self._dead_letters.go_to(destination)
        entry = self.entries[destination] = Entry(is_queue=is_queue, is_dead=is_dead)
        self.sums.destinations += 1
        for order in self._orders.values():
            order.add((0, destination))
        return entry

    def _end(self, destination: str, entry: Entry) -> None:
        del self.entries[destination]
        self.sums.destinations -= 1
        for figure, order in self._orders.items():
            order.remove(_key(destination, entry, figure))


def _key(destination: str, entry: Entry, figure: int) -> Key:
    return (-entry.numbers[figure] if figure >= 0 else 0, destination)
