"""What one connection consumes from: its subscriptions, made, replaced, restored, dropped."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Final

import msgspec

from tidegate.broker.connection.browser import Browser
from tidegate.broker.connection.client import Client
from tidegate.broker.destinations import SELECTOR_FACTOR, group_of, subscription_of
from tidegate.broker.lists.pending_list import Consumer, PendingList
from tidegate.broker.lists.selector import Matcher, compile_selector
from tidegate.broker.lists.succession import Succession
from tidegate.broker.parts import Parts
from tidegate.broker.publish.access import taking_from
from tidegate.broker.sessions import in_doubt
from tidegate.broker.sessions.state import SessionState
from tidegate.broker.turn.flow import STATE_WORK, SUBSCRIPTION_WORK
from tidegate.broker.turn.walks import Walk
from tidegate.spi import (
    AccessError,
    Action,
    Held,
    RequestError,
    RetainHandling,
    SubscribeRequest,
    Subscription,
    Token,
    names,
)

_log = logging.getLogger("tidegate.broker.connection")

#: Subscriptions of a closed connection that are removed before the clock is looked at: each takes
#: some 50 microseconds.
REMOVED_AT_ONCE: Final = 16

#: What a subscription takes in memory here and in the front-end beside its pending list, and each
#: queue that a filter covers: measured over 10,000 and rounded up.
CONSUMER_BYTES: Final = 1800
ATTACHED_BYTES: Final = 120

#: What an automatically acknowledged consumer is given in one turn at most when it states no
#: prefetch: the socket's own flow control only acts between turns.
AUTOMATIC_TURN_COUNT: Final = 1000


@dataclass(slots=True, eq=False, repr=False)
class Serving:
    """The subscriptions of one connection.

    Attributes: consumers: by the front-end's key.
    """

    _parts: Parts
    _client: Client
    consumers: dict[str, Consumer] = field(default_factory=dict[str, Consumer])
    _ended: list[PendingList] = field(default_factory=list[PendingList])
    _attached: int = 0
    _selectors: dict[str, int] = field(default_factory=dict[str, int])

    def subscribe(self, request: SubscribeRequest, token: Token = None) -> bool:
        parts = self._parts
        if parts.writer.error is not None:
            parts.writer.check_writable()
        parts.destinations.check_levels(request.destination)
        if names.is_temporary(request.destination):
            parts.temporary.check_subscribe(self._client, request)
        parts.access.check_subscribe(self._client, request)
        matches = compile_selector(request.selector)  # a bad one must change nothing
        existing = self.consumers.get(request.key)
        if existing is None:
            self._charge(request)
        if existing is not None and (
            not self._client.rules.replaces
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
            consumer, taken_up = existing, names.is_topic(existing.destination)
            self._update_consumer(existing, request)
        else:
            old = None if existing is None else self._leave(existing)
            if names.is_queue(request.destination):
                consumer, taken_up = self._subscribe_queue(request), False
            else:
                consumer, taken_up = self._subscribe_topic(request)
            if old is not None:
                remove = parts.destinations.remove_subscription
                Succession(parts.flow, old, consumer.first_list, remove)
        self.consumers[request.key] = consumer
        if token is not None:
            parts.writer.confirm(self._client, token)
        handling = request.retain_handling
        if names.is_topic(request.destination) and (
            handling is RetainHandling.SEND
            or (handling is RetainHandling.SEND_IF_NEW and not taken_up and existing is None)
        ):
            parts.deliveries.begin(consumer.first_list)
        parts.flow.mark_lists(consumer)
        parts.flow.add_work(self._client, SUBSCRIPTION_WORK)
        return taken_up

    def _charge(self, request: SubscribeRequest) -> None:
        """Charge the connection with one more. Raises: FlowControlError."""
        if names.is_queue(request.destination) and names.is_filter(request.destination):
            # The queues of the new one are counted with the next: they come bit by bit.
            self._attached = sum(len(item.lists) for item in self.consumers.values())
        more = SELECTOR_FACTOR * len(request.selector)
        size = CONSUMER_BYTES * (len(self.consumers) + 1) + ATTACHED_BYTES * self._attached
        self._client.account.put(Held.SUBSCRIPTIONS, size + sum(self._selectors.values()) + more)
        if more:
            self._selectors[request.key] = more

    def _recount(self) -> None:
        """There are fewer subscriptions, or those of a session again."""
        if not self._client.is_closed:
            account, size = self._client.account, CONSUMER_BYTES * len(self.consumers)
            size += ATTACHED_BYTES * self._attached + sum(self._selectors.values())
            account.add(Held.SUBSCRIPTIONS, size - account.kinds[Held.SUBSCRIPTIONS])

    def _leave(self, consumer: Consumer) -> PendingList | None:
        """Another subscription takes the place of *consumer*.

        Returns: its list, when what comes from it is to be delivered first (see Succession).
        """
        pending_list = consumer.first_list
        if pending_list.is_queue or pending_list.is_stored:
            self.drop(consumer)
            return None
        del self.consumers[consumer.key]
        self._parts.destinations.leave_router(pending_list)
        return pending_list

    def _browse(self, request: SubscribeRequest, token: Token, matches: Matcher | None) -> None:
        """Begin to show a queue; it begins when everything asked for before is durable."""
        parts, destination = self._parts, request.destination
        if not names.is_queue(destination) or names.is_filter(destination):
            raise RequestError(f"{destination!r} cannot be browsed; only one queue at a time can")
        if names.is_temporary(destination):
            raise RequestError(f"{destination!r} is a temporary queue, which cannot be browsed")
        browser = Browser(self._client, self.consumers, request.key, destination, matches)
        self.consumers[request.key] = browser
        if token is not None:
            parts.writer.confirm(self._client, token)
        browser.begin()

    def is_served(self, consumer: Consumer) -> bool:
        """Tell whether *consumer* is still one of this connection's."""
        return self.consumers.get(consumer.key) is consumer

    def _is_kept(self, consumer: Consumer, request: SubscribeRequest) -> bool:
        """A repeated subscription keeps its list, what is pending and what is in flight
        [MQTT-3.8.4-3]; only one that begins or ceases to be stored starts anew."""
        matches = compile_selector(request.selector)
        if names.is_queue(consumer.destination):
            return consumer.matches is matches
        if request.share_group:
            return True
        pending_list = consumer.first_list
        if pending_list.matches is not matches:
            return False
        is_durable = bool(request.durable_name and self._client.client_id)
        subscription = pending_list.subscription
        if subscription is None:
            return not is_durable and not (request.acknowledge and request.qos > 0)
        return subscription.durable == is_durable

    def _update_consumer(self, consumer: Consumer, request: SubscribeRequest) -> None:
        is_topic = names.is_topic(consumer.destination)
        acknowledge = request.acknowledge and (request.qos > 0 or not is_topic)
        fresh = self._make_consumer(request, acknowledge=acknowledge)
        consumer.acknowledge = fresh.acknowledge
        consumer.acknowledges_all = fresh.acknowledges_all
        consumer.prefetch_count = fresh.prefetch_count
        consumer.prefetch_bytes = fresh.prefetch_bytes
        consumer.allows = fresh.allows
        if is_topic and not request.share_group:
            self._parts.destinations.update_subscription(consumer.first_list, self._client, request)
        self._attach_session(request)

    def _attach_session(self, request: SubscribeRequest) -> None:
        """A stored session takes up a queue or shared subscription again when it comes back."""
        is_shared = request.share_group or names.is_queue(request.destination)
        if request.durable_name and is_shared and self._client.session is not None:
            kept = subscription_of(0, self._client, request, durable=True)
            self._parts.sessions.attach(self._client.session, kept)

    def _make_consumer(self, request: SubscribeRequest, *, acknowledge: bool) -> Consumer:
        policy = self._parts.destinations.policy(request.destination)
        default = policy.prefetch_count if acknowledge else AUTOMATIC_TURN_COUNT
        return Consumer(
            self._client,
            request.key,
            request.destination,
            subscription_name=request.durable_name or request.key,
            acknowledge=acknowledge,
            prefetch_count=request.prefetch_count or default,
            prefetch_bytes=request.prefetch_bytes or policy.prefetch_bytes,
            matches=compile_selector(request.selector),
            allows=self._parts.access.allows(self._client, request.destination),
            acknowledges_all=self._client.rules.acknowledges_unstored,
        )

    def _subscribe_queue(self, request: SubscribeRequest) -> Consumer:
        consumer = self._make_consumer(request, acknowledge=request.acknowledge)
        if names.is_filter(request.destination):
            self._parts.destinations.watch_queues(names.name_of(request.destination), consumer)
        else:
            found = self._parts.destinations.queue_list(request.destination, self._client.principal)
            found.attach(consumer)
        self._attach_session(request)
        return consumer

    def _subscribe_topic(self, request: SubscribeRequest) -> tuple[Consumer, bool]:
        """Returns: also whether a subscription with messages of its own was taken up."""
        parts = self._parts
        acknowledge = request.acknowledge and request.qos > 0
        consumer = self._make_consumer(request, acknowledge=acknowledge)
        if request.share_group:
            return consumer, self._subscribe_shared(request, consumer)
        durable = bool(request.durable_name and self._client.client_id)
        if durable:
            found = parts.destinations.durable.get((self._client.key, request.durable_name))
            if found is not None:
                if found.consumers:
                    raise RequestError(
                        f"durable subscription {request.durable_name!r} of client"
                        f" {self._client.client_id!r} is in use by another connection"
                    )
                if found.subscription is not None and (
                    (found.subscription.filter, found.subscription.selector)
                    == (request.destination, request.selector)
                ):
                    parts.destinations.update_subscription(found, self._client, request)
                    found.attach(consumer)
                    return consumer, True
                # Another filter or selector under its name: the old one ends (JMS 2.0, 8.3.3).
                parts.destinations.remove_subscription(found)
        is_stored = (durable or acknowledge) and not names.is_temporary(request.destination)
        pending_list = parts.destinations.add_subscription(
            self._client, request, is_stored=is_stored, durable=durable
        )
        pending_list.attach(consumer)
        return consumer, False

    def _subscribe_shared(self, request: SubscribeRequest, consumer: Consumer) -> bool:
        """The group has one list for all its members, whatever QoS each of them wants."""
        parts = self._parts
        group = (self._client.principal, request.share_group, request.destination)
        found = parts.destinations.shared.get(group)
        taken_up = found is not None
        if found is None:
            whole = msgspec.structs.replace(request, qos=2, no_local=False, options={})
            found = parts.destinations.add_subscription(
                self._client, whole, is_stored=True, durable=False
            )
        elif found.matches is not consumer.matches:
            raise RequestError(
                f"share group {request.share_group!r} has another selector for"
                f" {request.destination!r}"
            )
        found.attach(consumer)
        self._attach_session(request)
        return taken_up

    def unsubscribe(self, key: str, token: Token = None, *, forget: bool = False) -> bool:
        consumer = self.consumers.pop(key, None)
        if consumer is not None:
            if self._client.session is not None:
                forget = True
                self._parts.sessions.detach(self._client.session, key)
            self.drop(consumer, forget=forget)
            self._parts.flow.add_work(self._client, STATE_WORK)
        elif self._client.session is not None:
            consumer = self._forget_refused(key)
        if token is not None:
            self._parts.writer.confirm(self._client, token)
        return consumer is not None

    def _forget_refused(self, key: str) -> object:
        """End a subscription of the session that was not resumed. Returns: None if there is none."""
        client, parts = self._client, self._parts
        assert client.session is not None
        attached = client.session.stored.attached
        parts.sessions.detach(client.session, key)
        found = parts.destinations.lists_of(client.key).get(key)
        if found is not None:
            parts.destinations.remove_subscription(found)
        return found or next((item for item in attached if item.name == key), None)

    def drop_all(self) -> None:
        """The connection is closed; the lists that end with it are removed bit by bit."""
        for consumer in list(self.consumers.values()):
            self.drop(consumer)
        self._parts.flow.walks.begin(self._remove_ended())

    def _remove_ended(self) -> Walk:
        ended, flow = self._ended, self._parts.flow
        while ended:
            for pending_list in ended[:REMOVED_AT_ONCE]:
                self._parts.destinations.remove_subscription(pending_list)
            del ended[:REMOVED_AT_ONCE]
            yield flow.add_own_work(STATE_WORK * REMOVED_AT_ONCE)

    def drop(self, consumer: Consumer, *, forget: bool = False) -> None:
        """Stop serving; what is in flight goes back, lists that end with it are removed."""
        self.consumers.pop(consumer.key, None)
        self._selectors.pop(consumer.key, None)
        parts = self._parts
        parts.destinations.unwatch_queues(consumer)
        if isinstance(consumer, Browser):
            consumer.wake()  # to find that it is served no more
        parts.writer.give_back(consumer.in_flight.values())
        consumer.count(-len(consumer.in_flight), -consumer.in_flight_bytes)
        consumer.in_flight.clear()
        self._recount()
        if consumer.is_over:
            return  # a filter's: it leaves its queues bit by bit
        for pending_list in list(consumer.lists):
            pending_list.detach(consumer)
            if pending_list.is_queue:
                continue
            subscription = pending_list.subscription
            if subscription is not None and subscription.share_group:
                parts.destinations.update_shared(group_of(subscription))
                continue
            durable = subscription is not None and subscription.durable
            if not pending_list.consumers and (forget or not durable):
                if not durable and self._client.is_closed:
                    self._ended.append(pending_list)  # nobody can ask for it any more
                else:
                    parts.destinations.remove_subscription(pending_list)

    def restore(self, session: SessionState) -> tuple[list[Subscription], list[Subscription]]:
        """Take up the durable subscriptions of a session; they are served after ``resume()``.

        Returns: also those that are not, because the client may not have them any more. They stay,
            with what waits in them: the right may come back.
        """
        client = self._client
        client.session = session
        session.connection = client
        session.charge()
        lists = self._parts.destinations.lists_of(client.key)
        restored: list[Subscription] = []
        refused: list[Subscription] = []
        for name, pending_list in lists.items():
            subscription = pending_list.subscription
            assert subscription is not None
            request = self._request_of(subscription)
            if not self._may_resume(request):
                refused.append(subscription)
                continue
            acknowledge = subscription.qos > 0
            consumer = self.consumers[name] = self._make_consumer(request, acknowledge=acknowledge)
            pending_list.attach(consumer)
            restored.append(subscription)
        for subscription in session.stored.attached:  # a queue or shared subscription
            request = self._request_of(subscription)
            if not self._may_resume(request):
                refused.append(subscription)
                continue
            if names.is_queue(subscription.filter):
                consumer = self._subscribe_queue(request)
            else:
                consumer = self._make_consumer(request, acknowledge=request.acknowledge)
                self._subscribe_shared(request, consumer)
            self.consumers[subscription.name] = consumer
            restored.append(subscription)
        self._recount()
        return restored, refused

    def _may_resume(self, request: SubscribeRequest) -> bool:
        try:
            self._parts.access.check_subscribe(self._client, request)
        except AccessError as error:
            _log.warning(
                "peer=%s client=%r subscription not resumed: %s",
                self._client.address,
                self._client.client_id,
                error,
            )
            return False
        return True

    def decide_again(self) -> None:
        """Rights are other ones now. Raises: AccessError when a subscription is refused by now, or
        the front-end was handed a message, which it may not have sent yet, that is."""
        parts, client = self._parts, self._client
        for consumer in list(self.consumers.values()):
            if isinstance(consumer, Browser):
                parts.access.authorize(client, Action.BROWSE, consumer.destination)
                continue
            allows = consumer.allows = parts.access.allows(client, consumer.destination)
            for stored, _, _ in consumer.in_flight.values() if allows else ():
                if allows is not None and not allows(stored.message.destination):
                    raise parts.access.refusal(
                        client, taking_from(consumer.destination), stored.message.destination
                    )
            if names.is_queue(consumer.destination):
                if names.is_filter(names.name_of(consumer.destination)):
                    parts.destinations.rewatch_queues(names.name_of(consumer.destination), consumer)
                continue
            succession = consumer.first_list.succession
            if succession is not None and succession.new is consumer.first_list:
                for older in succession.old.consumers:
                    older.allows = allows

    def _request_of(self, subscription: Subscription) -> SubscribeRequest:
        """What asked for a subscription of the session, but for retained messages."""
        return SubscribeRequest(
            key=subscription.name,
            destination=subscription.filter,
            durable_name=subscription.name,
            acknowledge=subscription.qos > 0,
            qos=subscription.qos,
            share_group=subscription.share_group,
            prefetch_count=self._client.prefetch_count,
            options=subscription.options,
            selector=subscription.selector,
        )

    def has_in_flight(self) -> bool:
        """Messages wait for this client's acknowledgement."""
        return any(consumer.in_flight for consumer in self.consumers.values())

    def wake(self) -> None:
        """The client takes more."""
        for consumer in self.consumers.values():
            if isinstance(consumer, Browser):
                consumer.wake()
            self._parts.flow.mark_lists(consumer)

    def hand_back(self) -> None:
        """The client is back: first it gets what is in doubt."""
        session = self._client.session
        if session is not None and session.in_doubt:
            for consumer in list(self.consumers.values()):
                in_doubt.hand_back(self._parts.writer, session, consumer)
