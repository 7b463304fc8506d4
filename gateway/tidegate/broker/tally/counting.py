"""What is counted for one list, for all lists of a destination, and for all destinations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from operator import add
from typing import Final, final

from tidegate.broker.lists.pending_list import Consumer, Figures, PendingList
from tidegate.spi.operate import DestinationTotals

#: Index of each figure; how many of them can be summed over destinations; the figures of no list.
PENDING, IN_FLIGHT, CONSUMERS, MEMORY, DROPPED, FULL, PAUSED = range(7)
ADDED: Final = DROPPED + 1
NOTHING: Final[Figures] = (0, 0, 0, 0, 0, False, False)


class InFlight:
    """How much of each list is in flight: each consumer is counted once, however many lists it consumes from."""

    def __init__(self) -> None:
        self._counted: dict[Consumer, tuple[int, int, Counter[PendingList]]] = {}

    def of(self, pending_list: PendingList, consumers: Sequence[Consumer]) -> int:
        """Args: consumers: of the list."""
        found = 0
        for consumer in consumers:
            if consumer.destination == pending_list.destination:
                found += len(consumer.in_flight)  # it has no other list
            elif consumer.in_flight:
                found += self._of(consumer)[2][pending_list]
        return found

    def is_outdated(self, pending_list: PendingList, consumers: Sequence[Consumer]) -> bool:
        """What :meth:`of` just returned was counted before one of *consumers* was given something."""
        return any(
            consumer.destination != pending_list.destination
            and consumer.in_flight
            and self._of(consumer)[:2] != (consumer.handed, len(consumer.in_flight))
            for consumer in consumers
        )

    def _of(self, consumer: Consumer) -> tuple[int, int, Counter[PendingList]]:
        found = self._counted.get(consumer)
        if found is None:
            in_flight = consumer.in_flight
            counted = Counter([entry[1] for entry in in_flight.values()])
            found = self._counted[consumer] = consumer.handed, len(in_flight), counted
        return found


def figures_of(pending_list: PendingList, in_flight: InFlight) -> tuple[Figures, bool]:
    """The figures of the list, and whether they may change without its knowledge: when what is in flight is
    acknowledged, room becomes free, or others take it."""
    cursor, consumers = pending_list.cursor, pending_list.all_consumers()
    delivered = in_flight.of(pending_list, consumers) if consumers else 0
    is_full, held = pending_list.is_full, cursor.memory_bytes
    unstored = pending_list.unstored
    is_restless = (
        delivered > 0
        or is_full
        or (held > 0 and pending_list.can_fill)
        or (unstored is not None and unstored.count > 0)
        or (len(consumers) > 0 and in_flight.is_outdated(pending_list, consumers))
    )
    lost, is_paused = pending_list.lost, pending_list.is_paused
    return (cursor.size, delivered, len(consumers), held, lost, is_full, is_paused), is_restless


@final
class Entry:
    """One destination.

    Attributes: numbers: sums of the figures of its lists; count: of its lists; lists: those of a topic, None for a
        queue, which has one; is_dead: dead letters go there.
    """

    __slots__ = ("count", "is_dead", "lists", "numbers")

    def __init__(self, *, is_queue: bool, is_dead: bool) -> None:
        self.is_dead = is_dead
        self.lists: dict[PendingList, None] | None = None if is_queue else {}
        self.count = 0
        self.numbers = [0] * len(NOTHING)


class Sums:
    """Sums over some destinations. Attributes: destinations: how many; numbers: the figures that can be summed."""

    __slots__ = ("_dead_letters", "_full", "_paused", "_unattended", "destinations", "numbers")

    def __init__(self) -> None:
        self.destinations = self._full = self._paused = self._unattended = self._dead_letters = 0
        self.numbers = [0] * ADDED

    def add(self, entry: Entry) -> None:
        """Add one destination."""
        self.destinations += 1
        self.numbers = list(map(add, self.numbers, entry.numbers))
        self.count(entry, 1)

    def count(self, entry: Entry, sign: int) -> None:
        """Count what the destination is, or with *sign* -1 uncount it."""
        numbers = entry.numbers
        if pending := numbers[PENDING]:
            if entry.is_dead:
                self._dead_letters += sign * pending
            elif not numbers[CONSUMERS]:
                self._unattended += sign
        if numbers[FULL]:
            self._full += sign
        if numbers[PAUSED]:
            self._paused += sign

    def totals(self, *, others: int, paused: int) -> DestinationTotals:
        """Args: others: destinations without a list; paused: those whose producers alone are paused."""
        numbers = self.numbers
        return DestinationTotals(
            destinations=self.destinations + others,
            pending=numbers[PENDING],
            in_flight=numbers[IN_FLIGHT],
            consumers=numbers[CONSUMERS],
            memory_bytes=numbers[MEMORY],
            dropped=numbers[DROPPED],
            full=self._full,
            paused=self._paused + paused,
            unattended=self._unattended,
            dead_letters=self._dead_letters,
        )
