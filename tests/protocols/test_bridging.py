"""From MQTT to STOMP and back, and the other way round: nothing is lost.

``over_stomp`` is a STOMP client that sends on what it received, headers and all; ``over_mqtt`` is an
MQTT 5.0 client that does the same. Each goes through the bytes of its protocol.
"""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidegate.spi import Message, PeerProtocolError, StoredMessage, names
from tidegate_protocols.mqtt.codec.codes import PacketType
from tidegate_protocols.mqtt.codec.properties import Properties
from tidegate_protocols.mqtt.codec.property_blocks import read_properties
from tidegate_protocols.mqtt.messages.bridge import message_of as mqtt_message_of
from tidegate_protocols.mqtt.messages.bridge import publish_properties
from tidegate_protocols.mqtt.messages.names import destination_of, target_of, topic_of
from tidegate_protocols.stomp import (
    SERVER_COMMANDS,
    Decoder,
    Frame,
    MessageEncoder,
    Version,
    encode,
)
from tidegate_protocols.stomp.codec.destinations import to_publish, to_stomp, to_subscribe
from tidegate_protocols.stomp.codec.messages import message_of as stomp_message_of

NOW = 1_700_000_000_000_000
V10, V11, V12 = Version.V1_0, Version.V1_1, Version.V1_2


def frames(data, version, *commands):
    decoder = Decoder(commands=frozenset(commands))
    decoder.version = version
    decoder.receive_data(data)
    found = list(decoder.events())
    assert decoder.buffered_bytes == 0
    return found


def shown(message, version=V12):
    """The MESSAGE frame, as a consumer decodes it."""
    data = MessageEncoder(version, "1", "id-", "1-").encode([StoredMessage.of(7, message)])
    (frame,) = frames(data, version, *SERVER_COMMANDS)
    assert isinstance(frame, Frame)
    return frame


def no_temporary(destination):
    raise AssertionError(f"{destination} is not this client's")


def over_stomp(message, version=V12):
    got = shown(message, version)
    data = encode(Frame("SEND", got.headers, got.body, got.pairs), version)
    (frame,) = frames(data, version, "SEND")
    assert isinstance(frame, Frame)
    headers = frame.headers
    destination = to_publish(headers.pop("destination"))
    headers.pop("content-length", None)
    return stomp_message_of(frame, destination, "", NOW, "bridge", no_temporary)


def shown_to_mqtt(message):
    block = publish_properties(message, NOW)
    properties, _ = read_properties(block, 0, PacketType.PUBLISH)
    return properties


def over_mqtt(message):
    destination = destination_of(topic_of(message.destination))
    properties = shown_to_mqtt(message)
    return mqtt_message_of(
        properties, destination, message.body, NOW, message.qos, message.retain, "bridge"
    )


def users(properties, original):
    """User properties without those with which the gateway says where a message comes from.

    *original*: those that it had. Without a timestamp among them the gateway's stays with it.
    """
    added = [("origin-protocol", "stomp"), ("persistent", "false")]
    if all(name != "timestamp" for name, _ in original):
        added.append(("timestamp", str(NOW // 1000)))
    found = list(properties.user_properties)
    while found and found[0] in added:
        added.remove(found.pop(0))
    return found


# --------------------------------------------------------------------------------------- names

characters = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
levels = st.one_of(
    st.text(characters, max_size=6),
    st.sampled_from(
        [
            "",
            " ",
            "$queue",
            "$temporary",
            "$",
            ".",
            "a.b",
            "*",
            ">",
            "+",
            "#",
            "a*",
            "ü",
            "\u2028",
            ":",
            "\\c",
            "\n",
        ]
    ),
)
any_name = st.lists(levels, min_size=1, max_size=5).map("/".join).filter(bool)
topic_names = any_name.filter(
    lambda name: (
        "+" not in name
        and "#" not in name
        and not name.startswith(("$SYS/", "$share/"))
        and name != "$queue/"  # names no queue
    )
)


@given(st.one_of(topic_names, topic_names.map("$queue/".__add__), topic_names.map("/".__add__)))
def test_every_mqtt_topic_has_one_stomp_destination_and_comes_back(topic):
    destination = destination_of(topic)
    written = to_stomp(destination)
    frame = Frame("SEND", {"destination": written})
    for version in (V11, V12):  # 1.0 cannot write a line end
        (decoded,) = frames(encode(frame, version), version, "SEND")
        assert isinstance(decoded, Frame)
        assert to_publish(decoded.headers["destination"]) == destination
    assert topic_of(destination) == topic


#: The broker refuses what clients publish to it.
NOT_TOPICS = ("$SYS.",)


@given(
    st.sampled_from(["/queue/", "/topic/", "queue://", "topic://"]),
    any_name.map(names.swap_separators).filter(lambda name: "*" not in name and ">" not in name),
)
@example("/queue/", "$queue.a")
@example("/topic/", "$queue")
@example("/topic/", "$queues.a")
@example("/topic/", ".a..b/c ")
def test_every_stomp_destination_has_one_mqtt_topic_and_comes_back(prefix, name):
    if "topic" in prefix and name.startswith(NOT_TOPICS):
        return
    try:
        destination = to_publish(prefix + name)
    except PeerProtocolError:
        assert "topic" in prefix
        assert name.startswith(("$queue.", "$share."))
        return
    topic = topic_of(destination)
    assert "+" not in topic
    assert "#" not in topic
    assert destination_of(topic) == destination
    assert (
        to_stomp(destination)
        == prefix.replace("queue://", "/queue/").replace("topic://", "/topic/") + name
    )


@given(st.lists(levels | st.sampled_from(["+"]), min_size=1, max_size=4), st.booleans())
def test_a_filter_covers_the_same_topics_in_both_protocols(parts, rest):
    topic_filter = "/".join([part for part in parts if part != "#"] + ["#"] * rest)
    bad = any("+" in part and part != "+" for part in parts) or any(
        "#" in p and p != "#" for p in parts
    )
    if not topic_filter or bad or topic_filter.startswith("$share/") or topic_filter == "$queue/":
        return
    target = target_of(topic_filter).destination
    assert to_subscribe(to_stomp(target)) == target


# ------------------------------------------------------------------------------------- headers

HOSTILE = [
    ("destination", "/queue/elsewhere"),
    ("content-length", "3"),
    ("receipt", "r"),
    ("transaction", "t"),
    ("message-id", "1"),
    ("ack", "1"),
    ("subscription", "2"),
    ("redelivered", "true"),
    ("content-type", "not/this"),
    ("correlation-id", "nor this"),
    ("correlation-id-encoding", "rot13"),
    ("reply-to", "/queue/nor.this"),
    ("expires", "soon"),
    ("priority", "highest"),
    ("persistent", "maybe"),
    ("retain", "yes"),
    ("retained", "no"),
    ("payload-format", "7"),
    ("origin-protocol", "amqp"),
    ("origin-qos", "9"),
    ("origin-destination", "x"),
    ("browser", "end"),
    ("timestamp", "yesterday"),
    ("user-destination", "x"),
    ("user-user-ack", "x"),
    ("user-", "x"),
    ("", "no name"),
    ("no value", ""),
    ("", ""),
    ("a:b", "c:d"),
    ("line\nend", "a\r\nb\\n\\"),
    (" padded ", " value "),
    ("ü", "\U0001f600"),
]


@pytest.mark.parametrize("pair", HOSTILE, ids=repr)
@pytest.mark.parametrize("version", [V11, V12])
def test_no_user_property_can_change_the_frame_or_the_message(pair, version):
    message = mqtt_message_of(
        Properties(user_properties=(pair,), content_type="a/b"),
        "topic://a",
        b"four",
        NOW,
        1,
        False,
        "device",
    )
    frame = shown(message, version)
    assert frame.body == b"four"
    assert frame.headers["destination"] == "/topic/a"
    assert frame.headers["content-type"] == "a/b"
    assert frame.headers["message-id"] == "id-7"
    again = over_stomp(message, version)
    assert users(shown_to_mqtt(again), [pair]) == [pair]


texts = st.text(characters, max_size=8)
user_properties = st.lists(
    st.one_of(st.tuples(texts, texts), st.sampled_from(HOSTILE)), max_size=6
).map(tuple)
reply_topics = st.one_of(
    topic_names,
    topic_names.map("$queue/".__add__),
    st.sampled_from(
        ["$queue/$temporary/91c4/answers", "$queue/", "$queue", "$share/g/a", "$SYS/a"]
    ),
)
all_properties = st.builds(
    Properties,
    payload_format_indicator=st.sampled_from([None, 1]),
    message_expiry_interval=st.none() | st.integers(0, 0xFFFF_FFFF),
    content_type=st.none() | texts.filter(bool),
    response_topic=st.none() | reply_topics,
    correlation_data=st.none()
    | st.binary(min_size=1, max_size=8)
    | st.sampled_from([b"\0", b"\xff", b" a ", b"a\nb", b"a\r", b"\\c", "ü".encode()]),
    user_properties=user_properties,
)


@given(
    all_properties,
    st.sampled_from(["topic://a.b/c", "queue://orders", "topic://.a..", "topic:// ü"]),
    st.integers(0, 2),
    st.booleans(),
)
def test_an_mqtt_publish_that_a_stomp_client_sends_on_is_the_same_publish(
    properties, destination, qos, retain
):
    retain = retain and names.is_topic(destination)
    message = mqtt_message_of(properties, destination, b"\x00body", NOW, qos, retain, "device")
    again = over_stomp(message)
    assert (again.destination, again.body, again.retain) == (destination, b"\x00body", retain)
    assert again.persistent == message.persistent
    sent = shown_to_mqtt(again)
    for name in Properties.__struct_fields__:
        if name != "user_properties":
            assert getattr(sent, name) == getattr(properties, name), name
    original = list(properties.user_properties)
    assert users(sent, original) == original


stomp_headers = st.lists(
    st.one_of(
        st.tuples(texts.filter(bool), texts),
        st.sampled_from(
            [("a", "1"), ("a", "2"), ("user-id", "7"), ("user-ack", "x"), ("type", "t")]
        ),
    ),
    max_size=5,
)
mapped_headers = st.fixed_dictionaries(
    {},
    optional={
        "content-type": texts.filter(bool),
        "correlation-id": texts.filter(bool),
        "reply-to": st.sampled_from(
            ["/queue/a.b/c", "/topic/x y", "/queue/$temporary.91c4.answers"]
        ),
        "expires": st.sampled_from(["0", "1700000010000"]),
        "retain": st.sampled_from(["true", "false"]),
        "payload-format": st.sampled_from(["0", "1"]),
    },
)


@given(stomp_headers, mapped_headers)
def test_a_stomp_message_that_an_mqtt_client_sends_on_is_the_same_message(user, mapped):
    pairs = (*user, *mapped.items())
    headers = {}
    for name, value in pairs:
        headers.setdefault(name, value)
    repeated = pairs if len(headers) != len(pairs) else ()
    frame = Frame("SEND", headers, b"body", repeated)
    message = stomp_message_of(frame, "topic://a", "", NOW, "one", no_temporary)
    again = over_mqtt(message)
    for name in ("content_type", "correlation_data", "reply_to", "expires_at", "retain"):
        assert getattr(again, name) == getattr(message, name), name
    assert again.payload_format == message.payload_format
    seen = list(shown(again).pairs or shown(again).headers.items())
    expected = list(shown(message).pairs or shown(message).headers.items())
    own = {"origin-protocol", "origin-qos", "user-origin-protocol"}
    assert [pair for pair in seen if pair[0] not in own] == expected


def test_an_mqtt_message_shows_a_stomp_client_where_it_comes_from():
    message = mqtt_message_of(Properties(), "topic://a", b"", NOW, 0, True, "device")
    headers = shown(message).headers
    assert headers["origin-protocol"] == "mqtt"
    assert headers["origin-qos"] == "0"
    assert headers["persistent"] == "false"
    assert headers["retain"] == "true"
    assert "retained" not in headers


def test_a_stomp_message_shows_a_stomp_client_no_origin():
    headers = shown(Message("queue://a", b"", protocol="stomp", received_at=NOW)).headers
    assert [name for name in headers if name.startswith("origin-")] == []


def test_a_sender_cannot_claim_another_origin():
    frame = Frame("SEND", {"origin-protocol": "mqtt", "origin-qos": "0", "retained": "true"}, b"")
    message = stomp_message_of(frame, "queue://a", "", NOW, "one", no_temporary)
    assert (message.protocol, message.qos, message.retained) == ("stomp", 2, False)
    assert message.headers == ()


@pytest.mark.parametrize("version", [V10, V11, V12])
@pytest.mark.parametrize("data", [b"\xff", b"\0", b"a\nb", b"a\r", b" a ", b"\\", "ü".encode()])
def test_correlation_data_is_carried_whole_by_every_version(version, data):
    message = Message("queue://a", b"", protocol="mqtt", correlation_data=data, received_at=NOW)
    assert over_stomp(message, version).correlation_data == data
