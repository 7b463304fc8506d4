"""The thread of upkeep: it does what it is told, tells what failed, and stops nothing."""

import queue
from collections.abc import Callable

import pytest

from tidegate_sink_spark._protocol import Kept
from tidegate_sink_spark.job.driver import CommitError
from tidegate_sink_spark.upkeep.worker import ATTEMPTS_MAX, TableUpkeep, Turn, Worker


class FakeUpkeep:
    """Fails as it is told."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.vacuums: list[bool] = []

    def turn(self, *, vacuums: bool) -> Turn:
        self.vacuums.append(vacuums)
        if self.failures:
            raise self.failures.pop(0)
        return Turn(removed=5, added=1)


def worker(**tables: FakeUpkeep) -> tuple[Worker, "queue.SimpleQueue[Kept]"]:
    reports: queue.SimpleQueue[Kept] = queue.SimpleQueue()

    def opens(upkeep: FakeUpkeep) -> Callable[[], TableUpkeep]:
        return lambda: upkeep

    made = {name: opens(upkeep) for name, upkeep in tables.items()}
    return Worker(made, reports.put, retry_delay=0.0), reports


def test_all_tables_are_kept_up_and_counted_together() -> None:
    a, b = FakeUpkeep(), FakeUpkeep()
    work, reports = worker(a=a, b=b)
    work.ask(True)
    work.ask(False)
    first, second = reports.get(timeout=60), reports.get(timeout=60)
    work.stop()
    assert (first.files_removed, first.files_added, first.problem) == (10, 2, "")
    assert second.problem == ""
    assert a.vacuums == b.vacuums == [True, False]


def test_one_table_that_fails_is_told_in_one_line_and_the_others_are_kept_up(
    capfd: pytest.CaptureFixture[str],
) -> None:
    work, _ = worker(a=FakeUpkeep(OSError("no room\n at java.lang")), b=FakeUpkeep())
    kept = work.turn(vacuums=False)
    assert kept.files_removed == 5
    assert kept.problem == (
        "the table a cannot be compacted now, and gets rows all the same: no room"
    )
    assert "Traceback" in capfd.readouterr().err  # the job's own log has all of it


def test_a_lost_race_is_run_again(capfd: pytest.CaptureFixture[str]) -> None:
    lost = CommitError("OPTIMIZE failed: io.delta.exceptions.ConcurrentDeleteReadException: gone")
    work, _ = worker(a=FakeUpkeep(*[lost] * (ATTEMPTS_MAX - 1)))
    assert work.turn(vacuums=False).problem == ""
    work, _ = worker(a=FakeUpkeep(*[lost] * ATTEMPTS_MAX))
    assert "ConcurrentDeleteRead" in work.turn(vacuums=False).problem
    capfd.readouterr()


def test_a_table_that_cannot_be_opened_is_opened_again_in_the_next_turn(
    capfd: pytest.CaptureFixture[str],
) -> None:
    problems: list[Exception] = [CommitError("it is away")]

    def opened() -> TableUpkeep:
        if problems:
            raise problems.pop()
        return FakeUpkeep()

    work = Worker({"a": opened}, lambda _: None)
    assert "it is away" in work.turn(vacuums=False).problem
    assert work.turn(vacuums=False).files_removed == 5
    capfd.readouterr()


def test_after_the_end_nothing_is_reported() -> None:
    upkeep = FakeUpkeep()
    work, reports = worker(a=upkeep)
    work.stop()
    work.ask(False)
    with pytest.raises(queue.Empty):
        reports.get(timeout=0.05)
    assert upkeep.vacuums == []
