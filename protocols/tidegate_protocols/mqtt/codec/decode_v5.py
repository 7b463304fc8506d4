"""Bytes of one MQTT 5.0 packet to its value, as ``decode`` does for the older versions.

Clause ids in errors are written ``5.0:MQTT-…``; in comments here they are all of MQTT 5.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from tidegate_protocols.mqtt.codec.codes import (
    PACKET_REASONS,
    MalformedPacketError,
    PacketType,
    ReasonCode,
)
from tidegate_protocols.mqtt.codec.fields import (
    CLAUSES_5_0,
    PUBLISH_FLAGS,
    check_end,
    check_filter_count,
    read_filters,
    read_packet_id,
    read_string,
    read_variable,
    text_of,
)
from tidegate_protocols.mqtt.codec.packets import (
    Auth,
    Connack,
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
    TopicRequest,
    Unsuback,
    Unsubscribe,
)
from tidegate_protocols.mqtt.codec.properties import NO_PROPERTIES, Properties
from tidegate_protocols.mqtt.codec.property_blocks import PUBLISH_BLOCKS, read_properties


def decode_publish_v5(first: int, buffer: bytes, start: int, stop: int) -> Publish:
    """Read the PUBLISH whose variable header begins at *start* (section 3.3).

    Works on the receive buffer itself: the only copies are the topic, the properties and the body.
    """
    qos, retain, dup = PUBLISH_FLAGS[first & 15]
    if qos == 3:
        raise MalformedPacketError("PUBLISH with QoS 3", "5.0:MQTT-3.3.1-4")
    topic_start = start + 2
    topic_stop = topic_start + (buffer[start] << 8 | buffer[start + 1]) if stop > start + 1 else 0
    at = topic_stop + 2 if qos else topic_stop
    if not topic_stop or at >= stop:
        raise MalformedPacketError("PUBLISH ends inside its header", "5.0:MQTT-3.3.2-1")
    try:
        topic = buffer[topic_start:topic_stop].decode()
    except UnicodeDecodeError:
        topic = "\0"  # text_of says what is wrong
    if "\0" in topic:
        topic = text_of(buffer[topic_start:topic_stop], "topic name", CLAUSES_5_0)
    length = buffer[at]
    at += 1
    if length:
        if length > 127:
            length, at = read_variable(buffer, at - 1, stop, "property length")
        block_start = at
        at += length
        if at > stop:
            raise MalformedPacketError("PUBLISH ends inside its properties", "MQTT 5.0 2.2.2.1")
        properties = PUBLISH_BLOCKS[buffer[block_start:at]]
    else:
        properties = NO_PROPERTIES
    return Publish(
        topic,
        buffer[at:stop],
        qos,
        buffer[topic_stop] << 8 | buffer[topic_stop + 1] if qos else 0,
        retain,
        dup,
        properties,
    )


def decode_v5(first: int, body: bytes) -> Packet:
    """Read one packet of any type but CONNECT and PUBLISH. Args: as for ``decode.decode``."""
    kind = first >> 4
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise MalformedPacketError(f"packet type {kind} is reserved", "MQTT 5.0 2.1.2")
    flags = first & 0x0F
    if flags != (0x02 if kind in _FLAGS_2 else 0):
        raise MalformedPacketError(
            f"flags {flags:#x} in packet type {kind}",
            _FLAG_CLAUSES.get(kind, "5.0:MQTT-2.1.3-1"),
        )
    return decoder(body)


_FLAGS_2: Final = frozenset({PacketType.PUBREL, PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE})
_FLAG_CLAUSES: Final[Mapping[int, str]] = {
    PacketType.PUBREL: "5.0:MQTT-3.6.1-1",
    PacketType.SUBSCRIBE: "5.0:MQTT-3.8.1-1",
    PacketType.UNSUBSCRIBE: "5.0:MQTT-3.10.1-1",
    PacketType.DISCONNECT: "5.0:MQTT-3.14.1-1",
    PacketType.AUTH: "5.0:MQTT-3.15.1-1",
}

_REASON_CLAUSES: Final[Mapping[PacketType, str]] = {
    PacketType.CONNACK: "5.0:MQTT-3.2.2-8",
    PacketType.PUBACK: "5.0:MQTT-3.4.2-1",
    PacketType.PUBREC: "5.0:MQTT-3.5.2-1",
    PacketType.PUBREL: "5.0:MQTT-3.6.2-1",
    PacketType.PUBCOMP: "5.0:MQTT-3.7.2-1",
    PacketType.SUBACK: "5.0:MQTT-3.9.3-2",
    PacketType.UNSUBACK: "5.0:MQTT-3.11.3-2",
    PacketType.DISCONNECT: "5.0:MQTT-3.14.2-1",
    PacketType.AUTH: "5.0:MQTT-3.15.2-1",
}


def _reason_of(byte: int, kind: PacketType) -> ReasonCode:
    reason = PACKET_REASONS[kind].get(byte)
    if reason is None:
        raise MalformedPacketError(f"{kind.name} with reason {byte:#x}", _REASON_CLAUSES[kind])
    return reason


def _reason_and_properties(body: bytes, at: int, kind: PacketType) -> tuple[ReasonCode, Properties]:
    """Read the end of a packet whose reason and properties may be left out.

    AUTH may omit them only together (section 3.15.2.1). Args: at: where the reason would be.
    """
    if at == len(body):
        return ReasonCode.SUCCESS, NO_PROPERTIES
    reason = _reason_of(body[at], kind)
    at += 1
    if at == len(body) and kind is not PacketType.AUTH:
        return reason, NO_PROPERTIES
    properties, at = read_properties(body, at, kind)
    check_end(body, at, kind.name, CLAUSES_5_0)
    return reason, properties


def _decode_acknowledgement(
    kind: PacketType, make: Callable[[int, ReasonCode, Properties], Packet], body: bytes
) -> Packet:
    packet_id = read_packet_id(body, CLAUSES_5_0)
    return make(packet_id, *_reason_and_properties(body, 2, kind))


def _decode_connack(body: bytes) -> Connack:
    if len(body) < 3:
        raise MalformedPacketError("CONNACK ends inside its header", "MQTT 5.0 3.2.2")
    if body[0] > 1:
        raise MalformedPacketError("a reserved CONNACK flag is set", "5.0:MQTT-3.2.2-1")
    reason = _reason_of(body[1], PacketType.CONNACK)
    properties, at = read_properties(body, 2, PacketType.CONNACK)
    check_end(body, at, "CONNACK", CLAUSES_5_0)
    return Connack(body[0] == 1, reason, properties)


def _decode_subscribe(body: bytes) -> Subscribe:
    packet_id = read_packet_id(body, CLAUSES_5_0)
    properties, at = read_properties(body, 2, PacketType.SUBSCRIBE)
    requests: list[TopicRequest] = []
    while at < len(body):
        check_filter_count(len(requests))
        topic_filter, at = read_string(body, at, "topic filter", CLAUSES_5_0)  # [MQTT-3.8.3-1]
        if at == len(body):
            raise MalformedPacketError("a topic filter without options", "MQTT 5.0 3.8.3")
        options = body[at]
        if options & 0xC0:
            raise MalformedPacketError("a reserved subscription option", "5.0:MQTT-3.8.3-5")
        requests.append(
            TopicRequest(
                topic_filter,
                options & 0x03,
                options & 0x04 == 0x04,
                options & 0x08 == 0x08,
                options >> 4,
            )
        )
        at += 1
    return Subscribe(packet_id, tuple(requests), properties)


def _decode_unsubscribe(body: bytes) -> Unsubscribe:
    packet_id = read_packet_id(body, CLAUSES_5_0)
    properties, at = read_properties(body, 2, PacketType.UNSUBSCRIBE)
    return Unsubscribe(packet_id, read_filters(body, at, CLAUSES_5_0), properties)


def _read_reasons(body: bytes, kind: PacketType) -> tuple[int, tuple[ReasonCode, ...], Properties]:
    packet_id = read_packet_id(body, CLAUSES_5_0)
    properties, at = read_properties(body, 2, kind)
    check_filter_count(len(body) - at - 1)
    return packet_id, tuple(_reason_of(byte, kind) for byte in body[at:]), properties


def _decode_disconnect(body: bytes) -> Disconnect:
    if not body:
        return _DISCONNECT
    return Disconnect(*_reason_and_properties(body, 0, PacketType.DISCONNECT))


def _decode_auth(body: bytes) -> Auth:
    return Auth(*_reason_and_properties(body, 0, PacketType.AUTH))


def _empty(packet: Packet, body: bytes) -> Packet:
    check_end(body, 0, type(packet).__name__, CLAUSES_5_0)
    return packet


_DISCONNECT: Final = Disconnect()

_DECODERS: Final[Mapping[int, Callable[[bytes], Packet]]] = {
    PacketType.CONNACK: _decode_connack,
    PacketType.PUBACK: partial(_decode_acknowledgement, PacketType.PUBACK, Puback),
    PacketType.PUBREC: partial(_decode_acknowledgement, PacketType.PUBREC, Pubrec),
    PacketType.PUBREL: partial(_decode_acknowledgement, PacketType.PUBREL, Pubrel),
    PacketType.PUBCOMP: partial(_decode_acknowledgement, PacketType.PUBCOMP, Pubcomp),
    PacketType.SUBSCRIBE: _decode_subscribe,
    PacketType.SUBACK: lambda body: Suback(*_read_reasons(body, PacketType.SUBACK)),
    PacketType.UNSUBSCRIBE: _decode_unsubscribe,
    PacketType.UNSUBACK: lambda body: Unsuback(*_read_reasons(body, PacketType.UNSUBACK)),
    PacketType.PINGREQ: partial(_empty, Pingreq()),
    PacketType.PINGRESP: partial(_empty, Pingresp()),
    PacketType.DISCONNECT: _decode_disconnect,
    PacketType.AUTH: _decode_auth,
}
