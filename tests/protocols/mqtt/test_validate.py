"""Packets that can be read and still break a rule."""

import pytest

from tidegate_protocols.mqtt import (
    Codec,
    Connack,
    Connect,
    MalformedPacketError,
    PacketViolationError,
    Pingreq,
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
    validate,
)

VIOLATIONS = [
    ("an empty topic", Publish("", b""), "MQTT-4.7.3-1"),
    ("+ in a topic", Publish("a/+", b""), "MQTT-3.3.2-2"),
    ("# in a topic", Publish("#", b""), "MQTT-3.3.2-2"),
    ("PUBLISH with packet id 0", Publish("a", b"", 1, 0), "MQTT-2.3.1-1"),
    ("DUP with QoS 0", Publish("a", b"", 0, 0, False, True), "MQTT-3.3.1-2"),
    ("an empty will topic", Connect(client_id="c", will=Will("", b"")), "MQTT-4.7.3-1"),
    ("a wildcard will topic", Connect(client_id="c", will=Will("a/#", b"")), "MQTT-4.7.1-1"),
    ("CONNACK refusing a session", Connack(True, 5), "MQTT-3.2.2-4"),
    ("CONNACK with a reserved code", Connack(False, 6), "MQTT 3.1.1 3.2.2.3"),
    *(
        (f"{kind.__name__} with packet id 0", kind(0), "MQTT-2.3.1-1")
        for kind in (Puback, Pubrec, Pubrel, Pubcomp, Unsuback)
    ),
    ("SUBACK with packet id 0", Suback(0, (0,)), "MQTT-2.3.1-1"),
    ("SUBSCRIBE with packet id 0", Subscribe(0, (TopicRequest("a", 0),)), "MQTT-2.3.1-1"),
    ("SUBSCRIBE to nothing", Subscribe(1, ()), "MQTT-3.8.3-3"),
    ("SUBSCRIBE to an empty filter", Subscribe(1, (TopicRequest("", 0),)), "MQTT-4.7.3-1"),
    ("UNSUBSCRIBE with packet id 0", Unsubscribe(0, ("a",)), "MQTT-2.3.1-1"),
    ("UNSUBSCRIBE from nothing", Unsubscribe(1, ()), "MQTT-3.10.3-2"),
    ("UNSUBSCRIBE from an empty filter", Unsubscribe(1, ("a", "")), "MQTT-4.7.3-1"),
]


@pytest.mark.parametrize(
    ("packet", "clause"), [case[1:] for case in VIOLATIONS], ids=[case[0] for case in VIOLATIONS]
)
def test_a_violation_is_named_with_its_clause(packet, clause):
    with pytest.raises(PacketViolationError) as caught:
        validate(packet)
    assert caught.value.clause == clause
    assert caught.value.wire_code == 0x82


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
