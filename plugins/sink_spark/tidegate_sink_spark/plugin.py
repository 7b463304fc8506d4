"""The plugin: ``[[sinks]] plugin = "spark"``."""

from __future__ import annotations

from typing import Final, final

from tidegate.spi import ConfigError, PluginInfo, Sink, SinkContext, SinkFactory, hookimpl
from tidegate_sink_spark._job_engine import JobEngine
from tidegate_sink_spark._options import SparkSinkOptions
from tidegate_sink_spark._sink import SparkSink
from tidegate_sink_spark._spark_engine import SparkEngine
from tidegate_sink_spark.cluster.engine import SubmittedEngine
from tidegate_sink_spark.cluster.place import check_place
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
        jars.check_choice(options.jars, options.maven_repository)
        if options.segment_size > options.staging_max:
            raise ConfigError("is larger than staging_max", key="segment_size")
        _check_upkeep(options)
        if options.driver_idle and options.job == "submitted":
            raise ConfigError(
                "has no effect with job 'submitted', which the gateway neither starts nor ends; remove it",
                key="driver_idle",
            )
        if options.engine == "spark" and options.connect:
            check_connect(options)
        else:
            check_place(options)
        for key in options.spark_conf:
            if not key.startswith("spark."):
                raise ConfigError(
                    f"has no effect: Spark takes settings that begin with 'spark.'; for Hadoop's"
                    f" write 'spark.hadoop.{key}'",
                    key=f"spark_conf.{key}",
                )
        if options.engine == "deltalake":
            _check_without_java(
                options,
                "engine 'deltalake', which starts no Spark; remove it, or take engine 'spark'",
            )
            return SparkSink(context, options, DeltaRsEngine(context, options))
        if options.format == "parquet":
            _check_without_java(
                options,
                "format 'parquet', which is written without Spark and Java; remove it, or take format "
                "'delta' or 'iceberg'",
            )
            return SparkSink(context, options, JobEngine(context, options))
        if options.connect:
            return SparkSink(context, options, ConnectEngine(context, options))
        engine = SubmittedEngine if options.job == "submitted" else SparkEngine
        return SparkSink(context, options, engine(context, options))


def _check_upkeep(options: SparkSinkOptions) -> None:
    """Refuse upkeep that cannot be. Raises: ConfigError."""
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


def _check_without_java(options: SparkSinkOptions, choice: str) -> None:
    """Options that speak of Java act on nothing with *choice*. Raises: ConfigError."""
    defaults = SparkSinkOptions()
    for key in _OF_JAVA:
        if getattr(options, key) != getattr(defaults, key):
            raise ConfigError(f"has no effect with {choice}", key=key)


@hookimpl
def register_sink() -> SinkFactory:
    """See :func:`tidegate.spi.hookspecs.register_sink`."""
    return SparkSinkFactory()
