"""The table of codes."""

from tidegate.spi import PeerProtocolError
from tidegate_protocols.mqtt import (
    MalformedPacketError,
    PacketType,
    PacketViolationError,
    ReasonCode,
    UnsupportedVersionError,
)
from tidegate_protocols.mqtt.codec.codes import (
    CLIENT_DISCONNECT_REASONS,
    CONNACK_RETURN_CODES,
    PACKET_REASONS,
    VERSION_NAMES,
)


def test_packet_types_fill_the_nibble_without_the_forbidden_zero():
    assert [int(kind) for kind in PacketType] == list(range(1, 16))


def test_connack_return_codes_are_those_of_table_3_1():
    assert sorted(CONNACK_RETURN_CODES.values()) == [0, 1, 2, 3, 4, 5]


#: MQTT 5.0 table 2-6: the byte and the packets that may carry it.
REASONS = """
00 CONNACK PUBACK PUBREC PUBREL PUBCOMP UNSUBACK AUTH DISCONNECT SUBACK
01 SUBACK
02 SUBACK
04 DISCONNECT
10 PUBACK PUBREC
11 UNSUBACK
18 AUTH
19 AUTH
80 CONNACK PUBACK PUBREC SUBACK UNSUBACK DISCONNECT
81 CONNACK DISCONNECT
82 CONNACK DISCONNECT
83 CONNACK PUBACK PUBREC SUBACK UNSUBACK DISCONNECT
84 CONNACK
85 CONNACK
86 CONNACK
87 CONNACK PUBACK PUBREC SUBACK UNSUBACK DISCONNECT
88 CONNACK
89 CONNACK DISCONNECT
8a CONNACK
8b DISCONNECT
8c CONNACK DISCONNECT
8d DISCONNECT
8e DISCONNECT
8f SUBACK UNSUBACK DISCONNECT
90 CONNACK PUBACK PUBREC DISCONNECT
91 PUBACK PUBREC SUBACK UNSUBACK
92 PUBREL PUBCOMP
93 DISCONNECT
94 DISCONNECT
95 CONNACK DISCONNECT
96 DISCONNECT
97 CONNACK PUBACK PUBREC SUBACK DISCONNECT
98 DISCONNECT
99 CONNACK PUBACK PUBREC DISCONNECT
9a CONNACK DISCONNECT
9b CONNACK DISCONNECT
9c CONNACK DISCONNECT
9d CONNACK DISCONNECT
9e SUBACK DISCONNECT
9f CONNACK DISCONNECT
a0 DISCONNECT
a1 SUBACK DISCONNECT
a2 SUBACK DISCONNECT
"""


def test_reasons_and_their_packets_are_those_of_table_2_6():
    table = {}
    for line in REASONS.split("\n"):
        if line:
            number, *packets = line.split()
            table[int(number, 16)] = set(packets)
    assert {int(code) for code in ReasonCode} == set(table)
    for code, packets in table.items():
        assert {kind.name for kind, codes in PACKET_REASONS.items() if code in codes} == packets
    assert all(codes[byte] == byte for codes in PACKET_REASONS.values() for byte in codes)


def test_a_client_disconnects_with_the_reasons_of_table_3_10():
    assert set(PACKET_REASONS[PacketType.DISCONNECT]) > CLIENT_DISCONNECT_REASONS
    assert sorted(CLIENT_DISCONNECT_REASONS) == [
        *(0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x90),
        *(0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99),
    ]


def test_a_violation_may_have_a_reason_of_its_own():
    error = PacketViolationError("no", "5.0:MQTT-3.3.2-8", ReasonCode.TOPIC_ALIAS_INVALID)
    assert error.wire_code is ReasonCode.TOPIC_ALIAS_INVALID


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
    assert VERSION_NAMES == {3: "3.1", 4: "3.1.1", 5: "5.0"}
