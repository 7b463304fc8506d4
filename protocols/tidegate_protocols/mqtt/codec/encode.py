"""Packets to bytes. What the protocol cannot express is a :class:`LocalProtocolError`: a bug of ours.

The hot path uses :func:`fixed_header` and :func:`acknowledgement`; :func:`encode` serves everything
that is not sent for every message. MQTT 5.0 packets are in ``encode_v5``.
"""

from __future__ import annotations

import struct
from typing import Final

from tidegate.spi import LocalProtocolError
from tidegate_protocols.mqtt.codec.codes import (
    CONNACK_RETURN_CODES,
    LEVEL_3_1,
    LEVEL_3_1_1,
    LEVEL_5_0,
    PacketType,
    PacketViolationError,
    ReasonCode,
)
from tidegate_protocols.mqtt.codec.connect import connect_parts
from tidegate_protocols.mqtt.codec.encode_v5 import encode_v5
from tidegate_protocols.mqtt.codec.fields import REMAINING_LENGTH_MAX as REMAINING_LENGTH_MAX
from tidegate_protocols.mqtt.codec.fields import field as field
from tidegate_protocols.mqtt.codec.fields import fixed_header as fixed_header
from tidegate_protocols.mqtt.codec.fields import packet_of, string_field
from tidegate_protocols.mqtt.codec.packets import (
    Auth,
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
from tidegate_protocols.mqtt.codec.properties import NO_PROPERTIES
from tidegate_protocols.mqtt.codec.validate import validate

_ACK: Final = struct.Struct("!HH")

#: First two bytes (type, flags, remaining length 2) of packets that consist of a packet id.
PUBACK: Final = 0x4002
PUBREC: Final = 0x5002
PUBREL: Final = 0x6202  # flags 0010 [MQTT-3.6.1-1]
PUBCOMP: Final = 0x7002
UNSUBACK: Final = 0xB002

PINGRESP: Final = b"\xd0\x00"

#: ``acknowledgement(PUBACK, packet_id)``: the four bytes of such a packet, in one C call.
acknowledgement: Final = _ACK.pack


def connack(session_present: bool, reason: ReasonCode, level: int) -> bytes:
    """A CONNACK without properties for a client of protocol *level*.

    Returns: b"" when that version has no word for *reason*.
    """
    if level == LEVEL_5_0:
        return encode_v5(Connack(session_present and not reason, reason))  # [MQTT-3.2.2-6]
    return_code = CONNACK_RETURN_CODES.get(reason)
    if return_code is None:
        return b""  # [MQTT-3.2.2-6]
    present = session_present and level != LEVEL_3_1 and not return_code  # [MQTT-3.2.2-4]
    return bytes((0x20, 2, present, return_code))


def encode(packet: Packet, level: int = LEVEL_3_1_1) -> bytes:
    """Encode any packet for a connection of protocol *level*; CONNECT brings its own.

    Raises: LocalProtocolError for a packet that the protocol does not allow, or that has
        properties or reasons which the version lacks.
    """
    if type(packet) is Connect:
        level = packet.level
    if level == LEVEL_5_0:
        return encode_v5(packet)
    try:
        validate(packet, level)
    except PacketViolationError as error:
        raise LocalProtocolError(error.problem) from error
    match packet:
        case Publish():
            if packet.properties is not NO_PROPERTIES:
                raise LocalProtocolError("PUBLISH with properties before MQTT 5.0")
            first = 0x30 | packet.dup << 3 | packet.qos << 1 | packet.retain
            packet_id = packet.packet_id.to_bytes(2, "big") if packet.qos else b""
            return packet_of(first, field(packet.topic.encode()), packet_id, packet.body)
        case _:
            _refuse_what_is_new(packet)
            return _encode_other(packet)


def _encode_other(packet: Packet) -> bytes:
    match packet:
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
            return packet_of(PacketType.SUBACK << 4, packet_id, bytes(packet.reason_codes))
        case Unsuback():
            return acknowledgement(UNSUBACK, packet.packet_id)
        case Connack():
            return bytes((0x20, 2, packet.session_present, packet.reason_code))
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
                parts += (string_field(request.topic_filter), bytes((request.qos,)))
            return packet_of(0x82, *parts)
        case Unsubscribe():
            filters = [string_field(topic_filter) for topic_filter in packet.topic_filters]
            return packet_of(0xA2, packet.packet_id.to_bytes(2, "big"), *filters)
        case Publish() | Auth():
            raise LocalProtocolError(f"{type(packet).__name__} cannot be written here")


def _refuse_what_is_new(packet: Packet) -> None:
    """Raise LocalProtocolError for what MQTT 3.1 and 3.1.1 cannot carry."""
    kind = type(packet)
    if getattr(packet, "properties", NO_PROPERTIES) is not NO_PROPERTIES:
        raise LocalProtocolError(f"{kind.__name__} with properties before MQTT 5.0")
    if isinstance(packet, Subscribe):
        for request in packet.requests:
            if request.no_local or request.retain_as_published or request.retain_handling:
                raise LocalProtocolError("a subscription with options before MQTT 5.0")
    elif kind in _WITHOUT_REASON and (
        getattr(packet, "reason_code", 0) or getattr(packet, "reason_codes", ())
    ):
        raise LocalProtocolError(f"{kind.__name__} with a reason before MQTT 5.0")


_WITHOUT_REASON: Final = frozenset({Puback, Pubrec, Pubrel, Pubcomp, Unsuback, Disconnect})


def _encode_connect(packet: Connect) -> bytes:
    will = packet.will
    if will is not None and will.properties is not NO_PROPERTIES:
        raise LocalProtocolError("a will with properties before MQTT 5.0")
    if packet.password is not None and packet.username is None:
        raise LocalProtocolError("a password without a user name [MQTT-3.1.2-22]")
    return packet_of(0x10, *connect_parts(packet))
