"""Puts staged files where the table's log can name them.

A staged file is linked (or copied, from another file system and from another user) under a name that is
new each time: nothing that the table may refer to is ever written over. Only a file that holds rows of two days, or
rows that the table has already, is written anew. What a killed job leaves behind is in no commit, and
VACUUM removes it.
"""

from __future__ import annotations

import datetime as dt
import errno
import importlib
import os
import shutil
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from tidegate_sink_spark.job.driver import Addition
from tidegate_sink_spark.job.table import FurtherColumns, columns_of
from tidegate_sink_spark.placing.batches import by_partition
from tidegate_sink_spark.placing.statistics import FileFacts

pc: Final[Any] = importlib.import_module("pyarrow.compute")
pq: Final[Any] = importlib.import_module("pyarrow.parquet")

#: What ``link`` answers where a copy may succeed: another file system, or one without hard links.
_NO_LINK: Final = (errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS)

#: The values that the rows of a file have in the columns that the table is partitioned by.
Partition: TypeAlias = "Mapping[str, dt.date | str | None]"

#: Hive's name for the directory of rows without a value; a dead letter may have no time.
_NO_DATE: Final = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, slots=True)
class PlacedFile:
    """A file in the table's directory that no commit names yet.

    Attributes: name (relative to the table), rows, size_bytes, partition (value by column),
        statistics (JSON).
    """

    name: str
    rows: int
    size_bytes: int
    partition: Mapping[str, str | None]
    statistics: str


class Placing:
    """Places files in *table*. Args: partition_by: ``ack_date``, ``destination``, both or neither."""

    def __init__(
        self, table: Path, partition_by: tuple[str, ...], further: FurtherColumns = ()
    ) -> None:
        self._table = table
        self.partition_by = partition_by
        self._columns = [name for name, _ in columns_of(further) if name not in partition_by]
        umask = os.umask(0o077)
        os.umask(umask)
        self._mode = 0o666 & ~umask

    def place_all(self, addition: Addition) -> list[PlacedFile]:
        """Place all rows of *addition*, durably; nothing of them is left when that fails.

        Raises: FileNotFoundError when a staged file is gone; OSError, ValueError; CommitError.
        """
        placed: list[PlacedFile] = []
        behind = addition.after if addition.overlaps else None
        try:
            for path in addition.paths:
                placed += self.place(path, behind)
                behind = None
            addition.check_count(sum(file.rows for file in placed))
            self.sync(placed)
        except BaseException:
            self.take_back(placed)
            raise
        return placed

    def place(self, path: Path, behind: int | None) -> list[PlacedFile]:
        """Place the rows of the staged file *path*: of all ack sequences, or those above *behind*.

        Raises: OSError, ValueError. Then nothing of it is left.
        """
        facts = FileFacts(path)
        bounds = [facts.bounds(name) for name in self.partition_by]
        ones = [found[0] for found in bounds if found is not None and found[0] == found[1]]
        has_nulls = any(facts.nulls(name) != 0 for name in self.partition_by)
        if behind is None and not has_nulls and len(ones) == len(bounds):
            return [self._place_whole(path, facts, dict(zip(self.partition_by, ones, strict=True)))]
        return self._place_parts(path, behind)

    def _place_whole(self, path: Path, facts: FileFacts, partition: Partition) -> PlacedFile:
        target = self._new_path(path, partition)
        try:
            self._put(path, target)
            return self._placed(target, facts, partition)
        except BaseException:
            target.unlink(missing_ok=True)
            raise

    def _put(self, path: Path, target: Path) -> None:
        if not self._link(path, target):
            shutil.copyfile(path, target)
        # Costs next to nothing for a staged file, which was synced when it was sealed.
        _sync(target)
        target.chmod(self._mode)  # staged files are the gateway's alone; a table's are as it says
        # VACUUM goes by a file's age, and a file may have been staged for longer than it keeps one.
        os.utime(target)

    def _link(self, path: Path, target: Path) -> bool:
        if path.stat().st_uid != os.geteuid():
            return False  # a job of a cluster: the mode of another user's file is not ours to set
        try:
            os.link(path, target)
        except OSError as exc:
            if exc.errno not in _NO_LINK:
                raise
            return False
        return True

    def _place_parts(self, path: Path, behind: int | None) -> list[PlacedFile]:
        rows = pq.read_table(str(path), partitioning=None)  # "a=b" in its path is no column
        if behind is not None:
            rows = rows.filter(pc.greater(rows["ack_seq"], behind))
        placed: list[PlacedFile] = []
        try:
            for values, part in by_partition(rows, self.partition_by):
                partition = dict(zip(self.partition_by, values, strict=True))
                target = self._new_path(path, partition)
                try:
                    pq.write_table(part, str(target), compression="zstd", store_schema=False)
                    _sync(target)
                    target.chmod(self._mode)
                    placed.append(self._placed(target, FileFacts(target), partition))
                except BaseException:
                    target.unlink(missing_ok=True)
                    raise
        except BaseException:
            self.take_back(placed)
            raise
        return placed

    def _new_path(self, path: Path, partition: Partition) -> Path:
        directory = self._table
        # Readers take the values from the log; a directory for each day is for people.
        if "ack_date" in partition:
            directory /= f"ack_date={partition['ack_date'] or _NO_DATE}"
        directory.mkdir(exist_ok=True)
        return directory / f"{path.stem}-{uuid.uuid4().hex}.parquet"

    def _placed(self, target: Path, facts: FileFacts, partition: Partition) -> PlacedFile:
        return PlacedFile(
            name=target.relative_to(self._table).as_posix(),
            rows=facts.rows,
            size_bytes=facts.size_bytes,
            partition={n: None if v is None else str(v) for n, v in partition.items()},
            statistics=facts.statistics(self._columns),
        )

    def sync(self, placed: Iterable[PlacedFile]) -> None:
        """Make the names survive a power cut, before a commit that may survive it names them."""
        directories = {(self._table / file.name).parent for file in placed}
        for directory in directories | {self._table}:
            _sync(directory)

    def take_back(self, placed: Iterable[PlacedFile]) -> None:
        """Remove files that no commit names. What cannot be removed is left to VACUUM."""
        for file in placed:
            try:
                (self._table / file.name).unlink(missing_ok=True)
            except OSError:
                pass


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
