"""Detects, from its first bytes, a peer that speaks another protocol than the listener's."""

from __future__ import annotations

import re
from typing import Final

TLS: Final = "TLS"
HTTP: Final = "HTTP"
MQTT: Final = "MQTT"
STOMP: Final = "STOMP"

_BEGIN: Final = {
    TLS: re.compile(rb"\x16\x03"),
    HTTP: re.compile(rb"(GET|POST|HEAD|PUT|OPTIONS|DELETE|PRI \*) "),
    # After the fixed header, whose length takes up to four bytes (MQTT 3.1.1 section 3.1.2.1).
    MQTT: re.compile(rb"\x10.{1,4}\x00[\x04\x06]MQ", re.DOTALL),
    STOMP: re.compile(rb"[\r\n]{0,9}(CONNECT|STOMP)\r?\n"),
}


def spoken_by(data: bytes) -> str:
    """The protocol that begins with *data*: ``TLS``, ``HTTP``, ``MQTT``, ``STOMP``; "" when unknown."""
    return next((name for name, begin in _BEGIN.items() if begin.match(data)), "")


def mistaken(data: bytes, protocol: str) -> str:
    """What the peer takes the listener for, as a sentence; "" when unknown.

    Args: data: the first bytes received; protocol: the listener's own, ``MQTT`` or ``STOMP``.
    """
    spoken = spoken_by(data)
    if spoken == TLS:
        return "this is a plain TCP listener and the client speaks TLS"
    if spoken in ("", protocol):
        return ""
    more = " (WebSocket is another transport)" if spoken == HTTP else ""
    return f"this is a listener for {protocol} and the client speaks {spoken}{more}"
