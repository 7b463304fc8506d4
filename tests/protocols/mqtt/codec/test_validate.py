"""Packets that can be read and still break a rule."""

import mqtt_cases
import pytest

from tidegate_protocols.mqtt import (
    Codec,
    Connect,
    MalformedPacketError,
    PacketViolationError,
    Pingreq,
    Publish,
    validate,
)
from tidegate_protocols.mqtt.codec.properties import Properties


@pytest.mark.parametrize("case", mqtt_cases.params(mqtt_cases.VIOLATIONS))
def test_a_violation_is_named_with_its_clause(case):
    with pytest.raises(PacketViolationError) as caught:
        validate(case.packet)
    assert caught.value.clause == case.clause
    assert caught.value.wire_code == case.reason


# (what is wrong, the bytes): the codec validates what it decoded.
ON_THE_WIRE = [
    ("PUBLISH with a wildcard", b"\x30\x03\x00\x01#"),
    ("PUBLISH with an empty topic", b"\x30\x02\x00\x00"),
    ("PUBLISH with packet id 0", b"\x32\x05\x00\x01a\x00\x00"),
    ("PUBLISH with DUP and QoS 0", b"\x38\x03\x00\x01a"),
    ("PUBACK with packet id 0", b"\x40\x02\x00\x00"),
    ("SUBSCRIBE to nothing", b"\x82\x02\x00\x01"),
]


@pytest.mark.parametrize("wire", [case[1] for case in ON_THE_WIRE], ids=[c[0] for c in ON_THE_WIRE])
def test_a_violation_on_the_wire_is_not_called_malformed(wire):
    codec = Codec(1 << 20)
    codec.receive_data(wire)
    with pytest.raises(PacketViolationError) as caught:
        codec.next_event()
    assert not isinstance(caught.value, MalformedPacketError)


def test_a_packet_without_content_has_nothing_to_check():
    validate(Pingreq())


def test_the_level_chooses_the_rules():
    by_alias = Publish("", b"", properties=Properties(topic_alias=1))
    validate(by_alias, 5)
    with pytest.raises(PacketViolationError):
        validate(by_alias, 4)


def test_a_connect_brings_its_own_level():
    packet = Connect(client_id="c", level=5, properties=Properties(receive_maximum=0))
    with pytest.raises(PacketViolationError):
        validate(packet, 4)
