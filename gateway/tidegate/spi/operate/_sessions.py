"""What outlives a connection: sessions, and subscriptions to topics with a list of their own."""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from tidegate.spi.operate._paging import Limit

#: Subscriptions of a session that are shown one by one.
KEPT_MAX: Final = 100


class SessionSort(enum.Enum):
    """The order of a list: by principal and client id, by messages that wait from the most, by the time
    that their clients have been away from the longest."""

    NAME = "name"
    PENDING = "pending"
    AWAY = "away"


class SubscriptionSort(enum.Enum):
    """The order of a list: by principal, client id and name, by the others from the largest."""

    NAME = "name"
    PENDING = "pending"
    MEMORY = "memory"


class ListSessions(msgspec.Struct, frozen=True, tag="list-sessions"):
    """Sessions (MQTT), also of clients that are connected, a page at a time.

    Attributes:
        match: what principal or client id has in it, whatever its case; "" for all.
        away: only those whose client is not connected.
        after: ``next`` of the page before; "" for the first one.
    """

    match: str = ""
    sort: SessionSort = SessionSort.NAME
    away: bool = False
    after: str = ""
    limit: Limit = 100


class ShowSession(msgspec.Struct, frozen=True, tag="show-session"):
    """One of them closely. Attributes: session: its key."""

    session: str


class DeleteSession(msgspec.Struct, frozen=True, tag="delete-session"):
    """End it, with its subscriptions and what waits in them; a will that waits is published.

    Attributes: with_connection: also when its client is connected, which is ended first.
    """

    session: str
    with_connection: bool = False


class ListSubscriptions(msgspec.Struct, frozen=True, tag="list-subscriptions"):
    """Subscriptions to topics, each with a list of its own, a page at a time.

    Attributes:
        match: what principal, client id, name or filter has in it, whatever its case; "" for all.
        durable: only those that outlive their connections.
        after: ``next`` of the page before; "" for the first one.
    """

    match: str = ""
    sort: SubscriptionSort = SubscriptionSort.NAME
    durable: bool = False
    after: str = ""
    limit: Limit = 100


class ShowSubscription(msgspec.Struct, frozen=True, tag="show-subscription"):
    """One of them. Attributes: subscription: its number."""

    subscription: int


class DeleteSubscription(msgspec.Struct, frozen=True, tag="delete-subscription"):
    """End a durable one, with what waits in it.

    A shared one that sessions have ends with these. Attributes: with_connection: also when its client is
    connected, which is ended first.
    """

    subscription: int
    with_connection: bool = False


class SessionRow(msgspec.Struct, frozen=True):
    """A row of a list.

    Attributes:
        key: what the session is found by.
        connection: number of the connection that has it; None: its client is away.
        left_at: since when, microseconds since the epoch; 0: it is not.
        expiry_s: how long it is kept when its client is away; None: for ever.
        subscriptions: with a list of their own; attached: queues and shared subscriptions.
        pending: messages that wait in its subscriptions, the first thousand of them; in_flight: packet ids that it keeps.
        has_will: there is one, to be published when the client is gone, or it waits for its delay.
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
    """Rows of a list. Attributes: next: what to ask for as ``after``; "" when there are no more."""

    rows: tuple[SessionRow, ...]
    next: str = ""


class SubscriptionRow(msgspec.Struct, frozen=True):
    """A row of a list.

    Attributes:
        number: of its list; negative where nothing of it is stored.
        client_id: "" for one that several clients share.
        name: that the client gave it; share_group: "" for one that is not shared.
        filter: what it subscribes to; selector: "" for all; qos: the highest.
        durable: it outlives its connections.
        consumers: connections that are served by it.
        pending: messages that wait; in_flight: delivered and not acknowledged.
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
    """Rows of a list. Attributes: next: what to ask for as ``after``; "" when there are no more."""

    rows: tuple[SubscriptionRow, ...]
    next: str = ""


class SubscriptionDetails(msgspec.Struct, frozen=True, tag="subscription-details"):
    """One subscription. Attributes: connections: numbers of those that it serves."""

    row: SubscriptionRow
    connections: tuple[int, ...]


class SessionDetails(msgspec.Struct, frozen=True, tag="session-details"):
    """One session.

    Attributes:
        subscriptions: with a list of their own, at most ``KEPT_MAX``; attached: queues and shared
            subscriptions that it consumes from whenever it is connected, as many.
    """

    row: SessionRow
    subscriptions: tuple[SubscriptionRow, ...]
    attached: tuple[str, ...]
