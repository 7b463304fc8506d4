"""MQTT 5.0 properties and messages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.spi import LocalProtocolError, Message
from tidegate_protocols.mqtt.codec.codes import PacketType
from tidegate_protocols.mqtt.codec.properties import NO_PROPERTIES, Properties
from tidegate_protocols.mqtt.codec.property_blocks import (
    encode_properties,
    encode_subscription_identifiers,
    read_properties,
)
from tidegate_protocols.mqtt.messages import bridge
from tidegate_protocols.mqtt.messages.bridge import (
    BLOCKS_BODY_BYTES_MAX,
    BLOCKS_COUNT_MAX,
    EXPIRY_INTERVAL_MAX,
    REPLY_DESTINATIONS,
    RESPONSE_TOPICS,
    message_of,
    publish_properties,
)

NOW = 1_700_000_000_000_000


def received(properties, **fields):
    qos, retain = fields.get("qos", 1), fields.get("retain", False)
    return message_of(properties, "topic://a", b"x", NOW, qos, retain, "me")


def sent(message, now_us=NOW, **more):
    block = publish_properties(message, now_us, **more)
    properties, end = read_properties(block, 0, PacketType.PUBLISH)
    assert end == len(block)
    return properties


def message(**fields):
    return Message("topic://a", b"x", **({"protocol": "mqtt", "received_at": NOW} | fields))


class TestReceived:
    def test_a_publish_without_properties_says_only_what_its_header_says(self):
        assert received(NO_PROPERTIES, qos=0, retain=True) == Message(
            "topic://a",
            b"x",
            received_at=NOW,
            persistent=False,
            qos=0,
            retain=True,
            protocol="mqtt",
            client_id="me",
        )

    def test_every_property_of_the_message_becomes_a_field(self):
        properties = Properties(
            payload_format_indicator=1,
            message_expiry_interval=10,
            content_type="text/plain",
            response_topic="answers/a.b",
            correlation_data=b"\xff\x00",
            user_properties=(("b", "1"), ("", ""), ("b", "2")),
        )
        assert received(properties, qos=2) == Message(
            "topic://a",
            b"x",
            (("b", "1"), ("", ""), ("b", "2")),
            NOW,
            NOW + 10_000_000,
            qos=2,
            protocol="mqtt",
            client_id="me",
            content_type="text/plain",
            correlation_data=b"\xff\x00",
            reply_to="topic://answers.a/b",
            payload_format=1,
        )

    def test_an_expiry_of_0_seconds_is_not_the_same_as_none(self):
        assert received(Properties(message_expiry_interval=0)).expires_at == NOW
        assert received(Properties(content_type="a")).expires_at == 0

    def test_properties_of_the_connection_change_nothing(self):
        properties = Properties(topic_alias=3, subscription_identifiers=(1,), will_delay_interval=9)
        assert received(properties) == received(NO_PROPERTIES)


class TestSent:
    def test_a_message_without_properties_costs_one_byte(self):
        assert publish_properties(message(), NOW) == b"\x00"

    @pytest.mark.parametrize(
        ("fields", "properties"),
        [
            ({"headers": (("a", "1"), ("a", ""))}, {"user_properties": (("a", "1"), ("a", ""))}),
            ({"content_type": "a/b"}, {"content_type": "a/b"}),
            ({"correlation_data": b"\0\xff"}, {"correlation_data": b"\0\xff"}),
            ({"reply_to": "queue://a.b"}, {"response_topic": "$queue/a/b"}),
            (
                {"reply_to": "queue://$temporary.91c4.answers"},
                {"response_topic": "$queue/$temporary/91c4/answers"},
            ),
            ({"payload_format": 1}, {"payload_format_indicator": 1}),
            ({"expires_at": NOW + 5_000_000}, {"message_expiry_interval": 5}),
        ],
    )
    def test_each_field_is_the_property_it_came_from(self, fields, properties):
        assert sent(message(**fields)) == Properties(**properties)

    @pytest.mark.parametrize(
        ("left_us", "interval"),
        [
            (10_000_000, 10),
            (9_000_001, 10),  # a begun second is a whole one
            (9_000_000, 9),
            (1, 1),
            (0, 0),
            (-5_000_000, 0),
            (EXPIRY_INTERVAL_MAX * 1_000_000 + 1, EXPIRY_INTERVAL_MAX),
        ],
    )
    def test_the_expiry_interval_is_what_is_left_of_it(self, left_us, interval):
        assert sent(message(expires_at=NOW + left_us)).message_expiry_interval == interval

    def test_what_the_connection_adds_stands_beside_the_message(self):
        identifiers = encode_subscription_identifiers((5, 300))
        properties = sent(
            message(content_type="t"), subscription_identifiers=identifiers, topic_alias=7
        )
        assert properties == Properties(
            content_type="t", subscription_identifiers=(5, 300), topic_alias=7
        )
        assert sent(message(), topic_alias=7) == Properties(topic_alias=7)
        assert sent(message(), subscription_identifiers=identifiers) == Properties(
            subscription_identifiers=(5, 300)
        )

    def test_a_message_of_another_protocol_says_where_it_comes_from(self):
        assert sent(message(protocol="stomp")) == Properties(
            user_properties=(("origin-protocol", "stomp"),)
        )

    def test_what_mqtt_has_no_property_for_comes_as_user_properties_before_the_users(self):
        properties = sent(
            message(
                protocol="stomp",
                original_name="queue://a",
                priority=9,
                persistent=False,
                headers=(("b", "1"), ("user-destination", "x"), ("user-id", "7")),
            )
        )
        assert properties.user_properties == (
            ("origin-protocol", "stomp"),
            ("origin-destination", "queue://a"),
            ("priority", "9"),
            ("persistent", "false"),
            ("b", "1"),
            ("destination", "x"),
            ("user-id", "7"),
        )

    @pytest.mark.parametrize("field", [{"priority": 0}, {"persistent": False}])
    def test_each_of_them_alone_is_not_forgotten(self, field):
        properties = sent(message(protocol="stomp", **field))
        ((name, value),) = properties.user_properties[1:]
        assert (name, value) in {("priority", "0"), ("persistent", "false")}

    def test_only_stomp_headers_are_unescaped(self):
        headers = (("user-destination", "x"),)
        assert sent(message(headers=headers)).user_properties == headers
        assert sent(message(protocol="amqp", headers=headers)).user_properties[1:] == headers

    def test_the_gateways_own_messages_come_from_no_protocol(self):
        assert publish_properties(message(protocol=""), NOW) == b"\x00"
        assert sent(message(protocol="", priority=9)).user_properties == (("priority", "9"),)

    @pytest.mark.parametrize(
        "fields",
        [
            {"headers": (("a", "x" * 65_536),)},
            {"headers": (("a", "\0"),)},
            {"content_type": "x" * 65_536},
            {"correlation_data": b"x" * 65_536},
            {"reply_to": "topic://a.*"},
            {"reply_to": "topic://"},
            {"reply_to": "queue://" + "x" * 65_535},
        ],
    )
    def test_what_mqtt_cannot_say_is_an_error_of_this_message(self, fields):
        with pytest.raises(LocalProtocolError):
            publish_properties(message(protocol="stomp", **fields), NOW)


def test_what_is_remembered_of_messages_is_bounded_and_never_anothers():
    for number in range(3 * BLOCKS_COUNT_MAX):
        # Each dies with its turn of the loop but for what is remembered, so addresses come again.
        found = sent(message(content_type=str(number)))
        assert found.content_type == str(number)
        assert len(bridge._blocks) <= BLOCKS_COUNT_MAX
    bridge._blocks.clear()
    large = Message("topic://a", bytes(BLOCKS_BODY_BYTES_MAX + 1), content_type="a")
    assert sent(large) == sent(large) == Properties(content_type="a")
    assert bridge._blocks == {}


def test_a_remembered_message_still_counts_its_seconds():
    one = message(content_type="a", expires_at=NOW + 10_000_000)
    assert [sent(one, NOW + later).message_expiry_interval for later in (0, 9_000_000)] == [10, 1]


topics = st.text(
    st.characters(exclude_characters="\0+#", exclude_categories=["Cs"]), min_size=1, max_size=20
)
strange = st.sampled_from(["$queue/", "$queue/a", "$queue//", "$share/g/a", "$SYS/x", "/", "//"])


@given(st.one_of(topics, strange, topics.map(lambda name: "$queue/" + name)))
def test_any_response_topic_comes_back_unaltered(topic):
    """[MQTT-3.3.2-15]"""
    assert RESPONSE_TOPICS[REPLY_DESTINATIONS[topic]] == topic


texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)
some_properties = st.builds(
    Properties,
    payload_format_indicator=st.sampled_from([None, 0, 1]),
    message_expiry_interval=st.none() | st.integers(0, EXPIRY_INTERVAL_MAX),
    content_type=st.none() | texts,
    response_topic=st.none() | topics,
    correlation_data=st.none() | st.binary(max_size=8),
    user_properties=st.lists(st.tuples(texts, texts), max_size=4).map(tuple),
)


@given(some_properties)
def test_properties_go_out_as_they_came_in(properties):
    again = sent(received(properties))
    assert again == properties
    assert encode_properties(again, PacketType.PUBLISH) == encode_properties(
        properties, PacketType.PUBLISH
    )
