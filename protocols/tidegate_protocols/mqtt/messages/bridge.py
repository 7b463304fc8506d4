"""MQTT 5.0 PUBLISH and will properties to a :class:`~tidegate.spi.Message`, and back.

The tables are in docs/mqtt.md, "Bridging". What belongs to a connection and not to the message
(topic alias, subscription identifiers, will delay) is handled by the session.
"""

from __future__ import annotations

from typing import Final

from tidegate.spi import PRIORITY_DEFAULT, LocalProtocolError, Message, names
from tidegate_protocols._user_headers import unescaped
from tidegate_protocols.mqtt.codec.properties import NO_PROPERTIES, Properties
from tidegate_protocols.mqtt.codec.property_blocks import (
    NO_PROPERTIES_BYTES,
    encode_message_properties,
    encode_publish_properties,
)
from tidegate_protocols.mqtt.messages.names import QUEUE_PREFIX, NameCache, topic_of

PROTOCOL: Final = "mqtt"

#: Longest remaining time in seconds (136 years); messages of other protocols may exceed it.
EXPIRY_INTERVAL_MAX: Final = 0xFFFF_FFFF

#: Messages whose encoded properties are cached, and the longest body of one: what one turn delivers
#: to many subscribers is encoded once. Together they bound the memory that the cache keeps alive.
BLOCKS_COUNT_MAX: Final = 64
BLOCKS_BODY_BYTES_MAX: Final = 64 * 1024

_SECOND_US: Final = 1_000_000

# User properties that the gateway adds to messages from another protocol.
_ORIGIN_PROTOCOL: Final = "origin-protocol"
_ORIGIN_DESTINATION: Final = "origin-destination"


def message_of(
    properties: Properties,
    destination: str,
    body: bytes,
    now_us: int,
    qos: int,
    retain: bool,
    client_id: str,
) -> Message:
    """The message of a PUBLISH or a will.

    Args: destination: canonical; now_us: microseconds since the epoch, from which the message
        expiry interval counts (a will's counts from its publication, MQTT 5.0 section 3.1.3.2.4);
        retain: for a topic; a queue keeps its messages anyway.
    """
    if properties is NO_PROPERTIES:
        return Message(
            destination,
            body,
            (),
            now_us,
            0,
            PRIORITY_DEFAULT,
            qos > 0,
            qos,
            retain,
            PROTOCOL,
            client_id,
        )
    expiry_interval = properties.message_expiry_interval
    response_topic = properties.response_topic
    return Message(
        destination,
        body,
        properties.user_properties,
        now_us,
        0 if expiry_interval is None else now_us + expiry_interval * _SECOND_US,
        PRIORITY_DEFAULT,
        qos > 0,
        qos,
        retain,
        PROTOCOL,
        client_id,
        "",
        properties.content_type,
        properties.correlation_data,
        REPLY_DESTINATIONS[response_topic] if response_topic else "",
        False,
        properties.payload_format_indicator,
    )


def publish_properties(
    message: Message, now_us: int, subscription_identifiers: bytes = b"", topic_alias: int = 0
) -> bytes:
    """The properties of the PUBLISH that carries *message*, with their length.

    Args:
        now_us: microseconds since the epoch; the expiry interval is what is left of it then,
            rounded up to whole seconds [MQTT-3.3.2-6].
        subscription_identifiers: as made by ``encode_subscription_identifiers``.
        topic_alias: 1 to 65535; 0: none.
    Raises: LocalProtocolError for a message from another protocol that MQTT cannot carry.
    """
    is_own = message.protocol == PROTOCOL
    expires_at = message.expires_at
    if (
        message.headers
        or message.content_type is not None
        or message.correlation_data is not None
        or message.reply_to
        or message.payload_format is not None
        or (not is_own and _has_more_to_say(message))
    ):
        block = _message_block(message, is_own)
    elif is_own:
        if not (expires_at or subscription_identifiers or topic_alias):
            return NO_PROPERTIES_BYTES
        block = b""
    else:
        block = _ORIGINS[message.protocol]
    return encode_publish_properties(
        block,
        message_expiry_interval=_seconds_left(expires_at, now_us) if expires_at else None,
        topic_alias=topic_alias,
        subscription_identifiers=subscription_identifiers,
    )


#: By the identity of the message, which no other message can have while it is in here.
_blocks: dict[int, tuple[Message, bytes]] = {}


def _message_block(message: Message, is_own: bool) -> bytes:
    """The properties of the message itself, the same for every receiver; no length."""
    known = _blocks.get(id(message))
    if known is not None:
        return known[1]
    reply_to = message.reply_to
    block = encode_message_properties(
        payload_format_indicator=message.payload_format,  # all unaltered, empty ones too
        content_type=message.content_type,
        response_topic=RESPONSE_TOPICS[reply_to] if reply_to else None,
        correlation_data=message.correlation_data,
        user_properties=message.headers if is_own else _user_properties(message),
    )
    if len(message.body) <= BLOCKS_BODY_BYTES_MAX:
        if len(_blocks) >= BLOCKS_COUNT_MAX:
            _blocks.clear()
        _blocks[id(message)] = message, block
    return block


def _has_more_to_say(message: Message) -> bool:
    return bool(
        message.original_name or message.priority != PRIORITY_DEFAULT or not message.persistent
    )


def _user_properties(message: Message) -> list[tuple[str, str]]:
    """For a message from another protocol: what MQTT has no property for, then the user's own."""
    found: list[tuple[str, str]] = []
    if message.protocol:  # otherwise the gateway's own
        found.append((_ORIGIN_PROTOCOL, message.protocol))
    if message.original_name:
        found.append((_ORIGIN_DESTINATION, message.original_name))
    if message.priority != PRIORITY_DEFAULT:
        found.append(("priority", str(message.priority)))
    if not message.persistent:
        found.append(("persistent", "false"))
    if message.protocol == "stomp":
        found += [(unescaped(name), value) for name, value in message.headers]
    else:
        found += message.headers
    return found


def _seconds_left(expires_at: int, now_us: int) -> int:
    left = -((now_us - expires_at) // _SECOND_US)
    return min(max(left, 0), EXPIRY_INTERVAL_MAX)


def _reply_destination(topic: str) -> str:
    """The canonical form of a response topic; any topic has one, and is recovered from it
    [MQTT-3.3.2-15]. The right to publish to it is checked when somebody does."""
    if topic.startswith(QUEUE_PREFIX) and len(topic) > len(QUEUE_PREFIX):
        return names.queue(names.swap_separators(topic[len(QUEUE_PREFIX) :]))
    return names.topic(names.swap_separators(topic))


def _response_topic(reply_to: str) -> str:
    name = names.name_of(reply_to)
    if not name or names.is_filter(name):
        raise LocalProtocolError(
            f"{reply_to!r} is not allowed as a response topic"
        )  # [MQTT-3.3.2-14]
    return topic_of(reply_to)


def _origin(protocol: str) -> bytes:
    if not protocol:  # the gateway's own
        return b""
    return encode_message_properties(user_properties=((_ORIGIN_PROTOCOL, protocol),))


#: ``REPLY_DESTINATIONS[response topic]``, and ``RESPONSE_TOPICS[reply_to]`` back.
REPLY_DESTINATIONS: Final = NameCache(_reply_destination)
RESPONSE_TOPICS: Final = NameCache(_response_topic)
_ORIGINS: Final = NameCache(_origin)
