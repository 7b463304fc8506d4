"""SEND headers to a message."""

import pytest

from tidegate.spi import Message, PeerProtocolError
from tidegate_protocols.stomp._frames import Frame
from tidegate_protocols.stomp._messages import message_of


def any_of(pairs=(), **headers):
    frame = Frame("SEND", {k.replace("_", "-"): v for k, v in headers.items()}, b"body", pairs)
    return message_of(frame, "queue://a", "", 5, "me")


def test_a_message_without_anything_unusual_takes_its_headers_as_they_are():
    frame = Frame(
        "SEND", {"x": "1", "content-type": "a/b", "y": "2", "persistent": "true"}, b"body"
    )
    assert message_of(frame, "queue://a", "a", 5, "me") == Message(
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
    message = any_of(reply_to="/temp-queue/x", b="c")
    assert message.reply_to == ""
    assert message.headers == (("b", "c"), ("reply-to", "/temp-queue/x"))


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
    ],
)
def test_values_that_make_no_sense_are_refused(headers, text):
    with pytest.raises(PeerProtocolError, match=text):
        any_of(**headers)
