"""Encoding: what cannot be said is our own fault, and headers are exact at every boundary."""

import pytest

from tidegate.spi import LocalProtocolError
from tidegate_protocols.mqtt import (
    Connack,
    Connect,
    Disconnect,
    Puback,
    Publish,
    ReasonCode,
    Suback,
    Subscribe,
    TopicRequest,
    Unsuback,
    Will,
    encode,
)
from tidegate_protocols.mqtt.codec.encode import acknowledgement, connack
from tidegate_protocols.mqtt.codec.packets import Auth
from tidegate_protocols.mqtt.codec.properties import Properties

SOME = Properties(user_properties=(("k", "v"),))


@pytest.mark.parametrize(
    "packet",
    [
        Publish("a/#", b""),
        Subscribe(1, ()),
        Connect(client_id="c", password=b"alone"),
        Publish("t" * 65_536, b""),
        Connect(client_id="a\0b"),
        Connect(client_id="c", username="\ud800"),
        Subscribe(1, (TopicRequest("a\0b", 0),)),
    ],
    ids=[
        "wildcard topic",
        "no filter",
        "password alone",
        "topic too long",
        "U+0000 in a client id",
        "surrogate in a user name",
        "U+0000 in a filter",
    ],
)
def test_what_the_protocol_does_not_allow_is_our_mistake(packet):
    with pytest.raises(LocalProtocolError):
        encode(packet)


@pytest.mark.parametrize("level", [3, 4])
@pytest.mark.parametrize(
    "packet",
    [
        Publish("t", b"", properties=SOME),
        Connack(False, 0, SOME),
        Puback(1, ReasonCode.QUOTA_EXCEEDED),
        Puback(1, properties=SOME),
        Subscribe(1, (TopicRequest("a", 0, True),)),
        Subscribe(1, (TopicRequest("a", 0, False, True),)),
        Subscribe(1, (TopicRequest("a", 0, False, False, 1),)),
        Subscribe(1, (TopicRequest("a", 0),), SOME),
        Suback(1, (0,), SOME),
        Unsuback(1, (ReasonCode.SUCCESS,)),
        Disconnect(ReasonCode.DISCONNECT_WITH_WILL),
        Auth(),
        Connect(client_id="c", properties=SOME),
        Connect(client_id="c", will=Will("w", b"", properties=SOME)),
    ],
    ids=repr,
)
def test_what_came_with_5_0_cannot_be_written_before_it(packet, level):
    with pytest.raises(LocalProtocolError):
        encode(packet, level)


def test_an_acknowledgement_is_four_bytes():
    assert acknowledgement(0x4002, 0x0102) == b"\x40\x02\x01\x02"


@pytest.mark.parametrize(
    ("reason", "level", "wire"),
    [
        (ReasonCode.SUCCESS, 4, b"\x20\x02\x01\x00"),
        (ReasonCode.SUCCESS, 3, b"\x20\x02\x00\x00"),  # the flag came with 3.1.1
        (ReasonCode.UNSUPPORTED_PROTOCOL_VERSION, 0, b"\x20\x02\x00\x01"),
        (ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, 4, b"\x20\x02\x00\x02"),
        (ReasonCode.SERVER_UNAVAILABLE, 4, b"\x20\x02\x00\x03"),
        (ReasonCode.BAD_USER_NAME_OR_PASSWORD, 3, b"\x20\x02\x00\x04"),
        (ReasonCode.NOT_AUTHORIZED, 4, b"\x20\x02\x00\x05"),
        (ReasonCode.UNSUPPORTED_PROTOCOL_VERSION, 5, b"\x20\x03\x00\x84\x00"),
        (ReasonCode.SUCCESS, 5, b"\x20\x03\x01\x00\x00"),
        (ReasonCode.PACKET_TOO_LARGE, 5, b"\x20\x03\x00\x95\x00"),
        (ReasonCode.PACKET_TOO_LARGE, 4, b""),  # 3.1.1 has no code for it [MQTT-3.2.2-6]
    ],
)
def test_connack_says_the_reason_in_the_clients_version(reason, level, wire):
    assert connack(True, reason, level) == wire
