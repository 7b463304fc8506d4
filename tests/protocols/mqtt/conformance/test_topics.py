"""Topic names and topic filters (section 4.7)."""

import pytest
from mqtt_clauses import both, proves
from mqtt_raw import DISCONNECT, PUBACK, V5, V311, publish, subscribe, unsubscribe


@pytest.fixture(scope="module")
def gateway(gateway_type):
    """One of their own, because these tests subscribe to everything."""
    with gateway_type() as running:
        yield running


def subscribes(version, topic_filter):
    return subscribe(1, ("fine", 0), (topic_filter, 0), version=version)


def unsubscribes(version, topic_filter):
    return unsubscribe(1, "fine", topic_filter, version=version)


def is_refused(client, *codes):
    """One of the reasons and the end in MQTT 5.0, the end alone before it."""
    if client.version == V5:
        assert client.receive(DISCONNECT).code in codes
    assert client.is_closed()


@pytest.mark.parametrize("topic", ["#", "+", "a/#", "a/+/b", "a+", "a#b"])
@pytest.mark.parametrize("qos", [0, 1])
@proves("3.1.1", "3.3.2-2 4.7.1-1 4.8.0-1")
def test_a_topic_name_with_a_wildcard_ends_the_connection(dial, name, topic, qos):
    client = dial(connect=name)
    assert client.publish(topic, b"x", qos=qos, packet_id=1).is_closed()


@pytest.mark.parametrize("topic", ["#", "+", "a/#", "a/+/b", "a+", "a#b"])
@proves("5.0", "3.3.2-2 4.7.0-1")
def test_a_topic_name_of_5_0_with_a_wildcard_is_a_protocol_error(dial, name, topic):
    client = dial(V5, connect=name)
    is_refused(client.publish(topic, b"x", qos=1, packet_id=1), 0x82)


@both("4.7.3-1", "4.7.3-1")
def test_a_topic_name_has_a_character(dial, name, version):
    is_refused(dial(version, connect=name).publish("", b"x"), 0x82)


@both("4.7.3-1", "4.7.3-1")
def test_a_topic_filter_has_a_character(dial, name, version):
    is_refused(dial(version, connect=name).send(subscribe(1, ("", 0), version=version)), 0x82)


@pytest.mark.parametrize(
    "topic_filter", ["a#", "#/a", "a/#/b", "##", "/#/", "a/b#", "#+", "$queue/a#"]
)
@pytest.mark.parametrize("asks", [subscribes, unsubscribes])
@both("4.7.1-2 4.8.0-1", "4.7.1-1 4.13.1-1")
def test_a_hash_is_the_whole_last_level(dial, name, version, topic_filter, asks):
    client = dial(version, connect=name)
    assert client.subscribe(f"{name}/#") == 0
    is_refused(client.send(asks(version, topic_filter)), 0x82)


@pytest.mark.parametrize("topic_filter", ["a+", "+a", "a/+b", "a+/b", "++", "a/++/b", "$queue/a+"])
@pytest.mark.parametrize("asks", [subscribes, unsubscribes])
@both("4.7.1-3 4.8.0-1", "4.7.1-2 4.13.1-1")
def test_a_plus_is_a_whole_level(dial, name, version, topic_filter, asks):
    client = dial(version, connect=name)
    assert client.subscribe(f"+/{name}/+") == 0
    is_refused(client.send(asks(version, topic_filter)), 0x82)


@both("4.8.0-1", "4.13.1-1")
def test_nothing_of_a_subscribe_with_a_malformed_filter_is_carried_out(dial, name, version):
    kept = {"clean": False} | ({"session_expiry": 1000} if version == V5 else {})
    client = dial(version, connect=name, **kept)
    is_refused(client.send(subscribe(1, (name, 1), ("a#", 1), version=version)), 0x82)
    client = dial(version, connect=name, **kept)
    assert client.is_passed_over(dial(connect=f"{name}p"))
    dial(connect=f"{name}q").publishes(name, b"x")
    assert client.is_quiet()


MATCHES = [
    ("{n}/a/b", "{n}/a/b", True),
    ("{n}/#", "{n}", True),  # the parent level belongs to it
    ("{n}/#", "{n}/a", True),
    ("{n}/#", "{n}/a/b", True),
    ("{n}/#", "{n}a", False),
    ("{n}/+", "{n}", False),
    ("{n}/+", "{n}/", True),
    ("{n}/+", "{n}/a", True),
    ("{n}/+", "{n}/a/b", False),
    ("{n}/+/b", "{n}//b", True),
    ("+/{n}", "/{n}", True),
    ("/+", "/{n}", True),
    ("+", "/{n}", False),
    ("+/+", "/{n}", True),
    ("{n}/+/#", "{n}", False),
    ("{n}/+/#", "{n}/a", True),
    ("{n}", "{n}/", False),
    ("{n}/", "{n}", False),
    ("/{n}", "{n}", False),
    ("{n}//b", "{n}/b", False),
]


@pytest.mark.parametrize(("topic_filter", "topic", "is_match"), MATCHES)
@both("3.3.2-3 4.7.1-2 4.7.1-3 4.7.3-4", "3.3.2-3 4.7.1-1 4.7.1-2 4.7.3-4")
def test_a_filter_matches(dial, name, version, topic_filter, topic, is_match):
    client = dial(version, connect=name)
    client.subscribe(topic_filter.format(n=name))
    publisher = dial(version, connect=f"{name}p")
    publisher.publishes(topic.format(n=name), b"x")
    if is_match:
        message = client.message()
        assert message.topic == topic.format(n=name)
    else:
        assert client.is_passed_over(publisher)


@pytest.mark.parametrize("topic_filter", ["#", "+/{n}", "+/#", "+/+"])
@both("4.7.2-1", "4.7.2-1")
def test_a_wildcard_in_the_first_level_does_not_match_a_dollar_topic(
    dial, name, version, topic_filter
):
    client = dial(version, connect=name)
    client.subscribe(f"$other/{name}")
    blind = dial(version, connect=f"{name}b")
    blind.subscribe(topic_filter.format(n=name))
    publisher = dial(version, connect=f"{name}p")
    publisher.publishes(f"$other/{name}", b"x")
    assert client.message().topic == f"$other/{name}"
    publisher.publishes(f"x/{name}", b"marker")
    while (message := blind.message()).topic != f"x/{name}":  # other tests publish as well
        assert not message.topic.startswith("$")


def test_a_wildcard_behind_the_first_level_matches_in_a_dollar_topic(dial, name):
    client = dial(connect=name)
    client.subscribe(f"$other/{name}/#")
    dial(connect=f"{name}p").publish(f"$other/{name}/a", b"x")
    assert client.message().topic == f"$other/{name}/a"


LOOKALIKES = [
    ("é", "e\u0301"),  # composed and decomposed
    ("a", "A"),
    ("a", "a "),
    ("a", "\ufeffa"),
    ("ß", "ss"),
    ("ﬁ", "fi"),
    ("K", "\u212a"),  # the Kelvin sign
    ("a", "a\u200b"),
    ("a/b", "a//b"),
    ("a.b", "a/b"),
    ("a*b", "axb"),
    ("a>b", "axb"),
]


@pytest.mark.parametrize(("one", "other"), LOOKALIKES, ids=range(len(LOOKALIKES)))
@both("4.7.3-4", "4.7.3-4")
def test_names_are_compared_as_they_are(dial, name, version, one, other):
    client = dial(version, connect=name)
    client.subscribe(f"{name}/{one}")
    publisher = dial(version, connect=f"{name}p")
    publisher.publishes(f"{name}/{other}", b"other")
    publisher.publishes(f"{name}/{one}", b"one")
    message = client.message()
    assert (message.topic, message.body) == (f"{name}/{one}", b"one")


@pytest.mark.parametrize("topic", [" ", "/", "//", "a b", "*", ">", "a.b", "😀", "$", "a\tb"])
@both("4.7.3-1 4.7.3-4", "4.7.3-1 4.7.3-4")
def test_any_other_character_is_legal_and_arrives(dial, name, version, topic):
    client = dial(version, connect=name)
    assert client.subscribe(topic) == 0
    dial(version, connect=f"{name}p").publishes(topic, name.encode())
    while (message := client.message()).body != name.encode():
        assert message.topic == topic
    assert message.topic == topic


@both("4.7.3-3", "4.7.3-3")
def test_a_topic_of_65535_bytes_arrives(dial, name, version):
    topic = f"{name}/" + "x" * (65_535 - len(name) - 1)
    client = dial(version, connect=name)
    assert client.subscribe(topic) == 0
    dial(version, connect=f"{name}p").send(publish(topic, b"x", version=version))
    assert client.message().topic == topic


@both("3.3.2-1", "3.3.2-1")
def test_a_publish_that_ends_inside_its_topic_ends_the_connection(dial, name, version):
    client = dial(version, connect=name).send(b"\x30\x04\x00\x05ab")
    is_refused(client, 0x81)


@pytest.mark.parametrize("version", [V311, V5], ids=["3.1.1", "5.0"])
@pytest.mark.parametrize("topic", ["$SYS/x", "$share/g/x"])
def test_clients_do_not_publish_to_the_gateways_topics(dial, name, version, topic):
    watcher = dial(connect=f"{name}w")
    watcher.subscribe(topic if topic.startswith("$SYS") else "x")
    client = dial(version, connect=name)
    client.publish(topic, b"forged", qos=1, packet_id=1)
    if version == V5:
        assert client.receive(PUBACK).code == 0x87
    else:
        assert client.is_closed()
    assert watcher.is_passed_over(dial(connect=f"{name}p"))
