"""SEND headers to a message."""

import pytest

from tidegate.spi import Message, PeerProtocolError
from tidegate_protocols.stomp.codec.frames import Frame
from tidegate_protocols.stomp.codec.messages import message_of


def any_of(pairs=(), **headers):
    frame = Frame("SEND", {k.replace("_", "-"): v for k, v in headers.items()}, b"body", pairs)
    return message_of(frame, "queue://a", "", 5, "me", own)


def own(destination):
    return f"{destination[:8]}$temporary.T.{destination[8:]}"


def test_a_message_without_anything_unusual_takes_its_headers_as_they_are():
    frame = Frame(
        "SEND", {"x": "1", "content-type": "a/b", "y": "2", "persistent": "true"}, b"body"
    )
    assert message_of(frame, "queue://a", "a", 5, "me", own) == Message(
        "queue://a",
        b"body",
        (("x", "1"), ("y", "2")),
        5,
        protocol="stomp",
        client_id="me",
        original_name="a",
        content_type="a/b",
    )


def test_nothing_at_all_gives_the_defaults():
    assert any_of() == Message("queue://a", b"body", (), 5, protocol="stomp", client_id="me")


def test_known_headers_become_fields():
    message = any_of(
        priority="9",
        expires="1700000000000",
        persistent="false",
        content_type="text/plain",
        correlation_id="ü",
        reply_to="/queue/answers",
        mine="1",
    )
    assert message.priority == 9
    assert message.expires_at == 1_700_000_000_000_000
    assert message.persistent is False
    assert message.content_type == "text/plain"
    assert message.correlation_data == "ü".encode()
    assert message.reply_to == "queue://answers"
    assert message.headers == (("mine", "1"),)


def test_correlation_data_can_be_any_bytes():
    message = any_of(correlation_id="/wA=", correlation_id_encoding="base64")
    assert (message.correlation_data, message.headers) == (b"\xff\0", ())


def test_an_encoding_of_nothing_is_nothing():
    message = any_of(correlation_id_encoding="base64", a="1")
    assert (message.correlation_data, message.headers) == (None, (("a", "1"),))


def test_a_payload_format_is_kept():
    assert any_of(payload_format="1").payload_format == 1
    assert any_of(payload_format="0").payload_format is None  # in MQTT 0 says something


def test_a_topic_can_be_asked_to_retain_and_a_queue_keeps_its_messages_anyway():
    frame = Frame("SEND", {"retain": "true"}, b"body")
    assert message_of(frame, "topic://a", "", 5, "me", own).retain is True
    assert any_of(retain="true").retain is False
    frame = Frame("SEND", {"retain": "false"}, b"body")
    message = message_of(frame, "topic://a", "", 5, "me", own)
    assert (message.retain, message.headers) == (False, ())


@pytest.mark.parametrize("text", ["/queue/", "/topic/a.*", "queue://>", "/topic/$queue.a"])
def test_a_reply_to_that_nobody_could_send_to_is_carried_as_it_is(text):
    message = any_of(reply_to=text)
    assert (message.reply_to, message.headers) == ("", (("reply-to", text),))


def test_headers_of_the_message_frame_are_not_the_users():
    message = any_of(subscription="1", ack="2", redelivered="true", message_id="3", type="t")
    assert message.headers == (("type", "t"),)
    assert any_of(ack="2").headers == ()


def test_repeated_user_headers_pass_in_order():
    pairs = (
        ("a", "1"),
        ("destination", "/queue/a"),
        ("a", "2"),
        ("priority", "3"),
        ("priority", "4"),
    )
    message = any_of(pairs, a="1", destination="/queue/a", priority="3")
    assert message.headers == (("a", "1"), ("a", "2"))
    assert message.priority == 3


def test_a_reply_to_that_only_the_client_understands_is_carried():
    message = any_of(reply_to="/reply-queue/x", b="c")
    assert message.reply_to == ""
    assert message.headers == (("b", "c"), ("reply-to", "/reply-queue/x"))


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("/temp-queue/x", "queue://$temporary.T.x"),
        ("/temp-topic/x.y", "topic://$temporary.T.x.y"),
        ("/queue/x", "queue://x"),
        ("topic://x", "topic://x"),
    ],
)
def test_a_reply_to_becomes_a_destination_that_anyone_can_send_to(written, meant):
    message = any_of(reply_to=written, b="c")
    assert (message.reply_to, message.headers) == (meant, (("b", "c"),))


#: Headers of other brokers that belong to later issues, or to the SUBSCRIBE frame.
CARRIED = {
    "type": "order",
    "JMSXGroupID": "g",
    "JMSXGroupSeq": "1",
    "AMQ_SCHEDULED_DELAY": "5000",
    "AMQ_SCHEDULED_PERIOD": "1000",
    "AMQ_SCHEDULED_REPEAT": "3",
    "AMQ_SCHEDULED_CRON": "0 * * * *",
    "_AMQ_DUPL_ID": "d-1",
    "activemq.prefetchSize": "1",
    "prefetch-count": "1",
    "selector": "a = 1",
    "browser": "true",
    "destination-type": "ANYCAST",
    "subscription-type": "MULTICAST",
    "timestamp": "1700000000000",
}


@pytest.mark.parametrize("also", [{}, {"priority": "9"}], ids=["usual", "unusual"])
def test_what_is_not_acted_upon_is_carried_in_order(also):
    frame = Frame("SEND", {**CARRIED, **also}, b"body")
    message = message_of(frame, "queue://a", "", 5, "me", own)
    assert message.headers == tuple(CARRIED.items())


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        ({"priority": "10"}, "priority:10"),
        ({"priority": "-1"}, "write one of 0, 1"),
        ({"persistent": "yes"}, "true, false"),
        ({"expires": "soon"}, "milliseconds"),
        ({"expires": "-5"}, "milliseconds"),
        ({"expires": "9" * 15}, "milliseconds"),
        ({"expires": "٣"}, "milliseconds"),
        ({"retain": "1"}, "true, false"),
        ({"payload-format": "2"}, "0, 1"),
        ({"correlation-id": "a", "correlation-id-encoding": "base64"}, "not valid base64"),
        ({"correlation-id": "ü===", "correlation-id-encoding": "base64"}, "not valid base64"),
        ({"correlation-id": "a", "correlation-id-encoding": "hex"}, "write base64"),
    ],
)
def test_values_that_make_no_sense_are_refused(headers, text):
    with pytest.raises(PeerProtocolError, match=text):
        any_of(**headers)
