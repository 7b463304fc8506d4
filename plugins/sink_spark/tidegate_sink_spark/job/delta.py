"""The Delta table, through Spark. Runs in the job's process only.

The mark is Delta's own transaction identifier (``SetTransaction``): ``txnAppId`` names the log and
``txnVersion`` is the highest ack sequence in the commit, so rows and mark are one atomic commit and
the mark survives OPTIMIZE and VACUUM.

Delta skips a write whose ``txnVersion`` is not above the mark, *silently*, and it does not compare
the mark that we read with the one the commit starts from. Two drivers of one log (one of them a
leftover of a killed gateway) could so append the same rows twice. For local tables a file lock,
held by the Java process from reading the mark to the end of the commit, makes that impossible; it
also closes the gap between "does this commit file exist" and "rename to it" that local file
systems have. Killing the Java process releases the lock, and with it every chance to commit.

An object store has no such lock. Two things make a commit there what it is on a local disk:

* *The mark is compared on the snapshot that the commit starts from*, and reading it is part of the transaction:
  Delta refuses the commit when another one of the same log came meanwhile.
* *Of two commits with one number one wins.* That is the part of Delta's log store: ``hdfs`` and ``abfs`` rename,
  ``gs`` has preconditions. The one for ``s3a`` looks first and writes then, which keeps apart no two drivers, so
  a table there is refused unless the user names a log store (:data:`LOG_STORES`).
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from tidegate_sink_spark.job.driver import Addition, CommitError, MarkMovedError, TableState
from tidegate_sink_spark.job.durable import SyncedCommits
from tidegate_sink_spark.job.files import java_lock, local_path
from tidegate_sink_spark.job.rows import ack_sequences, quoted_name, spark_errors, staged_rows
from tidegate_sink_spark.job.table import Shape, bring_up_to_date, schema_text
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

#: Settings that name what decides between two commits on s3a.
LOG_STORES: Final = ("spark.delta.logStore.s3a.impl", "spark.delta.logStore.class")
#: What can be done where no setting does.
NO_LOG_STORE: Final = (
    "Delta's own log store for s3a keeps no second driver away, and its commit would replace rows; take engine "
    "'deltalake', which commits with conditional puts, or format 'iceberg' in a REST or JDBC catalog, or name one "
    "in spark_conf: 'spark.delta.logStore.s3a.impl' = 'io.delta.storage.S3DynamoDBLogStore', or "
    "'io.delta.storage.S3SingleDriverLogStore' where you see to it that nobody else writes"
)
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
    """The mark of a log, 0 for none."""
    found = snapshot.transactions().get(app_id)
    return int(found.get()) if found.isDefined() else 0


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
            spark.sql(create_statement(self._table, shape, is_name=is_name))
            if is_name:
                self._location = self._found_at()
                self._directory = local_path(self._location)
        if self._location.startswith("s3a:") and not any(spark.conf.get(k, "") for k in LOG_STORES):
            raise CommitError(f"{self._location}: {NO_LOG_STORE}")
        with self.locked(), spark_errors("the table cannot be opened"):
            bring_up_to_date(self, self._table, shape.further)
        self._synced = SyncedCommits(self._directory) if self._directory is not None else None

    @property
    def sql_name(self) -> str:
        """As SQL wants it."""
        return quoted(self._table, self._is_name)

    def _found_at(self) -> str:
        """Where the catalog has put the table: its URI."""
        detail = self._spark.sql(f"DESCRIBE DETAIL {quoted(self._table, True)}").first()
        return str(detail["location"])

    def columns(self) -> Mapping[str, str]:
        """See :meth:`tidegate_sink_spark.job.table.Columns.columns`."""
        with spark_errors("the table's columns cannot be read"):
            fields = self._spark.table(quoted(self._table, self._is_name)).schema.fields
            return {field.name: field.dataType.simpleString() for field in fields}

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
            # In SQL: a Connect server has no other way.
            detail = self._spark.sql(f"DESCRIBE DETAIL {quoted(self._table, self._is_name)}")
            found = detail.first()["properties"].get(VERSION_PROPERTY)
            return None if found is None else str(found)

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

    def _log(self) -> Any:
        return newest(self._spark, self._table, is_name=self._is_name)[0]

    def _state(self) -> TableState:
        _, snapshot = newest(self._spark, self._table, is_name=self._is_name)
        if int(snapshot.version()) < 0:
            # An append would make one: with other files, no layout, and none of the properties.
            raise CommitError(
                f"the table {self._table} is not there any more: it was deleted or moved away; the next job makes it "
                "anew"
            )
        # As its checksum says: to count them is a job of Spark's.
        files = snapshot.numOfFilesIfKnown()
        count = int(files.get()) if files.isDefined() else None
        return TableState(mark_in(snapshot, self._app_id), int(snapshot.version()), count)

    def append(self, addition: Addition) -> None:
        """See :meth:`tidegate_sink_spark.job.driver.Table.append`."""
        with self.locked(), spark_errors("the commit failed"):
            addition.check_mark(self._state().mark)
            rows = staged_rows(self._spark, addition, self._further).coalesce(1)
            if self._directory is None:
                commit_compared(self._spark, self._log(), self._app_id, rows, addition)
                return
            writer = (
                rows.write.format("delta")
                .mode("append")
                .option("txnAppId", self._app_id)
                .option("txnVersion", str(addition.through))
                .option("userMetadata", addition.metadata)
            )
            if self._is_name:
                writer.saveAsTable(quoted(self._table, True))
            else:
                writer.save(self._table)

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


def commit_compared(spark: Any, log: Any, app_id: str, rows: Any, addition: Addition) -> None:
    """Append *rows* with the mark of *addition* to Delta's *log*, on the snapshot whose mark was compared.

    Raises: MarkMovedError; CommitError; what py4j raises.
    """
    py4j: Any = importlib.import_module("py4j.protocol")
    jvm = spark._jvm
    nothing, some = jvm.scala.Option.empty(), jvm.scala.Option.apply
    transaction = log.startTransaction(nothing, nothing)
    mark = int(transaction.txnVersion(app_id))  # -1: none
    addition.check_mark(max(0, mark))
    delta = jvm.org.apache.spark.sql.delta
    now = jvm.java.lang.Long.valueOf(time.time_ns() // 1_000_000)
    actions = transaction.writeFiles(rows._jdf).prepended(
        delta.actions.SetTransaction(app_id, addition.through, some(now))
    )
    operation = getattr(delta, "DeltaOperations$Write")(
        jvm.org.apache.spark.sql.SaveMode.Append,
        *(nothing, nothing, some(addition.metadata)),
        *(nothing, nothing, nothing, nothing, nothing),
    )
    try:
        transaction.commit(actions, operation)
    except py4j.Py4JJavaError as exc:
        if exc.java_exception.getClass().getSimpleName() in _LOST:
            raise MarkMovedError("another driver of the same log committed meanwhile") from exc
        raise
