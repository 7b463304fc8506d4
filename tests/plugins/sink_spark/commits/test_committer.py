"""What tells the job to commit and to sleep, turn by turn, without a clock."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tidegate_sink_spark._protocol import Command
from tidegate_sink_spark.commits.committer import SEAL_PATIENCE, Committer
from tidegate_sink_spark.commits.lag import LagWatch
from tidegate_sink_spark.commits.pace import Pace
from tidegate_sink_spark.staging.storage import Waiting


class FakeStaging:
    """What waits, as a test says it."""

    def __init__(self) -> None:
        self.waiting = Waiting()
        self.wanted: list[float | None] = []
        self.sealed_at = float("inf")

    def want(self, at: float | None) -> None:
        self.wanted.append(at)

    def is_sealed_since(self, at: float) -> bool:
        return self.sealed_at >= at


class FakeJob:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[Command] = []

    def send(self, command: Command) -> None:
        self.told.append(command)


class Bench:
    """A committer whose job is ready, and which is looked at by hand."""

    def __init__(self, *, idle: float = 0.0, lag_goal: float = 0.0) -> None:
        self.staging, self.job = FakeStaging(), FakeJob()
        self.late: list[str] = []
        staging: Any = self.staging
        self.committer = Committer(
            staging,
            Pace(interval=5.0, rows=1000, size_bytes=1000, lag_goal=lag_goal),
            LagWatch("lake", lag_goal, lambda lag: self.late.append(lag.cause)),
            idle=idle,
            cause=lambda: "",
            is_kept=lambda: self.is_kept,
        )
        self.is_kept = False
        self.now = 0.0

    def ready(self, *, moved: bool) -> None:
        job: Any = self.job
        self.committer.ready(job, moved=moved)

    def turn(self, after: float) -> float | None:
        """One look so many seconds after the first one."""
        return self.committer._turn(self.now + after)


def run(test: Callable[[Bench], None], **options: float) -> Bench:
    bench = Bench(**options)

    async def main() -> None:
        bench.now = asyncio.get_running_loop().time()
        test(bench)

    asyncio.run(main())
    return bench


def test_nothing_to_do_wakes_nobody_up() -> None:
    def test(bench: Bench) -> None:
        bench.ready(moved=True)
        assert bench.turn(0.0) is None
        assert bench.turn(1e6) is None

    assert run(test).job.told == []


def test_a_staged_file_is_committed_at_once_and_the_next_after_the_interval() -> None:
    def test(bench: Bench) -> None:
        bench.ready(moved=False)
        bench.staging.waiting = Waiting(bench.now, 1, 10, 10)
        assert bench.turn(0.0) is None
        assert bench.job.told == [Command.COMMIT]
        assert bench.turn(1.0) is None  # it is busy
        assert bench.committer.is_busy
        bench.ready(moved=True)
        bench.staging.waiting = Waiting(bench.now + 1, 1, 10, 10)
        left = bench.turn(1.5)
        assert left == pytest.approx(3.5)
        assert bench.staging.wanted[-1] == bench.now + 5.0
        assert bench.job.told == [Command.COMMIT]
        bench.turn(5.0)
        assert bench.job.told == [Command.COMMIT] * 2

    run(test)


def test_a_commit_waits_for_the_open_segment_but_not_for_ever() -> None:
    def test(bench: Bench) -> None:
        bench.committer._pace.begin(bench.now)
        bench.ready(moved=False)
        bench.ready(moved=True)
        bench.staging.waiting = Waiting(bench.now, 1, 10, 10)
        bench.staging.sealed_at = bench.now + 4.0
        assert bench.turn(5.0) == pytest.approx(SEAL_PATIENCE)
        assert bench.job.told == []
        bench.turn(5.0 + SEAL_PATIENCE)
        assert bench.job.told == [Command.COMMIT]

    run(test)


def test_rows_that_are_not_staged_yet_are_waited_for_without_a_timer() -> None:
    def test(bench: Bench) -> None:
        bench.ready(moved=False)
        bench.staging.waiting = Waiting(bench.now, 0, 10, 0)
        assert bench.turn(0.0) is None
        assert bench.staging.wanted == [float("-inf")]

    assert run(test).job.told == []


def test_a_job_is_let_go_when_nothing_came_for_long_and_comes_back_with_a_row() -> None:
    def test(bench: Bench) -> None:
        bench.ready(moved=True)
        assert bench.turn(0.0) == pytest.approx(60.0, abs=1.0)
        bench.staging.waiting = Waiting(bench.now + 50, 0, 1, 0)
        bench.turn(50.0)
        bench.staging.waiting = Waiting()
        assert bench.turn(70.0) == pytest.approx(40.0)  # since the last row
        assert not bench.committer.is_asleep
        bench.turn(110.0)
        assert bench.job.told == [Command.STOP]
        assert bench.committer.is_asleep
        bench.committer.gone()
        assert bench.turn(111.0) is None
        assert not bench.committer._work.is_set()
        bench.staging.waiting = Waiting(bench.now + 111, 0, 1, 0)
        bench.turn(111.0)
        assert bench.committer._work.is_set()

    run(test, idle=60.0)


def test_a_job_that_has_upkeep_to_do_is_not_let_go_and_one_that_sleeps_is_started() -> None:
    def test(bench: Bench) -> None:
        bench.ready(moved=True)
        bench.is_kept = True
        bench.turn(100.0)
        bench.is_kept = False
        assert bench.turn(130.0) == pytest.approx(30.0)  # since it was done
        bench.turn(160.0)
        assert bench.job.told == [Command.STOP]
        bench.committer.gone()
        bench.turn(161.0)
        assert not bench.committer._work.is_set()
        bench.is_kept = True
        bench.turn(162.0)
        assert bench.committer._work.is_set()

    run(test, idle=60.0)


def test_a_lag_says_what_keeps_the_rows() -> None:
    def test(bench: Bench) -> None:
        bench.staging.waiting = Waiting(bench.now, 3, 70, 0)
        bench.turn(1.5)
        assert bench.late == ["the job starts"]
        bench.ready(moved=False)
        bench.staging.waiting = Waiting()
        bench.turn(100.0)
        bench.staging.waiting = Waiting(bench.now + 100, 3, 70, 0)
        bench.turn(103.0)
        assert bench.late == ["the job starts", "", "70 rows wait, and a commit takes 0.0 s"]

    run(test, lag_goal=1.0)
