"""Options that limit what clients make the gateway hold: part of ``[broker]``, and ``[[quotas]]``.

Each has an ``act`` and a ``metric``: docs/limits.md is generated from them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.spi import DISK_FREE_LIMIT, Kind, names, option


@dataclass(frozen=True, slots=True)
class HeldLimits:
    """Limits on memory held for somebody: see :mod:`tidegate.broker.limits.accounts`."""

    held_limit: int = option(
        1 << 30,
        kind=Kind.SIZE,
        minimum=1 << 20,
        zero="unlimited",
        help="Memory that may be held for all clients together: open transactions, "
        "incomplete frames and packets, output that is not read, and whatever else "
        "docs/limits.md names. Guards the process.",
        act="an action that needs more is refused",
        metric="held.bytes",
    )
    in_flight_limit: int = option(
        512 << 20,
        kind=Kind.SIZE,
        minimum=1 << 20,
        zero="unlimited",
        help="Messages in flight to all clients together: delivered and not yet "
        "acknowledged. Above the limit, only clients with less than 256 KiB in flight "
        "get more. A message counts once for each client it was sent to. Guards "
        "against clients that take messages and never acknowledge them.",
        act="a client gets no more messages until it has acknowledged some",
        metric="in_flight.bytes",
    )
    levels_max: int = option(
        names.LEVELS_MAX,
        minimum=2,
        maximum=names.NAME_BYTES_MAX,
        help="Levels of a destination name or filter; one with more is refused. Guards "
        "memory and time: each level of a filter takes 300 bytes, and a step in each "
        "lookup.",
        act="the publish or subscription is refused",
    )
    queues_max: int = option(
        100_000,
        minimum=1,
        zero="unlimited",
        help="Queues of all users together, including temporary ones and those created "
        "before the last start. Guards memory and store against clients that invent "
        "names.",
        act="a publish or subscription that needs a new queue is refused",
        metric="counted.queues",
    )
    id_cache_limit: int = option(
        128 << 20,
        kind=Kind.SIZE,
        minimum=1 << 16,
        help="Memory for the duplicate ids of all destinations; ids of more than 128 "
        "characters are kept as a digest. Guards against clients that invent "
        "destinations and ids.",
        act="the oldest ids of the least recently used destination are forgotten",
        metric="held.duplicate_ids.bytes",
    )
    disk_free_limit: int = option(
        DISK_FREE_LIMIT,
        kind=Kind.SIZE,
        minimum=1,
        zero="not checked",
        help="Space that the store leaves free on each local file system that it writes to. "
        "Below it publishes are refused until a quarter more is free; acknowledgements "
        "always go through, and this space is reserved for them. Up to half of it may "
        "be space inside the store's own files that will be reused. Checked once a "
        "second, and more often near the limit. Guards the store against a full disk.",
        act="publishes are refused (store full)",
        metric="disk.free.bytes",
    )
    store_limit: int = option(
        0,
        kind=Kind.SIZE,
        minimum=1 << 20,
        zero="unlimited",
        help="Space that the store may take: its files, or its tables in a database, not "
        "counting space in them that new messages can reuse. At the limit publishes "
        "are refused until a tenth of it is free; consumers and acknowledgements "
        "continue. `storeUsage` and `storeLimit`, the ActiveMQ names, mean the same. "
        "Checked once a second, and more often near the limit. Guards the disk against "
        "a backlog.",
        act="publishes are refused (store full)",
        metric="store.used.bytes",
    )
    temporary_space: int = option(
        4 << 30,
        kind=Kind.SIZE,
        minimum=1 << 20,
        zero="unlimited",
        help="Disk space for the temporary files of all `file` cursors together; "
        "`temp_limit`, the ActiveMQ name, means the same. Guards the disk, and so the "
        "store, against many subscriptions that are each below `temporary_limit`.",
        act="as when the disk is full: stored messages stay in the store only, and of the "
        "unstored ones the oldest are dropped",
        metric="spooled.bytes",
    )
    temporary_free_limit: int = option(
        256 << 20,
        kind=Kind.SIZE,
        minimum=1,
        zero="nothing",
        help="Space that the temporary files leave free on their file system, so that they "
        "never take the store's last space: set it above `disk_free_limit`. Checked "
        "once a second.",
        act="the files stop growing, as at `temporary_space`",
    )
    login_input_limit: int = option(
        32 << 20,
        kind=Kind.SIZE,
        minimum=1 << 16,
        zero="unlimited",
        help="Memory that all clients together may use before they are logged in: "
        "incomplete CONNECTs, data sent after one, incomplete WebSocket requests. "
        "Guards against many strangers that each send a little.",
        act="the unauthenticated clients that hold the most are disconnected",
        metric="held.login.bytes",
    )
    connection_held_limit: int = option(
        128 << 20,
        kind=Kind.SIZE,
        minimum=1 << 16,
        zero="unlimited",
        help="The same for one connection; as much again may be in flight to it (see "
        "`in_flight_limit`). A message that is not streamed is held while it arrives, "
        "so no such message can be larger than this. Guards other connections of the "
        "same principal.",
        act="an action that needs more is refused",
        metric="held.refused",
    )


@dataclass(frozen=True, slots=True)
class Quota:
    """One ``[[quotas]]`` table: what one principal may use, with all its connections together.

    Only the *first* table in file order whose pattern matches applies. A principal that none matches
    has the defaults given here.
    """

    principal: str = option(
        help="Principals that this quota applies to: a name, in which `*` matches anything. "
        '`"*"` applies to everybody, to each separately; all unauthenticated clients '
        "together are one principal, `anonymous`.",
    )
    connections_max: int = option(
        0,
        minimum=1,
        zero="unlimited",
        help="Simultaneous connections. Guards the others' share of `broker.connections_max`.",
        act="the next one is refused",
        metric="counted.connections",
    )
    sessions_max: int = option(
        50_000,
        minimum=1,
        zero="unlimited",
        help="MQTT sessions that are kept, including those of disconnected clients. Guards "
        "memory and store against clients that leave sessions behind under ever new "
        "names.",
        act="a CONNECT that needs a new session is refused",
        metric="counted.sessions",
    )
    subscriptions_max: int = option(
        100_000,
        minimum=1,
        zero="unlimited",
        help="Topic subscriptions, including durable ones of disconnected clients.",
        act="the next one is refused",
        metric="counted.subscriptions",
    )
    queues_max: int = option(
        50_000,
        minimum=1,
        zero="unlimited",
        help="Queues that the principal creates by using them, including temporary ones and "
        "those created before the last start.",
        act="a publish or subscription that needs a new queue is refused",
        metric="counted.queues",
    )
    retained_limit: int = option(
        0,
        kind=Kind.SIZE,
        minimum=1,
        zero="unlimited",
        help="Memory for the principal's retained messages; `broker.retained_limit` covers "
        "everybody's.",
        act="the publish is refused",
        metric="held.retained.bytes",
    )
    held_limit: int = option(
        512 << 20,
        kind=Kind.SIZE,
        minimum=1 << 16,
        zero="unlimited",
        help="Memory held for the principal, all kinds together. Guards the others' share "
        "of `broker.held_limit`.",
        act="an action that needs more is refused",
        metric="held.refused",
    )
    in_flight_limit: int = option(
        256 << 20,
        kind=Kind.SIZE,
        minimum=1 << 16,
        zero="unlimited",
        help="Messages in flight to all connections of the principal: see "
        "`broker.in_flight_limit`.",
        act="its clients get no more messages until they have acknowledged some",
        metric="in_flight.bytes",
    )
    receive_rate: int = option(
        0,
        kind=Kind.SIZE,
        minimum=1024,
        zero="unlimited",
        help="Bytes per second read from all connections of the principal, in bursts of up "
        "to one second's worth. Guards the others' share of the gateway's time.",
        act="reading from its connections pauses for as long as needed",
    )


#: For principals that no table matches.
DEFAULT_QUOTA: Final = Quota(principal="*")


def quota_for(quotas: Sequence[Quota], principal: str) -> Quota:
    """The quota of *principal*: the first one whose pattern matches, otherwise the default."""
    for quota in quotas:
        pattern = ".*".join(map(re.escape, quota.principal.split("*")))
        if re.fullmatch(pattern, principal, re.DOTALL):
            return quota
    return DEFAULT_QUOTA
