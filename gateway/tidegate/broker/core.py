"""The broker core: puts the parts together, and lets clients in.

One instance per gateway, all of it on one event loop. Front-ends reach it through
:meth:`BrokerCore.connect` and the :class:`Connection` it returns.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tidegate.broker.connection.connection import Connection
from tidegate.broker.destinations import Destinations
from tidegate.broker.limits.acknowledged import AcknowledgedLog
from tidegate.broker.limits.sockets import Sockets
from tidegate.broker.limits.subscription_limit import SubscriptionLimits
from tidegate.broker.lists.pending_list import PendingList
from tidegate.broker.parts import Parts
from tidegate.broker.publish.access import Access
from tidegate.broker.publish.publisher import Publisher
from tidegate.broker.publish.retained_delivery import RetainedDeliveries
from tidegate.broker.publish.system_topics import SystemTopics
from tidegate.broker.publish.temporary import TemporaryDestinations
from tidegate.broker.route.retained import RetainedMessages
from tidegate.broker.sessions.admission import until_durable
from tidegate.broker.sessions.authentication import Authentication
from tidegate.broker.sessions.sessions import Sessions
from tidegate.broker.sessions.wills import Wills
from tidegate.broker.tasks import Tasks
from tidegate.broker.transactions.branches import Branches
from tidegate.broker.transactions.duplicates import DuplicateIds
from tidegate.broker.turn.flow import Flow
from tidegate.config import BrokerConfig, DestinationPolicy
from tidegate.spi import (
    Action,
    AuthenticationExchange,
    Authenticator,
    Authorizer,
    ClientPeer,
    ConnectionEndedError,
    ConnectRequest,
    ConnectResult,
    CursorFactory,
    EnhancedAuthenticator,
    FlowControlError,
    Interceptor,
    LargeBodies,
    MessageStore,
    RecoveredState,
    StoredMessage,
    StoreError,
    StoreIOError,
    Subscription,
)

_log = logging.getLogger("tidegate.broker")

#: How often sessions are expired and the limits of the acknowledged log enforced.
MAINTENANCE_INTERVAL_S: Final = 1.0


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
        self.connections: set[Connection] = set()
        self.sockets = Sockets(config.connections_max)
        self.clients_maximum = 0
        self.tasks = Tasks()
        self.acknowledged_log = AcknowledgedLog(store, config)
        self.retained = RetainedMessages(limit_bytes=config.retained_limit)
        self.flow = Flow(
            store,
            self.tasks,
            config.pending_write_limit,
            clock=self.now,
            on_write=self.acknowledged_log.notify,
            lower=self._lower,
            half_sent=self._half_sent,
            ended=self._list_ended,
        )
        self.writer = self.flow.writer
        detours: set[object] = set()
        self.subscription_limits = SubscriptionLimits(self.flow, detours)
        self.destinations = Destinations(
            config,
            self.flow,
            self.tasks,
            self.subscription_limits,
            cursors=cursors,
            policies=policies,
            temporary_directory=temporary_directory,
        )
        self._assemble(extensions, detours)
        self._version = version
        self._sequence_floor = sequence_floor
        self._authentication = Authentication(extensions)
        self._by_client: dict[tuple[str, str], Connection] = {}
        self._closing = False
        self._stopped = False

    def _assemble(self, extensions: Sequence[object], detours: set[object]) -> None:
        """Make the parts above the lists, each of those below it."""
        config, store = self.config, self.store
        self.deliveries = RetainedDeliveries(
            self.flow, self.retained, self.acknowledged_log, detours
        )
        self.temporary = TemporaryDestinations(self.destinations)
        self.publisher = Publisher(
            self.writer,
            self.destinations,
            self.retained,
            self.deliveries,
            self.subscription_limits,
            self.temporary,
            detours,
        )
        self.access = Access(extensions, self.acknowledged_log)
        self.duplicates = DuplicateIds(
            self.writer, config, is_kept=store.capabilities.duplicate_ids is not None
        )
        self.branches = Branches(
            store,
            self.writer,
            self.tasks,
            self.destinations,
            self.publisher,
            self.duplicates,
            prepared_max=config.prepared_branches_max,
        )
        self.wills = Wills(self.writer, self.publisher, self.access)
        self.sessions = Sessions(self.writer, self.destinations, self.wills)
        self._parts = Parts(
            config,
            store,
            self.tasks,
            self.flow,
            self.writer,
            self.destinations,
            self.deliveries,
            self.temporary,
            self.access,
            self.publisher,
            self.duplicates,
            self.branches,
            self.wills,
            self.sessions,
        )

    def now(self) -> int:
        """Microseconds since the Unix epoch; may jump when the operator sets the clock."""
        return time.time_ns() // 1000

    # What lists ask for of parts that are made after them.

    def _lower(self, pending_list: PendingList, is_lowered: bool) -> None:
        self.destinations.lower(pending_list, is_lowered)

    def _half_sent(self, subscription: Subscription, messages: Sequence[StoredMessage]) -> set[int]:
        return self.sessions.half_sent(subscription, messages)

    def _list_ended(self, pending_list: PendingList) -> None:
        self.deliveries.end(pending_list)

    # --- tidegate.spi.Broker ---------------------------------------------------------------

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def store_id(self) -> str:
        return self.acknowledged_log.store_id

    @property
    def version(self) -> str:
        return self._version

    @property
    def large_bodies(self) -> LargeBodies | None:
        return self.store.capabilities.large_bodies

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
        connection = Connection(self._parts, request, peer, principal, self._forget)
        if request.will is not None:  # refused now, not when nobody is there to be told
            self.access.authorize(connection, Action.PUBLISH, request.will.destination)
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
            await until_durable(self.writer)
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
        self.acknowledged_log.store_id = state.store_id
        writer, destinations = self.writer, self.destinations
        writer.next_sequence = max(state.last_sequence + 1, self._sequence_floor)
        writer.next_list = state.last_pending_list + 1
        writer.start()
        for found in state.destinations:
            if found.pending_list:
                count = state.pending.get(found.pending_list)
                destinations.make_queue(
                    found.destination, found.pending_list, count.messages if count else 0
                )
        self.sessions.recover(state)
        for subscription in state.subscriptions:
            count = state.pending.get(subscription.pending_list)
            destinations.restore_subscription(
                subscription,
                count.messages if count else 0,
                once=self.sessions.delivers_once(subscription),
            )
        self.retained.recover(state.retained)
        self.deliveries.recover(destinations.durable.values())
        ids, branches = self.store.capabilities.duplicate_ids, self.store.capabilities.branches
        self.duplicates.recover(() if ids is None else await ids.recovered_duplicate_ids())
        self.branches.recover(
            () if branches is None else await branches.recovered_branches(), state
        )
        await self.sessions.recover_in_doubt(self.store)
        self.sessions.end_recovery()
        self.flow.checks_publish = self.access.checks_publish
        self.tasks.spawn(self._maintain(), "maintenance")
        if self.config.system_topics_interval:
            system = SystemTopics(
                self.flow,
                destinations,
                self.deliveries,
                self.config.system_topics_interval,
                self.client_counts,
            )
            self.tasks.spawn(system.run(), "system topics")
        return state

    async def stop(self) -> None:
        """End every connection, make everything durable, close the store. Idempotent."""
        if self._stopped:
            return
        self._stopped = True
        await self.end_connections()
        await self.tasks.stop()
        await self.writer.close()
        for pending_list in self.destinations.all_lists():
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
            try:
                await self._maintain_once()
            except Exception:  # or no will would be published and no session expire any more
                _log.exception("maintenance failed, and is tried again")

    async def _maintain_once(self) -> None:
        now, elapsed = self.now(), self.writer.elapsed()
        self.wills.publish_due(elapsed)
        self.sessions.expire(elapsed)
        for operation in self.retained.expire(now):
            self.writer.add_operation(operation, synced=False)
        try:
            await self.acknowledged_log.enforce_limits(now, elapsed, lambda: self._closing)
        except StoreError as error:
            _log.error("acknowledged_log=unknown error=%r", str(error))
        self.flow.checks_publish = self.access.checks_publish

    # --- connections ---------------------------------------------------------------------------

    def _forget(self, connection: Connection) -> None:
        self.connections.discard(connection)
        key = (connection.protocol, connection.client_id)
        if self._by_client.get(key) is connection:
            del self._by_client[key]

    def client_counts(self) -> Mapping[str, int | str]:
        """What system topics tell of clients and of what they did."""
        connected, disconnected = len(self.connections), self.sessions.count_disconnected()
        served = sum(len(connection.consumers) for connection in self.connections)
        away = sum(not item.consumers for item in self.destinations.durable.values())
        return {
            "version": f"tidegate version {self._version}",
            "clients.connected": connected,
            "clients.disconnected": disconnected,
            "clients.total": connected + disconnected,
            "clients.maximum": self.clients_maximum,
            "clients.expired": self.sessions.expired,
            "publish.messages.duplicates": self.duplicates.discarded,
            "subscriptions.count": served + away,
        }
