"""Finds where the body of a PUBLISH begins, when its body is not waited for.

Pure functions on the receive buffer; whether the header is readable at all is checked in ``decode``.
"""

from __future__ import annotations

import codecs
from typing import final

from tidegate_protocols.mqtt.codec.codes import LEVEL_5_0
from tidegate_protocols.mqtt.codec.properties import Properties

_VARIABLE_SHIFTS = (0, 7, 14, 21)


def body_start(first: int, buffer: bytes, start: int, level: int) -> int:
    """Where the body begins in the PUBLISH whose variable header begins at *start* (section 3.3).

    Returns: more than ``len(buffer)`` when the header is incomplete: at least that many bytes are
        needed to tell more. For an unreadable header, any number.
    """
    end = len(buffer)
    at = start + 2
    if at > end:
        return at
    at += buffer[start] << 8 | buffer[start + 1]
    if first & 0x06:  # a packet identifier: QoS 1 or 2
        at += 2
    if level != LEVEL_5_0:
        return at
    length = 0
    for shift in _VARIABLE_SHIFTS:
        if at >= end:
            return at + 1
        byte = buffer[at]
        at += 1
        length |= (byte & 127) << shift
        if byte < 128:
            return at + length
    return at


@final
class TextCheck:
    """Checks that a body arriving in pieces is UTF-8 (MQTT 5.0 section 3.3.2.3.2)."""

    __slots__ = ("_decoder", "_is_between")

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._is_between = True  # between two characters: the decoder holds no partial one

    def accepts(self, data: bytes, *, is_last: bool) -> bool:
        """Take the next piece. Returns: False when the body is not UTF-8, and from then on."""
        if self._is_between and data.isascii():
            return True
        try:
            self._decoder.decode(data, is_last)
        except UnicodeDecodeError:
            return False
        self._is_between = not self._decoder.getstate()[0]
        return True


def text_check(properties: Properties, *, is_wanted: bool) -> TextCheck | None:
    """The check of a body, if it is needed: the sender says that it is text, and checks are wanted."""
    if is_wanted and properties.payload_format_indicator == 1:
        return TextCheck()
    return None
