"""How what a client subscribes to becomes a consumer and gets its list: found, made, or kept.

What a connection then does with its consumers is in :mod:`tidegate.broker.connection.serving`.
"""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from tidegate.broker.connection.client import Client
from tidegate.broker.destinations import subscription_of
from tidegate.broker.lists.pending_list import Consumer
from tidegate.broker.lists.selector import compile_selector
from tidegate.spi import (
    AccessError,
    FlowControlError,
    RequestError,
    SubscribeRequest,
    Subscription,
    names,
)

_log = logging.getLogger("tidegate.broker.connection")

#: The most an automatically acknowledged consumer gets in one turn when it states no prefetch: the
#: socket's own flow control acts only between turns.
AUTOMATIC_TURN_COUNT: Final = 1000


# --- a new one ---------------------------------------------------------------------------------


def subscribe(client: Client, request: SubscribeRequest) -> tuple[Consumer, bool]:
    """Make the consumer of a checked request, on its list.

    Returns: also whether a subscription with its own messages was resumed.
    Raises: RequestError, FlowControlError.
    """
    if names.is_queue(request.destination):
        consumer, taken_up = _subscribe_queue(client, request), False
    else:
        consumer, taken_up = _subscribe_topic(client, request)
    _attach_session(client, request)
    return consumer, taken_up


def _subscribe_queue(client: Client, request: SubscribeRequest) -> Consumer:
    destinations = client.parts.destinations
    consumer = _make_consumer(client, request)
    if names.is_filter(request.destination):
        destinations.watch_queues(names.name_of(request.destination), consumer)
    else:
        destinations.queue_list(request.destination, client.principal).attach(consumer)
    return consumer


def _subscribe_topic(client: Client, request: SubscribeRequest) -> tuple[Consumer, bool]:
    destinations = client.parts.destinations
    consumer = _make_consumer(client, request)
    if request.share_group:
        return consumer, _subscribe_shared(client, request, consumer)
    durable = bool(request.durable_name and client.client_id)
    if durable:
        found = destinations.durable.get((client.key, request.durable_name))
        if found is not None:
            if found.consumers:
                raise RequestError(
                    f"durable subscription {request.durable_name!r} of client"
                    f" {client.client_id!r} is in use by another connection"
                )
            if found.subscription is not None and (
                (found.subscription.filter, found.subscription.selector)
                == (request.destination, request.selector)
            ):
                destinations.update_subscription(found, client, request)
                found.attach(consumer)
                destinations.attend(found)
                return consumer, True
            # Another filter or selector under its name: the old one ends (JMS 2.0, 8.3.3).
            destinations.remove_subscription(
                found, "its name is now used with another filter or selector"
            )
    is_stored = (durable or consumer.acknowledge) and not names.is_temporary(request.destination)
    pending_list = destinations.add_subscription(
        client, request, is_stored=is_stored, durable=durable
    )
    pending_list.attach(consumer)
    if durable:
        destinations.attend(pending_list)
    return consumer, False


def _subscribe_shared(client: Client, request: SubscribeRequest, consumer: Consumer) -> bool:
    """The group has one list for all its members, whatever QoS each of them wants."""
    destinations = client.parts.destinations
    group = (client.principal, request.share_group, request.destination)
    found = destinations.shared.get(group)
    taken_up = found is not None
    if found is None:
        whole = msgspec.structs.replace(request, qos=2, no_local=False, options={})
        found = destinations.add_subscription(client, whole, is_stored=True, durable=False)
    elif found.matches is not consumer.matches:
        raise RequestError(
            f"share group {request.share_group!r} uses another selector for "
            f"{request.destination!r}; all members need the same"
        )
    found.attach(consumer)
    return taken_up


def _make_consumer(client: Client, request: SubscribeRequest) -> Consumer:
    parts, acknowledge = client.parts, _acknowledges(request)
    policy = parts.destinations.policy(request.destination)
    default = policy.prefetch_count if acknowledge else AUTOMATIC_TURN_COUNT
    return Consumer(
        client,
        request.key,
        request.destination,
        subscription_name=request.durable_name or request.key,
        acknowledge=acknowledge,
        prefetch_count=request.prefetch_count or default,
        prefetch_bytes=request.prefetch_bytes or policy.prefetch_bytes,
        matches=compile_selector(request.selector),
        allows=parts.access.allows(client, request.destination),
        acknowledges_all=client.rules.acknowledges_unstored,
    )


def _acknowledges(request: SubscribeRequest) -> bool:
    """The client acknowledges what it gets, if it wants to; not from a topic with QoS 0."""
    return request.acknowledge and (request.qos > 0 or names.is_queue(request.destination))


def _attach_session(client: Client, request: SubscribeRequest) -> None:
    """A stored session resumes a queue or shared subscription when it comes back."""
    is_shared = request.share_group or names.is_queue(request.destination)
    session = client.session
    if request.durable_name and is_shared and session is not None:
        kept = subscription_of(0, client, request, durable=True)
        client.parts.sessions.attach(session, kept)


# --- one that is repeated ----------------------------------------------------------------------


def is_kept(client: Client, consumer: Consumer, request: SubscribeRequest) -> bool:
    """A repeated subscription keeps its list, what is pending and what is in flight [MQTT-3.8.4-3];
    only one that begins or ceases to be stored starts over."""
    matches = compile_selector(request.selector)
    if names.is_queue(consumer.destination):
        return consumer.matches is matches
    if request.share_group:
        return True
    pending_list = consumer.first_list
    if pending_list.matches is not matches:
        return False
    is_durable = bool(request.durable_name and client.client_id)
    subscription = pending_list.subscription
    if subscription is None:
        return not is_durable and not _acknowledges(request)
    return subscription.durable == is_durable


def update(client: Client, consumer: Consumer, request: SubscribeRequest) -> None:
    """Go on with *consumer* as *request*, which repeats its subscription, says."""
    fresh = _make_consumer(client, request)
    consumer.acknowledge = fresh.acknowledge
    consumer.acknowledges_all = fresh.acknowledges_all
    consumer.prefetch_count = fresh.prefetch_count
    consumer.prefetch_bytes = fresh.prefetch_bytes
    consumer.allows = fresh.allows
    if names.is_topic(consumer.destination) and not request.share_group:
        client.parts.destinations.update_subscription(consumer.first_list, client, request)
    _attach_session(client, request)


# --- one of a session that comes back ----------------------------------------------------------


def request_of(client: Client, subscription: Subscription) -> SubscribeRequest:
    """The request for a subscription of the session, without retained messages."""
    return SubscribeRequest(
        key=subscription.name,
        destination=subscription.filter,
        durable_name=subscription.name,
        acknowledge=subscription.qos > 0,
        qos=subscription.qos,
        share_group=subscription.share_group,
        prefetch_count=client.prefetch_count,
        options=subscription.options,
        selector=subscription.selector,
    )


def may_resume(client: Client, request: SubscribeRequest) -> bool:
    """Tell whether the client may still have it; if not, the log says why. This makes a missing queue."""
    parts = client.parts
    try:
        parts.access.check_subscribe(client, request)
        if is_one_queue(request):  # it may have been deleted meanwhile
            parts.destinations.check_creatable(request.destination)
            parts.destinations.queue_list(request.destination, client.principal)
    except (AccessError, RequestError, FlowControlError) as error:
        _log.warning(
            "peer=%s client=%r subscription not resumed: %s",
            client.address,
            client.client_id,
            error,
        )
        return False
    return True


def resume(client: Client, subscription: Subscription, request: SubscribeRequest) -> Consumer:
    """Make the consumer of a permitted subscription, on its list."""
    if names.is_queue(subscription.filter):
        return _subscribe_queue(client, request)
    consumer = _make_consumer(client, request)
    if subscription.share_group:
        _subscribe_shared(client, request, consumer)
    else:
        destinations = client.parts.destinations
        found = destinations.lists_of(client.key)[subscription.name]
        found.attach(consumer)
        destinations.attend(found)
    return consumer


def is_one_queue(request: SubscribeRequest) -> bool:
    """It is for one queue, not for all that a filter covers."""
    return names.is_queue(request.destination) and not names.is_filter(request.destination)


def is_of_one_list(consumer: Consumer) -> bool:
    """All that it has in flight is from the one list it consumes from."""
    name, is_queue = names.name_of(consumer.destination), names.is_queue(consumer.destination)
    covers_many = is_queue and names.is_filter(name)
    return len(consumer.lists) == 1 and not (covers_many or consumer.acknowledges_all)
