"""Clients that are connected: who, what they do now, why they are slow; and their end."""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from tidegate.spi.operate._overview import Room
from tidegate.spi.operate._paging import Count, Limit

#: Subscriptions of a connection that are shown one by one.
SERVED_MAX: Final = 100


class ConnectionSort(enum.Enum):
    """The order of a list: by principal and client id, by the others from the largest.

    RATE: what it was given and what was confirmed to it, for each second since it connected.
    """

    NAME = "name"
    UNREAD = "unread"
    IN_FLIGHT = "in-flight"
    HELD = "held"
    RATE = "rate"


class WaitReason(enum.Enum):
    """What keeps a connection from going on.

    HANDSHAKE: it is not finished. RIGHTS: it is being decided anew what it may have. UNREAD: its socket
    takes no more, because the client does not read. IN_FLIGHT: it has as much unacknowledged as it, its user or
    the gateway may have. ACKNOWLEDGEMENTS: a subscription has, and messages wait for it. LIST: it is not read
    from, because a queue that it sent to has no room. STORE: nor because the store has not written what was
    accepted. RATE: nor because its user sent more than it may. STOPPING: nor because the gateway stops.
    """

    HANDSHAKE = "handshake"
    RIGHTS = "rights"
    UNREAD = "unread"
    IN_FLIGHT = "in-flight"
    ACKNOWLEDGEMENTS = "acknowledgements"
    LIST = "full-list"
    STORE = "store"
    RATE = "rate"
    STOPPING = "stopping"


class ListConnections(msgspec.Struct, frozen=True, tag="list-connections"):
    """Clients that are connected, a page at a time.

    Attributes:
        match: what principal, client id or address has in it, whatever its case; "" for all.
        after: ``next`` of the page before; "" for the first one.
    """

    match: str = ""
    sort: ConnectionSort = ConnectionSort.NAME
    after: str = ""
    limit: Limit = 100


class ShowConnection(msgspec.Struct, frozen=True, tag="show-connection"):
    """One of them closely. Attributes: connection: its number."""

    connection: Count


class EndConnection(msgspec.Struct, frozen=True, tag="end-connection"):
    """End it; its client is told that an operator wants it so (MQTT 5.0 reason 0x98, STOMP ERROR).

    Its session stays, and its will is published, as when the network fails.
    """

    connection: Count


class ConnectionRow(msgspec.Struct, frozen=True):
    """A row of a list.

    Attributes:
        number: of this connection alone, as long as the gateway runs.
        address: ``host:port``; listener: that it came to; certificate: subject of its TLS certificate, "" for none.
        connected_at: microseconds since the epoch.
        in_flight: delivered and not acknowledged; in_flight_bytes: of memory.
        unread_bytes: written, and not taken by the client; in steps of some size.
        held_bytes: all memory that is held for it.
        delivered: messages that it was given; confirmed: what it was told is durable; per_second: of both.
        waits: what keeps it from going on, each reason once; none: nothing.
    """

    number: int
    principal: str
    client_id: str
    protocol: str
    version: str
    address: str
    listener: str
    certificate: str
    connected_at: int
    subscriptions: int
    in_flight: int
    in_flight_bytes: int
    unread_bytes: int
    held_bytes: int
    delivered: int
    confirmed: int
    per_second: float
    waits: tuple[WaitReason, ...]


class ConnectionPage(msgspec.Struct, frozen=True, tag="connection-page"):
    """Rows of a list. Attributes: next: what to ask for as ``after``; "" when there are no more."""

    rows: tuple[ConnectionRow, ...]
    next: str = ""


class Served(msgspec.Struct, frozen=True):
    """One subscription of a connection.

    Attributes:
        key: the client's name for it; destination: or filter.
        waiting: messages that wait in its lists, for others, too, of a filter of queues in the first
            hundred of them; not those in flight.
        in_flight_max, in_flight_bytes_max: what it may have unacknowledged; 0: it does not acknowledge.
        oldest_at: when the first of those in flight was delivered, microseconds since the epoch; 0: none is.
    """

    key: str
    destination: str
    waiting: int
    in_flight: int
    in_flight_max: int
    in_flight_bytes: int
    in_flight_bytes_max: int
    oldest_at: int


class Wait(msgspec.Struct, frozen=True):
    """What keeps a connection from going on. Attributes: what: subscription or destination; "" for none."""

    reason: WaitReason
    what: str = ""


class ConnectionDetails(msgspec.Struct, frozen=True, tag="connection-details"):
    """One connection.

    Attributes:
        session: key of its session, "" without one.
        served: its subscriptions, at most ``SERVED_MAX``.
        transactions: that it has begun.
        waits: all that keeps it from going on.
        held, in_flight: memory of its own, with its limits; user_held, user_in_flight: of all connections of its user.
    """

    row: ConnectionRow
    session: str
    served: tuple[Served, ...]
    transactions: int
    waits: tuple[Wait, ...]
    held: Room
    in_flight: Room
    user_held: Room
    user_in_flight: Room
