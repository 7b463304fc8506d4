"""UTF-8 strings (MQTT 3.1.1 section 1.5.3, MQTT 5.0 section 1.5.4) wherever a client can send one."""

import pytest
from mqtt_clauses import both, proves
from mqtt_raw import (
    CONNACK,
    DISCONNECT,
    V5,
    connect,
    packet,
    properties,
    publish,
    subscribe,
    unsubscribe,
)

NOT_STRINGS = pytest.mark.parametrize(
    "bad",
    [b"a\xff", b"a\xc0\xaf", b"\xed\xa0\x80", b"\xed\xbf\xbf", b"a\x00b"],
    ids=["no UTF-8", "overlong", "surrogate D800", "surrogate DFFF", "U+0000"],
)


def is_refused(client, kind):
    """0x81 and the end in MQTT 5.0, the end alone before it."""
    if client.version == V5:
        assert client.receive(kind).code == 0x81
    assert client.is_closed()


@NOT_STRINGS
@both("1.5.3-1 1.5.3-2 3.1.3-4", "1.5.4-1 1.5.4-2 3.1.3-4")
def test_a_client_id_is_utf_8(dial, version, bad):
    client = dial(version).send(connect(bad, version=version))
    is_refused(client, CONNACK)


@NOT_STRINGS
@both("1.5.3-1 1.5.3-2 3.1.3-10", "1.5.4-1 1.5.4-2 3.1.3-11")
def test_a_will_topic_is_utf_8(dial, version, bad):
    client = dial(version).send(connect("a", version=version, will=(bad, b"")))
    is_refused(client, CONNACK)


@NOT_STRINGS
@both("1.5.3-1 1.5.3-2 3.1.3-11", "1.5.4-1 1.5.4-2 3.1.3-12")
def test_a_user_name_is_utf_8(dial, version, bad):
    client = dial(version).send(connect("a", version=version, username=bad, password=b""))
    is_refused(client, CONNACK)


@NOT_STRINGS
@both("1.5.3-1 1.5.3-2 3.3.2-1 4.7.3-2", "1.5.4-1 1.5.4-2 3.3.2-1 4.7.3-2 4.13.1-1")
def test_a_topic_name_is_utf_8(dial, name, version, bad):
    client = dial(version, connect=name)
    client.send(publish(bad, b"", version=version, qos=1, packet_id=1))
    is_refused(client, DISCONNECT)


@NOT_STRINGS
@both("1.5.3-1 1.5.3-2 3.8.3-1 4.7.3-2", "1.5.4-1 1.5.4-2 3.8.3-1 4.7.3-2")
def test_a_topic_filter_of_subscribe_is_utf_8(dial, name, version, bad):
    client = dial(version, connect=name).send(subscribe(1, ("a", 0), (bad, 0), version=version))
    is_refused(client, DISCONNECT)


@NOT_STRINGS
@both("1.5.3-1 1.5.3-2 3.10.3-1 4.7.3-2", "1.5.4-1 1.5.4-2 3.10.3-1 4.7.3-2")
def test_a_topic_filter_of_unsubscribe_is_utf_8(dial, name, version, bad):
    client = dial(version, connect=name).send(unsubscribe(1, "a", bad, version=version))
    is_refused(client, DISCONNECT)


@both("1.5.3-3", "1.5.4-3")
def test_a_byte_order_mark_is_a_character(dial, name, version):
    client = dial(version, connect=name)
    client.subscribe(f"{name}/\ufeffa\ufeff")
    client.publish(f"{name}/a", b"without")
    client.publish(f"{name}/\ufeffa\ufeff", b"with")
    message = client.message()
    assert (message.topic, message.body) == (f"{name}/\ufeffa\ufeff", b"with")
    assert f"{name}/".encode() + b"\xef\xbb\xbfa\xef\xbb\xbf" in message.raw


@NOT_STRINGS
@proves("5.0", "1.5.4-1 1.5.4-2 1.5.7-1")
@pytest.mark.parametrize("pair", [(0, 1), (1, 0)], ids=["name", "value"])
def test_both_strings_of_a_pair_are_utf_8(dial, name, bad, pair):
    client = dial(V5, connect=name)
    strings = (bad, "good")
    made = (strings[pair[0]], strings[pair[1]])
    client.send(publish(name, b"", version=V5, qos=1, packet_id=1, user_property=made))
    is_refused(client, DISCONNECT)


@NOT_STRINGS
@pytest.mark.parametrize(
    "prop",
    [
        pytest.param("content_type", marks=proves("5.0", "3.3.2-19")),
        pytest.param("response_topic", marks=proves("5.0", "3.3.2-13")),
    ],
)
def test_the_strings_of_a_publish_are_utf_8(dial, name, bad, prop):
    client = dial(V5, connect=name)
    client.send(publish(name, b"", version=V5, qos=1, packet_id=1, **{prop: bad}))
    is_refused(client, DISCONNECT)


@NOT_STRINGS
@proves("5.0", "1.5.4-1 1.5.4-2")
def test_a_reason_string_is_utf_8(dial, name, bad):
    client = dial(V5, connect=name)
    client.send(packet(0xE0, b"\x00" + properties(reason_string=bad)))
    is_refused(client, DISCONNECT)


@NOT_STRINGS
@proves("5.0", "1.5.4-1 1.5.4-2")
def test_an_authentication_method_is_utf_8(dial, bad):
    client = dial(V5).send(connect("a", version=V5, auth_method=bad))
    is_refused(client, CONNACK)


@proves("5.0", "1.5.4-1")
def test_a_string_that_ends_after_its_packet_is_malformed(dial, name):
    client = dial(V5, connect=name)
    client.send(packet(0x82, b"\x00\x01\x00" + b"\x00\x05" + b"ab"))
    is_refused(client, DISCONNECT)
