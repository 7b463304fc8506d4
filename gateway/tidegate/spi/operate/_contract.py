"""All requests and answers together, and the interface that answers them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol, TypeAlias, get_args

from tidegate.spi.clients.security import Identity
from tidegate.spi.operate._access import (
    AccessDetails,
    AccessPage,
    ExplainAccess,
    ListAccess,
    ListRules,
    ListUsers,
    RulePage,
    UserPage,
)
from tidegate.spi.operate._changes import (
    Drain,
    DrainState,
    ReloadConfiguration,
    Reloaded,
    ShowDrain,
    Undrain,
)
from tidegate.spi.operate._connections import (
    ConnectionDetails,
    ConnectionPage,
    EndConnection,
    ListConnections,
    ShowConnection,
)
from tidegate.spi.operate._destinations import (
    CreateDestination,
    DeleteDestination,
    DestinationDetails,
    DestinationPage,
    ListDestinations,
    PauseDestination,
    ResumeDestination,
    ShowDestination,
)
from tidegate.spi.operate._events import EventPage, ListEvents
from tidegate.spi.operate._limits import (
    CursorPage,
    HeldDetails,
    LimitPage,
    ListCursors,
    ListLimits,
    ShowHeld,
)
from tidegate.spi.operate._messages import (
    BrowseMessages,
    CopyMessages,
    CountDeadLetters,
    DeadLetterGroups,
    Done,
    Lengthy,
    ListPurged,
    MessagePage,
    MoveMessages,
    PublishMessage,
    PurgeDestination,
    PurgedPage,
    RetryMessages,
    UndoPurge,
)
from tidegate.spi.operate._overview import Overview, ShowOverview
from tidegate.spi.operate._plugins import (
    BridgePage,
    ListBridges,
    ListPlugins,
    PluginPage,
)
from tidegate.spi.operate._sessions import (
    DeleteSession,
    DeleteSubscription,
    ListSessions,
    ListSubscriptions,
    SessionDetails,
    SessionPage,
    ShowSession,
    ShowSubscription,
    SubscriptionDetails,
    SubscriptionPage,
)
from tidegate.spi.operate._sinks import (
    CompactSink,
    ListSinks,
    LogRows,
    ReadLog,
    ShowSink,
    SinkDetails,
    SinkList,
    SinkTurn,
)
from tidegate.spi.operate._store import (
    ExplainFile,
    FileDetails,
    FilePage,
    ListFiles,
    ShowStore,
    StoreDetails,
)
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

Request: TypeAlias = (
    ShowOverview
    | ListEvents
    | ReloadConfiguration
    | Drain
    | Undrain
    | ShowDrain
    | ListDestinations
    | ShowDestination
    | CreateDestination
    | DeleteDestination
    | PauseDestination
    | ResumeDestination
    | BrowseMessages
    | PublishMessage
    | Lengthy
    | ListPurged
    | CountDeadLetters
    | ListSinks
    | ShowSink
    | ReadLog
    | CompactSink
    | ListConnections
    | ShowConnection
    | EndConnection
    | ListSessions
    | ShowSession
    | DeleteSession
    | ListSubscriptions
    | ShowSubscription
    | DeleteSubscription
    | ListLimits
    | ShowHeld
    | ListCursors
    | ListPlugins
    | ListBridges
    | ListUsers
    | ExplainAccess
    | ListAccess
    | ListRules
    | ShowStore
    | ListFiles
    | ExplainFile
    | ReplayRequest
)

Answer: TypeAlias = (
    Overview
    | EventPage
    | Reloaded
    | DrainState
    | DestinationPage
    | DestinationDetails
    | MessagePage
    | DeadLetterGroups
    | PurgedPage
    | Done
    | SinkList
    | SinkDetails
    | SinkTurn
    | LogRows
    | ConnectionPage
    | ConnectionDetails
    | SessionPage
    | SessionDetails
    | SubscriptionPage
    | SubscriptionDetails
    | LimitPage
    | HeldDetails
    | CursorPage
    | PluginPage
    | BridgePage
    | UserPage
    | AccessDetails
    | AccessPage
    | RulePage
    | StoreDetails
    | FilePage
    | FileDetails
    | ReplayAnswer
)


class Operator(Protocol):
    """What a running gateway offers. On its event loop. The method of a request has the name of its tag.

    Every method may raise AccessError: *who* has no right to it; RequestError: it makes no sense, or not
    now; FlowControlError: a limit is reached; StoreError. Cancellation: each step begun becomes durable
    as a whole or not at all.
    """

    async def show_overview(self, who: Identity, request: ShowOverview) -> Overview: ...

    async def list_events(self, who: Identity, request: ListEvents) -> EventPage: ...

    async def drain(self, who: Identity, request: Drain) -> DrainState: ...

    async def undrain(self, who: Identity, request: Undrain) -> DrainState: ...

    async def show_drain(self, who: Identity, request: ShowDrain) -> DrainState: ...

    async def reload_configuration(
        self, who: Identity, request: ReloadConfiguration
    ) -> Reloaded: ...

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

    async def browse_messages(self, who: Identity, request: BrowseMessages) -> MessagePage: ...

    async def publish_message(self, who: Identity, request: PublishMessage) -> Done: ...

    async def purge_destination(self, who: Identity, request: PurgeDestination) -> Done: ...

    async def undo_purge(self, who: Identity, request: UndoPurge) -> Done: ...

    async def list_purged(self, who: Identity, request: ListPurged) -> PurgedPage: ...

    async def move_messages(self, who: Identity, request: MoveMessages) -> Done: ...

    async def copy_messages(self, who: Identity, request: CopyMessages) -> Done: ...

    async def retry_messages(self, who: Identity, request: RetryMessages) -> Done: ...

    async def count_dead_letters(
        self, who: Identity, request: CountDeadLetters
    ) -> DeadLetterGroups: ...

    async def list_sinks(self, who: Identity, request: ListSinks) -> SinkList: ...

    async def show_sink(self, who: Identity, request: ShowSink) -> SinkDetails: ...

    async def read_log(self, who: Identity, request: ReadLog) -> LogRows: ...

    async def compact_sink(self, who: Identity, request: CompactSink) -> SinkTurn: ...

    async def list_connections(self, who: Identity, request: ListConnections) -> ConnectionPage: ...

    async def show_connection(
        self, who: Identity, request: ShowConnection
    ) -> ConnectionDetails: ...

    async def end_connection(self, who: Identity, request: EndConnection) -> Done: ...

    async def list_sessions(self, who: Identity, request: ListSessions) -> SessionPage: ...

    async def show_session(self, who: Identity, request: ShowSession) -> SessionDetails: ...

    async def delete_session(self, who: Identity, request: DeleteSession) -> Done: ...

    async def list_subscriptions(
        self, who: Identity, request: ListSubscriptions
    ) -> SubscriptionPage: ...

    async def show_subscription(
        self, who: Identity, request: ShowSubscription
    ) -> SubscriptionDetails: ...

    async def delete_subscription(self, who: Identity, request: DeleteSubscription) -> Done: ...

    async def list_limits(self, who: Identity, request: ListLimits) -> LimitPage: ...

    async def show_held(self, who: Identity, request: ShowHeld) -> HeldDetails: ...

    async def list_cursors(self, who: Identity, request: ListCursors) -> CursorPage: ...

    async def list_plugins(self, who: Identity, request: ListPlugins) -> PluginPage: ...

    async def list_bridges(self, who: Identity, request: ListBridges) -> BridgePage: ...

    async def list_users(self, who: Identity, request: ListUsers) -> UserPage: ...

    async def explain_access(self, who: Identity, request: ExplainAccess) -> AccessDetails: ...

    async def list_access(self, who: Identity, request: ListAccess) -> AccessPage: ...

    async def list_rules(self, who: Identity, request: ListRules) -> RulePage: ...

    async def show_store(self, who: Identity, request: ShowStore) -> StoreDetails: ...

    async def list_files(self, who: Identity, request: ListFiles) -> FilePage: ...

    async def explain_file(self, who: Identity, request: ExplainFile) -> FileDetails: ...

    async def begin_replay(self, who: Identity, request: BeginReplay) -> Replay: ...

    async def publish_replayed(self, who: Identity, request: PublishReplayed) -> Replay: ...

    async def forget_replay(self, who: Identity, request: ForgetReplay) -> Done: ...

    async def ask_destinations(self, who: Identity, request: AskDestinations) -> Verdicts: ...


#: The method that answers each request.
METHODS: Final[Mapping[type, str]] = {
    kind: str(kind.__struct_config__.tag).replace("-", "_") for kind in get_args(Request)
}


async def perform(operator: Operator, who: Identity, request: Request) -> Answer:
    """Carry out any *request*. Raises: see :class:`Operator`."""
    method: Callable[[Identity, Request], Awaitable[Answer]]
    method = getattr(operator, METHODS[type(request)])
    return await method(who, request)
