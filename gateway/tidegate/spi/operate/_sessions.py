"""What outlives a connection: sessions, and topic subscriptions with their own list."""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from tidegate.spi.operate._paging import Limit

#: Subscriptions of a session that are shown one by one.
KEPT_MAX: Final = 100


class SessionSort(enum.Enum):
    """The order of a list: by principal and client id, by waiting messages (most first), or by how long
    their clients have been away (longest first)."""

    NAME = "name"
    PENDING = "pending"
    AWAY = "away"


class SubscriptionSort(enum.Enum):
    """The order of a list: by principal, client id and name, or by one of the others, largest first."""

    NAME = "name"
    PENDING = "pending"
    MEMORY = "memory"


class ListSessions(msgspec.Struct, frozen=True, tag="list-sessions"):
    """Sessions (MQTT), including those of connected clients, a page at a time.

    Attributes:
        match: text in principal or client id, ignoring case; "" for all.
        away: only those whose client is not connected.
        after: ``next`` of the previous page; "" for the first one.
    """

    match: str = ""
    sort: SessionSort = SessionSort.NAME
    away: bool = False
    after: str = ""
    limit: Limit = 100


class ShowSession(msgspec.Struct, frozen=True, tag="show-session"):
    """Details of one session. Attributes: session: its key."""

    session: str


class DeleteSession(msgspec.Struct, frozen=True, tag="delete-session"):
    """Delete a session, with its subscriptions and their waiting messages; a waiting will is published.

    Attributes: with_connection: even when its client is connected; the connection is ended first.
    """

    session: str
    with_connection: bool = False


class ListSubscriptions(msgspec.Struct, frozen=True, tag="list-subscriptions"):
    """Topic subscriptions with their own list, a page at a time.

    Attributes:
        match: text in principal, client id, name or filter, ignoring case; "" for all.
        durable: only those that outlive their connections.
        after: ``next`` of the previous page; "" for the first one.
    """

    match: str = ""
    sort: SubscriptionSort = SubscriptionSort.NAME
    durable: bool = False
    after: str = ""
    limit: Limit = 100


class ShowSubscription(msgspec.Struct, frozen=True, tag="show-subscription"):
    """Details of one subscription. Attributes: subscription: its number."""

    subscription: int


class DeleteSubscription(msgspec.Struct, frozen=True, tag="delete-subscription"):
    """Delete a durable subscription, with its waiting messages.

    A shared one that belongs to sessions ends with these. Attributes: with_connection: even when its client is
    connected; the connection is ended first.
    """

    subscription: int
    with_connection: bool = False


class SessionRow(msgspec.Struct, frozen=True):
    """A row of a list.

    Attributes:
        key: identifies the session.
        connection: number of the connection that has it; None: its client is away.
        left_at: since when the client is away, microseconds since the epoch; 0: it is not.
        expiry_s: how long it is kept while its client is away; None: for ever.
        subscriptions: those with their own list; attached: queues and shared subscriptions.
        pending: messages waiting in its subscriptions (the first thousand of these); in_flight: packet ids it keeps.
        has_will: there is a will: to be published when the client is gone, or waiting for its delay.
    """

    key: str
    principal: str
    client_id: str
    protocol: str
    connection: int | None
    left_at: int
    expiry_s: int | None
    subscriptions: int
    attached: int
    pending: int
    in_flight: int
    has_will: bool


class SessionPage(msgspec.Struct, frozen=True, tag="session-page"):
    """Rows of a list. Attributes: next: ``after`` of the next page; "" when there are no more."""

    rows: tuple[SessionRow, ...]
    next: str = ""


class SubscriptionRow(msgspec.Struct, frozen=True):
    """A row of a list.

    Attributes:
        number: of its list; negative when nothing of it is stored.
        client_id: "" for one that several clients share.
        name: given by the client; share_group: "" for one that is not shared.
        filter: what it subscribes to; selector: "" for all; qos: highest granted.
        durable: it outlives its connections.
        consumers: connections that it serves.
        pending: waiting messages; in_flight: delivered and not acknowledged.
        memory_bytes: what its cursor holds in memory; is_paging: it is fed from pages.
        is_full: its producers wait for room; dropped: messages that it has lost.
    """

    number: int
    principal: str
    client_id: str
    protocol: str
    name: str
    share_group: str
    filter: str
    selector: str
    qos: int
    durable: bool
    consumers: int
    pending: int
    in_flight: int
    memory_bytes: int
    is_paging: bool
    is_full: bool
    dropped: int


class SubscriptionPage(msgspec.Struct, frozen=True, tag="subscription-page"):
    """Rows of a list. Attributes: next: ``after`` of the next page; "" when there are no more."""

    rows: tuple[SubscriptionRow, ...]
    next: str = ""


class SubscriptionDetails(msgspec.Struct, frozen=True, tag="subscription-details"):
    """One subscription. Attributes: connections: numbers of those that it serves."""

    row: SubscriptionRow
    connections: tuple[int, ...]


class SessionDetails(msgspec.Struct, frozen=True, tag="session-details"):
    """One session.

    Attributes:
        subscriptions: those with their own list, at most ``KEPT_MAX``; attached: queues and shared
            subscriptions that it consumes from whenever it is connected, also at most ``KEPT_MAX``.
    """

    row: SessionRow
    subscriptions: tuple[SubscriptionRow, ...]
    attached: tuple[str, ...]
