"""Bytes of one packet to its value. What cannot be read is a :class:`MalformedPacketError`.

MQTT 3.1 and 3.1.1 are here, MQTT 5.0 is in ``decode_v5``. Pure functions; whether the content is allowed is checked
in ``validate``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tidegate_protocols.mqtt.codec.codes import (
    LEVEL_3_1,
    LEVEL_5_0,
    MalformedPacketError,
    PacketType,
)
from tidegate_protocols.mqtt.codec.connect import decode_connect
from tidegate_protocols.mqtt.codec.decode_v5 import decode_publish_v5, decode_v5
from tidegate_protocols.mqtt.codec.fields import (
    PUBLISH_FLAGS,
    check_end,
    check_filter_count,
    read_filters,
    read_packet_id,
    read_string,
    text_of,
)
from tidegate_protocols.mqtt.codec.packets import (
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


def decode_publish(first: int, buffer: bytes, start: int, stop: int) -> Publish:
    """Read the PUBLISH whose variable header begins at *start* (section 3.3).

    Works on the receive buffer itself: the only copies are the topic and the body.
    """
    qos, retain, dup = PUBLISH_FLAGS[first & 15]
    if qos == 3:
        raise MalformedPacketError("PUBLISH with QoS 3", "MQTT-3.3.1-4")
    topic_start = start + 2
    topic_stop = topic_start + (buffer[start] << 8 | buffer[start + 1]) if stop > start + 1 else 0
    body_start = topic_stop + 2 if qos else topic_stop
    if not topic_stop or body_start > stop:
        raise MalformedPacketError("PUBLISH ends inside its header", "MQTT-3.3.2-1")
    try:
        topic = buffer[topic_start:topic_stop].decode()
    except UnicodeDecodeError:
        topic = "\0"  # text_of says what is wrong
    if "\0" in topic:
        topic = text_of(buffer[topic_start:topic_stop], "topic name")
    return Publish(
        topic,
        buffer[body_start:stop],
        qos,
        buffer[topic_stop] << 8 | buffer[topic_stop + 1] if qos else 0,
        retain,
        dup,
    )


def decode(first: int, body: bytes, level: int) -> Packet:
    """Read one packet.

    Args:
        first: the first byte of the fixed header.
        body: everything after the remaining length.
        level: protocol level of the connection (ignored for CONNECT, which brings its own).
    Raises: MalformedPacketError; UnsupportedVersionError.
    """
    kind = first >> 4
    if level == LEVEL_5_0 and kind != PacketType.CONNECT:
        if kind == PacketType.PUBLISH:
            return decode_publish_v5(first, body, 0, len(body))
        return decode_v5(first, body)
    if kind == PacketType.PUBLISH:
        return decode_publish(first, body, 0, len(body))
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise MalformedPacketError(f"packet type {kind} is reserved", "MQTT 3.1.1 2.2.1")
    flags = first & 0x0F
    if level == LEVEL_3_1:
        # MQTT 3.1 section 2.1 gives PUBREL, SUBSCRIBE and UNSUBSCRIBE the DUP flag; the flags of the
        # others have no meaning there.
        flags = flags & ~0x08 if kind in _FLAGS_2 else 0
    if flags != (0x02 if kind in _FLAGS_2 else 0):
        raise MalformedPacketError(f"flags {flags:#x} in packet type {kind}", "MQTT-2.2.2-2")
    return decoder(body)


_FLAGS_2: Final = frozenset({PacketType.PUBREL, PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE})


def _decode_connack(body: bytes) -> Connack:
    if len(body) != 2 or body[0] > 1:
        raise MalformedPacketError("CONNACK of a wrong form", "MQTT 3.1.1 3.2.2")
    return Connack(body[0] == 1, body[1])


def _decode_subscribe(body: bytes) -> Subscribe:
    packet_id = read_packet_id(body)
    requests: list[TopicRequest] = []
    at = 2
    while at < len(body):
        check_filter_count(len(requests))
        topic_filter, at = read_string(body, at, "topic filter")  # [MQTT-3.8.3-1]
        if at == len(body):
            raise MalformedPacketError("a topic filter without its QoS", "MQTT 3.1.1 3.8.3")
        if body[at] > 2:
            raise MalformedPacketError(f"requested QoS byte {body[at]:#x}", "MQTT-3.8.3-4")
        requests.append(TopicRequest(topic_filter, body[at]))
        at += 1
    return Subscribe(packet_id, tuple(requests))


def _decode_suback(body: bytes) -> Suback:
    packet_id = read_packet_id(body)
    check_filter_count(len(body) - 3)
    codes = tuple(body[2:])
    if any(code > 2 and code != 0x80 for code in codes):
        raise MalformedPacketError("a reserved SUBACK return code", "MQTT-3.9.3-2")
    return Suback(packet_id, codes)


def _decode_unsubscribe(body: bytes) -> Unsubscribe:
    return Unsubscribe(read_packet_id(body), read_filters(body, 2))


def _only_packet_id(body: bytes) -> int:
    check_end(body, 2, "packet")
    return read_packet_id(body)


def _empty(packet: Packet) -> Callable[[bytes], Packet]:
    def check(body: bytes) -> Packet:
        check_end(body, 0, type(packet).__name__)
        return packet

    return check


_DECODERS: Final[Mapping[int, Callable[[bytes], Packet]]] = {
    PacketType.CONNECT: decode_connect,
    PacketType.CONNACK: _decode_connack,
    PacketType.PUBACK: lambda body: Puback(_only_packet_id(body)),
    PacketType.PUBREC: lambda body: Pubrec(_only_packet_id(body)),
    PacketType.PUBREL: lambda body: Pubrel(_only_packet_id(body)),  # flags: [MQTT-3.6.1-1]
    PacketType.PUBCOMP: lambda body: Pubcomp(_only_packet_id(body)),
    PacketType.SUBSCRIBE: _decode_subscribe,  # flags: [MQTT-3.8.1-1]
    PacketType.SUBACK: _decode_suback,
    PacketType.UNSUBSCRIBE: _decode_unsubscribe,  # flags: [MQTT-3.10.1-1]
    PacketType.UNSUBACK: lambda body: Unsuback(_only_packet_id(body)),
    PacketType.PINGREQ: _empty(Pingreq()),
    PacketType.PINGRESP: _empty(Pingresp()),
    PacketType.DISCONNECT: _empty(Disconnect()),  # flags: [MQTT-3.14.1-1]
}
