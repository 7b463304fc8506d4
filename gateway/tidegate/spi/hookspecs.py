"""The hooks a plugin may implement. They register factories and announce rare events.

Per-message work never goes through a hook: it goes through the typed object that a registered
factory created. All hooks are synchronous; a hook implementation that is a coroutine function is
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
    """What a plugin module says about itself in its attribute ``tidegate_plugin``.

    Attributes:
        summary: one line for ``tidegate plugins``.
        spi_version: (major, minor) of the contract it was written for.
    """

    summary: str
    spi_version: tuple[int, int]


@dataclass(frozen=True, slots=True)
class GatewayInfo:
    """What the lifecycle hooks receive. Attributes: name, version, listeners (``stomp://…``)."""

    name: str
    version: str
    listeners: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ListOverflow:
    """A queue or subscription that is at its limit, or was.

    Attributes:
        destination: the queue, or what was subscribed to, in canonical form.
        subscription: its name, or that of its share group; its key if it is not stored; "" for a queue.
        client_id, principal: owner of the subscription.
        overflow: what happens there: ``slow``, ``refuse``, ``drop_oldest``, … (docs/limits.md).
        dropped, dead_lettered, refused: messages lost because of it so far, messages moved to the
            dead-letter queue, and publishes refused.
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
    """The store has no room for new messages, or has room again.

    Attributes:
        limit: the option that was reached: ``disk_free_limit`` or ``store_limit``.
        limit_bytes: its value.
        free_bytes: free on its disk; used_bytes: what the store takes. -1: not measured.
        is_over: there is room again.
    """

    limit: str
    limit_bytes: int
    free_bytes: int
    used_bytes: int
    is_over: bool


@dataclass(frozen=True, slots=True)
class LogFilling:
    """The acknowledged log approaches ``acknowledged_limit``, or is well below it again.

    Attributes:
        held_bytes: what it keeps; limit_bytes: its limit.
        rows_behind: of each sink, by name.
        is_discarding: at the limit, its oldest rows are discarded instead of publishes being refused.
        is_over: it is well below its limit again.
    """

    held_bytes: int
    limit_bytes: int
    rows_behind: Mapping[str, int]
    is_discarding: bool
    is_over: bool


@dataclass(frozen=True, slots=True)
class SlowConsumer:
    """A consumer that has acknowledged nothing, or too little, for a long time, or does so again.

    Attributes:
        destination: what it subscribed to, in canonical form; subscription: its key there.
        client_id, principal: who it is.
        act: what happens to it: ``tell``, ``cut_prefetch`` or ``disconnect``.
        found_by: the option it was found by: ``slow_consumer_age`` or ``slow_consumer_rate``.
        in_flight: messages it has not acknowledged.
        is_over: it acknowledges again, fast enough again, has nothing left, or is gone.
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
    """Return the factory of a protocol. Called once, when a ``[[listeners]]`` table names it."""


@hookspec(firstresult=True)
def register_sink() -> SinkFactory | None:
    """Return the factory of a sink type. Called once, when a ``[[sinks]]`` table names it."""


@hookspec(firstresult=True)
def register_extension() -> ExtensionFactory | None:
    """Return the factory of an extension: authenticator, authorizer, interceptor, resident …

    Called once, when an ``[[extensions]]`` table names it.
    """


@hookspec
def gateway_started(gateway: GatewayInfo) -> None:
    """All listeners accept connections. Called once, on the event loop; must not block.

    An exception is logged with the plugin's name and changes nothing else.
    """


@hookspec
def gateway_stopping(gateway: GatewayInfo) -> None:
    """The gateway begins to stop; listeners are closed next. Same rules as gateway_started."""


@hookspec
def list_overflowed(overflow: ListOverflow) -> None:
    """A queue or durable subscription has reached its limit, or (``is_over``) has room again.

    Called once when it begins and once when it is over, however many messages come in between. On
    the event loop; must not block. An exception is logged with the plugin's name and changes nothing
    else.
    """


@hookspec
def consumer_slowed(consumer: SlowConsumer) -> None:
    """A consumer is slow by its destination's policy, or (``is_over``) acknowledges again.

    Not called when it leaves. Same rules as list_overflowed.
    """


@hookspec
def store_short(shortage: StoreShortage) -> None:
    """Publishes are refused because the store or its disk is at a limit, or (``is_over``) no longer are.

    Called for each limit once when it begins and once when it is over. Same rules as list_overflowed.
    """


@hookspec
def sink_late(lag: SinkLag) -> None:
    """A sink is further behind than its ``lag_goal``, or (``is_over``) no longer is.

    Called once when it begins and once when it is over, however often the lag nears the goal in
    between. Same rules as list_overflowed.
    """


@hookspec
def log_filling(filling: LogFilling) -> None:
    """The acknowledged log has reached 80 % of its limit, or (``is_over``) is below 70 % again.

    Called once when it begins, before anything is refused or discarded, and once when it is over. Same rules
    as list_overflowed.
    """
