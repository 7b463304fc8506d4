"""The Delta table, through Spark. Runs in the job's process only.

The mark is Delta's own transaction identifier (``SetTransaction``): ``txnAppId`` names the log and
``txnVersion`` is the highest ack sequence in the commit, so rows and mark are one atomic commit and
the mark survives OPTIMIZE and VACUUM.

Spark's own append skips a write whose ``txnVersion`` is not above the mark, *silently*, and does not compare
the mark that we read with the one the commit starts from. Two drivers of one log (one of them a
leftover of a killed gateway) could so append the same rows twice. So the commit is made here, through Delta's own
transaction, in these steps: compare the mark on the snapshot that it starts from; put the files there; count their
rows; commit. In a local table the files are the staged ones, as they are, unless it asks for more than rows
(:mod:`tidegate_sink_spark.placing.delta`); else Spark writes them, in one job. For local tables a file lock,
held by the Java process from reading the mark to the end of the commit, lets one driver in at a time; it
also closes the gap between "does this commit file exist" and "rename to it" that local file
systems have. Killing the Java process releases the lock, and with it every chance to commit.

To have Delta compute a table's transaction identifiers is several Spark jobs, and takes longer than a small commit. But the
newest commit that names a log says what its mark is, and nearly always that is one of the last: so commits are
read backwards, as they stand in the table's log, and the computed state is asked only when none of them does.

An object store has no such lock. Two things make a commit there what it is on a local disk:

* *Reading the mark is part of the transaction*: Delta refuses the commit when another one of the same log came meanwhile.
* *Of two commits with one number one wins.* That is the part of Delta's log store: ``hdfs`` and ``abfs`` rename,
  ``gs`` has preconditions; for ``s3a`` see :mod:`tidegate_sink_spark.job.log_store`.
"""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from tidegate_sink_spark.job.driver import (
    Addition,
    CommitError,
    MarkMovedError,
    TableState,
    first_line,
)
from tidegate_sink_spark.job.durable import SyncedCommits
from tidegate_sink_spark.job.files import java_lock, local_path
from tidegate_sink_spark.job.log_store import check_log_store
from tidegate_sink_spark.job.rows import (
    ack_sequences,
    in_files,
    quoted_name,
    spark_errors,
    staged_rows,
)
from tidegate_sink_spark.job.table import FurtherColumns, Shape, bring_up_to_date, schema_text
from tidegate_sink_spark.placing.delta import add_action, partitions_of_whole_files
from tidegate_sink_spark.placing.files import PlacedFile, Placing
from tidegate_sink_spark.staging.arrow import SCHEMA_VERSION, VERSION_PROPERTY

#: 50 commits between two Delta checkpoints: at 5 s each that is one in four minutes. Deletion
#: vectors off: older readers do not know them, and the sink never deletes rows.
PROPERTIES: Final = {
    "delta.checkpointInterval": "50",
    "delta.enableDeletionVectors": "false",
    VERSION_PROPERTY: str(SCHEMA_VERSION),
}
_LAYOUTS: Final = {
    "clustered": "CLUSTER BY (destination, acked_at)",
    "partitioned": "PARTITIONED BY ({})",
    "plain": "",
}

#: Commits that are read for a mark, before all of the table's state is.
COMMITS_READ_MAX: Final = 20
#: Settings of the files that Spark writes: the codec that staged files have, too, and what would encrypt them.
_CODEC: Final = ("spark.sql.parquet.compression.codec", "zstd")
_ENCRYPTION: Final = "parquet.crypto.factory.class"
#: Names of the errors with which Delta refuses a commit because of another one of the same log.
_LOST: Final = ("ConcurrentTransactionException", "DeltaConcurrentTransactionException")


def create_statement(table: str, shape: Shape, *, is_name: bool = False) -> str:
    """SQL that creates *table* (a path, a URI, or a name in a catalog) unless it exists."""
    properties = ", ".join(f"'{key}' = '{value}'" for key, value in PROPERTIES.items())
    return (
        f"CREATE TABLE IF NOT EXISTS {quoted(table, is_name)} ({schema_text(shape.further)}) USING delta "
        f"{_LAYOUTS[shape.layout].format(', '.join(shape.partitions))} TBLPROPERTIES ({properties})"
    )


def is_table(spark: Any, table: str, *, is_name: bool = False) -> bool:
    """Tell whether there is a Delta table. Raises: CommitError."""
    with spark_errors(f"it cannot be told whether there is a table {table}"):
        if is_name:
            return bool(spark.catalog.tableExists(quoted(table, True)))
        java = spark._jvm.io.delta.tables.DeltaTable
        return bool(java.isDeltaTable(spark._jsparkSession, str(local_path(table) or table)))


def newest(spark: Any, table: str, *, is_name: bool = False) -> tuple[Any, Any]:
    """Delta's own log of *table* and its newest snapshot. Raises: Py4JError."""
    jvm, session = spark._jvm, spark._jsparkSession
    if is_name:
        log = jvm.io.delta.tables.DeltaTable.forName(session, table).deltaLog()
    else:
        path = str(local_path(table) or table)
        log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(session, path)
    nothing = jvm.scala.Option.empty()
    return log, log.update(False, nothing, nothing)


def mark_in(snapshot: Any, app_id: str) -> int:
    """The mark of a log, 0 for none. Raises: Py4JError."""
    deltas, log = snapshot.logSegment().deltas(), snapshot.deltaLog()
    count, conf = int(deltas.size()), log.newDeltaHadoopConf()
    for index in range(count - 1, max(-1, count - 1 - COMMITS_READ_MAX), -1):
        lines = log.store().read(deltas.apply(index).getPath(), conf)
        mark = mark_of_commit(str(lines.mkString("\n")), app_id)
        if mark is not None:
            return mark
    if int(snapshot.version()) < count <= COMMITS_READ_MAX:
        return 0  # these were all
    found = snapshot.transactions().get(app_id)
    return int(found.get()) if found.isDefined() else 0


def mark_of_commit(text: str, app_id: str) -> int | None:
    """The mark that a commit of Delta's log sets, given as the *text* of its file; None when it sets none."""
    for line in text.split("\n"):
        transaction = json.loads(line).get("txn") if '"txn"' in line else None
        if transaction is not None and transaction["appId"] == app_id:
            return int(transaction["version"])
    return None


def quoted(table: str, is_name: bool) -> str:
    """*table* as SQL wants it: a path as ``delta.`...```, a name part by part."""
    if is_name:
        return quoted_name(table)
    return f"delta.`{table.replace('`', '``')}`"


class DeltaTable:
    """A :class:`tidegate_sink_spark.job.driver.Table` that is a Delta table."""

    def __init__(
        self,
        spark: Any,
        table: str,
        shape: Shape,
        app_id: str,
        *,
        is_name: bool = False,
    ) -> None:
        """Opens the table and creates it when it is missing.

        Args: table: a path or URI; or, with *is_name*, a name in a catalog.
        Raises: CommitError.
        """
        self._further = shape.further
        self._spark = spark
        self._table = table
        self._is_name = is_name
        self._app_id = app_id
        self._location = table
        self._directory = None if is_name else local_path(table)
        if self._directory is not None:
            self._table = str(self._directory)
            self._directory.parent.mkdir(parents=True, exist_ok=True)
        with self.locked(), spark_errors("the table cannot be opened"):
            if is_name and table.count(".") > 1:
                namespace = quoted_name(table.rpartition(".")[0])
                spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {namespace}")
            if not self._exists():
                spark.sql(create_statement(self._table, shape, is_name=is_name))
            if is_name:
                self._location = self._found_at()
                self._directory = local_path(self._location)
        check_log_store(spark, self._location)
        with self.locked(), spark_errors("the table cannot be opened"):
            bring_up_to_date(self, self._table, shape.further)
        self._synced = SyncedCommits(self._directory) if self._directory is not None else None
        self._takes_files = self._directory is not None and _are_as_staged(spark, shape.further)
        self._asked: tuple[str, str] | None = None
        self._placing: Placing | None = None

    @property
    def sql_name(self) -> str:
        """As SQL wants it."""
        return quoted(self._table, self._is_name)

    def _exists(self) -> bool:
        """Tell whether the table is there; that costs less than a statement that finds it there."""
        return is_table(self._spark, self._table, is_name=self._is_name)

    def _found_at(self) -> str:
        """Where the catalog has put the table: its URI."""
        detail = self._spark.sql(f"DESCRIBE DETAIL {quoted(self._table, True)}").first()
        return str(detail["location"])

    def columns(self) -> Mapping[str, str]:
        """See :meth:`tidegate_sink_spark.job.table.Columns.columns`."""
        types: Any = importlib.import_module("pyspark.sql.types")
        with spark_errors("the table's columns cannot be read"):
            schema = types.StructType.fromJson(json.loads(self._metadata().schema().json()))
            return {field.name: field.dataType.simpleString() for field in schema.fields}

    def _metadata(self) -> Any:
        """Delta's own of the newest version."""
        return newest(self._spark, self._table, is_name=self._is_name)[1].metadata()

    def add_columns(self, columns: Sequence[tuple[str, str]]) -> None:
        """See :meth:`tidegate_sink_spark.job.table.Columns.add_columns`."""
        with spark_errors("columns cannot be added to the table"):
            added = ", ".join(f"`{name}` {kind}" for name, kind in columns)
            self._spark.sql(
                f"ALTER TABLE {quoted(self._table, self._is_name)} ADD COLUMNS ({added})"
            )

    def schema_version(self) -> str | None:
        """See :meth:`tidegate_sink_spark.job.table.Columns.schema_version`."""
        with spark_errors("the table's properties cannot be read"):
            found = self._metadata().configuration().get(VERSION_PROPERTY)
            return str(found.get()) if found.isDefined() else None

    def set_schema_version(self, version: int) -> None:
        """See :meth:`tidegate_sink_spark.job.table.Columns.set_schema_version`."""
        with spark_errors("the table's properties cannot be set"):
            self._spark.sql(
                f"ALTER TABLE {quoted(self._table, self._is_name)} "
                f"SET TBLPROPERTIES ('{VERSION_PROPERTY}' = '{version}')"
            )

    def state(self) -> TableState:
        """See :meth:`tidegate_sink_spark.job.driver.Table.state`. Raises: CommitError."""
        with spark_errors("the table's mark cannot be read"):
            state = self._state()
        if self._synced is not None:
            self._synced.reach(state.version)
        return state

    def _state(self) -> TableState:
        _, snapshot = newest(self._spark, self._table, is_name=self._is_name)
        self._check_there(snapshot)
        checksum = snapshot.checksumOpt()  # to count files is a job of Spark's
        count = int(checksum.get().numFiles()) if checksum.isDefined() else None
        return TableState(mark_in(snapshot, self._app_id), int(snapshot.version()), count)

    def _check_there(self, snapshot: Any) -> None:
        """Raises: CommitError, when nothing is where the table was."""
        if int(snapshot.version()) < 0:
            # An append would make one: with other files, no layout, and none of the properties.
            raise CommitError(
                f"the table {self._table} is not there any more: it was deleted or moved away; the next job makes it "
                "anew"
            )

    def append(self, addition: Addition) -> None:
        """See :meth:`tidegate_sink_spark.job.driver.Table.append`."""
        with self.locked(), spark_errors("the commit failed"):
            log, _ = newest(self._spark, self._table, is_name=self._is_name)
            nothing = self._spark._jvm.scala.Option.empty()
            transaction = log.startTransaction(nothing, nothing)
            self._check_there(transaction.snapshot())
            if self._directory is None:
                mark = int(transaction.txnVersion(self._app_id))  # -1: none
            else:
                mark = mark_in(transaction.snapshot(), self._app_id)
            addition.check_mark(max(0, mark))
            placing = self._placing_for(transaction.snapshot())
            if placing is not None:
                self._commit_placed(transaction, placing, addition)
                return
            rows = staged_rows(self._spark, addition, self._further)
            files = transaction.writeFiles(in_files(self._spark, rows, addition.count)._jdf)
            count = _rows_in(files)
            addition.check_count(int(rows.count()) if count is None else count)
            self._commit(transaction, files, addition)

    def _placing_for(self, snapshot: Any) -> Placing | None:
        """What puts staged files into the table as they are; None when Spark has to write their rows."""
        if self._directory is None or not self._takes_files:
            return None
        asked = str(snapshot.protocol().json()), str(snapshot.metadata().json())
        if asked != self._asked:
            columns = partitions_of_whole_files(*asked)
            self._placing = (
                None if columns is None else Placing(self._directory, columns, self._further)
            )
            self._asked = asked
        return self._placing

    def _commit_placed(self, transaction: Any, placing: Placing, addition: Addition) -> None:
        """Commit the staged files of *addition*. Raises: as :meth:`append`."""
        placed = _placed(placing, addition)
        try:
            self._measure(transaction, placed)
            now = time.time_ns() // 1_000_000
            from_json = self._spark._jvm.org.apache.spark.sql.delta.actions.Action.fromJson
            actions = self._spark._jvm.java.util.ArrayList()
            for file in placed:
                actions.add(from_json(add_action(file, now)))
            files = self._spark._jvm.PythonUtils.toSeq(actions)
            self._commit(transaction, files, addition)
        except Exception:
            # The commit may have been made if what failed comes after it. A mark below it says that it was
            # not. Under the lock nobody else can have committed these rows.
            _, snapshot = newest(self._spark, self._table, is_name=self._is_name)
            if mark_in(snapshot, self._app_id) < addition.through:
                placing.take_back(placed)
            raise

    def _measure(self, transaction: Any, placed: Sequence[PlacedFile]) -> None:
        """Have the table's history say what was written, as it does of what Spark writes."""
        jvm, context = self._spark._jvm, self._spark._jsparkSession.sparkContext()
        create = jvm.org.apache.spark.sql.execution.metric.SQLMetrics.createMetric
        metrics = jvm.java.util.HashMap()
        for name, value in (
            ("numFiles", len(placed)),
            ("numOutputRows", sum(file.rows for file in placed)),
            ("numOutputBytes", sum(file.size_bytes for file in placed)),
        ):
            metrics[name] = create(context, name)
            metrics[name].set(value)
        transaction.registerSQLMetrics(
            self._spark._jsparkSession, jvm.PythonUtils.toScalaMap(metrics)
        )

    def _commit(self, transaction: Any, files: Any, addition: Addition) -> None:
        """Commit *files* with the mark of *addition*. Raises: MarkMovedError; what py4j raises."""
        py4j: Any = importlib.import_module("py4j.protocol")
        jvm = self._spark._jvm
        nothing, some = jvm.scala.Option.empty(), jvm.scala.Option.apply
        delta = jvm.org.apache.spark.sql.delta
        now = jvm.java.lang.Long.valueOf(time.time_ns() // 1_000_000)
        operation = getattr(delta, "DeltaOperations$Write")(
            jvm.org.apache.spark.sql.SaveMode.Append,
            *(nothing, nothing, some(addition.metadata)),
            *(nothing, nothing, nothing, nothing, nothing),
        )
        identifier = delta.actions.SetTransaction(self._app_id, addition.through, some(now))
        try:
            transaction.commit(files.prepended(identifier), operation)
        except py4j.Py4JJavaError as exc:
            if exc.java_exception.getClass().getSimpleName() in _LOST:
                raise MarkMovedError("another driver of the same log committed meanwhile") from exc
            raise

    def partitioned_files(self, spark: Any) -> tuple[list[str], Any]:
        """The columns that the table is partitioned by, and a DataFrame of their values and ``bytes`` of each file.

        Raises: Py4JError, PySparkException.
        """
        sql: Any = importlib.import_module("pyspark.sql")
        _, snapshot = newest(spark, self._table, is_name=self._is_name)
        names = snapshot.metadata().partitionColumns()
        columns = [str(names.apply(index)) for index in range(int(names.size()))]
        files = sql.DataFrame(snapshot.allFiles().toDF(), spark)
        values = [files["partitionValues"][column].alias(column) for column in columns]
        return columns, files.select(*values, files["size"].alias("bytes"))

    def sequences(self, gateway_id: str, epoch: str, after: int) -> list[int]:
        """See :meth:`tidegate_sink_spark.job.dead.SequencedTable.sequences`."""
        with spark_errors("the table's rows cannot be read"):
            rows = self._spark.table(quoted(self._table, self._is_name))
            return ack_sequences(rows, gateway_id, epoch, after)

    @contextmanager
    def locked(self) -> Generator[None]:
        """Keep other processes from committing to a table on a local file system; threads share it."""
        if self._directory is None:
            yield
            return
        with (
            spark_errors("the table's lock cannot be taken"),
            java_lock(self._spark._jvm, self._directory),
        ):
            yield


def _are_as_staged(spark: Any, further: FurtherColumns) -> bool:
    """Tell whether Spark would write what is staged as it is. Only Spark can make Variant of a body."""
    key, codec = _CODEC
    return (
        not any(kind == "VARIANT" for _, kind in further)
        and spark.conf.get(key) == codec
        and spark._jsc.hadoopConfiguration().get(_ENCRYPTION) is None
    )


def _placed(placing: Placing, addition: Addition) -> list[PlacedFile]:
    """Raises: FileNotFoundError when a staged file is gone; CommitError."""
    try:
        return placing.place_all(addition)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, OverflowError) as exc:
        raise CommitError(f"staged files cannot be put into the table: {first_line(exc)}") from exc


def _rows_in(files: Any) -> int | None:
    """How many rows were written, by the statistics that Delta took meanwhile; None when it took none."""
    found = [files.apply(index).numLogicalRecords() for index in range(int(files.size()))]
    return sum(int(count.get()) for count in found) if all(c.isDefined() for c in found) else None
