"""The gateway as a whole: what it is, its state, and how much goes through it."""

from __future__ import annotations

import enum

import msgspec


class GatewayState(enum.Enum):
    """The state of a gateway that answers operators.

    STORE_FULL: publishes are refused for lack of room, everything else continues. STORE_FAILED: nothing is
    confirmed any more until the gateway is restarted. DRAINING, STOPPING: nobody is let in.
    """

    RUNNING = "running"
    STORE_FULL = "store-full"
    STORE_FAILED = "store-failed"
    DRAINING = "draining"
    STOPPING = "stopping"


class ShowOverview(msgspec.Struct, frozen=True, tag="show-overview"):
    """The gateway as a whole. It waits for nothing, neither store nor disk."""


class Traffic(msgspec.Struct, frozen=True):
    """A count and its rate.

    Attributes: total: since the start; per_second: over the last ten seconds, or since the start.
    """

    total: int
    per_second: float


class Latency(msgspec.Struct, frozen=True):
    """How long clients waited for confirmations, from the beginning of the turn with the request.

    Over the last half to one minute, in milliseconds; each value is at most a quarter too high.

    Attributes: count: confirmations; the others are 0 when there were none.
    """

    count: int
    p50_ms: float
    p99_ms: float


class Room(msgspec.Struct, frozen=True):
    """How much of something is used. Attributes: used, limit (0: none): bytes, or a number of things."""

    used: int
    limit: int


class CertificateEnd(msgspec.Struct, frozen=True):
    """The validity of a certificate file that the configuration names.

    Attributes:
        key: of the option, ``listeners[0].tls_certificate``; path: the file that it names.
        subject: of the deciding certificate: the first of a chain to expire, the last of authorities to expire
            (``tls_ca``). "": it has no subject, or the file is not understood.
        begins_at, ends_at: microseconds since the epoch.
    """

    key: str
    path: str
    subject: str
    begins_at: int
    ends_at: int


class Overview(msgspec.Struct, frozen=True, tag="overview"):
    """The gateway as a whole.

    Attributes:
        name: of the gateway; store_id: identity of its store's contents.
        started_at: microseconds since the epoch; uptime_s: by a monotonic clock.
        problem: why it is not `running`, in words; "": it is.
        listeners: where clients connect, ``stomp://…``.
        published: messages from clients; confirmed: what clients were told is durable (messages,
            acknowledgements, subscriptions …); delivered: messages handed to consumers; acknowledged: by
            consumers, or at once when they do not acknowledge; dropped: messages that no consumer got.
        connections: clients, and how many are allowed.
        sessions: kept for clients, connected or not; subscriptions: to topics, with their own list; queues.
        backlog: messages that the store keeps for at least one list.
        store: what it takes, in bytes; disk_free: bytes free where it writes; None: not measured.
        held: memory held for clients; in_flight: delivered and not acknowledged; stored_memory, unstored_memory: of
            cursors, for messages that are in the store and that are not; temporary: files of cursors.
        memory_bytes: all of these that are memory.
        counts: the numbers that `$SYS/broker` has of clients, limits and the acknowledged log, by the names of
            docs/limits.md; and of events since the start, ``events.NAME.count`` by the names of docs/events.md.
        certificates: those that the configuration names, as last read.
    """

    name: str
    version: str
    store_id: str
    started_at: int
    uptime_s: float
    state: GatewayState
    problem: str
    listeners: tuple[str, ...]
    published: Traffic
    confirmed: Traffic
    delivered: Traffic
    acknowledged: Traffic
    dropped: Traffic
    confirmation: Latency
    connections: Room
    sessions: int
    subscriptions: int
    queues: int
    backlog: int
    store: Room
    disk_free: int | None
    held: Room
    in_flight: Room
    stored_memory: Room
    unstored_memory: Room
    temporary: Room
    memory_bytes: int
    counts: dict[str, int]
    certificates: tuple[CertificateEnd, ...] = ()
