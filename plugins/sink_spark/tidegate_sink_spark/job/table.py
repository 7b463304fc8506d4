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
"""

from __future__ import annotations

import importlib
import re
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from tidegate_sink_spark.job.driver import CommitError, MarkMovedError, TableState
from tidegate_sink_spark.job.durable import sync_commits

#: Column definitions; the same as ``_arrow.SCHEMA``.
COLUMNS: Final = (
    ("ack_seq", "BIGINT"),
    ("gateway_id", "STRING"),
    ("epoch", "STRING"),
    ("message_id", "STRING"),
    ("destination", "STRING"),
    ("protocol", "STRING"),
    ("client_id", "STRING"),
    ("subscription", "STRING"),
    ("headers", "MAP<STRING,STRING>"),
    ("body", "BINARY"),
    ("content_type", "STRING"),
    ("received_at", "TIMESTAMP"),
    ("delivered_at", "TIMESTAMP"),
    ("acked_at", "TIMESTAMP"),
    ("ack_date", "DATE"),
)

#: 50 commits between two Delta checkpoints: at 5 s each that is one in four minutes. Deletion
#: vectors off: older readers do not know them, and the sink never deletes rows.
_PROPERTIES: Final = {
    "delta.checkpointInterval": "50",
    "delta.enableDeletionVectors": "false",
}
_LAYOUTS: Final = {
    "clustered": "CLUSTER BY (destination, acked_at)",
    "partitioned": "PARTITIONED BY (ack_date)",
}
LOCK_TIMEOUT: Final = 60.0
_LOCK_POLL: Final = 0.05
_PATTERN_CHARACTERS: Final = re.compile(r"([\[\]{}*?\\,^])")


def application_id(gateway_name: str, store_id: str) -> str:
    """The name of a log's mark in the table. Documented: other tools read the mark by it."""
    return f"tidegate/{gateway_name}/{store_id}"


def local_path(table: str) -> Path | None:
    """The directory of a table on a local file system; None for an object store's URI."""
    parts = urlsplit(table)
    if "://" not in table and not table.startswith("file:"):
        return Path(table)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


def lock_path(directory: Path) -> Path:
    """The lock file: beside the table, since CREATE TABLE wants its directory empty."""
    return directory.parent / f".{directory.name}.tidegate-lock"


def create_statement(table: str, layout: str) -> str:
    """SQL that creates *table* (a path or URI) unless it exists."""
    columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS)
    properties = ", ".join(f"'{key}' = '{value}'" for key, value in _PROPERTIES.items())
    quoted = table.replace("`", "``")
    return (
        f"CREATE TABLE IF NOT EXISTS delta.`{quoted}` ({columns}) USING delta "
        f"{_LAYOUTS[layout]} TBLPROPERTIES ({properties})"
    )


class DeltaTable:
    """A :class:`tidegate_sink_spark.job.driver.Table` that is a Delta table."""

    def __init__(self, spark: Any, table: str, layout: str, app_id: str) -> None:
        """Opens the table and creates it when it is missing. Raises: CommitError."""
        self._spark = spark
        self._table = table
        self._app_id = app_id
        self._directory = local_path(table)
        self._synced = -1
        if self._directory is not None:
            self._table = str(self._directory)
            self._directory.parent.mkdir(parents=True, exist_ok=True)
        with self._locked(), _spark_errors("the table cannot be opened"):
            spark.sql(create_statement(self._table, layout))
            self._check_columns()

    def _check_columns(self) -> None:
        fields = self._spark.read.format("delta").load(self._table).schema.fields
        found = {field.name: field.dataType.simpleString().upper() for field in fields}
        wrong = [f"{name} {kind}" for name, kind in COLUMNS if found.get(name) != kind]
        if wrong:
            raise CommitError(
                f"the table {self._table} exists without the columns {', '.join(wrong)}; "
                "name another table"
            )

    def state(self) -> TableState:
        """See :meth:`tidegate_sink_spark.job.driver.Table.state`. Raises: CommitError."""
        with _spark_errors("the table's mark cannot be read"):
            state = self._state()
        if self._directory is not None and state.version > self._synced:
            # At first: the one commit that a driver killed before this line may have left, and
            # a few more for maintenance jobs; afterwards: everything since the last time.
            first = self._synced + 1 if self._synced >= 0 else max(0, state.version - 3)
            try:
                sync_commits(self._directory, first, state.version)
            except (OSError, ValueError) as exc:
                raise CommitError(f"the table's files cannot be synced: {exc}") from exc
            self._synced = state.version
        return state

    def _state(self) -> TableState:
        jvm = self._spark._jvm
        log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(
            self._spark._jsparkSession, self._table
        )
        nothing = jvm.scala.Option.empty()
        snapshot = log.update(False, nothing, nothing)
        found = snapshot.transactions().get(self._app_id)
        mark = int(found.get()) if found.isDefined() else 0
        return TableState(mark, int(snapshot.version()))

    def append(
        self, paths: Sequence[Path], *, after: int, through: int, overlaps: bool, metadata: str
    ) -> None:
        """See :meth:`tidegate_sink_spark.job.driver.Table.append`."""
        with self._locked(), _spark_errors("the commit failed"):
            mark = self._state().mark
            if mark > after:
                raise MarkMovedError(
                    f"another driver moved the table's mark from {after} to {mark}"
                )
            rows = self._rows(paths)
            if overlaps:
                rows = rows.where(f"ack_seq > {after}")
            # Reads the footers only, unless files overlap. What Spark is about to write is counted
            # by Spark itself, because afterwards it is too late: the commit cannot be taken back.
            count = rows.count()
            if count != through - after:
                raise CommitError(
                    f"Spark sees {count} rows instead of {through - after} behind {after} in "
                    f"{', '.join(path.name for path in paths)}"
                )
            (
                rows.coalesce(1)
                .write.format("delta")
                .mode("append")
                .option("txnAppId", self._app_id)
                .option("txnVersion", str(through))
                .option("userMetadata", metadata)
                .save(self._table)
            )

    def _rows(self, paths: Sequence[Path]) -> Any:
        schema = ", ".join(f"{name} {kind}" for name, kind in COLUMNS)
        # Spark takes paths as patterns: without the escapes a data directory "a[1]" is not found.
        # (Its own switch for that, __globPaths__=false, reads each file once per file: 3 files of
        # 10 rows became 90 rows.)
        escaped = [_PATTERN_CHARACTERS.sub(r"\\\1", str(path)) for path in paths]
        return self._spark.read.schema(schema).parquet(*escaped)

    @contextmanager
    def _locked(self) -> Generator[None]:
        """Hold the table's lock in the Java process. Raises: CommitError after LOCK_TIMEOUT."""
        if self._directory is None:
            yield
            return
        with _spark_errors("the table's lock cannot be taken"):
            path = str(lock_path(self._directory))
            file = self._spark._jvm.java.io.RandomAccessFile(path, "rw")
        try:
            with _spark_errors("the table's lock cannot be taken"):
                self._take(file.getChannel(), path)
            yield
        finally:
            file.close()  # releases the lock

    def _take(self, channel: Any, path: str) -> None:
        give_up_at = time.monotonic() + LOCK_TIMEOUT
        while channel.tryLock() is None:
            if time.monotonic() > give_up_at:
                raise CommitError(
                    f"another Spark job has held {path} for {LOCK_TIMEOUT:.0f} s; "
                    "end it, or name another table"
                )
            time.sleep(_LOCK_POLL)


@contextmanager
def _spark_errors(what: str) -> Generator[None]:
    """Turn whatever Spark, Delta or py4j raise into a :class:`CommitError` with one line."""
    py4j: Any = importlib.import_module("py4j.protocol")
    pyspark: Any = importlib.import_module("pyspark.errors")
    try:
        yield
    except (py4j.Py4JError, pyspark.PySparkException) as exc:
        text = next((line for line in str(exc).splitlines() if line.strip()), type(exc).__name__)
        cause = getattr(exc, "java_exception", None)
        if cause is not None:
            text = str(cause.toString()).splitlines()[0]
        raise CommitError(f"{what}: {text[:500]}") from exc
