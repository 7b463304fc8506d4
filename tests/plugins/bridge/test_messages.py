"""What becomes of a message's headers and properties on its way, both ways."""

from __future__ import annotations

import time

import pytest
from paho.mqtt.client import MQTTMessage
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tidegate.spi import Message
from tidegate_bridge._options import JmsType
from tidegate_bridge.remote import mqtt_messages, stomp_messages
from tidegate_bridge.remote.brokers import (
    ARTEMIS,
    CLASSIC,
    RABBITMQ,
    TIDEGATE,
    UNKNOWN,
    broker_of,
    lasting_id,
)
from tidegate_bridge.remote.hops import Hops
from tidegate_bridge.remote.stomp_connection import _escape, pairs_of

NOW = time.time_ns() // 1000
LATER_MS = NOW // 1000 + 3_600_000
HOPS = (("tidegate_bridge", "here/old"), ("tidegate_hops", "1"))


def leave(
    message: Message, broker=TIDEGATE, jms_type=JmsType.AUTO, extra=None
) -> dict[str, object]:
    return dict(stomp_messages.leaving(message, broker, jms_type, HOPS, extra or {}, "id-1"))


def test_a_message_frame_becomes_what_it_says() -> None:
    pairs = [
        ("destination", "/queue/a"), ("message-id", "m"), ("ack", "1"), ("subscription", "bridge"),
        ("content-length", "2"), ("content-type", "text/plain"), ("persistent", "true"), ("priority", "7"),
        ("expires", str(LATER_MS)), ("correlation-id", "c"), ("reply-to", "/queue/answers"),
        ("timestamp", "5"), ("color", "red"), ("color", "blue"), ("redelivered", "true"), ("tidegate_hops", "1"),
    ]  # fmt: skip
    found = stomp_messages.arriving(pairs, b"hi", CLASSIC, "queue://a", HOPS)
    assert found.destination == "queue://a"
    assert found.body == b"hi"
    assert found.headers == (
        ("timestamp", "5"), ("color", "red"), ("color", "blue"), ("tidegate_redelivered", "true"), *HOPS,
    )  # fmt: skip
    assert (found.content_type, found.persistent, found.priority) == ("text/plain", True, 7)
    assert found.expires_at == LATER_MS * 1000
    assert (found.correlation_data, found.reply_to) == (b"c", "queue://answers")


def test_persistence_that_is_not_said_is_what_the_broker_means() -> None:
    for broker, expected in (
        (CLASSIC, False),
        (ARTEMIS, False),
        (RABBITMQ, False),
        (TIDEGATE, True),
    ):
        assert stomp_messages.arriving([], b"", broker, "queue://a", ()).persistent is expected


def test_a_reply_to_that_only_the_other_broker_knows_goes_through_as_it_is() -> None:
    pairs = [("reply-to", "/remote-temp-queue/ID:1")]
    found = stomp_messages.arriving(pairs, b"", CLASSIC, "queue://a", ())
    assert found.reply_to == ""
    assert ("reply-to", "/remote-temp-queue/ID:1") in found.headers
    assert leave(found)["reply-to"] == "/remote-temp-queue/ID:1"


def test_a_message_goes_out_with_all_that_it_has() -> None:
    message = Message(
        "queue://a", b"\x00", (("color", "red"), ("color", "blue"), ("_AMQ_DUPL_ID", "own"), ("ack", "x")),
        NOW, LATER_MS * 1000, 7, False, content_type="image/png", correlation_data=b"\xff", reply_to="topic://r",
    )  # fmt: skip
    assert leave(message) == {
        "color": ("red", "blue"), "persistent": "false", "priority": "7", "content-type": "image/png",
        "expires": str(LATER_MS), "correlation-id": "/w==", "correlation-id-encoding": "base64",
        "reply-to": "/topic/r", "_AMQ_DUPL_ID": "id-1", "content-length": "1", **dict(HOPS),
    }  # fmt: skip
    assert leave(message, extra={"color": "green"})["color"] == "green"
    before = time.time_ns() // 1_000_000
    rabbit = leave(message, RABBITMQ)
    after = time.time_ns() // 1_000_000
    assert "expires" not in rabbit
    assert "_AMQ_DUPL_ID" not in rabbit
    assert LATER_MS - after - 1 <= int(str(rabbit["expiration"])) <= LATER_MS - before


@pytest.mark.parametrize(
    ("body", "content_type", "headers", "jms_type", "is_text"),
    [
        (b"a", None, (), JmsType.AUTO, False),
        (b"a", "text/plain", (), JmsType.AUTO, True),
        (b"a", "application/json;charset=utf-8", (), JmsType.AUTO, True),
        (b"a\0", "text/plain", (), JmsType.TEXT, False),
        (b"\xff", None, (), JmsType.TEXT, False),
        (b"a", None, (), JmsType.TEXT, True),
        (b"a", "text/plain", (), JmsType.BYTES, False),
        (b"a", None, (("amq-msg-type", "text"),), JmsType.AUTO, True),
        (b"a", "text/plain", (("amq-msg-type", "bytes"),), JmsType.AUTO, False),
    ],
)
def test_a_jms_broker_makes_text_of_text(body, content_type, headers, jms_type, is_text) -> None:
    message = Message("queue://a", body, headers, content_type=content_type)
    assert ("content-length" not in leave(message, CLASSIC, jms_type)) is is_text


def test_a_text_message_stays_one_on_its_way_in_and_out() -> None:
    came = stomp_messages.arriving([("destination", "/queue/a")], b"hi", CLASSIC, "queue://a", ())
    assert "content-length" not in leave(came, CLASSIC)
    came = stomp_messages.arriving([("content-length", "2")], b"hi", CLASSIC, "queue://a", ())
    assert leave(came, CLASSIC)["content-length"] == "2"


def test_brokers_are_told_apart_by_what_they_say() -> None:
    assert broker_of("ActiveMQ/6.1.6") is CLASSIC
    assert broker_of("ActiveMQ-Artemis/2.44.0 ActiveMQ Artemis Messaging Engine") is ARTEMIS
    assert broker_of("RabbitMQ/3.10.8") is RABBITMQ
    assert broker_of("tidegate/0.1.0") is TIDEGATE
    assert broker_of("") is UNKNOWN
    assert UNKNOWN.id_headers == ()


def test_an_id_is_what_stays_the_same_when_a_message_is_given_again() -> None:
    first = {"message-id": "6442453332,6442453324", "timestamp": "5"}  # consumer, message
    again = {"message-id": "6442453342,6442453324", "timestamp": "5", "redelivered": "true"}
    assert lasting_id(ARTEMIS, first) == lasting_id(ARTEMIS, again) == "6442453324:5"
    assert lasting_id(CLASSIC, {"message-id": "ID:vm-1:1", "timestamp": "5"}) == "ID:vm-1:1:5"
    assert lasting_id(RABBITMQ, {"message-id": "T_x@@session@@1"}) == ""
    assert lasting_id(RABBITMQ, {"amqp-message-id": "a"}) == "a"
    assert lasting_id(UNKNOWN, first) == ""


def test_headers_of_a_frame_come_in_order_and_unescaped() -> None:
    data = b"\n\nMESSAGE\na:1\na:2\nb\\cc:x\\ny\\\\z\\q\r\ne:\n\nbody:no\n\nx:y"
    assert pairs_of(data) == [("a", "1"), ("a", "2"), ("b:c", "x\ny\\z\\q"), ("e", "")]


def test_names_of_headers_are_escaped_too() -> None:
    headers: dict[str, object] = {"a:b": ("1\n", "2"), "c": "d"}
    _escape(headers)
    assert headers == {"a\\cb": ("1\\n", "2"), "c": ("d",)}


def publish(dup: bool = False, retain: bool = False, qos: int = 1, **known: object) -> MQTTMessage:
    found = MQTTMessage(1, b"a")
    found.payload, found.qos, found.dup, found.retain = b"hi", qos, dup, retain
    found.properties = Properties(PacketTypes.PUBLISH)
    for name, value in known.items():
        setattr(found.properties, name, value)
    return found


def test_a_publish_becomes_what_its_properties_say() -> None:
    found = mqtt_messages.arriving(
        publish(
            dup=True, retain=True, ContentType="a/b", CorrelationData=b"\xff", ResponseTopic="$queue/r", MessageExpiryInterval=60,
            PayloadFormatIndicator=1, UserProperty=[("x", "1"), ("x", "2"), ("priority", "7"), ("tidegate_hops", "1")],
        ), b"hi", "topic://a", HOPS,
    )  # fmt: skip
    assert found.headers == (
        ("x", "1"), ("x", "2"), ("priority", "7"), ("tidegate_redelivered", "true"), *HOPS,
    )  # fmt: skip
    assert (found.content_type, found.correlation_data, found.reply_to) == (
        "a/b",
        b"\xff",
        "queue://r",
    )
    assert (found.payload_format, found.retain, found.qos, found.persistent) == (1, True, 1, True)
    assert abs(found.expires_at - time.time_ns() // 1000 - 60_000_000) < 30_000_000
    assert found.priority == 4


def test_what_a_gateway_says_of_another_protocols_message_is_understood() -> None:
    user = [("origin-protocol", "stomp"), ("priority", "9"), ("persistent", "false"), ("x", "y")]
    found = mqtt_messages.arriving(publish(UserProperty=user), b"", "queue://a")
    assert found.headers == (("x", "y"),)
    assert (found.priority, found.persistent, found.qos) == (9, False, 2)
    properties = mqtt_messages.leaving(
        Message("queue://a", b"", (("x", "y"),), priority=9, persistent=False, protocol="stomp"),
        HOPS,
        "id-1",
    )
    assert properties is not None
    assert vars(properties)["UserProperty"] == [
        ("x", "y"),
        *user[:3],
        *HOPS,
        ("_AMQ_DUPL_ID", "id-1"),
    ]


def test_what_has_expired_does_not_go_out() -> None:
    assert mqtt_messages.leaving(Message("queue://a", b"", expires_at=1), (), "id") is None


def test_a_circle_ends() -> None:
    hops = Hops("here/old", 2, is_echoed=True)
    assert hops.next([("a", "b")]) == HOPS
    assert hops.next([("tidegate_hops", "1")]) == (
        ("tidegate_bridge", "here/old"),
        ("tidegate_hops", "2"),
    )
    assert hops.next([("tidegate_hops", "2")]) is None
    assert hops.next([("tidegate_hops", "x")]) == HOPS
    assert hops.is_copy_of_ours(HOPS)
    assert not hops.is_copy_of_ours([("tidegate_bridge", "there/old")])
    assert not Hops("here/old", 2, is_echoed=False).is_copy_of_ours(HOPS)
