"""Packets to bytes. What the protocol cannot say is a :class:`LocalProtocolError`: a bug of ours.

``publish_header`` and ``packet_id_bytes`` are what the hot path is made of; :func:`encode` serves
everything that is not sent once a message.
"""

from __future__ import annotations

import struct
from typing import Final

from tidegate.spi import LocalProtocolError
from tidegate_protocols.mqtt._codes import (
    CONNACK_RETURN_CODES,
    LEVEL_3_1,
    LEVEL_5_0,
    PacketType,
    PacketViolationError,
    ReasonCode,
)
from tidegate_protocols.mqtt._packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from tidegate_protocols.mqtt._validate import validate

#: Largest remaining length: four bytes of seven bits (MQTT 3.1.1 section 2.2.3).
REMAINING_LENGTH_MAX: Final = 268_435_455

#: Largest string or binary field (section 1.5.3).
FIELD_BYTES_MAX: Final = 65_535

_ACK: Final = struct.Struct("!HH")

#: First two bytes (type, flags, remaining length 2) of the packets that are only a packet id.
PUBACK: Final = 0x4002
PUBREC: Final = 0x5002
PUBREL: Final = 0x6202  # flags 0010 [MQTT-3.6.1-1]
PUBCOMP: Final = 0x7002
UNSUBACK: Final = 0xB002

PINGRESP: Final = b"\xd0\x00"

#: ``acknowledgement(PUBACK, packet_id)``: the four bytes of such a packet, in one C call.
acknowledgement: Final = _ACK.pack


def fixed_header(first: int, remaining: int) -> bytes:
    """First byte and remaining length. Raises: LocalProtocolError when it is too long to say."""
    if remaining < 128:
        return bytes((first, remaining))
    if remaining < 16_384:
        return bytes((first, remaining & 127 | 128, remaining >> 7))
    if remaining > REMAINING_LENGTH_MAX:
        raise LocalProtocolError(f"a packet of {remaining} bytes is longer than MQTT can say")
    header = [first]
    while remaining >= 128:
        header.append(remaining & 127 | 128)
        remaining >>= 7
    header.append(remaining)
    return bytes(header)


def field(data: bytes) -> bytes:
    """A string or binary field: two length bytes and *data*. Raises: LocalProtocolError."""
    if len(data) > FIELD_BYTES_MAX:
        raise LocalProtocolError(f"a field of {len(data)} bytes is longer than MQTT can say")
    return len(data).to_bytes(2, "big") + data


def connack(session_present: bool, reason: ReasonCode, level: int) -> bytes:
    """A CONNACK for a client of protocol *level*; b"" when that version has no word for *reason*.

    MQTT 5.0 clients are refused in their own format (MQTT 5.0 section 3.2), so that they say why.
    """
    if level == LEVEL_5_0:
        assert reason is not ReasonCode.SUCCESS, "MQTT 5.0 is not spoken yet"
        return bytes((0x20, 3, 0, reason, 0))  # no session, reason, no properties
    return_code = CONNACK_RETURN_CODES.get(reason)
    if return_code is None:
        return b""  # [MQTT-3.2.2-6]
    present = session_present and level != LEVEL_3_1 and not return_code  # [MQTT-3.2.2-4]
    return bytes((0x20, 2, present, return_code))


def encode(packet: Packet) -> bytes:
    """Encode any packet of MQTT 3.1 or 3.1.1.

    Raises: LocalProtocolError for one that the protocol does not allow.
    """
    try:
        validate(packet)
    except PacketViolationError as error:
        raise LocalProtocolError(error.problem) from error
    match packet:
        case Publish():
            first = 0x30 | packet.dup << 3 | packet.qos << 1 | packet.retain
            packet_id = packet.packet_id.to_bytes(2, "big") if packet.qos else b""
            return _packet(first, field(packet.topic.encode()), packet_id, packet.body)
        case Puback():
            return acknowledgement(PUBACK, packet.packet_id)
        case Pubrec():
            return acknowledgement(PUBREC, packet.packet_id)
        case Pubrel():
            return acknowledgement(PUBREL, packet.packet_id)
        case Pubcomp():
            return acknowledgement(PUBCOMP, packet.packet_id)
        case Suback():
            packet_id = packet.packet_id.to_bytes(2, "big")
            return _packet(PacketType.SUBACK << 4, packet_id, bytes(packet.return_codes))
        case Unsuback():
            return acknowledgement(UNSUBACK, packet.packet_id)
        case Connack():
            return bytes((0x20, 2, packet.session_present, packet.return_code))
        case Pingreq():
            return b"\xc0\x00"
        case Pingresp():
            return PINGRESP
        case Disconnect():
            return b"\xe0\x00"
        case Connect():
            return _encode_connect(packet)
        case Subscribe():
            parts = [packet.packet_id.to_bytes(2, "big")]
            for request in packet.requests:
                parts += (field(request.topic_filter.encode()), bytes((request.qos,)))
            return _packet(0x82, *parts)
        case Unsubscribe():
            filters = [field(topic_filter.encode()) for topic_filter in packet.topic_filters]
            return _packet(0xA2, packet.packet_id.to_bytes(2, "big"), *filters)


def _encode_connect(packet: Connect) -> bytes:
    will = packet.will
    if packet.password is not None and packet.username is None:
        raise LocalProtocolError("a password without a user name [MQTT-3.1.2-22]")
    flags = packet.clean_session << 1
    if will is not None:
        flags |= 0x04 | will.qos << 3 | will.retain << 5
    flags |= (packet.username is not None) << 7 | (packet.password is not None) << 6
    parts = [
        field(b"MQIsdp" if packet.level == LEVEL_3_1 else b"MQTT"),
        bytes((packet.level, flags)),
        packet.keep_alive.to_bytes(2, "big"),
        field(packet.client_id.encode()),  # [MQTT-3.1.3-1]: the order of the fields
    ]
    if will is not None:
        parts += (field(will.topic.encode()), field(will.body))
    if packet.username is not None:
        parts.append(field(packet.username.encode()))
    if packet.password is not None:
        parts.append(field(packet.password))
    return _packet(0x10, *parts)


def _packet(first: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return fixed_header(first, len(body)) + body
