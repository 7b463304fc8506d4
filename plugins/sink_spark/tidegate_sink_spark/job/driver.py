"""The job's loop: staged files that continue the table's mark go into it, one commit at a time.

Nothing here knows Spark; the table is passed in, so every order of events can be tested without a
Java machine. The rules (docs/sink-spark.md, "Exactly once"):

1. the mark is read from the table, never remembered anywhere else;
2. files are taken in name order while they continue the mark; a missing range stops the job there;
3. rows and new mark are one table commit, and the mark is the highest ack sequence in it;
4. dead letters go to their own table before that, and a row there is nowhere else (``job.dead``);
5. the mark is read back before it is reported, and only what is reported is ever deleted.
"""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from tidegate_sink_spark._protocol import (
    COMMIT_BYTES,
    COMMIT_ROWS,
    Command,
    Failed,
    Gap,
    Mark,
    Ready,
    Report,
    Stopped,
    Unreadable,
)
from tidegate_sink_spark.staging.arrow import check_staged, count_behind
from tidegate_sink_spark.staging.files import StagedFile, choose, list_staged

#: Most files of one commit, besides the options ``commit_rows`` and ``commit_size``.
COMMIT_FILES_MAX: Final = 200
#: Commits that fail in a row (a race with another driver, a full disk) before the job ends, so
#: that its next start gets a fresh Java machine.
FAILURES_MAX: Final = 5
FAILURE_DELAY: Final = 0.5


class CommitError(Exception):
    """The commit was not made, or made and found wrong. The text says what and why."""


def first_line(exc: BaseException) -> str:
    """The first line of *exc*; its name when it says nothing. Java's stack traces come after it."""
    text = next((line for line in str(exc).splitlines() if line.strip()), type(exc).__name__)
    return text[:500]


class MarkMovedError(CommitError):
    """Another driver of the same log committed meanwhile. Nothing was written; nothing is wrong."""


class TableReplacedError(CommitError):
    """The table is not the one that this job has written to. Nothing was written."""


@dataclass(frozen=True, slots=True)
class TableState:
    """A table's state.

    Attributes:
        mark: highest ack sequence in it, 0 for none.
        version: its own.
        files: how many it has; None: counting would cost too much.
    """

    mark: int
    version: int
    files: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Addition:
    """What one commit adds.

    Attributes:
        paths: files that hold the rows, in their order.
        after: the mark that it continues; only rows after it count.
        through: the mark afterwards.
        count: how many rows there are after *after*.
        overlaps: the first path also holds rows up to *after*, which must be left out.
        metadata: what the table's history says about the commit, a JSON object.
        known: the table's last known mark, 0 for none: it never goes back.
    """

    paths: Sequence[Path]
    after: int
    through: int
    count: int
    overlaps: bool = False
    metadata: str = "{}"
    known: int = 0

    def check_mark(self, mark: int) -> None:
        """Raises: MarkMovedError when the table's *mark* is above the one that this continues;
        TableReplacedError when it is below the one that is known.
        """
        if mark > self.after:
            raise MarkMovedError(
                f"another driver moved the table's mark from {self.after} to {mark}"
            )
        check_forward(self.known, mark)

    def check_count(self, found: int) -> None:
        """Raises: CommitError when the paths hold *found* rows instead of the number they must."""
        if found != self.count:
            raise CommitError(
                f"{found} rows instead of {self.count} are behind {self.after} in "
                f"{', '.join(path.name for path in self.paths)}"
            )


def check_forward(known: int, mark: int) -> None:
    """Raises: TableReplacedError when a table's *mark* is below *known*, the one that it had."""
    if mark < known:
        raise TableReplacedError(
            f"the table's mark went back from {known} to {mark}: another table, or an older state of it, is in its "
            "place"
        )


class Table(Protocol):
    """The target. Blocking."""

    def state(self) -> TableState:
        """Read the mark from the table; what it covers is on stable storage when this returns."""
        ...

    def append(self, addition: Addition) -> None:
        """Append the rows of *addition* and set the mark, in one commit.

        Raises: MarkMovedError when the table's mark is above the one that it continues; CommitError.
        """
        ...


class DeadLetters(Protocol):
    """For rows that cannot be read or written; :class:`tidegate_sink_spark.job.dead.DeadLetterTable`."""

    @property
    def count(self) -> int:
        """How many dead letters of the log there are."""
        ...

    def recover(self, mark: int) -> None:
        """Find out which dead letters there are after *mark*, the table's. Raises: CommitError."""
        ...

    def bury(self, files: Sequence[StagedFile], mark: int) -> Sequence[StagedFile]:
        """Append the dead letters of *files* after *mark*, once.

        Returns: the files, without rows that are dead letters already.
        Raises: MarkMovedError; CommitError, FileNotFoundError.
        """
        ...


class Driver:
    """Runs one log into one table."""

    def __init__(
        self,
        table: Table,
        dead_letters: DeadLetters,
        directory: Path,
        *,
        gateway_name: str,
        floor: int,
        rows_max: int = COMMIT_ROWS,
        bytes_max: int = COMMIT_BYTES,
        commit_interval: float = 0.0,
        report: Callable[[Report], None],
        keep_up: Callable[[bool], None] = lambda vacuums: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
        rows_max, bytes_max: limits of one commit; its first file may exceed them.
        commit_interval: seconds between two looks at the directory; 0: only when told.
        keep_up: begins a turn of upkeep, with or without a vacuum, and returns at once.
        """
        self._table = table
        self._dead_letters = dead_letters
        self._directory = directory
        self._gateway_name = gateway_name
        self._floor = floor
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._commit_interval = commit_interval
        self._report = report
        self._keep_up = keep_up
        self._clock = clock
        self._mark = 0
        self._told = True  # this round was requested

    def run(self, commands: queue.SimpleQueue[Command]) -> bool:
        """Work until told to stop. True: stopped as told; False: too many failures in a row.

        Raises: TableReplacedError; CommitError when the mark cannot be read.
        """
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
            except TableReplacedError:
                raise  # the log may still have what it lacks: the next job begins there
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
            if self._told:
                self._report(Ready(self._mark))
            stopping = self._wait(commands, due) is Command.STOP

    def _wait(self, commands: queue.SimpleQueue[Command], due: float) -> Command:
        """Commit or stop; an interval that ends is a :attr:`Command.COMMIT`."""
        self._told = True
        while True:
            try:
                wait = max(0.0, due - self._clock()) if self._commit_interval else None
                command = commands.get(timeout=wait)
            except queue.Empty:
                self._told = False
                return Command.COMMIT
            if command in (Command.COMMIT, Command.STOP):
                return command
            self._keep_up(command is Command.COMPACT_AND_VACUUM)

    def _read_mark(self) -> None:
        state = self._table.state()
        check_forward(self._mark, state.mark)
        self._mark = state.mark
        self._dead_letters.recover(state.mark)
        self._report(
            Mark(
                state.mark,
                state.version,
                table_files=state.files,
                dead_rows=self._dead_letters.count,
            )
        )

    def _staged(self) -> list[StagedFile]:
        try:
            return list_staged(self._directory)
        except OSError as exc:
            raise CommitError(
                f"staged files cannot be listed: {exc.strerror} {self._directory}; the job must see"
                " the gateway's directory under the same path"
            ) from exc

    def commit_staged(self) -> None:
        """Commit all staged files that continue the mark, in as many commits as the limits require.

        Raises: CommitError, FileNotFoundError.
        """
        while True:
            # A table below the floor was replaced by another one: the rows up to the floor are in
            # neither log nor staging, so waiting for them would never end.
            mark = max(self._mark, self._floor)
            choice = choose(
                self._staged(),
                mark,
                rows_max=self._rows_max,
                bytes_max=self._bytes_max,
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
            problem = check_staged(file)
            if problem:
                self._report(Unreadable(file.path.name, problem))
                break
            good.append(file)
        return good

    def _commit(self, files: Sequence[StagedFile], mark: int) -> None:
        through = files[-1].hi
        started = self._clock()
        files = self._dead_letters.bury(files, mark)
        count = sum(file.rows for file in files) - _left_out(files[0], mark)
        metadata = {
            "gateway": self._gateway_name,
            "lo": mark + 1,
            "hi": through,
            "n": count,
            "files": len(files),
        }
        self._table.append(
            Addition(
                [file.path for file in files],
                after=mark,
                through=through,
                count=count,
                overlaps=files[0].lo <= mark,
                metadata=json.dumps(metadata),
                known=self._mark,
            )
        )
        state = self._table.state()
        if state.mark < through:
            raise CommitError(
                f"the table's mark is {state.mark} after a commit through {through} was accepted"
            )
        self._mark = state.mark
        seconds = round(self._clock() - started, 3)
        dead = sum(file.dead for file in files)
        self._report(
            Mark(
                state.mark,
                state.version,
                count,
                len(files),
                seconds,
                dead,
                table_files=state.files,
                dead_rows=self._dead_letters.count,
            )
        )


def _left_out(first: StagedFile, mark: int) -> int:
    """Rows of the *first* file that the table has already. Raises: CommitError, FileNotFoundError."""
    if first.lo > mark or not first.rows:
        return 0
    if first.is_dense:
        return mark - first.lo + 1
    try:
        return first.rows - count_behind(first.path, mark)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as exc:  # what PyArrow raises is one of the two
        raise CommitError(f"the staged file {first.path.name} cannot be read: {exc}") from exc
