"""Properties to bytes and back, and the parts that the sending side puts together."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.spi import LocalProtocolError, PeerProtocolError
from tidegate_protocols.mqtt import PacketType
from tidegate_protocols.mqtt.codec.properties import (
    NO_PROPERTIES,
    PROPERTIES,
    WILL,
    Properties,
    PropertyType,
)
from tidegate_protocols.mqtt.codec.property_blocks import (
    CACHE_COUNT_MAX,
    CACHED_BLOCK_BYTES_MAX,
    PROPERTIES_PER_PACKET_MAX,
    PUBLISH_BLOCKS,
    decode_properties,
    encode_message_properties,
    encode_properties,
    encode_publish_properties,
    encode_subscription_identifiers,
    read_properties,
)

PUBLISH = PacketType.PUBLISH


@pytest.mark.mqtt_clause("5.0:MQTT-2.2.2-1")
def test_no_properties_are_a_length_of_0_and_one_value():
    assert encode_properties(NO_PROPERTIES, PUBLISH) == b"\0"
    assert encode_publish_properties() == b"\0"
    assert read_properties(b"x\0y", 1, PUBLISH) == (NO_PROPERTIES, 2)
    assert read_properties(b"x\0y", 1, PUBLISH)[0] is NO_PROPERTIES
    assert decode_properties(b"", PUBLISH) is NO_PROPERTIES


texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)


@pytest.mark.mqtt_clause("5.0:MQTT-3.3.2-18")
@given(
    payload_format_indicator=st.none() | st.integers(0, 1),
    message_expiry_interval=st.none() | st.integers(0, 0xFFFF_FFFF),
    content_type=st.none() | texts,
    response_topic=st.none() | texts,
    correlation_data=st.none() | st.binary(max_size=20),
    user_properties=st.lists(st.tuples(texts, texts), max_size=5).map(tuple),
    subscription_identifiers=st.lists(st.integers(1, 268_435_455), max_size=3).map(tuple),
    topic_alias=st.none() | st.integers(1, 65535),
)
def test_the_parts_of_a_publish_come_to_the_same_as_its_properties(
    message_expiry_interval, subscription_identifiers, topic_alias, **message
):
    wire = encode_publish_properties(
        encode_message_properties(**message),
        message_expiry_interval=message_expiry_interval,
        topic_alias=topic_alias or 0,
        subscription_identifiers=encode_subscription_identifiers(subscription_identifiers),
    )
    found, stop = read_properties(wire, 0, PUBLISH)
    assert stop == len(wire)
    assert found == Properties(
        message_expiry_interval=message_expiry_interval,
        subscription_identifiers=subscription_identifiers,
        topic_alias=topic_alias,
        **message,
    )
    again = encode_properties(found, PUBLISH)
    assert read_properties(again, 0, PUBLISH) == (found, len(again))
    assert len(again) == len(wire)


def test_a_long_block_has_a_length_of_two_bytes():
    wire = encode_publish_properties(encode_message_properties(content_type="c" * 125))
    assert wire[:2] == b"\x80\x01"
    assert len(wire) == 130


@pytest.mark.parametrize("text", ["a\0b", "\ud800", "x" * 65_536])
def test_a_message_with_text_that_mqtt_cannot_say_is_refused(text):
    attempts: list[dict[str, Any]] = [
        {"content_type": text},
        {"response_topic": text},
        {"user_properties": [("k", text)]},
        {"user_properties": [(text, "v")]},
    ]
    for fields in attempts:
        with pytest.raises(LocalProtocolError):
            encode_message_properties(**fields)
    with pytest.raises(LocalProtocolError):
        encode_message_properties(correlation_data=b"x" * 65_536)


SOME_VALUES: dict[PropertyType, Any] = {
    PropertyType.BYTE: 1,
    PropertyType.TWO_BYTES: 1,
    PropertyType.FOUR_BYTES: 1,
    PropertyType.VARIABLE: (1,),
    PropertyType.STRING: "s",
    PropertyType.BINARY: b"d",
    PropertyType.STRING_PAIR: (("k", "v"),),
}


def test_a_property_is_written_only_where_it_may_stand():
    for rule in PROPERTIES.values():
        value = SOME_VALUES[rule.kind]
        several = isinstance(value, tuple)
        fields: dict[str, Any] = {rule.name: value}
        properties = Properties(**fields)
        for place in (WILL, *PacketType):
            if place in rule.places:
                wire = encode_properties(properties, place)
                assert read_properties(wire, 0, place) == (properties, len(wire))
                twice = wire[1:] * 2
                if several and place in rule.repeats:
                    assert getattr(decode_properties(twice, place), rule.name) == value * 2
                else:
                    with pytest.raises(PeerProtocolError) as caught:
                        decode_properties(twice, place)
                    assert caught.value.wire_code == 0x82
            else:
                with pytest.raises(LocalProtocolError):
                    encode_properties(properties, place)
                with pytest.raises(PeerProtocolError) as caught:
                    decode_properties(bytes((rule.identifier,)) + b"\0" * 9, place)
                assert caught.value.wire_code == 0x81


@pytest.mark.parametrize(
    "properties",
    [
        Properties(receive_maximum=65_536),
        Properties(maximum_packet_size=1 << 32),
        Properties(request_problem_information=-1),
    ],
)
def test_a_number_that_is_too_large_for_its_property_is_not_written(properties):
    with pytest.raises(LocalProtocolError, match="bytes"):
        encode_properties(properties, PacketType.CONNECT)


def test_two_subscription_identifiers_are_not_written_in_a_subscribe():
    with pytest.raises(LocalProtocolError, match="twice"):
        encode_properties(Properties(subscription_identifiers=(1, 2)), PacketType.SUBSCRIBE)


def test_one_packet_holds_a_bounded_number_of_properties():
    one = b"\x26\0\0\0\0"
    found = decode_properties(one * PROPERTIES_PER_PACKET_MAX, PUBLISH)
    assert len(found.user_properties) == PROPERTIES_PER_PACKET_MAX
    with pytest.raises(PeerProtocolError, match="properties in one packet") as caught:
        decode_properties(one * (PROPERTIES_PER_PACKET_MAX + 1), PUBLISH)
    assert caught.value.wire_code == 0x97


def test_a_block_is_decoded_once_and_the_memory_for_that_is_bounded():
    PUBLISH_BLOCKS.clear()
    block = b"\x03\0\1c"
    assert PUBLISH_BLOCKS[block] is PUBLISH_BLOCKS[block]
    PUBLISH_BLOCKS[b"\x03\x01\x00" + b"c" * CACHED_BLOCK_BYTES_MAX]
    assert list(PUBLISH_BLOCKS) == [block]  # the long one is not kept
    for number in range(CACHE_COUNT_MAX + 1):
        PUBLISH_BLOCKS[b"\x09\0\4" + number.to_bytes(4, "big")]
    assert len(PUBLISH_BLOCKS) <= CACHE_COUNT_MAX


def test_a_block_that_is_wrong_is_refused_each_time():
    for _ in range(2):
        with pytest.raises(PeerProtocolError):
            PUBLISH_BLOCKS[b"\x7f"]
