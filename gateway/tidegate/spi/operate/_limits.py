"""What is near its limit, what is held for whom, and what cursors hold."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Annotated, Final, TypeAlias

import msgspec

from tidegate.spi.operate._destinations import Feed
from tidegate.spi.operate._overview import Room
from tidegate.spi.operate._paging import Limit

#: Connections of a user that are shown one by one: those for which most is held.
HOLDERS_MAX: Final = 100

#: Part of a limit that is used.
Percent: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=100)]


class LimitScope(enum.Enum):
    """Whose a limit is."""

    GATEWAY = "gateway"
    USER = "user"
    CONNECTION = "connection"
    DESTINATION = "destination"


class LimitSort(enum.Enum):
    """The order of a list: the nearest to its limit first, or by scope, holder and option."""

    NEAREST = "nearest"
    NAME = "name"


class CursorSort(enum.Enum):
    """The order of a list: by destination, by the others from the largest."""

    NAME = "name"
    MEMORY = "memory"
    PENDING = "pending"


class ListLimits(msgspec.Struct, frozen=True, tag="list-limits"):
    """All limits that there are and how much of each is used, a page at a time.

    Attributes:
        match: what the holder or the option has in it, whatever its case; "" for all.
        scope: only those; None: all.
        percent: only those of which so much is used, or more.
        after: ``next`` of the page before; "" for the first one.
    """

    match: str = ""
    scope: LimitScope | None = None
    sort: LimitSort = LimitSort.NEAREST
    percent: Percent = 0
    after: str = ""
    limit: Limit = 100


class LimitRow(msgspec.Struct, frozen=True):
    """A row of a list. Limits that are not set have none.

    Attributes:
        holder: user, address of a connection, or destination; "" of the gateway.
        number: of a connection, or of a list; 0 of others.
        option: that sets it, ``broker.held_limit``; act: what happens at it.
        used, limit: bytes, or a number of things; of ``broker.disk_free_limit``, where less is worse: what
            is free.
        percent: of it that is used; above 100 where what was there before counts as well.
        refused: how often somebody was refused here, or below, for this or another limit; 0 where nobody counts.
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
    """Rows of a list. Attributes: next: what to ask for as ``after``; "" when there are no more."""

    rows: tuple[LimitRow, ...]
    next: str = ""


class ShowHeld(msgspec.Struct, frozen=True, tag="show-held"):
    """What is held in memory for a user. Attributes: user: "": for all together, the gateway."""

    user: str = ""


class Holder(msgspec.Struct, frozen=True):
    """A node of the tree of held bytes, directly below another. Attributes: number: of a connection; 0 of a user."""

    name: str
    number: int
    held: Room
    in_flight: Room


class HeldDetails(msgspec.Struct, frozen=True, tag="held-details"):
    """What is held in memory for one.

    Attributes:
        held, in_flight: bytes now; held_peak, in_flight_peak: the most that there ever were at a time.
        refused: how often somebody was refused, here or below.
        kinds: bytes of *held*, by what they are: ``output``, ``transactions`` …
        counts: connections, sessions, subscriptions, queues.
        below: those below it for whom most is held, at most ``HOLDERS_MAX``: users of the gateway,
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
        match: what destination, client id or name of the subscription has in it, whatever its case; "" for all.
        paging: only those that are fed from pages.
        after: ``next`` of the page before; "" for the first one.
    """

    match: str = ""
    sort: CursorSort = CursorSort.NAME
    paging: bool = False
    after: str = ""
    limit: Limit = 100


class CursorRow(msgspec.Struct, frozen=True):
    """A row of a list.

    Attributes:
        number: of the list; negative where nothing of it is stored.
        cursor: its plugin's name, ``store``, ``vm``, ``file``.
        pending: messages that wait, in memory or not.
        memory: what it holds, and what it may hold by itself.
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
    """Rows of a list. Attributes: next: what to ask for as ``after``; "" when there are no more."""

    rows: tuple[CursorRow, ...]
    next: str = ""
