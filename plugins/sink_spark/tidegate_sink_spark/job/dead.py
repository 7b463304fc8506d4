"""The dead-letter table: ``<table>_dlq``, of the same format and columns as the table.

Two tables cannot be changed in one commit, so dead letters go first. A job that dies in between leaves
dead letters behind the table's mark; the next one finds out which (:meth:`DeadLetterTable.recover`) and
writes none of them again, to neither table, even if their rows can be read by then and were staged as
ordinary ones. So up to the mark every ack sequence is in one of the two tables, once.

The mark of this table counts its commits' rows and means nothing to others; like the other one's it makes a
second driver's commit fail.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Protocol

from tidegate_sink_spark.job.driver import Addition, CommitError, Table
from tidegate_sink_spark.staging.arrow import write_parquet
from tidegate_sink_spark.staging.files import StagedFile

pc: Final[Any] = importlib.import_module("pyarrow.compute")
pq: Final[Any] = importlib.import_module("pyarrow.parquet")
pa: Final[Any] = importlib.import_module("pyarrow")


class SequencedTable(Table, Protocol):
    """A table that can tell which rows it has."""

    def sequences(self, gateway_id: str, epoch: str, after: int) -> Collection[int]:
        """Ack sequences of that log behind *after*. Raises: CommitError."""
        ...


class DeadLetterTable:
    """A :class:`tidegate_sink_spark.job.driver.DeadLetters` over a table that is made when it is needed."""

    def __init__(
        self,
        find: Callable[[bool], SequencedTable | None],
        directory: Path,
        *,
        gateway_name: str,
        store_id: str,
    ) -> None:
        """Args:
        find: opens the table; None when there is none, unless it is called with True: then it is made.
        directory: for files of the job's own.
        """
        self._find = find
        self._directory = directory
        self._log = (gateway_name, store_id)
        self._table: SequencedTable | None = None
        self._known: set[int] = set()
        #: Dead letters of the log that are there.
        self.count = 0

    def recover(self, mark: int) -> None:
        """See DeadLetters."""
        if self._table is None:
            self._table = self._find(False)
        self._known = set(self._table.sequences(*self._log, mark)) if self._table else set()
        self.count = self._table.state().mark if self._table else 0

    def bury(self, files: Sequence[StagedFile], mark: int) -> Sequence[StagedFile]:
        """See DeadLetters."""
        self._known = {number for number in self._known if number > mark}
        try:
            own = self._append([file.dead_path for file in files if file.dead], mark)
            others = self._known - own
            if not others:
                return files
            return [self._living(file, others) for file in files]
        except FileNotFoundError:
            raise
        except (OSError, ValueError) as exc:  # what PyArrow raises is one of the two
            raise CommitError(f"dead letters cannot be written: {exc}") from exc

    def _append(self, paths: Sequence[Path], mark: int) -> set[int]:
        """Append what is not there yet of the rows behind *mark*; all of their numbers."""
        if not paths:
            return set()
        if self._table is None:
            self._table = self._find(True)
        table = self._table
        assert table is not None
        state = table.state()
        # Asked again, and not only at the start: another driver may have been here meanwhile.
        self._known = set(table.sequences(*self._log, mark))
        rows = pa.concat_tables([pq.read_table(str(path)) for path in paths])
        numbers = rows["ack_seq"].to_pylist()
        wanted = [number > mark and number not in self._known for number in numbers]
        count = sum(wanted)
        if count:
            if count < len(wanted):
                paths = [self._written("rest-of-dead-letters", rows.filter(pa.array(wanted)))]
            metadata = json.dumps({"gateway": self._log[0], "dead_letters": count})
            table.append(Addition(paths, state.mark, state.mark + count, count, metadata=metadata))
            after = table.state().mark  # and on stable storage, then
            if after < state.mark + count:
                raise CommitError(
                    f"the dead-letter table's mark is {after} after {count} rows behind {state.mark}"
                )
            self.count = after
        self._known.update(numbers)
        return set(numbers)

    def _living(self, file: StagedFile, dead: Collection[int]) -> StagedFile:
        """*file* without rows that are *dead* letters already; mostly it has none of them."""
        dead = [number for number in dead if file.lo <= number <= file.hi]
        if not file.rows or not dead:
            return file
        rows = pq.read_table(str(file.path))
        living = rows.filter(pc.invert(pc.is_in(rows["ack_seq"], pa.array(dead, pa.int64()))))
        if living.num_rows == rows.num_rows:
            return file
        path = self._written(f"rest-of-{file.path.stem}", living)
        return replace(file, path=path, rows=living.num_rows)

    def _written(self, name: str, rows: Any) -> Path:
        """A file of the job's own; the staged one stays as it is until the mark has passed it."""
        path = self._directory / f"{name}.parquet"
        path.unlink(missing_ok=True)  # never written over: a table may have it as its own
        write_parquet(path, rows.to_batches())
        return path
