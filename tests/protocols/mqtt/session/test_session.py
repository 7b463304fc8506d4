"""The session machine between a client's packets and the broker, with fakes on both sides.

What the broker does with a call is its own test; here counts what is asked of it, when, and what
the client hears before and after it is durable.
"""

import logging

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidegate.spi import (
    SESSION_NEVER_EXPIRES,
    AccessError,
    ConnectionEndedError,
    FlowControlError,
    InflightDirection,
    InflightRecord,
    InflightState,
    RequestError,
    RetainHandling,
    StoreFullError,
    Subscription,
)
from tidegate_protocols.mqtt import (
    Connack,
    Connect,
    Disconnect,
    MqttOptions,
    Pingreq,
    Pingresp,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
    SessionState,
    Suback,
    Subscribe,
    TopicRequest,
    Unsuback,
    Unsubscribe,
    Will,
    encode,
)
from tidegate_protocols.mqtt.session.receiving import LONG_PACKET_BYTES
from tidegate_protocols.mqtt.session.session import CONNECT_BYTES_MAX

IN, OUT = InflightDirection.IN, InflightDirection.OUT
PUBLISHED, RECEIVED, RELEASED = (
    InflightState.PUBLISHED,
    InflightState.RECEIVED,
    InflightState.RELEASED,
)


# How a connection ends: (graceful, publish_will, session_expiry).
LEFT, LOST = (True, False, None), (False, False, None)


def subscribe(*wanted: tuple[str, int], packet_id: int = 1) -> Subscribe:
    return Subscribe(packet_id, tuple(TopicRequest(name, qos) for name, qos in wanted))


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


# ------------------------------------------------------------------------------ half a packet


@pytest.mark.parametrize(
    "half", [b"\x30", b"\x30\x0a\0\x01a", encode(Publish("a", bytes(60_000)))[:-1]]
)
def test_half_a_packet_does_not_stay_open_without_a_keep_alive(make_client, half):
    client = make_client(frame_timeout=10.0)
    client.connects(level=5)
    client.sends(half)
    client.runtime.advance(9.9)
    assert not client.link.is_closing
    client.runtime.advance(0.1)
    (answer,) = client.gets()
    assert isinstance(answer, Disconnect)
    assert answer.reason_code == ReasonCode.QUOTA_EXCEEDED
    assert "(frame_timeout)" in (answer.properties.reason_string or "")
    assert client.link.is_closing
    assert client.runtime.pending_timers == 0


def test_half_a_packet_that_comes_with_the_connect_does_not_either(make_client):
    client = make_client(frame_timeout=10.0)
    client.sends(encode(Connect(client_id="dev")) + b"\x30\x0a\0\x01a")
    client.runtime.advance(10)
    assert client.link.is_closing


def test_half_a_packet_behind_a_slice_of_work_does_not_either(make_client):
    client = make_client(frame_timeout=10.0)
    client.connects()
    client.sends(encode(Publish("a", b"x")) * 1000 + b"\x30")
    assert client.runtime.pending_timers == 1
    client.runtime.advance(10)
    assert client.link.is_closing


def test_half_a_packet_that_goes_on_on_a_thin_line_is_taken(make_client):
    client = make_client(frame_timeout=10.0)
    client.connects()
    wire = encode(Publish("a", bytes(3000)))
    for start in range(0, len(wire), 120):
        client.sends(wire[start : start + 120])
        client.runtime.advance(1)
    assert len(client.connection.take("publish")) == 1
    client.runtime.advance(100)
    assert not client.link.is_closing
    assert client.runtime.pending_timers == 0


# ---------------------------------------------------------------------------------- keep-alive


def test_a_client_is_given_up_after_one_and_a_half_keep_alives(make_client):
    client = make_client()
    client.connects(keep_alive=10, will=Will("a", b""))
    client.runtime.advance(10)
    client.sends(Pingreq())
    client.runtime.advance(14.9)
    assert not client.link.is_closing
    client.runtime.advance(0.1)  # [MQTT-3.1.2-24]
    assert client.link.is_closing
    assert client.connection.take("disconnect") == [LOST]


def test_half_a_packet_is_no_sign_of_life(make_client):
    client = make_client()
    client.connects(keep_alive=10)
    client.runtime.advance(14)
    client.sends(b"\xc0")
    client.runtime.advance(1)
    assert client.link.is_closing


def test_the_bytes_of_a_long_packet_are_a_sign_of_life(make_client):
    client = make_client()
    client.connects(keep_alive=10)
    wire = encode(Publish("a", b"x" * 3 * LONG_PACKET_BYTES))
    for start in range(0, len(wire), LONG_PACKET_BYTES):
        client.sends(wire[start : start + LONG_PACKET_BYTES])
        client.runtime.advance(14)
    assert not client.link.is_closing
    assert len(client.connection.take("publish")) == 1


def test_a_client_that_is_not_read_cannot_be_too_silent(make_client):
    client = make_client()
    client.connects(keep_alive=10)
    client.session.throttle(True)
    client.runtime.advance(100)
    client.session.throttle(False)
    client.runtime.advance(14)
    assert not client.link.is_closing
    client.runtime.advance(2)
    assert client.link.is_closing


def test_the_listener_has_a_keep_alive_for_clients_without(make_client):
    client = make_client(keep_alive_default=60.0)
    client.connects(keep_alive=0)
    client.runtime.advance(90)
    assert client.link.is_closing


# ------------------------------------------------------------------------------------ receiving


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_publish_becomes_a_message(client, qos):
    client.sends(Publish("sensors/t.1", b"\x00\xff", qos, 7 if qos else 0))
    ((message, inflight),) = client.connection.take("publish")
    assert (message.destination, message.body) == ("topic://sensors.t/1", b"\x00\xff")
    assert (message.qos, message.persistent, message.retain) == (qos, qos > 0, False)
    assert (message.protocol, message.client_id) == ("mqtt", "dev")
    assert message.received_at == 1_000_000_000
    assert inflight is None


def test_puback_leaves_only_when_the_message_is_durable(client):
    client.sends(Publish("a", b"1", 1, 1), Publish("a", b"2", 0), Publish("a", b"3", 1, 2))
    assert len(client.connection.take("publish")) == 3
    assert client.gets() == []
    client.durable()
    assert len(client.link.sent) == 1  # one write for all of a turn
    assert client.gets() == [Puback(1), Puback(2)]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_retained_message_is_marked_so(client, qos):
    client.sends(Publish("a", b"", qos, 1 if qos else 0, True))
    ((message, _),) = client.connection.take("publish")
    assert message.retain is True
    client.durable()
    assert client.gets() == [[], [Puback(1)], [Pubrec(1)]][qos]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_queue_is_reached_by_its_topic_form_and_retains_nothing(client, qos):
    client.sends(Publish("$queue/orders/new", b"x", qos, 1 if qos else 0, True))
    ((message, _),) = client.connection.take("publish")
    assert (message.destination, message.retain) == ("queue://orders.new", False)


def test_qos_2_comes_in_exactly_once(client):
    publish = Publish("a", b"x", 2, 7)
    client.sends(publish)
    assert client.gets() == []
    client.sends(Publish("a", b"x", 2, 7, False, True))  # [MQTT-4.3.3-2]
    assert len(client.connection.take("publish")) == 1
    assert client.gets() == []  # the first one is not durable yet
    client.durable()
    assert client.gets() == [Pubrec(7), Pubrec(7)]
    client.sends(Pubrel(7), Pubrel(7))
    client.durable()
    assert client.gets() == [Pubcomp(7), Pubcomp(7)]
    client.sends(publish)  # the id is free again: another message
    assert len(client.connection.take("publish")) == 1


def test_a_persistent_session_remembers_the_id_with_the_message(make_client):
    client = make_client()
    client.connects(clean_session=False)
    client.sends(Publish("a", b"x", 2, 7))
    ((_, record),) = client.connection.take("publish")
    assert record == InflightRecord("dev", IN, 7, RECEIVED)
    client.durable()
    assert client.gets() == [Pubrec(7)]
    client.sends(Pubrel(7))
    assert client.connection.take("record_inflight") == [([], [(IN, 7)])]
    assert client.gets() == []  # PUBCOMP frees the id, so forgetting it must be durable first
    client.durable()
    assert client.gets() == [Pubcomp(7)]


def test_a_resumed_session_knows_what_it_has_received(make_client, broker):
    broker.session_present = True
    broker.inflight = [InflightRecord("dev", IN, 7, RECEIVED)]
    client = make_client(broker)
    client.connects(clean_session=False)
    client.sends(Publish("a", b"x", 2, 7, False, True), Publish("a", b"y", 2, 8))
    ((message, _),) = client.connection.take("publish")
    assert message.body == b"y"
    client.durable()
    assert client.gets() == [Pubrec(7), Pubrec(8)]


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize(
    "error", [AccessError("no"), StoreFullError("no room"), RequestError("bad name")]
)
def test_a_refused_publish_closes_the_connection_without_an_acknowledgement(client, qos, error):
    client.connection.errors["publish"] = error  # [MQTT-3.3.5-2]
    client.sends(Publish("a", b"", qos, 1 if qos else 0), Pingreq())
    assert client.link.is_closing
    assert client.gets() == []
    assert client.connection.take("disconnect") == [LOST]


@pytest.mark.parametrize("topic", ["$SYS/x", "$share/g/a", "$queue/"])
def test_a_topic_of_the_gateway_closes_the_connection(client, topic):
    client.sends(Publish(topic, b""))
    assert client.link.is_closing
    assert client.connection.take("publish") == []


def test_what_came_before_a_broken_packet_counts(client):
    client.sends(Publish("a", b"x"), b"\x30\x03\x00\x01#")
    assert len(client.connection.take("publish")) == 1
    assert client.link.is_closing  # [MQTT-4.8.0-1]
    assert client.connection.take("disconnect") == [LOST]


def test_a_packet_over_the_limit_closes_the_connection(make_client):
    client = make_client(packet_bytes_max=1024)
    client.connects()
    client.sends(Publish("a", b"x" * 1021))
    assert not client.link.is_closing
    client.sends(Publish("a", b"x" * 1022))
    assert client.link.is_closing


def test_after_connect_the_listeners_limit_counts(client):
    client.sends(Publish("a", b"x" * (CONNECT_BYTES_MAX + 1)))
    assert len(client.connection.take("publish")) == 1
    assert not client.link.is_closing


def test_a_failure_that_comes_later_closes_the_connection_without_the_puback(client):
    client.sends(Publish("a", b"x", 1, 1))
    client.session.failed(client.connection.tokens[0], StoreFullError("no room"))
    assert client.link.is_closing
    # The broker is not called back from inside of its own call.
    assert client.connection.take("disconnect") == []
    client.runtime.advance(0)
    assert client.connection.take("disconnect") == [LOST]
    client.durable()
    client.hangs_up()
    assert client.gets() == []
    assert client.connection.take("disconnect") == []


def test_a_ping_is_answered(client):
    client.sends(Pingreq(), Pingreq())  # [MQTT-3.12.4-1]
    assert client.gets() == [Pingresp(), Pingresp()]


# -------------------------------------------------------------------------------- subscriptions


def test_a_subscription_asks_the_broker_for_what_the_filter_means(client):
    client.sends(subscribe(("a/+/b.c/#", 1), ("$queue/orders", 0), ("$share/g/x", 2)))
    plain, queue, shared = client.connection.take("subscribe")
    assert plain.key == "a/+/b.c/#"
    assert plain.destination == "topic://a.*.b/c.>"
    assert (plain.qos, plain.acknowledge, plain.durable_name) == (1, True, "")
    assert plain.retain_handling is RetainHandling.SEND  # [MQTT-3.3.1-6]
    assert plain.prefetch_count == 1000
    assert (queue.destination, queue.qos, queue.acknowledge) == ("queue://orders", 0, False)
    assert (shared.destination, shared.share_group, shared.qos) == ("topic://x", "g", 2)
    assert client.gets() == []
    client.durable()
    assert client.gets() == [Suback(1, (1, 0, 2))]  # [MQTT-3.8.4-1] [MQTT-3.8.4-5]


@pytest.mark.parametrize("clean", [True, False])
def test_all_subscriptions_of_a_persistent_session_come_back_with_it(make_client, clean):
    client = make_client()
    client.connects(clean_session=clean)
    wanted = ["a/#", "b", "$queue/q", "$share/g/a"]
    client.sends(subscribe(*((name, 1) for name in wanted)))
    names = [request.durable_name for request in client.connection.take("subscribe")]
    assert names == (["", "", "", ""] if clean else wanted)


def test_a_filter_that_is_not_accepted_fails_alone(client):
    client.sends(subscribe(("$queue/", 1), ("ok", 1), ("$share/g", 0), packet_id=9))
    assert [request.key for request in client.connection.take("subscribe")] == ["ok"]
    client.durable()
    assert client.gets() == [Suback(9, (0x80, 1, 0x80))]
    assert not client.link.is_closing


@pytest.mark.parametrize(
    "error", [AccessError("no"), RequestError("bad"), StoreFullError("full"), FlowControlError("x")]
)
def test_a_refused_subscription_is_answered_with_failure(client, stored, error):
    client.connection.errors["subscribe"] = error
    client.sends(subscribe(("a", 1)))
    client.durable()
    assert client.gets() == [Suback(1, (0x80,))]
    client.session.deliver("a", [stored(1)])
    assert client.gets() == []


def test_subscriptions_are_limited_but_an_existing_one_can_be_renewed(make_client):
    client = make_client(subscriptions_max=2)
    client.connects()
    client.sends(subscribe(("a", 1), ("b", 1), ("c", 1), ("a", 2)))
    client.durable()
    assert client.gets() == [Suback(1, (1, 1, 0x80, 2))]
    client.sends(Unsubscribe(2, ("b",)), subscribe(("c", 0), packet_id=3))
    client.durable()
    assert client.gets() == [Unsuback(2), Suback(3, (0,))]


def test_a_second_subscription_to_the_same_filter_changes_the_qos(client, stored):
    client.sends(subscribe(("a", 1)), subscribe(("a", 0), packet_id=2))  # [MQTT-3.8.4-3]
    assert [request.qos for request in client.connection.take("subscribe")] == [1, 0]
    client.session.deliver("a", [stored(1)])
    assert client.gets() == [Publish("a", b"x", 0)]


def test_a_refused_renewal_leaves_the_subscription_as_it_was(client, stored):
    client.sends(subscribe(("a", 0)))
    client.connection.errors["subscribe"] = RequestError("no")
    client.sends(subscribe(("a", 1), packet_id=2))
    client.durable()
    assert client.gets() == [Suback(1, (0,)), Suback(2, (0x80,))]
    client.session.deliver("a", [stored(1)])
    assert client.gets() == [Publish("a", b"x", 0)]


def test_messages_may_come_before_the_suback(client, stored):
    client.connection.on_call = lambda name: (
        client.session.deliver("a", [stored(1, retained=True)]) if name == "subscribe" else None
    )
    client.sends(subscribe(("a", 0)))
    client.durable()
    # RETAIN as the broker set it [MQTT-3.3.1-8]
    assert client.gets() == [Publish("a", b"x", 0, 0, True), Suback(1, (0,))]


def test_unsubscribe_ends_it_for_good_and_is_always_answered(client, stored):
    client.sends(subscribe(("a", 0)), Unsubscribe(2, ("a", "never/there")))
    assert client.connection.take("unsubscribe") == [("a", True)]
    assert client.gets() == []
    client.durable()
    assert client.gets() == [Suback(1, (0,)), Unsuback(2)]  # [MQTT-3.10.4-5]
    client.session.deliver("a", [stored(1)])
    assert client.gets() == []


# ------------------------------------------------------------------------------------- delivery


def test_deliveries_are_one_write_with_the_smaller_qos(client, stored):
    client.sends(subscribe(("a", 1)))
    client.gets()
    client.session.deliver("a", [stored(1, qos=0), stored(2, qos=1), stored(3, qos=2)])
    assert len(client.link.sent) == 1
    assert client.gets() == [
        Publish("a", b"x", 0),
        Publish("a", b"x", 1, 1),
        Publish("a", b"x", 1, 2),
    ]


def test_pubacks_of_one_read_are_one_acknowledgement_for_each_subscription(client, stored):
    client.sends(subscribe(("a", 1), ("b", 1)))
    client.session.deliver("a", [stored(1), stored(2)])
    client.session.deliver("b", [stored(3), stored(4)])
    client.sends(Puback(1), Puback(3), Puback(2))
    assert client.connection.take("acknowledge") == [("a", [1, 2], None), ("b", [3], None)]
    client.sends(Puback(4))
    assert client.connection.take("acknowledge") == [("b", [4], None)]


@pytest.mark.parametrize(
    "ending", [Unsubscribe(2, ("a",)), Disconnect(), b"\x00\x00"], ids=["unsub", "disc", "garbage"]
)
def test_a_puback_before_the_end_still_counts(client, stored, ending):
    client.sends(subscribe(("a", 1)))
    client.session.deliver("a", [stored(1)])
    client.connection.calls.clear()
    client.sends(Puback(1), ending)
    assert client.connection.calls[0] == ("acknowledge", ("a", [1], None))


def test_nothing_is_delivered_to_a_connection_that_ended(client, stored):
    client.sends(subscribe(("a", 0)), Disconnect())
    client.gets()
    client.session.deliver("a", [stored(1)])
    client.session.confirmed([b"\x40\x02\x00\x01"])
    client.session.failed(None, StoreFullError("late"))
    assert client.gets() == []


def test_confirmations_leave_before_the_broker_goes_on_unless_messages_may_join_them(client):
    puback = b"\x40\x02\x00\x01"
    client.session.confirmed([puback])
    assert client.link.flushed == [len(client.link.sent)]
    client.sends(subscribe(("a", 1)))
    client.session.confirmed([puback])
    assert len(client.link.flushed) == 1


# ------------------------------------------------------------------------------ persistent session


def persistent(make_client, broker, *records: InflightRecord, **options):
    """A resumed session with the QoS 2 subscription ``a``."""
    broker.session_present = True
    broker.subscriptions = [Subscription(1, "dev", "a", "topic://a", True, 2)]
    broker.inflight = list(records)
    client = make_client(broker, **options)
    client.sends(Connect(client_id="dev", clean_session=False))
    assert client.gets()[0] == Connack(True, 0)
    client.connection.calls.clear()
    return client


def test_a_restored_subscription_is_served_without_subscribing_again(make_client, broker, stored):
    client = persistent(make_client, broker)
    client.session.deliver("a", [stored(1, qos=1)])
    assert client.gets() == [Publish("a", b"x", 1, 2)]
    client.sends(Unsubscribe(1, ("a",)))
    assert client.connection.take("unsubscribe") == [("a", True)]


def test_qos_2_goes_out_exactly_once_step_by_durable_step(make_client, broker, stored):
    client = persistent(make_client, broker)
    client.session.deliver("a", [stored(41), stored(42)])
    records = [
        InflightRecord("dev", OUT, 42, PUBLISHED, "a", 41, 2),
        InflightRecord("dev", OUT, 43, PUBLISHED, "a", 42, 2),
    ]
    assert client.connection.take("record_inflight") == [(records, [])]
    assert client.gets() == []  # the ids are not durable yet
    client.durable()
    assert client.gets() == [Publish("a", b"x", 2, 42), Publish("a", b"x", 2, 43)]
    client.sends(Pubrec(42))
    released = InflightRecord("dev", OUT, 42, RELEASED)
    assert client.connection.take("acknowledge") == [("a", [41], released)]
    client.sends(Pubrec(42))  # the client repeats itself before it heard of us
    assert client.gets() == []
    client.durable()
    assert client.gets() == [Pubrel(42), Pubrel(42)]
    client.sends(Pubcomp(42))
    assert client.connection.take("record_inflight") == [([], [(OUT, 42)])]


def test_qos_2_of_a_clean_session_needs_no_records(client, stored):
    client.sends(subscribe(("a", 2)))
    client.durable()
    client.gets()
    client.session.deliver("a", [stored(41)])
    assert client.gets() == [Publish("a", b"x", 2, 1)]
    client.sends(Pubrec(1))
    assert client.connection.take("acknowledge") == [("a", [41], None)]
    client.durable()
    assert client.gets() == [Pubrel(1)]
    client.sends(Pubcomp(1))
    assert client.connection.take("record_inflight") == []


def test_a_resumed_session_gets_its_messages_under_their_own_ids(make_client, broker, stored):
    client = persistent(
        make_client,
        broker,
        InflightRecord("dev", OUT, 7, PUBLISHED, "a", 41),
        InflightRecord("dev", OUT, 1, PUBLISHED, "a", 42),
    )
    # 42 was QoS 1; delivery_count 0: the gateway died before it could count
    client.session.deliver("a", [stored(41), stored(42, qos=1), stored(43, qos=1)])
    assert client.gets() == [
        Publish("a", b"x", 2, 7, False, True),  # [MQTT-4.4.0-1] [MQTT-3.3.1-1]
        Publish("a", b"x", 1, 1, False, True),
        Publish("a", b"x", 1, 44),  # a new message
    ]
    # Two ids are stored already; of QoS 1 the store is told how far was sent, and nothing waits.
    sent_through = InflightRecord("dev", OUT, 0, PUBLISHED, "", 43)
    assert client.connection.take("record_inflight") == [([sent_through], [])]
    client.sends(Pubrec(7), Puback(1))
    client.durable()
    assert client.gets() == [Pubrel(7)]
    assert client.connection.take("record_inflight") == [([], [(OUT, 1)])]
    assert client.connection.take("acknowledge") == [
        ("a", [41], InflightRecord("dev", OUT, 7, RELEASED)),
        ("a", [42], None),
    ]


def test_a_resumed_session_repeats_its_pubrels(make_client, broker):
    broker.session_present = True
    broker.inflight = [InflightRecord("dev", OUT, 9, RELEASED)]
    client = make_client(broker)
    client.sends(Connect(client_id="dev", clean_session=False))
    assert client.gets() == [Connack(True, 0), Pubrel(9)]
    client.sends(Pubcomp(9))
    assert client.connection.take("record_inflight") == [([], [(OUT, 9)])]


def test_the_end_says_which_messages_of_a_group_are_in_doubt(client, stored):
    client.sends(subscribe(("$share/g/a", 2)))
    client.session.deliver("$share/g/a", [stored(41), stored(42)])
    client.sends(Pubrec(1))
    client.hangs_up()
    assert client.connection.unanswered == {"$share/g/a": [42]}


def test_a_take_over_counts_what_the_client_answered_before(make_client, broker, stored):
    client = persistent(make_client, broker)
    client.session.deliver("a", [stored(41, qos=1), stored(42, qos=1)])
    client.connection.calls.clear()

    def take_over(name: str) -> None:
        client.session.closed(ConnectionEndedError("taken-over", "another connection"))

    client.connection.on_call = lambda name: take_over(name) if name == "publish" else None
    client.sends(Puback(42), Publish("b", b""))
    assert client.connection.take("acknowledge") == [("a", [41], None)]
    assert client.connection.take("record_inflight") == [([], [(OUT, 0)])]
    assert client.connection.take("disconnect") == [LOST]
    client.hangs_up()
    assert client.connection.take("disconnect") == []


# ---------------------------------------------------------------------------------- flow control


def test_a_client_that_does_not_read_gets_no_more_deliveries(client):
    client.session.pause_writing()
    assert client.connection.take("writable") == [False]
    client.session.resume_writing()
    assert client.connection.take("writable") == [True]


def test_a_socket_that_is_full_before_the_answer_is_told_to_the_broker(make_client, broker):
    broker.is_slow = True
    client = make_client(broker)
    client.sends(Connect(client_id="dev"))
    client.session.pause_writing()
    client.runtime.tasks[0].step()
    assert [name for name, _ in client.connection.calls] == ["writable", "resume"]
    assert client.connection.take("writable") == [False]


def test_a_client_that_sends_without_reading_is_not_read_either(client):
    client.session.pause_writing()
    pings = MqttOptions().unread_output_max // 2
    client.sends(b"\xc0\x00" * pings)
    assert client.link.is_reading
    client.sends(Pingreq())
    assert not client.link.is_reading
    client.session.resume_writing()
    assert client.link.is_reading


def test_reading_goes_on_only_when_no_reason_to_pause_is_left(client):
    client.session.throttle(True)
    client.session.pause_writing()
    client.sends(b"\xc0\x00" * (MqttOptions().unread_output_max // 2 + 1))
    client.session.throttle(False)
    assert not client.link.is_reading
    client.session.throttle(True)
    client.session.resume_writing()
    assert not client.link.is_reading
    client.session.throttle(False)
    assert client.link.is_reading


# ---------------------------------------------------------------------------------------- the end


def test_disconnect_ends_without_the_will_and_ignores_the_rest(client):
    client.sends(Disconnect(), Publish("a", b""))  # [MQTT-3.14.4-3]
    assert client.connection.take("disconnect") == [LEFT]
    assert client.connection.take("publish") == []
    assert client.link.is_closing
    client.hangs_up()
    assert client.connection.take("disconnect") == []


def test_a_lost_link_ends_with_the_will(client):
    client.hangs_up()
    assert client.connection.take("disconnect") == [LOST]


def test_an_end_by_the_broker_closes_the_link(client):
    client.session.closed(ConnectionEndedError("shutdown", "the gateway stops"))
    assert client.link.is_closing
    assert client.session.state is SessionState.CLOSED
    assert client.gets() == []


def test_what_waits_unsent_is_dropped_when_a_right_is_gone(client):
    assert not client.session.has_unsent
    client.link.unsent_bytes = 1
    assert client.session.has_unsent
    client.session.closed(AccessError("subscribe is not allowed", destination="topic://t"))
    assert client.link.is_aborted
    assert client.session.state is SessionState.CLOSED
    assert client.gets() == []


def test_an_end_in_the_middle_of_a_read_stops_the_read_quietly(client):
    def end(name: str) -> None:
        if name == "publish":
            client.connection.errors["publish"] = RequestError("the connection is closed")
            client.session.closed(ConnectionEndedError("take-over", "elsewhere"))

    client.connection.on_call = end
    client.sends(Publish("a", b"1"), Publish("a", b"2"), b"\x00\x00")
    assert [message.body for message, _ in client.connection.take("publish")] == [b"1"]
    assert len(client.connection.take("disconnect")) == 1


def test_the_log_says_why_and_never_what(client, caplog):
    with caplog.at_level(logging.INFO, "tidegate.mqtt"):
        client.sends(Publish("a", b"secret-body"), b"\x00\x00")
    (record,) = caplog.records
    text = record.getMessage()
    assert record.levelno == logging.INFO
    assert "client=dev" in text
    assert "cause=bad_input" in text
    assert "packet type 0" in text
    assert "secret-body" not in text


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00", "the peer speaks TLS [MQTT-3.1.0-1]"),
        (b"STOMP\naccept-version:1.2\n", "the peer speaks STOMP [MQTT-3.1.0-1]"),
        (b"\xff\xff", "the first packet is not a CONNECT [MQTT-3.1.0-1]"),
    ],
)
def test_the_log_says_which_other_protocol_a_peer_speaks(make_client, caplog, data, said):
    client = make_client()
    with caplog.at_level(logging.INFO, "tidegate.mqtt"):
        client.sends(data)
    (record,) = caplog.records
    assert said in record.getMessage()
    assert client.link.is_closing


# ------------------------------------------------------------------------- MQTT 5.0: why it ends


def reason_of(client):
    """Type, reason and words of the one packet that the client got."""
    (packet,) = client.gets()
    return type(packet), packet.reason_code, packet.properties.reason_string


@pytest.mark.parametrize(
    ("ending", "reason"), [("taken-over", 0x8E), ("shutdown", 0x8B), ("by an operator", 0x98)]
)
def test_a_client_of_5_0_hears_why_the_broker_ends_it(client_5, ending, reason):
    client_5.session.closed(ConnectionEndedError(ending, "because"))
    assert reason_of(client_5) == (Disconnect, reason, "because")
    assert client_5.link.is_closing


@pytest.mark.parametrize(
    ("ending", "reason"), [("taken-over", 0x80), ("shutdown", 0x88), ("by an operator", 0x80)]
)
def test_a_client_of_5_0_that_is_ended_before_its_connack_hears_of_it_and_is_closed(
    make_client, broker, ending, reason
):
    broker.is_slow = True
    client = make_client(broker)
    client.sends(Connect(level=5, client_id="dev"))
    assert client.session.state is SessionState.AUTHENTICATING
    client.session.closed(ConnectionEndedError(ending, "because"))
    assert reason_of(client) == (Connack, reason, "because")
    assert client.link.is_closing


def test_a_client_of_5_0_that_was_silent_hears_of_it(make_client):
    client = make_client()
    client.connects(level=5, keep_alive=10)
    client.runtime.advance(15)
    assert reason_of(client)[:2] == (Disconnect, 0x8D)
    assert client.connection.take("disconnect") == [LOST]


def test_a_client_of_5_0_is_given_up_after_the_keep_alive_that_it_was_told(make_client):
    client = make_client(keep_alive_max=10.0)
    assert client.connects(level=5, keep_alive=0).properties.server_keep_alive == 10
    client.runtime.advance(15)
    assert client.link.is_closing


@pytest.mark.parametrize(
    ("wire", "reason"),
    [
        (b"\x00\x00", 0x81),
        (b"\x30\x03\x00\x01#", 0x81),
        (b"\x10\x0d\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x00", 0x82),
        (b"\x30\xff\xff\xff\x7f", 0x95),
    ],
    ids=["malformed", "short", "second connect", "too large"],
)
def test_a_client_of_5_0_hears_what_it_did_wrong(client_5, wire, reason):
    client_5.sends(wire)
    assert reason_of(client_5)[:2] == (Disconnect, reason)  # 5.0:MQTT-4.13.1-1
    assert client_5.link.is_closing
    assert client_5.connection.take("disconnect") == [LOST]


@pytest.mark.parametrize(
    ("wire", "reason"),
    [
        (b"\x10\x0d\x00\x04MQTT\x05\x03\x00\x00\x00\x00\x00", 0x81),
        (b"\x10\x10\x00\x04MQTT\x05\x02\x00\x00\x03\x21\x00\x00\x00\x00", 0x82),
    ],
    ids=["reserved flag", "receive maximum 0"],
)
def test_a_connect_of_5_0_that_is_wrong_is_refused_in_its_own_words(make_client, wire, reason):
    client = make_client()
    client.codec.level = 5
    client.sends(wire)
    assert reason_of(client)[:2] == (Connack, reason)
    assert client.link.is_closing
    assert client.broker.requests == []


@pytest.mark.parametrize(
    ("error", "username", "reason"),
    [
        (AccessError("no"), None, 0x87),
        (AccessError("no"), "user", 0x86),
        (FlowControlError("too many connections"), None, 0x88),
        (RequestError("bad id"), None, 0x85),
    ],
)
def test_a_client_of_5_0_hears_why_it_is_refused(make_client, broker, error, username, reason):
    broker.error = error
    client = make_client(broker)
    client.sends(Connect(client_id="dev", username=username, level=5))
    assert reason_of(client) == (Connack, reason, error.for_client)
    assert client.link.is_closing


@pytest.mark.parametrize("level", [4, 5])
def test_a_redirected_client_is_told_where_to_go(make_client, level):
    client = make_client(server_redirect="moved", server_reference="b.example:1883")
    answer = client.connects(level=level)
    assert answer.reason_code == (0x9D if level == 5 else 3)
    assert answer.properties.server_reference == ("b.example:1883" if level == 5 else None)
    assert client.link.is_closing
    assert client.broker.requests == []


def test_a_refusal_keeps_to_what_the_client_takes(make_client):
    client = make_client(client_id_bytes_max=23)
    properties = Properties(maximum_packet_size=20)
    client.sends(Connect(client_id="x" * 24, level=5, properties=properties))
    assert client.gets() == [Connack(False, 0x85)]


def test_a_connack_that_the_client_does_not_take_is_not_sent(make_client):
    client = make_client()
    client.sends(Connect(client_id="dev", level=5, properties=Properties(maximum_packet_size=6)))
    assert client.gets() == [Connack(False, 0x95)]
    assert client.connection.take("disconnect") == [LEFT]
    assert client.link.is_closing


def test_the_certificates_name_reaches_the_broker(make_client):
    client = make_client(tls_subject="CN=dev-7", client_id_from_certificate=True)
    client.connects(level=5, client_id="")
    (request,) = client.broker.requests
    assert (request.client_id, request.tls_subject) == ("dev-7", "CN=dev-7")


# ------------------------------------------------------------------ MQTT 5.0: the session's end


def test_a_session_that_was_taken_up_to_end_now_is_completed_as_it_began(
    make_client, broker, stored
):
    broker.session_present = True
    broker.subscriptions = [Subscription(1, "dev", "a", "topic://a", True, 2)]
    broker.inflight = [InflightRecord("dev", OUT, 0, PUBLISHED, "", 41)]
    client = make_client(broker)
    client.sends(Connect(client_id="dev", level=5, clean_session=False))
    assert client.gets()[0].session_present is True
    client.session.deliver("a", [stored(41, qos=1)])
    assert client.gets() == [Publish("a", b"x", 1, 42, False, True)]  # 5.0:MQTT-4.4.0-1


@pytest.mark.parametrize(("clean", "present"), [(True, False), (False, True)])
def test_a_session_is_present_unless_a_clean_start_was_asked_for(
    make_client, broker, clean, present
):
    broker.session_present = True
    client = make_client(broker)
    assert client.connects(level=5, clean_session=clean).session_present is present


@pytest.mark.parametrize(("reason", "will"), [(0x00, False), (0x04, True), (0x80, True)])
def test_only_a_normal_disconnect_takes_back_the_will(client_5, reason, will):
    client_5.sends(Disconnect(ReasonCode(reason)))
    assert client_5.connection.take("disconnect") == [(True, will, None)]
    assert client_5.gets() == []


@pytest.mark.parametrize(
    ("before", "asked", "longest", "kept"),
    [(60, 0, 0.0, 0), (60, 90, 0.0, 90), (60, 9999, 3600.0, 3600), (0, 0, 0.0, 0)],
)
def test_a_disconnect_may_change_how_long_the_session_is_kept(
    make_client, before, asked, longest, kept
):
    client = make_client(session_expiry=longest)
    client.connects(level=5, properties=Properties(session_expiry_interval=before))
    client.sends(Disconnect(properties=Properties(session_expiry_interval=asked)))
    assert client.connection.take("disconnect") == [(True, False, kept)]


def test_a_session_that_was_to_end_cannot_be_kept_after_all(client_5):
    client_5.sends(Disconnect(properties=Properties(session_expiry_interval=1)))
    assert reason_of(client_5)[:2] == (Disconnect, 0x82)
    assert client_5.connection.take("disconnect") == [LOST]


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_bytes_whatever_upset_a_session(make_client, data):
    client = make_client()
    level = data.draw(st.sampled_from([0, 4, 5]))
    if level:
        method = Properties(authentication_method="PUZZLE", authentication_data=b"user")
        properties = data.draw(st.sampled_from([Properties(), method])) if level == 5 else None
        packet = Connect(client_id="c", clean_session=False, level=level)
        if properties:
            packet = Connect(client_id="c", level=level, properties=properties)
        client.sends(packet)
    kinds = [0x10, 0x30, 0x32, 0x34, 0x40, 0x50, 0x62, 0x70, 0x82, 0xA2, 0xC0, 0xE0, 0xF0]
    first = st.sampled_from(kinds)
    packet = st.tuples(first, st.binary(max_size=12)).map(
        lambda parts: bytes((parts[0], len(parts[1]))) + parts[1]
    )
    for piece in data.draw(st.lists(packet | st.binary(max_size=20), max_size=8)):
        if not client.link.is_closing:
            client.sends(piece)
    client.hangs_up()
    assert client.session.state is SessionState.CLOSED
    assert client.runtime.pending_timers == 0


# --------------------------------------------------------------------- refused behind other packets

BAD = b"\xf6\x00"


def test_the_end_waits_for_what_came_before(client_5):
    client_5.sends(Publish("a", b"1", 1, 1), Publish("a", b"2", 2, 2), BAD, Pingreq())
    assert client_5.session.state is SessionState.REFUSED
    assert (client_5.gets(), client_5.link.is_closing) == ([], False)
    assert client_5.connection.take("writable") == [False]
    client_5.sends(Publish("a", b"late", 1, 3))
    first, second, farewell = client_5.connection.tokens
    client_5.session.confirmed([first])
    assert (client_5.gets(), client_5.link.is_closing) == ([Puback(1)], False)
    client_5.session.confirmed([second, farewell])
    received, goodbye = client_5.gets()
    assert (received, goodbye.reason_code) == (Pubrec(2), ReasonCode.MALFORMED_PACKET)
    assert client_5.link.is_closing
    assert client_5.connection.take("disconnect") == [], "the broker is in the middle of telling us"
    client_5.runtime.advance(0)
    assert client_5.connection.take("disconnect") == [LOST]
    assert len(client_5.connection.take("publish")) == 2
    client_5.hangs_up()
    assert client_5.runtime.pending_timers == 0


def test_before_5_0_the_end_waits_without_a_word(client):
    client.sends(Publish("a", b"1", 1, 1), BAD)
    assert (client.gets(), client.link.is_closing) == ([], False)
    client.durable()
    assert (client.gets(), client.link.is_closing) == ([Puback(1)], True)


def test_what_failed_before_is_answered_and_then_the_end_comes(client_5):
    client_5.sends(Publish("a", b"1", 1, 1), BAD)
    first, farewell = client_5.connection.tokens
    client_5.session.failed(first, StoreFullError("full"))
    client_5.session.failed(farewell, StoreFullError("full"))
    answer, goodbye = client_5.gets()
    assert (answer.packet_id, answer.reason_code) == (1, ReasonCode.QUOTA_EXCEEDED)
    assert goodbye.reason_code == ReasonCode.MALFORMED_PACKET


def test_before_5_0_what_failed_before_is_the_end(client):
    client.sends(Publish("a", b"1", 1, 1), Publish("a", b"2", 1, 2), BAD)
    first, second, farewell = client.connection.tokens
    for token in (first, second, farewell):
        client.session.failed(token, StoreFullError("full"))
    assert (client.gets(), client.link.is_closing) == ([], True)
    client.runtime.advance(0)
    assert client.connection.take("disconnect") == [LOST]


def test_a_refused_client_that_leaves_is_noticed(client_5):
    client_5.sends(Publish("a", b"1", 1, 1), BAD)
    client_5.hangs_up()
    assert client_5.connection.take("disconnect") == [LOST]
    client_5.durable()
    assert client_5.gets() == []


def test_a_refused_client_that_falls_silent_is_noticed_and_one_that_does_not_is_not(make_client):
    client = make_client()
    client.connects(level=5, keep_alive=10)
    client.sends(Publish("a", b"1", 1, 1), BAD)
    for _ in range(5):
        client.runtime.advance(10)
        client.sends(Pingreq())
    assert (client.gets(), client.link.is_closing) == ([], False)
    client.runtime.advance(15)
    (goodbye,) = client.gets()
    assert goodbye.reason_code == ReasonCode.KEEP_ALIVE_TIMEOUT


def test_what_a_refused_client_sends_is_metered_and_not_kept(make_client):
    client = make_client()
    read = []
    client.connection.meter = read.append
    client.connects(level=5)
    client.sends(Publish("a", b"1", 1, 1), BAD)
    read.clear()
    for _ in range(3):
        client.sends(b"\x30" + b"\xff" * 1000)
    assert read == [1001] * 3
    assert client.session._codec.waiting_bytes == 0


def test_another_client_may_take_over_from_a_refused_one(client_5):
    client_5.sends(Publish("a", b"1", 1, 1), BAD)
    client_5.session.closed(ConnectionEndedError("taken-over", "another one"))
    (goodbye,) = client_5.gets()
    assert goodbye.reason_code == ReasonCode.SESSION_TAKEN_OVER
    client_5.durable()
    assert client_5.gets() == []


# ----------------------------------------------------------------- who sends no more and reads on


def test_who_sends_no_more_hears_what_came_before(client_5):
    client_5.sends(Publish("a", b"1", 1, 1))
    assert client_5.session.input_ended()
    assert (client_5.gets(), client_5.link.is_closing) == ([], False)
    client_5.durable()
    assert (client_5.gets(), client_5.link.is_closing) == ([Puback(1)], True)
    client_5.runtime.advance(0)
    assert client_5.connection.take("disconnect") == [LOST]
    client_5.hangs_up()
    assert client_5.runtime.pending_timers == 0


def test_who_sends_no_more_and_waits_for_nothing_is_gone(client_5):
    assert not client_5.session.input_ended()
    assert client_5.link.is_closing
    assert client_5.connection.take("disconnect") == [LOST]


def test_who_sends_no_more_before_connack_is_not_waited_for(make_client):
    client = make_client()
    client.broker.is_slow = True
    assert not client.session.input_ended()
    client.sends(Connect(client_id="c"))
    assert not client.session.input_ended()
    client.hangs_up()
    assert client.runtime.tasks[0].is_cancelled


def test_who_sends_no_more_behind_a_wrong_packet_hears_both(client_5):
    client_5.sends(Publish("a", b"1", 1, 1), BAD)
    assert client_5.session.input_ended()
    client_5.durable()
    answer, goodbye = client_5.gets()
    assert (answer, goodbye.reason_code) == (Puback(1), ReasonCode.MALFORMED_PACKET)


def test_who_sends_no_more_and_is_gone_then_is_not_waited_for(client_5):
    client_5.sends(Publish("a", b"1", 1, 1))
    assert client_5.session.input_ended()
    client_5.hangs_up()
    assert client_5.connection.take("disconnect") == [LOST]
    client_5.durable()
    assert client_5.gets() == []
