"""All pending lists of the gateway, of queues and of subscriptions, and their routes.

The subscriptions are here; the queues are in :mod:`tidegate.broker.queues`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final, Protocol, TypeAlias

import msgspec

from tidegate.broker.limits.accounts import Counted
from tidegate.broker.list_making import list_bytes
from tidegate.broker.lists.pending_list import PendingList
from tidegate.broker.lists.selector import Matcher, compile_selector
from tidegate.broker.owner import key_of
from tidegate.broker.queues import NOTHING, Queues
from tidegate.broker.route.router import Route
from tidegate.spi import (
    ClientRules,
    Held,
    PendingCount,
    PutSubscription,
    RequestError,
    SubscribeRequest,
    Subscription,
    names,
)
from tidegate.spi.events import Event

_log = logging.getLogger("tidegate.broker")

#: Why most subscriptions end.
UNSUBSCRIBED: Final = "unsubscribed"

#: Identifies a shared subscription: owner, share group, filter.
Group: TypeAlias = tuple[str, str, str]


class Subscriber(Protocol):
    """What a subscription needs of its connection."""

    protocol: str
    principal: str
    client_id: str
    key: str
    rules: ClientRules


class Destinations(Queues):
    """See the module. Args: see :class:`tidegate.broker.list_making.Lists`.

    Attributes:
        durable: durable subscriptions, by the client's key and name.
        shared: shared ones, by owner, share group and filter, see :func:`group_of`.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.durable: dict[tuple[str, str], PendingList] = {}
        self.shared: dict[Group, PendingList] = {}
        self._by_client: dict[str, dict[str, PendingList]] = {}
        self._attended: set[PendingList] = set()  # durable subscriptions
        self._members: dict[Group, set[object]] = {}  # the sessions that have it, even while away

    def all_lists(self) -> Iterator[PendingList]:
        """Those that the store knows, and temporary queues."""
        yield from self.queues.values()
        yield from self.durable.values()
        yield from self.shared.values()

    @staticmethod
    def has_limit(pending_list: PendingList) -> bool:
        """The list has the limit of its policy, if there is one."""
        subscription = pending_list.subscription
        if subscription is None:
            return pending_list.is_queue and pending_list.is_stored
        return subscription.durable or bool(subscription.share_group)

    def check_levels(self, destination: str) -> None:
        """Raises: RequestError: a name or filter has too many levels."""
        limit = self._config.levels_max
        if destination.count(".") >= limit:
            raise RequestError(
                f"{destination[:40]!r}… has more than {limit} levels (broker.levels_max)"
            )

    # --- routes --------------------------------------------------------------------------------

    def route(self, destination: str, owner: str = "") -> Route:
        """The route of a valid *destination*, known from now on; a missing queue is made.

        Args: owner: the principal charged for the queue; "": the gateway itself.
        Raises: RequestError, FlowControlError, for a queue that may not be made.
        """
        if names.is_queue(destination):
            self.queue_list(destination, owner)
        return self._router.resolve(destination)

    def route_once(self, topic: str) -> Route:
        """The route of a topic that only the gateway publishes to; it is not cached."""
        return self._router.topic_route(topic)

    def leave_router(self, pending_list: PendingList) -> None:
        """The list gets no message published from now on."""
        self._router.remove_filter(pending_list)

    def lower(self, pending_list: PendingList, is_lowered: bool) -> None:
        """Begin or end storing for a QoS 0 subscription; see PendingList.stores."""
        pending_list.is_lowered = is_lowered
        if not pending_list.is_removed:
            self._route_anew(pending_list)

    def _route_anew(self, pending_list: PendingList) -> None:
        self._router.remove_filter(pending_list)
        self._router.add_filter(pending_list)

    # --- subscriptions -------------------------------------------------------------------------

    def add_subscription(
        self, client: Subscriber, request: SubscribeRequest, *, is_stored: bool, durable: bool
    ) -> PendingList:
        """A new topic subscription with its own list."""
        account = self._accounts.of(client.principal)
        account.check_count(Counted.SUBSCRIPTIONS)
        account.check(Held.SUBSCRIPTIONS, list_bytes(request.destination, request.selector))
        list_id = self._writer.take_list_id() if is_stored else next(self._unstored_ids)
        made = subscription_of(list_id, client, request, durable=durable)
        once = client.rules.delivers_once
        if not is_stored:
            return self._make_list(made, 0, once=once)
        self._writer.add_operation(PutSubscription(made))
        self._tell(Event.SUBSCRIPTION_MADE, made, "made")
        return self.restore_subscription(made, NOTHING, once=once)

    def _tell(self, event: Event, subscription: Subscription, what: str) -> None:
        if not (subscription.durable or subscription.share_group):
            return
        self.tell(
            event,
            _log,
            "subscription=%r filter=%r client=%r principal=%r %s",
            subscription.share_group or subscription.name,
            subscription.filter,
            subscription.client_id,
            subscription.owner,
            what,
        )

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
        size = list_bytes(wanted.filter, wanted.selector)
        self._charge(made, self._accounts.of(wanted.owner), Counted.SUBSCRIPTIONS, size)
        return made

    def restore_subscription(
        self, subscription: Subscription, pending: PendingCount, *, once: bool
    ) -> PendingList:
        """Make the list of a stored *subscription*, for which the store has *pending*.

        Args: once: see :attr:`tidegate.spi.ClientRules.delivers_once`.
        """
        made = self._make_list(subscription, pending.messages, once=once)
        made.subscription = subscription
        if subscription.durable or subscription.share_group:
            self._limits.set_limit(made, self.policy(subscription.filter), pending)
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
            # What was stored for it so far may not have been handed out.
            pending_list.is_lowered = new.qos == 0 and pending_list.stores
        pending_list.qos = new.qos
        pending_list.no_local = new.no_local
        pending_list.overlap_key = _overlap_key(new, once=client.rules.delivers_once)
        self._route_anew(pending_list)

    def remove_subscription(
        self, pending_list: PendingList, why: str = UNSUBSCRIBED, in_flight: int = 0
    ) -> None:
        """The subscription ends with all that is pending in it.

        Args: why: for the rows of these; in_flight: how many were delivered and did not come back.
        """
        if pending_list.is_removed:
            return
        messages = pending_list.cursor.size + in_flight
        self._router.remove_filter(pending_list)
        self._remove_list(pending_list)
        subscription = pending_list.subscription
        if subscription is not None:
            key = (pending_list.client_key, subscription.name)
            if self.durable.get(key) is pending_list:
                del self.durable[key]
                self._attended.discard(pending_list)
                lists = self._by_client[pending_list.client_key]
                del lists[subscription.name]
                if not lists:
                    del self._by_client[pending_list.client_key]
            if subscription.share_group:
                group = group_of(subscription)
                if self.shared.get(group) is pending_list:
                    del self.shared[group]
            self._tell(Event.SUBSCRIPTION_ENDED, subscription, f"ended: {why}")
            self._ended.end_subscription(subscription, why, messages)

    def attend(self, pending_list: PendingList) -> None:
        """The client of a durable subscription is connected."""
        self._attended.add(pending_list)

    def leave(self, pending_list: PendingList) -> None:
        """The client is away."""
        self._attended.discard(pending_list)

    def count_unattended(self) -> int:
        """Durable subscriptions whose client is away."""
        return len(self.durable) - len(self._attended)

    def lists_of(self, client_key: str) -> dict[str, PendingList]:
        """The durable subscriptions of one client, by name."""
        return self._by_client.get(client_key, {})

    def is_member_of(self, subscription: Subscription) -> bool:
        """Whether stored sessions have this shared subscription."""
        return group_of(subscription) in self._members

    def add_member(self, subscription: Subscription, session: object) -> None:
        """A stored session has this shared subscription, even while its client is away."""
        group = group_of(subscription)
        self._members.setdefault(group, set()).add(session)
        self.update_shared(group)

    def remove_member(self, subscription: Subscription, session: object) -> None:
        """It no longer has it."""
        group = group_of(subscription)
        members = self._members.get(group)
        if members is not None:
            members.discard(session)
            if not members:
                del self._members[group]
        self.update_shared(group)

    def update_shared(self, group: Group) -> None:
        """A shared subscription lives as long as it serves somebody or a stored session has it, and
        outlives the gateway in the second case."""
        pending_list = self.shared.get(group)
        if pending_list is None:
            return
        durable = group in self._members
        if not durable and not pending_list.consumers:
            self.remove_subscription(pending_list, "its last member is gone")
            return
        old = pending_list.subscription
        assert old is not None, "every shared subscription is stored"
        if old.durable != durable:
            pending_list.subscription = msgspec.structs.replace(old, durable=durable)
            self._writer.add_operation(PutSubscription(pending_list.subscription))


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
    """Tells a shared subscription from others: those of two principals are two."""
    return (subscription.owner, subscription.share_group, subscription.filter)


def _selector_of(subscription: Subscription) -> Matcher | None:
    """Its selector; one that can no longer be parsed selects everything: nothing may be lost."""
    try:
        return compile_selector(subscription.selector)
    except RequestError as error:
        _log.error("subscription=%r selector=ignored: %s", subscription.name, error)
        return None


def _overlap_key(subscription: Subscription, *, once: bool) -> tuple[str, str] | None:
    """Subscriptions with the same key that overlap deliver a message once.

    One that does not want the client's own messages must not stand in for one that does.
    """
    if not once or not subscription.client_id or subscription.share_group:
        return None
    return ("no local" if subscription.no_local else "", key_of(subscription))
