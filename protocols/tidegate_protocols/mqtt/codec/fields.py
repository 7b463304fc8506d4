"""The fields that packets consist of (section 1.5): reading and writing them.

What cannot be read is a :class:`MalformedPacketError`, what cannot be written is a
:class:`LocalProtocolError`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tidegate.spi import LocalProtocolError, PeerProtocolError
from tidegate_protocols.mqtt.codec.codes import MalformedPacketError, ReasonCode

#: Filters in one SUBSCRIBE or UNSUBSCRIBE. The specification has no limit; without one, a packet of
#: the largest size would hold millions of them and stop the loop for seconds.
FILTERS_PER_PACKET_MAX: Final = 4096


class FieldClauses(NamedTuple):
    """The ids of the rules for fields in one version of MQTT.

    Attributes: ends: a field lies inside its packet; utf8: well-formed; null: no U+0000;
        packet_id: there is one; length: nothing follows the last field.
    """

    ends: str
    utf8: str
    null: str
    packet_id: str
    length: str


CLAUSES_3_1_1: Final = FieldClauses(
    "MQTT 3.1.1 1.5.3", "MQTT-1.5.3-1", "MQTT-1.5.3-2", "MQTT-2.3.1-1", "MQTT 3.1.1 2.2.3"
)
CLAUSES_5_0: Final = FieldClauses(
    "MQTT 5.0 1.5.4", "5.0:MQTT-1.5.4-1", "5.0:MQTT-1.5.4-2", "MQTT 5.0 2.2.1", "MQTT 5.0 2.1.4"
)

#: Largest remaining length: four bytes of seven bits (MQTT 3.1.1 section 2.2.3).
REMAINING_LENGTH_MAX: Final = 268_435_455

#: Largest string or binary field (section 1.5.3).
FIELD_BYTES_MAX: Final = 65_535

#: QoS, RETAIN and DUP by the lower four bits of the first byte of a PUBLISH (section 3.3.1): one
#: lookup instead of three computations for each message.
PUBLISH_FLAGS: Final = tuple((bits >> 1 & 3, bits & 1 == 1, bits & 8 == 8) for bits in range(16))

_VARIABLE_SHIFTS: Final = (0, 7, 14, 21)


def read_bytes(
    body: bytes, at: int, what: str, clauses: FieldClauses = CLAUSES_3_1_1
) -> tuple[bytes, int]:
    """Read two length bytes and that many bytes; return these and where they end."""
    start = at + 2
    stop = start + (body[at] << 8 | body[at + 1]) if start <= len(body) else start
    if stop > len(body):
        raise MalformedPacketError(f"the packet ends inside its {what}", clauses.ends)
    return body[start:stop], stop


def read_string(
    body: bytes, at: int, what: str, clauses: FieldClauses = CLAUSES_3_1_1
) -> tuple[str, int]:
    """As :func:`read_bytes` for UTF-8; a BOM is a character like any other [MQTT-1.5.3-3]."""
    start = at + 2
    stop = start + (body[at] << 8 | body[at + 1]) if start <= len(body) else start
    if stop > len(body):
        raise MalformedPacketError(f"the packet ends inside its {what}", clauses.ends)
    return text_of(body[start:stop], what, clauses), stop


def text_of(raw: bytes, what: str, clauses: FieldClauses = CLAUSES_3_1_1) -> str:
    """The text of a string field. Raises: MalformedPacketError."""
    try:
        text = raw.decode()  # strict: refuses surrogates and overlong forms
    except UnicodeDecodeError as error:
        problem = f"the {what} is not UTF-8: {error.reason}"
        raise MalformedPacketError(problem, clauses.utf8) from error
    if "\0" in text:
        raise MalformedPacketError(f"the {what} contains U+0000", clauses.null)
    return text


def read_packet_id(body: bytes, clauses: FieldClauses = CLAUSES_3_1_1) -> int:
    """The packet identifier at the beginning of *body*, 0 to 65535."""
    if len(body) < 2:
        raise MalformedPacketError("the packet identifier is missing", clauses.packet_id)
    return body[0] << 8 | body[1]


def check_end(body: bytes, at: int, what: str, clauses: FieldClauses = CLAUSES_3_1_1) -> None:
    """Raise MalformedPacketError unless *body* ends at *at*."""
    if at != len(body):
        raise MalformedPacketError(f"{what} has the wrong length", clauses.length)


def read_variable(body: bytes, at: int, stop: int, what: str) -> tuple[int, int]:
    """Read a variable byte integer that ends at *stop* at the latest (MQTT 5.0 section 1.5.5).

    Returns: the number, 0 to 268,435,455, and where it ends.
    """
    value = 0
    for shift in _VARIABLE_SHIFTS:
        if at >= stop:
            raise MalformedPacketError(f"the packet ends inside its {what}", "MQTT 5.0 1.5.5")
        byte = body[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            if not byte and shift:
                raise MalformedPacketError(
                    f"{what} is not encoded in the fewest possible bytes", "5.0:MQTT-1.5.5-1"
                )
            return value, at
    raise MalformedPacketError(f"{what} has more than four bytes", "5.0:MQTT-1.5.5-1")


def check_filter_count(count: int) -> None:
    """Raise PeerProtocolError when a packet that has *count* filters has one more."""
    if count >= FILTERS_PER_PACKET_MAX:
        raise PeerProtocolError(
            f"more than {FILTERS_PER_PACKET_MAX} topic filters in one packet",
            wire_code=ReasonCode.QUOTA_EXCEEDED,
        )


def fixed_header(first: int, remaining: int) -> bytes:
    """First byte and remaining length. Raises: LocalProtocolError when it is too long to encode."""
    if remaining < 128:
        return bytes((first, remaining))
    if remaining < 16_384:
        return bytes((first, remaining & 127 | 128, remaining >> 7))
    return bytes((first,)) + variable_bytes(remaining)


def variable_bytes(value: int) -> bytes:
    """A variable byte integer in as few bytes as possible [MQTT-1.5.5-1].

    Raises: LocalProtocolError when it does not fit into four bytes.
    """
    if value < 128:
        return bytes((value,))
    if value < 16_384:
        return bytes((value & 127 | 128, value >> 7))
    if value > REMAINING_LENGTH_MAX:
        raise LocalProtocolError(f"{value} is more than a length or an integer of MQTT can say")
    encoded: list[int] = []
    while value >= 128:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def field(data: bytes) -> bytes:
    """A string or binary field: two length bytes and *data*. Raises: LocalProtocolError."""
    if len(data) > FIELD_BYTES_MAX:
        raise LocalProtocolError(f"a field of {len(data)} bytes is longer than MQTT can say")
    return len(data).to_bytes(2, "big") + data


def string_field(text: str) -> bytes:
    """A string field [MQTT-1.5.4-1] [MQTT-1.5.4-2]. Raises: LocalProtocolError."""
    if "\0" in text:
        raise LocalProtocolError("text with U+0000 cannot be written")
    try:
        return field(text.encode())
    except UnicodeEncodeError as error:
        raise LocalProtocolError("text with a surrogate cannot be written") from error


def packet_of(first: int, *parts: bytes) -> bytes:
    """A whole packet. Args: first: its type and flags; parts: what follows the remaining length."""
    body = b"".join(parts)
    return fixed_header(first, len(body)) + body


def read_filters(body: bytes, at: int, clauses: FieldClauses = CLAUSES_3_1_1) -> tuple[str, ...]:
    """Topic filters from *at* to the end."""
    filters: list[str] = []
    while at < len(body):
        check_filter_count(len(filters))
        topic_filter, at = read_string(body, at, "topic filter", clauses)  # [MQTT-3.10.3-1]
        filters.append(topic_filter)
    return tuple(filters)
