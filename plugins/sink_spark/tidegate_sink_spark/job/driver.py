"""The job's loop: staged files that continue the table's mark go into it, one commit at a time.

Nothing here knows Spark; the table is passed in, so every order of events can be tested without a
Java machine. The rules (docs/sink-spark.md, "Exactly once"):

1. the mark is read from the table, never remembered anywhere else;
2. files are taken in name order while they continue the mark; a missing range stops the job there;
3. rows and new mark are one table commit, and the mark is the highest ack sequence in it;
4. the mark is read back before it is reported, and only what is reported is ever deleted.
"""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from tidegate_sink_spark._protocol import Command, Failed, Gap, Mark, Report, Stopped, Unreadable
from tidegate_sink_spark.staging.arrow import check_file
from tidegate_sink_spark.staging.files import StagedFile, choose, list_staged

#: Upper bounds of one commit, so that a long backlog is worked off in steps of some seconds and
#: each step's progress is kept. Rows: 143 thousand rows/s were measured.
COMMIT_ROWS_MAX: Final = 500_000
COMMIT_BYTES_MAX: Final = 512 << 20
COMMIT_FILES_MAX: Final = 200
#: Commits that fail in a row (a race with another driver, a full disk) before the job ends, so
#: that its next start gets a fresh Java machine.
FAILURES_MAX: Final = 5
FAILURE_DELAY: Final = 0.5


class CommitError(Exception):
    """The commit was not made, or made and found wrong. The text says what and why."""


class MarkMovedError(CommitError):
    """Another driver of the same log committed meanwhile. Nothing was written; nothing is wrong."""


@dataclass(frozen=True, slots=True)
class TableState:
    """Attributes: mark (highest ack sequence in the table, 0 for none), version (of the table)."""

    mark: int
    version: int


class Table(Protocol):
    """The target. Blocking."""

    def state(self) -> TableState:
        """Read the mark from the table; what it covers is on stable storage when this returns."""
        ...

    def append(
        self, paths: Sequence[Path], *, after: int, through: int, overlaps: bool, metadata: str
    ) -> None:
        """Append the rows of *paths* behind *after* and set the mark to *through*, in one commit.

        Args: overlaps: the first path also holds rows up to *after*, which must be left out.
        Raises: MarkMovedError when the table's mark is above *after*; CommitError.
        """
        ...


class Driver:
    """Runs one log into one table."""

    def __init__(
        self,
        table: Table,
        directory: Path,
        *,
        gateway_name: str,
        floor: int,
        commit_interval: float,
        report: Callable[[Report], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._table = table
        self._directory = directory
        self._gateway_name = gateway_name
        self._floor = floor
        self._commit_interval = commit_interval
        self._report = report
        self._clock = clock
        self._mark = 0

    def run(self, commands: queue.SimpleQueue[Command]) -> bool:
        """Work until told to stop. True: stopped as told; False: too many failures in a row."""
        self._read_mark()
        failures = 0
        stopping = False
        while True:
            due = self._clock() + self._commit_interval
            try:
                self.commit_staged()
                failures = 0
            except (MarkMovedError, FileNotFoundError):
                # Another driver's commit has passed a file, and its gateway may have deleted it.
                self._read_mark()
                continue
            except CommitError as exc:
                failures += 1
                self._report(Failed(str(exc)))
            if failures >= FAILURES_MAX:
                return False
            if failures:
                time.sleep(FAILURE_DELAY * failures)
                self._read_mark()
                continue
            if stopping:
                self._report(Stopped(self._mark))
                return True
            stopping = self._wait(commands, due) is Command.STOP

    def _wait(self, commands: queue.SimpleQueue[Command], due: float) -> Command:
        """The next command; an interval that ends is a :attr:`Command.COMMIT`."""
        try:
            return commands.get(timeout=max(0.0, due - self._clock()))
        except queue.Empty:
            return Command.COMMIT

    def _read_mark(self) -> None:
        state = self._table.state()
        self._mark = state.mark
        self._report(Mark(state.mark, state.version))

    def commit_staged(self) -> None:
        """Commit all staged files that continue the mark, in as many commits as the bounds ask.

        Raises: CommitError, FileNotFoundError.
        """
        while True:
            # A table that is behind the floor was replaced by another one: the rows up to the
            # floor are in neither log nor staging, so waiting for them would be for ever.
            mark = max(self._mark, self._floor)
            choice = choose(
                list_staged(self._directory),
                mark,
                rows_max=COMMIT_ROWS_MAX,
                bytes_max=COMMIT_BYTES_MAX,
                files_max=COMMIT_FILES_MAX,
            )
            files = self._readable(choice.files)
            if files:
                self._commit(files, mark)
            if len(files) < len(choice.files):
                return
            if choice.gap:
                self._report(Gap(choice.through + 1, choice.gap))
            if not choice.more:
                return

    def _readable(self, files: Sequence[StagedFile]) -> list[StagedFile]:
        """The first of *files* that hold what their names say."""
        good: list[StagedFile] = []
        for file in files:
            problem = check_file(file.path, file.lo, file.hi)
            if problem:
                self._report(Unreadable(file.path.name, problem))
                break
            good.append(file)
        return good

    def _commit(self, files: Sequence[StagedFile], mark: int) -> None:
        through = files[-1].hi
        started = self._clock()
        metadata = {
            "gateway": self._gateway_name,
            "lo": mark + 1,
            "hi": through,
            "n": through - mark,
            "files": len(files),
        }
        self._table.append(
            [file.path for file in files],
            after=mark,
            through=through,
            overlaps=files[0].lo <= mark,
            metadata=json.dumps(metadata),
        )
        state = self._table.state()
        if state.mark < through:
            raise CommitError(
                f"the table's mark is {state.mark} after a commit through {through} was accepted"
            )
        self._mark = state.mark
        seconds = round(self._clock() - started, 3)
        self._report(Mark(state.mark, state.version, through - mark, len(files), seconds))
