"""`verify`: what agrees is proved, and each thing that does not is named."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import msgspec
import pytest

from tidegate.spi import LargeBody, LogState
from tidegate.spi.operate import DamagedRow, LogRows
from tidegate_sink_spark._target import Target
from tidegate_sink_spark.delta_rs.table import DeltaRsTable
from tidegate_sink_spark.job.driver import Addition
from tidegate_sink_spark.job.parquet import ParquetTable
from tidegate_sink_spark.job.table import Shape, application_id
from tidegate_sink_spark.staging.arrow import write_parquet
from tidegate_sink_spark.staging.dead import DeadLetter, build_dead
from tidegate_sink_spark.staging.files import list_staged
from tidegate_sink_spark.verify import contents, proof
from tidegate_sink_spark.verify.findings import Findings, Seen
from tidegate_sink_spark.verify.proof import prove
from tidegate_sink_spark.verify.ranges import Numbers
from tidegate_sink_spark.verify.seen import Log, LogPart, SeenTable, log_part, look_at

pa: Any = importlib.import_module("pyarrow")
pq: Any = importlib.import_module("pyarrow.parquet")

APP_ID = application_id("gw", "store-1")
LOG = Log("gw", "store-1")


def no_spark() -> Any:
    raise AssertionError("this needs no Java")


class Bench:
    """A table, a dead-letter table, staged files, and a log that says what it is told to."""

    def __init__(self, directory: Path, kit: Any, table_format: str) -> None:
        self.kit = kit
        self.format = table_format
        self.path = directory / "lake" / "table"
        self.dead_path = directory / "lake" / "table_dlq"
        self.staging = directory / "staging"
        self.staging.mkdir(parents=True)
        self.elsewhere = directory / "elsewhere"
        self.log = LogState("store-1", 1, 0)
        #: Rows of the log that are not as the kit makes them; None: it cannot be read.
        self.other: dict[int, Any] = {}

    def open(self, path: Path) -> Any:
        kinds: dict[str, Callable[..., Any]] = {"delta": DeltaRsTable, "parquet": ParquetTable}
        return kinds[self.format](path, Shape("partitioned"), APP_ID)

    def commit(self, lo: int, hi: int, *, only: list[int] | None = None, mark: int = 0) -> None:
        """Append rows *lo* to *hi*, or *only* some; the mark is *hi* then, or *mark*."""
        file = self.kit.stage(self.elsewhere / f"{lo}", lo, hi, only)
        table = self.open(self.path)
        count = hi - lo + 1 if only is None else len(only)
        table.append(Addition([file], after=lo - 1, through=mark or hi, count=count))

    def bury(self, lo: int, hi: int, reason: str = "wrong checksum") -> None:
        letters = [DeadLetter(n, reason, None, b"", 1) for n in range(lo, hi + 1)]
        file = self.elsewhere / f"dead-{lo}.parquet"
        self.elsewhere.mkdir(exist_ok=True)
        write_parquet(file, build_dead(letters, "gw", "store-1"))
        table = self.open(self.dead_path)
        mark = table.state().mark
        count = hi - lo + 1
        table.append(Addition([file], after=mark, through=mark + count, count=count))

    def stage(self, lo: int, hi: int) -> Path:
        return self.kit.stage(self.staging, lo, hi)

    def look(self, path: Path) -> SeenTable | None:
        return look_at(Target(str(path), False, {}), self.format, LOG, no_spark)

    def read_log(self, after: int, through: int, take: Callable[[LogPart], None]) -> None:
        """What the log has, three at a time."""
        numbers = range(max(after + 1, self.log.first), min(through, self.log.last) + 1)
        for lo in range(0, len(numbers), 3):
            some = {n: self.other.get(n, self.kit.acknowledged(n)) for n in numbers[lo : lo + 3]}
            rows = tuple(row for row in some.values() if row is not None)
            damaged = tuple(DamagedRow(n, "torn") for n, row in some.items() if row is None)
            take(log_part(LogRows(rows, numbers[lo], damaged), LOG))

    def body(self, row: int, body: bytes) -> Any:
        """That row of the log, with a body in a file of its own that does not come with it."""
        made = self.kit.acknowledged(row)
        large = LargeBody("b1", len(body), google_crc32c.value(body))
        message = msgspec.structs.replace(made.message, body=b"", large=large)
        return msgspec.structs.replace(made, message=message)

    def tamper(self, row: int) -> None:
        """Change the body of *row* in the table, and nothing else."""
        for path in self.path.rglob("*.parquet"):
            if "_tidegate" in path.parts or "_delta_log" in path.parts:
                continue
            size, rows = path.stat().st_size, pq.ParquetFile(path).read()
            bodies = [
                b"changed" if n == row else body
                for n, body in zip(
                    rows["ack_seq"].to_pylist(), rows["body"].to_pylist(), strict=True
                )
            ]
            index = rows.column_names.index("body")
            body = pa.array(bodies, pa.binary())
            pq.write_table(rows.set_column(index, rows.schema.field("body"), body), path)
            for commit in self.path.glob("_delta_log/*.json"):  # who tampers is thorough
                text = commit.read_text()
                commit.write_text(text.replace(f'"size":{size}', f'"size":{path.stat().st_size}'))

    def verify(self, *, is_dense: bool = True, first: int = 1, content: bool = False) -> Findings:
        seen = Seen(
            self.log,
            self.log,
            list_staged(self.staging),
            self.look(self.path),
            {},
            self.look(self.dead_path),
            is_dense,
            first,
            self.read_log,
        )
        return prove(seen, content=content)


@pytest.fixture(params=["delta", "parquet"])
def bench(tmp_path: Path, kit: Any, request: pytest.FixtureRequest) -> Bench:
    return Bench(tmp_path, kit, request.param)


@pytest.fixture
def parquet(tmp_path: Path, kit: Any) -> Bench:
    return Bench(tmp_path, kit, "parquet")


def test_what_agrees_is_proved(bench: Bench) -> None:
    bench.commit(1, 10)
    bench.commit(11, 25, only=[n for n in range(11, 26) if n != 13])
    bench.bury(13, 13)
    bench.stage(26, 30)
    bench.stage(31, 33)
    bench.log = LogState("store-1", 26, 40)
    found = bench.verify()
    assert found.problems == []
    assert (found.mark, found.rows, found.dead_rows) == (25, 24, 1)
    assert (found.staged_through, found.staged_rows) == (33, 8)
    assert found.files == 2


def test_before_the_first_commit_there_is_nothing_to_disprove(bench: Bench) -> None:
    bench.stage(1, 5)
    bench.log = LogState("store-1", 1, 9)
    found = bench.verify(content=True)
    assert (found.problems, found.mark, found.staged_through) == ([], 0, 5)


def test_rows_that_are_in_no_table_are_named(bench: Bench) -> None:
    bench.commit(1, 20, only=[n for n in range(1, 21) if n not in (1, 7, 8, 20)])
    bench.log = LogState("store-1", 21, 20)
    (problem,) = bench.verify().problems
    assert problem.startswith("rows 1, 7 to 8, 20 (4 in all) are in no table, and the mark is 20")
    assert len(bench.verify(first=9).problems) == 1
    assert bench.verify(is_dense=False).problems == [], "it does not take all destinations"


def test_rows_from_the_beginning_may_be_left_out(bench: Bench) -> None:
    bench.commit(8, 20)
    bench.log = LogState("store-1", 21, 20)
    (problem,) = bench.verify().problems
    assert "rows 1 to 7 (7 in all) are in no table" in problem
    assert bench.verify(first=8).problems == []


def test_a_row_that_is_there_twice_is_named(bench: Bench) -> None:
    bench.commit(1, 10)
    bench.bury(4, 5)
    bench.log = LogState("store-1", 11, 10)
    (problem,) = bench.verify().problems
    assert problem.startswith("rows 4 to 5 (2 in all) are there more than once")


def test_rows_above_the_mark_are_named(bench: Bench) -> None:
    bench.commit(1, 12, mark=10)
    bench.log = LogState("store-1", 11, 12)
    problems = bench.verify().problems
    assert any(
        "rows 11 to 12 (2 in all) are in the table above its mark, 10" in p for p in problems
    )


def test_a_hole_among_staged_files_and_a_damaged_one_are_named(parquet: Bench) -> None:
    parquet.commit(1, 10)
    parquet.log = LogState("store-1", 11, 40)
    parquet.stage(11, 15)
    parquet.stage(18, 20)
    (problem,) = parquet.verify().problems
    assert problem.startswith("staged files leave out rows 16 to 17 before ack-")
    damaged = parquet.stage(16, 17)
    assert parquet.verify().problems == []
    damaged.write_bytes(damaged.read_bytes()[:-7])
    (problem,) = parquet.verify().problems
    assert f"the staged file {damaged.name} does not hold what its name says" in problem


def test_rows_that_neither_table_nor_log_has_are_named(parquet: Bench) -> None:
    parquet.commit(1, 10)
    parquet.log = LogState("store-1", 14, 20)
    (problem,) = parquet.verify().problems
    assert problem.startswith("rows 11 to 13 are neither in the table nor in the log")
    parquet.stage(11, 13)
    assert parquet.verify().problems == []


def test_a_table_ahead_of_its_log_is_named(parquet: Bench) -> None:
    parquet.commit(1, 10)
    parquet.stage(11, 12)
    parquet.log = LogState("store-1", 1, 7)
    first, second = parquet.verify().problems
    assert "restored from an older copy" in first
    assert "staged files go up to 12, and the log ends at 7" in second


def test_rows_of_other_logs_do_not_count(parquet: Bench) -> None:
    parquet.commit(1, 10)
    other = look_at(Target(str(parquet.path), False, {}), "parquet", Log("gw", "2"), no_spark)
    assert other is not None
    assert other.mark == 0
    assert list(other.rows(("ack_seq",), 1, None)) == []


def test_windows_are_as_good_as_all_at_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "WINDOW", 4)
    bench.commit(1, 22, only=[n for n in range(1, 23) if n not in (4, 5, 12)])
    bench.log = LogState("store-1", 23, 22)
    (problem,) = bench.verify().problems
    assert problem.startswith("rows 4 to 5, 12 (3 in all) are in no table")


def test_contents_have_one_hash_whatever_the_format_and_the_files(
    tmp_path: Path, kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashes: set[str] = set()
    for name, bounds in (("delta", ((1, 30),)), ("parquet", ((1, 12), (13, 30)))):
        bench = Bench(tmp_path / name, kit, name)
        bench.log = LogState("store-1", 31, 30)
        for lo, hi in bounds:
            bench.commit(lo, hi)
        found = bench.verify(content=True)
        assert found.problems == []
        hashes.add(found.content)
        monkeypatch.setattr(contents, "CONTENT_WINDOW", 7)
    assert len(hashes) == 1
    bench = Bench(tmp_path / "shorter", kit, "parquet")
    bench.commit(1, 29)
    bench.log = LogState("store-1", 30, 29)
    assert bench.verify(content=True).content not in hashes


def test_a_row_that_was_changed_in_the_table_is_found_by_its_content(parquet: Bench) -> None:
    parquet.commit(1, 10)
    parquet.stage(6, 12)  # a job that was killed, or a file that was not deleted yet
    parquet.log = LogState("store-1", 11, 12)
    found = parquet.verify(content=True)
    assert (found.problems, found.compared) == ([], 5)
    parquet.tamper(8)
    (problem,) = parquet.verify(content=True).problems
    assert problem.startswith("rows 8 are not in the table what they are in the staged files")
    assert parquet.verify().problems == [], "asked for by content only"


def test_a_row_that_was_changed_in_the_table_is_found_while_the_log_has_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another sink waits for it, or the gateway died before it was released; nothing is staged any more."""
    bench.commit(1, 20, only=[n for n in range(1, 21) if n != 15])
    bench.bury(15, 15)
    bench.log = LogState("store-1", 7, 23)
    for window in (contents.CONTENT_WINDOW, 5):
        monkeypatch.setattr(contents, "CONTENT_WINDOW", window)
        found = bench.verify(content=True)
        assert (found.problems, found.compared, found.compared_log) == ([], 0, 13)
    assert bench.verify(content=True, first=18).compared_log == 3
    bench.tamper(9)
    (problem,) = bench.verify(content=True).problems
    assert problem.startswith("rows 9 are not in the table what they are in the acknowledged log")
    bench.log = LogState("store-1", 10, 23)
    assert bench.verify(content=True).problems == [], "nobody has the row any more"


def test_a_body_that_does_not_come_with_its_row_is_compared_by_size_and_checksum(
    bench: Bench,
) -> None:
    bench.commit(1, 9)
    bench.log = LogState("store-1", 3, 9)
    bench.other = {5: bench.body(5, b'{"n": 5}'), 8: bench.body(8, b'{"n": 8}')}
    found = bench.verify(content=True)
    assert (found.problems, found.compared_log, found.compared_checksum) == ([], 5, 2)
    assert (found.only_hashed, found.rows) == (2, 9)
    for other in (bench.body(8, b'{"n": 9}'), bench.body(8, b"longer than that")):
        bench.other[8] = other
        (problem,) = bench.verify(content=True).problems
        assert problem.startswith("rows 8 are not in the table what they are in the acknowledged")
    bench.other = {5: bench.body(5, b'{"n": 5}')}
    bench.tamper(5)
    (problem,) = bench.verify(content=True).problems
    assert problem.startswith("rows 5 are not in the table what they are in the acknowledged log")


def test_damaged_rows_are_dead_letters_with_a_reason_or_said_to_be_compared_with_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.commit(1, 12, only=[n for n in range(1, 13) if n not in (4, 9)])
    bench.bury(4, 4)
    bench.bury(9, 9, reason="")
    bench.log = LogState("store-1", 2, 12)
    bench.other = {
        4: None,
        6: None,
        9: None,
        10: bench.kit.acknowledged(10, priority=1 << 40),  # fits no table
    }
    for window in (contents.CONTENT_WINDOW, 2):
        monkeypatch.setattr(contents, "CONTENT_WINDOW", window)
        found = bench.verify(content=True)
        (problem,) = found.problems
        assert problem.startswith("rows 9 are in the dead-letter table without the header")
        (note,) = found.notes
        assert note.startswith("rows 6, 10 (2 in all) are damaged in the log by now")
        assert (found.dead_named, found.damaged, found.compared_log) == (1, 2, 7)
        # Each row of the tables is in one of these.
        assert found.only_hashed == 3
        assert found.compared_log + found.only_hashed + found.dead_rows == 12
    bench.bury(4, 4)
    problems = bench.verify(content=True).problems
    assert any(p.startswith("rows 4 are there more than once") for p in problems)


def test_rows_that_a_sink_does_not_take_are_counted(parquet: Bench) -> None:
    parquet.commit(1, 10, only=[1, 2, 5, 6, 10])
    parquet.stage(9, 10)
    parquet.log = LogState("store-1", 4, 12)
    found = parquet.verify(content=True, is_dense=False)
    assert found.problems == []
    assert (found.compared, found.compared_log, found.not_taken) == (1, 3, 4)
    assert found.only_hashed == 2


def test_a_union_counts_each_number_once() -> None:
    def numbers(*given: int) -> Numbers:
        made = Numbers()
        made.add(given)
        return made

    assert numbers().union_count(numbers()) == 0
    assert numbers(1, 2, 3, 7).union_count(numbers()) == 4
    assert numbers(1, 2, 3, 7, 8, 20).union_count(numbers(2, 3, 4, 8, 9, 21)) == 9
    one = numbers(1, 2, 3)
    one.add([2, 3, 4])  # files that overlap
    assert one.union_count(numbers(1)) == 4


def test_rows_of_the_log_that_fit_no_table_count_as_damaged(kit: Any) -> None:
    good, bad = kit.acknowledged(3), kit.acknowledged(2, priority=1 << 40)
    found = log_part(LogRows((kit.acknowledged(1), bad, good), 3, (DamagedRow(4, "torn"),)), LOG)
    assert found.rows["ack_seq"].to_pylist() == [1, 3]
    assert found.damaged == [2, 4]
    assert log_part(LogRows((bad,), 2), LOG).rows.num_rows == 0


def test_looking_changes_nothing(bench: Bench) -> None:
    assert bench.look(bench.path) is None
    assert not bench.path.exists()
    bench.commit(1, 10)
    before = {path: os.stat(path).st_mtime_ns for path in bench.path.rglob("*")}
    assert bench.verify(content=True).mark == 10
    assert {path: os.stat(path).st_mtime_ns for path in bench.path.rglob("*")} == before
