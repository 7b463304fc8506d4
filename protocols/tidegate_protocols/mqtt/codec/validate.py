"""Checks that the content of a readable packet is allowed.

Errors here are :class:`PacketViolationError`: legal bytes, illegal content. Which packet may come
when is the session's table, in ``states``. MQTT 5.0 packets are checked in ``validate_v5``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from tidegate_protocols.mqtt.codec.codes import LEVEL_3_1_1, LEVEL_5_0, PacketViolationError
from tidegate_protocols.mqtt.codec.packets import (
    Connack,
    Connect,
    Packet,
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
from tidegate_protocols.mqtt.codec.validate_v5 import FilterClauses, check_filter, validate_v5

_FILTERS_3_1_1: Final = FilterClauses("MQTT-4.7.3-1", "MQTT-4.7.1-2", "MQTT-4.7.1-3")


def validate_publish(packet: Publish) -> None:
    """Check a PUBLISH. Separate from :func:`validate` because it is called for every message."""
    topic = packet.topic
    if not topic:
        raise PacketViolationError("the topic name is empty", "MQTT-4.7.3-1")
    if "+" in topic or "#" in topic:
        raise PacketViolationError("the topic name contains a wildcard", "MQTT-3.3.2-2")
    if packet.qos:
        if not packet.packet_id:
            raise PacketViolationError("packet identifier 0", "MQTT-2.3.1-1")
    elif packet.dup:
        raise PacketViolationError("DUP in a PUBLISH of QoS 0", "MQTT-3.3.1-2")


def validate(packet: Packet, level: int = LEVEL_3_1_1) -> None:
    """Check one packet of any type as one of protocol *level*; CONNECT brings its own.

    Raises: PacketViolationError with the clause.
    """
    if type(packet) is Connect:
        level = packet.level
    if level == LEVEL_5_0:
        validate_v5(packet)
        return
    check = _CHECKS.get(type(packet))
    if check is not None:
        check(packet)


def _validate_connect(packet: Connect) -> None:
    will = packet.will
    if will is not None:
        if not will.topic:
            raise PacketViolationError("an empty will topic", "MQTT-4.7.3-1")
        if "+" in will.topic or "#" in will.topic:
            raise PacketViolationError("a wildcard in the will topic", "MQTT-4.7.1-1")


def _validate_connack(packet: Connack) -> None:
    if packet.reason_code > 5:
        raise PacketViolationError("a reserved CONNACK return code", "MQTT 3.1.1 3.2.2.3")
    if packet.reason_code and packet.session_present:
        raise PacketViolationError("session present in a refusing CONNACK", "MQTT-3.2.2-4")


def _validate_subscribe(packet: Subscribe) -> None:
    _validate_packet_id(packet)
    if not packet.requests:
        raise PacketViolationError("SUBSCRIBE without a topic filter", "MQTT-3.8.3-3")
    for request in packet.requests:
        check_filter(request.topic_filter, _FILTERS_3_1_1)


def _validate_unsubscribe(packet: Unsubscribe) -> None:
    _validate_packet_id(packet)
    if not packet.topic_filters:
        raise PacketViolationError("UNSUBSCRIBE without a topic filter", "MQTT-3.10.3-2")
    for topic_filter in packet.topic_filters:
        check_filter(topic_filter, _FILTERS_3_1_1)


def _validate_packet_id(
    packet: Puback | Pubrec | Pubrel | Pubcomp | Subscribe | Suback | Unsubscribe | Unsuback,
) -> None:
    if not packet.packet_id:
        raise PacketViolationError("packet identifier 0", "MQTT-2.3.1-1")


_CHECKS: Final[Mapping[type, Callable[[Any], None]]] = {
    Connect: _validate_connect,
    Connack: _validate_connack,
    Publish: validate_publish,
    Puback: _validate_packet_id,
    Pubrec: _validate_packet_id,
    Pubrel: _validate_packet_id,
    Pubcomp: _validate_packet_id,
    Subscribe: _validate_subscribe,
    Suback: _validate_packet_id,
    Unsubscribe: _validate_unsubscribe,
    Unsuback: _validate_packet_id,
}
