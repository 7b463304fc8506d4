"""SEND headers to a :class:`~tidegate.spi.Message`; the table is in docs/stomp.md.

What the gateway understands becomes a field of the message and is written again for the consumer;
every other header passes unchanged and in order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from tidegate.spi import PRIORITY_DEFAULT, Message, PeerProtocolError
from tidegate_protocols.stomp._destinations import canonical, temporary
from tidegate_protocols.stomp._frames import Frame

T = TypeVar("T")

PROTOCOL: Final = "stomp"

#: Headers of SEND that say how to carry it; they are not the user's.
_ENVELOPE: Final = ("content-length", "destination", "receipt", "transaction")
#: Headers that the MESSAGE frame sets itself. A bridge that copies all headers of what it received
#: sends them too; passed on, they would contradict the real ones for a client that lets the last
#: of repeated headers win.
_OF_MESSAGE_FRAME: Final = ("ack", "message-id", "redelivered", "subscription")
_MAPPED: Final = (
    "content-type",
    "correlation-id",
    "expires",
    "persistent",
    "priority",
    "reply-to",
)
_UNUSUAL: Final = frozenset((*_OF_MESSAGE_FRAME, *_MAPPED))
_NOT_USER: Final = frozenset((*_ENVELOPE, *_OF_MESSAGE_FRAME, *_MAPPED))

_PRIORITIES: Final = {str(priority): priority for priority in range(10)}
_BOOLEANS: Final = {"true": True, "false": False}
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
    """The message of a SEND whose envelope was taken off.

    Args: destination: canonical; original_name: as written, when that is not how we would write it;
        make_temporary: gives the canonical name of one of the connection's own destinations.
    Raises: PeerProtocolError for a value that makes no sense; what *make_temporary* raises.
    """
    headers = frame.headers
    # Most clients send no other mapped header than these two, and without any the rest passes as
    # it is: twice as fast as looking at the headers one by one.
    content_type = headers.pop("content-type", "")
    persistent = headers.pop("persistent", "true")
    if frame.pairs or persistent != "true" or not _UNUSUAL.isdisjoint(headers):
        headers["content-type"] = content_type
        headers["persistent"] = persistent
        return _any_message(
            frame, destination, original_name, received_at, client_id, make_temporary
        )
    return Message(
        destination,
        frame.body,
        tuple(frame.headers.items()),
        received_at,
        0,
        PRIORITY_DEFAULT,
        True,
        2,
        False,
        PROTOCOL,
        client_id,
        original_name,
        content_type,
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
    reply_to_canonical = canonical(reply_to) or ""
    own = temporary(reply_to)
    if own is not None:
        reply_to_canonical = make_temporary(own)
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
        protocol=PROTOCOL,
        client_id=client_id,
        original_name=original_name,
        content_type=headers.get("content-type", ""),
        correlation_data=headers.get("correlation-id", "").encode(),
        reply_to=reply_to_canonical,
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
