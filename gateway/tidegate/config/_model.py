"""The configuration as frozen values: what the TOML file says, before any plugin is looked up.

Every option of the host is declared here once, with :func:`tidegate.spi.option`; the parser, the
error texts and the tables in docs/configuration.md are all made from these declarations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from tidegate.config._limits import HeldLimits, Quota
from tidegate.config._policies import PolicyTable
from tidegate.spi import Kind, Outcome, option

STORE_PLUGIN_DEFAULT: Final = "journal"
#: File descriptors besides those of client connections: store, sinks, listeners, libraries.
DESCRIPTORS_RESERVED: Final = 512
_OUTCOMES: Final = tuple([item.word for item in Outcome if item is not Outcome.ACKNOWLEDGED])


def _no_options() -> Mapping[str, object]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class BrokerConfig(HeldLimits):
    """The ``[broker]`` table: the gateway as a whole."""

    name: str = option(
        "tidegate",
        help="The gateway's name in messages, logs and rows of sinks: letters, digits, `.`, `_` "
        "and `-`, at most 64. Tells two gateways that feed one table or log apart.",
    )
    data_directory: Path = option(
        Path("tidegate-data"),
        help="Where everything durable lives; left out, it is in the working directory. One gateway owns "
        "it at a time; a second one is refused rather than damaging it.",
    )
    persistent: bool = option(
        True,
        help="`false` keeps every message in memory only: nothing survives a restart, and the "
        "disk is never the limit. For tests and for data that is worthless when late.",
    )
    log_level: str = option(
        "info",
        choices=("debug", "info", "warning", "error"),
        help="The log has this and what is worse. `tidegate run --log-level` comes before it.",
    )
    log_format: str = option(
        "text",
        choices=("text", "json"),
        help="How a line of the log is written: for people, or as one JSON object for what collects logs "
        "([the log](#the-log)).",
    )
    connections_max: int = option(
        10_000,
        minimum=1,
        help="Client connections at a time, all listeners together, counted from accept on: also "
        "those in a handshake. The next one is closed at once. Guards against running out of "
        "memory and file descriptors; 512 of those of the process are left to the store, so that "
        "fewer connections are let in where its limit is low.",
        act="the next connection is closed at once",
        metric="counted.connections",
    )
    overload_lag: float = option(
        1.0,
        kind=Kind.DURATION,
        minimum=0.01,
        zero="never",
        help="When the event loop comes later than this to what is due, several times in a row, new "
        "connections are closed at once until it is below half of it for two seconds. Guards those "
        "that are connected on a machine that cannot keep up.",
    )
    login_checks_max: int = option(
        8,
        minimum=1,
        help="Passwords that extensions check at a time, all clients together. The others wait, "
        "and addresses (of IPv6 the first 64 bits) have their turns one after the other. Guards "
        "against a flood of logins from one address, behind which nobody else would get in.",
        act="a login waits",
        metric="logins.checking",
    )
    login_waiting_limit: int = option(
        16 << 20,
        kind=Kind.SIZE,
        minimum=1 << 16,
        help="What logins that wait may take; above it, of the address that has most of it, the "
        "one that has waited longest is refused. Guards the memory.",
        act="a login is refused",
        metric="logins.dropped",
    )
    login_failures_free: int = option(
        3,
        minimum=0,
        help="Wrong passwords for one user from one address before `login_delay` applies. Ten "
        "times as many from one address, or for one user, count against all who are guessed there "
        "and against all addresses that guess.",
    )
    login_delay: float = option(
        0.25,
        kind=Kind.DURATION,
        minimum=0.001,
        zero="off",
        help="How long an address waits for its next try at a user after that, doubled with each "
        "further failure; others do not. Guards against guessing, and locks nobody out.",
    )
    login_delay_max: float = option(
        5.0,
        kind=Kind.DURATION,
        minimum=0.001,
        help="The longest such delay; not more than clients wait for an answer to their CONNECT. "
        "For a client that was let in from there before, with the same client id, 1s.",
        act="the longest wait",
        metric="logins.delayed",
    )
    login_failures_age: float = option(
        600.0,
        kind=Kind.DURATION,
        minimum=1,
        help="Failures are forgotten when there was none for so long.",
    )
    login_failures_limit: int = option(
        4 << 20,
        kind=Kind.SIZE,
        minimum=1 << 16,
        help="What the memory of failures, and of clients that were let in before, may take; "
        "beyond it the oldest are forgotten. Guards against floods from many addresses.",
        act="the oldest failures are forgotten",
        metric="logins.failures.bytes",
    )
    transactions_open_max: int = option(
        100,
        minimum=1,
        help="Transactions one connection may have open; the next BEGIN is refused. Guards "
        "against clients that begin and never end them.",
        act="BEGIN is refused",
    )
    transaction_operations_max: int = option(
        5_000,
        minimum=1,
        help="Operations in one transaction; the next one is refused. Guards memory: they are "
        "held back until COMMIT. Guards everyone else's time as well: a COMMIT stands or falls as one, "
        "and takes some 4 ms of the loop for each 1,000.",
        act="the operation is refused",
    )
    prepared_branches_max: int = option(
        1000,
        minimum=1,
        help="Prepared branches of distributed transactions (XA) that are in doubt, and those that "
        "an operator completed and nobody has forgotten yet; the next prepare is refused. Guards "
        "against transaction managers that never come back.",
        act="PREPARE is refused",
    )
    id_cache_size: int = option(
        20_000,
        minimum=1,
        zero="off",
        help="Duplicate ids (`_AMQ_DUPL_ID`) remembered for each destination; when there are more "
        "the oldest is forgotten. All destinations together remember 50 times as many.",
        act="the oldest ids are forgotten",
    )
    persist_id_cache: bool = option(
        True,
        help="Keep duplicate ids in the store, each in one batch with its message. `false`: a "
        "message that is repeated after a restart is taken for a new one.",
    )
    pending_write_limit: int = option(
        64 << 20,
        kind=Kind.SIZE,
        minimum=1,
        help="Bytes accepted from clients and not yet durable; above it producers are throttled "
        "until the store catches up. Guards memory when the disk is slow.",
        act="producers are not read until the store catches up",
    )
    cursor_memory_limit: int = option(
        64 << 20,
        kind=Kind.SIZE,
        minimum=1,
        help="Memory that waiting messages of all `store` cursors may take together; those whose "
        "consumers have taken nothing for longest go back to where they are anyway, the store. "
        "Guards the process against many backlogs that are each below `memory_limit`.",
        act="messages go back to the store, which has them",
        metric="waiting.stored.bytes",
    )
    unstored_memory_limit: int = option(
        512 << 20,
        kind=Kind.SIZE,
        minimum=1 << 20,
        zero="unlimited",
        help="The same of all `file` and `vm` cursors, which hold what no store has. Above it those "
        "with more than 64 KiB spool, or have their producers wait. A message counts in each "
        "subscription in which it waits. Guards the process against many subscriptions that are not "
        "served.",
        act="messages are spooled, or producers wait",
        metric="waiting.unstored.bytes",
    )
    retained_limit: int = option(
        256 << 20,
        kind=Kind.SIZE,
        minimum=1,
        help="Memory that retained messages may take, bodies and all; a publish that would need "
        "more is refused. Guards against clients that invent topics.",
        act="the publish is refused",
        metric="held.retained.bytes",
    )
    system_topics_interval: float = option(
        10.0,
        kind=Kind.DURATION,
        minimum=1,
        zero="off",
        help="How often the topics below `$SYS/broker/` are published: version, uptime, clients, "
        "messages. Subscribing to `$SYS/#` shows them.",
    )
    acknowledged_limit: int = option(
        16 << 30,
        kind=Kind.SIZE,
        minimum=1,
        help="Bytes of acknowledged messages kept for sinks that have not released them; "
        "`acknowledged_overflow` says what happens above it. Guards the disk when a sink stands "
        "still.",
        act="publishes are refused, or the oldest rows discarded (`acknowledged_overflow`)",
    )
    acknowledged_body_max: int = option(
        64 << 20,
        kind=Kind.SIZE,
        minimum=1 << 20,
        help="Sinks take bodies in memory, one streamed body at a time. One that is larger than "
        "this is left out of its row, which has a header `large-body-omitted` with its size then. "
        "Guards the memory; bodies that are not streamed are not affected.",
        act="the body is left out",
    )
    acknowledged_overflow: str = option(
        "refuse_publish",
        choices=("refuse_publish", "discard_oldest"),
        help="What happens at `acknowledged_limit`: refuse new messages, so that the sink loses "
        "nothing, or discard the oldest acknowledged ones, so that clients go on.",
    )
    acknowledged_outcomes: tuple[str, ...] = option(
        _OUTCOMES,
        choices=_OUTCOMES,
        help="How messages leave that have a row for the sinks besides those that were acknowledged. "
        "What has a row takes room until the sinks have it, purged messages, too.",
    )
    acknowledged_age: float = option(
        7 * 86_400.0,
        kind=Kind.DURATION,
        zero="unlimited",
        help="Acknowledged messages older than this are handled as `acknowledged_overflow` says. "
        "Guards against a sink that was forgotten while traffic is too small to fill the limit.",
    )


@dataclass(frozen=True, slots=True)
class ListenerTable:
    """One ``[[listeners]]`` table: the host's keys, and the protocol's own ones unparsed."""

    protocol: str = option(
        help="The protocol plugin, e.g. `stomp` or `mqtt` (entry point `protocol-NAME`).",
    )
    bind: str = option(
        "",
        help='Address and port: `"127.0.0.1:61613"`, `"[::1]:61613"`, or `":61613"` for all '
        "interfaces; port 0 takes a free one. Left out: loopback and the protocol's own port, so "
        "that nothing is reachable from outside by accident.",
    )
    transport: str = option(
        "",
        help="How bytes travel, e.g. `tcp`. Left out: the protocol's first one. One that the "
        "protocol does not have is refused at start.",
    )
    allow_anonymous: bool | None = option(
        None,
        help="Accept clients without credentials. Left out: yes on loopback while no extension "
        "authenticates, otherwise no. A listener on any other address without authentication is "
        "refused at start unless this says `true`.",
    )
    options: Mapping[str, object] = field(default_factory=_no_options)


@dataclass(frozen=True, slots=True)
class StoreTable:
    """The ``[store]`` table: which store, and its own options unparsed."""

    plugin: str = option(
        STORE_PLUGIN_DEFAULT,
        help="The store plugin, e.g. `journal` (entry point `store-NAME`).",
    )
    options: Mapping[str, object] = field(default_factory=_no_options)


@dataclass(frozen=True, slots=True)
class SinkTable:
    """One ``[[sinks]]`` table: which sink, and its own options unparsed."""

    plugin: str = option(help="The sink plugin, e.g. `spark` (entry point `sink-NAME`).")
    name: str = option(
        "",
        help="This sink's name, also of its directory: letters, digits, `.`, `_` and `-`. Left "
        "out: the plugin's name. Two sinks must not have the same, or they would share one mark.",
    )
    options: Mapping[str, object] = field(default_factory=_no_options)


@dataclass(frozen=True, slots=True)
class ExtensionTable:
    """One ``[[extensions]]`` table: which extension, and its own options unparsed."""

    plugin: str = option(
        help="The extension plugin (entry point `extension-NAME`): an authenticator, authorizer, "
        "interceptor or observer. They are asked in the order of the file.",
    )
    options: Mapping[str, object] = field(default_factory=_no_options)


#: The embedded default, for no file or a file without ``[[listeners]]``.
DEFAULT_LISTENERS: Final = (
    ListenerTable(protocol="stomp", bind="127.0.0.1:61613"),
    ListenerTable(protocol="mqtt", bind="127.0.0.1:1883"),
    ListenerTable(protocol="admin", bind="127.0.0.1:8161"),
)


@dataclass(frozen=True, slots=True)
class Config:
    """The whole file. Attributes: path ("" when there is none), then one for each table."""

    path: str = ""
    broker: BrokerConfig = field(default_factory=BrokerConfig)
    listeners: tuple[ListenerTable, ...] = DEFAULT_LISTENERS
    store: StoreTable = field(default_factory=StoreTable)
    destinations: tuple[PolicyTable, ...] = ()
    sinks: tuple[SinkTable, ...] = ()
    extensions: tuple[ExtensionTable, ...] = ()
    quotas: tuple[Quota, ...] = ()
