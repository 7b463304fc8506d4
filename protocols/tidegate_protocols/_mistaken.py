"""A peer that takes a listener for that of another protocol, by its first bytes."""

from __future__ import annotations

import re
from typing import Final

_HTTP: Final = re.compile(rb"(GET|POST|HEAD|PUT|OPTIONS|DELETE|PRI \*) ")
#: Behind the fixed header, whose length takes up to four bytes (MQTT 3.1.1 section 3.1.2.1).
_MQTT: Final = re.compile(rb"\x10.{1,4}\x00[\x04\x06]MQ", re.DOTALL)
_STOMP: Final = re.compile(rb"[\r\n]{0,9}(CONNECT|STOMP)\r?\n")
_TLS: Final = b"\x16\x03"


def mistaken(data: bytes, protocol: str) -> str:
    """What the peer takes the listener for, as a sentence; "" when that cannot be told.

    Args: data: the first bytes that came; protocol: the listener's own.
    """
    if data.startswith(_TLS):
        return "this is a plain TCP listener and the peer speaks TLS"
    for name, pattern in (
        ("HTTP (WebSocket is another transport)", _HTTP),
        ("MQTT", _MQTT),
        ("STOMP", _STOMP),
    ):
        if name != protocol and pattern.match(data):
            return f"this is a listener for {protocol} and the peer speaks {name}"
    return ""
