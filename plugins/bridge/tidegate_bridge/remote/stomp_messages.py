"""Converts MESSAGE to :class:`~tidegate.spi.Message`, and that to SEND; see docs/migrating."""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping, Sequence
from typing import Final

from tidegate.spi import PRIORITY_DEFAULT, Message, names
from tidegate_bridge._options import JmsType
from tidegate_bridge.remote.brokers import RABBITMQ, TIDEGATE, Broker
from tidegate_bridge.remote.hops import OWN, REDELIVERED

_QUEUE: Final = "/queue/"
_TOPIC: Final = "/topic/"
_TEXT: Final = "amq-msg-type"
DUPLICATE_ID: Final = "_AMQ_DUPL_ID"
#: Headers of a MESSAGE that describe its delivery, or become fields.
_NOT_USER: Final = frozenset(
    (
        "ack", "content-length", "content-type", "correlation-id", "correlation-id-encoding", "destination", "destination-type", "expires",
        "message-id", "payload-format", "persistent", "priority", "receipt", "redelivered", "reply-to", "retain", "retained",
        "subscription", "transaction", *OWN,
    )
)  # fmt: skip
#: Headers of a message here that would contradict the bridge's own.
_NOT_SENT: Final = _NOT_USER | {DUPLICATE_ID, "client-id"}
_TEXT_TYPES: Final = ("text/", "application/json", "application/xml")


def arriving(
    pairs: Sequence[tuple[str, str]],
    body: bytes,
    broker: Broker,
    destination: str,
    more: Sequence[tuple[str, str]],
) -> Message:
    """The message of a MESSAGE. Args: destination: here; more: headers to add."""
    headers = dict(reversed(pairs))  # of repeated headers the first counts
    user = [pair for pair in pairs if pair[0] not in _NOT_USER]
    if broker.has_types and "content-length" not in headers and _TEXT not in headers:
        user.append((_TEXT, "text"))
    if headers.get("redelivered") == "true":
        user.append((REDELIVERED, "true"))
    reply_to = _local(headers.get("reply-to", ""))
    if headers.get("reply-to") and not reply_to:
        user.append(("reply-to", headers["reply-to"]))  # only clients there can use it
    default = "false" if broker.says_persistent else "true"
    persistent = headers.get("persistent", default).lower() != "false"
    return Message(
        destination,
        body,
        (*user, *more),
        time.time_ns() // 1000,
        _milliseconds(headers.get("expires", "")) * 1000,
        _priority(headers.get("priority", "")),
        persistent,
        retain=headers.get("retain") == "true" or headers.get("retained") == "true",
        protocol="stomp",
        content_type=headers.get("content-type") or None,
        correlation_data=_correlation(headers),
        reply_to=reply_to,
        payload_format=1 if headers.get("payload-format") == "1" else None,
    )


def leaving(
    message: Message,
    broker: Broker,
    jms_type: JmsType,
    more: Sequence[tuple[str, str]],
    extra: Mapping[str, str],
    duplicate_id: str,
) -> dict[str, str | tuple[str, ...]]:
    """Headers of *message*'s SEND, but its destination. Args: more, extra: added; *extra* wins."""
    found: dict[str, list[str]] = {}
    for name, value in message.headers:
        if name not in _NOT_SENT and name:
            found.setdefault(name, []).append(value)
    headers: dict[str, str | tuple[str, ...]] = {
        name: values[0] if len(values) == 1 else tuple(values) for name, values in found.items()
    }
    headers |= dict(more)
    headers["persistent"] = "true" if message.persistent else "false"
    if message.priority != PRIORITY_DEFAULT:
        headers["priority"] = str(message.priority)
    if message.content_type:
        headers["content-type"] = message.content_type
    _add_expiry(headers, message, broker)
    _add_correlation(headers, message.correlation_data)
    if message.reply_to:
        kind = _QUEUE if names.is_queue(message.reply_to) else _TOPIC
        headers["reply-to"] = kind + names.name_of(message.reply_to)
    else:
        kept = next((value for name, value in message.headers if name == "reply-to"), "")
        if kept:
            headers["reply-to"] = kept
    if message.retain:
        headers["retain"] = "true"
    if broker is TIDEGATE and message.payload_format == 1:
        headers["payload-format"] = "1"
    if broker is not RABBITMQ:
        headers[DUPLICATE_ID] = duplicate_id
    headers |= extra
    if not _is_text(message, jms_type):
        headers["content-length"] = str(len(message.body))
    return headers


def _is_text(message: Message, jms_type: JmsType) -> bool:
    """Whether to omit the length: a JMS broker then makes a TextMessage, which must be text."""
    if jms_type is JmsType.BYTES or b"\0" in message.body:
        return False
    if jms_type is JmsType.AUTO:
        said = next((value for name, value in message.headers if name == _TEXT), "")
        of_type = (message.content_type or "").lower().startswith(_TEXT_TYPES)
        if said != "text" and (said or not of_type):
            return False
    try:
        message.body.decode()
    except ValueError:
        return False
    return True


def _add_expiry(
    headers: dict[str, str | tuple[str, ...]], message: Message, broker: Broker
) -> None:
    if not message.expires_at:
        return
    if broker.ttl_header:
        left = max(message.expires_at - time.time_ns() // 1000, 0) // 1000
        headers[broker.ttl_header] = str(left)
    else:
        headers["expires"] = str(message.expires_at // 1000)


def _add_correlation(headers: dict[str, str | tuple[str, ...]], data: bytes | None) -> None:
    if data is None:
        return
    try:
        text = data.decode()
    except ValueError:
        text = ""
    if text and "\0" not in text:
        headers["correlation-id"] = text
    else:
        headers["correlation-id"] = base64.b64encode(data).decode()
        headers["correlation-id-encoding"] = "base64"


def _correlation(headers: Mapping[str, str]) -> bytes | None:
    text = headers.get("correlation-id")
    if not text:
        return None
    if headers.get("correlation-id-encoding") == "base64":
        try:
            return base64.b64decode(text, validate=True)
        except ValueError:
            pass  # not base64 after all: plain text
    return text.encode()


def _local(reply_to: str) -> str:
    """The canonical form of the other broker's ``/queue/NAME``; "" for a destination only there."""
    for prefix, canonical in ((_QUEUE, names.queue), (_TOPIC, names.topic)):
        if reply_to.startswith(prefix):
            name = reply_to[len(prefix) :]
            try:
                names.check_name(name)
            except ValueError:
                return ""
            return canonical(name)
    return ""


def _milliseconds(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 14 else 0


def _priority(text: str) -> int:
    return int(text) if len(text) == 1 and text.isascii() and text.isdigit() else PRIORITY_DEFAULT
