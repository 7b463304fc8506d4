"""The plugin: ``[[sinks]] plugin = "spark"``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from tidegate.spi import ConfigError, PluginInfo, Sink, SinkContext, SinkFactory, hookimpl
from tidegate_sink_spark._engine import Engine
from tidegate_sink_spark._job_engine import JobEngine
from tidegate_sink_spark._options import SparkSinkOptions, is_set, refuse
from tidegate_sink_spark._sink import SparkSink
from tidegate_sink_spark._spark_engine import SparkEngine
from tidegate_sink_spark.cluster.engine import SubmittedEngine
from tidegate_sink_spark.cluster.place import check_place, check_staging_directory
from tidegate_sink_spark.connect.engine import ConnectEngine, check_connect
from tidegate_sink_spark.delta_rs.engine import DeltaRsEngine
from tidegate_sink_spark.java import jars

tidegate_plugin = PluginInfo(
    summary="acknowledged messages, exactly once, into a Delta, Iceberg or Parquet table",
    spi_version=(1, 0),
)

_OF_JAVA: Final = (
    "master",
    "connect",
    "job",
    "spark_conf",
    "java_home",
    "jars",
    "jars_cache",
    "maven_repository",
    "driver_memory",
    "driver_idle",
)


@final
class SparkSinkFactory:
    """A :class:`tidegate.spi.SinkFactory`."""

    @property
    def options_type(self) -> type:
        return SparkSinkOptions

    def create(self, context: SinkContext, options: object) -> Sink:
        """Build the sink; nothing is started, nothing is written. Raises: ConfigError."""
        if not isinstance(options, SparkSinkOptions):
            raise TypeError(f"options must be SparkSinkOptions, not {type(options).__name__}")
        _check(options)
        return SparkSink(context, options, _engine_of(options)(context, options))


def _engine_of(options: SparkSinkOptions) -> Callable[[SinkContext, SparkSinkOptions], Engine]:
    if options.engine == "deltalake":
        return DeltaRsEngine
    if options.format == "parquet":
        return JobEngine
    if options.connect:
        return ConnectEngine
    return SubmittedEngine if options.job == "submitted" else SparkEngine


def _check(options: SparkSinkOptions) -> None:
    """Refuse options that do not fit together, whatever the table. Raises: ConfigError."""
    jars.check_choice(options)
    check_staging_directory(options.staging_directory)
    if options.segment_size > options.staging_max:
        raise ConfigError("is larger than staging_max", key="segment_size")
    _check_upkeep(options)
    if not options.drain_on_stop:
        refuse(
            options,
            ("stop_timeout",),
            "has no effect with drain_on_stop = false, which waits for nothing; remove one of the two",
        )
    if options.engine == "deltalake":
        refuse(
            options,
            _OF_JAVA,
            "has no effect with engine 'deltalake', which starts no Spark; remove it, or take engine 'spark'",
        )
        return
    refuse(
        options,
        ("storage_options",),
        "has effect with engine 'deltalake' alone; for Spark write 'spark.hadoop.fs.…' in spark_conf",
    )
    if options.format == "parquet":
        refuse(
            options,
            _OF_JAVA,
            "has no effect with format 'parquet', which is written without Spark and Java; remove it, or take "
            "format 'delta' or 'iceberg'",
        )
        return
    _check_conf(options)
    if options.connect:
        check_connect(options)
        return
    if options.job == "submitted":
        refuse(
            options,
            ("driver_idle",),
            "has no effect with job 'submitted', which the gateway neither starts nor ends; remove it",
        )
    check_place(options)


def _check_conf(options: SparkSinkOptions) -> None:
    for key in options.spark_conf:
        if not key.startswith("spark."):
            raise ConfigError(
                f"has no effect: Spark takes settings that begin with 'spark.'; for Hadoop's"
                f" write 'spark.hadoop.{key}'",
                key=f"spark_conf.{key}",
            )
    if is_set(options, "driver_memory") and "spark.driver.memory" in options.spark_conf:
        raise ConfigError(
            "is said by the option driver_memory, too; remove one of them",
            key="spark_conf.spark.driver.memory",
        )


def _check_upkeep(options: SparkSinkOptions) -> None:
    """Refuse impossible upkeep. Raises: ConfigError."""
    for key in ("compact_interval", "vacuum_retention"):
        if getattr(options, key) and options.engine == "spark" and options.connect:
            raise ConfigError(
                "has no effect with `connect`: run OPTIMIZE and VACUUM on the server; remove it",
                key=key,
            )
    if not options.vacuum_retention:
        return
    if not options.compact_interval:
        raise ConfigError(
            "has no effect without compact_interval, which makes files that are in the table no more",
            key="vacuum_retention",
        )
    if options.format == "parquet":
        raise ConfigError(
            "has no effect with format 'parquet', of which readers see files and no versions; remove it",
            key="vacuum_retention",
        )


@hookimpl
def register_sink() -> SinkFactory:
    """See :func:`tidegate.spi.hookspecs.register_sink`."""
    return SparkSinkFactory()
