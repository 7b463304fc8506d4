"""Compaction of a Parquet table under its readers: at every step each row is there, once."""

import asyncio
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tidegate_sink_spark.job import durable
from tidegate_sink_spark.job.driver import Addition, CommitError
from tidegate_sink_spark.job.parquet import ParquetTable
from tidegate_sink_spark.job.table import Shape, application_id
from tidegate_sink_spark.upkeep import exchange as exchanging
from tidegate_sink_spark.upkeep import parquet
from tidegate_sink_spark.upkeep.exchange import NoExchangeError, exchange
from tidegate_sink_spark.upkeep.parquet import ParquetUpkeep
from tidegate_sink_spark.upkeep.worker import Turn

APP_ID = application_id("gw", "store-1")
DAY = "ack_date=2026-01-02"


class Bench:
    """A table with a writer."""

    def __init__(self, directory: Path, kit: Any, layout: str = "partitioned") -> None:
        self.kit = kit
        self.staging = directory / "staging"
        self.path = directory / "table"
        self.table = ParquetTable(self.path, Shape(layout), APP_ID)
        self.mark = 0

    def append(self, count: int = 10) -> None:
        lo, hi = self.mark + 1, self.mark + count
        path = self.kit.stage(self.staging, lo, hi)
        self.table.append(Addition([path], self.mark, hi, count, metadata=json.dumps({"n": count})))
        self.mark = hi

    def upkeep(self) -> ParquetUpkeep:
        return ParquetUpkeep(ParquetTable(self.path, Shape("partitioned"), APP_ID))

    def turn(self) -> Turn:
        return self.upkeep().turn(vacuums=True)

    def seen(self) -> list[int]:
        """What a reader of the directory sees now."""
        return sorted(self.kit.read_parquet_table(self.path, APP_ID).sequences)

    def files(self) -> list[Path]:
        return sorted(self.path.glob("ack_date=*/*.parquet"))

    def check(self) -> None:
        contents = self.kit.read_parquet_table(self.path, APP_ID)
        assert contents.mark == self.mark == self.table.state().mark
        assert contents.is_exact


@pytest.fixture
def bench(tmp_path: Path, kit: Any) -> Bench:
    return Bench(tmp_path, kit)


def test_many_small_files_become_one_and_the_mark_stays(bench: Bench) -> None:
    for _ in range(5):
        bench.append()
    assert bench.turn() == Turn(removed=5, added=1)
    (path,) = bench.files()
    assert path.name.startswith(f"ack-{1:016}-{50:016}-")
    bench.check()
    bench.append()
    bench.check()
    assert bench.turn() == Turn(removed=2, added=1)
    assert bench.turn() == Turn()
    bench.check()


def test_a_row_is_what_it_was(bench: Bench) -> None:
    for _ in range(3):
        bench.append()

    def rows() -> list[dict[str, Any]]:
        return sorted(bench.kit.rows_of(bench.files()), key=lambda row: row["ack_seq"])

    before = rows()
    bench.turn()
    assert rows() == before
    found = bench.kit.rows_of(bench.files())
    assert found == sorted(found, key=lambda row: (row["destination"], row["acked_at"]))


def test_what_is_large_stays_as_it_is(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(4):
        bench.append()
    size = bench.files()[0].stat().st_size
    monkeypatch.setattr(parquet, "SMALL_BYTES", size // 2)
    assert bench.turn() == Turn()
    assert len(bench.files()) == 4


def test_files_are_grouped_in_their_order_up_to_a_size(bench: Bench) -> None:
    for _ in range(5):
        bench.append()
    (directory,) = parquet._leaves(bench.path)
    small = parquet._small_files(directory)
    assert [file.path for file in small] == bench.files()
    size = max(file.size_bytes for file in small)
    assert [len(group) for group in parquet.groups_of(small, size * 2)] == [2, 2]
    assert parquet.groups_of(small, size) == []


def test_a_directory_of_each_partition_is_one_of_its_own(tmp_path: Path, kit: Any) -> None:
    bench = Bench(tmp_path, kit)
    bench.table = ParquetTable(
        tmp_path / "both",
        Shape("partitioned", partition_by=("ack_date", "destination")),
        APP_ID,
    )
    bench.path = tmp_path / "both"
    for _ in range(2):
        bench.append(9)
    assert bench.turn() == Turn(removed=6, added=3)
    bench.check()


def test_columns_that_older_files_have_not_are_null(tmp_path: Path, kit: Any) -> None:
    bench = Bench(tmp_path, kit)
    bench.append()
    (old,) = bench.files()
    rows = pq.ParquetFile(old).read()
    pq.write_table(rows.drop_columns(["outcome"]), old)
    bench.append()
    bench.turn()
    (path,) = bench.files()
    outcomes = pq.ParquetFile(path).read()["outcome"]
    assert outcomes.null_count == 10
    assert len(outcomes) == 20


def test_commits_go_on_while_a_compaction_is_under_way(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        bench.append()
    merge = parquet._merge

    def merge_slowly(paths: Any, place: Path) -> Path:
        made = merge(paths, place)
        bench.append()  # without waiting for the upkeep
        return made

    monkeypatch.setattr(parquet, "_merge", merge_slowly)
    assert bench.turn() == Turn(removed=3, added=1)
    assert len(bench.files()) == 2
    bench.check()


class Power:
    """Counts what is done to the disk, and goes off before a step."""

    def __init__(self, steps: int, see: Callable[[], None]) -> None:
        self.left = steps
        self.see = see

    def __call__(self, act: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            self.see()
            if not self.left:
                raise KeyboardInterrupt
            self.left -= 1
            return act(*args, **kwargs)

        return step


@pytest.mark.long
def test_a_turn_that_is_cut_off_at_any_step_leaves_every_row_once(
    tmp_path: Path, kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader sees every row once before each step, too, and the next turn cleans up."""
    files: list[int] = []
    for steps in range(100):
        bench = Bench(tmp_path / str(steps), kit)
        for _ in range(3):
            bench.append()
        bench.append(1)
        upkeep, done = bench.upkeep(), False

        def look(bench: Bench = bench) -> None:
            assert bench.seen() == list(range(1, 32))

        power = Power(steps, look)
        with monkeypatch.context() as during:
            during.setattr(parquet.os, "replace", power(os.replace))
            during.setattr(parquet.os, "link", power(os.link))
            during.setattr(durable.os, "fsync", power(os.fsync))
            during.setattr(parquet, "exchange", power(exchange))
            during.setattr(parquet.shutil, "rmtree", lambda *_, **__: None)  # nor does a kill
            try:
                upkeep.turn(vacuums=False)
                done = True
            except KeyboardInterrupt:
                pass
        look()
        files.append(len(bench.files()))
        bench.append()
        bench.turn()
        bench.check()
        assert len(bench.files()) == 1
        assert len(list((bench.path / "_tidegate" / "compacted").iterdir())) == 1
        bench.turn()
        assert not (bench.path / "_tidegate" / "compacted").exists()
        if done:
            break
    assert files == sorted(files, reverse=True)
    assert set(files) == {4, 1}
    assert len(files) > 8


@pytest.mark.long
async def test_readers_and_writers_beside_it_see_every_row_once(bench: Bench) -> None:
    """Who lists the directories again when a file is gone, sees a prefix of the log, never a row twice."""
    for _ in range(4):
        bench.append()
    over = threading.Event()

    def write() -> None:
        for _ in range(25):
            bench.append()
        over.set()

    turns: list[Turn] = []
    seen: list[int] = []

    def keep_up() -> None:
        while not over.is_set():
            turns.append(bench.turn())

    def read() -> None:
        while not over.is_set():
            try:
                found = bench.seen()
            except FileNotFoundError:
                continue
            assert found == list(range(1, len(found) + 1))
            seen.append(len(found))

    await asyncio.gather(*map(asyncio.to_thread, (write, keep_up, read)))
    assert len(turns) > 1
    assert len(seen) > 1
    assert seen == sorted(seen)
    bench.check()


def test_a_file_that_somebody_deletes_meanwhile_is_not_brought_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        bench.append()
    merge = parquet._merge

    def delete_behind(paths: Any, place: Path) -> Path:
        made = merge(paths, place)
        paths[1].unlink()
        return made

    monkeypatch.setattr(parquet, "_merge", delete_behind)
    with pytest.raises(CommitError, match=r"conflict: .* was changed by another program"):
        bench.turn()
    assert bench.seen() == [*range(1, 11), *range(21, 31)]
    assert list((bench.path / "_tidegate" / "compacted").iterdir()) == []


def test_what_is_not_the_sinks_stays_where_it_is(bench: Bench, kit: Any) -> None:
    inner = ParquetTable(
        bench.path / "inner", Shape("partitioned"), application_id("gw", "store-2")
    )
    for lo in (1, 11):
        staged = kit.stage(bench.staging, lo, lo + 9)
        inner.append(Addition([staged], lo - 1, lo + 9, 10))
        bench.append()
    (bench.path / DAY / "README").write_text("by hand")
    assert bench.turn() == Turn(removed=2, added=1)
    assert (bench.path / DAY / "README").read_text() == "by hand"
    assert len(list((bench.path / "inner" / DAY).iterdir())) == 2


def test_one_turn_at_a_time(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        bench.append()
    other, merge = bench.upkeep(), parquet._merge
    during: list[Turn] = []

    def look(paths: Any, place: Path) -> Path:
        during.append(other.turn(vacuums=False))
        return merge(paths, place)

    monkeypatch.setattr(parquet, "_merge", look)
    assert bench.turn() == Turn(removed=2, added=1)
    assert during == [Turn()]


@pytest.mark.parametrize("layout", ["clustered", "plain"])
def test_a_table_without_directories_of_its_own_is_told_so(
    tmp_path: Path, kit: Any, layout: str
) -> None:
    bench = Bench(tmp_path, kit, layout)
    bench.append()
    with pytest.raises(CommitError, match="layout 'partitioned', or set compact_interval = 0"):
        bench.turn()


def test_a_file_system_that_cannot_exchange_is_told_with_a_remedy(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        bench.append()
    monkeypatch.setattr(exchanging.ctypes, "CDLL", lambda *_, **__: None)
    with pytest.raises(NoExchangeError, match="put it on ext4, xfs or btrfs"):
        bench.turn()
    assert len(bench.files()) == 2
    bench.check()


def test_what_is_exchanged_must_be_there(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(FileNotFoundError, match="No such file"):
        exchange(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "of a").touch()
    exchange(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b" / "of a").exists()
