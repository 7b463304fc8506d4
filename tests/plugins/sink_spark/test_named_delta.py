"""A Delta table by its three-part name, in the one catalog for it that comes with Spark: a Hive metastore."""

from pathlib import Path
from typing import Any

import deltalake
import pytest
from spark_sink import spark_sink

from tidegate_sink_spark.job.table import application_id

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.timeout(900)]


async def test_a_name_is_a_table_of_the_catalog(tmp_path: Path, spark: Any, kit: Any) -> None:
    """Namespace and table are made; a killed job is replaced; dead letters have a name, too."""
    log = kit.MemoryLog()
    log.damaged = {7}
    warehouse = tmp_path / "warehouse"
    sink = spark_sink(
        tmp_path / "sink",
        table="spark_catalog.sales.acknowledged",
        spark_conf={
            **spark.SHORT_JOB,
            "spark.sql.catalogImplementation": "hive",
            "spark.sql.warehouse.dir": str(warehouse),
            "spark.hadoop.javax.jdo.option.ConnectionURL": (
                f"jdbc:derby:;databaseName={tmp_path / 'metastore'};create=true"
            ),
        },
    )
    await sink.start(log)
    try:
        log.grow(1_500)
        await kit.until(lambda: log.released == log.last, 240)
        await kit.kill_job(sink)
        log.grow(1_500)
        await kit.until(lambda: log.released == log.last, 240)
    finally:
        await sink.stop()
    contents = kit.read_table(
        warehouse / "sales.db" / "acknowledged", application_id("gw", "store-1")
    )
    assert contents.mark == 3_000
    assert sorted(contents.sequences) == [n for n in range(1, 3_001) if n != 7]
    dead = deltalake.DeltaTable(str(warehouse / "sales.db" / "acknowledged_dlq"))
    assert dead.to_pyarrow_table(columns=["ack_seq"])["ack_seq"].to_pylist() == [7]
