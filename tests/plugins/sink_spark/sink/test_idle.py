"""A sink that has nothing to do: its job is silent, is let go, and comes back."""

import asyncio
import json
import os
import signal

import pytest
from sink_bench import Bench

from tidegate.spi import SinkState
from tidegate_sink_spark import _sink
from tidegate_sink_spark._sink import SparkSink


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
        reads = -1
        while bench.log.reads != reads:  # it still finds that there is nothing more
            reads = bench.log.reads
            await asyncio.sleep(0.2)
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
