"""The Delta table, through a Spark Connect server. Runs in the job's process only.

There is no Java machine here whose death would end a commit: the server still does what a killed job requested.
And without Java's own interfaces the mark cannot be compared on the snapshot that a commit starts from.
So rows are merged, not appended:

1. a MERGE reads the table from the lowest row it brings, and inserts what is missing: rows that came
   into the table before its snapshot, even from a dead job, are not inserted again;
2. it carries the log's transaction identifier, on which Delta refuses a commit when another one of the same
   log was made after that snapshot, and skips one whose version is not above the mark.

That needs no lock, so it holds on object stores, too. A local table has the lock anyway, for
Spark jobs and delta-rs.

The mark is read from the table's log: the newest checkpoint, and the commits after it.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any, Final, cast

from tidegate_sink_spark.delta_rs.lock import table_lock
from tidegate_sink_spark.job.delta import DeltaTable, quoted
from tidegate_sink_spark.job.driver import Addition, CommitError, TableState
from tidegate_sink_spark.job.durable import LOG_DIRECTORY
from tidegate_sink_spark.job.files import local_path
from tidegate_sink_spark.job.rows import condition, escaped, spark_errors, staged_rows
from tidegate_sink_spark.job.table import FurtherColumns, Shape, columns_of
from tidegate_sink_spark.staging.arrow import VERSION_PROPERTY

_STAGED: Final = "tidegate_staged"
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint\b[^/]*\.parquet$")
#: Versions whose checkpoints are looked for with one listing; a table has one every 50 commits.
_LISTED: Final = 1000


def is_table(spark: Any, table: str) -> bool:
    """Tell whether there is a Delta table. Raises: CommitError."""
    with spark_errors(f"it cannot be told whether there is a table {table}"):
        try:
            _history(spark, table)
        except Exception as exc:
            if condition(exc) in ("DELTA_TABLE_ONLY_OPERATION", "PATH_NOT_FOUND"):
                return False
            raise
    return True


class ConnectTable(DeltaTable):
    """A :class:`tidegate_sink_spark.job.driver.Table` that is a Delta table behind a Connect server."""

    def __init__(self, spark: Any, table: str, shape: Shape, app_id: str) -> None:
        """Opens the table and creates it when it is missing; a path or URI. Raises: CommitError."""
        self._known: tuple[int, object] | None = None
        self._mark = 0
        super().__init__(spark, table, shape, app_id)
        directory = local_path(table)
        if directory is not None and not (directory / LOG_DIRECTORY).is_dir():
            raise CommitError(
                f"the Connect server has the table {table} on a disk of its own; name one on storage that this "
                "machine has under the same path"
            )

    @contextmanager
    def locked(self) -> Generator[None]:
        """See DeltaTable; without Java here."""
        if self._directory is None:
            yield
            return
        with table_lock(self._directory):
            yield

    # ------------------------------------------------- in SQL: a Connect server has no other way
    def _exists(self) -> bool:
        return is_table(self._spark, self._table)

    def columns(self) -> Mapping[str, str]:
        """See :meth:`tidegate_sink_spark.job.table.Columns.columns`."""
        with spark_errors("the table's columns cannot be read"):
            fields = self._spark.table(quoted(self._table, False)).schema.fields
            return {field.name: field.dataType.simpleString() for field in fields}

    def schema_version(self) -> str | None:
        """See :meth:`tidegate_sink_spark.job.table.Columns.schema_version`."""
        with spark_errors("the table's properties cannot be read"):
            detail = self._spark.sql(f"DESCRIBE DETAIL {quoted(self._table, False)}")
            found = detail.first()["properties"].get(VERSION_PROPERTY)
            return None if found is None else str(found)

    # --------------------------------------------------------------------------------------- mark
    def _state(self) -> TableState:
        newest = _history(self._spark, self._table)
        version, made = int(newest["version"]), newest["timestamp"]
        known = self._known
        if known is None or version < known[0] or (version == known[0] and made != known[1]):
            checkpoint = self._checkpoint(version)  # of another table, or not known yet
            self._mark = 0 if checkpoint < 0 else self._mark_in_checkpoint(checkpoint)
            known = (checkpoint, None)
        if version > known[0]:
            self._mark = max(self._mark, self._mark_in_commits(known[0] + 1, version))
        self._known = (version, made)
        return TableState(self._mark, version)

    def _checkpoint(self, version: int) -> int:
        """The newest checkpoint up to *version*, -1 when there is none."""
        thousand = version // _LISTED
        for pattern in (f"{thousand:017}???", f"{max(0, thousand - 1):017}???", "*"):
            found = [n for n in self._checkpoints(f"{pattern}.checkpoint*.parquet") if n <= version]
            if found:
                return max(found)
        return -1

    def _checkpoints(self, pattern: str) -> Iterable[int]:
        try:
            files = self._spark.read.format("binaryFile").load(self._in_log(pattern))
            paths = [str(row["path"]) for row in files.select("path").collect()]
        except Exception as exc:
            if condition(exc) == "PATH_NOT_FOUND":
                return []
            raise
        return [int(match[1]) for match in map(_CHECKPOINT.search, paths) if match is not None]

    def _mark_in_checkpoint(self, version: int) -> int:
        found = self._spark.read.parquet(self._in_log(f"{version:020}.checkpoint*.parquet"))
        return self._newest(found.select("txn"))

    def _mark_in_commits(self, first: int, last: int) -> int:
        paths = [self._in_log(f"{version:020}.json") for version in range(first, last + 1)]
        reader = self._spark.read.schema("txn STRUCT<appId: STRING, version: BIGINT>")
        return self._newest(reader.json(paths))

    def _newest(self, transactions: Any) -> int:
        column = transactions["txn"]
        own = transactions.where(column["appId"] == self._app_id)
        return int(own.selectExpr("max(txn.version)").first()[0] or 0)

    def _in_log(self, name: str) -> str:
        return f"{escaped(self._table.rstrip('/'))}/{LOG_DIRECTORY}/{name}"

    # ------------------------------------------------------------------------------------- append
    def append(self, addition: Addition) -> None:
        """See :meth:`tidegate_sink_spark.job.driver.Table.append`."""
        with self.locked(), spark_errors("the commit failed"):
            addition.check_mark(self._state().mark)
            rows = staged_rows(self._spark, addition, self._further)
            # Counted first, since the server commits what it merges.
            found, lo, hi = rows.selectExpr("count(*)", "min(ack_seq)", "max(ack_seq)").first()
            addition.check_count(found)
            rows.coalesce(1).createOrReplaceTempView(_STAGED)
            conf = self._spark.conf
            conf.set("spark.databricks.delta.write.txnAppId", self._app_id)
            conf.set("spark.databricks.delta.write.txnVersion", str(addition.through))
            conf.set("spark.databricks.delta.commitInfo.userMetadata", addition.metadata)
            try:
                self._spark.sql(merge_statement(self._table, lo, hi, self._further)).collect()
            finally:
                conf.unset("spark.databricks.delta.write.txnAppId")
                conf.unset("spark.databricks.delta.write.txnVersion")
                conf.unset("spark.databricks.delta.commitInfo.userMetadata")


def merge_statement(
    table: str, lo: int | None, hi: int | None, further: FurtherColumns = ()
) -> str:
    """SQL that inserts the staged rows, *lo* to *hi* (None: there are none), that *table* lacks."""
    names = [f"`{name}`" for name, _ in columns_of(further)]
    within = "-1 AND -1" if lo is None else f"{lo} AND {hi}"  # files outside are not read
    return (
        f"MERGE INTO {quoted(table, False)} t USING {_STAGED} s ON t.ack_seq = s.ack_seq AND "
        f"t.gateway_id = s.gateway_id AND t.epoch = s.epoch AND t.ack_seq BETWEEN {within} "
        f"WHEN NOT MATCHED THEN INSERT ({', '.join(names)}) "
        f"VALUES ({', '.join(f's.{name}' for name in names)})"
    )


def _history(spark: Any, table: str) -> dict[str, Any]:
    """The newest commit of *table*."""
    path = local_path(table)
    named = quoted(table if path is None else str(path), False)
    row = spark.sql(f"DESCRIBE HISTORY {named} LIMIT 1").first()
    return cast("dict[str, Any]", row.asDict())
