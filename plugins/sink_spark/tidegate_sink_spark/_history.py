"""What a sink has done and what went wrong, for its health report."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Final

from tidegate.spi import SinkCommit, SinkProblem
from tidegate_sink_spark._protocol import Mark

#: Problems remembered.
PROBLEMS_MAX: Final = 20
#: Rows per second are averaged over this many seconds.
RATE_S: Final = 60.0


class History:
    """Since the start of the sink; on the event loop."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_us: Callable[[], int] = lambda: time.time_ns() // 1_000,
    ) -> None:
        self._clock = clock
        self._wall_us = wall_us
        self._started = clock()
        self._rows: deque[tuple[float, int]] = deque()
        self._problems: deque[SinkProblem] = deque(maxlen=PROBLEMS_MAX)
        self.last_commit: SinkCommit | None = None

    def add_commit(self, mark: Mark, after: int) -> None:
        """The job has committed, and reports *mark*; the previous mark was *after*."""
        self.last_commit = SinkCommit(
            self._wall_us(),
            mark.rows,
            mark.dead,
            mark.version,
            mark.files,
            mark.seconds,
            after,
            mark.mark,
        )
        self._forget()
        self._rows.append((self._clock(), mark.rows + mark.dead))

    def add_problem(self, text: str) -> None:
        """A new problem has come up."""
        self._problems.appendleft(SinkProblem(self._wall_us(), text))

    @property
    def problems(self) -> tuple[SinkProblem, ...]:
        """The latest ones, newest first."""
        return tuple(self._problems)

    @property
    def rows_per_second(self) -> float:
        """Rows committed per second, over the last minute."""
        self._forget()
        rows = sum(count for _, count in self._rows)
        return rows / min(RATE_S, max(1.0, self._clock() - self._started))

    def _forget(self) -> None:
        before = self._clock() - RATE_S
        while self._rows and self._rows[0][0] < before:
            self._rows.popleft()
