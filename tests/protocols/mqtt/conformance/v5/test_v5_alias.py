"""Topic aliases, both ways (MQTT 5.0, section 3.3.2.3.4)."""

import pytest
from mqtt_clauses import proves
from mqtt_raw import DISCONNECT, PUBACK, V5, publish


def ends(client, *codes):
    assert client.receive(DISCONNECT).code in codes
    assert client.is_closed()


# -------------------------------------------------------------------------- from the client


@proves("5.0", "3.3.2-12")
def test_every_alias_up_to_the_maximum_is_taken(dial, name):
    client = dial(V5)
    maximum = client.connect(name).props["topic_alias_maximum"]
    assert maximum >= 1
    client.subscribe(f"{name}/+")
    for alias in sorted({1, 2, (maximum + 1) // 2, maximum}):
        client.publish(f"{name}/{alias}", b"set", topic_alias=alias)
        client.publish("", b"used", topic_alias=alias)
        assert [(m.topic, m.body) for m in (client.message(), client.message())] == [
            (f"{name}/{alias}", b"set"),
            (f"{name}/{alias}", b"used"),
        ]


@proves("5.0", "3.3.2-12")
def test_an_alias_can_be_given_to_another_topic(dial, name):
    client = dial(V5, connect=name)
    client.subscribe(f"{name}/+")
    for topic in ("a", "b", "a"):
        client.publish(f"{name}/{topic}", b"", topic_alias=1)
        client.publish("", b"", topic_alias=1)
    assert [client.message().topic[-1] for _ in range(6)] == list("aabbaa")


@proves("5.0", "3.3.2-12")
def test_a_message_that_used_an_alias_has_a_topic_everywhere(dial, name):
    publisher = dial(V5, connect=f"{name}p")
    publisher.publish(f"{name}/a", b"one", qos=1, packet_id=1, topic_alias=1)
    publisher.publish("", b"two", qos=1, packet_id=2, retain=True, topic_alias=1)
    assert [publisher.receive(PUBACK).packet_id for _ in range(2)] == [1, 2]
    client = dial(connect=name)
    client.subscribe(f"{name}/#")
    message = client.message()
    assert (message.topic, message.body) == (f"{name}/a", b"two")


@proves("5.0", "3.3.2-8")
def test_alias_0_ends_the_connection(dial, name):
    ends(dial(V5, connect=name).publish(name, b"", topic_alias=0), 0x94)


@proves("5.0", "3.2.2-17 3.3.2-9")
def test_an_alias_over_the_maximum_ends_the_connection(dial, name):
    client = dial(V5)
    maximum = client.connect(name).props["topic_alias_maximum"]
    ends(client.publish(name, b"", topic_alias=maximum + 1), 0x94)


@proves("5.0", "3.2.2-18")
def test_no_alias_is_taken_where_none_was_offered(dial, name, start_gateway):
    gateway = start_gateway(
        '[[listeners]]\nprotocol = "mqtt"\nbind = "127.0.0.1:0"\ntopic_alias_max = 0\n'
    )
    client = dial(V5, gateway=gateway)
    assert client.connect(name).props.get("topic_alias_maximum", 0) == 0
    ends(client.publish(name, b"", topic_alias=1), 0x94)


@proves("5.0", "3.3.2-7 4.13.1-1")
def test_aliases_end_with_their_connection(dial, name):
    kept = {"clean": False, "session_expiry": 1000}
    client = dial(V5, connect=name, **kept)
    client.publish(f"{name}/a", b"", qos=1, packet_id=1, topic_alias=1)
    assert client.receive(PUBACK).packet_id == 1
    client.drop()
    client = dial(V5, connect=name, **kept)
    ends(client.publish("", b"", topic_alias=1), 0x82)


@proves("5.0", "4.13.1-1")
def test_an_alias_that_was_not_set_ends_the_connection(dial, name):
    ends(dial(V5, connect=name).publish("", b"", topic_alias=1), 0x82)


# ---------------------------------------------------------------------------- to the client


def topics_by_alias(messages, maximum):
    """Follow the aliases as a client does and return the topics they stand for."""
    known = {}
    found = []
    for message in messages:
        alias = message.props.get("topic_alias")
        if alias is not None:
            assert 1 <= alias <= maximum
            if message.topic:
                known[alias] = message.topic
        found.append(message.topic or known[alias])
    return found


@pytest.mark.parametrize("asked", [{}, {"topic_alias_maximum": 0}], ids=["absent", "0"])
@proves("5.0", "3.1.2-27 3.3.2-11")
def test_no_alias_is_sent_to_a_client_that_takes_none(dial, name, asked):
    client = dial(V5, connect=name, **asked)
    client.subscribe(name)
    publisher = dial(connect=f"{name}p")
    for _ in range(5):
        publisher.publish(name, b"x")
    for _ in range(5):
        message = client.message()
        assert (message.topic, message.props) == (name, {})


@pytest.mark.parametrize("maximum", [1, 3])
@proves("5.0", "3.1.2-26 3.3.2-11 3.3.2-8")
def test_aliases_to_a_client_stay_below_its_maximum(dial, name, maximum):
    client = dial(V5, connect=name, topic_alias_maximum=maximum)
    client.subscribe(f"{name}/#", 1)
    publisher = dial(connect=f"{name}p")
    wanted = [f"{name}/{number % 5}" for number in range(30)]
    for topic in wanted:
        publisher.publishes(topic, b"x")
    messages = [client.takes() for _ in wanted]
    assert topics_by_alias(messages, maximum) == wanted
    assert any(not m.topic for m in messages)  # they are used


@proves("5.0", "3.3.2-7 3.1.2-26")
def test_aliases_to_a_client_begin_anew_with_each_connection(dial, name):
    options = {"clean": False, "session_expiry": 1000, "topic_alias_maximum": 10}
    client = dial(V5, connect=name, **options)
    client.subscribe(name, 1)
    publisher = dial(connect=f"{name}p")
    for _ in range(3):
        publisher.publishes(name, b"x")
    assert topics_by_alias([client.message() for _ in range(3)], 10) == [name] * 3
    client.drop()  # nothing was acknowledged: it comes again
    client = dial(V5, connect=name, **options)
    again = [client.message() for _ in range(3)]
    assert all(m.dup for m in again)
    assert topics_by_alias(again, 10) == [name] * 3


def test_a_publish_without_topic_and_alias_is_a_protocol_error(dial, name):
    ends(dial(V5, connect=name).send(publish("", b"", version=V5)), 0x82)
