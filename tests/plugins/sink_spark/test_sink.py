"""The sink as a whole, with a job that is real but for Spark (fake_job.py): what is staged, what is
committed, what is released, in which order, and what happens when something on the way dies.
"""

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import fake_job
import pytest

from tidegate.spi import ConfigError, SinkContext, SinkLag, SinkState, StoreIOError
from tidegate.spi.sink import unheard
from tidegate_sink_spark import _sink
from tidegate_sink_spark._options import SparkSinkOptions
from tidegate_sink_spark._sink import SparkSink
from tidegate_sink_spark._spark_engine import SparkEngine
from tidegate_sink_spark.commits import lag
from tidegate_sink_spark.java import runtime
from tidegate_sink_spark.java.runtime import JavaRuntime

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


@pytest.fixture
def bench(tmp_path: Path, kit: Any, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(runtime, "find_java", lambda *_: JavaRuntime(Path("/no/jdk"), 17, "a test"))
    return Bench(tmp_path, kit)


async def nothing(sink: SparkSink) -> None:
    """Start and stop only."""


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


def test_a_staged_file_that_vanishes_is_staged_again(bench: Bench, tmp_path: Path) -> None:
    barrier = tmp_path / "table-refuses"
    barrier.touch()

    async def work(sink: SparkSink) -> None:
        bench.log.grow(40)
        await bench.kit.until(lambda: len(bench.staged()) == 4)
        (first,) = (bench.directory / "staging").iterdir()
        (first / bench.staged()[1]).unlink()
        barrier.unlink()
        await bench.until_mark(sink, 40)

    bench.run(work, spark_conf={"fake.fail_while_exists": str(barrier)})
    assert bench.rows() == list(range(1, 41))


def test_a_staged_file_that_is_damaged_is_staged_again(bench: Bench, tmp_path: Path) -> None:
    barrier = tmp_path / "table-refuses"
    barrier.touch()

    async def work(sink: SparkSink) -> None:
        bench.log.grow(40)
        await bench.kit.until(lambda: len(bench.staged()) == 4)
        (first,) = (bench.directory / "staging").iterdir()
        (first / bench.staged()[2]).write_bytes(b"PAR1 no more")
        barrier.unlink()
        await bench.until_mark(sink, 40)

    bench.run(work, spark_conf={"fake.fail_while_exists": str(barrier)})
    assert bench.rows() == list(range(1, 41))


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


def test_an_idle_job_may_be_silent(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    def count(is_busy: bool) -> float:
        nonlocal looks
        looks += not is_busy
        return 3600.0 if is_busy else 0.01

    monkeypatch.setattr(_sink, "patience", count)

    async def work(sink: SparkSink) -> None:
        bench.log.grow(10)
        await bench.until_mark(sink, 10)
        pid = sink.job_pid
        looks_before = looks
        await bench.kit.until(lambda: looks > looks_before + 5)
        bench.log.grow(10)
        await bench.until_mark(sink, 20)
        assert sink.job_pid == pid
        assert sink.health().problem == ""

    bench.run(work)


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


def test_a_row_that_comes_after_a_pause_does_not_wait_for_the_interval(bench: Bench) -> None:
    async def work(sink: SparkSink) -> None:
        bench.log.grow(10)
        await bench.until_mark(sink, 10)

    bench.run(work, commit_interval=3600.0, segment_interval=3600.0)


def test_an_idle_sink_makes_no_commits(bench: Bench) -> None:
    async def work(sink: SparkSink) -> None:
        bench.log.grow(10)
        await bench.until_mark(sink, 10)
        version = json.loads(bench.table.read_text())["version"]
        reads = bench.log.reads
        await asyncio.sleep(0.5)  # five intervals
        assert json.loads(bench.table.read_text())["version"] == version
        assert bench.log.reads <= reads + 1

    bench.run(work)


def test_an_idle_job_is_let_go_and_comes_back_with_the_next_row(bench: Bench) -> None:
    async def work(sink: SparkSink) -> None:
        pids: set[int] = set()
        for turn in range(1, 4):
            bench.log.grow(7)
            await bench.kit.until(lambda: sink.job_pid)
            pids.add(sink.job_pid)
            await bench.until_mark(sink, 7 * turn)
            await bench.kit.until(lambda: sink.health().state is SinkState.ASLEEP)
            await bench.kit.until(lambda: not sink.job_pid)
            assert (sink.health().running, sink.health().problem) == (True, "")
        assert len(pids) == 3

    bench.run(work, driver_idle=0.05)
    assert bench.rows() == list(range(1, 22))


def test_a_stop_wakes_a_sleeping_job_for_the_last_rows(bench: Bench) -> None:
    async def work(sink: SparkSink) -> None:
        await bench.kit.until(lambda: sink.health().state is SinkState.ASLEEP)
        await bench.kit.until(lambda: not sink.job_pid)
        bench.log.grow(25)

    bench.run(work, driver_idle=0.05, segment_interval=3600.0)
    assert bench.rows() == list(range(1, 26))


@pytest.mark.parametrize("is_staged", [False, True])
def test_a_gateway_that_ends_while_its_job_sleeps_loses_and_doubles_nothing(
    bench: Bench, is_staged: bool
) -> None:
    async def ends() -> None:
        sink = bench.make(driver_idle=0.05, drain_on_stop=False)
        await sink.start(bench.log)
        bench.log.grow(10)
        await bench.until_mark(sink, 10)
        await bench.kit.until(lambda: sink.health().state is SinkState.ASLEEP)
        bench.log.grow(10)
        if is_staged:
            await bench.kit.until(lambda: sink.health().staged == 20)
        await sink.stop()  # what is staged stays, as after a kill

    asyncio.run(ends())
    bench.log._grown = asyncio.Event()

    async def work(sink: SparkSink) -> None:
        await bench.until_mark(sink, 20)
        await bench.kit.until(lambda: sink.health().state is SinkState.ASLEEP)
        bench.log.grow(5)
        await bench.until_mark(sink, 25)

    bench.run(work, driver_idle=0.05)
    assert bench.rows() == list(range(1, 26))


def test_a_job_that_is_killed_when_it_was_let_go_is_a_failure_like_any_other(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(sink: SparkSink) -> None:
        bench.log.grow(10)
        await bench.until_mark(sink, 10)
        assert sink._committer is not None
        sink._committer.is_asleep = True  # its STOP is on the way
        os.killpg(sink.job_pid, signal.SIGKILL)
        await bench.kit.until(lambda: "killed by SIGKILL" in sink.health().problem)
        bench.log.grow(10)
        await bench.until_mark(sink, 20)

    bench.run(work)
    assert bench.rows() == list(range(1, 21))


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
