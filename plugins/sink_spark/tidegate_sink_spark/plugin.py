"""The plugin: ``[[sinks]] plugin = "spark"``."""

from __future__ import annotations

from typing import final

from tidegate.spi import ConfigError, PluginInfo, Sink, SinkContext, SinkFactory, hookimpl
from tidegate_sink_spark import _jars
from tidegate_sink_spark._options import SparkSinkOptions
from tidegate_sink_spark._sink import SparkSink

tidegate_plugin = PluginInfo(
    summary="Streams acknowledged messages, exactly once, into a Delta table through PySpark.",
    spi_version=(1, 0),
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
        _jars.check_choice(options.jars, options.maven_repository)
        if options.segment_size > options.staging_max:
            raise ConfigError("is larger than staging_max", key="segment_size")
        for key in options.spark_conf:
            if not key.startswith("spark."):
                raise ConfigError(
                    f"has no effect: Spark takes settings that begin with 'spark.'; for Hadoop's"
                    f" write 'spark.hadoop.{key}'",
                    key=f"spark_conf.{key}",
                )
        return SparkSink(context, options)


@hookimpl
def register_sink() -> SinkFactory:
    """See :func:`tidegate.spi.hookspecs.register_sink`."""
    return SparkSinkFactory()
