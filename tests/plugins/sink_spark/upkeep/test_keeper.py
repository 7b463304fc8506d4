"""What tells the job to keep its tables up, turn by turn, without a clock."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tidegate_sink_spark._protocol import Command, Kept
from tidegate_sink_spark.upkeep.keeper import TURN_MAX, Keeper
from tidegate_sink_spark.upkeep.schedule import Schedule


class FakeJob:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[Command] = []

    def send(self, command: Command) -> None:
        self.told.append(command)


class Bench:
    """A keeper that is looked at by hand; its interval is 600 s."""

    def __init__(self) -> None:
        self.now = asyncio.get_running_loop().time()
        self.job: Any = FakeJob()
        self.problems: list[str] = []
        self.changes = 0
        self.keeper = Keeper(
            Schedule(600.0, now=self.now, chance=lambda: 0.5),
            on_change=self._changed,
            on_problem=self.problems.append,
            wall_us=lambda: 7,
        )

    def _changed(self) -> None:
        self.changes += 1

    def turn(self, after: float) -> float | None:
        return self.keeper.turn(self.now + after)


def run(test: Callable[[Bench], None]) -> None:
    async def main() -> None:
        bench = Bench()
        test(bench)
        bench.keeper.close()

    asyncio.run(main())


def test_a_table_that_changed_is_kept_up_when_it_is_due() -> None:
    def test(bench: Bench) -> None:
        bench.keeper.ready(bench.job)
        assert bench.turn(700.0) is None
        bench.keeper.committed()
        assert bench.turn(100.0) == pytest.approx(500.0)
        assert bench.turn(600.0) == TURN_MAX
        assert bench.job.told == [Command.COMPACT_AND_VACUUM]
        assert bench.keeper.is_wanted
        bench.keeper.kept(Kept(2.0, 10, 1))
        assert not bench.keeper.is_wanted
        assert bench.changes == 1
        last = bench.keeper.last
        assert last is not None
        assert (last.number, last.at, last.seconds) == (1, 7, 2.0)
        assert (last.files_removed, last.files_added, last.problem) == (10, 1, "")
        bench.keeper.committed()
        bench.turn(1_200.0)
        assert bench.job.told[1:] == [Command.COMPACT]

    run(test)


def test_what_is_due_does_not_start_a_job_that_sleeps() -> None:
    def test(bench: Bench) -> None:
        bench.keeper.ready(bench.job)
        bench.keeper.committed()
        bench.keeper.gone()
        assert bench.turn(10_000.0) is None
        assert not bench.keeper.is_wanted
        another: Any = FakeJob()
        bench.keeper.ready(another)
        bench.turn(10_000.0)
        assert another.told == [Command.COMPACT_AND_VACUUM]
        assert bench.job.told == []

    run(test)


def test_who_asks_has_a_job_started_and_waits_for_no_interval() -> None:
    def test(bench: Bench) -> None:
        assert bench.keeper.ask() == 1
        assert bench.keeper.is_wanted
        assert bench.changes == 1
        bench.keeper.ready(bench.job)
        assert bench.job.told == [Command.COMPACT_AND_VACUUM]
        assert bench.keeper.ask() == 2  # the one that is under way may have passed what is meant
        bench.keeper.kept(Kept())
        assert bench.job.told == [Command.COMPACT_AND_VACUUM] * 2

    run(test)


def test_a_turn_that_fails_is_told_once_with_a_remedy_and_tried_again() -> None:
    def test(bench: Bench) -> None:
        bench.keeper.ready(bench.job)
        bench.keeper.committed()
        bench.turn(600.0)
        bench.keeper.kept(Kept(problem="No space left on device"))
        (problem,) = bench.problems
        assert "free some space where the table is" in problem
        assert bench.keeper.last is not None
        assert bench.keeper.last.problem == problem
        bench.turn(1_199.0)
        assert len(bench.job.told) == 1
        bench.turn(1_200.0)
        assert bench.job.told == [Command.COMPACT_AND_VACUUM] * 2

    run(test)


def test_a_job_that_ends_in_a_turn_leaves_it_to_the_next_one() -> None:
    def test(bench: Bench) -> None:
        bench.keeper.ask()
        bench.keeper.ready(bench.job)
        bench.keeper.gone()
        assert bench.keeper.last is not None
        assert "the job ended" in bench.keeper.last.problem
        bench.keeper.kept(Kept())  # a report that was late
        assert bench.keeper.last.number == 1

    run(test)


def test_a_turn_that_nobody_ends_is_given_up() -> None:
    def test(bench: Bench) -> None:
        bench.keeper.ask()
        bench.keeper.ready(bench.job)
        assert bench.turn(TURN_MAX + 1.0) is None
        assert bench.keeper.last is not None
        assert "has not ended" in bench.keeper.last.problem
        assert not bench.keeper.is_wanted

    run(test)


def test_after_the_end_nobody_is_told() -> None:
    def test(bench: Bench) -> None:
        bench.keeper.ready(bench.job)
        bench.keeper.committed()
        bench.keeper.close()
        assert bench.turn(10_000.0) is None
        assert bench.job.told == []

    run(test)
