"""Limits a rule's log of its connection: repeats are counted, and logged ever more rarely."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

#: Time until a lasting problem is logged again: doubled each time.
FIRST_S: Final = 60.0
LAST_S: Final = 3600.0
#: After a connection this long any problem is news.
CALM_S: Final = 600.0
#: Most alternating problems remembered. With ever-changing texts each one is news.
_PROBLEMS_MAX: Final = 8


@dataclass(slots=True)
class _Known:
    next_at: float
    distance_s: float = FIRST_S
    count: int = 0


class Repeats:
    """For one rule. Args: clock: monotonic seconds."""

    __slots__ = ("_clock", "_connected_at", "_known", "_says_connected")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[str, _Known] = {}
        self._connected_at: float | None = None
        self._says_connected = False

    def is_connected(self) -> bool:
        """It has connected. Returns: whether to log that: not if it was the last thing logged."""
        self._connected_at = self._clock()
        says, self._says_connected = self._says_connected, True
        return not says

    def lost(self, problem: str) -> int:
        """Not connected. Returns: times *problem* occurred since it was logged; 0: do not log."""
        now, connected_at = self._clock(), self._connected_at
        self._connected_at = None
        is_calm = connected_at is not None and now - connected_at >= CALM_S
        if is_calm or (problem not in self._known and len(self._known) >= _PROBLEMS_MAX):
            self._known.clear()
        known = self._known.setdefault(problem, _Known(now))
        known.count += 1
        if now < known.next_at:
            return 0
        count, known.count = known.count, 0
        known.next_at = now + known.distance_s
        known.distance_s = min(2 * known.distance_s, LAST_S)
        self._says_connected = False
        return count
