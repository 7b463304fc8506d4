"""Compaction and vacuum beside commits: the mark stays, and every row is there once."""

import os
from pathlib import Path
from typing import Any

import deltalake
import pytest

from tidegate_sink_spark.delta_rs.table import DeltaRsTable
from tidegate_sink_spark.job.driver import Addition
from tidegate_sink_spark.job.table import Shape
from tidegate_sink_spark.upkeep.delta_rs import DeltaRsUpkeep, hours
from tidegate_sink_spark.upkeep.worker import Turn

APP_ID = "tidegate/gw/store-1"


class Bench:
    """A table with a writer, and its upkeep."""

    def __init__(self, directory: Path, kit: Any) -> None:
        self.kit = kit
        self.staging = directory / "staging"
        self.path = directory / "table"
        self.table = DeltaRsTable(self.path, Shape("partitioned"), APP_ID)
        self.mark = 0

    def turn(self, *, retention: float = 0.0) -> Turn:
        return DeltaRsUpkeep(self.path, retention=retention).turn(vacuums=True)

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
    assert bench.turn() == Turn(removed=5, added=1)
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
    bench.turn(retention=3600.0)
    assert len(list(bench.path.rglob("*.parquet"))) == 3 + 1 + 1
    os.utime(orphan, (0, 0))
    bench.turn(retention=3600.0)
    assert not orphan.exists()
    bench.check()


def test_without_a_retention_nothing_is_deleted(bench: Bench) -> None:
    bench.append()
    orphan = bench.path / "ack_date=2026-01-02" / "left-by-a-kill.parquet"
    orphan.write_bytes(b"PAR1")
    os.utime(orphan, (0, 0))
    bench.turn()
    assert orphan.exists()


def test_a_vacuum_comes_with_the_turns_that_are_told_so(bench: Bench) -> None:
    bench.append()
    orphan = bench.path / "ack_date=2026-01-02" / "left-by-a-kill.parquet"
    orphan.write_bytes(b"PAR1")
    os.utime(orphan, (0, 0))
    upkeep = DeltaRsUpkeep(bench.path, retention=3600.0)
    upkeep.turn(vacuums=False)
    assert orphan.exists()
    upkeep.turn(vacuums=True)
    assert not orphan.exists()


def test_a_retention_is_whole_hours_and_at_least_one() -> None:
    assert [hours(seconds) for seconds in (1.0, 3600.0, 5400.1, 7 * 86_400.0)] == [1, 1, 2, 168]
