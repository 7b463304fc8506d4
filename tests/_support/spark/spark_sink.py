"""A sink on Spark itself, for tests in which its job, Java or what the table lies on goes away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tidegate.spi import SinkContext
from tidegate_sink_spark._options import SparkSinkOptions
from tidegate_sink_spark._sink import SparkSink
from tidegate_sink_spark._spark_engine import SparkEngine


def spark_sink(directory: Path, *, name: str = "lake", **options: Any) -> SparkSink:
    """One that stages and commits often, and starts a job at once in the place of one that died."""
    directory.mkdir(exist_ok=True)
    context = SinkContext(name, "gw", directory)
    chosen = SparkSinkOptions(
        commit_interval=0.1, segment_rows=1_000, segment_interval=0.05, **options
    )
    return SparkSink(context, chosen, SparkEngine(context, chosen), restart_delay=0.05)
