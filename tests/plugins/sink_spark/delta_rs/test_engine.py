"""The sink with ``engine = "deltalake"``: the real job, killed and taken over."""

import asyncio
import importlib.util
import json
import random
import shutil
from pathlib import Path
from typing import Any

import deltalake
import pytest
from job_scenario import of_program

from tidegate.spi import ConfigError, SinkContext
from tidegate_sink_spark._options import SparkSinkOptions
from tidegate_sink_spark._sink import SparkSink
from tidegate_sink_spark._spark_engine import SparkEngine
from tidegate_sink_spark.delta_rs.engine import DeltaRsEngine
from tidegate_sink_spark.job.table import application_id
from tidegate_sink_spark.plugin import SparkSinkFactory

APP_ID = application_id("gw", "store-1")


class Bench:
    """One log and one table, which outlive the sinks that are made here."""

    def __init__(self, directory: Path, kit: Any) -> None:
        self.kit = kit
        self.log = kit.MemoryLog()
        self.directory = directory / "sink"
        self.directory.mkdir()
        self.table = directory / "lake" / "table"

    def make(self, gateway: str = "gw", **changes: Any) -> SparkSink:
        options: dict[str, Any] = {
            "engine": "deltalake",
            "table": str(self.table),
            "commit_interval": 0.1,
            "segment_rows": 100,
            "segment_interval": 0.02,
            "stop_timeout": 60.0,
        }
        self.directory.mkdir(exist_ok=True)
        context = SinkContext("lake", gateway, self.directory)
        chosen = SparkSinkOptions(**{**options, **changes})
        engine = (
            DeltaRsEngine(context, chosen)
            if chosen.engine == "deltalake"
            else SparkEngine(context, chosen)
        )
        return SparkSink(context, chosen, engine, restart_delay=0.05)

    def contents(self) -> Any:
        return self.kit.read_table(self.table, APP_ID)

    def check(self) -> None:
        """What is in the table at this very moment is the log up to the mark, each row once."""
        contents = self.contents()
        assert contents.is_exact
        assert self.log.released <= contents.mark

    def commits(self) -> int:
        return len(list((self.table / "_delta_log").glob("*.json")))

    async def until_released(self, sink: SparkSink) -> None:
        """All that was acknowledged is in the table and released."""
        await self.kit.until(lambda: self.log.released == self.log.last, 240)
        assert sink.health().problem == ""


@pytest.fixture
def bench(tmp_path: Path, kit: Any) -> Bench:
    return Bench(tmp_path, kit)


async def test_every_row_reaches_the_table_and_a_killed_job_is_replaced(bench: Bench) -> None:
    sink = bench.make()
    await sink.start(bench.log)
    try:
        bench.log.grow(250)
        await bench.until_released(sink)
        bench.log.grow(250)
        before = bench.commits()
        await bench.kit.kill_job(sink, lambda: bench.commits() > before)
        bench.check()
        bench.log.grow(50)
    finally:
        await sink.stop()  # drains
    contents = bench.contents()
    assert contents.mark == bench.log.released == 550
    assert contents.is_exact
    assert bench.kit.staged_names(bench.directory / "staging") == []


@pytest.mark.long
async def test_damaged_rows_go_to_the_dead_letter_table_once(bench: Bench) -> None:
    bench.log.damaged = {1, 50, *range(101, 201)}  # some, and a whole staged file
    bench.log.grow(350)
    sink = bench.make()
    await sink.start(bench.log)
    try:
        await bench.kit.until(lambda: bench.log.released == bench.log.last, 240)
        await bench.kit.kill_job(sink)
        bench.log.damaged |= {360}
        bench.log.grow(50)
    finally:
        await sink.stop()
    rows = bench.contents()
    dead = deltalake.DeltaTable(f"{bench.table}_dlq").to_pyarrow_table(columns=["ack_seq"])
    assert sorted(dead["ack_seq"].to_pylist()) == sorted(bench.log.damaged)
    assert sorted([*rows.sequences, *bench.log.damaged]) == list(range(1, 401))
    assert rows.mark == bench.log.released == 400


@pytest.mark.long
async def test_columns_of_the_configuration_reach_a_table_that_is_there(bench: Bench) -> None:
    async def run(**options: Any) -> str:
        """Acknowledge a hundred messages and stop when they are released, or a problem is told."""
        sink = bench.make(**options)
        await sink.start(bench.log)
        try:
            bench.log.grow(100)
            await bench.kit.until(
                lambda: sink.health().problem or bench.log.released == bench.log.last, 240
            )
            return sink.health().problem
        finally:
            await sink.stop()

    make = bench.log.make
    bench.log.make = lambda n: make(n, body=b"no JSON") if n % 50 == 0 else make(n)
    assert await run() == ""
    number = {"number": "long json:$.n", "kind": "string header:kind"}
    assert await run(columns=number, body="json", on_bad_value="bad_row") == ""
    assert await run(columns={"number": "long json:$.n"}, body="text") == ""
    cold = deltalake.DeltaTable(str(bench.table))
    rows = cold.to_pyarrow_table().to_pylist()
    letters = deltalake.DeltaTable(f"{bench.table}_dlq").to_pyarrow_table().to_pylist()
    assert sorted(row["ack_seq"] for row in rows + letters) == list(range(1, 301))
    assert sorted(row["ack_seq"] for row in letters) == [150, 200]
    assert {row["kind"] for row in letters} == {"order"}
    for row in rows:
        n = row["ack_seq"]
        is_json = n % 50 != 0
        assert row["number"] == (n if n > 100 and is_json else None)
        assert row["kind"] == ("order" if 100 < n <= 200 else None)
        assert (row["body_json"] is not None) == (100 < n <= 200)
        assert row["body_text"] == (row["body"].decode() if n > 200 else None)
    conflict = await run(columns={"number": "string header:n"}, drain_on_stop=False)
    assert "the column number of the table" in conflict
    assert "give it another name in [sinks.columns]" in conflict
    cold = deltalake.DeltaTable(str(bench.table))
    cold.alter.set_table_properties({"tidegate.schema_version": "2"}, raise_if_not_exists=False)
    assert "has schema version 2" in await run(drain_on_stop=False)


@pytest.mark.long
async def test_kills_at_any_moment_and_lost_local_state_leave_every_row_once(
    bench: Bench,
) -> None:
    chance = random.Random(7)
    for turn in range(12):
        sink = bench.make(drain_on_stop=False, compact_interval=0.2)
        await sink.start(bench.log)
        try:
            for _ in range(2):
                await bench.kit.until(lambda: sink.job_pid, 60)  # noqa: B023  # awaited here
                before = bench.commits() if bench.table.exists() else 0
                bench.log.grow(700)
                if turn % 2:
                    await bench.kit.kill_job(sink, lambda: bench.commits() > before)  # noqa: B023
                else:
                    await asyncio.sleep(chance.uniform(0, 1.2))
                    await bench.kit.kill_job(sink)
                if bench.table.exists() and bench.commits():
                    bench.check()
        finally:
            await sink.stop()
        if turn % 3 == 2:
            shutil.rmtree(bench.directory)
    sink = bench.make()
    await sink.start(bench.log)
    try:
        await bench.until_released(sink)
    finally:
        await sink.stop()
    assert bench.contents().mark == 12 * 2 * 700
    bench.check()


@pytest.mark.long
async def test_two_sinks_of_one_log_write_every_row_once(bench: Bench, tmp_path: Path) -> None:
    """A gateway that should be dead, and its successor: each stages and commits the whole log."""
    (tmp_path / "other").mkdir()
    other = Bench(tmp_path / "other", bench.kit)
    other.table = bench.table
    sinks = [bench.make(), other.make()]
    for sink, log in zip(sinks, (bench.log, other.log), strict=True):
        await sink.start(log)
    try:
        for _ in range(10):
            bench.log.grow(300)
            other.log.grow(300)
            await asyncio.gather(
                *(b.until_released(s) for b, s in zip((bench, other), sinks, strict=True))
            )
    finally:
        for sink in sinks:
            await sink.stop()
    assert bench.contents().mark == 3_000
    bench.check()


@pytest.mark.crash
@pytest.mark.spark
@pytest.mark.timeout(900)
async def test_the_engines_take_over_from_each_other(bench: Bench, spark: Any) -> None:
    """Spark, deltalake, Spark, deltalake: each one is killed on a commit of its own."""
    of_engine: dict[str, dict[str, Any]] = {
        "spark": {"spark_conf": dict(spark.SHORT_JOB), "layout": "partitioned"},
        "deltalake": {"compact_interval": 0.5},
    }
    for turn, engine in enumerate(["spark", "deltalake", "spark", "deltalake"]):
        sink = bench.make(engine=engine, **of_engine[engine])
        await sink.start(bench.log)
        try:
            bench.log.grow(500)
            await bench.until_released(sink)
            if turn == 0:
                # Each engine writes checkpoints from now on, over those of the other one.
                deltalake.DeltaTable(str(bench.table)).alter.set_table_properties(
                    {"delta.checkpointInterval": "3"}
                )
            for _ in range(4):
                bench.log.grow(500)
                await bench.until_released(sink)
            before = bench.commits()
            bench.log.grow(500)
            await bench.kit.kill_job(sink, lambda: bench.commits() > before)  # noqa: B023  # awaited here
            bench.check()
            await bench.until_released(sink)
        finally:
            await sink.stop()
        contents = bench.contents()
        assert contents.mark == bench.log.last == (turn + 1) * 3_000
        bench.check()
    cold = deltalake.DeltaTable(str(bench.table)).to_pyarrow_table(columns=["ack_seq"])
    assert sorted(cold["ack_seq"].to_pylist()) == list(range(1, 12_001))
    read = await asyncio.to_thread(_count_by_spark, bench.table, spark)
    assert read == [12_000, 12_000, 12_000]


def _count_by_spark(table: Path, spark: Any) -> list[int]:
    script = (
        "import json, sys; from tidegate_sink_spark import create_session\n"
        "from tidegate_sink_spark._options import SparkSinkOptions\n"
        "spark = create_session('cold', SparkSinkOptions(spark_conf=json.loads(sys.argv[2])))\n"
        "rows = spark.read.format('delta').load(sys.argv[1])\n"
        "row = rows.selectExpr('count(*)', 'count(DISTINCT ack_seq)',"
        " \"count_if(date_format(acked_at, 'yyyy-MM-dd') = cast(ack_date AS STRING))\").first()\n"
        "print(json.dumps(list(row))); spark.stop()"
    )
    return of_program(script, str(table), json.dumps(dict(spark.SHORT_JOB)))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("driver_memory", 2 << 30),
        ("spark_conf", {"spark.master": "local[1]"}),
        ("java_home", "/jdk"),
        ("jars", "download"),
        ("jars_cache", "/jars"),
        ("maven_repository", "https://maven.example"),
        ("layout", "clustered"),
        ("table", "hdfs://host/a table"),
        ("vacuum_retention", 7 * 86_400.0),
        ("format", "iceberg"),
        ("format", "parquet"),
    ],
)
def test_what_has_no_effect_with_this_engine_is_an_error(
    key: str, value: Any, tmp_path: Path
) -> None:
    options = SparkSinkOptions(engine="deltalake", **{key: value})
    with pytest.raises(ConfigError, match=r"deltalake|compact_interval") as caught:
        SparkSinkFactory().create(SinkContext("lake", "gw", tmp_path), options)
    assert caught.value.key == ("engine" if key == "format" else key)


@pytest.mark.parametrize("name", ["AWS_S3_LOCKING_PROVIDER", "aws_s3_locking_provider"])
def test_a_lock_that_this_delta_rs_does_not_take_is_an_error(tmp_path: Path, name: str) -> None:
    options = SparkSinkOptions(
        engine="deltalake", table="s3://lake/t", storage_options={name: "dynamodb"}
    )
    with pytest.raises(ConfigError, match="takes no lock in DynamoDB any more"):
        DeltaRsEngine(SinkContext("lake", "gw", tmp_path), options)


def test_the_option_chooses_the_engine(tmp_path: Path) -> None:
    context = SinkContext("lake", "gw", tmp_path)
    for engine in ("deltalake", "spark"):
        sink = SparkSinkFactory().create(context, SparkSinkOptions(engine=engine))
        assert isinstance(sink, SparkSink)
        assert sink._engine.name.lower() == engine
    with pytest.raises(ConfigError):
        SparkSinkFactory().create(context, SparkSinkOptions(engine="deltalake", java_home="/jdk"))


async def test_without_delta_rs_the_sink_does_not_start_and_says_what_to_install(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"tidegate-sink-spark\[deltalake\]"):
        await bench.make().start(bench.log)
