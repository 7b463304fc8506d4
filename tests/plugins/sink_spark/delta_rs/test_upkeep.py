"""Compaction and vacuum beside commits: the mark stays, and every row is there once."""

import os
import threading
from pathlib import Path
from typing import Any

import deltalake
import pytest

from tidegate_sink_spark.delta_rs.table import DeltaRsTable
from tidegate_sink_spark.delta_rs.upkeep import Upkeep
from tidegate_sink_spark.job.driver import Addition
from tidegate_sink_spark.job.table import Shape

APP_ID = "tidegate/gw/store-1"


class Bench:
    """A table with a writer, and its upkeep."""

    def __init__(self, directory: Path, kit: Any) -> None:
        self.kit = kit
        self.staging = directory / "staging"
        self.path = directory / "table"
        self.table = DeltaRsTable(self.path, Shape("partitioned"), APP_ID)
        self.problems: list[str] = []
        self.mark = 0

    def make(self, interval: float = 3600.0, retention: float = 0.0) -> Upkeep:
        return Upkeep(
            self.path, interval=interval, retention=retention, report=self.problems.append
        )

    def append(self, count: int = 10) -> None:
        lo, hi = self.mark + 1, self.mark + count
        path = self.kit.stage(self.staging, lo, hi)
        self.table.append(Addition([path], self.mark, hi, count))
        self.mark = hi

    def check(self) -> None:
        contents = self.kit.read_table(self.path, APP_ID)
        assert contents.mark == self.mark == self.table.state().mark
        assert contents.is_exact

    def in_table(self) -> int:
        return len(deltalake.DeltaTable(str(self.path)).file_uris())


@pytest.fixture
def bench(tmp_path: Path, kit: Any) -> Bench:
    return Bench(tmp_path, kit)


def test_many_small_files_become_one_and_the_mark_stays(bench: Bench) -> None:
    for _ in range(5):
        bench.append()
    bench.make().turn()
    assert bench.in_table() == 1
    bench.check()
    bench.append()
    bench.check()


def test_commits_go_on_while_a_compaction_is_under_way(bench: Bench) -> None:
    for _ in range(5):
        bench.append()
    begun = deltalake.DeltaTable(str(bench.path))  # what a compaction starts from
    bench.append()
    begun.optimize.compact()
    bench.append()  # and a commit that starts from before it
    assert bench.in_table() == 3
    bench.check()


def test_vacuum_leaves_what_the_table_has_and_what_is_young(bench: Bench) -> None:
    for _ in range(3):
        bench.append()
    orphan = bench.path / "ack_date=2026-01-02" / "left-by-a-kill.parquet"
    orphan.write_bytes(b"PAR1")
    bench.make(retention=3600.0).turn()
    assert len(list(bench.path.rglob("*.parquet"))) == 3 + 1 + 1
    os.utime(orphan, (0, 0))
    bench.make(retention=3600.0).turn()
    assert not orphan.exists()
    bench.check()


def test_without_a_retention_nothing_is_deleted(bench: Bench) -> None:
    bench.append()
    orphan = bench.path / "ack_date=2026-01-02" / "left-by-a-kill.parquet"
    orphan.write_bytes(b"PAR1")
    os.utime(orphan, (0, 0))
    bench.make().turn()
    assert orphan.exists()


def test_it_works_again_and_again_and_tells_what_fails(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[int] = []
    enough = threading.Event()
    turn = Upkeep.turn

    def fails_first(self: Upkeep) -> None:
        turns.append(len(turns))
        if len(turns) == 1:
            raise OSError("no room")
        turn(self)
        enough.set()

    monkeypatch.setattr(Upkeep, "turn", fails_first)
    bench.append()
    bench.append()
    work = bench.make(interval=0.01)
    work.start()
    assert enough.wait(60)
    work.stop()
    (problem,) = bench.problems
    assert "cannot be compacted now: no room" in problem
    assert bench.in_table() == 1
