"""Destinations: seen, made, ended, paused."""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from tidegate.spi.operate._paging import Limit

#: Lists of a topic that are shown one by one.
FEEDS_MAX: Final = 20


class DestinationKind(enum.Enum):
    """What a destination is."""

    QUEUE = "queue"
    TEMPORARY_QUEUE = "temporary-queue"
    TOPIC = "topic"


class DestinationSort(enum.Enum):
    """The order of a list: by name from the beginning, by the others from the largest."""

    NAME = "name"
    PENDING = "pending"
    CONSUMERS = "consumers"
    MEMORY = "memory"
    DROPPED = "dropped"


class Side(enum.Enum):
    """Whom to stop."""

    PRODUCERS = "producers"
    CONSUMERS = "consumers"


# --- requests ------------------------------------------------------------------------------------


class ListDestinations(msgspec.Struct, frozen=True, tag="list-destinations"):
    """Queues, and filters of topics that somebody subscribes to, a page at a time.

    Attributes:
        match: a name or filter that covers them, of queues or topics alone with ``queue://`` or
            ``topic://`` before it; "" for all.
        contains: what the name has in it, whatever its case; "" for all.
        dead_letters: only queues that a policy has dead letters go to.
        after: ``next`` of the page before; "" for the first one.
        limit: rows, 1 to ``PAGE_MAX``.
        with_totals: and what all that match have together, on whichever page.
    """

    match: str = ""
    sort: DestinationSort = DestinationSort.NAME
    after: str = ""
    limit: Limit = 100
    with_totals: bool = False
    contains: str = ""
    dead_letters: bool = False


class ShowDestination(msgspec.Struct, frozen=True, tag="show-destination"):
    """One destination and its policy."""

    destination: str


class CreateDestination(msgspec.Struct, frozen=True, tag="create-destination"):
    """Make a queue."""

    destination: str


class DeleteDestination(msgspec.Struct, frozen=True, tag="delete-destination"):
    """End a queue.

    Attributes:
        with_messages: also when messages are pending, which are lost then, those in flight included.
        with_consumers: also when it has consumers. The connections of those that subscribed to it by
            name are ended; who consumes through a filter only loses this queue.
    """

    destination: str
    with_messages: bool = False
    with_consumers: bool = False


class PauseDestination(msgspec.Struct, frozen=True, tag="pause-destination"):
    """Refuse messages, or hand none out, until it is resumed, also after a restart.

    Attributes: sides: whom to stop. Producers of a queue or topic are refused with an error that may be
        tried again; consumers of a queue keep their subscriptions, and what they have in flight.
    """

    destination: str
    sides: tuple[Side, ...] = (Side.PRODUCERS, Side.CONSUMERS)


class ResumeDestination(msgspec.Struct, frozen=True, tag="resume-destination"):
    """The opposite of :class:`PauseDestination`."""

    destination: str
    sides: tuple[Side, ...] = (Side.PRODUCERS, Side.CONSUMERS)


# --- answers -------------------------------------------------------------------------------------


class Destination(msgspec.Struct, frozen=True):
    """A row of a list.

    Attributes:
        pending: messages that wait; of a topic in all subscriptions to this filter together.
        in_flight: delivered and not acknowledged, to consumers that are connected.
        consumers: being served; of a queue also those whose filter covers it.
        subscriptions: of a topic filter that have a list of their own, also of clients that are away.
        body_bytes: of all that the store has for it, in flight or not; None where it is not counted, because its
            policy has no limit in bytes.
        memory_bytes: what its cursors hold in memory.
        is_full: its producers wait for room.
        overflow: what happens when its lists have no room, one of docs/limits.md, several for a topic whose
            subscriptions differ; none: they take what there is, in pages.
        dropped: messages that its lists have lost, since the gateway or the list began.
    """

    destination: str
    kind: DestinationKind
    pending: int
    in_flight: int
    consumers: int
    subscriptions: int
    body_bytes: int | None
    memory_bytes: int
    is_full: bool
    overflow: tuple[str, ...]
    dropped: int
    producers_paused: bool
    consumers_paused: bool


class DestinationTotals(msgspec.Struct, frozen=True):
    """What destinations have together: how many they are, and sums of what their rows say.

    Attributes:
        full, paused: how many of them are.
        dead_letters: messages that wait in queues that dead letters go to.
        unattended: in how many of the others messages wait without a consumer.
    """

    destinations: int = 0
    pending: int = 0
    in_flight: int = 0
    consumers: int = 0
    memory_bytes: int = 0
    dropped: int = 0
    full: int = 0
    paused: int = 0
    unattended: int = 0
    dead_letters: int = 0


class DestinationPage(msgspec.Struct, frozen=True, tag="destination-page"):
    """Rows of a list.

    Attributes:
        next: what to ask for as ``after``; "" when there are no more.
        totals: of all that match; None: nobody asked.
    """

    rows: tuple[Destination, ...]
    next: str = ""
    totals: DestinationTotals | None = None


class Feed(msgspec.Struct, frozen=True):
    """Where the consumers of one list are fed from.

    Attributes:
        subscription: "" for a queue; else the client id of a subscription, and its name if it has one.
        is_paging: from pages of the store or of a temporary file, and not from memory.
        since: microseconds since the epoch; why: one of :class:`tidegate.spi.FeedReason`.
        turns: how often that has changed since the gateway or the list began.
        direct_messages, direct_bytes: those that went to memory when they came.
        paged_messages, paged_bytes: those that were read from pages; bytes are of bodies and headers.
    """

    subscription: str
    is_paging: bool
    since: int
    why: str
    turns: int
    direct_messages: int
    direct_bytes: int
    paged_messages: int
    paged_bytes: int


class Unstored(msgspec.Struct, frozen=True):
    """What is not stored of a queue, in flight or not.

    Attributes: messages; memory_bytes: of those in memory; file_bytes: what its temporary files take.
    """

    messages: int
    memory_bytes: int
    file_bytes: int


class DestinationDetails(msgspec.Struct, frozen=True, tag="destination-details"):
    """One destination.

    Attributes:
        feeds: of its lists, at most ``FEEDS_MAX``, those first that are fed from pages.
        oldest_at: when the oldest message of a queue, in flight or not, was received: microseconds since the
            epoch; 0 when there is none, or it is not stored.
        policy: what it is handled by, by option; sizes in bytes, times in seconds.
        refused: why the store takes no messages now, of any destination; "": it does.
        unstored: of a queue whose policy says ``non_persistent = "spool"``, else None.
    """

    row: Destination
    feeds: tuple[Feed, ...]
    oldest_at: int
    policy: dict[str, str | int | float | bool | None]
    refused: str = ""
    unstored: Unstored | None = None
