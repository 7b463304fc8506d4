"""Every way in which bytes can be no packet, with the clause that says so."""

import mqtt_cases
import pytest
from mqtt_cases import assert_refused

from tidegate.spi import PeerProtocolError
from tidegate_protocols.mqtt import Codec, MalformedPacketError, UnsupportedVersionError
from tidegate_protocols.mqtt.codec.connect import level_of_connect
from tidegate_protocols.mqtt.codec.decode import decode
from tidegate_protocols.mqtt.codec.fields import FILTERS_PER_PACKET_MAX


@pytest.mark.parametrize("step", [1, 1000], ids=["byte by byte", "whole"])
@pytest.mark.parametrize("case", mqtt_cases.params(mqtt_cases.MALFORMED))
def test_malformed_bytes_are_refused_with_their_clause(case, step):
    assert_refused(case, step)


@pytest.mark.parametrize("case", mqtt_cases.params(mqtt_cases.MALFORMED))
def test_malformed_bytes_are_refused_with_others_behind_them(case):
    assert_refused(case, 1000, b"\xc0\x00")


@pytest.mark.parametrize(
    ("name", "level"),
    [(b"MQTT", 6), (b"MQTT", 3), (b"MQTT", 0), (b"MQTT", 0x84), (b"MQIsdp", 4), (b"MQIsdp", 0x83)],
)
def test_another_version_is_named_whatever_follows(name, level):
    codec = Codec(1 << 20)
    body = len(name).to_bytes(2, "big") + name + bytes((level,)) + b"\x02\x00\x00\x05\xff\xff"
    codec.receive_data(bytes((0x10, len(body))) + body)
    with pytest.raises(UnsupportedVersionError) as caught:
        codec.next_event()
    assert caught.value.level == level
    assert caught.value.wire_code == 0x84


def test_will_qos_3_is_malformed_in_3_1_too():
    body = b"\x00\x06MQIsdp\x03\x1e\x00\x00\x00\x01c\x00\x01w\x00\x01m"
    with pytest.raises(MalformedPacketError, match="will QoS 3"):
        decode(0x10, body, 4)


@pytest.mark.parametrize(("first", "entry"), [(0x82, b"\0\1a\0"), (0xA2, b"\0\1a"), (0x90, b"\0")])
def test_one_packet_holds_a_bounded_number_of_filters(first, entry):
    decode(first, b"\0\1" + entry * FILTERS_PER_PACKET_MAX, 4)
    with pytest.raises(PeerProtocolError, match="topic filters") as caught:
        decode(first, b"\0\1" + entry * (FILTERS_PER_PACKET_MAX + 1), 4)
    assert caught.value.wire_code == 0x97


@pytest.mark.parametrize(
    ("wire", "level"),
    [
        (b"\x00\x04MQTT\x05", 5),
        (b"\x00\x04MQTT\x04 and more", 4),
        (b"\x00\x06MQIsdp\x03", 3),
        (b"\x00\x04MQTT\x06", 0),
        (b"\x00\x04MQTT", 0),
        (b"", 0),
    ],
)
def test_the_level_of_a_connect_is_read_from_its_first_bytes(wire, level):
    assert level_of_connect(b"\x10\x07" + wire, 2) == level
