"""The broker's side of one client connection: see :class:`tidegate.spi.BrokerConnection`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from tidegate.broker.lists.browser import Browser
from tidegate.broker.lists.consumer import AUTOMATIC_TURN_COUNT, Consumer, InFlight
from tidegate.broker.route.detours import check_detours, take_detour
from tidegate.broker.route.selector import compile_selector
from tidegate.broker.sessions import in_doubt
from tidegate.broker.sessions.succession import Succession
from tidegate.broker.sessions.wills import Will
from tidegate.broker.transactions.transactions import Outcome, Published, Settled, Transaction
from tidegate.broker.turn.units import at_least_once, undo_all
from tidegate.spi import (
    Acknowledge,
    Action,
    AddMessage,
    Branch,
    BranchId,
    ClientPeer,
    ConnectionEndedError,
    ConnectRequest,
    GatewayError,
    InflightDirection,
    InflightRecord,
    Message,
    PutInflight,
    RemoveInflight,
    RequestError,
    RetainHandling,
    StoredMessage,
    SubscribeRequest,
    Subscription,
    Token,
    names,
)

if TYPE_CHECKING:
    from tidegate.broker.core import BrokerCore
    from tidegate.broker.lists.pending_list import PendingList
    from tidegate.broker.route.router import Route
    from tidegate.broker.route.selector import Matcher
    from tidegate.broker.sessions.sessions import SessionState

_log = logging.getLogger("tidegate.broker.connection")

#: Throttle reason: bodies accepted but not yet durable are over the limit.
UNWRITTEN: Final = "unwritten"

#: Throttle reason: the gateway stops and takes no new work.
STOPPING: Final = "stopping"

#: No QoS 2 message is in the middle of its handshake.
NOTHING_UNANSWERED: Final[Mapping[str, Sequence[int]]] = {}

#: Destinations that a connection's authorizations are remembered for; past it they are asked anew.
AUTHORIZATIONS_MAX: Final = 1000


class Connection:
    """One connected client. Made by :meth:`BrokerCore.connect`.

    Attributes:
        is_writable: the socket takes more and the handshake is finished.
        is_admitted: False while its session is not durable yet (:mod:`tidegate.broker.sessions.admission`).
        authorized: (action, destination) that every authorizer allowed.
    """

    def __init__(
        self, core: BrokerCore, request: ConnectRequest, peer: ClientPeer, principal: str
    ) -> None:
        self.client_id = request.client_id
        self.protocol = request.protocol
        self.address = request.peer
        self.session: SessionState | None = None
        self.is_writable = False
        self.is_closed = False
        self.is_admitted = True
        self.authorized: set[tuple[Action, str]] = set()
        self._is_ending = False
        self._core = core
        self._writer = core.writer
        self._peer = peer
        self._principal = principal
        self._request = request
        self._socket_writable = True
        self._resumed = False
        self._consumers: dict[str, Consumer] = {}
        self._transactions: dict[str, Transaction] = {}
        self._throttled: set[object] = set()

    def __repr__(self) -> str:
        return f"<{self.protocol} {self.address} client_id={self.client_id!r}>"

    @property
    def principal(self) -> str:
        return self._principal

    @property
    def subscription_count(self) -> int:
        return len(self._consumers)

    # --- what the writer and the lists call ------------------------------------------------

    def confirmed(self, tokens: list[Token]) -> None:
        if self.is_closed:
            return
        try:
            self._peer.confirmed(tokens)
        except Exception:
            self._front_end_failed("confirm")

    def failed(self, token: Token, error: GatewayError) -> None:
        if self.is_closed:
            return
        try:
            self._peer.failed(token, error)
        except Exception:
            self._front_end_failed("tell a failure")

    def deliver(self, consumer: Consumer, messages: Sequence[StoredMessage]) -> None:
        try:
            self._peer.deliver(consumer.key, messages)
        except Exception:
            self._front_end_failed("deliver")

    def _front_end_failed(self, what: str) -> None:
        """The contract forbids it, but one client's front-end must not stop the others."""
        _log.exception("peer=%s: front-end failed to %s", self.address, what)
        self.end(ConnectionEndedError("internal-error", "internal error in the front-end"))

    def throttle(self, reason: object) -> None:
        """Stop reading from this client until :meth:`unthrottle` with the same reason."""
        if not self._throttled:
            self._peer.throttle(True)
        self._throttled.add(reason)

    def unthrottle(self, reason: object) -> None:
        if reason in self._throttled:
            self._throttled.discard(reason)
            if not self._throttled and not self.is_closed:
                self._peer.throttle(False)

    def end(self, error: GatewayError) -> None:
        """The broker ends the connection and tells the front-end.

        The front-end is told first: what the client acknowledged and which packet ids are in
        flight, it can still say (acknowledge, disconnect) from within ``closed()``.
        """
        if self.is_closed or self._is_ending:
            return
        self._is_ending = True
        self.is_writable = False
        try:
            self._peer.closed(error)
        except Exception:
            _log.exception("peer=%s: front-end failed to close", self.address)
        self.disconnect(graceful=not self.is_admitted)

    def hold(self) -> None:
        """The gateway stops: nothing more is read from this client or delivered to it."""
        self._resumed = False
        self._set_writable()
        self.throttle(STOPPING)

    def has_in_flight(self) -> bool:
        """Messages wait for this client's acknowledgement, or for its COMMIT."""
        return bool(self._transactions) or any(
            consumer.in_flight for consumer in self._consumers.values()
        )

    # --- BrokerConnection: producing -------------------------------------------------------

    def publish(
        self,
        message: Message,
        token: Token = None,
        transaction: str | None = None,
        inflight: InflightRecord | None = None,
        duplicate_id: str = "",
    ) -> bool:
        core = self._core
        if (
            transaction is not None
            or inflight is not None
            or message.retain
            or core.checks_publish
            or duplicate_id
            or self.is_closed
        ):
            return self._publish_with_care(message, token, transaction, inflight, duplicate_id)
        route = core.routes.get(message.destination)
        if route is None:
            route = core.resolve(message.destination)
        writer = self._writer
        if writer.error is not None or writer.full_until:
            writer.check_writable()
        if message.qos == 0:
            route = route.without_storing()
            if route.ids:
                message = at_least_once(message)
        if route.is_picky:
            route = route.narrowed(message, self.client_id)
        if core.detours:
            route = take_detour(core, message, route)
        sequence = core.next_sequence
        core.next_sequence = sequence + 1
        turn = writer.turn
        if route.ids:
            operations = turn.operations
            turn.units.append((len(operations), 1, self, token, None))
            operations.append(AddMessage(sequence, message, route.ids))
            turn.synced = True
            turn.body_bytes += len(message.body)
            if turn.body_bytes > core.turn_bytes_max:
                core.throttle_unwritten(self)
        elif token is not None:
            turn.units.append((0, 0, self, token, None))
        added = turn.added
        if route in added:
            added[route].append(StoredMessage(sequence, message))
        else:
            added[route] = [StoredMessage(sequence, message)]
        if not writer.scheduled:
            writer.schedule()
        if core.full_lists:
            core.throttle_full(self, route)
        return bool(route.ids or route.direct)

    def _publish_with_care(
        self,
        message: Message,
        token: Token,
        transaction: str | None,
        inflight: InflightRecord | None,
        duplicate_id: str,
    ) -> bool:
        """Everything about a publish that most publishes do not need."""
        self._check_open()
        core = self._core
        message = core.check_publish(self, message)
        if duplicate_id and (not core.duplicates.is_on or names.is_temporary(message.destination)):
            duplicate_id = ""
        if transaction is not None:
            held = self._transaction(transaction)
            held.check_room(1)
            if message.retain:
                core.retained.check_room(message)
            core.resolve(message.destination)  # a bad name must fail now, not at COMMIT
            held.add(Published(message, inflight, duplicate_id), 1)
            if token is not None:
                self._wait_for_turn(token)
            return True
        self._writer.check_writable()
        core.resolve(message.destination)  # a new queue is not part of this unit
        if duplicate_id and core.duplicates.is_known(message.destination, duplicate_id):
            self._discard_duplicate(message.destination, duplicate_id, token, inflight)
            return True
        if message.retain:
            core.retained.check_room(message)
        turn = self._writer.turn
        first = len(turn.operations)
        undo: list[Callable[[], None]] = []
        route = core.publish_in_turn(message, self.client_id, undo)
        if duplicate_id:
            core.duplicates.add(message.destination, duplicate_id, core.next_sequence - 1, undo)
        if inflight is not None and self.session is not None:
            self._put_inflight(inflight)
            undo.append(self._undo_inflight(self.session, inflight))
        turn.units.append((first, len(turn.operations) - first, self, token, undo_all(undo)))
        turn.synced = True
        if turn.body_bytes > core.turn_bytes_max:
            core.throttle_unwritten(self)
        core.schedule()
        if core.full_lists:
            core.throttle_full(self, route)
        return bool(route.ids or route.direct)

    def _discard_duplicate(
        self, destination: str, duplicate_id: str, token: Token, inflight: InflightRecord | None
    ) -> None:
        """The message came before: confirm it, and take note of its packet id."""
        turn = self._writer.turn
        undo: Callable[[], None] | None = None
        session = self.session
        first = len(turn.operations)
        if inflight is not None and session is not None:
            self._put_inflight(inflight)
            forget = self._undo_inflight(session, inflight)

            def undo_inflight() -> None:
                forget()
                key = (inflight.direction, inflight.packet_id)
                self._core.add_operation(RemoveInflight(session.client_id, *key))

            undo = undo_inflight
        unit = (first, len(turn.operations) - first, self, token, None)
        turn.units.append(unit)
        turn.synced = True
        self._core.duplicates.repeated(destination, duplicate_id, unit, undo)
        self._core.schedule()

    def check_publish(self, destination: str) -> None:
        self._check_open()
        self._writer.check_writable()
        self._core.check_destination(self, destination)

    @staticmethod
    def _undo_inflight(session: SessionState, record: InflightRecord) -> Callable[[], None]:
        """A publish that was dropped must not leave its packet id behind: the client's next try
        with the same id would be taken for a duplicate and the message lost."""

        def undo() -> None:
            key = (record.direction, record.packet_id)
            if session.inflight.get(key) is record:
                del session.inflight[key]

        return undo

    # --- BrokerConnection: consuming -------------------------------------------------------

    def resume(self) -> None:
        self._resumed = True
        if self.session is not None and self.session.in_doubt:
            for consumer in list(self._consumers.values()):
                in_doubt.hand_back(self._core, self.session, consumer)
        self._set_writable()

    def writable(self, value: bool) -> None:
        self._socket_writable = value
        self._set_writable()

    def _set_writable(self) -> None:
        was = self.is_writable
        self.is_writable = self._socket_writable and self._resumed and not self.is_closed
        if self.is_writable and not was:
            for consumer in self._consumers.values():
                if isinstance(consumer, Browser):
                    consumer.wake()
                for pending_list in consumer.lists:
                    self._core.mark_ready(pending_list)

    def make_temporary(self, destination: str) -> str:
        self._check_open()
        return self._core.temporary.make(self, destination)

    def subscribe(self, request: SubscribeRequest, token: Token = None) -> bool:
        self._check_open()
        core = self._core
        if self._writer.error is not None:
            self._writer.check_writable()
        core.check_subscribe(self, request)
        matches = compile_selector(request.selector)  # a bad one must change nothing
        existing = self._consumers.get(request.key)
        if existing is not None and (
            self.protocol == "stomp"
            or request.destination != existing.destination
            or request.browse
            or isinstance(existing, Browser)
        ):
            raise RequestError(
                f"subscription {request.key!r} already exists on this connection;"
                " unsubscribe it first or use another id"
            )
        if request.browse:
            self._browse(request, token, matches)
            return False
        if existing is not None and self._is_kept(existing, request):
            consumer, taken_up, is_new = existing, names.is_topic(existing.destination), False
            self._update_consumer(existing, request)
        else:
            old = None if existing is None else self._leave(existing)
            if names.is_queue(request.destination):
                consumer, taken_up, is_new = self._subscribe_queue(request), False, True
            else:
                consumer, taken_up, is_new = self._subscribe_topic(request)
            if old is not None:
                Succession(core, old, consumer.lists[0])
        self._consumers[request.key] = consumer
        if token is not None:
            self._wait_for_turn(token)
        handling = request.retain_handling
        if names.is_topic(request.destination) and (
            handling is RetainHandling.SEND
            or (handling is RetainHandling.SEND_IF_NEW and is_new and existing is None)
        ):
            core.retained_deliveries.begin(consumer.lists[0])
        for pending_list in consumer.lists:
            core.mark_ready(pending_list)
        return taken_up

    def _leave(self, consumer: Consumer) -> PendingList | None:
        """Another subscription takes the place of *consumer*.

        Returns: its list, when what comes from it is to be delivered first (see Succession).
        """
        pending_list = consumer.lists[0]
        if pending_list.is_queue or pending_list.is_stored:
            self._drop_consumer(consumer)
            return None
        del self._consumers[consumer.key]
        self._core.leave_router(pending_list)
        return pending_list

    def _browse(self, request: SubscribeRequest, token: Token, matches: Matcher | None) -> None:
        """Begin to show a queue; it begins when everything asked for before is durable."""
        destination = request.destination
        if not names.is_queue(destination) or names.is_filter(destination):
            raise RequestError(f"{destination!r} cannot be browsed; only one queue at a time can")
        if names.is_temporary(destination):
            raise RequestError(f"{destination!r} is a temporary queue, which cannot be browsed")
        browser = Browser(self, self._core, request.key, destination, matches)
        self._consumers[request.key] = browser
        if token is not None:
            self._wait_for_turn(token)
        turn = self._writer.turn
        turn.units.append((0, 0, browser, browser, None))
        turn.synced = True
        self._core.schedule()

    def browsed(self, browser: Browser) -> None:
        """Everything has been shown: tell the client; the subscription is over."""
        if self._consumers.get(browser.key) is browser:
            del self._consumers[browser.key]
            self.deliver(browser, ())

    def is_served(self, consumer: Consumer) -> bool:
        """Tell whether *consumer* is still one of this connection's."""
        return self._consumers.get(consumer.key) is consumer

    def _is_kept(self, consumer: Consumer, request: SubscribeRequest) -> bool:
        """A repeated subscription keeps its list, what is pending and what is in flight
        [MQTT-3.8.4-3]; only one that begins or ceases to be stored starts anew."""
        matches = compile_selector(request.selector)
        if names.is_queue(consumer.destination):
            return consumer.matches is matches
        if request.share_group:
            return True
        pending_list = consumer.lists[0]
        if pending_list.matches is not matches:
            return False
        is_durable = bool(request.durable_name and self.client_id)
        subscription = pending_list.subscription
        if subscription is None:
            return not is_durable and not (request.acknowledge and request.qos > 0)
        return subscription.durable == is_durable

    def _update_consumer(self, consumer: Consumer, request: SubscribeRequest) -> None:
        is_topic = names.is_topic(consumer.destination)
        acknowledge = request.acknowledge and (request.qos > 0 or not is_topic)
        fresh = self._make_consumer(request, acknowledge=acknowledge)
        consumer.acknowledge = fresh.acknowledge
        consumer.prefetch_count = fresh.prefetch_count
        consumer.prefetch_bytes = fresh.prefetch_bytes
        if is_topic and not request.share_group:
            self._core.update_subscription(consumer.lists[0], request)
        self._attach_session(request)

    def _attach_session(self, request: SubscribeRequest) -> None:
        """A stored session takes up a queue or shared subscription again when it comes back."""
        is_shared = request.share_group or names.is_queue(request.destination)
        if request.durable_name and is_shared and self.session is not None:
            kept = subscription_of(0, self, request, durable=True)
            self._core.sessions.attach(self.session, kept)

    def _make_consumer(self, request: SubscribeRequest, *, acknowledge: bool) -> Consumer:
        policy = self._core.policy(request.destination)
        default = policy.prefetch_count if acknowledge else AUTOMATIC_TURN_COUNT
        return Consumer(
            self,
            request.key,
            request.destination,
            subscription_name=request.durable_name or request.key,
            acknowledge=acknowledge,
            prefetch_count=request.prefetch_count or default,
            prefetch_bytes=request.prefetch_bytes or policy.prefetch_bytes,
            matches=compile_selector(request.selector),
        )

    def _subscribe_queue(self, request: SubscribeRequest) -> Consumer:
        consumer = self._make_consumer(request, acknowledge=request.acknowledge)
        if names.is_filter(request.destination):
            self._core.watch_queues(names.name_of(request.destination), consumer)
        else:
            self._core.queue_list(request.destination).attach(consumer)
        self._attach_session(request)
        return consumer

    def _subscribe_topic(self, request: SubscribeRequest) -> tuple[Consumer, bool, bool]:
        core = self._core
        acknowledge = request.acknowledge and request.qos > 0
        consumer = self._make_consumer(request, acknowledge=acknowledge)
        if request.share_group:
            return self._subscribe_shared(request, consumer)
        durable = bool(request.durable_name and self.client_id)
        if durable:
            key = (self.protocol, self.client_id, request.durable_name)
            found = core.durable.get(key)
            if found is not None:
                if found.consumers:
                    raise RequestError(
                        f"durable subscription {request.durable_name!r} of client"
                        f" {self.client_id!r} is in use by another connection"
                    )
                if found.subscription is not None and (
                    (found.subscription.filter, found.subscription.selector)
                    == (request.destination, request.selector)
                ):
                    core.update_subscription(found, request)
                    found.attach(consumer)
                    return consumer, True, False
                # Another filter or selector under its name: the old one ends (JMS 2.0, 8.3.3).
                core.remove_subscription(found)
        is_stored = (durable or acknowledge) and not names.is_temporary(request.destination)
        pending_list = core.add_subscription(self, request, is_stored=is_stored, durable=durable)
        pending_list.attach(consumer)
        return consumer, False, True

    def _subscribe_shared(
        self, request: SubscribeRequest, consumer: Consumer
    ) -> tuple[Consumer, bool, bool]:
        """The group has one list for all its members, whatever QoS each of them wants."""
        core = self._core
        found = core.shared.get((request.share_group, request.destination))
        is_new = found is None
        if found is None:
            whole = msgspec.structs.replace(request, qos=2, no_local=False, options={})
            found = core.add_subscription(self, whole, is_stored=True, durable=False)
        elif found.matches is not consumer.matches:
            raise RequestError(
                f"share group {request.share_group!r} has another selector for"
                f" {request.destination!r}"
            )
        found.attach(consumer)
        self._attach_session(request)
        return consumer, not is_new, is_new

    def unsubscribe(self, key: str, token: Token = None, *, forget: bool = False) -> bool:
        self._check_open()
        consumer = self._consumers.pop(key, None)
        if consumer is not None:
            if self.session is not None:
                forget = True
                self._core.sessions.detach(self.session, key)
            self._drop_consumer(consumer, forget=forget)
        if token is not None:
            self._wait_for_turn(token)
        return consumer is not None

    def _drop_consumer(self, consumer: Consumer, *, forget: bool = False) -> None:
        """Stop serving; what is in flight goes back, lists that end with it are removed."""
        self._consumers.pop(consumer.key, None)
        core = self._core
        core.unwatch_queues(consumer)
        if isinstance(consumer, Browser):
            consumer.wake()  # to find that it is served no more
        self._return(list(consumer.in_flight.values()))
        consumer.in_flight.clear()
        consumer.in_flight_bytes = 0
        for pending_list in list(consumer.lists):
            pending_list.detach(consumer)
            if pending_list.is_queue:
                continue
            subscription = pending_list.subscription
            if subscription is not None and subscription.share_group:
                core.update_shared(subscription.share_group, subscription.filter)
                continue
            durable = subscription is not None and subscription.durable
            if not pending_list.consumers and (forget or not durable):
                core.remove_subscription(pending_list)

    def _return(self, entries: Sequence[InFlight]) -> None:
        """Delivered messages go back to their lists, marked as redelivered."""
        by_list: dict[PendingList, list[StoredMessage]] = {}
        for message, pending_list, _ in entries:
            again = StoredMessage(message.sequence, message.message, message.delivery_count + 1)
            by_list.setdefault(pending_list, []).append(again)
        for pending_list, messages in by_list.items():
            if pending_list.is_removed:
                continue
            if pending_list.is_stored:
                self._core.record_delivery(pending_list, messages)
            pending_list.put_back(messages)

    def acknowledge(
        self,
        key: str,
        sequences: Sequence[int],
        token: Token = None,
        transaction: str | None = None,
        inflight: InflightRecord | None = None,
    ) -> None:
        consumer = self._consumers.get(key)
        if consumer is None:
            raise RequestError(f"there is no subscription {key!r} on this connection")
        entries = self._take_in_flight(consumer, sequences)
        if transaction is not None:
            self._hold(consumer, entries, Outcome.ACKNOWLEDGED, transaction, token)
            return
        writer = self._writer
        turn = writer.turn
        acknowledged = turn.acknowledged
        last: PendingList | None = None
        group: tuple[list[int], list[int]] = ([], [])
        for message, pending_list, delivered_at in entries:
            if pending_list is not last:
                last = pending_list
                if pending_list.is_stored:
                    group = acknowledged.get((consumer, pending_list)) or ([], [])
                    acknowledged[consumer, pending_list] = group
                else:
                    group = ([], [])
                if pending_list.selecting is not None:
                    pending_list.selecting.leaving(group[0])
            group[0].append(message.sequence)
            group[1].append(delivered_at)
        if inflight is not None and self.session is not None:
            self._put_inflight(inflight)
            turn.synced = True
        if token is not None:
            turn.units.append((0, 0, self, token, None))
            turn.synced = True
        if not writer.scheduled:
            writer.schedule()

    def _take_in_flight(self, consumer: Consumer, sequences: Sequence[int]) -> list[InFlight]:
        """Remove and return the entries, all or none. Raises: RequestError."""
        in_flight = consumer.in_flight
        was_full = consumer.is_full()
        entries: list[InFlight] = []
        size = 0
        try:
            for sequence in sequences:
                entry = in_flight.pop(sequence)
                entries.append(entry)
                size += len(entry[0].message.body)
        except KeyError as error:
            for entry in entries:
                in_flight[entry[0].sequence] = entry
            raise RequestError(
                f"message {error.args[0]} is not in flight on subscription {consumer.key!r};"
                " it was acknowledged already or never delivered there"
            ) from None
        consumer.in_flight_bytes -= size
        if was_full:  # any of its lists may have waited for this room
            for pending_list in consumer.lists:
                self._core.mark_ready(pending_list)
        return entries

    def _restore_in_flight(self, settled: Settled) -> None:
        """Messages that a transaction held are in flight again (or go back, if nobody is there)."""
        consumer = settled.consumer
        if self.is_closed or self._consumers.get(consumer.key) is not consumer:
            self._return(settled.entries)
            return
        for entry in settled.entries:
            consumer.in_flight[entry[0].sequence] = entry
            consumer.in_flight_bytes += len(entry[0].message.body)

    def reject(
        self,
        key: str,
        sequences: Sequence[int],
        token: Token = None,
        transaction: str | None = None,
    ) -> None:
        consumer = self._consumers.get(key)
        if consumer is None:
            raise RequestError(f"there is no subscription {key!r} on this connection")
        entries = self._take_in_flight(consumer, sequences)
        if transaction is not None:
            self._hold(consumer, entries, Outcome.REJECTED, transaction, token)
            return
        again, moves = self._sort_rejected(entries)
        turn = self._writer.turn
        first = len(turn.operations)
        self._move(moves)
        count = len(turn.operations) - first
        undo = (lambda: self._return([entry for entry, _ in moves])) if moves else None
        turn.units.append((first, count, self, token, undo))
        turn.synced = turn.synced or bool(moves) or token is not None
        self._return(again)
        self._core.schedule()

    def _sort_rejected(
        self, entries: Sequence[InFlight]
    ) -> tuple[list[InFlight], list[tuple[InFlight, PendingList]]]:
        """What is to be redelivered, and what goes to which dead-letter queue.

        Dead-letter queues are made here, outside of any unit: a unit that is dropped because the
        store is full must not take the queue's AddDestination with it.
        """
        again: list[InFlight] = []
        moves: list[tuple[InFlight, PendingList]] = []
        for entry in entries:
            target = self._core.dead_letter_list(entry[0], entry[1])
            if target is None:
                again.append(entry)
            else:
                moves.append((entry, target))
        return again, moves

    def _move(self, moves: Sequence[tuple[InFlight, PendingList]]) -> None:
        for (message, pending_list, _), target in moves:
            self._core.dead_letter(message, pending_list, target)

    # --- BrokerConnection: transactions ----------------------------------------------------

    def begin(self, transaction: str) -> None:
        self._check_open()
        if transaction in self._transactions:
            raise RequestError(f"transaction {transaction!r} is already open")
        limits = self._core.config
        if len(self._transactions) >= limits.transactions_open_max:
            raise RequestError(
                f"{len(self._transactions)} transactions are open;"
                " that is the limit (broker.transactions_open_max)"
            )
        self._transactions[transaction] = Transaction(limits.transaction_operations_max)

    def commit(self, transaction: str, token: Token = None) -> None:
        held = self._transaction(transaction)
        core = self._core
        self._check_commit(transaction, held)
        del self._transactions[transaction]
        moved: list[InFlight] = []
        again: list[InFlight] = []
        moves: list[tuple[InFlight, PendingList]] = []
        for step in held.settled():
            if step.outcome is Outcome.REJECTED:
                to_redeliver, to_move = self._sort_rejected(step.entries)
                again += to_redeliver
                moves += to_move
                moved += [entry for entry, _ in to_move]
        turn = self._writer.turn
        was_synced = turn.synced
        first = len(turn.operations)
        first_sequence = core.next_sequence
        now = core.now()
        undo: list[Callable[[], None]] = []
        routes: list[Route] = []
        for step in held.steps:
            if isinstance(step, Published):
                routes.append(core.publish_in_turn(step.message, self.client_id, undo))
                if step.duplicate_id:
                    sequence = core.next_sequence - 1
                    destination = step.message.destination
                    core.duplicates.add(destination, step.duplicate_id, sequence, undo)
                if step.inflight is not None and self.session is not None:
                    self._put_inflight(step.inflight)
                    undo.append(self._undo_inflight(self.session, step.inflight))
            elif step.outcome is Outcome.ACKNOWLEDGED:
                self._acknowledge_now(step, now)
        self._move(moves)
        acknowledged = [s for s in held.settled() if s.outcome is Outcome.ACKNOWLEDGED]
        end_sequence = core.next_sequence

        def undo_commit() -> None:
            turn.drop_added(first_sequence, end_sequence)  # also what needed no storing
            self._return(moved)
            for step in acknowledged:
                self._restore_in_flight(step)

        undo.append(undo_commit)
        turn.units.append((first, len(turn.operations) - first, self, token, undo_all(undo)))
        turn.synced = was_synced
        turn.commits = True
        self._return(again)
        if turn.body_bytes > core.turn_bytes_max:
            core.throttle_unwritten(self)
        if core.full_lists:
            for route in routes:
                core.throttle_full(self, route)
        core.schedule()

    def _check_commit(self, transaction: str, held: Transaction) -> None:
        """Check that all of it can be done: all or nothing. Raises: GatewayError."""
        self._writer.check_writable()
        core = self._core
        published = [step for step in held.steps if isinstance(step, Published)]
        for step in published:  # a temporary one may be gone
            if names.is_temporary(step.message.destination):
                core.temporary.check_exists(step.message.destination)
        if core.detours:
            check_detours(core, self.client_id, [step.message for step in published])
        ids = [(s.message.destination, s.duplicate_id) for s in published if s.duplicate_id]
        if ids:
            try:
                core.duplicates.check_new(ids)
            except RequestError:
                self.abort(transaction)
                raise

    def _acknowledge_now(self, step: Settled, now: int) -> None:
        """Add the Acknowledge operations of one transactional step to the filling turn."""
        by_list: dict[PendingList, list[InFlight]] = {}
        for entry in step.entries:
            by_list.setdefault(entry[1], []).append(entry)
        for pending_list, entries in by_list.items():
            if pending_list.selecting is not None:
                pending_list.selecting.leaving([entry[0].sequence for entry in entries])
            if pending_list.is_removed or not pending_list.is_stored:
                continue
            self._writer.turn.operations.append(
                Acknowledge(
                    pending_list.id,
                    tuple(entry[0].sequence for entry in entries),
                    tuple(entry[2] for entry in entries),
                    now,
                    self.client_id,
                    step.consumer.subscription_name,
                    self.protocol,
                )
            )

    def abort(self, transaction: str, token: Token = None) -> None:
        held = self._transaction(transaction)
        del self._transactions[transaction]
        for step in held.settled():
            self._restore_in_flight(step)
        if token is not None:
            self._wait_for_turn(token)

    # --- BrokerConnection: branches of distributed transactions ---------------------------

    def prepare(self, transaction: str, branch_id: BranchId, token: Token = None) -> None:
        held = self._transaction(transaction)
        core = self._core
        core.branches.check_new(branch_id, held)
        self._check_commit(transaction, held)
        del self._transactions[transaction]

        def give_back() -> None:
            for step in held.settled():
                self._restore_in_flight(step)

        owner = (self._principal, self.client_id, self.protocol)
        core.branches.prepare(branch_id, held, self, token, owner=owner, give_back=give_back)
        if self._writer.turn.body_bytes > core.turn_bytes_max:
            core.throttle_unwritten(self)

    def commit_branch(self, branch_id: BranchId, token: Token = None) -> None:
        self._check_open()
        self._core.branches.complete(branch_id, self, token, commit=True, principal=self._principal)

    def roll_back_branch(self, branch_id: BranchId, token: Token = None) -> None:
        self._check_open()
        self._core.branches.complete(
            branch_id, self, token, commit=False, principal=self._principal
        )

    def forget_branch(self, branch_id: BranchId, token: Token = None) -> None:
        self._check_open()
        self._core.branches.forget(branch_id, self, token, principal=self._principal)

    def branches(self) -> Sequence[Branch]:
        return self._core.branches.all_of(self._principal)

    def _transaction(self, transaction: str) -> Transaction:
        held = self._transactions.get(transaction)
        if held is None:
            raise RequestError(f"there is no open transaction {transaction!r}; BEGIN it first")
        return held

    def _hold(
        self,
        consumer: Consumer,
        entries: list[InFlight],
        outcome: Outcome,
        transaction: str,
        token: Token,
    ) -> None:
        settled = Settled(consumer, entries, outcome)
        try:
            held = self._transaction(transaction)
            held.check_room(len(entries))
        except GatewayError:
            self._restore_in_flight(settled)
            raise
        held.add(settled, len(entries))
        if token is not None:
            self._wait_for_turn(token)

    # --- BrokerConnection: the rest --------------------------------------------------------

    def record_inflight(
        self,
        put: Sequence[InflightRecord] = (),
        remove: Sequence[tuple[InflightDirection, int]] = (),
        token: Token = None,
    ) -> None:
        self._check_open()
        session = self.session
        if session is not None:
            # A token waits for the sync; without one nobody needs it.
            operations = self._writer.turn.operations
            for record in put:
                session.inflight[record.direction, record.packet_id] = record
                operations.append(PutInflight(record))
            for key in remove:
                if session.inflight.pop(key, None) is not None:
                    operations.append(RemoveInflight(session.client_id, *key))
            self._core.schedule()
        if token is not None:
            self._wait_for_turn(token)

    def _put_inflight(self, record: InflightRecord) -> None:
        session = self.session
        assert session is not None
        session.inflight[record.direction, record.packet_id] = record
        self._core.add_operation(PutInflight(record))

    def synchronize(self, token: Token) -> None:
        self._wait_for_turn(token)

    def _wait_for_turn(self, token: Token) -> None:
        """Confirm *token* when this turn is durable, and with it all before."""
        turn = self._writer.turn
        turn.units.append((0, 0, self, token, None))
        turn.synced = True
        self._core.schedule()

    def disconnect(
        self,
        *,
        graceful: bool,
        publish_will: bool = False,
        session_expiry: int | None = None,
        unanswered: Mapping[str, Sequence[int]] = NOTHING_UNANSWERED,
    ) -> None:
        if self.is_closed:
            return
        core = self._core
        for transaction in list(self._transactions):
            self.abort(transaction)
        self.is_closed = True
        self.is_writable = False
        session = self.session
        if session is not None and session_expiry is not None:
            core.sessions.set_expiry(session, session_expiry)
        if unanswered:
            in_doubt.set_aside(core, session, self._consumers, unanswered)
        for consumer in list(self._consumers.values()):
            self._drop_consumer(consumer)
        core.temporary.remove_of(self)
        will = self._request.will
        has_will = will is not None and (publish_will or not graceful)
        if session is not None:
            core.sessions.end_connection(session, self, has_will=has_will)
        elif will is not None and has_will:
            core.wills.take(
                Will(
                    core.wills,
                    will,
                    principal=self._principal,
                    client_id=self.client_id,
                    address=self.address,
                    session=None,
                    due=core.elapsed(),
                )
            )
        core.forget_connection(self)

    def restore(self, session: SessionState) -> list[Subscription]:
        """Take up the durable subscriptions of a session; they are served after ``resume()``."""
        self.session = session
        session.connection = self
        restored: list[Subscription] = []
        for name, pending_list in session.lists.items():
            subscription = pending_list.subscription
            assert subscription is not None
            consumer = self._make_consumer(
                SubscribeRequest(
                    key=name,
                    destination=pending_list.destination,
                    durable_name=name,
                    prefetch_count=self._request.prefetch_count,
                    selector=subscription.selector,
                ),
                acknowledge=subscription.qos > 0,
            )
            self._consumers[name] = consumer
            pending_list.attach(consumer)
            restored.append(subscription)
        for subscription in session.stored.attached:
            self._restore_attached(subscription)
            restored.append(subscription)
        return restored

    def _restore_attached(self, subscription: Subscription) -> None:
        """A queue or shared subscription of the session."""
        request = SubscribeRequest(
            key=subscription.name,
            destination=subscription.filter,
            durable_name=subscription.name,
            acknowledge=subscription.qos > 0,
            qos=subscription.qos,
            share_group=subscription.share_group,
            prefetch_count=self._request.prefetch_count,
            options=subscription.options,
        )
        if names.is_queue(subscription.filter):
            consumer = self._subscribe_queue(request)
        else:
            made = self._make_consumer(request, acknowledge=request.acknowledge)
            consumer, _, _ = self._subscribe_shared(request, made)
        self._consumers[subscription.name] = consumer

    def _check_open(self) -> None:
        if self.is_closed:
            raise RequestError("the connection is closed")


def subscription_of(
    list_id: int, connection: Connection, request: SubscribeRequest, *, durable: bool
) -> Subscription:
    """What the store keeps of *request*."""
    return Subscription(
        pending_list=list_id,
        client_id="" if request.share_group else connection.client_id,
        name=request.durable_name or request.key,
        filter=request.destination,
        durable=durable,
        qos=request.qos,
        no_local=request.no_local,
        protocol=connection.protocol,
        share_group=request.share_group,
        options=request.options,
        selector=request.selector,
    )


__all__ = ["UNWRITTEN", "Connection", "subscription_of"]
