"""Destinations: listing, creating, deleting, pausing."""

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
    """The order of a list: by name ascending, or by one of the others, largest first."""

    NAME = "name"
    PENDING = "pending"
    CONSUMERS = "consumers"
    MEMORY = "memory"
    DROPPED = "dropped"


class Side(enum.Enum):
    """Whom to pause."""

    PRODUCERS = "producers"
    CONSUMERS = "consumers"


# --- requests ------------------------------------------------------------------------------------


class ListDestinations(msgspec.Struct, frozen=True, tag="list-destinations"):
    """Queues, and topic filters that somebody subscribes to, a page at a time.

    Attributes:
        match: a name or filter that covers them, prefixed with ``queue://`` or ``topic://`` for
            only these; "" for all.
        contains: text in the name, ignoring case; "" for all.
        dead_letters: only queues that a policy sends dead letters to.
        after: ``next`` of the previous page; "" for the first one.
        limit: rows, 1 to ``PAGE_MAX``.
        with_totals: include sums over all that match, on whichever page.
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
    """Create a queue."""

    destination: str


class DeleteDestination(msgspec.Struct, frozen=True, tag="delete-destination"):
    """Delete a queue.

    Attributes:
        with_messages: even with pending messages, which are lost, including those in flight.
        with_consumers: even with consumers. Connections that subscribed to it by name are ended;
            those that consume through a filter only lose this queue.
    """

    destination: str
    with_messages: bool = False
    with_consumers: bool = False


class PauseDestination(msgspec.Struct, frozen=True, tag="pause-destination"):
    """Refuse new messages, or deliver none, until it is resumed; also after a restart.

    Attributes: sides: whom to pause. Producers of a queue or topic are refused with a retryable error;
        consumers of a queue keep their subscriptions and their messages in flight.
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
        pending: waiting messages; of a topic, in all subscriptions to this filter together.
        in_flight: delivered to connected consumers, not acknowledged.
        consumers: being served; of a queue, including those whose filter covers it.
        subscriptions: of a topic filter, those with their own list, including those of absent clients.
        body_bytes: of everything that the store has for it, in flight or not; None when not counted, because its
            policy has no limit in bytes.
        memory_bytes: what its cursors hold in memory.
        is_full: its producers wait for room.
        overflow: what happens when its lists have no room, as in docs/limits.md; several for a topic whose
            subscriptions differ; empty: its lists always take more, in pages.
        dropped: messages its lists have lost, since the gateway or the list began.
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
    """Totals over destinations: how many there are, and sums over their rows.

    Attributes:
        full, paused: how many of them are.
        dead_letters: messages waiting in dead-letter queues.
        unattended: how many other queues have waiting messages but no consumer.
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
        next: ``after`` of the next page; "" when there are no more.
        totals: over all that match; None when not asked for.
    """

    rows: tuple[Destination, ...]
    next: str = ""
    totals: DestinationTotals | None = None


class Feed(msgspec.Struct, frozen=True):
    """Where the consumers of one list are fed from.

    Attributes:
        subscription: "" for a queue; otherwise the client id of a subscription, and its name if it has one.
        is_paging: fed from pages of the store or of a temporary file, not from memory.
        since: microseconds since the epoch; why: one of :class:`tidegate.spi.FeedReason`.
        turns: how often that has changed since the gateway or the list began.
        direct_messages, direct_bytes: those that went straight to memory.
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
    """Unstored messages of a queue, in flight or not.

    Attributes: messages; memory_bytes: of those in memory; file_bytes: what its temporary files take.
    """

    messages: int
    memory_bytes: int
    file_bytes: int


class DestinationDetails(msgspec.Struct, frozen=True, tag="destination-details"):
    """One destination.

    Attributes:
        feeds: of its lists, at most ``FEEDS_MAX``, those fed from pages first.
        oldest_at: when the oldest message of a queue, in flight or not, was received: microseconds since the
            epoch; 0 when there is none, or it is not stored.
        policy: the policy in force, by option; sizes in bytes, times in seconds.
        refused: why the store takes no messages now, for any destination; "": it does.
        unstored: of a queue whose policy says ``non_persistent = "spool"``, otherwise None.
    """

    row: Destination
    feeds: tuple[Feed, ...]
    oldest_at: int
    policy: dict[str, str | int | float | bool | None]
    refused: str = ""
    unstored: Unstored | None = None
