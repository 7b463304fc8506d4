"""Entry point ``extension-bridge``: makes ``plugin = "bridge"`` of ``[[extensions]]`` known."""

from __future__ import annotations

from tidegate.spi import ExtensionFactory, PluginInfo, hookimpl
from tidegate_bridge._bridge import Bridge
from tidegate_bridge._options import BridgeOptions, checked

tidegate_plugin = PluginInfo(
    summary="moves messages in from another broker, and out to it, by STOMP or MQTT",
    spi_version=(1, 0),
)


class BridgeFactory:
    """Makes a bridge."""

    @property
    def options_type(self) -> type:
        """See ExtensionFactory."""
        return BridgeOptions

    def create(self, options: object) -> Bridge:
        """See ExtensionFactory. Reads the files that *options* name, so that ``tidegate check-config`` checks them."""
        if not isinstance(options, BridgeOptions):
            raise TypeError(f"expected BridgeOptions, got {type(options).__name__}")
        return Bridge(options, checked(options))


@hookimpl
def register_extension() -> ExtensionFactory:
    """Called by the host when an ``[[extensions]]`` names ``bridge``."""
    return BridgeFactory()
