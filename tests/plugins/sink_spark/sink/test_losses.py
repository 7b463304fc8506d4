"""What a sink does about what is lost, damaged or late."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from sink_bench import Bench

from tidegate.spi import SinkLag, StoreIOError
from tidegate_sink_spark import _sink
from tidegate_sink_spark._sink import SparkSink
from tidegate_sink_spark.commits import lag


def test_all_local_state_may_be_lost(bench: Bench) -> None:
    async def work(sink: SparkSink) -> None:
        bench.log.grow(25)
        await bench.until_mark(sink, 25)

    bench.run(work)
    bench.log.released = 0  # the store, too, is from before the release
    bench.log.grow(10)
    shutil.rmtree(bench.directory)
    bench.directory.mkdir()

    async def again(sink: SparkSink) -> None:
        await bench.until_mark(sink, 35)

    bench.run(again)
    assert bench.rows() == list(range(1, 36))


def check_is_staged_again(bench: Bench, tmp_path: Path, harm: Callable[[list[Path]], None]) -> None:
    """Files that wait for a table that refuses them are harmed, and each row is in it all the same."""
    barrier = tmp_path / "table-refuses"
    barrier.touch()

    async def work(sink: SparkSink) -> None:
        bench.log.grow(40)
        await bench.kit.until(lambda: len(bench.staged()) == 4)
        (first,) = (bench.directory / "staging").iterdir()
        harm([first / name for name in bench.staged()])
        barrier.unlink()
        await bench.until_mark(sink, 40)

    bench.run(work, spark_conf={"fake.fail_while_exists": str(barrier)})
    assert bench.rows() == list(range(1, 41))


def test_a_staged_file_that_vanishes_is_staged_again(bench: Bench, tmp_path: Path) -> None:
    check_is_staged_again(bench, tmp_path, lambda staged: staged[1].unlink())


def test_a_staged_file_that_is_damaged_is_staged_again(bench: Bench, tmp_path: Path) -> None:
    def damage(staged: list[Path]) -> None:
        staged[2].write_bytes(b"PAR1 no more")

    check_is_staged_again(bench, tmp_path, damage)


def test_a_table_that_is_ahead_of_the_store_stops_the_sink(bench: Bench) -> None:
    """The store was restored from an older copy: its next rows have numbers the table knows."""

    async def work(sink: SparkSink) -> None:
        bench.log.grow(30)
        await bench.until_mark(sink, 30)

    bench.run(work)
    (staging,) = (bench.directory / "staging").iterdir()
    bench.kit.stage(staging, 21, 30)  # what was staged is from before, too
    bench.log = bench.kit.MemoryLog(last=12)

    async def restored(sink: SparkSink) -> None:
        await bench.kit.until(lambda: "restored from an older copy" in sink.health().problem)
        bench.log.grow(3)
        await bench.kit.until(lambda: not sink.health().running)

    bench.run(restored)
    assert bench.log.releases == []
    assert bench.rows() == list(range(1, 31))


def test_a_new_table_goes_on_behind_what_the_old_one_got(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.log = bench.kit.MemoryLog(last=30, released=20)

    async def work(sink: SparkSink) -> None:
        await bench.until_mark(sink, 30)

    bench.run(work)
    assert bench.rows() == list(range(21, 31))
    assert "not the one that the released rows went to" in caplog.text


def test_a_release_that_fails_is_told_and_comes_with_the_next_mark(bench: Bench) -> None:
    release = bench.log.release
    failures = [StoreIOError("bad disk")]

    async def fails_once(through: int) -> None:
        if failures:
            raise failures.pop()
        await release(through)

    bench.log.release = fails_once

    async def work(sink: SparkSink) -> None:
        bench.log.grow(10)
        await bench.kit.until(lambda: "bad disk" in sink.health().problem)
        bench.log.grow(10)
        await bench.kit.until(lambda: bench.log.released == 20)
        assert sink.health().problem == ""

    bench.run(work)


def test_a_job_that_hangs_is_replaced(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_sink, "SILENCE_MAX", 0.2)

    async def work(sink: SparkSink) -> None:
        await bench.kit.until(lambda: sink.job_pid)
        first = sink.job_pid
        await bench.kit.until(lambda: "has said nothing" in sink.health().problem)
        await bench.kit.until(lambda: sink.job_pid not in (0, first))

    bench.run(work, spark_conf={"fake.mute": "1"}, drain_on_stop=False)


def test_a_job_that_waits_for_discarded_rows_is_replaced(bench: Bench, tmp_path: Path) -> None:
    """`acknowledged_overflow = "discard_oldest"` while the table cannot be written."""
    barrier = tmp_path / "table-refuses"
    barrier.touch()

    async def work(sink: SparkSink) -> None:
        bench.log.grow(10)
        await bench.kit.until(lambda: "told to fail" in sink.health().problem)
        bench.log.released = 15
        bench.log.grow(15)
        (directory,) = (bench.directory / "staging").iterdir()
        for path in directory.iterdir():
            path.unlink()
        barrier.unlink()
        await bench.until_mark(sink, 25)

    bench.run(work, spark_conf={"fake.fail_while_exists": str(barrier)})
    assert bench.rows()[-10:] == list(range(16, 26))


def test_rows_that_do_not_reach_the_table_in_time_are_told(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    barrier = tmp_path / "table-refuses"
    barrier.touch()
    monkeypatch.setattr(lag, "CALM_MIN", 0.01)
    told: list[SinkLag] = []
    bench.announce = told.append

    async def work(sink: SparkSink) -> None:
        bench.log.grow(20)
        await bench.kit.until(lambda: told)
        await bench.kit.until(lambda: "told to fail" in sink.health().problem)
        barrier.unlink()
        await bench.until_mark(sink, 20)
        await bench.kit.until(lambda: len(told) == 2)

    bench.run(work, lag_goal=1.0, spark_conf={"fake.fail_while_exists": str(barrier)})
    assert [(each.name, each.goal_seconds, each.is_over) for each in told] == [
        ("lake", 1.0, False),
        ("lake", 1.0, True),
    ]
    assert told[0].lag_seconds > 1.0
