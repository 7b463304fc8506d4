"""Upkeep of a Delta table through Spark: OPTIMIZE, and VACUUM.

The mark is Delta's transaction identifier, which each checkpoint carries on: neither step touches it. OPTIMIZE
changes no row, so concurrent appends succeed, whichever commits first. Both hold the table's lock, together with
the commits of this job, as what they write to the log is renamed, too. Those do not wait for it; other jobs do, so a
table with partitions is compacted in slices, with the lock released after each. (OPTIMIZE cannot take part of a
clustered table, or of one without partitions.)

Its own session has its own settings, and its Spark jobs have their own pool (``FAIR``): a commit's task, if there is
one, runs next.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from tidegate_sink_spark.job.delta import DeltaTable
from tidegate_sink_spark.job.rows import spark_errors
from tidegate_sink_spark.upkeep.delta_rs import hours
from tidegate_sink_spark.upkeep.worker import FILE_BYTES, SMALL_BYTES, Turn

#: Spark's scheduler pool; commits are in the default one.
POOL: Final = "upkeep"
#: Partitions of one slice.
PARTITIONS_MAX: Final = 50
#: Bytes of small, compressed files that one task reads: a second or two of a core.
READ_BYTES: Final = 8 << 20
_SETTINGS: Final = {
    "spark.databricks.delta.optimize.maxFileSize": str(FILE_BYTES),
    "spark.databricks.delta.optimize.minFileSize": str(SMALL_BYTES),
    # One at a time: with two cores a commit always finds one.
    "spark.databricks.delta.optimize.maxThreads": "1",
    # Progress is committed in steps: a killed job has not worked in vain.
    "spark.databricks.delta.optimize.batchSize": str(FILE_BYTES),
    # A running task is not interrupted. Short ones let a commit have its core soon.
    "spark.sql.files.maxPartitionBytes": str(READ_BYTES),
    # A clustered table is rewritten as a whole until it has this much; 100 GB by default.
    "spark.databricks.delta.optimize.clustering.mergeStrategy.minCubeSize.threshold": str(
        SMALL_BYTES
    ),
    "spark.databricks.delta.optimize.clustering.mergeStrategy.minCubeSize.targetCubeSize": str(
        FILE_BYTES
    ),
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
}


class DeltaUpkeep:
    """A :class:`tidegate_sink_spark.upkeep.worker.TableUpkeep`."""

    def __init__(self, spark: Any, table: DeltaTable, *, retention: float) -> None:
        """Args:
        table: opened for upkeep alone.
        retention: seconds that files no longer in the table are kept; 0: for ever.
        """
        self._table = table
        self._retention = retention
        self._spark = own_session(spark)
        for key, value in _SETTINGS.items():
            self._spark.conf.set(key, value)

    def turn(self, *, vacuums: bool) -> Turn:
        """See TableUpkeep. Raises: CommitError."""
        name = self._table.sql_name
        after = self._table.state()  # from here on it syncs what is committed
        removed = added = 0
        for where in self._slices():
            with self._table.locked(), in_pool(self._spark), spark_errors("OPTIMIZE failed"):
                metrics = self._spark.sql(f"OPTIMIZE {name} {where}").first()["metrics"]
            removed += int(metrics["numFilesRemoved"])
            added += int(metrics["numFilesAdded"])
            after = self._table.state()  # so its files are on disk before the others go
        if self._retention and vacuums:
            with self._table.locked(), in_pool(self._spark), spark_errors("VACUUM failed"):
                self._spark.sql(f"VACUUM {name} RETAIN {hours(self._retention)} HOURS").collect()
        return Turn(removed, added, after.files)

    def _slices(self) -> list[str]:
        """The parts of the table that successive OPTIMIZEs take, as WHERE clauses."""
        with in_pool(self._spark), spark_errors("the table's files cannot be listed"):
            columns, files = self._table.partitioned_files(self._spark)
            if not columns:
                return [""]
            small = files.where(f"bytes < {SMALL_BYTES}").groupBy(*columns)
            found = small.agg({"bytes": "sum", "*": "count"}).where("`count(1)` > 1").collect()
        return where_clauses([(row.asDict(), int(row["sum(bytes)"])) for row in found], columns)


def where_clauses(
    partitions: Sequence[tuple[Mapping[str, str | None], int]],
    columns: Sequence[str],
    size_bytes: int = FILE_BYTES,
) -> list[str]:
    """WHERE clauses that together cover all *partitions* (values and bytes), each with a minimum of bytes."""
    clauses: list[str] = []
    waiting: list[str] = []
    total = 0
    for number, (values, size) in enumerate(partitions, 1):
        waiting.append(" AND ".join(_condition(column, values[column]) for column in columns))
        total += size
        if total >= size_bytes or number == len(partitions) or len(waiting) == PARTITIONS_MAX:
            clauses.append(f"WHERE ({') OR ('.join(waiting)})")
            waiting, total = [], 0
    return clauses


def _condition(column: str, value: str | None) -> str:
    name = f"`{column.replace('`', '``')}`"
    if value is None:
        return f"{name} IS NULL"
    text = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"{name} = '{text}'"


def own_session(spark: Any) -> Any:
    """A session with its own settings in the same Spark."""
    return spark.newSession()


@contextmanager
def in_pool(spark: Any) -> Generator[None]:
    """Run this thread's Spark jobs in the pool of upkeep."""
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", POOL)
    try:
        yield
    finally:
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", None)
