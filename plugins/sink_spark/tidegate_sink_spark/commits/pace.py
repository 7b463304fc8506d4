"""When the next commit is due.

Rows are gathered for ``commit_interval``, so that a table does not fill with small files. A commit comes sooner when
``commit_rows`` or ``commit_size`` are waiting, or when waiting longer would miss ``lag_goal``. A row that comes after
a quiet time does not wait.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from tidegate_sink_spark.staging.storage import Waiting

#: Between two commits, whatever the reason: readers gain nothing from more, and each makes a file.
SPACING_MIN: Final = 0.1
#: Between two looks at staged files when the last one could commit none: something is missing.
RETRY_MIN: Final = 1.0
#: Time to seal the last rows before a commit, even on a busy machine.
SEALING: Final = 0.1
#: A commit is expected to take as long as the longest of this many before it.
_REMEMBERED: Final = 8


class Pace:
    """Decides when to commit. Times are the event loop's, in seconds."""

    def __init__(self, *, interval: float, rows: int, size_bytes: int, lag_goal: float) -> None:
        """Args: as the options; lag_goal: 0: there is none."""
        self._interval = interval
        self._rows = rows
        self._size_bytes = size_bytes
        self._lag_goal = lag_goal
        self._begun = float("-inf")
        self._is_stuck = False
        self._took: deque[float] = deque(maxlen=_REMEMBERED)

    @property
    def takes(self) -> float:
        """Seconds that a commit is expected to take; 0 before the first."""
        return max(self._took, default=0.0)

    def begin(self, now: float) -> None:
        """A commit is requested."""
        self._begun = now

    def end(self, now: float, *, moved: bool) -> None:
        """It is done. Args: moved: the table has new rows."""
        self._is_stuck = not moved
        if moved and self._begun > float("-inf"):
            self._took.append(now - self._begun)

    def due_at(self, waiting: Waiting) -> float:
        """When the next commit is to begin."""
        if self._is_stuck:
            return self._begun + max(self._interval, RETRY_MIN)
        soonest = self._begun + SPACING_MIN
        if waiting.rows >= self._rows or waiting.size_bytes >= self._size_bytes:
            return soonest
        due = self._begun + self._interval
        if self._lag_goal and waiting.oldest is not None:
            due = min(due, waiting.oldest + self._lag_goal - self.takes - SEALING)
        return max(due, soonest)
