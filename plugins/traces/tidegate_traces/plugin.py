"""Entry point ``extension-traces``: makes ``plugin = "traces"`` of ``[[extensions]]`` known."""

from __future__ import annotations

from tidegate.spi import ExtensionFactory, PluginInfo, hookimpl
from tidegate_traces._extension import Traces
from tidegate_traces._options import TracesOptions

tidegate_plugin = PluginInfo(
    summary="OpenTelemetry traces of messages, sent by OTLP/HTTP",
    spi_version=(1, 0),
)


class TracesFactory:
    """Makes the observer."""

    @property
    def options_type(self) -> type:
        """See ExtensionFactory."""
        return TracesOptions

    def create(self, options: object) -> Traces:
        """See ExtensionFactory. Nothing is connected to before the gateway starts."""
        if not isinstance(options, TracesOptions):
            raise TypeError(f"expected TracesOptions, got {type(options).__name__}")
        return Traces(options)


@hookimpl
def register_extension() -> ExtensionFactory:
    """Called by the host when an ``[[extensions]]`` names ``traces``."""
    return TracesFactory()
