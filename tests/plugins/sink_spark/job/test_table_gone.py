"""Somebody deletes or replaces the table while a job writes to it: told, no row twice, none lost in silence."""

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
from spark_sink import spark_sink

from tidegate_sink_spark._sink import SparkSink
from tidegate_sink_spark.job.table import application_id

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.timeout(900)]

APP_ID = application_id("gw", "store-1")


def make(table: Path, table_format: str, spark: Any) -> SparkSink:
    """A sink with a short job, its directory beside the table's."""
    return spark_sink(
        table.parent.parent / "sink",
        table=str(table),
        format=table_format,
        layout="partitioned",
        drain_on_stop=False,
        spark_conf=dict(spark.SHORT_JOB),
    )


async def committed(sink: SparkSink, log: Any, kit: Any) -> None:
    """Wait until the table has what the log had, and nothing is wrong any more."""
    await kit.until(lambda: log.released == log.last, 240)
    await kit.until(lambda: sink.health().problem == "", 60)


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
async def test_a_table_that_is_deleted_is_told_and_made_anew(
    table_format: str, tmp_path: Path, spark: Any, kit: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tidegate_sink_spark")
    log, table = kit.MemoryLog(), tmp_path / "lake" / "table"
    sink = make(table, table_format, spark)

    def holds(lo: int, hi: int) -> None:
        contents = kit.READERS[table_format](table, APP_ID)
        assert sorted(contents.sequences) == list(range(lo, hi + 1))
        assert contents.mark == hi

    await sink.start(log)
    try:
        for turn in range(3):
            log.grow(500)
            await committed(sink, log, kit)
            holds(500 * turn + 1, log.last)
            assert list(table.rglob("ack_date=*")), "it is partitioned as it was"
            assert ("not the one that the released rows went to" in caplog.text) == bool(turn)
            problems = " ".join(problem.text for problem in sink.health().problems)
            assert ("went to" in problems) == bool(turn)
            caplog.clear()
            shutil.rmtree(table)
    finally:
        await sink.stop()


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
async def test_rows_that_an_older_table_in_the_place_lacks_are_told_and_none_is_there_twice(
    table_format: str, tmp_path: Path, spark: Any, kit: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tidegate_sink_spark")
    log, table, backup = kit.MemoryLog(), tmp_path / "lake" / "table", tmp_path / "backup"
    sink = make(table, table_format, spark)
    await sink.start(log)
    try:
        log.grow(500)
        await committed(sink, log, kit)
        shutil.copytree(table, backup)
        log.grow(500)
        await committed(sink, log, kit)
        assert "released rows went to" not in caplog.text

        shutil.rmtree(table)
        backup.rename(table)
        log.grow(500)
        await committed(sink, log, kit)
    finally:
        await sink.stop()
    assert "not the one that the released rows went to" in caplog.text
    contents = kit.READERS[table_format](table, APP_ID)
    assert sorted(contents.sequences) == [*range(1, 501), *range(1_001, 1_501)]
    assert contents.mark == 1_500
