"""SUBSCRIBE and UNSUBSCRIBE of one session, and which of its subscriptions a message is for."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final, final

from tidegate.spi import (
    BrokerConnection,
    GatewayError,
    Message,
    RetainHandling,
    SubscribeRequest,
    Subscription,
    names,
)
from tidegate_protocols.mqtt._answers import Answers
from tidegate_protocols.mqtt._reasons import RefusedError, subscribe_reason
from tidegate_protocols.mqtt.codec.codes import ReasonCode
from tidegate_protocols.mqtt.codec.packets import Subscribe, TopicRequest, Unsubscribe
from tidegate_protocols.mqtt.codec.property_blocks import encode_subscription_identifiers
from tidegate_protocols.mqtt.messages.names import FilterTarget, NameCache, target_of
from tidegate_protocols.mqtt.messages.outgoing import Outgoing
from tidegate_protocols.mqtt.messages.window import NO_LOCAL_ID_OFFSET, OutgoingSubscription

logger = logging.getLogger("tidegate.mqtt")

#: Highest QoS of a subscription to a queue. When a consumer is gone, a message it was sent but did not
#: answer goes to another one, of any protocol, so "exactly once" cannot be promised.
#: A lower QoS may always be granted (MQTT 5.0 section 3.9.3).
QUEUE_QOS_MAX: Final = 1

#: Filters of one packet that are carried out before the clock is checked: each takes from 20
#: microseconds to a millisecond.
FILTERS_IN_STEP: Final = 8

# Names in Subscription.options, which the store keeps for us.
_IDENTIFIER: Final = "identifier"
_RETAIN_AS_PUBLISHED: Final = "retain-as-published"
_ID_OFFSET: Final = "id-offset"  # unless implied by no local


@final
class SubscriptionIdentifiers:
    """Which Subscription Identifiers go with a message. has_any: False: the session has none.

    The broker delivers one copy to a session with overlapping subscriptions, and one more for those
    of them that take no local messages, as these get fewer. A copy carries the identifiers of all
    subscriptions it is for [MQTT-3.3.4-4]; the answer is cached for each destination.
    """

    __slots__ = ("_caches", "_subscriptions", "has_any")

    def __init__(self, subscriptions: dict[str, OutgoingSubscription]) -> None:
        self._subscriptions = subscriptions
        # Without and with no local; created with the first identifier.
        self._caches: tuple[NameCache[bytes], NameCache[bytes]] | None = None
        self.has_any = False

    def changed(self) -> None:
        """The subscriptions have changed."""
        self._caches = None
        self.has_any = any(found.identifier for found in self._subscriptions.values())

    def added(self, identifier: int) -> None:
        """As :meth:`changed`, when one subscription was added or replaced."""
        self._caches = None
        self.has_any = self.has_any or identifier > 0

    def of(self, subscription: OutgoingSubscription, message: Message) -> bytes:
        """Those of all subscriptions that *message* is for, as properties; b"" for none.

        A retained message is sent for the one subscription that was just made, and a message of a
        queue or a group for that one alone.
        """
        if message.retained or not subscription.is_own:
            return _field((subscription,))
        if self._caches is None:
            self._caches = (
                NameCache(partial(self._match, False)),
                NameCache(partial(self._match, True)),
            )
        return self._caches[subscription.no_local][message.destination]

    def _match(self, no_local: bool, destination: str) -> bytes:
        name = names.name_of(destination)
        return _field(
            [
                found
                for found in self._subscriptions.values()
                if found.is_own
                and found.no_local is no_local
                and names.matches(found.filter_name, name)
            ]
        )


def _field(subscriptions: Sequence[OutgoingSubscription]) -> bytes:
    return encode_subscription_identifiers(
        [found.identifier for found in subscriptions if found.identifier]
    )


@final
class Subscriptions:
    """The subscriptions of one connected session.

    Args:
        is_stored: they belong to a session in the store and come back with it.
        subscriptions_max: at a time.
        prefetch_count: messages that the broker may deliver ahead.

    Attributes:
        by_key: all of them, by topic filter.
        identifiers: for the sending side.
    """

    __slots__ = (
        "_answers",
        "_client_id",
        "_connection",
        "_is_stored",
        "_prefetch_count",
        "_refused",
        "_subscriptions_max",
        "by_key",
        "identifiers",
    )

    def __init__(
        self,
        connection: BrokerConnection,
        answers: Answers,
        client_id: str,
        *,
        is_stored: bool,
        subscriptions_max: int,
        prefetch_count: int,
    ) -> None:
        self._connection = connection
        self._answers = answers
        self._client_id = client_id
        self._is_stored = is_stored
        self._subscriptions_max = subscriptions_max
        self._prefetch_count = prefetch_count
        self._refused: set[str] = set()
        self.by_key: dict[str, OutgoingSubscription] = {}
        self.identifiers = SubscriptionIdentifiers(self.by_key)

    def restore(self, stored: Sequence[Subscription], refused: Sequence[Subscription]) -> None:
        """Resume the subscriptions that came back with the session.

        Args: refused: those that still exist but did not come back.
        """
        self._refused.update(found.name for found in refused)
        for found in stored:
            is_own = not found.share_group and names.is_topic(found.filter)
            identifier = found.options.get(_IDENTIFIER, "")
            subscription = self.by_key[found.name] = OutgoingSubscription(
                found.name,
                found.qos,
                is_own=is_own,
                is_stored=self._is_stored,
                filter_name=names.name_of(found.filter),
                no_local=found.no_local,
                retain_as_published=_RETAIN_AS_PUBLISHED in found.options,
                identifier=int(identifier) if identifier.isdecimal() else 0,
            )
            id_offset = found.options.get(_ID_OFFSET, "")
            if id_offset.isdecimal():
                subscription.id_offset = int(id_offset)
        self.identifiers.changed()

    # ------------------------------------------------------------------------------ subscribe

    def subscribe(self, packet: Subscribe) -> Iterator[None]:
        """Carry out a SUBSCRIBE, in steps. Raises: FrameTooLargeError (the answer)."""
        identifiers = packet.properties.subscription_identifiers
        identifier = identifiers[0] if identifiers else 0
        codes: list[int] = []
        problem = ""
        for request in packet.requests:  # each as if it came alone [MQTT-3.8.4-5]
            if codes and not len(codes) % FILTERS_IN_STEP:
                yield
            try:
                codes.append(self._subscribe_one(request, identifier))
            except GatewayError as error:
                codes.append(subscribe_reason(error))
                if not problem:  # a request for thousands does not log thousands of lines
                    problem = error.for_client
                    logger.info(
                        "subscription refused client=%s filter=%s reason=%s",
                        self._client_id,
                        request.topic_filter,
                        error,
                    )
        self.identifiers.changed()
        # One code for each [MQTT-3.8.4-6], when they are durable.
        self._connection.synchronize(self._answers.suback(packet.packet_id, codes, problem))

    def _subscribe_one(self, request: TopicRequest, identifier: int) -> int:
        """Returns: the granted QoS. Raises: GatewayError."""
        key = request.topic_filter
        try:
            target = target_of(key)
        except ValueError as error:
            raise RefusedError(ReasonCode.TOPIC_FILTER_INVALID, str(error)) from error
        before = self.by_key.get(key)
        if before is None and len(self.by_key) >= self._subscriptions_max:
            raise RefusedError(
                ReasonCode.QUOTA_EXCEEDED,
                f"this client has reached its limit of {self._subscriptions_max} "
                "subscriptions (subscriptions_max)",
            )
        qos = min(request.qos, QUEUE_QOS_MAX) if target.is_queue else request.qos
        subscription = before
        if subscription is None:
            subscription = OutgoingSubscription(
                key,
                qos,
                is_own=target.is_own,
                is_stored=self._is_stored,
                filter_name=names.name_of(target.destination),
                no_local=request.no_local,
            )
            self.by_key[key] = subscription  # deliveries may come before we return
        settings = _settings(subscription)
        _apply(subscription, (qos, request.no_local, request.retain_as_published, identifier))
        self.identifiers.added(identifier)
        try:
            self._connection.subscribe(self._request(request, target, subscription))
        except GatewayError:
            _apply(subscription, settings)
            if before is None:
                del self.by_key[key]
            raise
        return qos

    def _request(
        self, request: TopicRequest, target: FilterTarget, subscription: OutgoingSubscription
    ) -> SubscribeRequest:
        options: dict[str, str] = {}
        qos = subscription.qos
        if subscription.identifier:
            options[_IDENTIFIER] = str(subscription.identifier)
        # What is in flight keeps its packet ids, even when no local has changed.
        if target.is_own and subscription.id_offset != NO_LOCAL_ID_OFFSET * request.no_local:
            options[_ID_OFFSET] = str(subscription.id_offset)
        if request.retain_as_published:
            options[_RETAIN_AS_PUBLISHED] = "1"
        handling = RetainHandling(request.retain_handling)  # 0 before 5.0 [MQTT-3.8.4-3]
        return SubscribeRequest(
            key=request.topic_filter,
            destination=target.destination,
            acknowledge=qos > 0,
            durable_name=request.topic_filter if self._is_stored else "",
            qos=qos,
            no_local=request.no_local,
            # A group is sent no retained messages: they are not news to its other members
            # (MQTT 5.0 section 4.8.2).
            retain_handling=RetainHandling.DO_NOT_SEND if target.share_group else handling,
            share_group=target.share_group,
            prefetch_count=self._prefetch_count,
            options=options,
        )

    # ---------------------------------------------------------------------------- unsubscribe

    def unsubscribe(self, packet: Unsubscribe, outgoing: Outgoing) -> Iterator[None]:
        """Carry out an UNSUBSCRIBE, in steps. Raises: FrameTooLargeError (the answer)."""
        codes: list[int] = []
        for topic_filter in packet.topic_filters:  # compared as written [MQTT-3.10.4-1]
            if codes and not len(codes) % FILTERS_IN_STEP:
                yield
            subscription = self.by_key.pop(topic_filter, None)
            if subscription is not None:
                outgoing.remove(subscription)
            elif topic_filter not in self._refused:
                codes.append(ReasonCode.NO_SUBSCRIPTION_EXISTED)
                continue
            self._refused.discard(topic_filter)
            self._connection.unsubscribe(topic_filter, forget=True)  # [MQTT-3.10.4-2]
            codes.append(ReasonCode.SUCCESS)
        self.identifiers.changed()
        # Even if none of them existed [MQTT-3.10.4-5].
        self._connection.synchronize(self._answers.unsuback(packet.packet_id, codes))


def _settings(subscription: OutgoingSubscription) -> tuple[int, bool, bool, int]:
    return (
        subscription.qos,
        subscription.no_local,
        subscription.retain_as_published,
        subscription.identifier,
    )


def _apply(subscription: OutgoingSubscription, settings: tuple[int, bool, bool, int]) -> None:
    (
        subscription.qos,
        subscription.no_local,
        subscription.retain_as_published,
        subscription.identifier,
    ) = settings
