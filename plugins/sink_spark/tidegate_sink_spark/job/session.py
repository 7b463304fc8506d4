"""The Spark configuration and session of the job."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

#: All of these can be overridden with the option ``spark_conf``.
_DEFAULTS: Final = {
    "spark.master": "local[2]",
    "spark.app.name": "tidegate-sink",
    # The job is no server: its driver listens on loopback only, and there is no web page.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Delta computes a table's state in 50 partitions by default: fifty tasks for a few kilobytes.
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.session.timeZone": "UTC",
    # One collector thread beside a gateway that wants the other core.
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC",
    "spark.log.level": "WARN",
}


def spark_conf(
    *,
    jars: Sequence[Path],
    driver_memory_bytes: int,
    work_directory: Path,
    overrides: Mapping[str, str],
) -> dict[str, str]:
    """The complete configuration of the session.

    Args:
        jars: Delta's jars.
        driver_memory_bytes: heap of the Java machine.
        work_directory: for Spark's temporary files and its (unused) warehouse.
        overrides: the option ``spark_conf``; its ``spark.jars`` come after ours.
    """
    conf = {
        **_DEFAULTS,
        "spark.driver.memory": f"{driver_memory_bytes >> 20}m",
        "spark.local.dir": str(work_directory),
        "spark.sql.warehouse.dir": str(work_directory / "warehouse"),
        **overrides,
    }
    further = [item for item in overrides.get("spark.jars", "").split(",") if item]
    conf["spark.jars"] = ",".join([*map(str, jars), *further])
    return conf


def start_session(conf: Mapping[str, str]) -> Any:
    """Start the Java machine and return its ``SparkSession``; needs the environment of ``_runtime``."""
    sql: Any = importlib.import_module("pyspark.sql")
    builder = sql.SparkSession.builder
    for key, value in conf.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
