"""The plugin: ``[[listeners]] protocol = "admin"``."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import final

from tidegate.spi import Broker, FrontEnd, FrontEndFactory, ListenerConfig, PluginInfo, hookimpl
from tidegate_admin._front_end import AdminFrontEnd
from tidegate_admin._options import AdminOptions, check
from tidegate_admin._process import AdminProcess

tidegate_plugin = PluginInfo(
    summary="the operator's console, HTTP API, health checks and metrics",
    spi_version=(1, 0),
)

#: The port of ActiveMQ's and Artemis's consoles.
DEFAULT_PORT = 8161


@final
class AdminFrontEndFactory:
    """A :class:`tidegate.spi.FrontEndFactory` and :class:`tidegate.spi.EarlyFrontEndFactory`."""

    def __init__(self) -> None:
        self._begun: list[AdminProcess] = []

    @property
    def options_type(self) -> type:
        return AdminOptions

    @property
    def transports(self) -> Sequence[str]:
        return ("tcp", "tls")

    @property
    def default_port(self) -> int:
        return DEFAULT_PORT

    async def begin(self) -> None:
        """See EarlyFrontEndFactory. The process is generic at first: any listener may take it."""
        with contextlib.suppress(OSError):  # the listener tries again, and reports it
            self._begun.append(await AdminProcess.start())

    def create(self, config: ListenerConfig, broker: Broker) -> FrontEnd:
        """Build the listener without starting it. Checks the certificate. Raises: ConfigError."""
        if not isinstance(config.options, AdminOptions):
            raise TypeError(f"options must be AdminOptions, not {type(config.options).__name__}")
        check(config, config.options)
        return AdminFrontEnd(config, config.options, self._begun)


@hookimpl
def register_front_end() -> FrontEndFactory:
    """See :func:`tidegate.spi.hookspecs.register_front_end`."""
    return AdminFrontEndFactory()
