"""Upkeep of a Delta table through Spark: OPTIMIZE, and VACUUM.

The mark is Delta's transaction identifier, which each checkpoint carries on: neither step touches it. OPTIMIZE changes
no row, so appends beside it go through, whichever commits first. Both hold the table's lock, together with the
commits of this job, as what they write to the log is renamed, too.

A session of its own has its own settings, and its Spark jobs are a pool of their own (``FAIR``): the next task to run
is the one of a commit, when there is one.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final

from tidegate_sink_spark.job.delta import DeltaTable
from tidegate_sink_spark.job.rows import spark_errors
from tidegate_sink_spark.upkeep.delta_rs import hours
from tidegate_sink_spark.upkeep.worker import FILE_BYTES, SMALL_BYTES, Turn

#: Of Spark's scheduler; commits are in the default one.
POOL: Final = "upkeep"
_SETTINGS: Final = {
    "spark.databricks.delta.optimize.maxFileSize": str(FILE_BYTES),
    "spark.databricks.delta.optimize.minFileSize": str(SMALL_BYTES),
    # One after the other: with two cores a commit always finds one.
    "spark.databricks.delta.optimize.maxThreads": "1",
    # A clustered table is written anew, all of it, until it has so much; 100 GB by default.
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
        table: opened for this alone.
        retention: seconds for which files are kept that are in the table no more; 0: for ever.
        """
        self._table = table
        self._retention = retention
        self._spark = own_session(spark)
        for key, value in _SETTINGS.items():
            self._spark.conf.set(key, value)

    def turn(self, *, vacuums: bool) -> Turn:
        """See TableUpkeep. Raises: CommitError."""
        name = self._table.sql_name
        self._table.state()  # from here on it syncs what is committed
        with self._table.locked(), in_pool(self._spark), spark_errors("OPTIMIZE failed"):
            metrics = self._spark.sql(f"OPTIMIZE {name}").first()["metrics"]
        after = self._table.state()  # and so its files are on the disk before the others go
        if self._retention and vacuums:
            with self._table.locked(), in_pool(self._spark), spark_errors("VACUUM failed"):
                self._spark.sql(f"VACUUM {name} RETAIN {hours(self._retention)} HOURS").collect()
        removed, added = int(metrics["numFilesRemoved"]), int(metrics["numFilesAdded"])
        return Turn(removed, added, after.files)


def own_session(spark: Any) -> Any:
    """A session with settings of its own in the same Spark."""
    return spark.newSession()


@contextmanager
def in_pool(spark: Any) -> Generator[None]:
    """Give the Spark jobs of this thread to the pool of upkeep."""
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", POOL)
    try:
        yield
    finally:
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", None)
