"""Jobs that are killed in the middle of their upkeep, while rows come: every row is there, once."""

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tidegate.spi import SinkContext
from tidegate_sink_spark._job_engine import JobEngine
from tidegate_sink_spark._options import SparkSinkOptions
from tidegate_sink_spark._sink import SparkSink
from tidegate_sink_spark._spark_engine import SparkEngine
from tidegate_sink_spark.delta_rs.engine import DeltaRsEngine
from tidegate_sink_spark.job.table import application_id

pytestmark = [pytest.mark.crash, pytest.mark.timeout(900)]

APP_ID = application_id("gw", "store-1")
#: Seconds from the beginning of a turn to the kill: about as long as one takes.
TURN_S = {"parquet": 0.2, "deltalake": 0.05, "delta": 6.0, "iceberg": 6.0}


class Bench:
    """A log, a table, and a sink that keeps it up all the time."""

    def __init__(self, directory: Path, kit: Any, kind: str, **options: Any) -> None:
        self.kit = kit
        self.kind = kind
        self.format = "delta" if kind == "deltalake" else kind
        self.log = kit.MemoryLog()
        self.table = directory / "lake" / "table"
        (directory / "sink").mkdir()
        context = SinkContext("lake", "gw", directory / "sink")
        chosen = SparkSinkOptions(
            table=str(self.table),
            format=self.format,
            engine="deltalake" if kind == "deltalake" else "spark",
            layout="partitioned",
            commit_interval=0.1,
            compact_interval=0.3,
            vacuum_retention=0.0 if kind == "parquet" else 3600.0,
            segment_rows=200,
            segment_interval=0.05,
            **options,
        )
        engines = {"parquet": JobEngine, "deltalake": DeltaRsEngine}
        engine = engines.get(kind, SparkEngine)(context, chosen)
        self.sink = SparkSink(context, chosen, engine, restart_delay=0.01)

    def is_kept(self) -> bool:
        """Upkeep is under way."""
        keeper = self.sink._keeper
        return keeper is not None and keeper._busy_since is not None

    def check(self) -> None:
        while True:
            try:
                contents = self.kit.READERS[self.format](self.table, APP_ID)
                break
            except FileNotFoundError:  # the next job was at it meanwhile
                continue
        if (
            self.format == "parquet"
        ):  # rows are in files before the manifest of the next commit is read
            assert len(set(contents.sequences)) == len(contents.sequences)
        else:
            assert contents.is_exact
        assert self.log.released <= contents.mark

    async def kill(self, chance: random.Random) -> None:
        """Kill the job at a random moment of its upkeep."""
        delay, since = chance.uniform(0, TURN_S[self.kind]), [0.0]

        def is_time() -> bool:
            if not self.is_kept():
                since[0] = 0.0
                return False
            since[0] = since[0] or time.monotonic()
            return time.monotonic() - since[0] >= delay

        self.log.grow(400)
        await self.kit.kill_job(self.sink, self._with_rows(is_time))
        self.check()

    def _with_rows(self, is_time: Callable[[], bool]) -> Callable[[], bool]:
        """*is_time*, while rows come for one turn after the other."""
        grown = [time.monotonic()]

        def look() -> bool:
            if time.monotonic() - grown[0] > 0.2 and self.log.last - self.log.released < 2_000:
                grown[0] = time.monotonic()
                self.log.grow(100)
            return is_time()

        return look

    async def run(self, seed: int, kills: int) -> None:
        chance = random.Random(seed)
        await self.sink.start(self.log)
        try:
            await self.kit.until(lambda: self.table.exists(), 240)
            for _ in range(kills):
                await self.kill(chance)
            await self.kit.until(lambda: self.log.released == self.log.last, 240)
            number = self.sink.compact()
            await self.kit.until(lambda: self.ended(number), 240)
            await self.kit.until(lambda: self.log.released == self.log.last, 240)
        finally:
            await self.sink.stop()
        contents = self.kit.READERS[self.format](self.table, APP_ID)
        assert contents.mark == self.log.last
        assert contents.is_exact
        # (Some had just ended: what they said of it was read behind the report of a commit.)
        texts = [problem.text for problem in self.sink.health().problems]
        assert any("the job ended meanwhile" in text for text in texts)

    def ended(self, number: int) -> bool:
        """The turn *number* has ended, and well."""
        upkeep = self.sink.health().upkeep
        if upkeep is None or upkeep.number < number:
            return False
        assert upkeep.problem == ""
        return True


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("kind", ["parquet", "deltalake"])
async def test_jobs_without_java(tmp_path: Path, kit: Any, kind: str, seed: int) -> None:
    bench = Bench(tmp_path, kit, kind)
    await bench.run(seed, kills=8)
    if kind == "parquet":
        assert list(bench.table.rglob("*.tmp")) == []


@pytest.mark.spark
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
async def test_jobs_with_spark(tmp_path: Path, kit: Any, spark: Any, kind: str) -> None:
    bench = Bench(tmp_path, kit, kind, spark_conf=dict(spark.SHORT_JOB))
    await bench.run(seed=3, kills=4)
