"""What departed consumers had in flight comes back to its lists, step by step.

One client may end with hundreds of thousands of messages of one queue in flight. They go back in slices, the latest
first. Until the earliest is back the queue hands nothing out, or somebody would get a later message before it.
What is still on its way counts as in flight: no page brings it, nobody can claim it, and a list that is removed
meanwhile does not get it. The store has it as pending all the while, so a kill loses only its delivery count.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush, heapreplace
from itertools import chain, count
from operator import itemgetter
from typing import Final, NamedTuple, Protocol

from tidegate.broker.lists.pending_list import InFlight, PendingList
from tidegate.broker.turn.walks import Walk, Walks
from tidegate.broker.turn.writer import TurnWriter
from tidegate.plugin_exit import FAILURES

_log = logging.getLogger("tidegate.broker")

#: Messages that come back between looks at the clock: each takes 1 to 3 microseconds.
STEP_MESSAGES: Final = 256

#: What each costs of a turn's work (:data:`tidegate.broker.turn.flow.TURN_WORK_MAX`): the store keeps its count.
_WORK: Final = 2

_list_of: Final = itemgetter(1)


class Around(Protocol):
    """What this needs of its surroundings (:class:`tidegate.broker.turn.flow.Flow`)."""

    writer: TurnWriter
    walks: Walks

    def mark_ready(self, pending_list: PendingList, /) -> None: ...
    def add_own_work(self, work: int, /) -> bool: ...


class _Left(NamedTuple):
    """What one consumer left. Attributes: order: the latest first; lists: wait for all of it."""

    order: int
    number: int
    in_flight: dict[int, InFlight]
    lists: set[PendingList]


class ComingBack:
    """What is on its way back."""

    def __init__(self, around: Around) -> None:
        self._around = around
        self._numbers = count()
        # A queue's consumers go together; one whose filter covers many queues goes alone.
        self._under_way: dict[object, list[_Left]] = {}
        self._is_walking = False

    @property
    def is_under_way(self) -> bool:
        """Something is neither in its list nor in flight to a consumer."""
        return bool(self._under_way)

    def of(self, pending_list: PendingList) -> int:
        """How many messages of the list are on their way. Looks at all that are."""
        if not pending_list.returning:
            return 0
        return sum(
            entry[1] is pending_list
            for heap in self._under_way.values()
            for left in heap
            if pending_list in left.lists
            for entry in left.in_flight.values()
        )

    def begin(self, found: Sequence[tuple[dict[int, InFlight], PendingList | None]]) -> None:
        """Bring back what departed consumers had.

        Args: found: what each had in flight, never empty, and the list all of it belongs to; None: several.
        """
        if sum([len(in_flight) for in_flight, _ in found]) <= STEP_MESSAGES:
            entries = chain.from_iterable([in_flight.values() for in_flight, _ in found])
            self._around.writer.give_back(entries)
            return
        for in_flight, only in found:
            lists = set(map(_list_of, in_flight.values())) if only is None else {only}
            for pending_list in lists:
                pending_list.returning += 1
            left = _Left(_order(in_flight), next(self._numbers), in_flight, lists)
            heappush(self._under_way.setdefault(only or left.number, []), left)
        if not self._is_walking:
            self._is_walking = True
            self._around.walks.begin(self._walk())

    def let_go(self, in_flight: dict[int, InFlight]) -> None:
        """Forget what belongs to ended lists, in steps, too: freeing it takes as long."""
        self._around.walks.begin(_forget(in_flight))

    def _walk(self) -> Walk:
        under_way = self._under_way
        while under_way:
            key, heap = next(iter(under_way.items()))
            del under_way[key]
            entries, ended = _latest(heap)
            if heap:
                under_way[key] = heap  # after the others
            try:
                self._around.writer.give_back(entries)
            except FAILURES:  # or lists would wait for ever
                _log.exception("giving back what was in flight failed")
            for left in ended:
                self._release(left.lists)
            yield self._around.add_own_work(_WORK * len(entries))
        self._is_walking = False

    def _release(self, lists: Iterable[PendingList]) -> None:
        for pending_list in lists:
            pending_list.returning -= 1
            if not (pending_list.returning or pending_list.is_removed):
                self._around.mark_ready(pending_list)


def _latest(heap: list[_Left]) -> tuple[list[InFlight], list[_Left]]:
    """Take a step's messages out of *heap*, the latest first, from any consumer: each step is put in front
    of the previous one. Returns: the messages, and the entries with nothing left."""
    entries: list[InFlight] = []
    ended: list[_Left] = []
    while heap and len(entries) < STEP_MESSAGES:
        first = heap[0]
        _move(first.in_flight, min(heap[1:3])[0] if len(heap) > 1 else 0, entries)
        if first.in_flight:
            heapreplace(heap, first._replace(order=_order(first.in_flight)))
        else:
            ended.append(heappop(heap))
    return entries, ended


def _move(in_flight: dict[int, InFlight], until: int, entries: list[InFlight]) -> None:
    """Move the latest of *in_flight* to *entries*, while no other consumer has a later one.

    Args: until: order of the others' latest; 0: there are no others.
    """
    room = STEP_MESSAGES - len(entries)
    if not until:
        entries += [in_flight.popitem()[1] for _ in range(min(room, len(in_flight)))]
        return
    for _ in range(room):
        entries.append(in_flight.popitem()[1])
        if not in_flight or _order(in_flight) > until:
            return


def _order(in_flight: dict[int, InFlight]) -> int:
    return -next(reversed(in_flight))


def _forget(in_flight: dict[int, InFlight]) -> Walk:
    while in_flight:
        for _ in range(min(STEP_MESSAGES, len(in_flight))):
            in_flight.popitem()
        yield
