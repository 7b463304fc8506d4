"""The table of codes."""

from tidegate.spi import PeerProtocolError
from tidegate_protocols.mqtt import (
    MalformedPacketError,
    PacketType,
    PacketViolationError,
    ReasonCode,
    UnsupportedVersionError,
)
from tidegate_protocols.mqtt._codes import CONNACK_RETURN_CODES, VERSION_NAMES


def test_packet_types_fill_the_nibble_without_the_forbidden_zero():
    assert [int(kind) for kind in PacketType] == list(range(1, 16))


def test_connack_return_codes_are_those_of_table_3_1():
    assert sorted(CONNACK_RETURN_CODES.values()) == [0, 1, 2, 3, 4, 5]


def test_reason_codes_of_failures_have_the_high_bit():
    assert all(code >= 0x80 for code in ReasonCode if code is not ReasonCode.SUCCESS)


def test_errors_carry_their_code_and_name_their_clause():
    malformed = MalformedPacketError("bad", "MQTT-1.5.3-1")
    violation = PacketViolationError("worse", "MQTT-3.1.0-2")
    version = UnsupportedVersionError(9)
    assert [error.wire_code for error in (malformed, violation, version)] == [0x81, 0x82, 0x84]
    assert str(malformed) == "bad [MQTT-1.5.3-1]"
    assert violation.clause == "MQTT-3.1.0-2"
    assert version.level == 9
    assert all(isinstance(error, PeerProtocolError) for error in (malformed, violation, version))


def test_versions_are_named_by_level():
    assert VERSION_NAMES == {3: "3.1", 4: "3.1.1"}
