"""The plugin: ``[[sinks]] plugin = "flight"``."""

from __future__ import annotations

from typing import final

from tidegate.spi import PluginInfo, Sink, SinkContext, SinkFactory, hookimpl
from tidegate_sink_flight._options import FlightSinkOptions, listening_of
from tidegate_sink_flight._sink import FlightSink

tidegate_plugin = PluginInfo(
    summary="the acknowledged log over Arrow Flight, for Spark and other programs",
    spi_version=(1, 0),
)


@final
class FlightSinkFactory:
    """A :class:`tidegate.spi.SinkFactory`."""

    @property
    def options_type(self) -> type:
        return FlightSinkOptions

    def create(self, context: SinkContext, options: object) -> Sink:
        """Build the sink; nothing is started. Reads the certificate. Raises: ConfigError."""
        if not isinstance(options, FlightSinkOptions):
            raise TypeError(f"options must be FlightSinkOptions, not {type(options).__name__}")
        return FlightSink(context, options, listening_of(options, context))


@hookimpl
def register_sink() -> SinkFactory:
    """See :func:`tidegate.spi.hookspecs.register_sink`."""
    return FlightSinkFactory()
