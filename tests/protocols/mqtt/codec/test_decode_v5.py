"""Every way in which bytes can be no packet of MQTT 5.0, with the clause that says so."""

import mqtt_cases
import mqtt_wrong_v5
import pytest
from mqtt_cases import assert_refused

from tidegate.spi import PeerProtocolError
from tidegate_protocols.mqtt import (
    MalformedPacketError,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
)
from tidegate_protocols.mqtt.codec.codes import PACKET_REASONS, PacketType
from tidegate_protocols.mqtt.codec.decode_v5 import decode_publish_v5, decode_v5
from tidegate_protocols.mqtt.codec.fields import FILTERS_PER_PACKET_MAX
from tidegate_protocols.mqtt.codec.properties import NO_PROPERTIES, Properties

MALFORMED = mqtt_wrong_v5.MALFORMED


@pytest.mark.parametrize("step", [1, 1000], ids=["byte by byte", "whole"])
@pytest.mark.parametrize("case", mqtt_cases.params(MALFORMED))
def test_malformed_bytes_are_refused_with_their_clause(case, step):
    assert_refused(case, step)


@pytest.mark.parametrize("case", mqtt_cases.params(MALFORMED))
def test_malformed_bytes_are_refused_with_others_behind_them(case):
    assert_refused(case, 1000, b"\xc0\x00")


def test_a_publish_is_read_in_the_middle_of_a_buffer():
    buffer = b"before\x00\x01t\x00\x07\x03\x03\x00\x00body after"
    packet = decode_publish_v5(0x32, buffer, 6, len(buffer) - 6)
    assert packet == Publish("t", b"body", 1, 7, properties=Properties(content_type=""))


@pytest.mark.parametrize(
    ("first", "head", "entry"),
    [
        (0x82, b"\0\1\0", b"\0\1a\0"),
        (0xA2, b"\0\1\0", b"\0\1a"),
        (0x90, b"\0\1\0", b"\0"),
        (0xB0, b"\0\1\0", b"\0"),
    ],
    ids=["SUBSCRIBE", "UNSUBSCRIBE", "SUBACK", "UNSUBACK"],
)
def test_one_packet_holds_a_bounded_number_of_filters(first, head, entry):
    decode_v5(first, head + entry * FILTERS_PER_PACKET_MAX)
    with pytest.raises(PeerProtocolError, match="topic filters") as caught:
        decode_v5(first, head + entry * (FILTERS_PER_PACKET_MAX + 1))
    assert caught.value.wire_code == ReasonCode.QUOTA_EXCEEDED


#: The packets whose reason is one byte: (first byte, what stands before the reason, behind it).
WITH_REASON = [
    (PacketType.CONNACK, 0x20, b"\0", b"\0"),
    (PacketType.PUBACK, 0x40, b"\0\1", b""),
    (PacketType.PUBREC, 0x50, b"\0\1", b""),
    (PacketType.PUBREL, 0x62, b"\0\1", b""),
    (PacketType.PUBCOMP, 0x70, b"\0\1", b""),
    (PacketType.SUBACK, 0x90, b"\0\1\0", b""),
    (PacketType.UNSUBACK, 0xB0, b"\0\1\0", b""),
    (PacketType.DISCONNECT, 0xE0, b"", b""),
    (PacketType.AUTH, 0xF0, b"", b"\0"),
]


@pytest.mark.mqtt_clause(
    "5.0:MQTT-3.2.2-8",
    "5.0:MQTT-3.4.2-1",
    "5.0:MQTT-3.5.2-1",
    "5.0:MQTT-3.6.2-1",
    "5.0:MQTT-3.7.2-1",
    "5.0:MQTT-3.9.3-2",
    "5.0:MQTT-3.11.3-2",
    "5.0:MQTT-3.14.2-1",
    "5.0:MQTT-3.15.2-1",
)
@pytest.mark.parametrize(
    ("kind", "first", "before", "behind"), WITH_REASON, ids=[case[0].name for case in WITH_REASON]
)
def test_a_packet_carries_the_reasons_of_its_table_and_no_other(kind, first, before, behind):
    for byte in range(256):
        body = before + bytes((byte,)) + behind
        if byte in PACKET_REASONS[kind]:
            packet = decode_v5(first, body)
            several = getattr(packet, "reason_codes", ())
            found = several[0] if several else getattr(packet, "reason_code", None)
            assert found is ReasonCode(byte)
        else:
            with pytest.raises(MalformedPacketError, match=kind.name):
                decode_v5(first, body)


def test_the_short_forms_mean_success_without_properties():
    for first, body in ((0x40, b"\0\1"), (0x50, b"\0\1"), (0x62, b"\0\1"), (0x70, b"\0\1")):
        packet = decode_v5(first, body)
        assert isinstance(packet, Puback | Pubrec | Pubrel | Pubcomp)
        assert packet.reason_code is ReasonCode.SUCCESS
        assert packet.properties is NO_PROPERTIES
