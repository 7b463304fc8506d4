"""Every way in which bytes can be no packet, with the clause that says so."""

import pytest

from tidegate.spi import PeerProtocolError
from tidegate_protocols.mqtt import Codec, MalformedPacketError, UnsupportedVersionError
from tidegate_protocols.mqtt._decode import FILTERS_PER_PACKET_MAX, decode

HEAD = b"\x00\x04MQTT\x04"  # protocol name, level
TAIL = b"\x00\x00\x00\x01c"  # keep-alive 0, client id "c"


def packet(first: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    assert len(body) < 128
    return bytes((first, len(body))) + body


# (what is wrong, the packet, the clause)
MALFORMED = [
    ("packet type 0", packet(0x00), "MQTT 3.1.1 2.2.1"),
    ("packet type 15", packet(0xF0), "MQTT 3.1.1 2.2.1"),
    # Flags of the fixed header that must be 0, and those that must be 0010.
    ("CONNECT with flags", packet(0x11, HEAD, b"\x02", TAIL), "MQTT-2.2.2-2"),
    ("PUBACK with flags", packet(0x41, b"\0\1"), "MQTT-2.2.2-2"),
    ("PUBREL without flags", packet(0x60, b"\0\1"), "MQTT-2.2.2-2"),
    ("PUBREL with DUP", packet(0x6A, b"\0\1"), "MQTT-2.2.2-2"),
    ("SUBSCRIBE without flags", packet(0x80, b"\0\1\0\1a\0"), "MQTT-2.2.2-2"),
    ("UNSUBSCRIBE without flags", packet(0xA0, b"\0\1\0\1a"), "MQTT-2.2.2-2"),
    ("PINGREQ with flags", packet(0xC1), "MQTT-2.2.2-2"),
    ("DISCONNECT with flags", packet(0xE2), "MQTT-2.2.2-2"),
    # CONNECT
    ("another protocol name", packet(0x10, b"\x00\x04HTTP\x04\x02", TAIL), "MQTT-3.1.2-1"),
    ("a protocol name cut short", packet(0x10, b"\x00\x04MQ"), "MQTT 3.1.1 1.5.3"),
    ("CONNECT of no bytes", packet(0x10), "MQTT 3.1.1 1.5.3"),
    ("CONNECT without keep-alive", packet(0x10, HEAD, b"\x02"), "MQTT-3.1.4-1"),
    ("the reserved connect flag", packet(0x10, HEAD, b"\x03", TAIL), "MQTT-3.1.2-3"),
    ("will QoS without will", packet(0x10, HEAD, b"\x0a", TAIL), "MQTT-3.1.2-13"),
    ("will retain without will", packet(0x10, HEAD, b"\x22", TAIL), "MQTT-3.1.2-15"),
    ("will QoS 3", packet(0x10, HEAD, b"\x1e", TAIL, b"\0\1w\0\1m"), "MQTT-3.1.2-14"),
    ("password alone", packet(0x10, HEAD, b"\x42", TAIL, b"\0\1p"), "MQTT-3.1.2-22"),
    ("no client id", packet(0x10, HEAD, b"\x02\x00\x00"), "MQTT 3.1.1 1.5.3"),
    ("a client id cut short", packet(0x10, HEAD, b"\x02\x00\x00\x00\x05c"), "MQTT 3.1.1 1.5.3"),
    ("a client id not UTF-8", packet(0x10, HEAD, b"\x02\0\0\0\1\xff"), "MQTT-1.5.3-1"),
    ("a client id with U+0000", packet(0x10, HEAD, b"\x02\0\0\0\1\0"), "MQTT-1.5.3-2"),
    ("a will flag without will", packet(0x10, HEAD, b"\x06", TAIL), "MQTT 3.1.1 1.5.3"),
    ("a will topic not UTF-8", packet(0x10, HEAD, b"\x06", TAIL, b"\0\1\x80\0\0"), "MQTT-1.5.3-1"),
    ("a user flag without user", packet(0x10, HEAD, b"\x82", TAIL), "MQTT 3.1.1 1.5.3"),
    (
        "a password flag without one",
        packet(0x10, HEAD, b"\xc2", TAIL, b"\0\1u"),
        "MQTT 3.1.1 1.5.3",
    ),
    ("bytes behind the last field", packet(0x10, HEAD, b"\x02", TAIL, b"x"), "MQTT 3.1.1 2.2.3"),
    # CONNACK, SUBACK: what a client of ours would refuse
    ("CONNACK with a reserved flag", packet(0x20, b"\x02\x00"), "MQTT 3.1.1 3.2.2"),
    ("CONNACK of one byte", packet(0x20, b"\x00"), "MQTT 3.1.1 3.2.2"),
    ("SUBACK with a reserved code", packet(0x90, b"\0\1\x03"), "MQTT-3.9.3-2"),
    # PUBLISH
    ("PUBLISH with QoS 3", packet(0x36, b"\0\1a\0\1"), "MQTT-3.3.1-4"),
    ("PUBLISH of no bytes", packet(0x30), "MQTT-3.3.2-1"),
    ("PUBLISH of one byte", packet(0x30, b"\0"), "MQTT-3.3.2-1"),
    ("a topic cut short", packet(0x30, b"\0\2a"), "MQTT-3.3.2-1"),
    ("QoS 1 without a packet id", packet(0x32, b"\0\1a\0"), "MQTT-3.3.2-1"),
    ("a topic not UTF-8", packet(0x30, b"\0\1\xc3"), "MQTT-1.5.3-1"),
    ("a topic with a surrogate", packet(0x30, b"\0\3\xed\xa0\x80"), "MQTT-1.5.3-1"),
    ("a topic with an overlong slash", packet(0x30, b"\0\2\xc0\xaf"), "MQTT-1.5.3-1"),
    ("a topic with U+0000", packet(0x30, b"\0\3a\0b"), "MQTT-1.5.3-2"),
    # packets that are only a packet id
    ("PUBACK of one byte", packet(0x40, b"\1"), "MQTT 3.1.1 2.2.3"),
    ("PUBACK of three bytes", packet(0x40, b"\0\1\0"), "MQTT 3.1.1 2.2.3"),
    ("PUBREC of no bytes", packet(0x50), "MQTT 3.1.1 2.2.3"),
    ("UNSUBACK of three bytes", packet(0xB0, b"\0\1\0"), "MQTT 3.1.1 2.2.3"),
    # SUBSCRIBE, UNSUBSCRIBE
    ("SUBSCRIBE of one byte", packet(0x82, b"\0"), "MQTT-2.3.1-1"),
    ("a filter cut short", packet(0x82, b"\0\1\0\5a"), "MQTT 3.1.1 1.5.3"),
    ("a filter without QoS", packet(0x82, b"\0\1\0\1a"), "MQTT 3.1.1 3.8.3"),
    ("requested QoS 3", packet(0x82, b"\0\1\0\1a\3"), "MQTT-3-8.3-4"),
    ("reserved bits by the QoS", packet(0x82, b"\0\1\0\1a\x04"), "MQTT-3-8.3-4"),
    ("a filter not UTF-8", packet(0x82, b"\0\1\0\1\xfe\0"), "MQTT-1.5.3-1"),
    ("UNSUBSCRIBE of one byte", packet(0xA2, b"\0"), "MQTT-2.3.1-1"),
    ("half a length", packet(0xA2, b"\0\1\0"), "MQTT 3.1.1 1.5.3"),
    # packets without content
    ("PINGREQ with content", packet(0xC0, b"\0"), "MQTT 3.1.1 2.2.3"),
    ("DISCONNECT with content", packet(0xE0, b"\0"), "MQTT 3.1.1 2.2.3"),
]


def feed(wire: bytes, step: int) -> None:
    codec = Codec(1 << 20)
    for start in range(0, len(wire), step):
        codec.receive_data(wire[start : start + step])
        codec.next_event()


@pytest.mark.parametrize("step", [1, 1000], ids=["byte by byte", "whole"])
@pytest.mark.parametrize(
    ("wire", "clause"), [case[1:] for case in MALFORMED], ids=[case[0] for case in MALFORMED]
)
def test_malformed_bytes_are_refused_with_their_clause(wire, clause, step):
    with pytest.raises(MalformedPacketError) as caught:
        feed(wire, step)
    assert caught.value.clause == clause
    assert caught.value.wire_code == 0x81


@pytest.mark.parametrize(
    ("name", "level"),
    [(b"MQTT", 5), (b"MQTT", 3), (b"MQTT", 0), (b"MQTT", 0x84), (b"MQIsdp", 4), (b"MQIsdp", 0x83)],
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


@pytest.mark.parametrize(("first", "entry"), [(0x82, b"\0\1a\0"), (0xA2, b"\0\1a")])
def test_one_packet_holds_a_bounded_number_of_filters(first, entry):
    decode(first, b"\0\1" + entry * FILTERS_PER_PACKET_MAX, 4)
    with pytest.raises(PeerProtocolError, match="topic filters"):
        decode(first, b"\0\1" + entry * (FILTERS_PER_PACKET_MAX + 1), 4)
