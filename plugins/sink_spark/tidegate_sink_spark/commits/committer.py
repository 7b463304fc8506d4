"""Tells the job when to commit, and lets it go when there has been nothing to do for long.

The job never looks by itself: when told, it commits what is staged, reports ready, and waits. So a sink without rows
wakes nobody up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from tidegate_sink_spark._engine import EngineJob
from tidegate_sink_spark._protocol import Command
from tidegate_sink_spark.commits.lag import LagWatch
from tidegate_sink_spark.commits.pace import Pace
from tidegate_sink_spark.staging.staging import Staging

#: How long a commit waits for the open segment to be sealed: the disk may be full.
SEAL_PATIENCE: Final = 1.0


class Committer:
    """Of one sink; on the event loop."""

    def __init__(
        self,
        staging: Staging,
        pace: Pace,
        watch: LagWatch,
        *,
        idle: float,
        cause: Callable[[], str],
        is_kept: Callable[[], bool] = lambda: False,
    ) -> None:
        """Args:
        idle: seconds without rows after which the job is let go; 0: never.
        cause: of a lag.
        is_kept: whether the job has, or will get, something else to do; :meth:`changed` reports a change.
        """
        self._staging = staging
        self._pace = pace
        self._watch = watch
        self._idle = idle
        self._cause = cause
        self._is_kept = is_kept
        self._job: EngineJob | None = None
        self._is_ready = False
        self._idle_since = 0.0
        self._changed = asyncio.Event()
        self._work = asyncio.Event()
        #: The job was let go, or is about to end.
        self.is_asleep = False

    @property
    def is_busy(self) -> bool:
        """The job is starting, or was told something."""
        return not self._is_ready

    @property
    def is_late(self) -> bool:
        """The oldest row is older than the goal, or was a moment ago."""
        return self._watch.is_late

    def changed(self) -> None:
        """Something was read, sealed or committed."""
        self._changed.set()

    def ready(self, job: EngineJob, *, moved: bool) -> None:
        """The job has done what it was told. Args: moved: its table has new rows."""
        now = asyncio.get_running_loop().time()
        if self._job is job:
            self._pace.end(now, moved=moved)
        elif moved:
            self._pace.begin(now)  # it looked by itself when it began
        self._job, self._is_ready, self._idle_since = job, True, now
        self._changed.set()

    def gone(self) -> None:
        """The job has ended."""
        self._job, self._is_ready = None, False
        self._changed.set()

    async def until_work(self) -> None:
        """Wait until there is something for a job to do. Cancellation: safe."""
        await self._work.wait()
        self.is_asleep = False

    async def run(self) -> None:
        """Work until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            self._changed.clear()
            try:
                async with asyncio.timeout(self._turn(loop.time())):
                    await self._changed.wait()
            except TimeoutError:
                pass

    def _turn(self, now: float) -> float | None:
        """Do what is due. Returns: seconds until something else may be; None: not before a change."""
        waiting = self._staging.waiting
        has_work = waiting.oldest is not None
        if has_work or self._is_kept():
            self._work.set()
            self._idle_since = now
        else:
            self._work.clear()
        delays = [self._watch.look(waiting.oldest, now, self._why), self._commit(now, has_work)]
        return min((delay for delay in delays if delay is not None), default=None)

    def _commit(self, now: float, has_work: bool) -> float | None:
        job = self._job
        if job is None or not self._is_ready:
            return None
        waiting = self._staging.waiting
        due = self._pace.due_at(waiting)
        self._staging.want(due)
        if not has_work:
            return self._let_go(job, now)
        if now < due:
            return due - now
        if not waiting.files:
            return None  # sealing the first one reports a change
        if not self._staging.is_sealed_since(due) and now < due + SEAL_PATIENCE:
            return due + SEAL_PATIENCE - now
        self._is_ready = False
        self._pace.begin(now)
        self._staging.want(None)
        job.send(Command.COMMIT)
        return None

    def _let_go(self, job: EngineJob, now: float) -> float | None:
        if not self._idle:
            return None
        left = self._idle_since + self._idle - now
        if left > 0:
            return left
        self.is_asleep, self._is_ready = True, False
        job.send(Command.STOP)  # what is staged by now is committed before it ends
        return None

    def _why(self) -> str:
        cause = self._cause()
        if cause:
            return cause
        if self.is_asleep or self._job is None:
            return "the job starts"
        rows = self._staging.waiting.rows
        return f"{rows} rows wait, and a commit takes {self._pace.takes:.1f} s"
