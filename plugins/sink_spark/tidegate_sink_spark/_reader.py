"""A Spark session for reading the table, set up as the job's: same Java, same jars."""

from __future__ import annotations

import os
from typing import Any

from tidegate_sink_spark._options import SparkSinkOptions
from tidegate_sink_spark._target import find_target
from tidegate_sink_spark.java import archive, jars, runtime
from tidegate_sink_spark.java.scratch import make_scratch_directory
from tidegate_sink_spark.job.session import spark_conf, start_session


def create_session(app_name: str, options: SparkSinkOptions | None = None) -> Any:
    """Start a local ``SparkSession`` that reads and writes the sink's table format.

    For your own programs beside the gateway: ``spark.read.format("delta").load(table)``. It
    sets JAVA_HOME and PYSPARK_PYTHON of this process where they are needed.

    Args:
        app_name: shown by Spark.
        options: the sink's options (Java, jars, memory, ``spark_conf``); the defaults when None.
    Returns: the session; ``stop()`` it when done.
    Raises: ConfigError when there is no Java; JarsError when the jars cannot be fetched.
    """
    options = options or SparkSinkOptions()
    work = make_scratch_directory()
    java = runtime.find_java(options.java_home, work / "java", os.environ)
    environment = runtime.job_environment(java, os.environ)
    found = jars.jars_of(options, environment)
    os.environ.update(environment)
    conf = spark_conf(
        jars=found,
        driver_memory_bytes=options.driver_memory,
        work_directory=work,
        overrides={
            **archive.settings_of(archive.archive_path(options, java, environment)),
            "spark.app.name": app_name,
            **find_target(options, work).conf,
            **options.spark_conf,
        },
        table_format=options.format,
    )
    return start_session(conf, work)
