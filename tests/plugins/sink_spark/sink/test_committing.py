"""The sink as a whole, with a job that is real but for Spark (fake_job.py): what is staged, what is
committed, what is released, in which order, and what happens when something on the way dies.
"""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from sink_bench import FAKE_JOB, Bench, nothing

from tidegate.spi import ConfigError, SinkContext
from tidegate_sink_spark._options import SparkSinkOptions
from tidegate_sink_spark._sink import SparkSink
from tidegate_sink_spark._spark_engine import SparkEngine


def test_every_acknowledged_row_reaches_the_table_and_is_then_released(bench: Bench) -> None:
    async def work(sink: SparkSink) -> None:
        bench.log.grow(35)
        await bench.until_mark(sink, 35)
        health = sink.health()
        assert (health.running, health.staged, health.problem) == (True, 35, "")
        bench.log.grow(7)
        await bench.until_mark(sink, 42)
        await bench.kit.until(lambda: bench.log.released == 42)
        commit = sink.health().last_commit
        assert commit is not None
        assert (commit.through, commit.through - commit.after) == (42, commit.rows)

    bench.run(work)
    assert bench.rows() == list(range(1, 43))
    assert bench.staged() == []


def test_nothing_is_deleted_or_released_before_the_table_has_it(
    bench: Bench, tmp_path: Path
) -> None:
    barrier = tmp_path / "table-refuses"
    barrier.touch()

    async def work(sink: SparkSink) -> None:
        bench.log.grow(20)
        await bench.kit.until(lambda: "told to fail" in sink.health().problem)
        assert len(bench.staged()) == 2
        assert bench.log.releases == []
        assert sink.health().mark == 0
        barrier.unlink()
        await bench.until_mark(sink, 20)
        await bench.kit.until(lambda: bench.log.releases == [20])
        assert sink.health().problem == ""

    bench.run(work, spark_conf={"fake.fail_while_exists": str(barrier)})
    assert bench.staged() == []


@pytest.mark.long
def test_a_failure_stays_the_problem_until_a_commit_succeeds(bench: Bench, tmp_path: Path) -> None:
    """After each failure the job reads the table's mark again, which mends nothing."""
    barrier = tmp_path / "table-refuses"
    barrier.touch()
    seen: list[tuple[str, bool]] = []

    async def work(sink: SparkSink) -> None:
        handle = sink._handle

        async def watched(report: object) -> None:
            await handle(report)
            seen.append((type(report).__name__, "told to fail" in sink.health().problem))

        sink._handle = watched
        bench.log.grow(20)
        await bench.kit.until(lambda: len([name for name, _ in seen if name == "Failed"]) == 3)
        barrier.unlink()
        await bench.until_mark(sink, 20)
        assert sink.health().problem == ""
        assert len(sink.health().problems) == 1

    bench.run(work, spark_conf={"fake.fail_while_exists": str(barrier)})
    first = seen.index(("Failed", True))
    assert seen[first + 1 : first + 5] == [("Mark", True), ("Failed", True)] * 2


def test_a_file_goes_before_its_rows_are_released(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged_at_release: list[list[str]] = []
    release = bench.log.release

    async def traced(through: int) -> None:
        staged_at_release.append(bench.staged())
        await release(through)

    bench.log.release = traced

    async def work(sink: SparkSink) -> None:
        bench.log.grow(10)
        await bench.kit.until(lambda: bench.log.released == 10)

    bench.run(work)
    assert staged_at_release == [[]]


@pytest.mark.long
def test_a_job_that_is_killed_is_started_again_and_nothing_is_lost_or_doubled(
    bench: Bench,
) -> None:
    async def work(sink: SparkSink) -> None:
        for _ in range(8):
            await bench.kit.until(lambda: sink.job_pid)
            bench.log.grow(13)
            before = sink.health().mark
            await bench.kit.kill_job(sink, lambda before=before: sink.health().mark > before)
        await bench.until_mark(sink, 8 * 13)

    bench.run(work)
    assert bench.rows() == list(range(1, 8 * 13 + 1))


@pytest.mark.long
def test_a_job_that_dies_between_commit_and_report_does_not_commit_twice(bench: Bench) -> None:
    async def work(sink: SparkSink) -> None:
        for expected in (10, 20, 30):
            bench.log.grow(10)
            await bench.until_mark(sink, expected)

    bench.run(work, spark_conf={"fake.die_after_commit": "1"})
    assert bench.rows() == list(range(1, 31))


def test_a_stop_drains_what_is_acknowledged(bench: Bench) -> None:
    async def work(sink: SparkSink) -> None:
        await bench.kit.until(lambda: sink.job_pid)
        bench.log.grow(25)

    bench.run(work, commit_interval=3600.0, segment_interval=3600.0)
    assert bench.rows() == list(range(1, 26))
    assert bench.log.released == 25


def test_without_draining_the_rest_comes_with_the_next_start(bench: Bench) -> None:
    bench.log.grow(25)
    bench.run(nothing, drain_on_stop=False)

    async def work(sink: SparkSink) -> None:
        await bench.until_mark(sink, 25)

    bench.run(work)
    assert bench.rows() == list(range(1, 26))


@pytest.mark.long
def test_a_job_that_begins_while_the_last_rows_are_staged_commits_them(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = bench.log.read

    async def slowly(*args: Any) -> Any:
        if bench.log.last > 10:
            await asyncio.sleep(1.5)  # longer than a job takes to begin and to look round
        return await read(*args)

    async def work(sink: SparkSink) -> None:
        bench.log.grow(10)
        await bench.until_mark(sink, 10)
        os.killpg(sink.job_pid, signal.SIGKILL)
        bench.log.grow(5)

    monkeypatch.setattr(bench.log, "read", slowly)
    bench.run(work)
    assert bench.rows() == list(range(1, 16))
    assert bench.log.released == 15


async def test_a_stop_takes_no_longer_than_its_limit(bench: Bench) -> None:
    sink = bench.make(spark_conf={"fake.mute": "1"}, stop_timeout=0.3)
    bench.log.grow(5)
    await sink.start(bench.log)
    await bench.kit.until(lambda: sink.job_pid and sink.health().staged == 5)
    async with asyncio.timeout(60):
        await sink.stop()
        await sink.stop()
    assert sink.job_pid == 0
    assert not sink.health().running
    assert bench.log.released == 0
    assert len(bench.staged()) == 1


async def test_a_sink_that_was_never_started_can_be_stopped(bench: Bench) -> None:
    sink = bench.make()
    await sink.stop()
    assert not sink.health().running


def test_a_sink_that_takes_some_destinations_releases_all(bench: Bench) -> None:
    """And one that was killed between goes on, from whatever the log has released."""

    async def work(sink: SparkSink) -> None:
        bench.log.grow(100)
        await bench.kit.until(lambda: bench.log.released == 100)
        assert sink.health().problem == ""

    async def again(sink: SparkSink) -> None:
        await bench.kit.until(lambda: sink.job_pid)
        bench.log.grow(20)
        await bench.kit.until(lambda: bench.log.released == 120)
        os.kill(sink.job_pid, signal.SIGKILL)
        bench.log.grow(20)
        await bench.kit.until(lambda: bench.log.released == 140)

    bench.run(work, include=("orders.1",))
    bench.log._grown = asyncio.Event()  # of another loop
    bench.run(again, include=("orders.1",))
    assert bench.rows() == list(range(1, 141, 3))
    assert bench.staged() == []


def test_a_sink_that_takes_nothing_for_long_lets_the_log_go(bench: Bench) -> None:
    async def work(sink: SparkSink) -> None:
        bench.log.grow(500)
        await bench.kit.until(lambda: bench.log.released == 500)

    sink = bench.run(work, include=("none",))
    assert sink.health().problem == ""
    assert bench.rows() == []


@pytest.mark.parametrize("suffix", ["_dlq", "_link", ""])
@pytest.mark.parametrize("is_first", [True, False])
async def test_no_sink_has_a_table_that_is_anothers_dead_letter_table_or_a_link_to_its_table(
    bench: Bench, tmp_path: Path, suffix: str, is_first: bool
) -> None:
    """Both marks would be the same property of the same table, and each sink leave out the other's rows."""
    bench.table.parent.mkdir()
    Path(f"{bench.table}_link").symlink_to(bench.table)
    context = SinkContext("other", "gw", tmp_path)
    options = SparkSinkOptions(table=f"{bench.table}{suffix}", jars=str(bench.jar))
    other = SparkSink(context, options, SparkEngine(context, options, job_command=FAKE_JOB))
    sinks = [other, bench.make()] if is_first else [bench.make(), other]
    await sinks[0].start(bench.log)
    try:
        with pytest.raises(ConfigError, match=r"of the sink '(lake|other)' already") as caught:
            await sinks[1].start(bench.log)
        assert caught.value.key == "table"
    finally:
        await sinks[0].stop()
    await sinks[1].start(bench.log)
    await sinks[1].stop()
