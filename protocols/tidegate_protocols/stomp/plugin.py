"""Entry point ``protocol-stomp``: makes ``protocol = "stomp"`` known to a ``[[listeners]]`` table."""

from __future__ import annotations

from tidegate.spi import FrontEndFactory, PluginInfo, hookimpl
from tidegate_protocols.stomp._front_end import StompFrontEndFactory

tidegate_plugin = PluginInfo(
    summary="STOMP 1.0, 1.1 and 1.2",
    spi_version=(1, 0),
)


@hookimpl
def register_front_end() -> FrontEndFactory:
    """The factory of STOMP listeners."""
    return StompFrontEndFactory()
