"""The broker core: owns destinations, lists, sessions and the one writer.

One instance per gateway, all of it on one event loop. Front-ends reach it through
:meth:`BrokerCore.connect` and the :class:`Connection` it returns.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from tidegate.broker.connection import (
    AUTHORIZATIONS_MAX,
    UNWRITTEN,
    Connection,
    subscription_of,
)
from tidegate.broker.limits.acknowledged import AcknowledgedLog
from tidegate.broker.limits.sockets import Sockets
from tidegate.broker.limits.subscription_limit import SubscriptionLimits
from tidegate.broker.lists.large import check_large
from tidegate.broker.lists.pending_list import NoCursor, PendingList
from tidegate.broker.route.detours import take_detour
from tidegate.broker.route.retained import RetainedMessages
from tidegate.broker.route.retained_delivery import RetainedDeliveries
from tidegate.broker.route.router import Route, Router
from tidegate.broker.route.selector import compile_selector
from tidegate.broker.route.system_topics import SystemTopics, is_system
from tidegate.broker.route.temporary import TemporaryDestinations
from tidegate.broker.sessions.admission import until_durable
from tidegate.broker.sessions.authentication import Authentication
from tidegate.broker.sessions.sessions import Sessions
from tidegate.broker.sessions.wills import Will, Wills
from tidegate.broker.transactions.branches import Branches
from tidegate.broker.transactions.duplicates import DuplicateIds
from tidegate.broker.turn.units import at_least_once
from tidegate.broker.turn.writer import TurnWriter
from tidegate.config import (
    CURSOR_UNSTORED_DEFAULT,
    BrokerConfig,
    DestinationPolicy,
    policy_for,
)
from tidegate.spi import (
    AccessError,
    Action,
    AddDestination,
    AddMessage,
    AuthenticationExchange,
    Authenticator,
    Authorizer,
    ClientPeer,
    ConnectionEndedError,
    ConnectRequest,
    ConnectResult,
    CursorContext,
    CursorFactory,
    EnhancedAuthenticator,
    FlowControlError,
    Interceptor,
    LargeBodies,
    Message,
    MessageStore,
    Move,
    Operation,
    PendingCursor,
    PutSubscription,
    RecoveredState,
    RemoveSubscription,
    RequestError,
    StoredMessage,
    StoreError,
    StoreIOError,
    SubscribeRequest,
    Subscription,
    names,
)

if TYPE_CHECKING:
    from tidegate.broker.lists.consumer import Consumer
    from tidegate.broker.route.selector import Matcher

_log = logging.getLogger("tidegate.broker")

#: A client could otherwise fill memory and store with queues by publishing to new names.
DESTINATIONS_MAX: Final = 100_000

#: How often sessions are expired and the limits of the acknowledged log enforced.
MAINTENANCE_INTERVAL_S: Final = 1.0

#: Headers that a dead-lettered message carries besides its own.
DEAD_LETTER_FROM: Final = "original-destination"
DEAD_LETTER_REASON: Final = "dead-letter-reason"
_DEAD_LETTER_HEADERS: Final = frozenset((DEAD_LETTER_FROM, DEAD_LETTER_REASON))


class BrokerCore:
    """See the module's docstring.

    Args:
        config: the ``[broker]`` table.
        store: not yet open.
        cursors: cursor factories by the name that policies use.
        policies: destination policies in file order; the first that covers a destination wins.
        extensions: authenticators, authorizers, interceptors in configured order.
        temporary_directory: for cursors that spool; exists and is empty.
        sequence_floor: no sequence below this is given out, whatever the store remembers.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        *,
        cursors: Mapping[str, CursorFactory],
        policies: Sequence[DestinationPolicy],
        extensions: Sequence[Authenticator | EnhancedAuthenticator | Authorizer | Interceptor] = (),
        temporary_directory: Path,
        version: str,
        sequence_floor: int = 1,
    ) -> None:
        self.config = config
        self.store = store
        self.durable: dict[tuple[str, str, str], PendingList] = {}
        self.shared: dict[tuple[str, str], PendingList] = {}
        self.queues: dict[str, PendingList] = {}
        self.retained = RetainedMessages(limit_bytes=config.retained_limit)
        self.retained_deliveries = RetainedDeliveries(self)
        self.subscription_limits = SubscriptionLimits(self)
        # Whoever wants to see publishes just now; see _detours.
        self.detours: set[object] = set()
        self.connections: set[Connection] = set()
        self.sockets = Sockets(config.connections_max)
        self.sessions = Sessions(self)
        self.wills = Wills(self)
        self.duplicates = DuplicateIds(self)
        self.branches = Branches(self)
        # Where messages are in flight from that no list holds.
        self.nowhere = PendingList(
            self, 0, "", NoCursor(), is_queue=False, is_stored=False, is_removed=True
        )
        self.temporary = TemporaryDestinations(self)
        self.ready: dict[PendingList, None] = {}
        self.full_lists: set[PendingList] = set()
        self.next_sequence = 1
        self.turn_bytes_max = config.pending_write_limit
        self.checks_publish = False
        self.dropped = 0
        self.sent = 0  # messages handed to front-ends
        self.own_sequences = 0  # numbered here, but not published by a client now
        self.clients_maximum = 0
        self._version = version
        self._sequence_floor = sequence_floor
        self._cursors = cursors
        self._policies = tuple(policies)
        self._temporary_directory = temporary_directory
        self._authentication = Authentication(extensions)
        self._authorizers = [e for e in extensions if isinstance(e, Authorizer)]
        self._interceptors = [e for e in extensions if isinstance(e, Interceptor)]
        self._router = Router(self.queue_list)
        self.routes = self._router.routes
        self._by_client: dict[tuple[str, str], Connection] = {}
        self._queue_watchers: list[tuple[str, Consumer]] = []
        self._resting: list[Consumer] = []
        self._throttled: set[Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closers: set[asyncio.Task[None]] = set()
        self._next_list = 1
        self._next_unstored = -1
        self._closing = False
        self._stopped = False
        self._store_id = ""
        self._loop = asyncio.get_running_loop()
        self.writer: TurnWriter
        self.acknowledged_log: AcknowledgedLog

    # --- tidegate.spi.Broker ---------------------------------------------------------------

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def store_id(self) -> str:
        return self._store_id

    @property
    def version(self) -> str:
        return self._version

    @property
    def large_bodies(self) -> LargeBodies | None:
        return self.store.capabilities.large_bodies

    @property
    def unsized_bodies(self) -> bool:
        return self.store.capabilities.unsized_bodies

    def socket_opened(self) -> bool:
        return self.sockets.opened()

    def socket_closed(self) -> None:
        self.sockets.closed()

    def begin_authentication(
        self, method: str, request: ConnectRequest
    ) -> AuthenticationExchange | None:
        return self._authentication.begin(method, request)

    async def connect(self, request: ConnectRequest, peer: ClientPeer) -> ConnectResult:
        if self._closing:
            raise ConnectionEndedError("shutdown", "the gateway is shutting down")
        if self.writer.error is not None:
            raise StoreIOError(f"the message store is read-only: {self.writer.error}")
        self._check_connections()
        principal = await self._authentication.principal_of(request)
        if self._closing:
            raise ConnectionEndedError("shutdown", "the gateway is shutting down")
        self._check_connections()  # others may have come while this one was authenticated
        key = (request.protocol, request.client_id)
        if request.client_id:
            older = self._by_client.get(key)
            if older is not None:
                older.end(
                    ConnectionEndedError(
                        "taken-over",
                        f"another connection with client id {request.client_id!r} took over",
                    )
                )
        connection = Connection(self, request, peer, principal)
        if request.will is not None:  # refused now, not when nobody is there to be told
            self._authorize(connection, Action.PUBLISH, request.will.destination)
        session = self.sessions.find(*key) if request.client_id else None
        is_stored = session is not None
        if session is not None and request.clean_start:
            self.sessions.remove(session)
            session = None
        present = session is not None
        subscriptions: Sequence[Subscription] = ()
        # One that is taken up but is to end with this connection counts too, and a will is kept
        # with a session so that it outlives the gateway.
        wants = request.session_expiry > 0 or request.will is not None or session is not None
        if request.client_id and wants:
            session = self.sessions.begin(request, principal)
            subscriptions = connection.restore(session)
            is_stored = True
        self.connections.add(connection)
        self.clients_maximum = max(self.clients_maximum, len(self.connections))
        if request.client_id:
            self._by_client[key] = connection
        if is_stored:
            await self._admit(connection)
        return ConnectResult(
            connection, present, subscriptions, session.records() if session else ()
        )

    async def _admit(self, connection: Connection) -> None:
        """Wait until the session is durable. A client that leaves meanwhile, or is taken over (the
        front-end is told then), was never accepted, so there is no will. Raises: GatewayError."""
        connection.is_admitted = False
        try:
            await until_durable(self)
            if self._closing:
                raise ConnectionEndedError("shutdown", "the gateway is shutting down")
        except BaseException:
            connection.disconnect(graceful=True)
            raise
        connection.is_admitted = True

    def _check_connections(self) -> None:
        if len(self.connections) >= self.config.connections_max:
            raise FlowControlError(
                f"{len(self.connections)} clients are connected; that is the limit"
                " (broker.connections_max)"
            )

    # --- start and stop --------------------------------------------------------------------

    async def start(self) -> RecoveredState:
        """Open the store and take up what it knows. Raises: StoreError."""
        state = await self.store.open()
        self._store_id = state.store_id
        self.next_sequence = max(state.last_sequence + 1, self._sequence_floor)
        self._next_list = state.last_pending_list + 1
        self.writer = TurnWriter(self.store, self.now, self._end_of_turn, self._on_write)
        self.acknowledged_log = AcknowledgedLog(self.store, state.store_id, self.config)
        for found in state.destinations:
            if found.pending_list:
                count = state.pending.get(found.pending_list)
                self._make_queue(
                    found.destination, found.pending_list, count.messages if count else 0
                )
        self.sessions.recover(state)
        for subscription in state.subscriptions:
            count = state.pending.get(subscription.pending_list)
            self._restore_subscription(subscription, count.messages if count else 0)
        self.retained = RetainedMessages(state.retained, limit_bytes=self.config.retained_limit)
        self.retained_deliveries.recover()
        self.duplicates.recover(state.duplicate_ids)
        self.branches.recover(state)
        await self.sessions.recover_in_doubt()
        self.sessions.end_recovery()
        self.checks_publish = bool(self._authorizers or self._interceptors)
        self.spawn(self._maintain(), "maintenance")
        if self.config.system_topics_interval:
            system = SystemTopics(self, self.config.system_topics_interval)
            self.spawn(system.run(), "system topics")
        return state

    async def stop(self) -> None:
        """End every connection, make everything durable, close the store. Idempotent."""
        if self._stopped:
            return
        self._stopped = True
        await self.end_connections()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._closers, return_exceptions=True)
        await self.writer.close()
        for pending_list in [
            *self.queues.values(),
            *self.durable.values(),
            *self.shared.values(),
        ]:
            await pending_list.cursor.close()
        await self.store.close()

    async def end_connections(self) -> None:
        """No new work; confirm what was accepted; tell the clients. Idempotent."""
        self._closing = True
        self.writer.give_up_when_full()
        for connection in list(self.connections):
            connection.hold()
        await self.writer.drained()
        for connection in list(self.connections):
            connection.end(ConnectionEndedError("shutdown", "the gateway is shutting down"))
        await self.writer.drained()

    async def _maintain(self) -> None:
        while not self._closing:
            await asyncio.sleep(MAINTENANCE_INTERVAL_S)
            now, elapsed = self.now(), self.elapsed()
            self.wills.publish_due(elapsed)
            self.sessions.expire(elapsed)
            for operation in self.retained.expire(now):
                self.add_operation(operation, synced=False)
            try:
                await self.acknowledged_log.enforce_limits(now, elapsed, lambda: self._closing)
            except StoreError as error:
                _log.error("acknowledged_log=unknown error=%r", str(error))
            self.checks_publish = bool(
                self._authorizers or self._interceptors or self.acknowledged_log.refusing
            )

    def spawn(self, work: Coroutine[object, object, None], name: str) -> asyncio.Task[None]:
        """Run *work* as a task of the broker's; its failure is logged."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._closers.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("task=%r failed", task.get_name(), exc_info=task.exception())

    # --- the turn --------------------------------------------------------------------------

    def now(self) -> int:
        """Microseconds since the Unix epoch; may jump when the operator sets the clock."""
        return time.time_ns() // 1000

    def elapsed(self) -> int:
        """Microseconds of a clock that nobody sets: how long something lasts."""
        return int(self._loop.time() * 1_000_000)

    def schedule(self) -> None:
        if not self.writer.scheduled:
            self.writer.schedule()

    def add_operation(self, operation: Operation, *, synced: bool = True) -> None:
        """Put an operation that belongs to no unit into the filling turn."""
        turn = self.writer.turn
        turn.operations.append(operation)
        turn.synced = turn.synced or synced
        self.schedule()

    def mark_ready(self, pending_list: PendingList) -> None:
        """The list may have something to hand out at the end of this turn."""
        self.ready[pending_list] = None
        self.schedule()

    def _end_of_turn(self) -> None:
        ready = self.ready
        if ready:
            self.ready = {}
            for pending_list in ready:
                try:
                    pending_list.dispatch()
                except Exception:  # one cursor that fails must not stop the other lists
                    _log.exception("destination=%s: dispatch failed", pending_list.destination)

    def _on_write(self, unwritten_bytes: int) -> None:
        self.acknowledged_log.notify()
        if self._throttled and unwritten_bytes <= self.turn_bytes_max // 2:
            throttled, self._throttled = self._throttled, set()
            for connection in throttled:
                connection.unthrottle(UNWRITTEN)

    def rest(self, consumer: Consumer) -> None:
        """Serve *consumer* again once the sockets have been written."""
        if not self._resting:
            asyncio.get_running_loop().call_soon(self._wake_resting)
        self._resting.append(consumer)

    def _wake_resting(self) -> None:
        resting, self._resting = self._resting, []
        for consumer in resting:
            consumer.resting = False
            for pending_list in consumer.lists:
                if pending_list.cursor.size:
                    self.mark_ready(pending_list)

    def acknowledge_automatically(
        self,
        consumer: Consumer,
        pending_list: PendingList,
        messages: Sequence[StoredMessage],
        now: int,
    ) -> None:
        """Handing out is acknowledging for this consumer."""
        acknowledged = self.writer.turn.acknowledged
        group = acknowledged.setdefault((consumer, pending_list), ([], []))
        group[0].extend([message.sequence for message in messages])
        group[1].extend([now] * len(messages))
        self.schedule()

    # --- flow control ----------------------------------------------------------------------

    def throttle_unwritten(self, connection: Connection) -> None:
        """The filling turn is large enough: this producer waits until it is written."""
        self._throttled.add(connection)
        connection.throttle(UNWRITTEN)

    def throttle_full(self, connection: Connection, route: Route) -> None:
        """A list of *route* may be full: its producer waits until consumers made room.

        A producer that also has messages in flight is not stopped: with its socket paused its
        acknowledgements would never be read, and nothing would ever make room.
        """
        if connection.has_in_flight():
            return
        for pending_list in (*route.stored, *route.direct):
            if pending_list in self.full_lists:
                pending_list.blocked.add(connection)
                connection.throttle(pending_list)

    def release_consumer(self, connection: Connection) -> None:
        """A client that waits for room in a list was handed messages: its acknowledgements must
        be read, or two clients that consume what the other one produces would wait for ever."""
        for pending_list in self.full_lists:
            if connection in pending_list.blocked:
                pending_list.blocked.discard(connection)
                connection.unthrottle(pending_list)

    def record_delivery(self, pending_list: PendingList, messages: Sequence[StoredMessage]) -> None:
        """Messages that were delivered came back: their counts go into the filling turn."""
        group = self.writer.turn.returned.setdefault(pending_list, ([], []))
        group[0].extend([message.sequence for message in messages])
        group[1].extend([message.delivery_count for message in messages])
        self.schedule()

    def count_dropped(self, pending_list: PendingList, count: int) -> None:
        """Unstored messages were dropped because a subscriber does not keep up."""
        if self.dropped == 0:
            _log.warning(
                "destination=%s dropped=%d: a subscriber without storage does not keep up"
                " (further drops are only counted)",
                pending_list.destination,
                count,
            )
        self.dropped += count

    # --- destinations ----------------------------------------------------------------------

    def policy(self, destination: str) -> DestinationPolicy:
        """The policy of a canonical destination or filter: the first one that matches."""
        return policy_for(self._policies, destination)

    def resolve(self, destination: str) -> Route:
        """The route of *destination*, created on first use. Raises: RequestError."""
        route = self.routes.get(destination)
        if route is None:
            if not (names.is_queue(destination) or names.is_topic(destination)):
                raise RequestError(f"{destination!r} is neither a queue nor a topic")
            try:
                names.check_name(names.name_of(destination))
            except ValueError as error:
                raise RequestError(str(error)) from None
            if names.is_temporary(destination):
                self.temporary.check_exists(destination)
            if is_system(destination):  # never cached, so this is always found out here
                raise AccessError(
                    "clients cannot publish to topics of the gateway", destination=destination
                )
            route = self._router.resolve(destination)
        return route

    def route_once(self, topic: str) -> Route:
        """The route of a topic that only the gateway publishes to; it is not remembered."""
        return self._router.topic_route(topic)

    def queue_list(self, destination: str) -> PendingList:
        """The pending list of a queue, created (durably, with this turn) on first use."""
        found = self.queues.get(destination)
        if found is not None:
            return found
        if len(self.queues) >= DESTINATIONS_MAX:
            raise RequestError(f"there are {DESTINATIONS_MAX} queues already; that is the limit")
        list_id = self.take_list_id()
        self.add_operation(AddDestination(destination, list_id))
        return self._make_queue(destination, list_id, 0)

    def _make_queue(self, destination: str, list_id: int, count: int) -> PendingList:
        policy = self.policy(destination)
        made = PendingList(
            self,
            list_id,
            destination,
            self._make_cursor(policy.cursor, policy, destination, list_id, count),
            is_queue=True,
            is_stored=True,
        )
        self.queues[destination] = made
        name = names.name_of(destination)
        for filter_name, consumer in self._queue_watchers:
            if names.matches(filter_name, name):
                made.attach(consumer)
        return made

    def add_temporary_queue(self, destination: str) -> PendingList:
        """The pending list of a temporary queue: the store never hears of it."""
        if len(self.queues) >= DESTINATIONS_MAX:
            raise RequestError(f"there are {DESTINATIONS_MAX} queues already; that is the limit")
        list_id, cursor = self._make_unstored_cursor(destination)
        made = PendingList(self, list_id, destination, cursor, is_queue=True, is_stored=False)
        self.queues[destination] = made
        return made

    def remove_temporary(self, destination: str) -> None:
        """Forget a temporary destination and everything in it."""
        self.routes.pop(destination, None)
        made = self.queues.pop(destination, None)
        if made is not None:
            self._remove_list(made)

    def watch_queues(self, filter_name: str, consumer: Consumer) -> None:
        """Attach *consumer* to every queue that the filter covers, now and later."""
        self._queue_watchers.append((filter_name, consumer))
        for destination, pending_list in self.queues.items():
            if names.matches(filter_name, names.name_of(destination)):
                pending_list.attach(consumer)

    def unwatch_queues(self, consumer: Consumer) -> None:
        self._queue_watchers = [item for item in self._queue_watchers if item[1] is not consumer]

    def take_list_id(self) -> int:
        """The id of a new stored list."""
        list_id = self._next_list
        self._next_list = list_id + 1
        return list_id

    def _make_cursor(
        self, cursor: str, policy: DestinationPolicy, destination: str, list_id: int, count: int
    ) -> PendingCursor:
        store = self.store

        async def read_page(after: int, limit: int, bytes_max: int) -> Sequence[StoredMessage]:
            return await store.page_in(list_id, after, limit, bytes_max)

        return self._cursors[cursor].create(
            CursorContext(
                destination=destination,
                read_page=read_page if list_id > 0 else None,
                recovered_count=count,
                memory_limit_bytes=policy.memory_limit,
                page_count=policy.page_count,
                temporary_directory=self._temporary_directory,
                temporary_limit_bytes=policy.temporary_limit,
                shared_limit_bytes=self.config.cursor_memory_limit,
            )
        )

    def _make_unstored_cursor(self, destination: str) -> tuple[int, PendingCursor]:
        """Id and cursor of a list that is not stored."""
        list_id = self._next_unstored
        self._next_unstored -= 1
        policy = self.policy(destination)
        cursor = policy.subscriber_cursor or policy.cursor
        if self._cursors[cursor].needs_store:
            cursor = CURSOR_UNSTORED_DEFAULT
        return list_id, self._make_cursor(cursor, policy, destination, list_id, 0)

    # --- subscriptions ---------------------------------------------------------------------

    def check_subscribe(self, connection: Connection, request: SubscribeRequest) -> None:
        """Raises: RequestError for a bad name, AccessError when refused."""
        destination = request.destination
        if not (names.is_queue(destination) or names.is_topic(destination)):
            raise RequestError(f"{destination!r} is neither a queue nor a topic")
        try:
            names.check_filter(names.name_of(destination))
        except ValueError as error:
            raise RequestError(str(error)) from None
        if names.is_temporary(destination):
            self.temporary.check_subscribe(connection, request)
        self._authorize(connection, Action.SUBSCRIBE, destination)

    def add_subscription(
        self, connection: Connection, request: SubscribeRequest, *, is_stored: bool, durable: bool
    ) -> PendingList:
        """A new topic subscription with a list of its own."""
        if is_stored:
            list_id = self.take_list_id()
            subscription = subscription_of(list_id, connection, request, durable=durable)
            self.add_operation(PutSubscription(subscription))
            return self._restore_subscription(subscription, 0)
        list_id, cursor = self._make_unstored_cursor(request.destination)
        made = PendingList(
            self,
            list_id,
            request.destination,
            cursor,
            is_queue=False,
            is_stored=False,
            qos=request.qos,
            no_local=request.no_local,
            client_id=connection.client_id,
            overlap_key=_overlap_key(connection.protocol, connection.client_id, request),
            matches=compile_selector(request.selector),
        )
        self._router.add_filter(made)
        return made

    def _restore_subscription(self, subscription: Subscription, count: int) -> PendingList:
        policy = self.policy(subscription.filter)
        cursor = policy.durable_cursor or policy.cursor
        made = PendingList(
            self,
            subscription.pending_list,
            subscription.filter,
            self._make_cursor(
                cursor, policy, subscription.filter, subscription.pending_list, count
            ),
            is_queue=False,
            is_stored=True,
            subscription=subscription,
            qos=subscription.qos,
            no_local=subscription.no_local,
            client_id=subscription.client_id,
            overlap_key=_overlap_key(subscription.protocol, subscription.client_id, subscription),
            matches=_selector_of(subscription),
        )
        if subscription.durable or subscription.share_group:
            made.set_limit(policy.subscription_limit, policy.subscription_overflow)
        if subscription.share_group:
            self.shared[subscription.share_group, subscription.filter] = made
        elif subscription.durable:
            self.durable[subscription.protocol, subscription.client_id, subscription.name] = made
            session = self.sessions.get(subscription.protocol, subscription.client_id)
            if session is not None:
                session.lists[subscription.name] = made
        self._router.add_filter(made)
        return made

    def update_subscription(self, pending_list: PendingList, request: SubscribeRequest) -> None:
        """The same subscription with other options; its list stays."""
        old = pending_list.subscription
        if old is not None:
            new = msgspec.structs.replace(
                old, qos=request.qos, no_local=request.no_local, options=request.options
            )
            if new == old:
                return
            pending_list.subscription = new
            self.add_operation(PutSubscription(new))
        if pending_list.is_stored:  # what it was stored until now may not have been handed out
            pending_list.is_lowered = request.qos == 0 and pending_list.stores
        pending_list.qos = request.qos
        pending_list.no_local = request.no_local
        pending_list.overlap_key = _overlap_key(
            old.protocol if old else "mqtt", pending_list.client_id, request
        )
        self._router.remove_filter(pending_list)
        self._router.add_filter(pending_list)

    def lower(self, pending_list: PendingList, is_lowered: bool) -> None:
        """Begin or end storing for a subscription of QoS 0; see PendingList.stores."""
        pending_list.is_lowered = is_lowered
        if not pending_list.is_removed:
            self._router.remove_filter(pending_list)
            self._router.add_filter(pending_list)

    def remove_subscription(self, pending_list: PendingList) -> None:
        """The subscription ends with all that is pending in it."""
        if pending_list.is_removed:
            return
        self._router.remove_filter(pending_list)
        self._remove_list(pending_list)
        subscription = pending_list.subscription
        if subscription is not None:
            key = (subscription.protocol, subscription.client_id, subscription.name)
            if self.durable.get(key) is pending_list:
                del self.durable[key]
            session = self.sessions.get(subscription.protocol, subscription.client_id)
            if session is not None and session.lists.get(subscription.name) is pending_list:
                del session.lists[subscription.name]
            if subscription.share_group:
                shared_key = (subscription.share_group, subscription.filter)
                if self.shared.get(shared_key) is pending_list:
                    del self.shared[shared_key]
            self.add_operation(RemoveSubscription(pending_list.id))

    def update_shared(self, share_group: str, destination: str) -> None:
        """A shared subscription lives as long as somebody is served by it or a stored session has
        it, and outlives the gateway in the second case."""
        pending_list = self.shared.get((share_group, destination))
        if pending_list is None:
            return
        durable = self.sessions.has_members(share_group, destination)
        if not durable and not pending_list.consumers:
            self.remove_subscription(pending_list)
            return
        old = pending_list.subscription
        assert old is not None, "every shared subscription is stored"
        if old.durable != durable:
            pending_list.subscription = msgspec.structs.replace(old, durable=durable)
            self.add_operation(PutSubscription(pending_list.subscription))

    def leave_router(self, pending_list: PendingList) -> None:
        """The list gets no message more that is published from now on."""
        self._router.remove_filter(pending_list)

    def _remove_list(self, pending_list: PendingList) -> None:
        """The list takes and hands out nothing any more; its cursor is closed."""
        pending_list.end()
        self.ready.pop(pending_list, None)
        self.full_lists.discard(pending_list)
        for connection in pending_list.blocked:
            connection.unthrottle(pending_list)
        task = self.spawn(pending_list.cursor.close(), f"close cursor {pending_list.destination}")
        self._tasks.discard(task)  # never cancelled: what it spooled must go
        self._closers.add(task)

    # --- publishing ------------------------------------------------------------------------

    def check_destination(self, connection: Connection | Will, destination: str) -> None:
        """Limits and authorizers. Raises: AccessError, FlowControlError."""
        if self.acknowledged_log.refusing:
            raise FlowControlError(
                "publishes are refused: the sinks do not keep up and the acknowledged log is at"
                " its limit (broker.acknowledged_limit)"
            )
        self._authorize(connection, Action.PUBLISH, destination)

    def check_publish(self, connection: Connection | Will, message: Message) -> Message:
        """Limits, authorizers and interceptors. Raises: AccessError, FlowControlError."""
        self.check_destination(connection, message.destination)
        for interceptor in self._interceptors:
            try:
                message = interceptor.intercept(message, connection.principal)
            except AccessError:
                raise
            except Exception:
                _log.exception("interceptor=%s failed", interceptor)
                raise AccessError(
                    "the publish could not be checked",
                    principal=connection.principal,
                    destination=message.destination,
                ) from None
        check_large(message)
        destination = message.destination
        if message.retain and (names.is_queue(destination) or names.is_temporary(destination)):
            # A queue keeps its messages anyway; nobody could find a temporary topic's later.
            return msgspec.structs.replace(message, retain=False)
        return message

    def _authorize(self, connection: Connection | Will, action: Action, destination: str) -> None:
        authorized = connection.authorized
        if not self._authorizers or (action, destination) in authorized:
            return
        principal = connection.principal
        for authorizer in self._authorizers:
            try:
                allowed = authorizer.authorize(principal, action, destination)
            except Exception:
                _log.exception("authorizer=%s failed", authorizer)
                allowed = False
            if not allowed:
                raise AccessError(
                    f"{action.value} is not allowed",
                    principal=principal,
                    destination=destination,
                )
        if len(authorized) >= AUTHORIZATIONS_MAX:
            authorized.clear()
        authorized.add((action, destination))

    def add_message(self, message: Message, route: Route) -> None:
        """Number *message* and put it into the filling turn; the caller makes the unit."""
        sequence = self.next_sequence
        self.next_sequence = sequence + 1
        turn = self.writer.turn
        if route.ids:
            turn.operations.append(AddMessage(sequence, message, route.ids))
            turn.synced = True
            turn.body_bytes += len(message.body)
        turn.added.setdefault(route, []).append(StoredMessage(sequence, message))

    def publish_in_turn(
        self, message: Message, client_id: str, undo: list[Callable[[], None]]
    ) -> Route:
        """Number *message* and add it to the filling turn; the caller makes the unit."""
        route = self.resolve(message.destination)
        retained = message
        if message.qos == 0:
            route = route.without_storing()
            if route.ids:
                message = at_least_once(message)
        if route.is_picky:
            route = route.narrowed(message, client_id)
        if self.detours:
            route = take_detour(self, message, route)
        if message.retain:
            self._retain(retained, undo)
        self.add_message(message, route)
        return route

    def _retain(self, message: Message, undo: list[Callable[[], None]]) -> None:
        """Replace or clear the retained message of its destination."""
        operation, take_back = self.retained.replace(message)
        if operation is not None:
            self.writer.turn.operations.append(operation)
        if take_back is not None:
            undo.append(take_back)

    # --- dead letters ----------------------------------------------------------------------

    def dead_letter_list(
        self, message: StoredMessage, pending_list: PendingList
    ) -> PendingList | None:
        """Where a rejected message goes; None while it may be redelivered."""
        if not pending_list.is_stored or pending_list.is_removed:
            return None
        policy = self.policy(message.message.destination)
        limit = policy.max_deliveries
        if not limit or message.delivery_count + 1 < limit:
            return None
        for key, origin in message.message.headers:
            if key == DEAD_LETTER_FROM and names.is_queue(pending_list.destination):
                home = self.policy(origin).dead_letter_queue(origin)
                if home == pending_list.destination:
                    return None  # a dead letter already: whoever reads that queue decides
        try:
            return self.queue_list(policy.dead_letter_queue(message.message.destination))
        except RequestError as error:
            _log.error("destination=%s dead_letter=impossible: %s", pending_list.destination, error)
            return None

    def dead_letter(
        self, stored: StoredMessage, pending_list: PendingList, target: PendingList
    ) -> None:
        """Add the Move to the filling turn; the caller makes the unit."""
        message = stored.message
        moved = msgspec.structs.replace(
            message,
            destination=target.destination,
            expires_at=0,  # nothing is lost when nobody looks
            headers=(
                *(header for header in message.headers if header[0] not in _DEAD_LETTER_HEADERS),
                (DEAD_LETTER_FROM, message.destination),
                (DEAD_LETTER_REASON, f"rejected after {stored.delivery_count + 1} deliveries"),
            ),
        )
        sequence = self.next_sequence
        self.next_sequence = sequence + 1
        self.own_sequences += 1
        turn = self.writer.turn
        turn.operations.append(Move(pending_list.id, stored.sequence, target.id, sequence, moved))
        if pending_list.selecting is not None:
            pending_list.selecting.leaving([stored.sequence])
        turn.added.setdefault(self.resolve(target.destination), []).append(
            StoredMessage(sequence, moved)
        )
        turn.synced = True

    # --- connections -----------------------------------------------------------------------

    def forget_connection(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self._throttled.discard(connection)
        for pending_list in self.full_lists:
            pending_list.blocked.discard(connection)
        key = (connection.protocol, connection.client_id)
        if self._by_client.get(key) is connection:
            del self._by_client[key]


def _selector_of(subscription: Subscription) -> Matcher | None:
    """Its selector; one that cannot be read any more selects everything: nothing may be lost."""
    try:
        return compile_selector(subscription.selector)
    except RequestError as error:
        _log.error("subscription=%r selector=ignored: %s", subscription.name, error)
        return None


def _overlap_key(
    protocol: str, client_id: str, item: SubscribeRequest | Subscription
) -> tuple[str, str] | None:
    """Subscriptions with the same key that overlap deliver a message once (MQTT sessions).

    One that does not want the client's own messages must not stand for one that does.
    """
    if protocol == "mqtt" and client_id and not item.share_group:
        return (f"{protocol} no local" if item.no_local else protocol, client_id)
    return None
