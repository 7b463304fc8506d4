"""Spark's tables on HDFS (a name node and a data node of Hadoop's): what the job carries there is there once."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hdfs import Hdfs
from spark_sink import spark_sink

from tidegate_sink_spark.job.table import application_id

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.timeout(900)]

APP_ID = application_id("gw", "store-1")

#: By a Spark of its own: rows, distinct rows, the highest one; then the mark.
READ = """
import json, sys
from tidegate_sink_spark import create_session
from tidegate_sink_spark._options import SparkSinkOptions
options = SparkSinkOptions(**json.loads(sys.argv[1]))
spark = create_session("cold", options)
rows = spark.read.format(options.format).load(sys.argv[2])
found = list(rows.selectExpr("count(*)", "count(DISTINCT ack_seq)", "max(ack_seq)").first())
print("FOUND", json.dumps(found))
spark.stop()
"""


@pytest.fixture
def hdfs(tmp_path: Path, spark: Any) -> Iterator[Hdfs]:
    made = Hdfs(str(Path(spark.environment["JAVA_HOME"]) / "bin" / "java"), tmp_path)
    yield made
    made.close()


def count(spark: Any, options: dict[str, Any], location: str) -> list[int]:
    done = subprocess.run(
        [sys.executable, "-c", READ, json.dumps(options), location],
        env=spark.environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert lines, done.stderr[-3000:]
    return json.loads(lines[0].removeprefix("FOUND "))


@pytest.mark.parametrize("kind", ["delta", "iceberg", "iceberg catalog"])
async def test_kills_and_a_name_node_that_is_away_leave_each_row_once(
    kind: str,
    tmp_path: Path,
    spark: Any,
    kit: Any,
    hdfs: Hdfs,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    named: dict[str, Any] = {"table": f"{hdfs.uri}/lake/sales/acknowledged"}
    if kind == "iceberg catalog":
        catalog = {"type": "hadoop", "warehouse": f"{hdfs.uri}/lake"}
        named = {"table": "lake.sales.acknowledged", "catalog": catalog}
    table_format = kind.split()[0]
    chosen = {**named, "format": table_format, "spark_conf": dict(spark.SHORT_JOB)}
    log = kit.MemoryLog()
    sink = spark_sink(tmp_path / "sink", compact_interval=1.0, **chosen)

    async def until_released() -> None:
        await kit.until(lambda: log.released == log.last, 240)
        await kit.until(lambda: sink.health().problem == "", 60)

    await sink.start(log)
    try:
        log.grow(1_500)
        await until_released()
        for _ in range(2):
            released = log.released
            log.grow(1_500)
            log.grow(1_500)
            await kit.kill_job(sink, lambda: log.released > released)  # noqa: B023  # awaited here
            await until_released()
        hdfs.set_reachable(False)
        log.grow(1_500)
        await kit.until(lambda: "is in can be reached from here" in sink.health().problem, 240)
        assert "\n" not in sink.health().problem
        hdfs.set_reachable(True)
        await until_released()
    finally:
        hdfs.set_reachable(True)
        await sink.stop()
    found = count(spark, chosen, f"{hdfs.uri}/lake/sales/acknowledged")
    assert found == [log.last, log.last, log.last] == [9_000] * 3
