"""Connecting: what reaches the broker, who is refused, and what waits for the answer.

What the broker does with a call is its own test; here counts what is asked of it, when, and what
the client hears before and after it is durable.
"""

import logging

import pytest
from mqtt_session import LEFT

from tidegate.spi import (
    SESSION_NEVER_EXPIRES,
    AccessError,
    FlowControlError,
    RequestError,
    StoreFullError,
    Subscription,
)
from tidegate_protocols.mqtt import (
    Connack,
    Connect,
    Pingreq,
    Pingresp,
    Publish,
    SessionState,
    Will,
    encode,
)
from tidegate_protocols.mqtt.session.session import CONNECT_BYTES_MAX

# ---------------------------------------------------------------------------------- connecting


def test_a_connect_reaches_the_broker_as_it_was_meant(make_client):
    client = make_client(allow_anonymous=False)
    client.connects(
        client_id="dev",
        username="user",
        password=b"pass",
        will=Will("gone/dev", b"bye", 1, True),
    )
    (request,) = client.broker.requests
    assert (request.protocol, request.version) == ("mqtt", "3.1.1")
    assert (request.client_id, request.username, request.password) == ("dev", "user", b"pass")
    assert (request.peer, request.listener) == ("192.0.2.1:5000", "mqtt://127.0.0.1:1883")
    assert (request.clean_start, request.session_expiry) == (True, 0)
    assert request.anonymous_allowed is False
    assert request.prefetch_count == 1000
    will = request.will
    assert (will.destination, will.body, will.qos, will.retain) == (
        "topic://gone.dev",
        b"bye",
        1,
        1,
    )
    assert (will.protocol, will.client_id) == ("mqtt", "dev")


def test_mqtt_3_1_is_accepted_and_never_told_of_a_session(make_client, broker):
    broker.session_present = True
    client = make_client(broker)
    assert client.connects(clean_session=False, level=3) == Connack(False, 0)
    assert broker.requests[0].version == "3.1"


@pytest.mark.parametrize("level", [0, 3, 6, 0x84], ids=["0", "3 as MQTT", "6", "bridge"])
def test_any_other_version_is_refused_with_reason_code_1(make_client, level):
    client = make_client()  # [MQTT-3.1.2-2]
    client.sends(b"\x10\x0c\x00\x04MQTT" + bytes((level,)) + b"\x02\x00\x00\x00\x00")
    assert client.gets() == [Connack(False, 1)]
    assert client.link.is_closing


def test_garbage_before_connect_closes_without_an_answer(make_client):
    client = make_client()
    client.sends(b"GET / HTTP/1.1\r\n\r\n")
    assert client.gets() == []
    assert client.link.is_closing
    assert client.connection.calls == []


def test_a_stranger_cannot_send_more_than_a_connect_can_hold(make_client):
    client = make_client()
    length = CONNECT_BYTES_MAX + 1
    client.sends(b"\x10" + bytes((length & 127 | 128, length >> 7 & 127 | 128, length >> 14)))
    assert client.link.is_closing


def test_the_longest_connect_is_accepted(make_client):
    client = make_client(client_id_bytes_max=65_535)
    long = "x" * 65_535
    packet = Connect(
        client_id=long, username=long, password=long.encode(), will=Will(long, long.encode())
    )
    assert len(encode(packet)) == CONNECT_BYTES_MAX + 4
    assert client.connects(packet).reason_code == 0


def test_a_client_without_an_id_gets_one(make_client, broker):
    for _ in range(2):  # [MQTT-3.1.3-6]
        assert make_client(broker).connects(client_id="") == Connack(False, 0)
    first, second = (request.client_id for request in broker.requests)
    assert first != second
    assert first.startswith("auto-")


def test_a_session_without_an_id_is_refused(make_client):
    client = make_client()  # [MQTT-3.1.3-8]
    assert client.connects(client_id="", clean_session=False) == Connack(False, 2)
    assert client.link.is_closing
    assert client.broker.requests == []


@pytest.mark.parametrize(("client_id", "code"), [("ü" * 20, 0), ("ü" * 20 + "x", 2)])
def test_a_client_id_is_limited_in_bytes(make_client, client_id, code):
    client = make_client(client_id_bytes_max=40)  # [MQTT-3.1.3-9]
    assert client.connects(client_id=client_id).reason_code == code


@pytest.mark.parametrize(("keep_alive", "code"), [(0, 2), (60, 0), (61, 2)])
def test_a_keep_alive_over_the_limit_is_refused(make_client, keep_alive, code):
    client = make_client(keep_alive_max=60.0)
    assert client.connects(keep_alive=keep_alive).reason_code == code


def test_a_will_to_a_topic_of_the_gateway_is_refused(make_client):
    client = make_client()
    assert client.connects(will=Will("$SYS/x", b"")) == Connack(False, 5)
    assert client.broker.requests == []


@pytest.mark.parametrize(
    ("error", "username", "code"),
    [
        (AccessError("no"), None, 5),
        (AccessError("no"), "user", 4),
        (FlowControlError("too many connections"), None, 3),
        (StoreFullError("no room"), None, 3),
        (RequestError("bad id"), None, 2),
    ],
)
def test_the_brokers_refusal_has_a_reason_code(make_client, broker, error, username, code):
    broker.error = error
    client = make_client(broker)
    assert client.connects(username=username) == Connack(False, code)
    assert client.link.is_closing  # [MQTT-3.2.2-5]
    assert client.session.state is SessionState.CLOSED
    assert client.runtime.pending_timers == 0


def test_a_bug_while_connecting_ends_the_connection(make_client, broker, caplog):
    broker.error = ZeroDivisionError("bug")
    client = make_client(broker)
    with caplog.at_level(logging.ERROR, "tidegate.mqtt"):
        client.sends(Connect(client_id="dev"))
    assert client.link.is_aborted
    assert "connection failed" in caplog.text
    client.hangs_up()
    assert client.session.state is SessionState.CLOSED


def test_connack_is_the_first_thing_a_client_hears(make_client, broker, stored):
    broker.subscriptions = [Subscription(1, "dev", "a", "topic://a", True, 1)]
    broker.session_present = True
    client = make_client(broker)

    def deliver_at_once(name: str) -> None:
        if name == "resume":
            client.session.deliver("a", [stored(1)])

    client.connection.on_call = deliver_at_once
    client.sends(Connect(client_id="dev", clean_session=False))
    connack, publish = client.gets()  # [MQTT-3.2.0-1]
    assert connack == Connack(True, 0)
    assert publish == Publish("a", b"x", 1, 2)


def test_a_clean_session_is_never_present(make_client, broker):
    broker.session_present = True  # [MQTT-3.2.2-1]
    assert make_client(broker).connects(clean_session=True) == Connack(False, 0)


@pytest.mark.parametrize(
    ("option", "expiry"), [(0.0, SESSION_NEVER_EXPIRES), (3600.0, 3600)], ids=["never", "an hour"]
)
def test_a_persistent_session_is_kept_as_long_as_the_listener_says(make_client, option, expiry):
    client = make_client(session_expiry=option)
    client.connects(clean_session=False)
    assert client.broker.requests[0].session_expiry == expiry
    assert client.broker.requests[0].clean_start is False


def test_what_follows_a_connect_waits_for_the_answer(make_client, broker):
    broker.is_slow = True
    client = make_client(broker)
    client.sends(Connect(client_id="dev"), Publish("a", b"1"), Pingreq())
    client.sends(Publish("a", b"2"))
    assert not client.link.is_reading
    assert client.connection.calls == []
    assert client.gets() == []
    client.runtime.tasks[0].step()
    assert client.gets() == [Connack(False, 0), Pingresp()]
    assert [message.body for message, _ in client.connection.take("publish")] == [b"1", b"2"]
    assert client.link.is_reading


def test_what_follows_a_refused_connect_is_never_looked_at(make_client, broker):
    broker.is_slow, broker.error = True, AccessError("no")
    client = make_client(broker)
    client.sends(Connect(client_id="dev"), Publish("a", b"1"))
    client.runtime.tasks[0].step()
    assert client.gets() == [Connack(False, 5)]  # [MQTT-3.1.4-5]
    assert client.connection.calls == []


def test_a_client_that_leaves_while_connecting_calls_it_off(make_client, broker):
    broker.is_slow = True
    client = make_client(broker)
    client.sends(Connect(client_id="dev", will=Will("a", b"")))
    client.hangs_up()
    assert client.runtime.tasks[0].is_cancelled
    assert client.runtime.pending_timers == 0


def test_a_connection_that_comes_too_late_is_given_back_without_a_will(make_client, broker):
    client = make_client(broker)

    async def connect(request, peer):
        client.hangs_up()  # in the very moment in which the broker accepts
        return await type(broker).connect(broker, request, peer)

    broker.connect = connect
    client.sends(Connect(client_id="dev"))
    assert client.connection.take("disconnect") == [LEFT]
    assert client.gets() == []


def test_a_connection_that_says_nothing_is_closed(make_client):
    client = make_client(connect_timeout=10.0)
    client.sends(encode(Connect(client_id="dev"))[:-1])
    client.runtime.advance(9.9)
    assert not client.link.is_closing
    client.runtime.advance(0.1)
    assert client.link.is_closing
    assert client.session.state is SessionState.CLOSED


def test_a_connected_client_may_be_silent_when_it_asked_for_no_keep_alive(client):
    assert client.runtime.pending_timers == 0
    client.runtime.advance(1e6)
    assert not client.link.is_closing
