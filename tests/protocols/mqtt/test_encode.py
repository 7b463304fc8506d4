"""Encoding: what cannot be said is our own fault, and headers are exact at every boundary."""

import pytest

from tidegate.spi import LocalProtocolError
from tidegate_protocols.mqtt import Connect, Publish, ReasonCode, Subscribe, encode
from tidegate_protocols.mqtt._encode import (
    REMAINING_LENGTH_MAX,
    acknowledgement,
    connack,
    field,
    fixed_header,
)


@pytest.mark.parametrize(
    ("remaining", "wire"),
    [
        # MQTT 3.1.1 table 2.4
        (0, b"\x00"),
        (127, b"\x7f"),
        (128, b"\x80\x01"),
        (16_383, b"\xff\x7f"),
        (16_384, b"\x80\x80\x01"),
        (2_097_151, b"\xff\xff\x7f"),
        (2_097_152, b"\x80\x80\x80\x01"),
        (268_435_455, b"\xff\xff\xff\x7f"),
    ],
)
def test_a_remaining_length_takes_one_to_four_bytes(remaining, wire):
    assert fixed_header(0x30, remaining) == b"\x30" + wire


def test_a_longer_remaining_length_cannot_be_said():
    with pytest.raises(LocalProtocolError):
        fixed_header(0x30, REMAINING_LENGTH_MAX + 1)


def test_a_field_has_at_most_65535_bytes():
    assert field(b"x" * 65_535)[:2] == b"\xff\xff"
    with pytest.raises(LocalProtocolError):
        field(b"x" * 65_536)


@pytest.mark.parametrize(
    "packet",
    [
        Publish("a/#", b""),
        Subscribe(1, ()),
        Connect(client_id="c", password=b"alone"),
        Publish("t" * 65_536, b""),
    ],
    ids=["wildcard topic", "no filter", "password alone", "topic too long"],
)
def test_what_the_protocol_does_not_allow_is_our_mistake(packet):
    with pytest.raises(LocalProtocolError):
        encode(packet)


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
        (ReasonCode.PACKET_TOO_LARGE, 4, b""),  # 3.1.1 has no code for it [MQTT-3.2.2-6]
    ],
)
def test_connack_says_the_reason_in_the_clients_version(reason, level, wire):
    assert connack(True, reason, level) == wire
