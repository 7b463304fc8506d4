"""SEND headers to a :class:`~tidegate.spi.Message`; the table is in docs/stomp.md.

What the gateway understands becomes a field of the message and is written again for the consumer;
every other header passes unchanged and in order.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Final, TypeVar

from tidegate.spi import PRIORITY_DEFAULT, Message, PeerProtocolError, names
from tidegate_protocols._user_headers import ENVELOPE, MAPPED, OF_MESSAGE_FRAME
from tidegate_protocols.stomp.codec.destinations import canonical, temporary
from tidegate_protocols.stomp.codec.frames import Frame

T = TypeVar("T")

PROTOCOL: Final = "stomp"

_UNUSUAL: Final = frozenset((*OF_MESSAGE_FRAME, *MAPPED))
_NOT_USER: Final = frozenset((*ENVELOPE, *OF_MESSAGE_FRAME, *MAPPED))

#: Value of ``correlation-id-encoding`` for data that a header cannot carry as text.
CORRELATION_BASE64: Final = "base64"

_PRIORITIES: Final = {str(priority): priority for priority in range(10)}
_BOOLEANS: Final = {"true": True, "false": False}
_FORMATS: Final = {"0": None, "1": 1}
_QUEUE_OF_MQTT: Final = "topic://$queue."
#: Digits of a time in milliseconds: year 5138, and still an unsigned 64-bit number of microseconds.
_TIME_DIGITS_MAX: Final = 14


def message_of(
    frame: Frame,
    destination: str,
    original_name: str,
    received_at: int,
    client_id: str,
    make_temporary: Callable[[str], str],
) -> Message:
    """The message of a SEND whose envelope was removed.

    Args: destination: canonical; original_name: as written, if we would write it differently;
        make_temporary: returns the canonical name of one of the connection's own destinations.
    Raises: PeerProtocolError for a value that makes no sense; what *make_temporary* raises.
    """
    headers = frame.headers
    # Most clients send no other mapped header than these two, and without any the rest passes as
    # it is: twice as fast as looking at the headers one by one.
    content_type = headers.pop("content-type", "")
    persistent = headers.pop("persistent", "true")
    if frame.pairs or persistent != "true" or (headers and not _UNUSUAL.isdisjoint(headers)):
        if content_type:
            headers["content-type"] = content_type
        if persistent != "true":
            headers["persistent"] = persistent
        return _any_message(
            frame, destination, original_name, received_at, client_id, make_temporary
        )
    return Message(
        destination,
        frame.body,
        tuple(headers.items()) if headers else (),
        received_at,
        0,
        PRIORITY_DEFAULT,
        True,
        2,
        False,
        PROTOCOL,
        client_id,
        original_name,
        content_type or None,  # in MQTT an empty one is not the same as none
    )


def _any_message(
    frame: Frame,
    destination: str,
    original_name: str,
    received_at: int,
    client_id: str,
    make_temporary: Callable[[str], str],
) -> Message:
    headers = frame.headers
    reply_to = headers.get("reply-to", "")
    own = temporary(reply_to)
    reply_to_canonical = ""
    if own is not None:
        reply_to_canonical = make_temporary(own)
    elif reply_to:
        reply_to_canonical = _reply_destination(reply_to)
    user = [(n, v) for n, v in frame.pairs or headers.items() if n not in _NOT_USER]
    if reply_to and not reply_to_canonical:
        user.append(("reply-to", reply_to))  # a name only the client understands: carry it as it is
    return Message(
        destination,
        frame.body,
        tuple(user),
        received_at,
        expires_at=_expires_at(headers.get("expires", "0")),
        priority=_one_of(_PRIORITIES, headers, "priority", PRIORITY_DEFAULT),
        persistent=_one_of(_BOOLEANS, headers, "persistent", True),
        # A queue keeps its messages anyway.
        retain=_one_of(_BOOLEANS, headers, "retain", False) and names.is_topic(destination),
        protocol=PROTOCOL,
        client_id=client_id,
        original_name=original_name,
        content_type=headers.get("content-type") or None,
        correlation_data=_correlation_data(headers) if "correlation-id" in headers else None,
        reply_to=reply_to_canonical,
        payload_format=_one_of(_FORMATS, headers, "payload-format", None),
    )


def _reply_destination(text: str) -> str:
    """The canonical form of a ``reply-to``; "" when nobody could send to it."""
    destination = canonical(text) or ""
    if destination.startswith(_QUEUE_OF_MQTT) and destination != _QUEUE_OF_MQTT:
        return ""  # an MQTT client would take it for the queue of that name
    try:
        names.check_name(names.name_of(destination))
    except ValueError:
        return ""
    return destination


def _correlation_data(headers: dict[str, str]) -> bytes | None:
    text = headers["correlation-id"]
    encoding = headers.get("correlation-id-encoding", "")
    if not encoding:
        return text.encode() or None
    if encoding == CORRELATION_BASE64:
        try:
            return base64.b64decode(text, validate=True) or None
        except (binascii.Error, ValueError):
            raise PeerProtocolError(f"correlation-id:{text[:40]} is not valid base64") from None
    raise PeerProtocolError(
        f"unknown correlation-id-encoding:{encoding[:40]}; write {CORRELATION_BASE64}"
    )


def _expires_at(text: str) -> int:
    """Milliseconds since the epoch (0: never) to microseconds."""
    if not (text.isascii() and text.isdigit() and len(text) <= _TIME_DIGITS_MAX):
        raise PeerProtocolError(
            f"expires:{text[:40]} is not a time in milliseconds since 1970-01-01 UTC"
        )
    return int(text) * 1000


def _one_of(values: dict[str, T], headers: dict[str, str], name: str, default: T) -> T:
    text = headers.get(name)
    if text is None:
        return default
    try:
        return values[text]
    except KeyError:
        raise PeerProtocolError(
            f"{name}:{text[:40]} is not allowed; write one of {', '.join(values)}"
        ) from None
