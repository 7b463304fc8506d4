"""Connected clients: who they are, what they do now, why they are slow; and ending them."""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from tidegate.spi.operate._overview import Room
from tidegate.spi.operate._paging import Count, Limit

#: Subscriptions of a connection that are shown one by one.
SERVED_MAX: Final = 100


class ConnectionSort(enum.Enum):
    """The order of a list: by principal and client id, or by one of the others, largest first.

    RATE: messages delivered and confirmations, per second since it connected.
    """

    NAME = "name"
    UNREAD = "unread"
    IN_FLIGHT = "in-flight"
    HELD = "held"
    RATE = "rate"


class WaitReason(enum.Enum):
    """What a connection waits for.

    HANDSHAKE: it is not finished. RIGHTS: its rights are being decided again. UNREAD: its socket is full
    because the client does not read. IN_FLIGHT: it, its user or the gateway has as much unacknowledged as
    allowed. ACKNOWLEDGEMENTS: a subscription has, and messages wait for it. LIST: it is not read from,
    because a queue it sent to has no room. STORE: the same, because the store has not yet written what was
    accepted. RATE: the same, because its user sent more than allowed. STOPPING: the gateway stops.
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
    """Connected clients, a page at a time.

    Attributes:
        match: text in principal, client id or address, ignoring case; "" for all.
        after: ``next`` of the previous page; "" for the first one.
    """

    match: str = ""
    sort: ConnectionSort = ConnectionSort.NAME
    after: str = ""
    limit: Limit = 100


class ShowConnection(msgspec.Struct, frozen=True, tag="show-connection"):
    """Details of one connection. Attributes: connection: its number."""

    connection: Count


class EndConnection(msgspec.Struct, frozen=True, tag="end-connection"):
    """End a connection; its client is told that an operator ended it (MQTT 5.0 reason 0x98, STOMP ERROR).

    Its session stays, and its will is published, as when the network fails.
    """

    connection: Count


class ConnectionRow(msgspec.Struct, frozen=True):
    """A row of a list.

    Attributes:
        number: identifies this connection as long as the gateway runs.
        address: ``host:port``; listener: that accepted it; certificate: subject of its TLS certificate, or "".
        connected_at: microseconds since the epoch.
        in_flight: messages delivered but not acknowledged; in_flight_bytes: their memory.
        unread_bytes: written but not yet taken by the client; measured in coarse steps.
        held_bytes: all memory held for it.
        delivered: messages delivered to it; confirmed: confirmations sent to it; per_second: of both.
        waits: what it waits for, each reason once; empty: nothing.
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
    """Rows of a list. Attributes: next: ``after`` of the next page; "" when there are no more."""

    rows: tuple[ConnectionRow, ...]
    next: str = ""


class Served(msgspec.Struct, frozen=True):
    """One subscription of a connection.

    Attributes:
        key: the client's name for it; destination: or filter.
        waiting: messages waiting in its lists, also for others (of a filter of queues, in the first hundred
            lists); without those in flight.
        in_flight_max, in_flight_bytes_max: how much it may have unacknowledged; 0: it does not acknowledge.
        oldest_at: when the oldest message in flight was delivered, microseconds since the epoch; 0: none is.
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
    """What a connection waits for. Attributes: what: subscription or destination; "" for none."""

    reason: WaitReason
    what: str = ""


class ConnectionDetails(msgspec.Struct, frozen=True, tag="connection-details"):
    """One connection.

    Attributes:
        session: key of its session, "" without one.
        served: its subscriptions, at most ``SERVED_MAX``.
        transactions: open ones.
        waits: everything it waits for.
        held, in_flight: its own memory, with its limits; user_held, user_in_flight: of all connections of its user.
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
