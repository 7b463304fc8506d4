"""What one connection consumes from: its subscriptions, made, replaced, restored, dropped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidegate.broker.connection import subscribing
from tidegate.broker.connection.browser import Browser
from tidegate.broker.connection.client import Client
from tidegate.broker.connection.deciding import DECIDED_AT_ONCE
from tidegate.broker.destinations import group_of
from tidegate.broker.list_making import SELECTOR_FACTOR
from tidegate.broker.lists.pending_list import Consumer, InFlight, PendingList
from tidegate.broker.lists.selector import Matcher, compile_selector
from tidegate.broker.lists.succession import Succession
from tidegate.broker.parts import Parts
from tidegate.broker.publish.access import taking_from
from tidegate.broker.sessions import in_doubt
from tidegate.broker.sessions.state import SessionState
from tidegate.broker.turn.flow import STATE_WORK, SUBSCRIPTION_WORK
from tidegate.broker.turn.walks import Walk
from tidegate.spi import (
    Action,
    Held,
    Outcome,
    RequestError,
    RetainHandling,
    SubscribeRequest,
    Subscription,
    Token,
    names,
)

#: Subscriptions of a closed connection removed between looks at the clock: each takes some 50
#: microseconds.
REMOVED_AT_ONCE: Final = 16

#: Subscriptions of a session resumed between looks at the clock: some 10 microseconds each, and what
#: authorizers take.
RESTORED_AT_ONCE: Final = 16

#: Memory of a subscription, here and in the front-end, besides its pending list, and of each queue
#: that a filter covers: measured over 10,000 and rounded up.
CONSUMER_BYTES: Final = 1800
ATTACHED_BYTES: Final = 120

#: What a step of a walk over queues costs, in answers of authorizers.
QUEUES_WORK: Final = DECIDED_AT_ONCE


@dataclass(slots=True, eq=False, repr=False)
class Serving:
    """The subscriptions of one connection.

    Attributes: consumers: by the front-end's key.
    """

    _parts: Parts
    _client: Client
    consumers: dict[str, Consumer] = field(default_factory=dict[str, Consumer])
    # With how many messages were in flight from each, which did not come back to it.
    _ended: list[tuple[PendingList, int]] = field(default_factory=list[tuple[PendingList, int]])
    # What the connection is charged for: the queues that filters cover, and each subscription.
    _attached: int = 0
    _charged: dict[str, int] = field(default_factory=dict[str, int])
    _counted: int = 0

    def subscribe(self, request: SubscribeRequest, token: Token = None) -> bool:
        parts = self._parts
        if parts.writer.error is not None:
            parts.writer.check_writable()
        parts.destinations.check_levels(request.destination)
        if names.is_temporary(request.destination):
            parts.temporary.check_subscribe(self._client, request)
        parts.access.check_subscribe(self._client, request)
        if subscribing.is_one_queue(request) and not request.browse:
            parts.destinations.check_creatable(request.destination)
        matches = compile_selector(request.selector)  # a bad one must change nothing
        existing = self.consumers.get(request.key)
        if existing is None:
            self._check_room(request)
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
        if existing is not None and subscribing.is_kept(self._client, existing, request):
            consumer, taken_up = existing, names.is_topic(existing.destination)
            subscribing.update(self._client, existing, request)
        else:
            old = None if existing is None else self._leave(existing)
            consumer, taken_up = subscribing.subscribe(self._client, request)
            if old is not None:
                remove = parts.destinations.remove_subscription
                Succession(parts.flow, old, consumer.first_list, remove)
        self.consumers[request.key] = consumer
        self._charge(request)
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

    def _check_room(self, request: SubscribeRequest) -> None:
        """Raises: FlowControlError: the connection may not hold one more."""
        account = self._client.account
        if names.is_queue(request.destination) and names.is_filter(request.destination):
            # The queues of the new one are counted with the next: they are attached in steps.
            lists = sum(len(item.lists) for item in self.consumers.values())
            account.add(Held.SUBSCRIPTIONS, ATTACHED_BYTES * lists - self._attached)
            self._attached = ATTACHED_BYTES * lists
        account.check(Held.SUBSCRIPTIONS, _size_of(request))

    def _charge(self, request: SubscribeRequest) -> None:
        """The connection has this subscription now, perhaps in place of another."""
        size = _size_of(request)
        before = self._charged.get(request.key, 0)
        self._client.account.add(Held.SUBSCRIPTIONS, size - before)
        self._charged[request.key] = size
        self._count()

    def _count(self) -> None:
        """Update the total of all connections' subscriptions with the present number."""
        count = len(self.consumers)
        self._parts.served += count - self._counted
        self._counted = count

    def _take_out(self, key: str) -> None:
        self.consumers.pop(key, None)
        self._count()
        size = self._charged.pop(key, 0)
        if not self._client.is_closed:  # otherwise the whole account is cleared
            self._client.account.add(Held.SUBSCRIPTIONS, -size)

    def _leave(self, consumer: Consumer) -> PendingList | None:
        """Another subscription replaces *consumer*.

        Returns: its list, when what comes from it must be delivered first (see Succession).
        """
        pending_list = consumer.first_list
        if pending_list.is_queue or pending_list.is_stored:
            self.drop(consumer)
            return None
        del self.consumers[consumer.key]
        self._count()
        self._parts.destinations.leave_router(pending_list)
        return pending_list

    def _browse(self, request: SubscribeRequest, token: Token, matches: Matcher | None) -> None:
        """Show a queue; it begins when everything requested before is durable."""
        parts, destination = self._parts, request.destination
        if not names.is_queue(destination) or names.is_filter(destination):
            raise RequestError(f"{destination!r} cannot be browsed; only a single queue can")
        if names.is_temporary(destination):
            raise RequestError(f"{destination!r} is a temporary queue, which cannot be browsed")
        browser = Browser(
            self._client, self.consumers, request.key, destination, matches, self._take_out
        )
        self.consumers[request.key] = browser
        self._charge(request)
        if token is not None:
            parts.writer.confirm(self._client, token)
        browser.begin()

    def is_served(self, consumer: Consumer) -> bool:
        """Tell whether *consumer* is still one of this connection's."""
        return self.consumers.get(consumer.key) is consumer

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
        attached = client.session.attached.get(key)
        parts.sessions.detach(client.session, key)
        found = parts.destinations.lists_of(client.key).get(key)
        if found is not None:
            parts.destinations.remove_subscription(found)
        return found or attached

    def drop_all(self) -> None:
        """The connection is closed; the lists that end with it are removed in steps."""
        consumers = list(self.consumers.values())
        gone = self._give_back(consumers)
        for consumer in consumers:
            self._drop(consumer, gone)
        self._parts.flow.walks.begin(self._remove_ended())

    def _remove_ended(self) -> Walk:
        ended, flow = self._ended, self._parts.flow
        while ended:
            for pending_list, in_flight in ended[:REMOVED_AT_ONCE]:
                self._parts.destinations.remove_subscription(
                    pending_list, "the connection ended", in_flight
                )
            del ended[:REMOVED_AT_ONCE]
            yield flow.add_own_work(STATE_WORK * REMOVED_AT_ONCE)

    def drop(self, consumer: Consumer, *, forget: bool = False) -> None:
        """Stop serving; lists that end with it are removed, and what is in flight from others goes back."""
        gone = self._give_back([consumer], forget=forget)
        self._drop(consumer, gone, forget=forget)

    def _give_back(
        self, consumers: Sequence[Consumer], *, forget: bool = False
    ) -> Counter[PendingList]:
        """What dropped *consumers* have in flight goes back, except to lists that end with them.

        Returns: for the latter, how many messages that was.
        """
        gone: Counter[PendingList] = Counter()
        going: list[tuple[dict[int, InFlight], PendingList | None]] = []
        coming_back = self._parts.flow.coming_back
        for consumer in consumers:
            in_flight, consumer.in_flight = consumer.in_flight, {}
            if not in_flight:
                continue
            consumer.count(-len(in_flight), -consumer.in_flight_bytes)
            only = consumer.first_list if subscribing.is_of_one_list(consumer) else None
            if self._vanishes(consumer, forget=forget):
                if only is None:
                    gone.update([entry[1] for entry in in_flight.values()])
                else:
                    gone[only] += len(in_flight)
                coming_back.let_go(in_flight)
            elif self._is_told_how_often(consumer):
                self._parts.writer.give_back(in_flight.values())
            else:
                going.append((in_flight, only))
        coming_back.begin(going)
        return gone

    def _drop(
        self, consumer: Consumer, gone: Mapping[PendingList, int], *, forget: bool = False
    ) -> None:
        self._take_out(consumer.key)
        parts = self._parts
        parts.destinations.unwatch_queues(consumer)
        if isinstance(consumer, Browser):
            consumer.wake()  # so that it notices that it is no longer served
        if consumer.is_over:
            return  # a filter's: it leaves its queues in steps
        for pending_list in list(consumer.lists):
            pending_list.detach(consumer)
            if pending_list.is_queue:
                continue
            subscription = pending_list.subscription
            if subscription is not None and subscription.share_group:
                parts.destinations.update_shared(group_of(subscription))
                continue
            durable = subscription is not None and subscription.durable
            if durable:
                parts.destinations.leave(pending_list)
            if not pending_list.consumers and _ends_unserved(pending_list, forget=forget):
                if not durable and self._client.is_closed:
                    # Nobody can ask for it now.
                    self._ended.append((pending_list, gone.get(pending_list, 0)))
                else:
                    parts.destinations.remove_subscription(
                        pending_list, in_flight=gone.get(pending_list, 0)
                    )

    def _vanishes(self, consumer: Consumer, *, forget: bool) -> bool:
        """Its list ends with *consumer*, and what was delivered leaves no trace: nothing has to go back."""
        if names.is_queue(consumer.destination) or self._is_told_how_often(consumer):
            return False
        return all(
            pending_list.consumers == [consumer] and _ends_unserved(pending_list, forget=forget)
            for pending_list in consumer.lists
        )

    def _is_told_how_often(self, consumer: Consumer) -> bool:
        """Its list may end, and rows of what it holds say how often that was delivered."""
        is_queue = names.is_queue(consumer.destination)  # a queue stays
        return not is_queue and Outcome.PURGED in self._parts.writer.logged

    def restore(
        self, session: SessionState, restored: list[Subscription], refused: list[Subscription]
    ) -> Walk:
        """Resume the subscriptions of a session, into *restored*; they are served after ``resume()``.

        Args: refused: gets those that the client may no longer have. They stay, with what waits in
            them: the right may come back.
        """
        client = self._client
        client.session = session
        self._parts.sessions.take_up(session, client)
        lists = self._parts.destinations.lists_of(client.key).values()
        found = [item.subscription for item in lists if item.subscription is not None]
        # And queues, and shared subscriptions.
        for count, subscription in enumerate([*found, *session.attached.values()], 1):
            request = subscribing.request_of(client, subscription)
            if subscribing.may_resume(client, request):
                self.consumers[subscription.name] = subscribing.resume(
                    client, subscription, request
                )
                self._charge(request)
                restored.append(subscription)
            else:
                refused.append(subscription)
            if not count % RESTORED_AT_ONCE:
                yield
                if client.is_closed:
                    return
                client.check_open()  # rights may have changed

    def decide_again(self) -> Iterator[int]:
        """Rights have changed: decide about each subscription. Yields: see `Undecided`.

        Raises: AccessError when one is now refused, or so is a message that the front-end was handed
        and may not have sent yet.
        """
        client = self._client
        for consumer in list(self.consumers.values()):
            if client.is_closed:
                return
            if self.is_served(consumer):
                yield from self._decide(consumer)
                yield 1

    def _decide(self, consumer: Consumer) -> Iterator[int]:
        parts, client, destination = self._parts, self._client, consumer.destination
        if isinstance(consumer, Browser):
            parts.access.authorize(client, Action.BROWSE, destination)
            return
        allows = consumer.allows = parts.access.allows(client, destination)
        if allows is not None:
            handed = {stored.message.destination for stored, _, _ in consumer.in_flight.values()}
            for handed_of in handed:
                if not allows(handed_of):
                    raise parts.access.refusal(client, taking_from(destination), handed_of)
                yield 1
        if names.is_queue(destination):
            if names.is_filter(names.name_of(destination)):
                # All of it before anything is handed out: it leaves queues that it may not have.
                walk = parts.destinations.rewatch_queues(names.name_of(destination), consumer)
                yield from (QUEUES_WORK for _ in walk)
            return
        succession = consumer.first_list.succession
        if succession is not None and succession.new is consumer.first_list:
            for older in succession.old.consumers:
                older.allows = allows

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
        """The client is back: it gets what is in doubt first."""
        session = self._client.session
        if session is not None and session.in_doubt:
            for consumer in list(self.consumers.values()):
                in_doubt.hand_back(self._parts.writer, session, consumer)


def _size_of(request: SubscribeRequest) -> int:
    """What a subscription takes in memory besides its pending list."""
    return CONSUMER_BYTES + SELECTOR_FACTOR * len(request.selector)


def _ends_unserved(pending_list: PendingList, *, forget: bool) -> bool:
    """A topic's list that goes with its last consumer. Args: forget: the client also gives up its durable ones."""
    subscription = pending_list.subscription
    return subscription is None or not (
        subscription.share_group or (subscription.durable and not forget)
    )
