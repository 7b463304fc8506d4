"""The operator's contract: what can be seen of a running gateway, and done with it.

Everything that an operator uses is made of it: the commands of ``tidegate``, and whatever else answers
people. Each request is a type, each answer is one, both as they travel (:func:`perform`).

Who asks is asked about: each request needs the right ADMIN, and what it does to a destination the
right for that (CREATE, DELETE, CONSUME, BROWSE, PUBLISH); what was done is told to auditors.

No request holds up messaging. One that goes over messages does so in steps, each of which becomes
durable as a whole, and stops when its time is over or something is in the way: its answer says how far it
came, and the same request with ``after`` and ``through`` of the answer goes on.
"""

from __future__ import annotations

import enum
from typing import Annotated, Final, Protocol, TypeAlias

import msgspec

from tidegate.spi.clients.security import Identity
from tidegate.spi.replay import (
    AskDestinations,
    BeginReplay,
    ForgetReplay,
    PublishReplayed,
    Replay,
    ReplayAnswer,
    ReplayRequest,
    Verdicts,
)
from tidegate.spi.sink import SinkHealth
from tidegate.spi.storage.log import AcknowledgedMessage

#: Rows of one page at most.
PAGE_MAX: Final = 1000

#: Lists of a topic that are shown one by one.
FEEDS_MAX: Final = 20

#: Bodies in files of their own that rows of the log come with, in bytes.
LOG_BODY_MAX: Final = 8 << 20

#: How long one request goes on at most, in seconds; then its answer says how far it came.
WORK_S: Final = 10.0

Limit: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=PAGE_MAX)]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


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
        after: ``next`` of the page before; "" for the first one.
        limit: rows, 1 to ``PAGE_MAX``.
    """

    match: str = ""
    sort: DestinationSort = DestinationSort.NAME
    after: str = ""
    limit: Limit = 100


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


class PurgeDestination(msgspec.Struct, frozen=True, tag="purge-destination"):
    """Remove messages of a queue; they never reach the acknowledged log.

    What is in flight, or locked by a transaction, stays; so does what is published after the request.

    Attributes:
        selector: only messages that it selects; "" for all.
        count_max: 0 for all.
        after, through: of an answer to the same request, to go on; 0 to begin.
    """

    destination: str
    selector: str = ""
    count_max: Count = 0
    after: Count = 0
    through: Count = 0


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


class ListSinks(msgspec.Struct, frozen=True, tag="list-sinks"):
    """All sinks, by their order in the configuration."""


class ShowSink(msgspec.Struct, frozen=True, tag="show-sink"):
    """One sink, with its last problems. Attributes: sink: its name."""

    sink: str


class ReadLog(msgspec.Struct, frozen=True, tag="read-log"):
    """Rows of the acknowledged log with their bodies; needs the right BROWSE on their destinations.

    Attributes:
        after: rows behind it; those that the log has no more are passed over.
        limit: rows, 1 to ``PAGE_MAX``; fewer come when they are large.
    """

    after: Count = 0
    limit: Limit = PAGE_MAX


class CompactSink(msgspec.Struct, frozen=True, tag="compact-sink"):
    """Have a sink keep its target up now. It begins; ``SinkHealth.upkeep`` says when it has ended.

    Attributes: sink: its name.
    """

    sink: str


#: Requests that go over messages, and may have to be asked again to go on.
Lengthy: TypeAlias = PurgeDestination | MoveMessages | CopyMessages

Request: TypeAlias = (
    ListDestinations
    | ShowDestination
    | CreateDestination
    | DeleteDestination
    | PauseDestination
    | ResumeDestination
    | Lengthy
    | ListSinks
    | ShowSink
    | ReadLog
    | CompactSink
    | ReplayRequest
)


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


class DestinationPage(msgspec.Struct, frozen=True, tag="destination-page"):
    """Rows of a list. Attributes: next: what to ask for as ``after``; "" when there are no more."""

    rows: tuple[Destination, ...]
    next: str = ""


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


class SinkStatus(msgspec.Struct, frozen=True):
    """One sink: what it says of itself, and what the acknowledged log knows of it.

    Attributes:
        health: a list has the last of its problems only.
        store_id: of the log whose rows it carries.
        released: the log keeps no rows for it up to here.
        last: highest ack sequence in the log.
        lag_rows: acknowledged, and not in its target yet; lag_bytes: of these, in proportion to what the
            log holds in all where another sink is further behind.
        lag_seconds: since the oldest of them was acknowledged, 0 when there is none; None: not known.
        log_rows, log_bytes: what the log keeps for it; bytes in the same proportion.
        log_share: of the log's limit that these bytes are, 0 to 1 and above.
    """

    name: str
    health: SinkHealth
    store_id: str
    released: int
    last: int
    lag_rows: int
    lag_bytes: int
    lag_seconds: float | None
    log_rows: int
    log_bytes: int
    log_share: float


class SinkList(msgspec.Struct, frozen=True, tag="sink-list"):
    """All sinks."""

    rows: tuple[SinkStatus, ...]


class SinkDetails(msgspec.Struct, frozen=True, tag="sink-details"):
    """One sink."""

    status: SinkStatus


class SinkTurn(msgspec.Struct, frozen=True, tag="sink-turn"):
    """What was asked for will be done. Attributes: number: of the turn of upkeep in which it is."""

    number: int


class DamagedRow(msgspec.Struct, frozen=True):
    """A row of the acknowledged log that cannot be read. Attributes: problem: why, for people."""

    ack_sequence: int
    problem: str


class LogRows(msgspec.Struct, frozen=True, tag="log-rows"):
    """Rows of the acknowledged log.

    Attributes:
        rows: in order. A body that is in a file of its own and has more than ``LOG_BODY_MAX`` bytes is not there:
            ``message.large`` says how long it is, and its checksum.
        through: there is none up to here that is not among them or damaged; ``after`` of the next request. The
            ``after`` of this one when the log ends there.
        damaged: those that cannot be read.
    """

    rows: tuple[AcknowledgedMessage, ...]
    through: int
    damaged: tuple[DamagedRow, ...] = ()


Answer: TypeAlias = (
    DestinationPage
    | DestinationDetails
    | Done
    | SinkList
    | SinkDetails
    | SinkTurn
    | LogRows
    | ReplayAnswer
)


class Operator(Protocol):
    """What a running gateway offers. On its event loop; every method may raise

    AccessError: *who* may not; RequestError: it makes no sense, or not now; FlowControlError: a limit
    is reached; StoreError. Cancellation: what was begun becomes durable or not, a step as a whole.
    """

    async def list_destinations(
        self, who: Identity, request: ListDestinations
    ) -> DestinationPage: ...

    async def show_destination(
        self, who: Identity, request: ShowDestination
    ) -> DestinationDetails: ...

    async def create_destination(self, who: Identity, request: CreateDestination) -> Done: ...

    async def delete_destination(self, who: Identity, request: DeleteDestination) -> Done: ...

    async def pause_destination(self, who: Identity, request: PauseDestination) -> Done: ...

    async def resume_destination(self, who: Identity, request: ResumeDestination) -> Done: ...

    async def purge_destination(self, who: Identity, request: PurgeDestination) -> Done: ...

    async def move_messages(self, who: Identity, request: MoveMessages) -> Done: ...

    async def copy_messages(self, who: Identity, request: CopyMessages) -> Done: ...

    async def list_sinks(self, who: Identity, request: ListSinks) -> SinkList: ...

    async def show_sink(self, who: Identity, request: ShowSink) -> SinkDetails: ...

    async def read_log(self, who: Identity, request: ReadLog) -> LogRows: ...

    async def compact_sink(self, who: Identity, request: CompactSink) -> SinkTurn: ...

    async def begin_replay(self, who: Identity, request: BeginReplay) -> Replay: ...

    async def publish_replayed(self, who: Identity, request: PublishReplayed) -> Replay: ...

    async def forget_replay(self, who: Identity, request: ForgetReplay) -> Done: ...

    async def ask_destinations(self, who: Identity, request: AskDestinations) -> Verdicts: ...


async def perform(operator: Operator, who: Identity, request: Request) -> Answer:
    """Carry out whatever *request* is. Raises: see :class:`Operator`."""
    match request:
        case ListDestinations():
            return await operator.list_destinations(who, request)
        case ShowDestination():
            return await operator.show_destination(who, request)
        case CreateDestination():
            return await operator.create_destination(who, request)
        case DeleteDestination():
            return await operator.delete_destination(who, request)
        case PauseDestination():
            return await operator.pause_destination(who, request)
        case ResumeDestination():
            return await operator.resume_destination(who, request)
        case PurgeDestination():
            return await operator.purge_destination(who, request)
        case MoveMessages():
            return await operator.move_messages(who, request)
        case CopyMessages():
            return await operator.copy_messages(who, request)
        case ListSinks():
            return await operator.list_sinks(who, request)
        case ShowSink():
            return await operator.show_sink(who, request)
        case ReadLog():
            return await operator.read_log(who, request)
        case CompactSink():
            return await operator.compact_sink(who, request)
        case BeginReplay():
            return await operator.begin_replay(who, request)
        case PublishReplayed():
            return await operator.publish_replayed(who, request)
        case ForgetReplay():
            return await operator.forget_replay(who, request)
        case AskDestinations():
            return await operator.ask_destinations(who, request)
