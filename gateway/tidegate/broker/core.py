"""The broker core: puts the parts together, and lets clients in.

One instance per gateway, all of it on one event loop. Front-ends reach it through
:meth:`BrokerCore.connect` and the :class:`Connection` it returns.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tidegate.broker.connection import told
from tidegate.broker.connection.client import identity_of
from tidegate.broker.connection.connection import Connection
from tidegate.broker.connection.deciding import Deciding
from tidegate.broker.connection.draining import Draining
from tidegate.broker.connection.handing_over import HandingOver
from tidegate.broker.connection.observed import ObservedConnection
from tidegate.broker.connection.slow_consumers import SlowConsumers
from tidegate.broker.idle_queues import IdleQueues
from tidegate.broker.limits.disk import DiskWatch
from tidegate.broker.limits.full_cursors import FullCursors
from tidegate.broker.limits.overload import Overload
from tidegate.broker.limits.sockets import Sockets
from tidegate.broker.limits.unauthenticated import Unauthenticated
from tidegate.broker.limits.waiting import Waiting
from tidegate.broker.lists import selector
from tidegate.broker.memory_watch import MemoryWatch
from tidegate.broker.parts import Parts
from tidegate.broker.publish.system_topics import SystemTopics
from tidegate.broker.purged import PurgedQueues
from tidegate.broker.queues import NOTHING
from tidegate.broker.sessions.abandoned import Abandoned
from tidegate.broker.sessions.authentication import Authentication
from tidegate.broker.sessions.callers import LoggedIn
from tidegate.broker.sink_watch import SinkWatch
from tidegate.broker.traffic import Traffic
from tidegate.broker.turn.flow import STATE_WORK
from tidegate.broker.turn.shortage import FULL_BACK_OFF_S
from tidegate.config import CertificateWatch
from tidegate.plugin_exit import FAILURES
from tidegate.spi import (
    AccessError,
    Action,
    AuditKind,
    ClientPeer,
    ConnectionEndedError,
    ConnectRequest,
    ConnectResult,
    FlowControlError,
    GatewayError,
    LargeBodies,
    Principal,
    RecoveredState,
    StoreError,
    StoreIOError,
    Subscription,
)
from tidegate.spi.events import Event, Tell
from tidegate.spi.operate import BridgeRow

_log = logging.getLogger("tidegate.broker")

#: How often sessions are expired and the limits of the acknowledged log enforced.
MAINTENANCE_INTERVAL_S: Final = 1.0


class BrokerCore(Parts):
    """See the module's docstring. Args: see :class:`Parts`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.connections: set[Connection] = set()
        self.clients_maximum = 0
        tell = self.events.tell
        overload = self.overload = Overload(self.config.overload_lag)
        config = self.config
        self.certificates = CertificateWatch()
        self.disk = DiskWatch(self.store, self.writer, config.disk_free_limit, config.store_limit)
        overload.tell = self.disk.tell = self.flow.tell = self.certificates.tell = tell
        account = self.accounts.gateway
        sockets = self.sockets = Sockets(account, self.config.connections_max, overload.refuses)
        sockets.tell = tell
        self.socket_opened, self.socket_closed = sockets.opened, sockets.closed
        unauthenticated = Unauthenticated(account, self.config.login_input_limit)
        self.unauthenticated_holds = unauthenticated.holds
        memories = (self.accounts.stored_memory, self.accounts.unstored_memory)
        self.waiting = Waiting(lambda: self.destinations.charged, memories, self.flow.walks)
        self._authentication = Authentication(self.extensions, self.config, self._login_refused)
        self.full_cursors = FullCursors(self.flow, self.limits.overflows)
        self.slow_consumers = SlowConsumers(
            self.flow,
            lambda: self.connections,
            self.destinations.policy,
            is_on=any(item.slow_consumer_age or item.slow_consumer_rate for item in self.policies),
        )
        self.slow_consumers.tell = tell
        self.abandoned = Abandoned(
            self.flow,
            self.destinations,
            lambda key: self.sessions.get(key) is not None,
            is_on=any(policy.subscription_expiry for policy in self.policies),
        )
        self.begin_authentication = self._authentication.begin
        self.sessions.who_now = self._authentication.known_by_name
        self._deciding = Deciding(self.flow.walks)
        self.idle_queues = IdleQueues(
            self.flow, self.tasks, self.destinations, self.policies, self.publisher.paused
        )
        self._connection = Connection if self.writer.following is None else ObservedConnection
        self.purged_queues = PurgedQueues(self.flow, self.destinations)
        self._by_client: dict[str, Connection] = {}
        self.bridges: Callable[[], Sequence[BridgeRow]] = tuple  # the gateway's own, when they run
        self._numbers = 0
        self._expiring: set[Connection] = set()
        self.draining = Draining(self.clients, self.until_durable, self.tasks, self.now)
        self.draining.tell = tell
        self.handing_over = HandingOver(self, self.clients, self.until_durable, self.draining)
        self._memory_watch = MemoryWatch(lambda: account.refused, tell)
        self._sink_watch = SinkWatch(self.acknowledged_log.health, tell)
        self._closing = False
        self._stopped = False

    @property
    def is_closing(self) -> bool:
        """New clients are refused."""
        return self._closing

    # --- tidegate.spi.Broker ---------------------------------------------------------------

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def tell(self) -> Tell:
        return self.events.tell

    @property
    def store_id(self) -> str:
        return self.acknowledged_log.store_id

    @property
    def large_bodies(self) -> LargeBodies | None:
        return self.store.capabilities.large_bodies

    async def connect(self, request: ConnectRequest, peer: ClientPeer) -> ConnectResult:
        try:
            connection = await self._enter(request, peer)
        except AccessError:
            raise  # auditors and operators have been told
        except GatewayError as error:
            told.refused(self.events.tell, request, error)
            raise
        connection.is_admitted = False  # a takeover meanwhile ends it without a will
        try:
            result, is_stored = await self._result(connection, request)
            connection.is_admitted = True
        except BaseException:
            connection.disconnect(graceful=True)
            raise
        if is_stored:
            await self._admit(connection)
        return result

    async def _enter(self, request: ConnectRequest, peer: ClientPeer) -> Connection:
        """Check whether a client may connect, and register it. Raises: GatewayError."""
        if self._closing:
            raise ConnectionEndedError("shutdown", "the gateway is shutting down")
        if self.writer.error is not None:
            raise StoreIOError(f"the message store is read-only: {self.writer.error}")
        self._check_let_in(request)
        vouched = await self._authentication.principal_of(request)
        if self._closing:
            raise ConnectionEndedError("shutdown", "the gateway is shutting down")
        self._check_let_in(request)  # others may have connected during authentication
        connection = self._connection(
            self, request, peer, vouched.principal, self._deciding, self._forget
        )
        connection.vouched = vouched
        # Before any other client is affected: a refused client takes nothing over. A will is
        # refused now, while its client can still be told.
        self.access.authorize(connection, Action.CONNECT, "")
        self.access.audit(AuditKind.LOGIN, connection.identity)
        if request.will is not None:
            self.access.check_will(connection, request.will)
        key = connection.key
        older = self._by_client.get(key) if key else None
        try:
            connection.enter(older)
            if key:
                self.sessions.check_room(request, connection.identity)
        except GatewayError:
            connection.disconnect(graceful=True)
            raise
        if older is not None:
            older.end(
                ConnectionEndedError(
                    "taken-over",
                    f"another connection with client id {request.client_id!r} has taken over",
                )
            )
        self._numbers += 1
        connection.number = self._numbers
        self.connections.add(connection)
        self.clients_maximum = max(self.clients_maximum, len(self.connections))
        if key:
            self._by_client[key] = connection
        if connection.expires_at or request.exchange is not None:  # it may expire later
            self._expiring.add(connection)
        told.connected(self.events.tell, connection)
        return connection

    async def log_in(self, request: ConnectRequest) -> LoggedIn:
        """Let in an operator, who has no connection, even while the store takes nothing.

        Raises: AccessError, FlowControlError. Cancellation: safe.
        """
        vouched = await self._authentication.principal_of(request)
        caller = LoggedIn(vouched, identity_of(vouched.principal, request), self.writer.now)
        self.access.authorize(caller, Action.CONNECT, "")
        self.access.audit(AuditKind.LOGIN, caller.identity)
        return caller

    async def _result(
        self, connection: Connection, request: ConnectRequest
    ) -> tuple[ConnectResult, bool]:
        """Resume the session of an admitted client, or make one, step by step.

        Returns: also whether anything is, or was, stored. Raises: GatewayError.
        """
        sessions, key = self.sessions, connection.key
        session = sessions.find(key) if key else None
        is_stored = session is not None
        if session is not None:
            if request.clean_start:
                sessions.remove(session)
            if session.gone is not None:
                await session.gone.wait()
                self._check_not_ended(connection)
            if session.is_removed:
                session = None
        present = session is not None
        # A resumed session that ends with this connection counts too. A will is kept with a
        # session so that it outlives the gateway.
        wants = request.session_expiry > 0 or request.will is not None or session is not None
        if not (key and wants):
            return ConnectResult(connection, present), is_stored
        session = sessions.begin(
            request, connection.identity, is_followed=connection.vouched.is_followed
        )
        restored: list[Subscription] = []
        refused: list[Subscription] = []
        await self.flow.walks.finished(connection.restore(session, restored, refused))
        self._check_not_ended(connection)
        return ConnectResult(
            connection, present, restored, session.records(), session.key, refused
        ), True

    @staticmethod
    def _check_not_ended(connection: Connection) -> None:
        if connection.is_closed:
            raise ConnectionEndedError("taken-over", "the connection ended in the meantime")

    async def _admit(self, connection: Connection) -> None:
        """Wait until the session is durable.

        What the answer to a CONNECT says (session present or new, will kept) must hold even if
        the gateway is killed: a client with a new session reuses its packet ids, and the QoS 2
        states of its previous session would make its messages duplicates. A client that leaves
        meanwhile, or is taken over (the front-end is told then), was never accepted, so its will
        is not published. Raises: GatewayError.
        """
        connection.is_admitted = False
        try:
            await self.until_durable()
            if self._closing:
                raise ConnectionEndedError("shutdown", "the gateway is shutting down")
        except BaseException:
            connection.disconnect(graceful=True)
            raise
        connection.is_admitted = True

    async def until_durable(self) -> None:
        """Wait until everything requested so far is durable, but for room in a full store only
        ``FULL_BACK_OFF_S``: clients that can free room by acknowledging must be let in."""
        writer, loop = self.writer, asyncio.get_running_loop()
        if writer.shortage.until > loop.time():
            return
        future: asyncio.Future[None] = loop.create_future()

        def done(error: GatewayError | None = None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        writer.when_durable(done, done)
        try:
            while not future.done():
                await asyncio.wait((future,), timeout=FULL_BACK_OFF_S)
                if writer.shortage.until:
                    return
            future.result()
        finally:
            future.cancel()

    def _check_let_in(self, request: ConnectRequest) -> None:
        if not request.heeds_drain:
            self.draining.check()
        if len(self.connections) >= self.config.connections_max:
            raise FlowControlError(
                f"{len(self.connections)} clients are connected, which is the limit "
                "(broker.connections_max); try again later"
            )

    # --- start and stop --------------------------------------------------------------------

    async def start(self) -> RecoveredState:
        """Open the store and restore what it holds. Raises: StoreError."""
        state = await self.store.open()
        self.acknowledged_log.store_id = state.store_id
        writer, destinations = self.writer, self.destinations
        writer.next_sequence = max(state.last_sequence + 1, self.sequence_floor)
        writer.next_list = state.last_pending_list + 1
        writer.start()
        for found in state.destinations:
            if found.pending_list:
                count = state.pending.get(found.pending_list, NOTHING)
                destinations.restore_queue(found, count)
            if found.producers_paused:
                self.publisher.pause(found.destination, is_paused=True)
        for policy in self.policies:
            if policy.declared_queue:
                destinations.declare_queue(policy.declared_queue)
        self.sessions.recover(state)
        for subscription in state.subscriptions:
            if subscription.session:
                continue
            pending = state.pending.get(subscription.pending_list, NOTHING)
            if subscription.durable:
                once = self.sessions.delivers_once(subscription)
                destinations.restore_subscription(subscription, pending, once=once)
            else:
                self.ended_lists.recover(subscription, pending.messages)
        self.retained.recover(state.retained)
        self.deliveries.recover(destinations.durable.values())
        ids, branches = self.store.capabilities.duplicate_ids, self.store.capabilities.branches
        self.duplicates.recover(() if ids is None else await ids.recovered_duplicate_ids())
        self.branches.recover(
            () if branches is None else await branches.recovered_branches(), state
        )
        await self.sessions.recover_in_doubt(self.store)
        self.limits.begin()
        self.sessions.end_recovery()
        self.flow.checks_publish = self.access.checks_publish
        self.traffic = Traffic(self.flow)
        self.tasks.spawn(self._maintain(), "maintenance")
        self.tasks.spawn(self.overload.watch(), "overload")
        self.tasks.spawn(self.disk.watch(), "disk")
        if self.config.system_topics_interval:
            system = SystemTopics(
                self.flow,
                destinations,
                self.deliveries,
                self.config.system_topics_interval,
                self.client_counts,
                self.traffic,
                lambda: {"connections": self._numbers, "sockets": self.sockets.opened_count},
            )
            self.tasks.spawn(system.run(), "system topics")
        return state

    async def stop(self) -> None:
        """End every connection, make everything durable, close the store. Idempotent."""
        if self._stopped:
            return
        self._stopped = True
        await self.end_connections()
        self.ended_lists.close()
        await self.tasks.stop()
        await self.writer.close()
        for pending_list in self.destinations.all_lists():
            await pending_list.cursor.close()
        await self.store.close()

    async def end_connections(self) -> None:
        """Take no new work, confirm what was accepted, tell the clients. Idempotent."""
        self._closing = True
        self.writer.shortage.give_up()
        for connection in list(self.connections):
            connection.hold()
        await self.writer.drained()
        for connection in list(self.connections):
            connection.end(ConnectionEndedError("shutdown", "the gateway is shutting down"))
        self.flow.walks.finish()
        await self.writer.drained()

    async def _maintain(self) -> None:
        await asyncio.sleep(MAINTENANCE_INTERVAL_S)
        # Not at the start, when all clients come back.
        self.tasks.spawn(asyncio.to_thread(selector.prepare), "prepare selectors")
        while not self._closing:
            try:
                await self._maintain_once()
            except FAILURES:  # or no will would be published and no session would expire
                _log.exception("maintenance failed and will be retried")
            await asyncio.sleep(MAINTENANCE_INTERVAL_S)

    async def _maintain_once(self) -> None:
        now, elapsed = self.now(), self.writer.elapsed()
        self.waiting.sample()
        self.traffic.sample()
        self._memory_watch.look()
        self._sink_watch.look()
        self.certificates.look(now)
        self.acknowledged_log.look_at_progress()
        self.events.look()
        for connection in [item for item in self._expiring if 0 < item.expires_at <= now]:
            connection.end(
                AccessError("the credentials have expired", principal=connection.principal)
            )
        self.idle_queues.look(elapsed)
        self.purged_queues.look(elapsed)
        self.wills.publish_due(elapsed)
        self.limits.look(now)
        self.full_cursors.look()
        self.abandoned.look(elapsed)
        self.slow_consumers.look(elapsed)
        self.flow.walks.begin(
            self.flow.add_own_work(STATE_WORK * size) for size in self.sessions.expire(elapsed)
        )
        for operation in self.retained.expire(now):
            self.writer.add_operation(operation, synced=False)
        try:
            await self.acknowledged_log.enforce_limits(now, elapsed, lambda: self._closing)
            await self.acknowledged_log.look()
        except StoreError as error:
            _log.error("acknowledged_log=unknown error=%r", str(error))
        self.flow.checks_publish = self.access.checks_publish

    def _login_refused(self, request: ConnectRequest, error: AccessError) -> None:
        claimed = identity_of(Principal(error.principal or request.username), request)
        self.access.audit(AuditKind.LOGIN_REFUSED, claimed, problem=error.problem)

    # --- connections ---------------------------------------------------------------------------

    def clients(self) -> list[Connection]:
        """All that a drain disconnects."""
        return [connection for connection in self.connections if not connection.heeds_drain]

    def _forget(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self._expiring.discard(connection)
        if self._by_client.get(connection.key) is connection:
            del self._by_client[connection.key]
        if connection.number:
            told.disconnected(self.events.tell, connection)

    def rights_changed(self) -> None:
        """Rights or users have changed: see :class:`tidegate.spi.Service`."""
        self.events.tell(
            Event.RIGHTS_CHANGED,
            _log,
            "connections=%d: their permissions are being checked again",
            len(self.connections),
        )
        self.wills.forget_rights()
        self._deciding.begin(self.connections)

    def held(self) -> Mapping[str, int]:
        """What is held for clients and what they have, by metric; docs/limits.md names them."""
        return self.accounts.snapshot()

    def client_counts(self) -> Mapping[str, int | str]:
        """What system topics say about clients and what they did."""
        connected, disconnected = len(self.connections), self.sessions.count_disconnected()
        return {
            "version": f"tidegate version {self.version}",
            "clients.connected": connected,
            "clients.disconnected": disconnected,
            "clients.active": connected,  # two older names of Mosquitto's that its dashboards use
            "clients.inactive": disconnected,
            "clients.total": connected + disconnected,
            "clients.maximum": self.clients_maximum,
            **self._authentication.counts(),
            "overload.active": int(self.overload.is_on),
            "overload.refused": self.overload.refused,
            "clients.expired": self.sessions.expired,
            "subscriptions.expired": self.abandoned.expired,
            "publish.messages.duplicates": self.duplicates.discarded,
            "lists.unreadable": sum(not one.is_removed for one in self.flow.unreadable),
            "subscriptions.count": self.served + self.destinations.count_unattended(),
            **self.held(),
            **self.disk.snapshot(),
            **self.waiting.snapshot(),
            **self.limits.overflows.snapshot(),
            **self.slow_consumers.snapshot(),
            **self.acknowledged_log.snapshot(self.writer.now()),
            **({} if self.writer.following is None else self.writer.following.counts()),
            **self._bridge_states(),
            **self.events.snapshot(),
        }

    def _bridge_states(self) -> Mapping[str, int]:
        """1 for a bridge whose rules are all connected, under Mosquitto's name for it."""
        states: dict[str, int] = {}
        for row in self.bridges():
            name = f"connection.{row.bridge}.state"
            states[name] = int(row.is_connected and states.get(name, 1))
        return states
