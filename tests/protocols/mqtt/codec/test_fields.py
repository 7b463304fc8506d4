"""Lengths and fields at every boundary, read and written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.spi import LocalProtocolError
from tidegate_protocols.mqtt import MalformedPacketError
from tidegate_protocols.mqtt.codec.fields import (
    CLAUSES_3_1_1,
    CLAUSES_5_0,
    REMAINING_LENGTH_MAX,
    check_end,
    check_filter_count,
    field,
    fixed_header,
    read_bytes,
    read_packet_id,
    read_string,
    read_variable,
    string_field,
    text_of,
    variable_bytes,
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


@pytest.mark.mqtt_clause("3.1.1:MQTT-4.7.3-3", "5.0:MQTT-4.7.3-3")
def test_a_field_has_at_most_65535_bytes():
    assert field(b"x" * 65_535)[:2] == b"\xff\xff"
    with pytest.raises(LocalProtocolError):
        field(b"x" * 65_536)


#: Values beside their bytes (MQTT 5.0 table 1-1).
VARIABLE = [
    (0, b"\x00"),
    (127, b"\x7f"),
    (128, b"\x80\x01"),
    (16_383, b"\xff\x7f"),
    (16_384, b"\x80\x80\x01"),
    (2_097_151, b"\xff\xff\x7f"),
    (2_097_152, b"\x80\x80\x80\x01"),
    (268_435_455, b"\xff\xff\xff\x7f"),
]


@pytest.mark.mqtt_clause("5.0:MQTT-1.5.5-1")
@pytest.mark.parametrize(("value", "wire"), VARIABLE)
def test_a_variable_byte_integer_takes_as_few_bytes_as_it_needs(value, wire):
    assert variable_bytes(value) == wire
    assert read_variable(b"x" + wire + b"y", 1, len(wire) + 1, "number") == (value, len(wire) + 1)


@given(st.integers(0, 268_435_455))
def test_every_variable_byte_integer_survives(value):
    wire = variable_bytes(value)
    assert read_variable(wire, 0, len(wire), "number") == (value, len(wire))


@pytest.mark.mqtt_clause("5.0:MQTT-1.5.5-1")
@pytest.mark.parametrize("wire", [b"\x80\x00", b"\xff\x80\x00", b"\x80\x80\x80\x80\x01"])
def test_a_variable_byte_integer_of_too_many_bytes_is_malformed(wire):
    with pytest.raises(MalformedPacketError) as caught:
        read_variable(wire, 0, len(wire), "number")
    assert caught.value.clause == "5.0:MQTT-1.5.5-1"


def test_a_variable_byte_integer_ends_where_it_is_told_to():
    with pytest.raises(MalformedPacketError, match="ends inside its number"):
        read_variable(b"\x80\x01", 0, 1, "number")


def test_a_larger_variable_byte_integer_cannot_be_said():
    with pytest.raises(LocalProtocolError):
        variable_bytes(REMAINING_LENGTH_MAX + 1)


@pytest.mark.parametrize("clauses", [CLAUSES_3_1_1, CLAUSES_5_0])
def test_fields_are_refused_with_the_clause_of_their_version(clauses):
    for read, wire, clause in (
        (read_bytes, b"\0\2a", clauses.ends),
        (read_bytes, b"\0", clauses.ends),
        (read_string, b"\0\1\xff", clauses.utf8),
        (read_string, b"\0\3\xed\xa0\x80", clauses.utf8),
        (read_string, b"\0\1\0", clauses.null),
        (read_string, b"\0\2a", clauses.ends),
        (read_string, b"", clauses.ends),
    ):
        with pytest.raises(MalformedPacketError, match="name") as caught:
            read(wire, 0, "name", clauses)
        assert caught.value.clause == clause
    with pytest.raises(MalformedPacketError) as caught:
        read_packet_id(b"\1", clauses)
    assert caught.value.clause == clauses.packet_id
    with pytest.raises(MalformedPacketError) as caught:
        check_end(b"abc", 2, "it", clauses)
    assert caught.value.clause == clauses.length


def test_fields_are_read_where_they_stand():
    assert read_bytes(b"x\0\2\xff\0y", 1, "it") == (b"\xff\0", 5)
    assert read_string(b"x\0\3\xe2\x82\xacy", 1, "it") == ("€", 6)
    assert read_string(b"\0\0", 0, "it") == ("", 2)
    assert read_packet_id(b"\1\2\3") == 258
    assert text_of(b"a", "it") == "a"
    check_end(b"ab", 2, "it")
    check_filter_count(0)


@pytest.mark.parametrize("text", ["a\0b", "\ud800", "x" * 65_536])
def test_text_that_mqtt_cannot_say_is_not_written(text):
    with pytest.raises(LocalProtocolError):
        string_field(text)


def test_text_is_written_as_utf8_behind_its_length():
    assert string_field("€") == b"\0\3\xe2\x82\xac"
