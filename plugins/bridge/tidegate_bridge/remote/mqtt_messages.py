"""Converts a PUBLISH to a :class:`~tidegate.spi.Message`, and back to MQTT 5.0 properties."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final, cast

from paho.mqtt.client import MQTTMessage
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tidegate.spi import PRIORITY_DEFAULT, Message, names
from tidegate_bridge.remote.hops import OWN, REDELIVERED

DUPLICATE_ID: Final = "_AMQ_DUPL_ID"
_QUEUE: Final = "$queue/"
_EXPIRY_MAX: Final = 0xFFFF_FFFF
#: User properties for what MQTT has no property for (docs/mqtt.md, "Bridging").
_ORIGIN: Final = frozenset(("origin-protocol", "origin-destination"))
_MAPPED: Final = frozenset(("priority", "persistent"))


def arriving(
    found: MQTTMessage, body: bytes, destination: str, more: Sequence[tuple[str, str]] = ()
) -> Message:
    """The message of a PUBLISH. Args: destination: here; more: headers, replacing equal names."""
    known: dict[str, Any] = {}
    if found.properties is not None:
        known = {
            name: getattr(found.properties, name)
            for name in _PROPERTIES
            if hasattr(found.properties, name)
        }
    user = cast("list[tuple[str, str]]", known.get("UserProperty", []))
    of_gateway = any(name == "origin-protocol" for name, _ in user)
    said = dict(reversed(user)) if of_gateway else {}
    left_out: set[str] = set(OWN) if more else set()
    if of_gateway:
        left_out |= _ORIGIN | _MAPPED
    headers = [(name, value) for name, value in user if name not in left_out]
    if found.dup:
        headers.append((REDELIVERED, "true"))
    now = time.time_ns() // 1000
    expiry = known.get("MessageExpiryInterval")
    priority = said.get("priority", "")
    is_queue = names.is_queue(destination)
    return Message(
        destination,
        body,
        (*headers, *more),
        now,
        0 if expiry is None else now + int(expiry) * 1_000_000,
        int(priority) if priority in _PRIORITIES else PRIORITY_DEFAULT,
        found.qos > 0 and said.get("persistent") != "false",
        2 if is_queue else found.qos,
        bool(found.retain) and not is_queue,
        "mqtt",
        content_type=known.get("ContentType"),
        correlation_data=known.get("CorrelationData"),
        reply_to=_local(known.get("ResponseTopic", "")),
        payload_format=known.get("PayloadFormatIndicator"),
    )


def leaving(
    message: Message, more: Sequence[tuple[str, str]], duplicate_id: str
) -> Properties | None:
    """The properties of *message*; None: it has expired."""
    found = Properties(PacketTypes.PUBLISH)
    if message.expires_at:
        left = -((time.time_ns() // 1000 - message.expires_at) // 1_000_000)
        if left <= 0:
            return None
        found.MessageExpiryInterval = min(left, _EXPIRY_MAX)
    if message.content_type is not None:
        found.ContentType = message.content_type
    if message.correlation_data is not None:
        found.CorrelationData = message.correlation_data
    if message.payload_format is not None:
        found.PayloadFormatIndicator = message.payload_format
    if message.reply_to:
        prefix = _QUEUE if names.is_queue(message.reply_to) else ""
        found.ResponseTopic = prefix + names.swap_separators(names.name_of(message.reply_to))
    dropped = OWN | {DUPLICATE_ID}
    user = [(name, value) for name, value in message.headers if name not in dropped]
    if message.protocol and message.protocol != "mqtt":
        user.append(("origin-protocol", message.protocol))
    if message.priority != PRIORITY_DEFAULT:
        user.append(("priority", str(message.priority)))
    if not message.persistent:
        user.append(("persistent", "false"))
    found.UserProperty = [*user, *more, (DUPLICATE_ID, duplicate_id)]
    return found


def _local(topic: str) -> str:
    if not topic:
        return ""
    if topic.startswith(_QUEUE) and len(topic) > len(_QUEUE):
        return names.queue(names.swap_separators(topic[len(_QUEUE) :]))
    return names.topic(names.swap_separators(topic))


_PRIORITIES: Final = frozenset("0123456789")
_PROPERTIES: Final = (
    "UserProperty",
    "MessageExpiryInterval",
    "ContentType",
    "CorrelationData",
    "ResponseTopic",
    "PayloadFormatIndicator",
)
