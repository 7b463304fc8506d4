"""Does the upkeep in the job's process: a thread beside the one that commits; one turn per command.

Neither the thread nor its failures stop a commit. A job that ends does not wait for it: each step is its own
commit, or leaves nothing but files that no commit names.
"""

from __future__ import annotations

import queue
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from tidegate_sink_spark._protocol import Kept
from tidegate_sink_spark.job.driver import first_line

#: Bytes of a file that is large enough. 432 million rows of 300 bytes, a day at 5,000 a second, are 240 such files.
FILE_BYTES: Final = 512 << 20
#: Files nearly as large stay as they are: otherwise each turn would rewrite the largest file.
SMALL_BYTES: Final = FILE_BYTES * 3 // 4
#: How often a turn is tried that lost a race with another change of the table.
ATTEMPTS_MAX: Final = 3
_CONFLICT: Final = re.compile("concurrent|CommitFailed|conflict", re.IGNORECASE)
RETRY_DELAY: Final = 0.5


@dataclass(frozen=True, slots=True)
class Turn:
    """What was done to a table. Attributes: removed, added (data files); files (that it has now; None: not known)."""

    removed: int = 0
    added: int = 0
    files: int | None = field(default=None, compare=False)


class TableUpkeep(Protocol):
    """One table's. Used by one thread, which is not the one that commits."""

    def turn(self, *, vacuums: bool) -> Turn:
        """Make few files of many; with *vacuums* also delete files that nobody needs.

        Raises: whatever the table's format raises.
        """
        ...


class Worker:
    """One job's; the thread starts at the first command."""

    def __init__(
        self,
        tables: Mapping[str, Callable[[], TableUpkeep]],
        report: Callable[[Kept], None],
        *,
        retry_delay: float = RETRY_DELAY,
    ) -> None:
        """Args:
        tables: by name, the main one first; opens what does the upkeep, in the thread.
        report: called after each turn, in the thread.
        """
        self._tables = tables
        self._report = report
        self._retry_delay = retry_delay
        self._opened: dict[str, TableUpkeep] = {}
        self._asked: queue.SimpleQueue[bool | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_stopped = False

    def ask(self, vacuums: bool) -> None:
        """Do a turn after those already requested. Returns at once."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True, name="upkeep")
            self._thread.start()
        self._asked.put(vacuums)

    def stop(self) -> None:
        """Begin no further turn, and report none. Returns at once."""
        self._is_stopped = True
        self._asked.put(None)

    def _run(self) -> None:
        while (vacuums := self._asked.get()) is not None and not self._is_stopped:
            kept = self.turn(vacuums=vacuums)
            if not self._is_stopped:
                self._report(kept)

    def turn(self, *, vacuums: bool) -> Kept:
        """Keep all tables up, once; a failure with one does not affect the others."""
        began, done, problems = time.monotonic(), dict[str, Turn](), list[str]()
        for name in self._tables:
            try:
                done[name] = self._keep(name, vacuums=vacuums)
            except Exception as exc:  # whatever it is, rows must go on
                if not self._is_stopped:
                    traceback.print_exc(file=sys.stderr)
                problems.append(
                    f"the table {name} cannot be compacted now, and gets rows all the same: {first_line(exc)}"
                )
        return Kept(
            seconds=round(time.monotonic() - began, 3),
            files_removed=sum(turn.removed for turn in done.values()),
            files_added=sum(turn.added for turn in done.values()),
            table_files=done.get(next(iter(self._tables)), Turn()).files,
            problem="; ".join(problems),
        )

    def _keep(self, name: str, *, vacuums: bool) -> Turn:
        attempt = 1
        while True:
            try:
                if name not in self._opened:
                    self._opened[name] = self._tables[name]()
                return self._opened[name].turn(vacuums=vacuums)
            except Exception as exc:
                if attempt == ATTEMPTS_MAX or not _CONFLICT.search(f"{type(exc).__name__}: {exc}"):
                    raise
            attempt += 1
            time.sleep(self._retry_delay)
