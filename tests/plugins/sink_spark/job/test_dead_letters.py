"""Rows that cannot be read or written: into the dead-letter table, once, and dense together with the table."""

import asyncio
import os
import queue
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from tidegate.spi import AcknowledgedMessage, CorruptRecordError, StoreIOError
from tidegate_sink_spark._protocol import Command, JobConfig, Mark, Report, Unreadable
from tidegate_sink_spark.job.dead import DeadLetterTable, SequencedTable
from tidegate_sink_spark.job.driver import Addition, Driver, TableState
from tidegate_sink_spark.job.target import open_dead_letters, open_table
from tidegate_sink_spark.staging import arrow, reading, staging
from tidegate_sink_spark.staging.dead import BODY, REASON, DeadLetter, build_dead
from tidegate_sink_spark.staging.files import list_staged
from tidegate_sink_spark.staging.selection import Selection
from tidegate_sink_spark.staging.staging import Staging, StagingLimits


@pytest.fixture(autouse=True)
def fast_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "RETRY_DELAY_MIN", 0.001)
    monkeypatch.setattr(staging, "RETRY_DELAY_MIN", 0.001)


def staging_of(kit: Any, log: Any, directory: Path, **changes: Any) -> Staging:
    limits: dict[str, Any] = {
        "segment_rows": 10,
        "segment_bytes": 1 << 20,
        "segment_interval": 3600.0,
    }
    selection = changes.pop("selection", None)
    limits |= {"staging_bytes": 1 << 30, **changes}
    builder = kit.builder_of(directory, log, selection=selection)
    return Staging(log, directory, StagingLimits(**limits), builder=builder, selection=selection)


async def stage_all(
    kit: Any,
    log: Any,
    directory: Path,
    work: Callable[[Staging], Awaitable[None]] | None = None,
    **changes: Any,
) -> Staging:
    """Stage what *log* has; do *work* before that is asked for."""
    staged = staging_of(kit, log, directory, **changes)
    await staged.recover(0)
    task = asyncio.create_task(staged.run())
    try:
        if work is not None:
            await work(staged)
        staged.drain()
        await asyncio.wait_for(task, 60)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await staged.close()
    return staged


def numbers(path: Path) -> list[int]:
    return arrow.pq.read_table(path, columns=["ack_seq"])["ack_seq"].to_pylist()


def rows_and_letters(directory: Path) -> tuple[list[int], list[int]]:
    """Ack sequences in staged files and in their companions; no companion is left over."""
    files = list_staged(directory)
    companions = [file.dead_path for file in files if file.dead]
    assert sorted(companions) == sorted(directory.glob("dead-*"))
    rows = [number for file in files for number in numbers(file.path)]
    return rows, [number for path in companions for number in numbers(path)]


# --- reading --------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [{1}, {5}, {25}, {3, 4, 11, 12, 13}, set(range(1, 26))])
async def test_damaged_rows_are_staged_as_dead_letters(
    kit: Any, tmp_path: Path, bad: set[int]
) -> None:
    log = kit.MemoryLog(last=25, damaged=bad)
    staged = await stage_all(kit, log, tmp_path)
    rows, letters = rows_and_letters(tmp_path)
    assert letters == sorted(bad)
    assert rows == [n for n in range(1, 26) if n not in bad]
    assert (staged.position, staged.dead_letters) == (25, len(bad))
    assert log.reads < 25 * 8


async def test_a_dead_letter_says_what_is_known(kit: Any, tmp_path: Path) -> None:
    await stage_all(kit, kit.MemoryLog(last=3, damaged={2}), tmp_path)
    (letter,) = kit.rows_of(tmp_path.glob("dead-*"))
    headers = dict(letter["headers"])
    assert "wrong checksum" in headers[REASON]
    assert headers[BODY] == "record"
    assert letter["body"] == b"what is left"
    assert letter["ack_seq"] == 2
    assert letter["client_id"] == "consumer-1"
    assert letter["message_id"] == "store-1-20"
    assert letter["destination"] is None
    assert letter["received_at"] is None


async def test_a_row_that_the_store_does_not_have_is_a_dead_letter(
    kit: Any, tmp_path: Path
) -> None:
    log = kit.MemoryLog(last=6)
    read = log.read

    async def without(after: int, limit: int, bytes_max: int) -> Any:
        page = await read(after, 100, bytes_max)
        rows = [row for row in page.rows if row.ack_sequence not in (2, 3, 6)][:limit]
        return type(page)(rows, page.last)

    log.read = without
    await stage_all(kit, log, tmp_path)
    assert rows_and_letters(tmp_path) == ([1, 4, 5], [2, 3, 6])


async def test_a_disk_that_does_not_answer_is_waited_for(kit: Any, tmp_path: Path) -> None:
    """Nothing behind the row can be read either: the store is ill, and not the row."""
    log = kit.MemoryLog(last=6, damaged={3, 4, 5, 6}, error=StoreIOError)

    async def work(staged: Staging) -> None:
        await kit.until(lambda: "cannot be read behind 2" in staged.problem)
        reads = log.reads
        await kit.until(lambda: log.reads > reads + 10)
        assert rows_and_letters(tmp_path) == ([1, 2], [])  # what was read does not wait
        log.damaged.clear()

    await stage_all(kit, log, tmp_path, work)
    assert rows_and_letters(tmp_path) == ([1, 2, 3, 4, 5, 6], [])


async def test_an_error_of_one_place_on_disk_is_the_rows_own(kit: Any, tmp_path: Path) -> None:
    log = kit.MemoryLog(last=9, damaged={3, 4}, error=StoreIOError)
    await stage_all(kit, log, tmp_path)
    assert rows_and_letters(tmp_path) == ([1, 2, 5, 6, 7, 8, 9], [3, 4])


async def test_a_damaged_row_that_can_be_read_again_is_no_dead_letter(
    kit: Any, tmp_path: Path
) -> None:
    log = kit.MemoryLog(last=9, damaged={4})
    read = log.read

    async def heals(after: int, limit: int, bytes_max: int) -> Any:
        try:
            return await read(after, limit, bytes_max)
        finally:
            if limit == 1:
                log.damaged.clear()

    log.read = heals
    await stage_all(kit, log, tmp_path)
    assert rows_and_letters(tmp_path) == (list(range(1, 10)), [])


async def test_the_sink_can_be_told_to_stop_at_a_damaged_row(kit: Any, tmp_path: Path) -> None:
    log = kit.MemoryLog(last=9, damaged={4})

    async def work(staged: Staging) -> None:
        await kit.until(lambda: 'on_bad_row = "dead_letter"' in staged.problem)
        assert "row 4 of the acknowledged log is damaged" in staged.problem
        reads = log.reads
        await kit.until(lambda: log.reads > reads + 5)
        assert rows_and_letters(tmp_path) == ([1, 2, 3], [])
        log.damaged.clear()

    await stage_all(kit, log, tmp_path, work, stops_at_bad_row=True)
    assert rows_and_letters(tmp_path) == (list(range(1, 10)), [])


async def test_a_row_that_does_not_fit_the_table_is_a_dead_letter(kit: Any, tmp_path: Path) -> None:
    def make(n: int) -> AcknowledgedMessage:
        return kit.acknowledged(n, priority=1 << 40) if n == 4 else kit.acknowledged(n)

    await stage_all(kit, kit.MemoryLog(last=9, make=make), tmp_path)
    assert rows_and_letters(tmp_path) == ([1, 2, 3, 5, 6, 7, 8, 9], [4])
    (letter,) = kit.rows_of(tmp_path.glob("dead-*"))
    assert "does not fit the table" in dict(letter["headers"])[REASON]
    assert letter["body"] == b'{"n": 4}'


async def test_rows_that_were_discarded_meanwhile_are_passed(kit: Any, tmp_path: Path) -> None:
    log = kit.MemoryLog(last=9)
    staged = staging_of(kit, log, tmp_path)
    await staged.recover(0)
    log.released = 5
    task = asyncio.create_task(staged.run())
    staged.drain()
    await asyncio.wait_for(task, 60)
    await staged.close()
    assert rows_and_letters(tmp_path) == ([6, 7, 8, 9], [])


async def test_a_sink_that_takes_some_destinations_has_the_dead_letters_of_which_it_is_not_known(
    kit: Any, tmp_path: Path
) -> None:
    selection = Selection(include=("orders.1",))
    log = kit.MemoryLog(last=9, damaged={2, 4})
    await stage_all(kit, log, tmp_path, selection=selection)
    assert rows_and_letters(tmp_path) == ([1, 7], [2, 4])
    log.damage = lambda number, limit: known_but_bodiless(kit, number)
    for path in tmp_path.iterdir():
        path.unlink()
    await stage_all(kit, log, tmp_path, selection=selection)
    assert rows_and_letters(tmp_path) == ([1, 7], [4])


def known_but_bodiless(kit: Any, number: int) -> CorruptRecordError:
    error = CorruptRecordError("the file is missing", location="large")
    error.known = kit.acknowledged(number, body=b"")
    return error


def test_a_dead_letter_of_which_nothing_is_known_has_a_number_and_a_reason(kit: Any) -> None:
    (batch,) = build_dead([DeadLetter(7, "gone", None, b"", 1_767_323_045_000_006)], "gw", "e")
    (row,) = batch.to_pylist()
    assert (row["ack_seq"], row["gateway_id"], row["epoch"]) == (7, "gw", "e")
    assert dict(row["headers"]) == {REASON: "gone", BODY: "nothing"}
    assert row["acked_at"].year == 2026
    unknown = {name for name, value in row.items() if value is None}
    known = {"ack_seq", "gateway_id", "epoch", "headers", "body", "acked_at", "ack_date"}
    assert row.keys() - unknown - {"repeated_headers"} == known


# --- committing -----------------------------------------------------------------------------------


class DiedError(Exception):
    """The job was killed."""


class MemoryTable:
    """Rows and mark; dies (an exception that nobody handles) before or behind a commit.

    It keeps the files that it was given, as they are, as tables do that link them.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.directory = directory
        self.kept: list[tuple[Path, list[int]]] = []
        self.rows: list[int] = []
        self.mark = 0
        self.dies = ""

    def sequences(self, gateway_id: str, epoch: str, after: int) -> list[int]:
        assert (gateway_id, epoch) == ("gw", "store-1")
        return [row for row in self.rows if row > after]

    def state(self) -> TableState:
        return TableState(self.mark, 0)

    def append(self, addition: Addition) -> None:
        if self.dies == "before":
            raise DiedError
        after = addition.after
        assert after == self.mark < addition.through or not addition.count
        for path in addition.paths:
            kept = self.directory / str(len(self.kept))
            os.link(path, kept)
            self.kept.append((kept, numbers(path)))
        found = [n for path in addition.paths for n in numbers(path)]
        if addition.overlaps:
            found = [n for n in found if n > after]
        assert addition.count == len(found)
        self.rows += found
        self.mark = addition.through
        if self.dies == "behind":
            raise DiedError


class Tables:
    """A table, its dead letters, and a job over both for each :meth:`run`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "staging"
        self.work = directory / "work"
        self.work.mkdir()
        self.table = MemoryTable(directory / "table")
        self.letters: MemoryTable | None = None
        self.reports: list[Report] = []

    def _find(self, creates: bool) -> MemoryTable | None:
        if creates and self.letters is None:
            self.letters = MemoryTable(self.table.directory.with_name("letters"))
        return self.letters

    def run(self, *, dies: str = "") -> None:
        where, _, when = dies.partition(" ")
        if where == "letters":
            self._find(True)
        self.table.dies = when if where == "table" else ""
        if self.letters:
            self.letters.dies = when if where == "letters" else ""
        dead = DeadLetterTable(self._find, self.work, gateway_name="gw", store_id="store-1")
        driver = Driver(
            self.table,
            dead,
            self.directory,
            gateway_name="gw",
            floor=0,
            commit_interval=0.01,
            report=self.reports.append,
        )
        commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        commands.put(Command.STOP)
        if dies:
            with pytest.raises(DiedError):
                driver.run(commands)
        else:
            assert driver.run(commands)

    def check(self, through: int, letters: Sequence[int]) -> None:
        """Both tables together are dense, and nothing is in them twice."""
        found = self.letters.rows if self.letters else []
        assert sorted(found) == list(letters)
        assert sorted(self.table.rows + found) == list(range(1, through + 1))
        assert self.table.mark == through
        for table in (self.table, self.letters):
            for kept, had in table.kept if table else ():
                assert numbers(kept) == had


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    return Tables(tmp_path)


def test_there_is_no_dead_letter_table_without_dead_letters(kit: Any, tables: Tables) -> None:
    kit.stage(tables.directory, 1, 10)
    tables.run()
    tables.check(10, [])
    assert tables.letters is None


def test_dead_letters_and_rows_are_dense_together(kit: Any, tables: Tables) -> None:
    kit.stage_dead(tables.directory, 1, 10, [3, 7])
    kit.stage_dead(tables.directory, 11, 12, [11, 12])
    kit.stage(tables.directory, 13, 20)
    tables.run()
    tables.check(20, [3, 7, 11, 12])
    assert [report.dead for report in tables.reports if isinstance(report, Mark)][-1] == 4


@pytest.mark.parametrize(
    "dies", ["letters before", "letters behind", "table before", "table behind"]
)
@pytest.mark.parametrize("again", [[3, 7], [], [3], [7, 8], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]])
def test_a_job_that_dies_between_the_two_commits_doubles_and_loses_nothing(
    kit: Any, tables: Tables, dies: str, again: list[int]
) -> None:
    """Local state is lost, too, and other rows can be read when they are staged again."""
    kit.stage_dead(tables.directory, 1, 10, [3, 7])
    tables.run(dies=dies)
    for path in tables.directory.iterdir():
        path.unlink()
    kit.stage_dead(tables.directory, 1, 10, again)
    kit.stage_dead(tables.directory, 11, 14, [12])
    tables.run()
    first = set() if dies == "letters before" else {3, 7}
    if dies == "table behind":
        again = []
    tables.check(14, sorted({*first, *again, 12}))


def test_an_overlapping_file_brings_no_dead_letter_twice(kit: Any, tables: Tables) -> None:
    kit.stage_dead(tables.directory, 1, 10, [3, 7])
    tables.run()
    kit.stage_dead(tables.directory, 5, 15, [7, 12])
    tables.run()
    tables.check(15, [3, 7, 12])


def test_a_file_that_a_table_may_have_as_its_own_is_never_written_over(
    kit: Any, tables: Tables
) -> None:
    """What is left of dead letters, without those that are there, is a file of the job's own."""
    for lo in (1, 11):
        kit.stage_dead(tables.directory, lo, lo + 9, [lo + 2, lo + 6])
        tables.run(dies="letters behind")
        for path in tables.directory.iterdir():
            path.unlink()
        kit.stage_dead(tables.directory, lo, lo + 9, [lo + 2, lo + 6, lo + 8])
        tables.run()
    tables.check(20, [3, 7, 9, 13, 17, 19])


def test_a_file_without_its_dead_letters_is_not_taken(kit: Any, tables: Tables) -> None:
    kit.stage_dead(tables.directory, 1, 10, [3, 7])
    (companion,) = tables.directory.glob("dead-*")
    companion.unlink()
    tables.run()
    assert tables.table.rows == []
    problems = [report.problem for report in tables.reports if isinstance(report, Unreadable)]
    assert set(problems) == {"its dead letters: missing"}


@pytest.mark.parametrize("kind", ["deltalake", "parquet"])
@pytest.mark.parametrize("layout", ["partitioned", "plain"])
def test_real_tables_keep_dead_letters_apart(
    kit: Any, tmp_path: Path, kind: str, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that need no Java; the others are in test_job.py."""
    config = JobConfig(
        gateway_name="gw",
        store_id="store-1",
        staging_directory=str(tmp_path / "staging"),
        table=str(tmp_path / "lake" / "table"),
        layout=layout,
        commit_interval=1.0,
        floor=0,
        spark_conf={},
        format="parquet" if kind == "parquet" else "delta",
        engine="deltalake" if kind == "deltalake" else "spark",
    )
    directory = tmp_path / "staging"

    def run(*, dies: bool = False) -> tuple[list[int], list[int]]:
        table = cast(SequencedTable, open_table(config, dict))
        dead = DeadLetterTable(
            lambda creates: open_dead_letters(config, dict, creates=creates),
            tmp_path,
            gateway_name="gw",
            store_id="store-1",
        )
        driver = Driver(
            table,
            dead,
            directory,
            gateway_name="gw",
            floor=0,
            commit_interval=0.01,
            report=lambda report: None,
        )
        commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        commands.put(Command.STOP)
        if dies:
            monkeypatch.setattr(table, "append", raise_died)
            with pytest.raises(DiedError):
                driver.run(commands)
            monkeypatch.undo()
        else:
            assert driver.run(commands)
        letters = open_dead_letters(config, dict, creates=False)
        found = letters.sequences("gw", "store-1", 0) if letters else []
        return sorted(table.sequences("gw", "store-1", 0)), sorted(found)

    kit.stage(directory, 1, 4)
    assert run() == ([1, 2, 3, 4], [])
    assert not Path(f"{config.table}_dlq").exists()
    kit.stage_dead(directory, 5, 8, [6])
    kit.stage_dead(directory, 9, 10, [9, 10])
    assert run(dies=True) == ([1, 2, 3, 4], [6, 9, 10])
    for path in directory.iterdir():
        path.unlink()
    kit.stage_dead(directory, 5, 10, [5])  # 6, 9 and 10 can be read again, and 5 cannot
    assert run() == ([1, 2, 3, 4, 7, 8], [5, 6, 9, 10])
    kit.stage_dead(directory, 11, 12, [11, 12])
    assert run() == ([1, 2, 3, 4, 7, 8], [5, 6, 9, 10, 11, 12])
    assert open_table(config, dict).state().mark == 12


def raise_died(*_: object, **__: object) -> None:
    raise DiedError
