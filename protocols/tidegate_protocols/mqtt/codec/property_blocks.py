"""Properties of MQTT 5.0 to bytes and back (section 2.2.2).

A *block* is the properties of one packet without their length. Blocks of PUBLISH packets are
decoded once and cached, because a device sends the same ones with each message. For sending, a block
is assembled from parts that can be kept, see :func:`encode_publish_properties`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, final

from tidegate.spi import LocalProtocolError, PeerProtocolError
from tidegate_protocols.mqtt.codec.codes import (
    MalformedPacketError,
    PacketType,
    PacketViolationError,
    ReasonCode,
)
from tidegate_protocols.mqtt.codec.fields import (
    CLAUSES_5_0,
    field,
    read_bytes,
    read_string,
    read_variable,
    string_field,
    variable_bytes,
)
from tidegate_protocols.mqtt.codec.properties import (
    NO_PROPERTIES,
    PROPERTIES,
    WILL,
    Properties,
    PropertyRule,
    PropertyType,
)

#: Properties in one packet. The specification has no limit; without one, a packet of the largest
#: size would hold hundreds of thousands of user properties and stop the loop for a long time.
PROPERTIES_PER_PACKET_MAX: Final = 4096

#: Decoded blocks kept, and the longest kept: a bound on the memory that clients can take by
#: inventing properties (about 4 MB), with room for the devices of a busy gateway.
CACHE_COUNT_MAX: Final = 4096
CACHED_BLOCK_BYTES_MAX: Final = 256

#: The property length of a packet without properties [MQTT-2.2.2-1].
NO_PROPERTIES_BYTES: Final = b"\x00"

_SIZES: Final[Mapping[PropertyType, int]] = {
    PropertyType.BYTE: 1,
    PropertyType.TWO_BYTES: 2,
    PropertyType.FOUR_BYTES: 4,
}


# ------------------------------------------------------------------------------------- decoding


def read_properties(body: bytes, at: int, place: int) -> tuple[Properties, int]:
    """Read a property length and the properties after it.

    Args: place: the packet's type, or WILL.
    Returns: the properties (NO_PROPERTIES when there are none) and where they end.
    Raises: MalformedPacketError; PacketViolationError for a property that occurs twice.
    """
    if at < len(body) and not body[at]:
        return NO_PROPERTIES, at + 1
    length, start = read_variable(body, at, len(body), "property length")
    stop = start + length
    if stop > len(body):
        raise MalformedPacketError("the packet ends inside its properties", "MQTT 5.0 2.2.2.1")
    return decode_properties(body[start:stop], place), stop


def decode_properties(block: bytes, place: int) -> Properties:
    """The properties of *block*. Args and Raises: as :func:`read_properties`."""
    readers = _READERS_BY_PLACE[place]
    values: dict[str, Any] = {}
    at = count = 0
    stop = len(block)
    while at < stop:
        count += 1
        if count > PROPERTIES_PER_PACKET_MAX:
            raise PeerProtocolError(
                f"more than {PROPERTIES_PER_PACKET_MAX} properties in one packet",
                wire_code=ReasonCode.QUOTA_EXCEEDED,
            )
        # All identifiers are one byte long, so a longer variable byte integer is none of them.
        found = readers.get(block[at])
        if found is None:
            known = PROPERTIES.get(block[at])
            what = known.name if known else f"identifier {block[at]:#x}"
            raise MalformedPacketError(f"property {what} is not allowed here", "MQTT 5.0 2.2.2.2")
        name, read, is_several, repeats = found
        value, at = read(block, at + 1, name)
        if name not in values:
            values[name] = [value] if is_several else value
        elif repeats:
            values[name].append(value)
        else:
            raise PacketViolationError(f"property {name} appears twice", "MQTT 5.0 2.2.2.2")
    if not values:
        return NO_PROPERTIES
    for name in _SEVERAL:
        if name in values:
            values[name] = tuple(values[name])
    return Properties(**values)


def _read_byte(block: bytes, at: int, name: str) -> tuple[int, int]:
    if at >= len(block):
        raise _ends(name)
    return block[at], at + 1


def _read_two_bytes(block: bytes, at: int, name: str) -> tuple[int, int]:
    if at + 2 > len(block):
        raise _ends(name)
    return block[at] << 8 | block[at + 1], at + 2


def _read_four_bytes(block: bytes, at: int, name: str) -> tuple[int, int]:
    stop = at + 4
    if stop > len(block):
        raise _ends(name)
    return int.from_bytes(block[at:stop], "big"), stop


def _read_text(block: bytes, at: int, name: str) -> tuple[str, int]:
    """As ``read_string``, which words the error when something is wrong; half its cost."""
    start = at + 2
    if start <= len(block):
        stop = start + (block[at] << 8 | block[at + 1])
        if stop <= len(block):
            try:
                text = block[start:stop].decode()
            except UnicodeDecodeError:
                text = "\0"
            if "\0" not in text:
                return text, stop
    return read_string(block, at, name, CLAUSES_5_0)


def _read_binary(block: bytes, at: int, name: str) -> tuple[bytes, int]:
    return read_bytes(block, at, name, CLAUSES_5_0)


def _read_variable(block: bytes, at: int, name: str) -> tuple[int, int]:
    return read_variable(block, at, len(block), name)


def _read_pair(block: bytes, at: int, name: str) -> tuple[tuple[str, str], int]:
    key, at = _read_text(block, at, name)  # [MQTT-1.5.7-1]
    value, at = _read_text(block, at, name)
    return (key, value), at


def _ends(name: str) -> MalformedPacketError:
    return MalformedPacketError(f"the packet ends inside {name}", "MQTT 5.0 2.2.2.1")


_READERS: Final[Mapping[PropertyType, Callable[[bytes, int, str], tuple[Any, int]]]] = {
    PropertyType.BYTE: _read_byte,
    PropertyType.TWO_BYTES: _read_two_bytes,
    PropertyType.FOUR_BYTES: _read_four_bytes,
    PropertyType.VARIABLE: _read_variable,
    PropertyType.STRING: _read_text,
    PropertyType.BINARY: _read_binary,
    PropertyType.STRING_PAIR: _read_pair,
}

#: Properties whose value is a tuple, even if a place allows only one.
_SEVERAL: Final = frozenset({"user_properties", "subscription_identifiers"})

#: For each place and identifier: name, reader, whether the value is a tuple, whether it repeats.
_READERS_BY_PLACE: Final = {
    place: {
        number: (rule.name, _READERS[rule.kind], rule.name in _SEVERAL, place in rule.repeats)
        for number, rule in PROPERTIES.items()
        if place in rule.places
    }
    for place in (WILL, *PacketType)
}


@final
class _BlockCache(dict[bytes, Properties]):
    """``cache[block]``: the properties of a PUBLISH; a hit costs one dictionary lookup."""

    def __missing__(self, block: bytes) -> Properties:
        properties = decode_properties(block, PacketType.PUBLISH)
        if len(block) <= CACHED_BLOCK_BYTES_MAX:
            if len(self) >= CACHE_COUNT_MAX:
                self.clear()
            self[block] = properties
        return properties


#: ``PUBLISH_BLOCKS[block]``: the properties of a PUBLISH packet's block.
PUBLISH_BLOCKS: Final = _BlockCache()


# ------------------------------------------------------------------------------------- encoding


def encode_properties(properties: Properties, place: int) -> bytes:
    """A property length and the properties, in the order of their identifiers.

    Raises: LocalProtocolError for a property that *place* does not allow or that cannot be written.
    """
    if properties is NO_PROPERTIES:
        return NO_PROPERTIES_BYTES
    parts: list[bytes] = []
    for rule in PROPERTIES.values():
        value = getattr(properties, rule.name)
        if value is None or value == ():
            continue
        if place not in rule.places:
            raise LocalProtocolError(f"property {rule.name} is not allowed here")
        several = rule.name in _SEVERAL
        if several and len(value) > 1 and place not in rule.repeats:
            raise LocalProtocolError(f"property {rule.name} appears twice")
        for one in value if several else (value,):
            parts += (bytes((rule.identifier,)), _value_bytes(rule, one))
    block = b"".join(parts)
    return variable_bytes(len(block)) + block


def _value_bytes(rule: PropertyRule, value: Any) -> bytes:
    size = _SIZES.get(rule.kind)
    if size is not None:
        try:
            return value.to_bytes(size, "big")
        except OverflowError as error:
            raise LocalProtocolError(f"{rule.name} {value} needs more than {size} bytes") from error
    if rule.kind is PropertyType.STRING:
        return string_field(value)
    if rule.kind is PropertyType.BINARY:
        return field(value)
    if rule.kind is PropertyType.VARIABLE:
        return variable_bytes(value)
    return string_field(value[0]) + string_field(value[1])


_EXPIRY: Final = struct.Struct("!BI").pack
_ALIAS: Final = struct.Struct("!BH").pack


def encode_message_properties(
    *,
    payload_format_indicator: int | None = None,
    content_type: str | None = None,
    response_topic: str | None = None,
    correlation_data: bytes | None = None,
    user_properties: Iterable[tuple[str, str]] = (),
) -> bytes:
    """The part of a PUBLISH's block that belongs to the message and is the same for every receiver.

    Returns: no length; b"" when there are no properties.
    Raises: LocalProtocolError for text that MQTT cannot carry (U+0000, surrogates, 65,536 bytes).
    """
    parts: list[bytes] = []
    if payload_format_indicator is not None:
        parts.append(b"\x01\x01" if payload_format_indicator else b"\x01\x00")
    if content_type is not None:
        parts += (b"\x03", string_field(content_type))
    if response_topic is not None:
        parts += (b"\x08", string_field(response_topic))
    if correlation_data is not None:
        parts += (b"\x09", field(correlation_data))
    for name, value in user_properties:  # in their order [MQTT-3.3.2-18]
        parts += (b"\x26", string_field(name), string_field(value))
    return b"".join(parts)


def encode_subscription_identifiers(identifiers: Sequence[int]) -> bytes:
    """The part of a PUBLISH's block that says which subscriptions it is for, without a length."""
    return b"".join([b"\x0b" + variable_bytes(identifier) for identifier in identifiers])


def encode_publish_properties(
    message: bytes = b"",
    *,
    message_expiry_interval: int | None = None,
    topic_alias: int = 0,
    subscription_identifiers: bytes = b"",
) -> bytes:
    """The properties of a PUBLISH with their length, from parts that the caller keeps.

    Args:
        message: from :func:`encode_message_properties`.
        message_expiry_interval: seconds left, 0 to 4,294,967,295; None: never.
        topic_alias: 1 to 65535; 0: none.
        subscription_identifiers: from :func:`encode_subscription_identifiers`.
    """
    block = message
    if message_expiry_interval is not None:
        block = _EXPIRY(2, message_expiry_interval) + block
    if topic_alias:
        block = _ALIAS(35, topic_alias) + block
    if subscription_identifiers:
        block += subscription_identifiers
    length = len(block)
    if length < 128:
        return bytes((length,)) + block
    return variable_bytes(length) + block
