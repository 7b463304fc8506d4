"""The configuration as frozen values: what the TOML file says, before any plugin is looked up.

Every option of the host is declared here once, with :func:`tidegate.spi.option`. The parser, the
error texts and the tables in docs/configuration.md are all derived from these declarations.
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
        help="The gateway's name in messages, logs and sink rows: letters, digits, `.`, `_` "
        "and `-`, at most 64. Distinguishes gateways that feed the same table or log.",
    )
    data_directory: Path = option(
        Path("tidegate-data"),
        help="Directory for all durable data; by default inside the working directory. One "
        "gateway owns it at a time; a second one is refused, so it cannot damage the "
        "data.",
    )
    persistent: bool = option(
        True,
        help="`false` keeps every message in memory only: nothing survives a restart, and "
        "the disk is never the bottleneck. For tests, and for data that is worthless "
        "when late.",
    )
    log_level: str = option(
        "info",
        choices=("debug", "info", "warning", "error"),
        help="Log messages of this level and above. `tidegate run --log-level` overrides it.",
    )
    log_format: str = option(
        "text",
        choices=("text", "json"),
        help="Log format: text for people, or one JSON object per line for log collectors "
        "([the log](#the-log)).",
    )
    connections_max: int = option(
        10_000,
        minimum=1,
        help="Simultaneous client connections of all listeners, counted from accept on, so "
        "handshakes are included. The next one is closed at once. Guards against "
        "running out of memory and file descriptors; 512 of the process's descriptors "
        "are reserved for the store, so a low descriptor limit means fewer connections.",
        act="the next connection is closed at once",
        metric="counted.connections",
    )
    overload_lag: float = option(
        1.0,
        kind=Kind.DURATION,
        minimum=0.01,
        zero="never",
        help="When the event loop is repeatedly later than this, new connections are closed "
        "at once, until the delay has been below half of it for two seconds. Guards "
        "the connected clients on a machine that cannot keep up.",
    )
    login_checks_max: int = option(
        8,
        minimum=1,
        help="Passwords that extensions check at the same time. Further logins wait, and "
        "source addresses (for IPv6, the first 64 bits) take turns. Guards against a "
        "flood of logins from one address that would lock everybody else out.",
        act="a login waits",
        metric="logins.checking",
    )
    login_waiting_limit: int = option(
        16 << 20,
        kind=Kind.SIZE,
        minimum=1 << 16,
        help="Memory for logins that wait. Above it, the longest-waiting login of the "
        "address with the most is refused. Guards memory.",
        act="a login is refused",
        metric="logins.dropped",
    )
    login_failures_free: int = option(
        3,
        minimum=0,
        help="Wrong passwords for one user from one address before `login_delay` applies. "
        "Ten times as many from one address, or for one user, and the delay applies to "
        "all users tried from that address, or to all addresses that try that user.",
    )
    login_delay: float = option(
        0.25,
        kind=Kind.DURATION,
        minimum=0.001,
        zero="off",
        help="How long an address must then wait before it may try that user again, doubled "
        "with each further failure; other addresses do not wait. Guards against "
        "guessing without locking anybody out.",
    )
    login_delay_max: float = option(
        5.0,
        kind=Kind.DURATION,
        minimum=0.001,
        help="The longest such delay; keep it below the time that clients wait for the "
        "answer to their CONNECT. For a client that has logged in before from the same "
        "address with the same client id it is 1s.",
        act="the longest wait",
        metric="logins.delayed",
    )
    login_failures_age: float = option(
        600.0,
        kind=Kind.DURATION,
        minimum=1,
        help="Failures are forgotten when there were none for this long.",
    )
    login_failures_limit: int = option(
        4 << 20,
        kind=Kind.SIZE,
        minimum=1 << 16,
        help="Memory for remembering failures and clients that have logged in before; "
        "beyond it the oldest are forgotten. Guards against floods from many addresses.",
        act="the oldest failures are forgotten",
        metric="logins.failures.bytes",
    )
    transactions_open_max: int = option(
        100,
        minimum=1,
        help="Open transactions per connection; the next BEGIN is refused. Guards against "
        "clients that begin transactions and never end them.",
        act="BEGIN is refused",
    )
    transaction_operations_max: int = option(
        5_000,
        minimum=1,
        help="Operations per transaction; the next one is refused. Guards memory, because "
        "operations are held until COMMIT, and everybody else's time, because a COMMIT "
        "is one unit and takes about 4 ms of the event loop per 1,000 operations.",
        act="the operation is refused",
    )
    prepared_branches_max: int = option(
        1000,
        minimum=1,
        help="Prepared branches of distributed transactions (XA) that are in doubt, plus "
        "those that an operator completed and nobody has forgotten yet; the next "
        "PREPARE is refused. Guards against transaction managers that never come back.",
        act="PREPARE is refused",
    )
    id_cache_size: int = option(
        20_000,
        minimum=1,
        zero="off",
        help="Duplicate ids (`_AMQ_DUPL_ID`) remembered per destination; beyond it the "
        "oldest is forgotten. All destinations together remember 50 times as many.",
        act="the oldest ids are forgotten",
    )
    persist_id_cache: bool = option(
        True,
        help="Keep duplicate ids in the store, each in the same batch as its message. With "
        "`false`, a message that is sent again after a restart is not recognized as a "
        "duplicate.",
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
        help="Memory for the waiting messages of all `store` cursors together; above it, "
        "the messages of the lists whose consumers have been idle longest are dropped "
        "from memory and read from the store again later. Guards the process against "
        "many backlogs that are each below `memory_limit`.",
        act="messages are dropped from memory; the store has them",
        metric="waiting.stored.bytes",
    )
    unstored_memory_limit: int = option(
        512 << 20,
        kind=Kind.SIZE,
        minimum=1 << 20,
        zero="unlimited",
        help="The same for all `file` and `vm` cursors, whose messages no store holds. "
        "Above it, those with more than 64 KiB spool or make their producers wait. A "
        "message counts in each subscription in which it waits. Guards the process "
        "against many subscriptions that nobody reads.",
        act="messages are spooled, or producers wait",
        metric="waiting.unstored.bytes",
    )
    retained_limit: int = option(
        256 << 20,
        kind=Kind.SIZE,
        minimum=1,
        help="Memory for retained messages, bodies included; a publish that needs more is "
        "refused. Guards against clients that invent topics.",
        act="the publish is refused",
        metric="held.retained.bytes",
    )
    system_topics_interval: float = option(
        10.0,
        kind=Kind.DURATION,
        minimum=1,
        zero="off",
        help="How often the topics below `$SYS/broker/` are published: version, uptime, "
        "clients, messages. Subscribe to `$SYS/#` to see them.",
    )
    acknowledged_limit: int = option(
        16 << 30,
        kind=Kind.SIZE,
        minimum=1,
        help="Bytes of acknowledged messages kept until all sinks have released them; "
        "`acknowledged_overflow` says what happens above it. Guards the disk when a "
        "sink stands still.",
        act="publishes are refused, or the oldest rows are discarded (`acknowledged_overflow`)",
    )
    acknowledged_body_max: int = option(
        64 << 20,
        kind=Kind.SIZE,
        minimum=1 << 20,
        help="Sinks load streamed bodies into memory, one at a time. A body larger than "
        "this is left out of its row, which then has a header `large-body-omitted` "
        "with the size. Guards memory; bodies that are not streamed are not affected.",
        act="the body is left out",
    )
    acknowledged_overflow: str = option(
        "refuse_publish",
        choices=("refuse_publish", "discard_oldest"),
        help="What happens at `acknowledged_limit`: refuse new messages, so that the sinks "
        "lose nothing, or discard the oldest acknowledged messages, so that clients "
        "can continue.",
    )
    acknowledged_outcomes: tuple[str, ...] = option(
        _OUTCOMES,
        choices=_OUTCOMES,
        help="Which messages get a row in the sinks besides acknowledged ones, by the way "
        "they left. Rows take up space until the sinks have them, those of purged "
        "messages too.",
    )
    acknowledged_age: float = option(
        7 * 86_400.0,
        kind=Kind.DURATION,
        zero="unlimited",
        help="Acknowledged messages older than this are handled as `acknowledged_overflow` "
        "says. Guards against a forgotten sink when traffic is too low to reach the "
        "limit.",
    )


@dataclass(frozen=True, slots=True)
class ListenerTable:
    """One ``[[listeners]]`` table: the host's keys, and the protocol's own keys unparsed."""

    protocol: str = option(
        help="The protocol plugin, e.g. `stomp` or `mqtt` (entry point `protocol-NAME`).",
    )
    bind: str = option(
        "",
        help='Address and port: `"127.0.0.1:61613"`, `"[::1]:61613"`, or `":61613"` for all '
        "interfaces; port 0 takes a free one. The default is loopback and the "
        "protocol's own port, so that nothing is reachable from outside by accident.",
    )
    transport: str = option(
        "",
        help="The transport, e.g. `tcp`. The default is the protocol's first one. One that "
        "the protocol does not have is refused at start.",
    )
    allow_anonymous: bool | None = option(
        None,
        help="Accept clients without credentials. The default is yes on loopback while no "
        "extension authenticates clients, and no otherwise. A listener on any other "
        "address without authentication is refused at start unless this says `true`.",
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
        help="Name of the sink and of its directory: letters, digits, `.`, `_` and `-`. The "
        "default is the plugin's name. Names must be unique, because sinks with the "
        "same name would share one mark.",
    )
    options: Mapping[str, object] = field(default_factory=_no_options)


@dataclass(frozen=True, slots=True)
class ExtensionTable:
    """One ``[[extensions]]`` table: which extension, and its own options unparsed."""

    plugin: str = option(
        help="The extension plugin (entry point `extension-NAME`): an authenticator, "
        "authorizer, interceptor or observer. Extensions are asked in the order of the "
        "file.",
    )
    options: Mapping[str, object] = field(default_factory=_no_options)


#: The embedded default, without a file or for a file without ``[[listeners]]``.
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
