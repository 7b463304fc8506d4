"""Messages of queues: browsing, publishing, and bulk operations in steps."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec

from tidegate.spi.messages import PRIORITY_DEFAULT
from tidegate.spi.operate._paging import Count, Limit, Sequences

#: Most bytes of one body that a page of messages shows.
BROWSED_BODY_MAX: Final = 1 << 20

#: Longest time that a purge can be undone, in seconds.
KEPT_S: Final = 30 * 86_400


class BrowseMessages(msgspec.Struct, frozen=True, tag="browse-messages"):
    """Messages of a queue in their order, a page at a time; nothing is consumed. Includes messages in flight.

    Attributes:
        selector: only messages that it selects; "" for all.
        after: ``next`` of the previous page; 0 for the first one.
        limit: rows, 1 to ``PAGE_MAX``; fewer come when messages are large, or rarely selected.
        body_bytes: how much of each body to return.
    """

    destination: str
    selector: str = ""
    after: Count = 0
    limit: Limit = 50
    body_bytes: Annotated[int, msgspec.Meta(ge=0, le=BROWSED_BODY_MAX)] = 1024


class PublishMessage(msgspec.Struct, frozen=True, tag="publish-message"):
    """Publish a message as the operator; limits, interceptors and access control apply as for any publish.

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

    Messages in flight, or locked by a transaction, stay; so do those published after the request.

    Attributes:
        selector: only messages that it selects; "" for all.
        count_max: 0 for all.
        after, through: from an answer to the same request, to continue; or a range of sequences: those after *after*,
            up to *through*. 0 to begin.
        keep_until: microseconds since the epoch, one second to ``KEPT_S`` from now. Until then the messages are kept in
            a queue that nobody consumes from, where they still take room, and :class:`UndoPurge` brings them back.
            0: they are gone.
        sequences: only messages with these numbers, see :class:`BrowsedMessage`; None for all. Those no longer there
            are skipped.
    """

    destination: str
    selector: str = ""
    count_max: Count = 0
    after: Count = 0
    through: Count = 0
    keep_until: Count = 0
    sequences: Sequences | None = None


class UndoPurge(msgspec.Struct, frozen=True, tag="undo-purge"):
    """Move the messages that a purge has kept back, in order, to the end of their queue, which must exist.

    Attributes: kept: see :class:`PurgedRow`; others: see :class:`PurgeDestination`.
    """

    kept: str
    selector: str = ""
    count_max: Count = 0
    after: Count = 0
    through: Count = 0
    sequences: Sequences | None = None


class ListPurged(msgspec.Struct, frozen=True, tag="list-purged"):
    """What purges have kept, longest kept first, a page at a time.

    Attributes: match: text in the name of the purged queue, ignoring case; "" for all; after: ``next`` of the
        previous page; "" for the first one.
    """

    match: str = ""
    after: str = ""
    limit: Limit = 100


class PurgedRow(msgspec.Struct, frozen=True):
    """A row of a list.

    Attributes: kept: the queue that holds them; destination: the purged queue; pending: messages; until:
        microseconds since the epoch.
    """

    kept: str
    destination: str
    pending: int
    until: int


class PurgedPage(msgspec.Struct, frozen=True, tag="purged-page"):
    """Rows of a list. Attributes: next: ``after`` of the next page; "" when there are no more."""

    rows: tuple[PurgedRow, ...]
    next: str = ""


class MoveMessages(msgspec.Struct, frozen=True, tag="move-messages"):
    """Move messages of a queue, in order, to the end of another one; both must exist.

    They keep everything but their destination, and count as not yet delivered. Other fields, and what stays: see
    :class:`PurgeDestination`. Each message is in one of the two queues at any time, even after a crash.
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

    Messages in flight are copied, too.
    """

    destination: str
    target: str
    selector: str = ""
    count_max: Count = 0
    after: Count = 0
    through: Count = 0
    sequences: Sequences | None = None


class RetryMessages(msgspec.Struct, frozen=True, tag="retry-messages"):
    """Move dead letters back to the ends of the queues they came from, which must exist.

    They lose the headers that dead-lettering added. Messages that did not come from a queue stay, and the answer's
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

    Messages in flight are counted, too. An incomplete answer says how far it came; repeat the request with its
    ``after`` and ``through``, and add up the groups.

    Attributes: see :class:`PurgeDestination`; count_max: look at this many messages at most.
    """

    destination: str
    selector: str = ""
    count_max: Count = 0
    after: Count = 0
    through: Count = 0


#: Requests that go over messages, and may have to be repeated to continue.
Lengthy: TypeAlias = PurgeDestination | UndoPurge | MoveMessages | CopyMessages | RetryMessages


class BrowsedMessage(msgspec.Struct, frozen=True):
    """One message.

    Attributes:
        sequence: its number in the gateway, which orders messages.
        body: its beginning; size: bytes of all of it; problem: why it cannot be read, "" when it can.
        delivery_count: how often it was delivered and not acknowledged.
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
    """Messages of a queue. Attributes: next: ``after`` of the next page; 0 when there are no more."""

    rows: tuple[BrowsedMessage, ...]
    next: int = 0


class DeadLetterGroup(msgspec.Struct, frozen=True):
    """Messages with the same origin and reason.

    Attributes:
        origin, reason: where they come from, and why they are there; "": no header says so.
        size: bytes of their bodies together.
        first_at, last_at: when the first and the last were received, microseconds since the epoch.
        selector: selects them, in any request that takes one; None: their headers are too long for one.
    """

    origin: str
    reason: str
    count: int
    size: int
    first_at: int
    last_at: int
    selector: str | None


class DeadLetterGroups(msgspec.Struct, frozen=True, tag="dead-letter-groups"):
    """Groups of the messages looked at, largest first.

    Attributes: count: messages looked at; others: see :class:`Done`.
    """

    groups: tuple[DeadLetterGroup, ...]
    count: int
    is_complete: bool
    after: int
    through: int


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The request was carried out, durably.

    Attributes:
        count: messages affected.
        is_complete: False: repeat the request with ``after`` and ``through`` to continue.
        after, through: sequences: how far it came, and where it ends.
        note: what else the operator should know, as a sentence; "" for nothing.
    """

    count: int = 0
    is_complete: bool = True
    after: int = 0
    through: int = 0
    note: str = ""
