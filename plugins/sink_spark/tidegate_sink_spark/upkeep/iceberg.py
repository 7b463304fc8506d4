"""Upkeep of an Iceberg table: rewritten data files, expired snapshots, orphans.

The mark is a property of the table, in each of its metadata, not of a snapshot: it stays when its
snapshot expires. All of this commits on the newest metadata, and retries by itself when the sink's
commits move that; the sink's commits compare before they swap, and retry, too.

Orphans, which killed jobs leave behind, are looked for only below ``data``, which holds nothing but this table's files,
and must be a day old: files that a commit is about to name are younger.
"""

from __future__ import annotations

import time
from typing import Any, Final

from tidegate_sink_spark.job.driver import CommitError
from tidegate_sink_spark.job.iceberg import IcebergTable
from tidegate_sink_spark.job.rows import spark_errors
from tidegate_sink_spark.upkeep.delta import in_pool, own_session
from tidegate_sink_spark.upkeep.delta_rs import hours
from tidegate_sink_spark.upkeep.worker import FILE_BYTES, SMALL_BYTES, Turn

#: Seconds; younger files may belong to a commit in progress, by any clock.
ORPHAN_AGE_MIN: Final = 24 * 3600.0
#: Commits of one rewrite: what a killed job has committed by then is kept.
COMMITS_MAX: Final = 10
#: A table with its files elsewhere may share that place with others.
_ELSEWHERE: Final = ("write.data.path", "write.object-storage.path", "write.folder-storage.path")
_REWRITE: Final = {
    "target-file-size-bytes": str(FILE_BYTES),
    "min-file-size-bytes": str(SMALL_BYTES),
    "min-input-files": "2",
    "max-concurrent-file-group-rewrites": "1",
    "max-file-group-size-bytes": str(FILE_BYTES * 2),
    "partial-progress.enabled": "true",
    "partial-progress.max-commits": str(COMMITS_MAX),
}


class IcebergUpkeep:
    """A :class:`tidegate_sink_spark.upkeep.worker.TableUpkeep`."""

    def __init__(self, spark: Any, table: IcebergTable, *, retention: float) -> None:
        """Args:
        table: opened for upkeep alone.
        retention: seconds that snapshots and their files are kept; 0: for ever.
        """
        self._spark = own_session(spark)
        self._table = table
        self._retention = retention

    def turn(self, *, vacuums: bool) -> Turn:
        """See TableUpkeep. Raises: CommitError."""
        with in_pool(self._spark):
            self._table.state()  # from here on it syncs what is committed
            with self._table.locked(), spark_errors("rewriting data files failed"):
                removed, added = self._rewrite()
            after = self._table.state()  # so its files are on disk before others go
            if self._retention:
                with self._table.locked(), spark_errors("expiring snapshots failed"):
                    self._expire()
            if self._retention and vacuums:
                with spark_errors("removing orphan files failed"):
                    self._remove_orphans()
        return Turn(removed, added, after.files)

    def _actions(self) -> Any:
        actions = self._spark._jvm.org.apache.iceberg.spark.actions.SparkActions
        return actions.get(self._spark._jsparkSession)

    def _rewrite(self) -> tuple[int, int]:
        action = self._actions().rewriteDataFiles(self._table.java_table).binPack()
        for key, value in _REWRITE.items():
            action = action.option(key, value)
        found = action.execute()
        failed = int(found.failedDataFilesCount())
        if failed:
            raise CommitError(f"{failed} data files were not rewritten: the job's log says why")
        return int(found.rewrittenDataFilesCount()), int(found.addedDataFilesCount())

    def _expire(self) -> None:
        self._table.java_table.refresh()
        (
            self._table.java_table.expireSnapshots()
            .expireOlderThan(_before(hours(self._retention) * 3600))
            .retainLast(1)
            .cleanExpiredFiles(True)
            .commit()
        )

    def _remove_orphans(self) -> None:
        if self._table.java_table.currentSnapshot() is None:
            return  # nobody has committed yet, and there may be no such directory
        properties = self._table.java_table.properties()
        if any(properties.containsKey(key) for key in _ELSEWHERE):
            return
        (
            self._actions()
            .deleteOrphanFiles(self._table.java_table)
            .location(f"{str(self._table.java_table.location()).rstrip('/')}/data")
            .olderThan(_before(max(self._retention, ORPHAN_AGE_MIN)))
            .execute()
        )


def _before(seconds: float) -> int:
    """That long ago, in milliseconds since the epoch."""
    return int((time.time() - seconds) * 1000)
