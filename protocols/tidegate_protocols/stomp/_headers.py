"""The meaning of a control frame's headers. All functions raise PeerProtocolError for invalid values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tidegate.spi import PeerProtocolError
from tidegate_protocols.stomp._subscriptions import AckMode
from tidegate_protocols.stomp.codec.frames import Frame, Version

#: Most digits passed to int(), of a sequence (unsigned 64 bit has 20) or of a subscription number.
_DIGITS_MAX: Final = 20

#: Three brokers, three spellings; each is accepted.
_DURABLE_NAMES: Final = (
    "durable-subscription-name",
    "durable-subscriber-name",
    "activemq.subscriptionName",
)
_PREFETCH_NAMES: Final = ("prefetch-count", "activemq.prefetchSize")
_PREFETCH_DIGITS_MAX: Final = 9


def check_no_body(frame: Frame, version: Version) -> None:
    """Only SEND has a body (STOMP 1.2 "Value Encoding"). 1.0: "the body … is ignored".

    Raises: PeerProtocolError.
    """
    if frame.body and version is not Version.V1_0:
        raise PeerProtocolError(f"{frame.command} must not have a body")


def required(frame: Frame, name: str) -> str:
    """A header that must be present and not empty."""
    value = frame.headers.get(name)
    if not value:
        raise PeerProtocolError(f"{frame.command} needs a non-empty {name} header")
    return value


def sequence_in(digits: str, whole: str) -> int:
    """The sequence in the id *whole*."""
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS_MAX):
        raise PeerProtocolError(f"{whole[:80]!r} is not an id that this gateway assigned")
    return int(digits)


def ack_mode(text: str) -> AckMode:
    """The value of a SUBSCRIBE frame's ack header."""
    try:
        return AckMode(text)
    except ValueError:
        modes = ", ".join(mode.value for mode in AckMode)
        raise PeerProtocolError(f"ack:{text[:40]} is not allowed; write one of {modes}") from None


def is_true(name: str, text: str) -> bool:
    """The value of a header that is true or false."""
    if text not in ("true", "false"):
        raise PeerProtocolError(f"{name}:{text[:40]} is not allowed; write true or false")
    return text == "true"


def prefetch(frame: Frame) -> int:
    """How many messages a subscription wants at a time; 0 when not given."""
    for name in _PREFETCH_NAMES:
        text = frame.headers.get(name)
        if text is not None:
            if not (text.isascii() and text.isdigit() and len(text) <= _PREFETCH_DIGITS_MAX):
                raise PeerProtocolError(f"{name}:{text[:40]} is not a number of messages")
            return int(text)
    return 0


def durable_name_in(headers: Mapping[str, str]) -> str:
    """The name of a durable subscription, "" without one."""
    return next((headers[name] for name in _DURABLE_NAMES if headers.get(name)), "")
