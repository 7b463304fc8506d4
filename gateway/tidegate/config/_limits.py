"""Options that say how much clients may make the gateway hold: part of ``[broker]``, and ``[[quotas]]``.

Each has an ``act`` and a ``metric``: docs/limits.md is made of them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.spi import DISK_FREE_LIMIT, Kind, names, option


@dataclass(frozen=True, slots=True)
class HeldLimits:
    """What is held in memory for somebody: see :mod:`tidegate.broker.limits.accounts`."""

    held_limit: int = option(
        1 << 30,
        kind=Kind.SIZE,
        minimum=1 << 20,
        zero="unlimited",
        help="Memory that all clients together may have held for them: open transactions, frames and "
        "packets that are not complete, output that is not read, and whatever else "
        "docs/limits.md names. Guards the process.",
        act="what would need more is refused",
        metric="held.bytes",
    )
    in_flight_limit: int = option(
        512 << 20,
        kind=Kind.SIZE,
        minimum=1 << 20,
        zero="unlimited",
        help="Messages that may be on their way to all clients together: delivered and not yet "
        "acknowledged. Above it only clients with less than 256 KiB in flight get more. A message counts "
        "for each client that it is on its way to. Guards against clients that take and never acknowledge.",
        act="nothing more is delivered to a client before it has acknowledged some",
        metric="in_flight.bytes",
    )
    levels_max: int = option(
        names.LEVELS_MAX,
        minimum=2,
        maximum=names.NAME_BYTES_MAX,
        help="Levels of a destination name, or of a filter; one with more is refused. Guards memory "
        "and time: each level of a filter takes 300 bytes and a step of each search.",
        act="the publish or subscription is refused",
    )
    queues_max: int = option(
        100_000,
        minimum=1,
        zero="unlimited",
        help="Queues, all together, also those from before the last start and temporary ones. "
        "Guards memory and store against clients that make up names.",
        act="a publish or subscription that needs a new one is refused",
        metric="counted.queues",
    )
    id_cache_limit: int = option(
        128 << 20,
        kind=Kind.SIZE,
        minimum=1 << 16,
        help="Memory that the duplicate ids of all destinations may take; those with more than 128 "
        "characters are kept as a digest. Guards against clients that make up destinations and ids.",
        act="the oldest ids of the destination that was used longest ago are forgotten",
        metric="held.duplicate_ids.bytes",
    )
    disk_free_limit: int = option(
        DISK_FREE_LIMIT,
        kind=Kind.SIZE,
        minimum=1,
        zero="never looked at",
        help="What the store leaves free on each file system of this machine that it writes to. While "
        "there is less, publishes are refused, until there is a quarter more; acknowledgements always "
        "go through, and this is kept for them. Half of it may be room in the store's own files that "
        "will be used again. Looked at once a second, and more often near the limit. Guards the store "
        "against a full disk.",
        act="publishes are refused (store full)",
        metric="disk.free.bytes",
    )
    store_limit: int = option(
        0,
        kind=Kind.SIZE,
        minimum=1 << 20,
        zero="unlimited",
        help="What the store may take: its files, or its tables in a database, without the room in them that "
        "new messages can have again. At it publishes are refused, until a tenth of it is free; consumers and "
        "acknowledgements go on. `storeUsage` and `storeLimit`, as ActiveMQ calls it, are the same. Looked at "
        "once a second, and more often near the limit. Guards the disk against a backlog.",
        act="publishes are refused (store full)",
        metric="store.used.bytes",
    )
    temporary_space: int = option(
        4 << 30,
        kind=Kind.SIZE,
        minimum=1 << 20,
        zero="unlimited",
        help="Disk that the temporary files of all `file` cursors may take together; `temp_limit`, as ActiveMQ "
        "calls it, is the same. Guards the disk, "
        "and with it the store, against many subscriptions that are each below `temporary_limit`.",
        act="as when the disk is full: stored messages stay in the store alone, the oldest unstored "
        "ones are dropped",
        metric="spooled.bytes",
    )
    temporary_free_limit: int = option(
        256 << 20,
        kind=Kind.SIZE,
        minimum=1,
        zero="nothing",
        help="What the temporary files leave free of their file system, so that they never take the "
        "store's last room: more than `disk_free_limit`. Looked at once a second.",
        act="the files do not grow, as at `temporary_space`",
    )
    login_input_limit: int = option(
        32 << 20,
        kind=Kind.SIZE,
        minimum=1 << 16,
        zero="unlimited",
        help="Memory that all clients which are not let in yet may fill together: with the half of a "
        "CONNECT, what they send behind it, or the half of a WebSocket request. Guards against strangers, "
        "each with a little.",
        act="the unauthenticated clients that hold most are closed",
        metric="held.login.bytes",
    )
    connection_held_limit: int = option(
        128 << 20,
        kind=Kind.SIZE,
        minimum=1 << 16,
        zero="unlimited",
        help="The same for one connection, and as much again may be on its way to it (see "
        "`in_flight_limit`). A message that is not streamed is held while it comes in, "
        "so that none is larger than this. Guards the others of the same principal.",
        act="what would need more is refused",
        metric="held.refused",
    )


@dataclass(frozen=True, slots=True)
class Quota:
    """One ``[[quotas]]`` table: what one principal may have, with all its connections together.

    The *first* table in file order whose pattern matches is the whole answer. Whom none matches has
    the defaults given here.
    """

    principal: str = option(
        help='Whom it is for: the name of a principal, in which `*` stands for anything. `"*"` is for '
        "everybody, each by itself; clients that nobody authenticated are one, `anonymous`.",
    )
    connections_max: int = option(
        0,
        minimum=1,
        zero="unlimited",
        help="Connections at a time. Guards the others' share of `broker.connections_max`.",
        act="the next one is refused",
        metric="counted.connections",
    )
    sessions_max: int = option(
        50_000,
        minimum=1,
        zero="unlimited",
        help="MQTT sessions that are kept, also while their clients are away. Guards memory and store "
        "against clients that leave sessions behind under ever new names.",
        act="a CONNECT that needs a new one is refused",
        metric="counted.sessions",
    )
    subscriptions_max: int = option(
        100_000,
        minimum=1,
        zero="unlimited",
        help="Subscriptions to topics, also durable ones whose clients are away.",
        act="the next one is refused",
        metric="counted.subscriptions",
    )
    queues_max: int = option(
        50_000,
        minimum=1,
        zero="unlimited",
        help="Queues that it makes by using them, also those from before the last start and "
        "temporary ones.",
        act="a publish or subscription that needs a new one is refused",
        metric="counted.queues",
    )
    retained_limit: int = option(
        0,
        kind=Kind.SIZE,
        minimum=1,
        zero="unlimited",
        help="Memory that its retained messages may take; `broker.retained_limit` is for all together.",
        act="the publish is refused",
        metric="held.retained.bytes",
    )
    held_limit: int = option(
        512 << 20,
        kind=Kind.SIZE,
        minimum=1 << 16,
        zero="unlimited",
        help="Memory held for it, all kinds together. Guards the other principals' share of "
        "`broker.held_limit`.",
        act="what would need more is refused",
        metric="held.refused",
    )
    in_flight_limit: int = option(
        256 << 20,
        kind=Kind.SIZE,
        minimum=1 << 16,
        zero="unlimited",
        help="Messages on their way to all its connections together: see `broker.in_flight_limit`.",
        act="nothing more is delivered to a client before it has acknowledged some",
        metric="in_flight.bytes",
    )
    receive_rate: int = option(
        0,
        kind=Kind.SIZE,
        minimum=1024,
        zero="unlimited",
        help="Bytes a second that are read from all its connections together, up to a second's worth at "
        "once. Guards the others' share of the gateway's time.",
        act="its connections are not read for as long as it takes",
    )


#: Of principals that no table matches.
DEFAULT_QUOTA: Final = Quota(principal="*")


def quota_for(quotas: Sequence[Quota], principal: str) -> Quota:
    """The quota of *principal*: the first one whose pattern matches, else the default."""
    for quota in quotas:
        pattern = ".*".join(map(re.escape, quota.principal.split("*")))
        if re.fullmatch(pattern, principal, re.DOTALL):
            return quota
    return DEFAULT_QUOTA
