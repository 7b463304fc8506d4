"""A sink on a job without Spark, and the log that it reads."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import fake_job

from tidegate.spi import SinkContext, SinkLag
from tidegate.spi.sink import unheard
from tidegate_sink_spark._options import SparkSinkOptions
from tidegate_sink_spark._sink import SparkSink
from tidegate_sink_spark._spark_engine import SparkEngine

FAKE_JOB = (sys.executable, fake_job.__file__)


class Bench:
    """One log, one table, and a directory, which outlive the sinks that are made here."""

    def __init__(self, directory: Path, kit: Any) -> None:
        self.kit = kit
        self.log = kit.MemoryLog()
        self.directory = directory / "sink"
        self.table = directory / "lake" / "table.json"
        self.jar = directory / "a.jar"
        self.announce: Callable[[SinkLag], None] = unheard
        self.directory.mkdir()
        self.jar.touch()

    def make(self, **changes: Any) -> SparkSink:
        options: dict[str, Any] = {
            "table": str(self.table),
            "commit_interval": 0.1,
            "segment_rows": 10,
            "segment_interval": 0.02,
            "gap_timeout": 0.2,
            "stop_timeout": 20.0,
            "jars": str(self.jar),
        }
        context = SinkContext("lake", "gw", self.directory, announce_lag=self.announce)
        chosen = SparkSinkOptions(**{**options, **changes})
        engine = SparkEngine(context, chosen, job_command=FAKE_JOB)
        return SparkSink(
            context, chosen, engine, restart_delay=0.05, make_builder=self.kit.thread_builder
        )

    def run(self, work: Callable[[SparkSink], Awaitable[None]], **changes: Any) -> SparkSink:
        """Start a sink, do *work*, stop it."""
        sink = self.make(**changes)

        async def main() -> None:
            await sink.start(self.log)
            try:
                await work(sink)
            finally:
                await sink.stop()

        asyncio.run(main())
        return sink

    def rows(self) -> list[int]:
        return json.loads(self.table.read_text())["rows"] if self.table.exists() else []

    def staged(self) -> list[str]:
        return self.kit.staged_names(self.directory / "staging")

    async def until_mark(self, sink: SparkSink, mark: int) -> None:
        await self.kit.until(lambda: sink.health().mark == mark)


async def nothing(sink: SparkSink) -> None:
    """Start and stop only."""
