"""MQTT 5.0 packets to bytes, and fast paths for the packets that are sent for every message.

What the protocol cannot express is a :class:`LocalProtocolError`: a bug of ours. The sender assembles
a PUBLISH from parts: ``fixed_header``, topic field, packet id, the properties from
``encode_publish_properties``, body.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from tidegate.spi import LocalProtocolError
from tidegate_protocols.mqtt.codec.codes import (
    PACKET_REASONS,
    PacketType,
    PacketViolationError,
)
from tidegate_protocols.mqtt.codec.connect import connect_parts
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
from tidegate_protocols.mqtt.codec.properties import NO_PROPERTIES, Properties
from tidegate_protocols.mqtt.codec.property_blocks import encode_properties
from tidegate_protocols.mqtt.codec.validate_v5 import validate_v5

#: First byte of the packets, with their mandatory flags [MQTT-2.1.3-1].
_FIRST: Final[Mapping[type, int]] = {
    Connect: 0x10,
    Connack: 0x20,
    Puback: 0x40,
    Pubrec: 0x50,
    Pubrel: 0x62,
    Pubcomp: 0x70,
    Subscribe: 0x82,
    Suback: 0x90,
    Unsubscribe: 0xA2,
    Unsuback: 0xB0,
    Pingreq: 0xC0,
    Pingresp: 0xD0,
    Disconnect: 0xE0,
    Auth: 0xF0,
}


def encode_within(packet: Packet, packet_bytes_max: int, *, with_problems: bool = True) -> bytes:
    """Encode *packet* for a client that accepts at most *packet_bytes_max* bytes.

    If it is too large, its user properties and then its reason string are left out
    [MQTT-3.2.2-19] [MQTT-3.4.2-2] [MQTT-3.14.2-3]; those of a PUBLISH belong to the message and
    stay.

    Args: with_problems: False when the client asked for no problem information: only CONNACK,
        PUBLISH and DISCONNECT then have a reason string or user properties [MQTT-3.1.2-29].
    Returns: b"" when it is still too large and must not be sent [MQTT-3.1.2-24].
    Raises: LocalProtocolError, as encode.
    """
    if not with_problems and type(packet) not in _ALWAYS_WITH_PROBLEMS:
        packet = _without(packet, user_properties=(), reason_string=None)
    data = encode_v5(packet)
    if len(data) > packet_bytes_max and type(packet) is not Publish:
        packet = _without(packet, user_properties=())
        data = encode_v5(packet)
        if len(data) > packet_bytes_max:
            data = encode_v5(_without(packet, reason_string=None))
    return data if len(data) <= packet_bytes_max else b""


_ALWAYS_WITH_PROBLEMS: Final = frozenset({Connack, Publish, Disconnect})


def _without(packet: Packet, **changes: Any) -> Packet:
    properties = getattr(packet, "properties", NO_PROPERTIES)
    if properties is NO_PROPERTIES:
        return packet
    properties = msgspec.structs.replace(properties, **changes)
    if properties == NO_PROPERTIES:
        properties = NO_PROPERTIES
    return msgspec.structs.replace(packet, properties=properties)


def encode_v5(packet: Packet) -> bytes:
    """Encode any packet of MQTT 5.0. Raises: LocalProtocolError for one that is not allowed."""
    try:
        validate_v5(packet)
    except PacketViolationError as error:
        raise LocalProtocolError(error.problem) from error
    if isinstance(packet, Publish):
        return _encode_publish(packet)
    kind = type(packet)
    return packet_of(_FIRST[kind], *_ENCODERS[kind](packet))


def _encode_publish(packet: Publish) -> bytes:
    return packet_of(
        0x30 | packet.dup << 3 | packet.qos << 1 | packet.retain,
        string_field(packet.topic),
        packet.packet_id.to_bytes(2, "big") if packet.qos else b"",
        encode_properties(packet.properties, PacketType.PUBLISH),
        packet.body,
    )


def _connack_parts(packet: Connack) -> list[bytes]:
    return [
        bytes((packet.session_present, _reason(packet.reason_code, PacketType.CONNACK))),
        encode_properties(packet.properties, PacketType.CONNACK),
    ]


def _acknowledgement_parts(packet: Puback | Pubrec | Pubrel | Pubcomp) -> list[bytes]:
    kind = PacketType(_FIRST[type(packet)] >> 4)
    return [
        packet.packet_id.to_bytes(2, "big"),
        *_reason_and_properties(packet.reason_code, packet.properties, kind),
    ]


def _subscribe_parts(packet: Subscribe) -> list[bytes]:
    parts = [
        packet.packet_id.to_bytes(2, "big"),
        encode_properties(packet.properties, PacketType.SUBSCRIBE),
    ]
    for request in packet.requests:
        options = (
            request.qos
            | request.no_local << 2
            | request.retain_as_published << 3
            | request.retain_handling << 4
        )
        parts += (string_field(request.topic_filter), bytes((options,)))
    return parts


def _suback_parts(packet: Suback | Unsuback) -> list[bytes]:
    kind = PacketType.SUBACK if type(packet) is Suback else PacketType.UNSUBACK
    return [
        packet.packet_id.to_bytes(2, "big"),
        encode_properties(packet.properties, kind),
        bytes([_reason(code, kind) for code in packet.reason_codes]),
    ]


def _unsubscribe_parts(packet: Unsubscribe) -> list[bytes]:
    return [
        packet.packet_id.to_bytes(2, "big"),
        encode_properties(packet.properties, PacketType.UNSUBSCRIBE),
        *(string_field(topic_filter) for topic_filter in packet.topic_filters),
    ]


def _disconnect_parts(packet: Disconnect) -> list[bytes]:
    return _reason_and_properties(packet.reason_code, packet.properties, PacketType.DISCONNECT)


def _auth_parts(packet: Auth) -> list[bytes]:
    return _reason_and_properties(packet.reason_code, packet.properties, PacketType.AUTH)


def _reason_and_properties(code: int, properties: Properties, kind: PacketType) -> list[bytes]:
    """The end of a packet, omitted as far as the protocol allows."""
    reason = bytes((_reason(code, kind),))
    if properties is not NO_PROPERTIES:
        return [reason, encode_properties(properties, kind)]
    return [reason] if code else []


def _reason(code: int, kind: PacketType) -> int:
    if code not in PACKET_REASONS[kind]:
        raise LocalProtocolError(f"{kind.name} cannot carry reason {code:#x}")
    return code


def _nothing(_packet: Pingreq | Pingresp) -> list[bytes]:
    return []


_ENCODERS: Final[Mapping[type, Callable[[Any], list[bytes]]]] = {
    Connect: connect_parts,
    Connack: _connack_parts,
    Puback: _acknowledgement_parts,
    Pubrec: _acknowledgement_parts,
    Pubrel: _acknowledgement_parts,
    Pubcomp: _acknowledgement_parts,
    Subscribe: _subscribe_parts,
    Suback: _suback_parts,
    Unsubscribe: _unsubscribe_parts,
    Unsuback: _suback_parts,
    Pingreq: _nothing,
    Pingresp: _nothing,
    Disconnect: _disconnect_parts,
    Auth: _auth_parts,
}
