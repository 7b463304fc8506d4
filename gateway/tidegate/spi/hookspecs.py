"""The hooks a plugin may implement. They register factories and announce rare events.

Per-message work never goes through a hook: it goes through the typed object that a registered
factory made. All hooks are synchronous; a hook implementation that is a coroutine function is
refused at registration, because nobody would ever await it.

A plugin is a module (named by an entry point of the group ``tidegate.plugins``) that defines
``tidegate_plugin = PluginInfo(...)`` and decorates its functions with :data:`hookimpl`. The entry
point's name is the kind, a dash and the name used in the configuration: ``store-journal``,
``cursor-file``, ``protocol-stomp``, ``sink-spark``, ``extension-NAME``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pluggy

from tidegate.spi.clients.frontend import FrontEndFactory
from tidegate.spi.clients.security import ExtensionFactory
from tidegate.spi.sink import SinkFactory
from tidegate.spi.storage.cursor import CursorFactory
from tidegate.spi.storage.store import MessageStoreFactory

PROJECT: Final = "tidegate"
ENTRY_POINT_GROUP: Final = "tidegate.plugins"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """What a plugin module says of itself in its attribute ``tidegate_plugin``.

    Attributes:
        summary: one line for ``tidegate plugins``.
        spi_version: (major, minor) of the contract it was written for.
    """

    summary: str
    spi_version: tuple[int, int]


@dataclass(frozen=True, slots=True)
class GatewayInfo:
    """What the lifecycle hooks are told. Attributes: name, version, listeners (``stomp://…``)."""

    name: str
    version: str
    listeners: tuple[str, ...]


@hookspec(firstresult=True)
def register_message_store() -> MessageStoreFactory | None:
    """Return the factory of a message store. Called once, when ``[store] plugin`` names it."""


@hookspec(firstresult=True)
def register_cursor() -> CursorFactory | None:
    """Return the factory of a cursor type. Called once, when a policy names it."""


@hookspec(firstresult=True)
def register_front_end() -> FrontEndFactory | None:
    """Return the factory of a protocol. Called once, when a ``[[listeners]]`` names it."""


@hookspec(firstresult=True)
def register_sink() -> SinkFactory | None:
    """Return the factory of a sink type. Called once, when a ``[[sinks]]`` names it."""


@hookspec(firstresult=True)
def register_extension() -> ExtensionFactory | None:
    """Return the factory of an extension: authenticator, authorizer or interceptor.

    Called once, when an ``[[extensions]]`` names it.
    """


@hookspec
def gateway_started(gateway: GatewayInfo) -> None:
    """All listeners accept connections. Called once, on the event loop; must not block.

    An exception is logged with the plugin's name and changes nothing else.
    """


@hookspec
def gateway_stopping(gateway: GatewayInfo) -> None:
    """The gateway begins to stop: listeners are closed next. Same rules as gateway_started."""
