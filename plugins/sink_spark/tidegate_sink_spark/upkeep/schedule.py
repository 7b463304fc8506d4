"""When a table's upkeep is due. Knows no clock: times are arguments, in seconds of any clock."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

#: Share of the interval by which intervals vary, so that a machine's sinks do not all work at once.
JITTER: Final = 0.1
#: Compactions per vacuum. Each vacuum lists the whole table.
VACUUM_EVERY: Final = 24


class Schedule:
    """One sink's."""

    def __init__(
        self, interval: float, *, now: float, chance: Callable[[], float] = random.random
    ) -> None:
        """Args:
        interval: seconds between two turns; 0: only requested ones.
        now: the first turn comes an interval later.
        chance: a number from 0 to 1.
        """
        self._interval = interval
        self._chance = chance
        self._has_work = False
        self._turns = 0
        self._due = self._after(now)

    def _after(self, now: float) -> float:
        return now + self._interval * (1 + JITTER * (2 * self._chance() - 1))

    def committed(self) -> None:
        """The table has changed: the next turn has something to do."""
        self._has_work = True

    @property
    def due_at(self) -> float | None:
        """When the next turn is to begin; None: not before the table changes."""
        return self._due if self._interval and self._has_work else None

    def begin(self, now: float) -> bool:
        """A turn begins. Returns: whether it is to vacuum, too."""
        self._has_work = False  # later commits are the next one's
        self._due = self._after(now)
        vacuums = self._turns % VACUUM_EVERY == 0
        self._turns += 1
        return vacuums

    def failed(self) -> None:
        """The turn's work is still to be done; the next one tries, an interval later."""
        self._has_work = True
        self._turns -= 1
