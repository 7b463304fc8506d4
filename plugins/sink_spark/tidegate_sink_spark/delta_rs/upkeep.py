"""Keeps a table that gets many small files readable: compaction and vacuum, in a thread of the job.

Neither touches the mark. Compaction is a commit like any other: appends go on beside it, and delta-rs lets
both through, since the one adds no rows and the other removes none. A job that is killed meanwhile leaves a
file that no commit names. The thread holds the table's lock as the commits do, so the Spark job of
another gateway waits for it and does not rename its commit over this one's.
"""

from __future__ import annotations

import importlib
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tidegate_sink_spark.delta_rs.lock import table_lock
from tidegate_sink_spark.job.driver import first_line

#: Part of the interval by which each one differs, so that the sinks of a machine do not work at once.
JITTER: Final = 0.1
#: Compactions from one vacuum to the next. Each lists the whole directory.
VACUUM_EVERY: Final = 24


class Upkeep:
    """Compacts one table every *interval* seconds; a daemon thread once it is started."""

    def __init__(
        self,
        directory: Path,
        *,
        interval: float,
        retention: float,
        report: Callable[[str], None],
    ) -> None:
        """Args:
        retention: seconds for which files are kept that are in the table no more; 0: for ever.
        report: told what failed, in the thread.
        """
        self._directory = directory
        self._interval = interval
        self._retention = retention
        self._report = report
        self._turns = 0
        self._stopped = threading.Event()

    def start(self) -> None:
        """Begin; the first compaction comes after one interval."""
        threading.Thread(target=self._run, daemon=True, name="upkeep").start()

    def stop(self) -> None:
        """Begin no further turn."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(self._interval * random.uniform(1 - JITTER, 1 + JITTER)):
            try:
                self.turn()
            except Exception as exc:  # whatever it is, rows must go on
                self._report(
                    f"the table {self._directory} cannot be compacted now: {first_line(exc)}; the next try is "
                    f"in {self._interval:.0f} s"
                )

    def turn(self) -> None:
        """Compact once, and vacuum when it is time. Raises: what delta-rs raises; CommitError, OSError."""
        deltalake: Any = importlib.import_module("deltalake")
        with table_lock(self._directory):
            table = deltalake.DeltaTable(str(self._directory))
            # One task: the gateway and its clients want the processor more.
            table.optimize.compact(max_concurrent_tasks=1)
            if self._retention and self._turns % VACUUM_EVERY == 0:
                table.vacuum(
                    retention_hours=max(1, round(self._retention / 3600)),
                    dry_run=False,
                    enforce_retention_duration=False,
                    full=True,
                )
        self._turns += 1
