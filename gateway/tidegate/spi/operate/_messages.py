"""Messages of queues: seen, published, and what is done to many of them, a step at a time."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec

from tidegate.spi.messages import PRIORITY_DEFAULT
from tidegate.spi.operate._paging import Count, Limit, Sequences

#: Of one body, as much as a page of messages shows at most, in bytes.
BROWSED_BODY_MAX: Final = 1 << 20

#: For how long a purge can be undone at most, in seconds.
KEPT_S: Final = 30 * 86_400


class BrowseMessages(msgspec.Struct, frozen=True, tag="browse-messages"):
    """Messages of a queue in their order, a page at a time; nothing is consumed. What is in flight is shown, too.

    Attributes:
        selector: only messages that it selects; "" for all.
        after: ``next`` of the page before; 0 for the first one.
        limit: rows, 1 to ``PAGE_MAX``; fewer come when they are large, or seldom selected.
        body_bytes: of each body, as much as is wanted.
    """

    destination: str
    selector: str = ""
    after: Count = 0
    limit: Limit = 50
    body_bytes: Annotated[int, msgspec.Meta(ge=0, le=BROWSED_BODY_MAX)] = 1024


class PublishMessage(msgspec.Struct, frozen=True, tag="publish-message"):
    """Publish a message. Its producer is who asks; limits, interceptors and access control act as for any publish.

    Attributes: see :class:`tidegate.spi.Message`.
    """

    destination: str
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    content_type: str | None = None
    priority: Annotated[int, msgspec.Meta(ge=0, le=9)] = PRIORITY_DEFAULT
    persistent: bool = True
    expires_at: Count = 0
    correlation_data: bytes | None = None
    reply_to: str = ""


class PurgeDestination(msgspec.Struct, frozen=True, tag="purge-destination"):
    """Remove messages of a queue.

    What is in flight, or locked by a transaction, stays; so does what is published after the request.

    Attributes:
        selector: only messages that it selects; "" for all.
        count_max: 0 for all.
        after, through: of an answer to the same request, to go on, or a range of sequences: those behind *after* up
            to *through*; 0 to begin.
        keep_until: microseconds since the epoch, a second to ``KEPT_S`` from now: until then they are kept in a queue that is given to nobody,
            and :class:`UndoPurge` brings them back; they take their room until then. 0: they are gone.
        sequences: only messages with these numbers, which :class:`BrowsedMessage` has; None for all. What is not there any more is left out.
    """

    destination: str
    selector: str = ""
    count_max: Count = 0
    after: Count = 0
    through: Count = 0
    keep_until: Count = 0
    sequences: Sequences | None = None


class UndoPurge(msgspec.Struct, frozen=True, tag="undo-purge"):
    """Move what a purge has kept back, in order, to the end of the queue that it was in, and which is there.

    Attributes: kept: of :class:`PurgedRow`; others: see :class:`PurgeDestination`.
    """

    kept: str
    selector: str = ""
    count_max: Count = 0
    after: Count = 0
    through: Count = 0
    sequences: Sequences | None = None


class ListPurged(msgspec.Struct, frozen=True, tag="list-purged"):
    """What purges have kept, the longest kept first, a page at a time.

    Attributes: match: what the name of the queue that was purged has in it, whatever its case; "" for all; after: ``next`` of the page before;
        "" for the first one.
    """

    match: str = ""
    after: str = ""
    limit: Limit = 100


class PurgedRow(msgspec.Struct, frozen=True):
    """A row of a list.

    Attributes: kept: the queue in which they are; destination: the queue that was purged; pending: messages; until: microseconds since the epoch.
    """

    kept: str
    destination: str
    pending: int
    until: int


class PurgedPage(msgspec.Struct, frozen=True, tag="purged-page"):
    """Rows of a list. Attributes: next: what to ask for as ``after``; "" when there are no more."""

    rows: tuple[PurgedRow, ...]
    next: str = ""


class MoveMessages(msgspec.Struct, frozen=True, tag="move-messages"):
    """Move messages of a queue, in order, to the end of another one; both exist.

    They keep everything but their destination, and count as not delivered yet. Other fields, and what stays: see
    :class:`PurgeDestination`. Each is in one of the two queues at any time, also after a crash.
    """

    destination: str
    target: str
    selector: str = ""
    count_max: Count = 0
    after: Count = 0
    through: Count = 0
    sequences: Sequences | None = None


class CopyMessages(msgspec.Struct, frozen=True, tag="copy-messages"):
    """Append copies of a queue's messages to another one; see :class:`MoveMessages`.

    What is in flight is copied, too.
    """

    destination: str
    target: str
    selector: str = ""
    count_max: Count = 0
    after: Count = 0
    through: Count = 0
    sequences: Sequences | None = None


class RetryMessages(msgspec.Struct, frozen=True, tag="retry-messages"):
    """Move dead letters back to the ends of the queues that they come from, and which are there.

    They lose what dead-lettering added to their headers. What does not come from a queue stays, and the answer's
    note says so. Other fields, and what stays: see :class:`PurgeDestination`.
    """

    destination: str
    selector: str = ""
    count_max: Count = 0
    after: Count = 0
    through: Count = 0
    sequences: Sequences | None = None


class CountDeadLetters(msgspec.Struct, frozen=True, tag="count-dead-letters"):
    """Group the messages of a queue by where they come from and why they are there; nothing happens to them.

    What is in flight is counted, too. An answer that is not complete says how far it came; its groups and those of
    the same request with its ``after`` and ``through`` are to be added up.

    Attributes: see :class:`PurgeDestination`; count_max: look at so many messages at most.
    """

    destination: str
    selector: str = ""
    count_max: Count = 0
    after: Count = 0
    through: Count = 0


#: Requests that go over messages, and may have to be asked again to go on.
Lengthy: TypeAlias = PurgeDestination | UndoPurge | MoveMessages | CopyMessages | RetryMessages


class BrowsedMessage(msgspec.Struct, frozen=True):
    """One message.

    Attributes:
        sequence: its number in the gateway, by which it is ordered.
        body: its beginning; size: bytes of all of it; problem: why it cannot be read, "" when it can.
        delivery_count: how often it was handed out and not acknowledged.
        is_in_flight: a consumer has it now.
        others: see :class:`tidegate.spi.Message`.
    """

    sequence: int
    body: bytes
    size: int
    problem: str
    delivery_count: int
    is_in_flight: bool
    headers: tuple[tuple[str, str], ...]
    received_at: int
    expires_at: int
    priority: int
    persistent: bool
    protocol: str
    client_id: str
    owner: str
    content_type: str | None
    correlation_data: bytes | None
    reply_to: str


class MessagePage(msgspec.Struct, frozen=True, tag="message-page"):
    """Messages of a queue. Attributes: next: what to ask for as ``after``; 0 when there are no more."""

    rows: tuple[BrowsedMessage, ...]
    next: int = 0


class DeadLetterGroup(msgspec.Struct, frozen=True):
    """Messages that are alike.

    Attributes:
        origin, reason: where they come from, and why they are there; "": no header says so.
        size: of their bodies together, in bytes.
        first_at, last_at: when they were received, microseconds since the epoch.
        selector: that selects them, for any request that has one; None: their headers are too long for one.
    """

    origin: str
    reason: str
    count: int
    size: int
    first_at: int
    last_at: int
    selector: str | None


class DeadLetterGroups(msgspec.Struct, frozen=True, tag="dead-letter-groups"):
    """Groups of what was looked at, the largest first.

    Attributes: count: messages that were looked at; others: see :class:`Done`.
    """

    groups: tuple[DeadLetterGroup, ...]
    count: int
    is_complete: bool
    after: int
    through: int


class Done(msgspec.Struct, frozen=True, tag="done"):
    """What was asked for has happened, and is durable.

    Attributes:
        count: messages that it was done to.
        is_complete: False: ask again with ``after`` and ``through`` to go on.
        after, through: sequences; how far it came, and where it is to end.
        note: what the operator should know besides, a sentence; "" for nothing.
    """

    count: int = 0
    is_complete: bool = True
    after: int = 0
    through: int = 0
    note: str = ""
