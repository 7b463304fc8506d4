"""Tells the job when to keep its tables up. On the event loop; the job decides what to do, and how.

A job that was let go is not started for this: due work waits until rows come. Only a request (``tidegate sink
compact``) starts one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from tidegate.spi import SinkUpkeep
from tidegate_sink_spark._engine import EngineJob
from tidegate_sink_spark._protocol import Command, Kept
from tidegate_sink_spark._remedies import with_remedy
from tidegate_sink_spark.upkeep.schedule import Schedule

log = logging.getLogger(__name__)

#: Seconds after which no answer is expected: of several submitted jobs the one told may be gone.
TURN_MAX: Final = 6 * 3600.0


class Keeper:
    """Of one sink."""

    def __init__(
        self,
        schedule: Schedule,
        *,
        on_change: Callable[[], None],
        on_problem: Callable[[str], None],
        wall_us: Callable[[], int] = lambda: time.time_ns() // 1_000,
    ) -> None:
        """Args:
        on_change: called when :attr:`is_wanted` has changed.
        on_problem: called with what went wrong, in a line with its remedy.
        """
        self._schedule = schedule
        self._on_change = on_change
        self._on_problem = on_problem
        self._wall_us = wall_us
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._job: EngineJob | None = None
        self._busy_since: float | None = None
        self._asked = False
        self._turns = 0
        #: The last turn; None before it.
        self.last: SinkUpkeep | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether the job is at it, or somebody waits for it: it must not be let go now."""
        return self._asked or self._busy_since is not None

    def ask(self) -> int:
        """Request a turn, with a vacuum, as soon as there is a job. Returns: its number."""
        self._asked = True
        number = self._turns + 1 + (self._busy_since is not None)
        self._look()
        self._on_change()
        return number

    def committed(self) -> None:
        """The table has new rows."""
        self._schedule.committed()
        self._look()

    def ready(self, job: EngineJob) -> None:
        """*job* can take a command."""
        self._job = job
        self._look()

    def gone(self) -> None:
        """The job has ended; the next one takes over its turn."""
        self._job = None
        if self._busy_since is not None:
            self._end(Kept(problem="the upkeep was not done: the job ended meanwhile"))

    def kept(self, report: Kept) -> None:
        """The job has ended a turn."""
        if self._busy_since is not None:
            self._end(report)

    def close(self) -> None:
        """Send nothing any more."""
        self._job = None
        self._look()

    def _end(self, report: Kept) -> None:
        self._busy_since = None
        self._turns += 1
        problem = with_remedy(report.problem)
        if problem:
            self._schedule.failed()
            log.warning("upkeep problem=%r", problem)
            self._on_problem(problem)
        else:
            log.info(
                "upkeep files_removed=%d files_added=%d seconds=%.1f",
                report.files_removed,
                report.files_added,
                report.seconds,
            )
        self.last = SinkUpkeep(
            number=self._turns,
            at=self._wall_us(),
            seconds=report.seconds,
            files_removed=report.files_removed,
            files_added=report.files_added,
            problem=problem,
        )
        self._look()
        self._on_change()

    def _look(self) -> None:
        """Do what is due, and look again when more is."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        delay = self.turn(self._loop.time())
        if delay is not None:
            self._timer = self._loop.call_later(delay, self._look)

    def turn(self, now: float) -> float | None:
        """Do what is due. Returns: seconds until something else may be; None: not before a change."""
        if self._job is None:
            return None
        if self._busy_since is not None:
            if now < self._busy_since + TURN_MAX:
                return self._busy_since + TURN_MAX - now
            self._end(Kept(problem=f"the job has not ended its upkeep for {TURN_MAX:.0f} s"))
            return None
        due = now if self._asked else self._schedule.due_at
        if due is None:
            return None
        if now < due:
            return due - now
        vacuums = self._schedule.begin(now) or self._asked
        self._asked, self._busy_since = False, now
        self._job.send(Command.COMPACT_AND_VACUUM if vacuums else Command.COMPACT)
        return TURN_MAX
