"""The Parquet table: its commits cut off at every step, killed writers, and what readers see."""

import asyncio
import json
import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pytest
from sink_load import exchange

from tidegate.spi import SinkContext
from tidegate.testing.embedded import EmbeddedGateway
from tidegate_sink_spark._job_engine import JobEngine
from tidegate_sink_spark._options import SparkSinkOptions
from tidegate_sink_spark._sink import SparkSink
from tidegate_sink_spark.job import durable, parquet
from tidegate_sink_spark.job.driver import Addition, CommitError, MarkMovedError, TableState
from tidegate_sink_spark.job.parquet import ParquetTable
from tidegate_sink_spark.job.table import COLUMNS, Shape, application_id
from tidegate_sink_spark.staging.files import staged_name

APP_ID = application_id("gw", "store-1")


class Power:
    """Lets a number of changes to the disk happen, and then none: what a killed writer leaves."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def __call__(self, act: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            if self.left == 0:
                raise KeyboardInterrupt  # no clean-up may follow: see cut
            self.left -= 1
            return act(*args, **kwargs)

        return step


def open_table(directory: Path, layout: str = "partitioned") -> ParquetTable:
    return ParquetTable(directory, Shape(layout), APP_ID)


def append(table: ParquetTable, path: Path, after: int, through: int, **changes: Any) -> None:
    count = through - after
    addition = Addition([path], after, through, count, metadata=json.dumps({"n": count}))
    table.append(replace(addition, **changes))


def test_rows_and_mark_are_there_after_a_commit_and_a_cold_open(tmp_path: Path, kit: Any) -> None:
    table = open_table(tmp_path / "t")
    assert table.state() == TableState(0, 0)
    for n in range(30):
        append(table, kit.stage(tmp_path / "s", n * 10 + 1, n * 10 + 10), n * 10, n * 10 + 10)
    assert open_table(tmp_path / "t").state() == TableState(300, 30)
    contents = kit.read_parquet_table(tmp_path / "t", APP_ID)
    assert contents.is_exact
    assert contents.mark == 300
    assert contents.commits == [10] * 30


@pytest.mark.parametrize("layout", ["partitioned", "clustered", "plain"])
def test_duckdb_reads_the_values_that_were_acknowledged(
    tmp_path: Path, kit: Any, layout: str
) -> None:
    table = open_table(tmp_path / "t", layout)
    append(table, kit.stage(tmp_path / "s", 1, 100), 0, 100)
    files = f"read_parquet('{tmp_path}/t/**/*.parquet', hive_partitioning = true)"
    row = duckdb.sql(
        "SELECT CAST(ack_date AS VARCHAR), message_id, headers['n'], decode(body),"
        f" epoch_us(acked_at) FROM {files} WHERE ack_seq = 7"
    ).fetchall()
    assert row == [("2026-01-02", "store-1-70", "7", '{"n": 7}', 1_767_323_045_000_015)]
    columns = {name for name, *_ in duckdb.sql(f"DESCRIBE SELECT * FROM {files}").fetchall()}
    assert columns == {name for name, _ in COLUMNS}


def test_redelivered_and_overlapping_rows_are_left_out(tmp_path: Path, kit: Any) -> None:
    table = open_table(tmp_path / "t")
    append(table, kit.stage(tmp_path / "s", 1, 100), 0, 100)
    append(table, kit.stage(tmp_path / "s", 50, 150), 100, 150, overlaps=True)
    with pytest.raises(MarkMovedError, match="from 100 to 150"):
        append(table, kit.stage(tmp_path / "s", 101, 120), 100, 120)
    assert kit.read_parquet_table(tmp_path / "t", APP_ID).is_exact


def test_a_file_with_other_rows_than_it_should_have_changes_nothing(
    tmp_path: Path, kit: Any
) -> None:
    table = open_table(tmp_path / "t")
    with pytest.raises(CommitError, match="100 rows instead of 99"):
        append(table, kit.stage(tmp_path / "s", 1, 100), 0, 100, count=99)
    assert table.state() == TableState(0, 0)
    assert list((tmp_path / "t").rglob("*.parquet*")) == []


def test_two_logs_share_one_table_and_have_a_mark_each(tmp_path: Path, kit: Any) -> None:
    staged = kit.stage(tmp_path / "s", 1, 10)
    append(open_table(tmp_path / "t"), staged, 0, 10)
    other = ParquetTable(tmp_path / "t", Shape("partitioned"), application_id("gw", "store-2"))
    assert other.state().mark == 0
    append(other, staged, 0, 10)
    assert len(kit.read_parquet_table(tmp_path / "t", APP_ID).sequences) == 20


def test_a_directory_that_is_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").touch()
    with pytest.raises(CommitError, match=r"holds holiday\.jpg"):
        open_table(tmp_path)


def cut_off(directory: Path, kit: Any, patch: pytest.MonkeyPatch, steps: int) -> bool:
    """Make a commit that dies after *steps* changes to the disk; False when it had fewer."""
    append(open_table(directory / "t"), kit.stage(directory / "s", 1, 100), 0, 100)
    staged = kit.stage(directory / "s", 101, 200)
    power = Power(steps)
    with patch.context() as during:
        during.setattr(parquet.os, "replace", power(os.replace))
        during.setattr(durable.os, "fsync", power(os.fsync))
        during.setattr(ParquetTable, "_discard", lambda *_: None)  # a killed process cleans nothing
        try:
            append(open_table(directory / "t"), staged, 100, 200)
        except KeyboardInterrupt:
            return True
    return False


def test_a_commit_that_is_cut_off_at_any_step_is_made_or_not(
    tmp_path: Path, kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every sync and rename of a commit is a step; a reader sees no row twice at any of them."""
    marks: list[int] = []
    for steps in range(100):
        directory = tmp_path / str(steps)
        if not cut_off(directory, kit, monkeypatch, steps):
            break
        table = directory / "t"
        seen = sorted(kit.read_parquet_table(table, APP_ID).sequences)
        again = open_table(table)
        marks.append(again.state().mark)
        assert seen == list(range(1, 101)) or (seen, marks[-1]) == (list(range(1, 201)), 200)
        if marks[-1] == 100:
            append(again, directory / "s" / staged_name(101, 200), 100, 200)
        contents = kit.read_parquet_table(table, APP_ID)
        assert contents.mark == 200
        assert contents.is_exact
        assert list(table.rglob("*.tmp")) == []
    assert marks == sorted(marks)
    assert set(marks) == {100, 200}
    assert len(marks) > 8


def test_old_manifests_go_and_the_mark_stays(
    tmp_path: Path, kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "MANIFESTS_KEPT", 3)
    table = open_table(tmp_path / "t")
    for n in range(5):
        append(table, kit.stage(tmp_path / "s", n + 1, n + 1), n, n + 1)
    assert len(list((tmp_path / "t" / "_tidegate").rglob("ack-*.json"))) == 3
    assert open_table(tmp_path / "t").state() == TableState(5, 5)


@pytest.mark.long
async def test_killed_writers_leave_every_row_once(tmp_path: Path, kit: Any) -> None:
    """Real jobs, killed at random moments and on the instant of a commit; no Java."""
    log, table = kit.MemoryLog(), tmp_path / "lake" / "table"
    chance = random.Random(15)
    (tmp_path / "sink").mkdir()
    context = SinkContext("lake", "gw", tmp_path / "sink")
    options = SparkSinkOptions(
        table=str(table),
        format="parquet",
        commit_interval=0.1,
        segment_rows=500,
        segment_interval=0.05,
    )
    sink = SparkSink(context, options, JobEngine(context, options), restart_delay=0.01)

    def manifests() -> int:
        return len(list(table.glob("_tidegate/*/ack-*.json")))

    def temporary() -> bool:
        return any(table.glob("_tidegate/*/*.tmp"))

    async def killed_when(condition: Callable[[], object]) -> None:
        await kit.kill_job(sink, condition)
        contents = kit.read_parquet_table(table, APP_ID)
        assert len(set(contents.sequences)) == len(contents.sequences)
        assert log.released <= contents.mark

    await sink.start(log)
    try:
        await kit.until(lambda: (table / "_tidegate" / "table.json").exists(), 240)
        for number in range(8):
            before = manifests()
            log.grow(1_500)
            if number % 2:
                await killed_when(lambda before=before: manifests() > before)
            else:
                reached = log.released + chance.randrange(1_500)
                await killed_when(lambda reached=reached: temporary() or log.released > reached)
        await kit.until(lambda: log.released == log.last, 240)
    finally:
        await sink.stop()
    contents = kit.read_parquet_table(table, APP_ID)
    assert contents.mark == log.last == 12_000
    assert contents.is_exact


async def test_two_writers_at_once_write_every_row_once(tmp_path: Path, kit: Any) -> None:
    table = tmp_path / "table"

    def work(number: int) -> int:
        """One of two: it appends what the table has not, as far as both get."""
        mine, moved = open_table(table), 0
        staging = tmp_path / f"s{number}"
        while (mark := mine.state().mark) < 200:
            step = 10 if number else 7
            through = min(200, mark + step)
            try:
                append(mine, kit.stage(staging, mark + 1, through), mark, through)
            except MarkMovedError:
                moved += 1
        return moved

    await asyncio.gather(*(asyncio.to_thread(work, number) for number in (0, 1)))
    assert kit.read_parquet_table(table, APP_ID).is_exact


GATEWAY = """
[[listeners]]
protocol = "stomp"
bind = "127.0.0.1:0"

[[sinks]]
plugin = "spark"
name = "orders"
format = "parquet"
table = "{directory}/orders"
include = ["queue://orders.>"]
commit_interval = "100ms"
segment_interval = "10ms"

[[sinks]]
plugin = "spark"
name = "rest"
format = "parquet"
table = "{directory}/rest"
layout = "plain"
exclude = ["orders.>"]
commit_interval = "100ms"
segment_interval = "10ms"
"""


@pytest.mark.long
async def test_two_sinks_of_a_gateway_share_its_log_and_have_a_position_each(
    tmp_path: Path,
) -> None:
    """A row is released when every sink that takes it has it, and those before it are released."""
    async with EmbeddedGateway(GATEWAY.format(directory=tmp_path)) as gateway:
        for name in ("orders.eu", "prices", "orders.us"):
            await exchange(gateway.stomp_port, 0, 20, destination=f"/queue/{name}")
        statistics = gateway.gateway.broker.acknowledged_log.rows.log_statistics
        async with asyncio.timeout(120):
            while statistics().first <= 60:
                await asyncio.sleep(0.02)
        assert statistics().last == 60
    for table, names in (("orders", {"orders.eu", "orders.us"}), ("rest", {"prices"})):
        rows = duckdb.sql(
            f"SELECT destination, count(DISTINCT message_id), count(*) "
            f"FROM read_parquet('{tmp_path}/{table}/**/*.parquet') GROUP BY ALL"
        ).fetchall()
        assert sorted(rows) == [(f"queue://{name}", 20, 20) for name in sorted(names)]
