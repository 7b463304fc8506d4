"""Somebody deletes the table while a job writes to it: told, made anew, no row twice."""

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from tidegate.spi import SinkContext
from tidegate_sink_spark._options import SparkSinkOptions
from tidegate_sink_spark._sink import SparkSink
from tidegate_sink_spark._spark_engine import SparkEngine
from tidegate_sink_spark.job.table import application_id

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.timeout(900)]

APP_ID = application_id("gw", "store-1")


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
async def test_a_table_that_is_deleted_is_told_and_made_anew(
    table_format: str, tmp_path: Path, spark: Any, kit: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tidegate_sink_spark")
    log, table = kit.MemoryLog(), tmp_path / "lake" / "table"
    options = SparkSinkOptions(
        table=str(table),
        format=table_format,
        layout="partitioned",
        commit_interval=0.1,
        segment_rows=1_000,
        segment_interval=0.05,
        drain_on_stop=False,
        niceness=0,
        spark_conf=dict(spark.SHORT_JOB),
    )
    directory = tmp_path / "sink"
    directory.mkdir()
    context = SinkContext("lake", "gw", directory)
    sink = SparkSink(context, options, SparkEngine(context, options), restart_delay=0.05)

    def holds(lo: int, hi: int) -> None:
        contents = kit.READERS[table_format](table, APP_ID)
        assert sorted(contents.sequences) == list(range(lo, hi + 1))
        assert contents.mark == hi

    await sink.start(log)
    try:
        for turn in range(3):
            log.grow(500)
            await kit.until(lambda: log.released == log.last, 240)
            await kit.until(lambda: sink.health().problem == "", 60)
            holds(500 * turn + 1, log.last)
            assert list(table.rglob("ack_date=*")), "it is partitioned as it was"
            assert ("not the one that the released rows went to" in caplog.text) == bool(turn)
            problems = " ".join(problem.text for problem in sink.health().problems)
            assert ("went to" in problems) == bool(turn)
            caplog.clear()
            shutil.rmtree(table)
    finally:
        await sink.stop()
