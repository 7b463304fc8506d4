"""Clients that do not read, that leave or are sent away, and that send no more and read on.

What the broker does with a call is its own test; here counts what is asked of it, when, and what
the client hears before and after it is durable.
"""

import logging

import pytest
from mqtt_session import LEFT, LOST

from tidegate.spi import (
    AccessError,
    ConnectionEndedError,
    RequestError,
    StoreFullError,
)
from tidegate_protocols.mqtt import (
    Connect,
    Disconnect,
    MqttOptions,
    Pingreq,
    Puback,
    Publish,
    Pubrec,
    ReasonCode,
    SessionState,
)

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
        (b"\x16\x03\x01\x02\x00\x01\x00", "the client speaks TLS [MQTT-3.1.0-1]"),
        (b"STOMP\naccept-version:1.2\n", "the client speaks STOMP [MQTT-3.1.0-1]"),
        (b"\xff\xff", "the first packet must be CONNECT [MQTT-3.1.0-1]"),
    ],
)
def test_the_log_says_which_other_protocol_a_peer_speaks(make_client, caplog, data, said):
    client = make_client()
    with caplog.at_level(logging.INFO, "tidegate.mqtt"):
        client.sends(data)
    (record,) = caplog.records
    assert said in record.getMessage()
    assert client.link.is_closing


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
