"""Lists without their own limit that stop their producers, because a cursor has no room, or lose messages,
because their consumers do not keep up; this is reported like any overflow.

They are checked every second: one that is full only for a moment is not worth a line in the log, and
no message pays for the check. A list that keeps losing messages is reported once, and as over when
it has lost none for ``QUIET_LOOKS`` seconds.
"""

from __future__ import annotations

from typing import Final, final

from tidegate.broker.limits.ledger import DROP_NEWEST, DROP_OLDEST, SLOW
from tidegate.broker.limits.overflow import Overflow, Overflows
from tidegate.broker.lists.pending_list import PendingList
from tidegate.broker.turn.flow import Flow
from tidegate.broker.turn.walks import STEP_LISTS, Walk

#: Seconds without a loss after which a list's losses are reported as over.
QUIET_LOOKS: Final = 10


@final
class FullCursors:
    """Call :meth:`look` every second."""

    def __init__(self, flow: Flow, overflows: Overflows) -> None:
        self._flow = flow
        self._overflows = overflows
        self._before: set[PendingList] = set()
        self._told: dict[PendingList, Overflow] = {}
        self._losing: dict[PendingList, tuple[Overflow, int]] = {}  # and the look of the last loss
        self._looks = 0
        self._is_busy = False

    def look(self) -> None:
        """Report those that were already full at the last look, those that lost messages since then, and those
        for which that is over."""
        full = {item for item in self._flow.full_lists if item.lacks_room}
        for item in full & self._before:
            if item not in self._told:
                overflow = self._told[item] = Overflow(self._overflows, item, SLOW)
                overflow.begin("memory", "held back with their producers")
        for item in [item for item in self._told if item not in full and item not in self._before]:
            self._told.pop(item).end()
        self._before = full
        self._looks += 1
        if not self._is_busy and (self._flow.losing or self._losing):
            self._is_busy = True
            self._flow.walks.begin(self._look_at_losses(self._looks))
        self._overflows.look()

    def _look_at_losses(self, look: int) -> Walk:
        try:
            losing, self._flow.losing = self._flow.losing, {}
            for number, (item, count) in enumerate(losing.items(), 1):
                known = self._losing.get(item)
                # A stored list loses here what is not stored for it: its client reads too little.
                act = DROP_NEWEST if item.is_stored else DROP_OLDEST
                overflow = known[0] if known else Overflow(self._overflows, item, act)
                self._losing[item] = overflow, look
                overflow.dropped(count, "output" if item.is_stored else "temporary space")
                if not number % STEP_LISTS:
                    yield
            for number, (item, (overflow, last)) in enumerate(list(self._losing.items()), 1):
                if item.is_removed or look - last >= QUIET_LOOKS:
                    del self._losing[item]
                    overflow.end()
                if not number % STEP_LISTS:
                    yield
        finally:
            self._is_busy = False
