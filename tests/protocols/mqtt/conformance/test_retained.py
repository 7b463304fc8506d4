"""Retained messages (section 3.3.1.3)."""

import pytest
from mqtt_clauses import both, proves
from mqtt_raw import PUBACK, V5, ack

SEND, SEND_IF_NEW, DO_NOT_SEND = 0x00, 0x10, 0x20


@pytest.mark.parametrize("qos", [0, 1, 2])
@both("3.3.1-5 3.3.1-6 3.3.1-8", "3.3.1-5 3.3.1-9")
def test_a_new_subscription_gets_what_was_retained(dial, name, version, qos):
    publisher = dial(version, connect=f"{name}p")
    if qos:
        publisher.publishes(name, b"kept", qos, retain=True)
    else:
        publisher.publish(name, b"kept", retain=True)
        assert publisher.is_quiet()
    client = dial(version, connect=name)
    client.subscribe(name, 2)
    message = client.takes()
    assert (message.topic, message.body, message.qos) == (name, b"kept", qos)
    assert (message.retain, message.dup) == (True, False)


@both("3.3.1-9", "3.3.1-12")
def test_an_established_subscription_gets_it_with_retain_0(dial, name, version):
    client = dial(version, connect=name)
    client.subscribe(name, 1)
    dial(version, connect=f"{name}p").publishes(name, b"x", retain=True)
    message = client.takes()
    assert (message.body, message.retain) == (b"x", False)


@pytest.mark.parametrize("qos", [0, 1, 2])
@both("3.3.1-5 3.3.1-7", "3.3.1-5")
def test_the_last_retained_message_counts(dial, name, version, qos):
    publisher = dial(version, connect=f"{name}p")
    publisher.publishes(name, b"old", 2, retain=True)
    if qos:
        publisher.publishes(name, b"new", qos, retain=True)
    else:
        publisher.publish(name, b"new", retain=True)
        assert publisher.is_quiet()
    client = dial(version, connect=name)
    client.subscribe(name, 2)
    assert client.takes().body == b"new"
    assert client.is_passed_over(publisher)


@both("3.3.1-10 3.3.1-11", "3.3.1-6 3.3.1-7")
def test_an_empty_body_is_delivered_and_removes_what_was_retained(dial, name, version):
    publisher = dial(version, connect=f"{name}p")
    publisher.publishes(name, b"kept", retain=True)
    client = dial(version, connect=name)
    client.subscribe(name)
    assert client.message().body == b"kept"
    publisher.publishes(name, b"", retain=True)
    message = client.message()
    assert (message.body, message.retain) == (b"", False)
    late = dial(version, connect=f"{name}l")
    late.subscribe(name)
    assert late.is_passed_over(publisher)


@both("3.3.1-11", "3.3.1-7")
def test_an_empty_body_is_not_retained_where_nothing_was(dial, name, version):
    publisher = dial(version, connect=f"{name}p")
    publisher.publishes(name, b"", retain=True)
    late = dial(version, connect=f"{name}l")
    late.subscribe(name)
    assert late.is_passed_over(publisher)


@pytest.mark.parametrize("body", [b"new", b""], ids=["a body", "empty"])
@both("3.3.1-12", "3.3.1-8")
def test_without_retain_nothing_is_stored_or_removed(dial, name, version, body):
    publisher = dial(version, connect=f"{name}p")
    publisher.publishes(f"{name}/a", b"kept", retain=True)
    publisher.publishes(f"{name}/a", body)
    publisher.publishes(f"{name}/b", body)
    client = dial(version, connect=name)
    client.subscribe(f"{name}/+")
    assert client.message().body == b"kept"
    assert client.is_passed_over(publisher)


@both("3.3.1-6", "3.3.1-9")
def test_a_wildcard_subscription_gets_each_topics_retained_message(dial, name, version):
    publisher = dial(version, connect=f"{name}p")
    topics = [f"{name}", f"{name}/a", f"{name}/a/b", f"{name}/c", f"{name}2/a"]
    for topic in topics:
        publisher.publishes(topic, topic.encode(), retain=True)
    client = dial(version, connect=name)
    client.subscribe(f"{name}/#")
    got = [client.message() for _ in range(4)]
    assert {m.topic for m in got} == set(topics[:4])
    assert all(m.body == m.topic.encode() and m.retain for m in got)
    assert client.is_passed_over(publisher)
    client.unsubscribe(f"{name}/#")
    client.subscribe(f"{name}/+")
    got = [client.message() for _ in range(2)]
    assert {m.topic for m in got} == {f"{name}/a", f"{name}/c"}


@both("3.1.2-7", "3.3.1-5")
def test_retained_messages_survive_the_gateway(dial, name, version, start_gateway):
    gateway = start_gateway()
    publisher = dial(version, connect=name, gateway=gateway)
    publisher.publishes(name, b"kept", retain=True)
    publisher.drop()
    gateway.restart()
    client = dial(version, connect=name, gateway=gateway)
    client.subscribe(name)
    assert client.message().body == b"kept"


# ------------------------------------------------------------------------- retain handling of 5.0


@proves("5.0", "3.3.1-10")
def test_retain_handling_1_is_only_for_a_subscription_that_is_new(dial, name):
    publisher = dial(V5, connect=f"{name}p")
    publisher.publishes(name, b"kept", retain=True)
    client = dial(V5, connect=name)
    client.subscribe(name, SEND_IF_NEW)
    assert client.message().body == b"kept"
    client.subscribe(name, SEND_IF_NEW)
    assert client.is_passed_over(publisher)
    client.unsubscribe(name)
    client.subscribe(name, SEND_IF_NEW)
    assert client.message().body == b"kept"


@proves("5.0", "3.3.1-10")
def test_a_subscription_of_a_kept_session_is_not_new(dial, name):
    publisher = dial(V5, connect=f"{name}p")
    publisher.publishes(name, b"kept", retain=True)
    client = dial(V5, connect=name, clean=False, session_expiry=1000)
    client.subscribe(name, SEND_IF_NEW | 1)
    client.send(ack(PUBACK, client.message().packet_id))
    client.leave()
    client = dial(V5, connect=name, clean=False, session_expiry=1000)
    client.subscribe(name, SEND_IF_NEW | 1)
    assert client.is_passed_over(publisher)


@proves("5.0", "3.3.1-11")
def test_retain_handling_2_sends_nothing_retained(dial, name):
    publisher = dial(V5, connect=f"{name}p")
    publisher.publishes(name, b"kept", retain=True)
    client = dial(V5, connect=name)
    client.subscribe(name, DO_NOT_SEND)
    assert client.is_passed_over(publisher)
    publisher.publishes(name, b"new", retain=True)
    assert client.message().body == b"new"


@proves("5.0", "3.3.1-9 3.8.4-4")
def test_retain_handling_0_sends_at_every_subscribe(dial, name):
    dial(V5, connect=f"{name}p").publishes(name, b"kept", retain=True)
    client = dial(V5, connect=name)
    for _ in range(3):
        client.subscribe(name, SEND)
        message = client.message()
        assert (message.body, message.retain) == (b"kept", True)


@proves("5.0", "3.3.1-9")
def test_a_shared_subscription_gets_nothing_retained(dial, name):
    publisher = dial(V5, connect=f"{name}p")
    publisher.publishes(name, b"kept", retain=True)
    client = dial(V5, connect=name)
    client.subscribe(f"$share/g/{name}")
    assert client.is_passed_over(publisher)
