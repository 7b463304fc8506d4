"""A Delta table that delta-rs writes: opened, appended to, raced for, and read by a reader of its own."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Final

import deltalake

from tidegate.spi import SinkContext
from tidegate_sink_spark._options import SparkSinkOptions
from tidegate_sink_spark._sink import SparkSink
from tidegate_sink_spark.delta_rs.engine import DeltaRsEngine
from tidegate_sink_spark.delta_rs.table import DeltaRsTable
from tidegate_sink_spark.job.driver import Addition, CommitError, MarkMovedError
from tidegate_sink_spark.job.table import PARTITIONED_BY, Shape, application_id

APP_ID: Final = application_id("gw", "store-1")
#: So that a store that is away is missed within a second.
HASTY: Final = {"max_retries": "1", "retry_timeout": "1s"}


class TableInStore:
    """A table in a store, and staged files to append. Attributes: uri, options (of delta-rs), scratch."""

    def __init__(
        self,
        directory: Path,
        kit: Any,
        uri: str,
        options: dict[str, str],
        partition_by: tuple[str, ...] = PARTITIONED_BY,
    ) -> None:
        self.kit = kit
        self.directory = directory
        self.uri = uri
        self.options = options
        self.scratch = directory / "scratch"
        self.scratch.mkdir()
        self._shape = Shape("partitioned", partition_by=partition_by)

    def open(self) -> DeltaRsTable:
        return DeltaRsTable(
            self.uri, self._shape, APP_ID, storage_options=self.options, scratch=self.scratch
        )

    def addition(self, lo: int, hi: int, after: int | None = None) -> Addition:
        mark = lo - 1 if after is None else after
        staged = self.kit.stage(self.directory / "staging", lo, hi)
        return Addition(
            [staged], after=mark, through=hi, count=hi - mark, overlaps=lo <= mark, metadata="{}"
        )

    def sink(self) -> SparkSink:
        """A sink that carries a log into the table, in quick steps."""
        directory = self.directory / "sink"
        directory.mkdir()
        context = SinkContext("lake", "gw", directory)
        options = SparkSinkOptions(
            engine="deltalake",
            table=self.uri,
            storage_options=self.options,
            commit_interval=0.1,
            segment_rows=100,
            segment_interval=0.02,
        )
        return SparkSink(context, options, DeltaRsEngine(context, options), restart_delay=0.05)

    def table(self) -> Any:
        return deltalake.DeltaTable(self.uri, storage_options=self.options)

    def sequences(self) -> list[int]:
        """What a reader of its own finds."""
        rows = self.table().to_pyarrow_table(columns=["ack_seq"])
        return sorted(rows["ack_seq"].to_pylist())

    def race(self, lo: int, *his: int) -> list[str]:
        """Append *lo* to each of *his* at once, by writers that all have compared the mark before one commits.

        Returns: of each "won", or the name of its error.
        """
        writers = [self.open() for _ in his]
        meet = threading.Barrier(len(his), timeout=60)
        outcomes: list[str] = []

        def append(writer: DeltaRsTable, hi: int) -> None:
            commit = writer._commit

            def late(placed: Any, addition: Addition) -> None:
                meet.wait()
                commit(placed, addition)

            writer._commit = late
            try:
                writer.append(self.addition(lo, hi))
                outcomes.append("won")
            except (MarkMovedError, CommitError) as exc:
                outcomes.append(type(exc).__name__)

        pairs = zip(writers, his, strict=True)
        threads = [threading.Thread(target=append, args=pair) for pair in pairs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return outcomes
