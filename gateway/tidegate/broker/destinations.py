"""All pending lists of the gateway: of queues, of subscriptions, and where each is routed from."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Final, Protocol, TypeAlias

import msgspec

from tidegate.broker.limits.accounts import Account, Accounts, Counted
from tidegate.broker.limits.subscription_limit import SubscriptionLimits
from tidegate.broker.lists.pending_list import Consumer, PendingList
from tidegate.broker.lists.selector import Matcher, compile_selector
from tidegate.broker.owner import key_of
from tidegate.broker.route.router import Route, Router
from tidegate.broker.route.topic_tree import TopicTree
from tidegate.broker.turn.flow import Flow, Tasks
from tidegate.broker.turn.walks import STEP_LISTS, Walk
from tidegate.config import (
    CURSOR_UNSTORED_DEFAULT,
    BrokerConfig,
    DestinationPolicy,
    policy_for,
)
from tidegate.spi import (
    AddDestination,
    ClientRules,
    CursorContext,
    CursorFactory,
    FlowControlError,
    Held,
    PendingCursor,
    PutSubscription,
    RemoveSubscription,
    RequestError,
    StoredMessage,
    SubscribeRequest,
    Subscription,
    names,
    text_bytes,
)

_log = logging.getLogger("tidegate.broker")

#: What a pending list with its cursor takes in memory, a level of its name in the tree of filters, and
#: a selector when it is compiled, by its length; measured over 10,000 and rounded up.
LIST_BYTES: Final = 3000
LEVEL_BYTES: Final = 350
SELECTOR_FACTOR: Final = 20


#: What a shared subscription is found by: owner, share group, filter.
Group: TypeAlias = tuple[str, str, str]


class Subscriber(Protocol):
    """A connection, as far as its subscriptions are made of it."""

    protocol: str
    principal: str
    client_id: str
    key: str
    rules: ClientRules


class Destinations:
    """See the module.

    Args:
        cursors: cursor factories by the name that policies use.
        policies: in file order; the first that covers a destination wins.
        temporary_directory: for cursors that spool; exists and is empty.

    Attributes:
        queues: by destination.
        durable: by the client's key and name.
        shared: by owner, share group and filter, see :func:`group_of`.
        routes: by destination, what is known.
        charged: all lists there are, each with who is charged with it.
    """

    def __init__(
        self,
        config: BrokerConfig,
        flow: Flow,
        tasks: Tasks,
        limits: SubscriptionLimits,
        accounts: Accounts,
        *,
        cursors: Mapping[str, CursorFactory],
        policies: Sequence[DestinationPolicy],
        temporary_directory: Path,
    ) -> None:
        self.durable: dict[tuple[str, str], PendingList] = {}
        self.shared: dict[Group, PendingList] = {}
        self.queues: dict[str, PendingList] = {}
        self._by_client: dict[str, dict[str, PendingList]] = {}
        self._accounts = accounts
        self.charged: dict[PendingList, tuple[Account, Counted, int]] = {}
        self._levels_max = config.levels_max
        self._queues_max = config.queues_max
        self._members: dict[Group, set[object]] = {}  # the sessions that have it, also while away
        self._store = flow.store
        self._writer = flow.writer
        self._flow = flow
        self._tasks = tasks
        self._limits = limits
        self._cursors = cursors
        self._policies = tuple(policies)
        self._temporary_directory = temporary_directory
        self._router = Router(self.queue_list)
        self.routes = self._router.routes
        self._queue_names = TopicTree()  # those that a filter can cover
        self._queue_watchers: dict[Consumer, str] = {}  # and their filters
        self._unstored_ids = count(-1, -1)

    def all_lists(self) -> Iterator[PendingList]:
        """Those that the store knows, and temporary queues."""
        yield from self.queues.values()
        yield from self.durable.values()
        yield from self.shared.values()

    def policy(self, destination: str) -> DestinationPolicy:
        """The policy of a canonical destination or filter: the first one that matches."""
        return policy_for(self._policies, destination)

    def check_levels(self, destination: str) -> None:
        """Raises: RequestError: a name or filter has too many levels."""
        if destination.count(".") >= self._levels_max:
            raise RequestError(
                f"{destination[:40]!r}… has more than {self._levels_max} levels (broker.levels_max)"
            )

    # --- routes --------------------------------------------------------------------------------

    def route(self, destination: str, owner: str = "") -> Route:
        """The route of a valid *destination*, from now on known; a new queue is made.

        Args: owner: the principal that is charged with the queue; "": the gateway itself.
        Raises: RequestError, FlowControlError, for a queue that may not be made.
        """
        if names.is_queue(destination):
            self.queue_list(destination, owner)
        return self._router.resolve(destination)

    def route_once(self, topic: str) -> Route:
        """The route of a topic that only the gateway publishes to; it is not remembered."""
        return self._router.topic_route(topic)

    def leave_router(self, pending_list: PendingList) -> None:
        """The list gets no message more that is published from now on."""
        self._router.remove_filter(pending_list)

    def lower(self, pending_list: PendingList, is_lowered: bool) -> None:
        """Begin or end storing for a subscription of QoS 0; see PendingList.stores."""
        pending_list.is_lowered = is_lowered
        if not pending_list.is_removed:
            self._route_anew(pending_list)

    def _route_anew(self, pending_list: PendingList) -> None:
        self._router.remove_filter(pending_list)
        self._router.add_filter(pending_list)

    # --- queues --------------------------------------------------------------------------------

    def queue_list(self, destination: str, owner: str = "") -> PendingList:
        """The pending list of a queue, created (durably, with this turn) on first use.

        Args, raises: see :meth:`route`.
        """
        found = self.queues.get(destination)
        if found is not None:
            return found

        def take_id() -> int:
            list_id = self._writer.take_list_id()
            self._writer.add_operation(AddDestination(destination, list_id))
            return list_id

        return self._add_queue(destination, owner, take_id)

    def _charge(self, made: PendingList, account: Account, what: Counted, size: int) -> None:
        self.charged[made] = account, what, size
        account.recount(what, 1)
        account.add(Held.QUEUES if what is Counted.QUEUES else Held.SUBSCRIPTIONS, size)

    def _discharge(self, gone: PendingList) -> None:
        account, what, size = self.charged.pop(gone, (None, Counted.QUEUES, 0))
        if account is not None:
            account.recount(what, -1)
            account.add(Held.QUEUES if what is Counted.QUEUES else Held.SUBSCRIPTIONS, -size)

    def add_temporary_queue(self, destination: str, owner: str) -> PendingList:
        """The pending list of a temporary queue: the store never hears of it. Raises: see `route`."""
        return self._add_queue(destination, owner, lambda: next(self._unstored_ids))

    def _add_queue(self, destination: str, owner: str, take_id: Callable[[], int]) -> PendingList:
        if 0 < self._queues_max <= len(self.queues):
            raise FlowControlError(
                f"there are {len(self.queues)} queues, which is the limit (broker.queues_max)"
            )
        account = self._accounts.of(owner)
        size = _list_bytes(destination)
        account.check_count(Counted.QUEUES)
        account.check(Held.QUEUES, size)
        made = self.make_queue(destination, take_id(), 0)
        self._charge(made, account, Counted.QUEUES, size)
        return made

    def restore_queue(self, destination: str, list_id: int, messages: int) -> None:
        """Make the list of a queue that was there before the start; nobody knows whose it is."""
        made = self.make_queue(destination, list_id, messages)
        self._charge(made, self._accounts.gateway, Counted.QUEUES, _list_bytes(destination))

    def make_queue(self, destination: str, list_id: int, messages: int) -> PendingList:
        """The pending list of a queue in which so many *messages* wait."""
        cursor = self._make_cursor(destination, list_id, messages)
        made = self.queues[destination] = PendingList(self._flow, list_id, destination, cursor)
        if not names.is_temporary(destination):
            self._queue_names.add(destination)
            name = names.name_of(destination)
            for consumer, filter_name in self._queue_watchers.items():
                if names.matches(filter_name, name) and _may_take(consumer, destination):
                    made.attach(consumer)
        return made

    def remove_temporary(self, destination: str) -> None:
        """Forget a temporary destination and everything in it."""
        self.routes.pop(destination, None)
        made = self.queues.pop(destination, None)
        if made is not None:
            self._remove_list(made)

    def watch_queues(self, filter_name: str, consumer: Consumer) -> None:
        """Attach *consumer* to every queue that the filter covers and it may have, now and later."""
        self._queue_watchers[consumer] = filter_name
        self.rewatch_queues(filter_name, consumer)

    def rewatch_queues(self, filter_name: str, consumer: Consumer) -> None:
        """What *consumer* may have is not what it was."""
        self._flow.walks.begin(self._attach(consumer, self._queue_names.match(filter_name)))

    def _attach(self, consumer: Consumer, destinations: Sequence[str]) -> Walk:
        """One step after the other, as far as it still watches then."""
        for number, destination in enumerate(destinations, 1):
            pending_list = self.queues.get(destination)
            if pending_list is not None and consumer in self._queue_watchers:
                wanted = _may_take(consumer, destination)
                is_attached = pending_list in consumer.lists
                if wanted and not is_attached:
                    pending_list.attach(consumer)
                    self._flow.mark_if_pending(pending_list)
                elif is_attached and not wanted:
                    pending_list.detach(consumer)
            if not number % STEP_LISTS:
                yield

    def unwatch_queues(self, consumer: Consumer) -> None:
        """Nothing more is given to *consumer*; it leaves its queues one by one."""
        if self._queue_watchers.pop(consumer, None) is not None:
            consumer.is_over = True
            self._flow.walks.begin(self._detach(consumer))

    def _detach(self, consumer: Consumer) -> Walk:
        for number, pending_list in enumerate(list(consumer.lists), 1):
            pending_list.detach(consumer)
            if not number % STEP_LISTS:
                yield

    def _make_cursor(self, destination: str, list_id: int, messages: int) -> PendingCursor:
        store, policy, name = self._store, self.policy(destination), ""
        is_stored = list_id > 0
        if not is_stored:
            name = policy.subscriber_cursor
        elif names.is_topic(destination):
            name = policy.durable_cursor
        factory = self._cursors[name or policy.cursor]
        if factory.needs_store and not is_stored:
            factory = self._cursors[CURSOR_UNSTORED_DEFAULT]

        async def read_page(after: int, limit: int, bytes_max: int) -> Sequence[StoredMessage]:
            return await store.page_in(list_id, after, limit, bytes_max)

        return factory.create(
            CursorContext(
                destination=destination,
                read_page=read_page if is_stored else None,
                recovered_count=messages,
                memory_limit_bytes=policy.memory_limit,
                page_count=policy.page_count,
                temporary_directory=self._temporary_directory,
                temporary_limit_bytes=policy.temporary_limit,
                shared_memory=(
                    self._accounts.stored_memory
                    if factory.needs_store
                    else self._accounts.unstored_memory
                ),
                temporary_space=self._accounts.temporary,
            )
        )

    # --- subscriptions -------------------------------------------------------------------------

    def add_subscription(
        self, client: Subscriber, request: SubscribeRequest, *, is_stored: bool, durable: bool
    ) -> PendingList:
        """A new topic subscription with a list of its own."""
        account = self._accounts.of(client.principal)
        account.check_count(Counted.SUBSCRIPTIONS)
        account.check(Held.SUBSCRIPTIONS, _list_bytes(request.destination, request.selector))
        list_id = self._writer.take_list_id() if is_stored else next(self._unstored_ids)
        made = subscription_of(list_id, client, request, durable=durable)
        once = client.rules.delivers_once
        if not is_stored:
            return self._make_list(made, 0, once=once)
        self._writer.add_operation(PutSubscription(made))
        return self.restore_subscription(made, 0, once=once)

    def _make_list(self, wanted: Subscription, messages: int, *, once: bool) -> PendingList:
        cursor = self._make_cursor(wanted.filter, wanted.pending_list, messages)
        made = PendingList(
            self._flow,
            wanted.pending_list,
            wanted.filter,
            cursor,
            qos=wanted.qos,
            no_local=wanted.no_local,
            client_key=key_of(wanted),
            overlap_key=_overlap_key(wanted, once=once),
            matches=_selector_of(wanted),
        )
        self._router.add_filter(made)
        size = _list_bytes(wanted.filter, wanted.selector)
        self._charge(made, self._accounts.of(wanted.owner), Counted.SUBSCRIPTIONS, size)
        return made

    def restore_subscription(
        self, subscription: Subscription, messages: int, *, once: bool
    ) -> PendingList:
        """Make the list of a stored *subscription*, in which so many *messages* wait.

        Args: once: see :attr:`tidegate.spi.ClientRules.delivers_once`.
        """
        made = self._make_list(subscription, messages, once=once)
        made.subscription = subscription
        if subscription.durable or subscription.share_group:
            policy = self.policy(subscription.filter)
            self._limits.set_limit(made, policy.subscription_limit, policy.subscription_overflow)
        if subscription.share_group:
            self.shared[group_of(subscription)] = made
        elif subscription.durable:
            self.durable[made.client_key, subscription.name] = made
            self._by_client.setdefault(made.client_key, {})[subscription.name] = made
        return made

    def update_subscription(
        self, pending_list: PendingList, client: Subscriber, request: SubscribeRequest
    ) -> None:
        """The same subscription with other options; its list stays."""
        old = pending_list.subscription
        if old is None:
            new = subscription_of(pending_list.id, client, request, durable=False)
        else:
            new = msgspec.structs.replace(
                old, qos=request.qos, no_local=request.no_local, options=request.options
            )
            if new == old:
                return
            pending_list.subscription = new
            self._writer.add_operation(PutSubscription(new))
            # What it was stored until now may not have been handed out.
            pending_list.is_lowered = new.qos == 0 and pending_list.stores
        pending_list.qos = new.qos
        pending_list.no_local = new.no_local
        pending_list.overlap_key = _overlap_key(new, once=client.rules.delivers_once)
        self._route_anew(pending_list)

    def remove_subscription(self, pending_list: PendingList) -> None:
        """The subscription ends with all that is pending in it."""
        if pending_list.is_removed:
            return
        self._router.remove_filter(pending_list)
        self._remove_list(pending_list)
        subscription = pending_list.subscription
        if subscription is not None:
            key = (pending_list.client_key, subscription.name)
            if self.durable.get(key) is pending_list:
                del self.durable[key]
                lists = self._by_client[pending_list.client_key]
                del lists[subscription.name]
                if not lists:
                    del self._by_client[pending_list.client_key]
            if subscription.share_group:
                group = group_of(subscription)
                if self.shared.get(group) is pending_list:
                    del self.shared[group]
            self._writer.add_operation(RemoveSubscription(pending_list.id))

    def lists_of(self, client_key: str) -> dict[str, PendingList]:
        """The durable subscriptions of one client, by name."""
        return self._by_client.get(client_key, {})

    def add_member(self, subscription: Subscription, session: object) -> None:
        """A stored session has this shared subscription, also while its client is away."""
        group = group_of(subscription)
        self._members.setdefault(group, set()).add(session)
        self.update_shared(group)

    def remove_member(self, subscription: Subscription, session: object) -> None:
        """It has it no more."""
        group = group_of(subscription)
        members = self._members.get(group)
        if members is not None:
            members.discard(session)
            if not members:
                del self._members[group]
        self.update_shared(group)

    def update_shared(self, group: Group) -> None:
        """A shared subscription lives as long as somebody is served by it or a stored session has
        it, and outlives the gateway in the second case."""
        pending_list = self.shared.get(group)
        if pending_list is None:
            return
        durable = group in self._members
        if not durable and not pending_list.consumers:
            self.remove_subscription(pending_list)
            return
        old = pending_list.subscription
        assert old is not None, "every shared subscription is stored"
        if old.durable != durable:
            pending_list.subscription = msgspec.structs.replace(old, durable=durable)
            self._writer.add_operation(PutSubscription(pending_list.subscription))

    def _remove_list(self, pending_list: PendingList) -> None:
        """The list takes and hands out nothing any more; its cursor is closed."""
        pending_list.end()
        self._discharge(pending_list)
        self._flow.forget_list(pending_list)
        # Never cancelled: what it spooled must go.
        name = f"close cursor {pending_list.destination}"
        self._tasks.spawn(pending_list.cursor.close(), name, is_closer=True)


def _may_take(consumer: Consumer, destination: str) -> bool:
    return consumer.allows is None or consumer.allows(destination)


def _list_bytes(destination: str, selector: str = "") -> int:
    """What a list takes in memory with its place in the trees of names, without any messages."""
    levels = destination.count(".") + 1
    size = LIST_BYTES + 2 * text_bytes(destination) + LEVEL_BYTES * levels
    return size + SELECTOR_FACTOR * len(selector)


def subscription_of(
    list_id: int, client: Subscriber, request: SubscribeRequest, *, durable: bool
) -> Subscription:
    """What the store keeps of *request*."""
    return Subscription(
        pending_list=list_id,
        client_id="" if request.share_group else client.client_id,
        name=request.durable_name or request.key,
        filter=request.destination,
        durable=durable,
        qos=request.qos,
        no_local=request.no_local,
        protocol=client.protocol,
        share_group=request.share_group,
        options=request.options,
        selector=request.selector,
        owner=client.principal,
    )


def group_of(subscription: Subscription) -> Group:
    """What tells a shared subscription from others: those of two principals are two."""
    return (subscription.owner, subscription.share_group, subscription.filter)


def _selector_of(subscription: Subscription) -> Matcher | None:
    """Its selector; one that cannot be read any more selects everything: nothing may be lost."""
    try:
        return compile_selector(subscription.selector)
    except RequestError as error:
        _log.error("subscription=%r selector=ignored: %s", subscription.name, error)
        return None


def _overlap_key(subscription: Subscription, *, once: bool) -> tuple[str, str] | None:
    """Subscriptions with the same key that overlap deliver a message once.

    One that does not want the client's own messages must not stand for one that does.
    """
    if not once or not subscription.client_id or subscription.share_group:
        return None
    return ("no local" if subscription.no_local else "", key_of(subscription))
