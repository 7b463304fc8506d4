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

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pluggy

from tidegate.spi.clients.extensions import ExtensionFactory
from tidegate.spi.clients.frontend import FrontEndFactory
from tidegate.spi.sink import SinkFactory, SinkLag
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


@dataclass(frozen=True, slots=True)
class ListOverflow:
    """A queue or subscription that is at its limit, or was.

    Attributes:
        destination: of the queue, or what was subscribed to, in canonical form.
        subscription: its name, or that of its share group; its key, where it is not stored; "" for a queue.
        client_id, principal: whose subscription it is.
        overflow: what happens there: ``slow``, ``refuse``, ``drop_oldest``, … (docs/limits.md).
        dropped, dead_lettered, refused: messages so far that were lost to it, that were moved to the
            dead letter queue, and publishes that were refused because of it.
        is_over: there is room again, or the list is gone.
    """

    destination: str
    subscription: str
    client_id: str
    principal: str
    overflow: str
    dropped: int
    dead_lettered: int
    refused: int
    is_over: bool


@dataclass(frozen=True, slots=True)
class StoreShortage:
    """The store has no room for new messages, or has again.

    Attributes:
        limit: the option that was reached: ``disk_free_limit`` or ``store_limit``.
        limit_bytes: what it says.
        free_bytes: free on its disk; used_bytes: what the store takes. -1: nobody looks.
        is_over: there is room again.
    """

    limit: str
    limit_bytes: int
    free_bytes: int
    used_bytes: int
    is_over: bool


@dataclass(frozen=True, slots=True)
class LogFilling:
    """The acknowledged log comes near ``acknowledged_limit``, or is well below it again.

    Attributes:
        held_bytes: what it keeps; limit_bytes: its limit.
        rows_behind: of each sink, by name.
        is_discarding: at the limit its oldest rows are discarded, and publishes are not refused.
        is_over: it is well below its limit again.
    """

    held_bytes: int
    limit_bytes: int
    rows_behind: Mapping[str, int]
    is_discarding: bool
    is_over: bool


@dataclass(frozen=True, slots=True)
class SlowConsumer:
    """A consumer that acknowledges nothing, or too little, for long, or does so again.

    Attributes:
        destination: what it subscribed to, in canonical form; subscription: its key there.
        client_id, principal: whose it is.
        act: what happens to it: ``tell``, ``cut_prefetch`` or ``disconnect``.
        found_by: the option that it was found by: ``slow_consumer_age`` or ``slow_consumer_rate``.
        in_flight: messages that it has not acknowledged.
        is_over: it acknowledges again, or as many as it should, or has nothing left, or is gone.
    """

    destination: str
    subscription: str
    client_id: str
    principal: str
    act: str
    found_by: str
    in_flight: int
    is_over: bool


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
    """Return the factory of an extension: authenticator, authorizer, interceptor or resident.

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


@hookspec
def list_overflowed(overflow: ListOverflow) -> None:
    """A queue or durable subscription has reached its limit, or (``is_over``) has room again.

    Called once when it begins and once when it is over, however many messages there are meanwhile, on
    the event loop; must not block. An exception is logged with the plugin's name and changes nothing
    else.
    """


@hookspec
def consumer_slowed(consumer: SlowConsumer) -> None:
    """A consumer is slow as its destination's policy has it, or (``is_over``) acknowledges again.

    Not told when it leaves. Same rules as list_overflowed.
    """


@hookspec
def store_short(shortage: StoreShortage) -> None:
    """Publishes are refused because the store or its disk is at a limit, or (``is_over``) no longer.

    Once for each limit when it begins and once when it is over. Same rules as list_overflowed.
    """


@hookspec
def sink_late(lag: SinkLag) -> None:
    """A sink is further behind than its ``lag_goal``, or (``is_over``) is not any more.

    Once when it begins and once when it is over, however often it comes near meanwhile. Same rules as
    list_overflowed.
    """


@hookspec
def log_filling(filling: LogFilling) -> None:
    """The acknowledged log has reached 80 % of its limit, or (``is_over``) is below 70 % again.

    Once when it begins, before anything is refused or discarded, and once when it is over. Same rules as
    list_overflowed.
    """
