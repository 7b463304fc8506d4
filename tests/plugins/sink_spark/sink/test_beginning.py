"""What a sink needs to begin, and what it leaves alone."""

import json
import os
import signal
from pathlib import Path

import pytest
from sink_bench import FAKE_JOB, Bench, nothing

from tidegate.spi import ConfigError, SinkContext
from tidegate_sink_spark._options import SparkSinkOptions
from tidegate_sink_spark._sink import SparkSink
from tidegate_sink_spark._spark_engine import SparkEngine
from tidegate_sink_spark.java import runtime
from tidegate_sink_spark.java.runtime import JavaRuntime


def test_jars_that_cannot_be_fetched_do_not_keep_the_gateway_from_starting(
    bench: Bench, tmp_path: Path
) -> None:
    async def work(sink: SparkSink) -> None:
        bench.log.grow(10)
        await bench.kit.until(lambda: "jars could not be fetched" in sink.health().problem)
        await bench.kit.until(lambda: sink.health().staged == 10)

    bench.run(
        work,
        jars="download",
        jars_cache=str(tmp_path / "cache"),
        maven_repository="file:///nowhere",
        drain_on_stop=False,
    )


async def test_no_java_is_a_config_error_at_start(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> JavaRuntime:
        raise ConfigError("Spark needs Java", key="java_home")

    monkeypatch.setattr(runtime, "find_java", none)
    with pytest.raises(ConfigError, match="Spark needs Java"):
        await bench.make().start(bench.log)


def test_files_of_another_store_are_left_alone_and_told(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.kit.stage(bench.directory / "staging" / "store-0", 1, 10)
    bench.run(nothing, drain_on_stop=False)
    assert len(bench.staged()) == 1
    assert "they come from another store" in caplog.text


@pytest.mark.parametrize("store_id", ["../../escape", "..", "a/b", "ü id"])
def test_a_store_id_never_leaves_the_staging_directory(bench: Bench, store_id: str) -> None:
    bench.log = bench.kit.MemoryLog(store_id=store_id, last=3)

    async def work(sink: SparkSink) -> None:
        await bench.kit.until(lambda: sink.health().staged == 3)

    bench.run(work, spark_conf={"fake.mute": "1"}, stop_timeout=0.3)
    (directory,) = (bench.directory / "staging").iterdir()
    assert len(list(directory.iterdir())) == 1


def test_the_default_table_is_in_the_data_directory(bench: Bench) -> None:
    async def work(sink: SparkSink) -> None:
        bench.log.grow(1)
        await bench.until_mark(sink, 1)

    bench.run(work, table="")
    table = bench.directory / "lake" / "acknowledged"
    assert json.loads(table.read_text())["rows"] == [1]


@pytest.mark.long
def test_the_sink_goes_on_behind_damaged_rows_whatever_dies(bench: Bench) -> None:
    bench.log.damaged = {4, 5, 27, 40}

    async def work(sink: SparkSink) -> None:
        for last in (10, 30, 40):
            bench.log.grow(last - bench.log.last)
            await bench.until_mark(sink, last)
            if sink.job_pid:
                os.killpg(sink.job_pid, signal.SIGKILL)
        await bench.kit.until(lambda: bench.log.released == 40)

    # Each commit, to either table, is the last thing that its job does.
    bench.run(work, spark_conf={"fake.die_after_commit": "1"})
    letters = json.loads(Path(f"{bench.table}_dlq").read_text())
    assert letters["rows"] == [4, 5, 27, 40]
    assert all("wrong checksum" in reason for reason in letters["reasons"])
    assert sorted(bench.rows() + letters["rows"]) == list(range(1, 41))
    assert bench.staged() == []


async def test_two_sinks_into_one_table_are_refused(bench: Bench, tmp_path: Path) -> None:
    first, context = bench.make(), SinkContext("other", "gw", tmp_path)
    options = SparkSinkOptions(table=str(bench.table), include=("a",))
    second = SparkSink(context, options, SparkEngine(context, options, job_command=FAKE_JOB))
    await first.start(bench.log)
    try:
        with pytest.raises(
            ConfigError, match=r"is a table \(or the dead-letter table\) of the sink 'lake' already"
        ):
            await second.start(bench.kit.MemoryLog())
        await second.stop()
        with pytest.raises(ConfigError):
            await second.start(bench.kit.MemoryLog())
    finally:
        await first.stop()
    await second.start(bench.kit.MemoryLog())
    await second.stop()
