"""CONNECT, the packet that determines the version of the others: bytes to value and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tidegate_protocols.mqtt.codec.codes import (
    LEVEL_3_1,
    LEVEL_5_0,
    VERSIONS,
    MalformedPacketError,
    PacketType,
    UnsupportedVersionError,
)
from tidegate_protocols.mqtt.codec.fields import (
    CLAUSES_3_1_1,
    CLAUSES_5_0,
    check_end,
    field,
    read_bytes,
    read_string,
    string_field,
)
from tidegate_protocols.mqtt.codec.packets import Connect, Will
from tidegate_protocols.mqtt.codec.properties import NO_PROPERTIES, WILL
from tidegate_protocols.mqtt.codec.property_blocks import encode_properties, read_properties

#: Clauses about the connect flags, MQTT 5.0 or before: the reserved one, a will QoS of 3, one without
#: a will, will retain without a will.
_FLAG_CLAUSES: Final[Mapping[bool, tuple[str, str, str, str]]] = {
    False: ("MQTT-3.1.2-3", "MQTT-3.1.2-14", "MQTT-3.1.2-13", "MQTT-3.1.2-15"),
    True: ("5.0:MQTT-3.1.2-3", "5.0:MQTT-3.1.2-12", "5.0:MQTT-3.1.2-11", "5.0:MQTT-3.1.2-13"),
}


def level_of_connect(body: bytes, at: int) -> int:
    """The protocol level of a CONNECT that may be unreadable, so that the answer can be in its version;
    0 when it is none of :data:`VERSIONS`. Args: at: where the protocol name is."""
    for (name, level), _ in VERSIONS.items():
        head = len(name).to_bytes(2, "big") + name + bytes((level,))
        if body.startswith(head, at):
            return level
    return 0


def decode_connect(body: bytes) -> Connect:
    """Read what follows the remaining length. Raises: MalformedPacketError; UnsupportedVersionError."""
    name, at = read_bytes(body, 0, "protocol name")
    if name not in (b"MQTT", b"MQIsdp"):
        raise MalformedPacketError(f"unknown protocol name {name[:16]!r}", "MQTT-3.1.2-1")
    if at + 4 > len(body):
        raise MalformedPacketError("CONNECT ends inside its header", "MQTT-3.1.4-1")
    level = body[at]
    if (name, level) not in VERSIONS:
        raise UnsupportedVersionError(level)  # [MQTT-3.1.2-2]
    flags = body[at + 1]
    keep_alive = body[at + 2] << 8 | body[at + 3]
    at += 4
    _check_flags(flags, level)
    is_v5 = level == LEVEL_5_0
    clauses = CLAUSES_5_0 if is_v5 else CLAUSES_3_1_1
    properties = will_properties = NO_PROPERTIES
    if is_v5:
        properties, at = read_properties(body, at, PacketType.CONNECT)
    # The order of the fields: [MQTT-3.1.3-1]. Clauses of MQTT 5.0 follow a slash.
    client_id, at = read_string(body, at, "client id", clauses)  # [MQTT-3.1.3-4]
    will = None
    if flags & 0x04:  # [MQTT-3.1.2-9]
        if is_v5:
            will_properties, at = read_properties(body, at, WILL)
        topic, at = read_string(
            body, at, "will topic", clauses
        )  # [MQTT-3.1.3-10] / [MQTT-3.1.3-11]
        will_body, at = read_bytes(body, at, "will payload", clauses)
        will = Will(topic, will_body, flags >> 3 & 3, flags & 0x20 == 0x20, will_properties)
    username = password = None
    # MQTT 3.1 section 3.1: the remaining length overrides the user name and password flags.
    lenient = level == LEVEL_3_1
    if flags & 0x80 and not (lenient and at == len(body)):
        # [MQTT-3.1.2-19], [MQTT-3.1.3-11] / [MQTT-3.1.2-17], [MQTT-3.1.3-12]
        username, at = read_string(body, at, "user name", clauses)
    if flags & 0x40 and not (lenient and at == len(body)):
        # [MQTT-3.1.2-21] / [MQTT-3.1.2-19]; in 5.0 also without a user name
        password, at = read_bytes(body, at, "password", clauses)
    check_end(body, at, "CONNECT", clauses)
    return Connect(
        client_id=client_id,
        clean_session=flags & 0x02 == 0x02,
        keep_alive=keep_alive,
        username=username,
        password=password,
        will=will,
        level=level,
        properties=properties,
    )


def _check_flags(flags: int, level: int) -> None:
    if level == LEVEL_3_1:
        if flags & 0x18 == 0x18 and flags & 0x04:
            raise MalformedPacketError("will QoS 3", "MQTT 3.1 3.1")
        return
    reserved, qos_3, qos, retain = _FLAG_CLAUSES[level == LEVEL_5_0]
    if flags & 0x01:
        raise MalformedPacketError("the reserved connect flag is set", reserved)
    if flags & 0x04:
        if flags & 0x18 == 0x18:
            raise MalformedPacketError("will QoS 3", qos_3)
    elif flags & 0x18:
        raise MalformedPacketError("will QoS without a will", qos)
    elif flags & 0x20:
        raise MalformedPacketError("will retain without a will", retain)
    if flags & 0xC0 == 0x40 and level != LEVEL_5_0:
        raise MalformedPacketError("a password without a user name", "MQTT-3.1.2-22")


def connect_parts(packet: Connect) -> list[bytes]:
    """What follows the remaining length. The caller has checked the packet."""
    will, is_v5 = packet.will, packet.level == LEVEL_5_0
    flags = packet.clean_session << 1
    if will is not None:
        flags |= 0x04 | will.qos << 3 | will.retain << 5
    flags |= (packet.username is not None) << 7 | (packet.password is not None) << 6
    parts = [
        field(b"MQIsdp" if packet.level == LEVEL_3_1 else b"MQTT"),
        bytes((packet.level, flags)),
        packet.keep_alive.to_bytes(2, "big"),
    ]
    if is_v5:
        parts.append(encode_properties(packet.properties, PacketType.CONNECT))
    parts.append(string_field(packet.client_id))  # [MQTT-3.1.3-1]: the order of the fields
    if will is not None:
        if is_v5:
            parts.append(encode_properties(will.properties, WILL))
        parts += (string_field(will.topic), field(will.body))
    if packet.username is not None:
        parts.append(string_field(packet.username))
    if packet.password is not None:
        parts.append(field(packet.password))
    return parts
