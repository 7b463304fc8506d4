"""The job's loop over a table in memory."""

import json
import queue
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tidegate_sink_spark._protocol import (
    Command,
    Failed,
    Gap,
    Mark,
    Ready,
    Report,
    Stopped,
    Unreadable,
)
from tidegate_sink_spark.job import driver
from tidegate_sink_spark.job.dead import DeadLetterTable
from tidegate_sink_spark.job.driver import (
    Addition,
    CommitError,
    Driver,
    TableReplacedError,
    TableState,
)
from tidegate_sink_spark.staging.files import staged_name


class MemoryTable:
    """Rows and mark; can be told to fail, and to let another driver commit first."""

    def __init__(self, *, is_letters: bool = False) -> None:
        self.is_letters = is_letters  # then its mark counts rows
        self.rows: list[int] = []
        self.mark = 0
        self.version = 0
        self.failures: list[Exception] = []
        self.overtake_to = 0
        self.metadata: list[dict[str, Any]] = []

    def sequences(self, gateway_id: str, epoch: str, after: int) -> list[int]:
        assert (gateway_id, epoch) == ("gw", "store-1")
        return [row for row in self.rows if row > after]

    def state(self) -> TableState:
        return TableState(self.mark, self.version)

    def append(self, addition: Addition) -> None:
        if self.failures:
            raise self.failures.pop(0)
        if self.overtake_to:
            self.rows += range(self.mark + 1, self.overtake_to + 1)
            self.mark, self.overtake_to = self.overtake_to, 0
        addition.check_mark(self.mark)
        found: list[int] = []
        for path in addition.paths:
            found += pq.read_table(path, columns=["ack_seq"])["ack_seq"].to_pylist()
        assert addition.overlaps or not found or self.is_letters or min(found) > addition.after
        if addition.overlaps:
            found = [n for n in found if n > addition.after]
        assert addition.count == len(found)
        self.rows += found
        self.mark = addition.through
        self.version += 1
        self.metadata.append(json.loads(addition.metadata))


class Bench:
    """A driver with its table, directory and reports."""

    def __init__(self, directory: Path, *, floor: int = 0, **bounds: Any) -> None:
        self.table = MemoryTable()
        self.directory = directory
        self.reports: list[Report] = []
        self.letters: MemoryTable | None = None
        self.driver = Driver(
            self.table,
            DeadLetterTable(self._find, directory.parent, gateway_name="gw", store_id="store-1"),
            directory,
            gateway_name="gw",
            floor=floor,
            report=self.reports.append,
            **bounds,
        )

    def _find(self, creates: bool) -> MemoryTable | None:
        if creates:
            self.letters = self.letters or MemoryTable(is_letters=True)
        return self.letters

    def run(self) -> bool:
        """One round of everything that is staged, as if told to stop."""
        commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        commands.put(Command.STOP)
        return self.driver.run(commands)

    def marks(self) -> list[tuple[int, int, int]]:
        return [(r.mark, r.rows, r.files) for r in self.reports if isinstance(r, Mark)]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(driver, "FAILURE_DELAY", 0.0)
    return Bench(tmp_path)


def test_a_job_that_does_not_see_the_staged_files_says_so(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "elsewhere")
    with pytest.raises(CommitError, match="must see the gateway's directory"):
        bench.driver.commit_staged()


def test_the_mark_is_read_and_reported_before_anything_else(bench: Bench) -> None:
    bench.table.mark, bench.table.version = 41, 7
    assert bench.run()
    assert bench.reports == [Mark(41, 7), Ready(41), Stopped(41)]


def test_staged_files_become_one_commit(bench: Bench, kit: Any) -> None:
    for lo, hi in [(1, 10), (11, 20), (21, 25)]:
        kit.stage(bench.directory, lo, hi)
    assert bench.run()
    assert bench.marks() == [(0, 0, 0), (25, 25, 3)]
    assert bench.table.rows == list(range(1, 26))
    assert bench.table.metadata == [{"gateway": "gw", "lo": 1, "hi": 25, "n": 25, "files": 3}]


@pytest.mark.parametrize("is_seen_before", [True, False])
def test_an_older_table_in_the_place_takes_nothing_from_this_job(
    bench: Bench, kit: Any, *, is_seen_before: bool
) -> None:
    kit.stage(bench.directory, 1, 20)
    assert bench.run()
    bench.table.rows = list(range(1, 11))
    if is_seen_before:
        bench.table.mark = 10
    else:
        bench.table.overtake_to = 10
    kit.stage(bench.directory, 21, 30)
    with pytest.raises(TableReplacedError, match="went back from 20 to 10"):
        bench.run()
    assert bench.table.rows == list(range(1, 11))


def test_a_long_backlog_is_worked_off_in_steps(tmp_path: Path, kit: Any) -> None:
    bench = Bench(tmp_path, rows_max=20)
    for lo in range(1, 51, 10):
        kit.stage(bench.directory, lo, lo + 9)
    assert bench.run()
    assert bench.marks() == [(0, 0, 0), (20, 20, 2), (40, 20, 2), (50, 10, 1)]
    assert bench.table.rows == list(range(1, 51))


def test_redelivery_under_the_same_and_other_names_adds_nothing(bench: Bench, kit: Any) -> None:
    kit.stage(bench.directory, 1, 10)
    assert bench.run()
    kit.stage(bench.directory, 1, 10)
    kit.stage(bench.directory, 1, 4)
    kit.stage(bench.directory, 3, 9)
    assert bench.run()
    kit.stage(bench.directory, 6, 15)
    kit.stage(bench.directory, 12, 18)
    assert bench.run()
    assert bench.table.rows == list(range(1, 19))
    assert bench.table.mark == 18


def test_nothing_is_written_past_a_gap_until_it_is_filled(bench: Bench, kit: Any) -> None:
    kit.stage(bench.directory, 1, 10)
    kit.stage(bench.directory, 21, 30)
    assert bench.run()
    assert bench.table.rows == list(range(1, 11))
    assert Gap(11, 21) in bench.reports
    kit.stage(bench.directory, 11, 20)
    assert bench.run()
    assert bench.table.rows == list(range(1, 31))


def test_a_file_that_is_not_what_its_name_says_stops_the_job_there(bench: Bench, kit: Any) -> None:
    kit.stage(bench.directory, 1, 10)
    wrong = kit.stage(bench.directory, 11, 19)
    wrong.rename(
        wrong.with_name(driver.list_staged(bench.directory)[1].path.name.replace("19.", "20."))
    )
    kit.stage(bench.directory, 21, 30)
    assert bench.run()
    assert bench.table.mark == 10
    problems = [r for r in bench.reports if isinstance(r, Unreadable)]
    assert {p.problem for p in problems} == {"9 rows instead of 10"}


def test_another_driver_in_between_costs_a_second_look_and_no_row(bench: Bench, kit: Any) -> None:
    kit.stage(bench.directory, 1, 10)
    kit.stage(bench.directory, 11, 20)
    bench.table.overtake_to = 14
    assert bench.run()
    assert bench.table.rows == list(range(1, 21))
    assert not [r for r in bench.reports if isinstance(r, Failed)]


def test_a_file_deleted_meanwhile_is_no_failure(bench: Bench, kit: Any) -> None:
    kit.stage(bench.directory, 1, 10)
    bench.table.failures = [FileNotFoundError("gone")]
    assert bench.run()
    assert bench.table.mark == 10


def test_a_failed_commit_is_reported_and_tried_again(bench: Bench, kit: Any) -> None:
    kit.stage(bench.directory, 1, 10)
    bench.table.failures = [CommitError("disk full"), CommitError("disk full")]
    assert bench.run()
    assert [r for r in bench.reports if isinstance(r, Failed)] == [Failed("disk full")] * 2
    assert bench.table.rows == list(range(1, 11))


def test_the_job_gives_up_after_five_failures_in_a_row(bench: Bench, kit: Any) -> None:
    kit.stage(bench.directory, 1, 10)
    bench.table.failures = [CommitError(str(n)) for n in range(driver.FAILURES_MAX)]
    assert not bench.run()
    assert bench.table.rows == []


def test_a_commit_that_did_not_move_the_mark_is_an_error(
    bench: Bench, kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit.stage(bench.directory, 1, 10)
    monkeypatch.setattr(bench.table, "append", lambda *args, **kwargs: None)  # Delta's silent skip
    assert not bench.run()
    assert all(mark == 0 for mark, _, _ in bench.marks())
    assert "the table's mark is 0 after a commit through 10" in str(bench.reports)


def test_a_table_behind_the_floor_goes_on_behind_it(tmp_path: Path, kit: Any) -> None:
    bench = Bench(tmp_path, floor=10)
    kit.stage(tmp_path, 11, 20)
    assert bench.run()
    assert bench.table.rows == list(range(11, 21))


def test_files_that_appear_between_two_rounds_are_committed(
    bench: Bench, kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = iter([(1, 10), (11, 20), None])

    def wait(commands: object, due: float) -> Command:
        found = next(rounds)
        if found is None:
            return Command.STOP
        kit.stage(bench.directory, *found)
        return Command.COMMIT

    monkeypatch.setattr(bench.driver, "_wait", wait)
    assert bench.run()
    assert bench.marks() == [(0, 0, 0), (10, 10, 1), (20, 10, 1)]


def test_an_interval_without_a_command_is_a_round(tmp_path: Path) -> None:
    bench = Bench(tmp_path, commit_interval=0.01)
    commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
    assert bench.driver._wait(commands, 0.0) is Command.COMMIT
    commands.put(Command.STOP)
    assert bench.driver._wait(commands, 0.0) is Command.STOP


def test_without_an_interval_it_looks_when_it_is_told_and_says_when_it_is_ready(
    bench: Bench, kit: Any
) -> None:
    class Commands(queue.SimpleQueue[Command]):
        """Stages more before each command, and remembers what was waited for."""

        def __init__(self) -> None:
            self.waits: list[float | None] = []

        def get(self, block: bool = True, timeout: float | None = None) -> Command:
            self.waits.append(timeout)
            lo = 10 * len(self.waits)
            kit.stage(bench.directory, lo - 9, lo)
            return Command.COMMIT if len(self.waits) < 3 else Command.STOP

    commands = Commands()
    assert bench.driver.run(commands)
    assert commands.waits == [None] * 3
    assert bench.marks() == [(0, 0, 0), (10, 10, 1), (20, 10, 1), (30, 10, 1)]
    told = [type(report) for report in bench.reports]
    assert told == [*[Mark, Ready] * 3, Mark, Stopped]


def test_upkeep_is_begun_beside_the_rounds_and_is_none(bench: Bench) -> None:
    turns: list[bool] = []
    bench.driver._keep_up = turns.append
    commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
    for command in (Command.COMPACT, Command.COMPACT_AND_VACUUM, Command.STOP):
        commands.put(command)
    assert bench.driver.run(commands)
    assert turns == [False, True]
    assert [type(report) for report in bench.reports] == [Mark, Ready, Stopped]


def test_nothing_staged_is_no_commit(bench: Bench) -> None:
    commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
    for command in (Command.COMMIT, Command.COMMIT, Command.STOP):
        commands.put(command)
    assert bench.driver.run(commands)
    assert (bench.table.version, bench.marks()) == (0, [(0, 0, 0)])


def test_files_of_some_destinations_are_counted_by_what_they_hold(tmp_path: Path, kit: Any) -> None:
    bench = Bench(tmp_path)
    kit.stage(tmp_path, 1, 10, [3, 4, 9])
    kit.stage(tmp_path, 11, 20, [20])
    assert bench.run()
    kit.stage(tmp_path, 15, 40, [16, 20, 21, 33])  # the same range again, and more
    assert bench.run()
    assert bench.table.rows == [3, 4, 9, 20, 21, 33]
    assert bench.marks() == [(0, 0, 0), (20, 4, 2), (20, 0, 0), (40, 2, 1)]
    assert [entry["n"] for entry in bench.table.metadata] == [4, 2]


def test_a_file_that_holds_other_rows_than_its_name_says_is_not_taken(
    tmp_path: Path, kit: Any
) -> None:
    bench = Bench(tmp_path)
    kit.stage(tmp_path, 1, 10, [3, 4]).rename(tmp_path / staged_name(5, 10, 2))
    kit.stage(tmp_path, 1, 4)
    assert bench.run()
    assert bench.table.rows == [1, 2, 3, 4]
    assert any(isinstance(report, Unreadable) for report in bench.reports)
