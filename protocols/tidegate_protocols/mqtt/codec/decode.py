"""Bytes of one packet to its value. What cannot be read is a :class:`MalformedPacketError`.

MQTT 3.1 and 3.1.1 are here, MQTT 5.0 in ``decode_v5``. Pure functions; whether what was read is allowed is asked in ``validate``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tidegate_protocols.mqtt.codec.codes import (
    LEVEL_3_1,
    LEVEL_5_0,
    VERSIONS,
    MalformedPacketError,
    PacketType,
    UnsupportedVersionError,
)
from tidegate_protocols.mqtt.codec.decode_v5 import decode_connect_v5, decode_publish_v5, decode_v5
from tidegate_protocols.mqtt.codec.fields import (
    PUBLISH_FLAGS,
    check_end,
    check_filter_count,
    read_bytes,
    read_packet_id,
    read_string,
    text_of,
)
from tidegate_protocols.mqtt.codec.packets import (
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
    TopicRequest,
    Unsuback,
    Unsubscribe,
    Will,
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
        body: everything behind the remaining length, whole.
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
        # MQTT 3.1 section 2.1 gives PUBREL, SUBSCRIBE and UNSUBSCRIBE the DUP flag, and the flags
        # of the others have no meaning there.
        flags = flags & ~0x08 if kind in _FLAGS_2 else 0
    if flags != (0x02 if kind in _FLAGS_2 else 0):
        raise MalformedPacketError(f"flags {flags:#x} in packet type {kind}", "MQTT-2.2.2-2")
    return decoder(body)


def level_of_connect(body: bytes, at: int) -> int:
    """The protocol level of a CONNECT that perhaps cannot be read, so that the answer can be in
    its version; 0 when it is none of :data:`VERSIONS`. Args: at: where the protocol name is."""
    for (name, level), _ in VERSIONS.items():
        head = len(name).to_bytes(2, "big") + name + bytes((level,))
        if body.startswith(head, at):
            return level
    return 0


_FLAGS_2: Final = frozenset({PacketType.PUBREL, PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE})


def _decode_connect(body: bytes) -> Connect:
    name, at = read_bytes(body, 0, "protocol name")
    if name not in (b"MQTT", b"MQIsdp"):
        raise MalformedPacketError(f"protocol name {name[:16]!r}", "MQTT-3.1.2-1")
    if at + 4 > len(body):
        raise MalformedPacketError("CONNECT ends inside its header", "MQTT-3.1.4-1")
    level = body[at]
    if (name, level) not in VERSIONS:
        raise UnsupportedVersionError(level)  # [MQTT-3.1.2-2]
    flags = body[at + 1]
    keep_alive = body[at + 2] << 8 | body[at + 3]
    at += 4
    if level == LEVEL_5_0:
        return decode_connect_v5(body, at, flags, keep_alive)
    _check_connect_flags(flags, level)
    client_id, at = read_string(body, at, "client id")  # [MQTT-3.1.3-3], [MQTT-3.1.3-4]
    will = None
    if flags & 0x04:
        topic, at = read_string(body, at, "will topic")  # [MQTT-3.1.3-10]
        will_body, at = read_bytes(body, at, "will message")  # [MQTT-3.1.2-9]
        will = Will(topic, will_body, flags >> 3 & 3, flags & 0x20 == 0x20)
    username = password = None
    # MQTT 3.1 section 3.1: the remaining length goes before the user name and password flags.
    lenient = level == LEVEL_3_1
    if flags & 0x80 and not (lenient and at == len(body)):
        username, at = read_string(body, at, "user name")  # [MQTT-3.1.2-19], [MQTT-3.1.3-11]
    if flags & 0x40 and not (lenient and at == len(body)):
        password, at = read_bytes(body, at, "password")  # [MQTT-3.1.2-21]
    check_end(body, at, "CONNECT")
    return Connect(
        client_id=client_id,
        clean_session=flags & 0x02 == 0x02,
        keep_alive=keep_alive,
        username=username,
        password=password,
        will=will,
        level=level,
    )


def _check_connect_flags(flags: int, level: int) -> None:
    if level == LEVEL_3_1:
        if flags & 0x18 == 0x18 and flags & 0x04:
            raise MalformedPacketError("will QoS 3", "MQTT 3.1 3.1")
        return
    if flags & 0x01:
        raise MalformedPacketError("the reserved connect flag is set", "MQTT-3.1.2-3")
    if flags & 0x04:
        if flags & 0x18 == 0x18:
            raise MalformedPacketError("will QoS 3", "MQTT-3.1.2-14")
    elif flags & 0x18:
        raise MalformedPacketError("will QoS without a will", "MQTT-3.1.2-13")
    elif flags & 0x20:
        raise MalformedPacketError("will retain without a will", "MQTT-3.1.2-15")
    if flags & 0xC0 == 0x40:
        raise MalformedPacketError("a password without a user name", "MQTT-3.1.2-22")


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
    packet_id = read_packet_id(body)
    filters: list[str] = []
    at = 2
    while at < len(body):
        check_filter_count(len(filters))
        topic_filter, at = read_string(body, at, "topic filter")  # [MQTT-3.10.3-1]
        filters.append(topic_filter)
    return Unsubscribe(packet_id, tuple(filters))


def _only_packet_id(body: bytes) -> int:
    check_end(body, 2, "packet")
    return read_packet_id(body)


def _empty(packet: Packet) -> Callable[[bytes], Packet]:
    def check(body: bytes) -> Packet:
        check_end(body, 0, type(packet).__name__)
        return packet

    return check


_DECODERS: Final[Mapping[int, Callable[[bytes], Packet]]] = {
    PacketType.CONNECT: _decode_connect,
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
