"""The entry point ``protocol-mqtt``."""

from __future__ import annotations

from typing import Final

from tidegate.spi import FrontEndFactory, PluginInfo, hookimpl
from tidegate_protocols.mqtt._front_end import MqttFrontEndFactory

tidegate_plugin: Final = PluginInfo(summary="MQTT 3.1, 3.1.1 and 5.0", spi_version=(1, 0))


@hookimpl
def register_front_end() -> FrontEndFactory:
    """The factory of ``protocol = "mqtt"`` listeners."""
    return MqttFrontEndFactory()
