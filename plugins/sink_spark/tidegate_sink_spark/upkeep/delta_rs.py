"""Upkeep of a Delta table through delta-rs, in a thread of the job.

Neither step touches the mark. Compaction is a commit like any other: appends continue meanwhile, and delta-rs accepts
both, since one adds no rows and the other removes none. A job killed meanwhile leaves a
file that no commit names. The thread holds the table's lock as the commits do, so another gateway's
Spark job waits for it and does not rename its commit over this one's.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tidegate_sink_spark.delta_rs.place import place_of
from tidegate_sink_spark.upkeep.worker import FILE_BYTES, Turn


class DeltaRsUpkeep:
    """A :class:`tidegate_sink_spark.upkeep.worker.TableUpkeep`."""

    def __init__(
        self,
        table: str | Path,
        *,
        retention: float,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        """Args:
        table: a path or URI; storage_options: of an object store, in delta-rs's words.
        retention: seconds that files no longer in the table are kept; 0: for ever.
        """
        self._place = place_of(str(table), storage_options or {}, Path.cwd())
        self._retention = retention

    def turn(self, *, vacuums: bool) -> Turn:
        """See TableUpkeep. Raises: what delta-rs raises; CommitError, OSError."""
        deltalake: Any = importlib.import_module("deltalake")
        with self._place.lock():
            table = deltalake.DeltaTable(self._place.uri, storage_options=self._place.options)
            # One task: the gateway and its clients want the processor more.
            found = table.optimize.compact(target_size=FILE_BYTES, max_concurrent_tasks=1)
            if self._retention and vacuums:
                table.vacuum(
                    retention_hours=hours(self._retention),
                    dry_run=False,
                    enforce_retention_duration=False,
                    full=True,
                )
        metrics: dict[str, Any] = json.loads(found) if isinstance(found, str) else found
        removed, added = int(metrics["numFilesRemoved"]), int(metrics["numFilesAdded"])
        return Turn(removed, added, len(table.file_uris()))


def hours(retention: float) -> int:
    """*retention* for table formats, which know only whole hours; never less than one."""
    return max(1, round(retention / 3600))
