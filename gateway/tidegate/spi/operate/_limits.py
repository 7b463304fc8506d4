"""What is near its limit, what is held for whom, and what cursors hold."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Annotated, Final, TypeAlias

import msgspec

from tidegate.spi.operate._destinations import Feed
from tidegate.spi.operate._overview import Room
from tidegate.spi.operate._paging import Limit

#: Connections of a user that are shown one by one: those with the most memory held.
HOLDERS_MAX: Final = 100

#: How much of a limit is used.
Percent: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=100)]


class LimitScope(enum.Enum):
    """Whose a limit is."""

    GATEWAY = "gateway"
    USER = "user"
    CONNECTION = "connection"
    DESTINATION = "destination"


class LimitSort(enum.Enum):
    """The order of a list: nearest to its limit first, or by scope, holder and option."""

    NEAREST = "nearest"
    NAME = "name"


class CursorSort(enum.Enum):
    """The order of a list: by destination, or by one of the others, largest first."""

    NAME = "name"
    MEMORY = "memory"
    PENDING = "pending"


class ListLimits(msgspec.Struct, frozen=True, tag="list-limits"):
    """All limits in force and how much of each is used, a page at a time.

    Attributes:
        match: text in the holder or the option, ignoring case; "" for all.
        scope: only these; None: all.
        percent: only limits used to at least this much.
        after: ``next`` of the previous page; "" for the first one.
    """

    match: str = ""
    scope: LimitScope | None = None
    sort: LimitSort = LimitSort.NEAREST
    percent: Percent = 0
    after: str = ""
    limit: Limit = 100


class LimitRow(msgspec.Struct, frozen=True):
    """A row of a list. Limits that are not set have no row.

    Attributes:
        holder: user, address of a connection, or destination; "" for the gateway.
        number: of a connection, or of a list; 0 for others.
        option: that sets it, ``broker.held_limit``; act: what happens when it is reached.
        used, limit: bytes, or a number of things; for ``broker.disk_free_limit``, where less is worse, *used*
            is what is free.
        percent: how much of it is used; above 100 when what existed before counts as well.
        refused: how often somebody was refused here, or below, for this or another limit; 0 when not counted.
    """

    scope: LimitScope
    holder: str
    number: int
    option: str
    used: int
    limit: int
    percent: float
    refused: int
    act: str


class LimitPage(msgspec.Struct, frozen=True, tag="limit-page"):
    """Rows of a list. Attributes: next: ``after`` of the next page; "" when there are no more."""

    rows: tuple[LimitRow, ...]
    next: str = ""


class ShowHeld(msgspec.Struct, frozen=True, tag="show-held"):
    """What is held in memory for a user. Attributes: user: "": for the gateway as a whole."""

    user: str = ""


class Holder(msgspec.Struct, frozen=True):
    """A node of the tree of held bytes, directly below another. Attributes: number: of a connection; 0 for a user."""

    name: str
    number: int
    held: Room
    in_flight: Room


class HeldDetails(msgspec.Struct, frozen=True, tag="held-details"):
    """What is held in memory for a user or the gateway.

    Attributes:
        held, in_flight: bytes now; held_peak, in_flight_peak: the highest values so far.
        refused: how often somebody was refused, here or below.
        kinds: bytes of *held*, by kind: ``output``, ``transactions`` …
        counts: connections, sessions, subscriptions, queues.
        below: the nodes below with the most held, at most ``HOLDERS_MAX``: users of the gateway,
            connections of a user.
    """

    user: str
    held: Room
    held_peak: int
    in_flight: Room
    in_flight_peak: int
    refused: int
    kinds: Mapping[str, int]
    counts: Mapping[str, Room]
    below: tuple[Holder, ...]


class ListCursors(msgspec.Struct, frozen=True, tag="list-cursors"):
    """Where the lists of queues and subscriptions are fed from, a page at a time.

    Attributes:
        match: text in the destination, client id or name of the subscription, ignoring case; "" for all.
        paging: only lists fed from pages.
        after: ``next`` of the previous page; "" for the first one.
    """

    match: str = ""
    sort: CursorSort = CursorSort.NAME
    paging: bool = False
    after: str = ""
    limit: Limit = 100


class CursorRow(msgspec.Struct, frozen=True):
    """A row of a list.

    Attributes:
        number: of the list; negative when nothing of it is stored.
        cursor: its plugin's name, ``store``, ``vm``, ``file``.
        pending: waiting messages, in memory or not.
        memory: what it holds, and the limit of its own.
        is_full: its producers wait.
    """

    number: int
    destination: str
    cursor: str
    pending: int
    memory: Room
    is_full: bool
    feed: Feed


class CursorPage(msgspec.Struct, frozen=True, tag="cursor-page"):
    """Rows of a list. Attributes: next: ``after`` of the next page; "" when there are no more."""

    rows: tuple[CursorRow, ...]
    next: str = ""
