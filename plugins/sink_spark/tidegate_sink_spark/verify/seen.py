"""One state of a table as a reader sees it: this creates, finishes and changes nothing, and needs no job.

A Delta table on a local file system, or of the engine ``deltalake``, is read by delta-rs, a Parquet table by
PyArrow, anything else by Spark.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Protocol

from tidegate.spi import AcknowledgedMessage, LargeBody
from tidegate.spi.operate import LogRows
from tidegate_sink_spark._target import Target
from tidegate_sink_spark.delta_rs import table as delta_rs
from tidegate_sink_spark.delta_rs.place import delta_options
from tidegate_sink_spark.job import delta, iceberg
from tidegate_sink_spark.job.files import local_path
from tidegate_sink_spark.job.parquet import (
    commits_of,
    data_files,
    is_parquet_table,
    locked,
    manifests_in,
)
from tidegate_sink_spark.job.rows import spark_errors
from tidegate_sink_spark.job.table import application_id
from tidegate_sink_spark.staging import arrow

pa: Final[Any] = importlib.import_module("pyarrow")
pc: Final[Any] = importlib.import_module("pyarrow.compute")
ds: Final[Any] = importlib.import_module("pyarrow.dataset")


class SeenTable(Protocol):
    """A state of a table. Blocking."""

    @property
    def mark(self) -> int:
        """The highest ack sequence that it claims to have, 0 for none."""
        ...

    @property
    def files(self) -> int:
        """How many files it has."""
        ...

    def rows(self, columns: Sequence[str], lo: int, hi: int | None) -> Iterator[Any]:
        """Those of the log with ack sequences *lo* to *hi* (None: no end), as Arrow tables.

        Raises: CommitError, OSError.
        """
        ...


class Log:
    """The log whose rows are read. Attributes: gateway_name, store_id."""

    def __init__(self, gateway_name: str, store_id: str) -> None:
        self.gateway_name = gateway_name
        self.store_id = store_id

    @property
    def application(self) -> str:
        """The name of its mark."""
        return application_id(self.gateway_name, self.store_id)


@dataclass(frozen=True, slots=True)
class LogPart:
    """Some rows of the acknowledged log.

    Attributes:
        rows: as the sink stages them, an Arrow table; without those that fit no table.
        bodies: of the rows whose body did not come with them, by ack sequence.
        damaged: ack sequences of those that cannot be read, or fit no table.
    """

    rows: Any
    bodies: Mapping[int, LargeBody]
    damaged: Sequence[int]


def log_part(found: LogRows, log: Log) -> LogPart:
    """The log's answer, ready to compare."""
    batches: list[Any] = []
    damaged = [row.ack_sequence for row in found.damaged]
    waiting: list[tuple[AcknowledgedMessage, ...]] = [found.rows] if found.rows else []
    while waiting:
        some = waiting.pop()
        try:
            batches.append(arrow.build_batch(some, log.gateway_name, log.store_id))
        except arrow.UNWRITABLE:
            if len(some) > 1:
                middle = len(some) // 2
                waiting += [some[middle:], some[:middle]]
            else:
                damaged += [row.ack_sequence for row in some]
    larges = ((row.ack_sequence, row.message.large) for row in found.rows)
    return LogPart(
        pa.Table.from_batches(batches, arrow.SCHEMA),
        {number: large for number, large in larges if large is not None},
        sorted(damaged),
    )


def look_at(
    target: Target,
    table_format: str,
    log: Log,
    start_spark: Callable[[], Any],
    storage_options: Mapping[str, str] | None = None,
) -> SeenTable | None:
    """The current state of the table; None when there is none.

    Args: storage_options: delta-rs's, for the tables of its engine; None: another engine's.
    Raises: CommitError, OSError; what *start_spark* raises.
    """
    directory = None if target.is_name else local_path(target.table)
    if table_format == "parquet":
        assert directory is not None, "find_target refuses any other"
        return _parquet(directory, log) if is_parquet_table(directory) else None
    is_for_delta_rs = directory is not None or storage_options is not None
    if table_format == "delta" and is_for_delta_rs and find_spec("deltalake") is not None:
        is_there = delta_rs.is_table(target.table, storage_options)
        return _delta(target.table, log, storage_options or {}) if is_there else None
    look = _spark_iceberg if table_format == "iceberg" else _spark_delta
    return look(start_spark(), target, log)


# ------------------------------------------------------------------------------- without Java
class _Dataset:
    """A table that PyArrow can read."""

    def __init__(self, dataset: Any, log: Log, mark: int, files: int) -> None:
        self._dataset = dataset
        self._log = log
        self.mark = mark
        self.files = files

    def rows(self, columns: Sequence[str], lo: int, hi: int | None) -> Iterator[Any]:
        """See SeenTable."""
        wanted = (pc.field("gateway_id") == self._log.gateway_name) & (
            pc.field("epoch") == self._log.store_id
        )
        wanted &= pc.field("ack_seq") >= lo
        if hi is not None:
            wanted &= pc.field("ack_seq") <= hi
        there = [name for name in columns if name in self._dataset.schema.names]
        for batch in self._dataset.to_batches(columns=there, filter=wanted):
            if batch.num_rows:
                yield pa.Table.from_batches([batch])


def _delta(uri: str, log: Log, storage_options: Mapping[str, str]) -> _Dataset:
    deltalake: Any = importlib.import_module("deltalake")
    options = delta_options(uri, storage_options)
    table = deltalake.DeltaTable(uri, storage_options=options)
    mark = int(table.transaction_version(log.application) or 0)
    return _Dataset(table.to_pyarrow_dataset(), log, mark, len(table.file_uris()))


def _parquet(directory: Path, log: Log) -> _Dataset:
    commits = commits_of(directory, log.application)
    with locked(directory, is_shared=True):
        manifests = manifests_in(commits)
        files = list(data_files(directory))
        mark = 0
        if manifests:
            newest = json.loads(manifests[-1].read_text())
            mark = int(newest["hi"])
            # Files that a dead writer committed, but did not rename.
            files += [commits / name for name in newest["files"] if (commits / name).exists()]
    names = [str(path) for path in sorted(files)]
    if not names:
        return _Dataset(ds.dataset([], schema=arrow.SCHEMA), log, mark, 0)
    # A partition column is in the names of directories, not in the files.
    found = ds.dataset(
        names, format="parquet", partitioning="hive", partition_base_dir=str(directory)
    )
    return _Dataset(found, log, mark, len(files))


# ---------------------------------------------------------------------------------- with Spark
class _Spark:
    """A table that Spark reads."""

    def __init__(self, frame: Any, log: Log, mark: int, files: int) -> None:
        self._frame = frame
        self._log = log
        self.mark = mark
        self.files = files

    def rows(self, columns: Sequence[str], lo: int, hi: int | None) -> Iterator[Any]:
        """See SeenTable."""
        functions: Any = importlib.import_module("pyspark.sql.functions")
        column = functions.col
        wanted = (column("gateway_id") == self._log.gateway_name) & (
            column("epoch") == self._log.store_id
        )
        wanted &= column("ack_seq") >= lo
        if hi is not None:
            wanted &= column("ack_seq") <= hi
        there = [name for name in columns if name in self._frame.columns]
        with spark_errors("the table's rows cannot be read"):
            found = self._frame.where(wanted).select(*there).toArrow()
        if found.num_rows:
            yield found


def _spark_delta(spark: Any, target: Target, log: Log) -> _Spark | None:
    if not delta.is_table(spark, target.table, is_name=target.is_name):
        return None
    with spark_errors("the table cannot be read"):
        found, snapshot = delta.newest(spark, target.table, is_name=target.is_name)
        reader = spark.read.format("delta").option("versionAsOf", str(snapshot.version()))
        # By path even if it has a name: a name takes no version here.
        frame = reader.load(str(found.dataPath().toString()))
        mark = delta.mark_in(snapshot, log.application)
        return _Spark(frame, log, mark, int(snapshot.numOfFiles()))


def _spark_iceberg(spark: Any, target: Target, log: Log) -> _Spark | None:
    with spark_errors("the table cannot be read"):
        table = iceberg.find_table(spark, target.table, is_name=target.is_name)
        if table is None:
            return None
        metadata = table.operations().refresh()
        snapshot = metadata.currentSnapshot()
        reader = spark.read.format("iceberg")
        if snapshot is not None:
            reader = reader.option("versionAsOf", str(snapshot.snapshotId()))
        is_path = not target.is_name
        location = str(local_path(target.table) or target.table) if is_path else target.table
        mark = iceberg.mark_in(metadata, log.application)
        return _Spark(reader.load(location), log, mark, iceberg.files_of(snapshot))
