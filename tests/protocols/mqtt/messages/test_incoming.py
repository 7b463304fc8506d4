"""What a client of MQTT 5.0 publishes. For the older versions see session/test_receiving.py."""

import logging
import sys

import pytest

from tidegate.spi import (
    AccessError,
    FlowControlError,
    Held,
    InflightDirection,
    InflightRecord,
    InflightState,
    QuotaError,
    RequestError,
    StoreFullError,
    StoreIOError,
)
from tidegate_protocols.mqtt import (
    Disconnect,
    Pingreq,
    Pingresp,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
)

NOBODY = ReasonCode.NO_MATCHING_SUBSCRIBERS
NOT_FOUND = ReasonCode.PACKET_IDENTIFIER_NOT_FOUND
ANSWERS = {1: Puback, 2: Pubrec}


@pytest.fixture
def connected(make_client):
    """``connected(properties, **options)``: a client of MQTT 5.0 behind its CONNACK."""

    def make(properties=None, **options):
        client = make_client(**options)
        answer = client.connects(level=5, properties=properties or Properties())
        assert answer.reason_code == 0
        return client

    return make


def messages(client):
    return [message for message, _ in client.connection.take("publish")]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_publish_becomes_a_message(client_5, qos):
    client_5.sends(Publish("a/b", b"x", qos, 7 if qos else 0))
    (message,) = messages(client_5)
    assert (message.destination, message.body, message.qos) == ("topic://a.b", b"x", qos)
    assert (message.persistent, message.retain) == (qos > 0, False)
    assert (message.protocol, message.client_id) == ("mqtt", "dev")
    assert client_5.gets() == []
    client_5.durable()
    assert client_5.gets() == ([ANSWERS[qos](7)] if qos else [])


def test_the_first_user_property_of_its_name_is_the_duplicate_id(client_5):
    named = (("k", "1"), ("_AMQ_DUPL_ID", "x"), ("_AMQ_DUPL_ID", "y"))
    client_5.sends(Publish("a/b", b"x", properties=Properties(user_properties=named)))
    client_5.sends(Publish("a/b", b"x", properties=Properties(user_properties=(("k", "1"),))))
    client_5.sends(Publish("a/b", b"x"))
    assert client_5.connection.duplicate_ids == ["x", "", ""]
    assert messages(client_5)[0].headers == named


def test_the_properties_of_a_publish_stay_with_the_message(client_5):
    properties = Properties(
        message_expiry_interval=10,
        content_type="text/plain",
        response_topic="answers/dev",
        correlation_data=b"\0c",
        payload_format_indicator=1,
        user_properties=(("k", "1"), ("k", "2")),
    )
    client_5.sends(Publish("a", b"x", properties=properties))
    (message,) = messages(client_5)
    assert message.headers == (("k", "1"), ("k", "2"))
    assert message.expires_at == message.received_at + 10_000_000
    assert (message.content_type, message.payload_format) == ("text/plain", 1)
    assert (message.correlation_data, message.reply_to) == (b"\0c", "topic://answers.dev")


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize(("topic", "retain"), [("a", True), ("$queue/a", False)])
def test_a_topic_retains_and_a_queue_keeps_anyway(client_5, qos, topic, retain):
    client_5.sends(Publish(topic, b"x", qos, 7 if qos else 0, True))
    (message,) = messages(client_5)
    assert message.retain is retain


@pytest.mark.parametrize("qos", [1, 2])
def test_a_client_hears_that_nobody_subscribes(client_5, qos):
    client_5.connection.has_subscribers = False
    client_5.sends(Publish("a", b"x", qos, 7))
    client_5.durable()
    assert client_5.gets() == [ANSWERS[qos](7, NOBODY)]


# ----------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (AccessError("no"), 0x87),
        (RequestError("bad name"), 0x90),
        (FlowControlError("too much"), 0x97),
        (StoreFullError("no room"), 0x97),
        (StoreIOError("/var/lib/tidegate: read-only"), 0x83),
    ],
)
def test_a_refused_publish_is_answered_and_the_connection_goes_on(client_5, qos, error, reason):
    client_5.connection.errors["publish"] = error
    client_5.sends(Publish("a", b"", qos, 7 if qos else 0), Pingreq())
    assert client_5.gets() == [Pingresp()]
    client_5.durable()  # the answers keep their order
    properties = Properties(reason_string=error.for_client)
    assert client_5.gets() == ([ANSWERS[qos](7, reason, properties)] if qos else [])
    assert not client_5.link.is_closing
    if qos == 2:
        del client_5.connection.errors["publish"]
        client_5.sends(Publish("a", b"", 2, 7))  # the id is free: another message
        assert len(messages(client_5)) == 1


def test_who_wants_no_words_hears_the_reason_alone(connected):
    client = connected(Properties(request_problem_information=0))
    client.connection.errors["publish"] = AccessError("no")
    client.sends(Publish("a", b"", 1, 7))
    client.durable()
    assert client.gets() == [Puback(7, ReasonCode.NOT_AUTHORIZED)]


@pytest.mark.parametrize(
    ("topic", "reason"), [("$SYS/x", 0x87), ("$share/g/a", 0x87), ("$queue/", 0x90)]
)
def test_a_topic_of_the_gateway_is_refused(client_5, topic, reason):
    client_5.sends(Publish(topic, b"", 1, 7))
    client_5.durable()
    (packet,) = client_5.gets()
    assert packet.reason_code == reason
    assert messages(client_5) == []


def test_only_the_first_refusal_is_news(client_5, caplog):
    client_5.connection.errors["publish"] = AccessError("no")
    with caplog.at_level(logging.INFO, "tidegate.mqtt"):
        client_5.sends(*(Publish("a", b"secret-body") for _ in range(5)))
    (record,) = caplog.records
    assert "publish refused client=dev topic=a reason=no" in record.getMessage()
    assert "secret-body" not in caplog.text


@pytest.mark.parametrize(
    ("is_checked", "body", "reason"),
    [(True, b"\xc3\xbc", 0), (True, b"\xff", 0x99), (False, b"\xff", 0)],
)
def test_a_payload_that_is_said_to_be_text_is_checked_by_option(
    connected, is_checked, body, reason
):
    client = connected(payload_format_check=is_checked)
    properties = Properties(payload_format_indicator=1)
    client.sends(Publish("a", body, 1, 7, properties=properties))
    client.durable()
    (packet,) = client.gets()
    assert packet.reason_code == reason


@pytest.mark.parametrize("qos", [1, 2])
def test_a_failure_that_comes_later_is_answered_too(client_5, qos):
    client_5.sends(Publish("a", b"x", qos, 7))
    (token,) = client_5.connection.tokens
    client_5.connection.tokens.clear()
    client_5.session.failed(token, StoreFullError("no room in /var/lib"))
    failure = Properties(reason_string=StoreFullError.client_text)
    assert client_5.gets() == [ANSWERS[qos](7, ReasonCode.QUOTA_EXCEEDED, failure)]
    assert not client_5.link.is_closing
    client_5.sends(Publish("a", b"y", qos, 7))
    assert [message.body for message in messages(client_5)] == [b"x", b"y"]


def test_a_repetition_never_hears_of_a_success_that_failed(client_5):
    client_5.sends(Publish("a", b"x", 2, 7), Publish("a", b"x", 2, 7, False, True))
    first, second = client_5.connection.tokens
    client_5.connection.tokens.clear()
    client_5.session.failed(first, StoreFullError("no room"))
    client_5.session.confirmed([second])
    assert [packet.reason_code for packet in client_5.gets()] == [0x97, 0x97]


def test_another_failure_ends_the_connection_with_its_reason(client_5):
    client_5.session.failed(None, StoreFullError("no room"))
    assert client_5.gets() == [
        Disconnect(ReasonCode.QUOTA_EXCEEDED, Properties(reason_string=StoreFullError.client_text))
    ]
    assert client_5.link.is_closing


# -------------------------------------------------------------------------------------- QoS 2


def test_qos_2_comes_in_exactly_once(client_5):
    client_5.sends(Publish("a", b"x", 2, 7), Publish("a", b"x", 2, 7, False, True))
    assert len(messages(client_5)) == 1  # 5.0:MQTT-4.3.3-10
    client_5.durable()
    assert client_5.gets() == [Pubrec(7), Pubrec(7)]
    client_5.sends(Pubrel(7), Pubrel(7))
    client_5.durable()
    assert client_5.gets() == [Pubcomp(7), Pubcomp(7, NOT_FOUND)]
    client_5.sends(Publish("a", b"x", 2, 7))
    assert len(messages(client_5)) == 1


def test_a_session_that_stays_remembers_the_id_with_the_message(connected):
    client = connected(Properties(session_expiry_interval=60))
    client.sends(Publish("a", b"x", 2, 7))
    ((_, record),) = client.connection.take("publish")
    direction = InflightDirection.IN
    assert record == InflightRecord("dev", direction, 7, InflightState.RECEIVED)
    client.sends(Pubrel(7))
    assert client.connection.take("record_inflight") == [([], [(direction, 7)])]


# ------------------------------------------------------------------------------- topic aliases


def test_an_alias_stands_for_its_topic(client_5):
    alias = Properties(topic_alias=1)
    client_5.sends(
        Publish("a/b", b"1", properties=alias),
        Publish("", b"2", properties=alias),
        Publish("", b"3", 2, 7, properties=alias),
    )
    found = [(message.destination, message.body) for message in messages(client_5)]
    assert found == [("topic://a.b", b"1"), ("topic://a.b", b"2"), ("topic://a.b", b"3")]


def test_a_repetition_defines_its_alias_too(client_5):
    client_5.sends(
        Publish("a", b"1", 2, 7),
        Publish("a", b"1", 2, 7, False, True, properties=Properties(topic_alias=3)),
        Publish("", b"2", properties=Properties(topic_alias=3)),
    )
    assert [message.body for message in messages(client_5)] == [b"1", b"2"]


@pytest.mark.parametrize(
    ("topic", "alias", "reason"), [("a", 17, 0x94), ("", 17, 0x94), ("", 16, 0x82)]
)
def test_an_alias_that_means_nothing_ends_the_connection(client_5, topic, alias, reason):
    client_5.sends(Publish(topic, b"", properties=Properties(topic_alias=alias)))
    (packet,) = client_5.gets()
    assert (type(packet), packet.reason_code) == (Disconnect, reason)
    assert messages(client_5) == []


# ------------------------------------------------------------------------------- flow control


def test_a_client_may_send_as_many_as_were_announced(connected):
    client = connected(receive_maximum=2)
    client.sends(Publish("a", b"1", 1, 1), Publish("a", b"2", 2, 2))
    client.durable()
    assert client.gets() == [Puback(1), Pubrec(2)]
    client.sends(Publish("a", b"3", 1, 3))  # PUBREC does not make room [5.0:MQTT-4.9.0-2]
    client.durable()
    client.sends(Pubrel(2))
    assert client.gets() == [Puback(3), Pubcomp(2)]
    client.sends(Publish("a", b"4", 1, 4), Publish("a", b"5", 2, 5), Publish("a", b"6", 0))
    assert not client.link.is_closing
    client.sends(Publish("a", b"7", 1, 7))
    client.durable()
    *answers, packet = client.gets()
    assert answers == [Puback(4), Pubrec(5)]
    assert (type(packet), packet.reason_code) == (Disconnect, ReasonCode.RECEIVE_MAXIMUM_EXCEEDED)
    assert len(messages(client)) == 6


@pytest.mark.parametrize("qos", [1, 2])
def test_a_refusal_makes_room(connected, qos):
    client = connected(receive_maximum=1)
    client.connection.errors["publish"] = AccessError("no")
    for packet_id in (1, 2, 3):
        client.sends(Publish("a", b"", qos, packet_id))
        client.durable()
    assert [packet.packet_id for packet in client.gets()] == [1, 2, 3]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_late_failure_makes_room(connected, qos):
    client = connected(receive_maximum=1)
    for packet_id in (1, 2, 3):
        client.sends(Publish("a", b"", qos, packet_id))
        client.session.failed(client.connection.tokens.pop(), StoreFullError("no room"))
    assert [packet.packet_id for packet in client.gets()] == [1, 2, 3]


def test_a_repetition_and_an_unneeded_pubrel_change_nothing(connected):
    client = connected(receive_maximum=1)
    client.sends(Publish("a", b"", 2, 1), Publish("a", b"", 2, 1, False, True), Pubrel(9))
    client.sends(Publish("a", b"", 1, 2))
    client.durable()
    assert client.gets()[-1].reason_code == ReasonCode.RECEIVE_MAXIMUM_EXCEEDED


def test_packet_ids_are_told_in_steps_and_a_client_with_too_many_hears_so(client_5):
    told = []

    def holds(kind, size):
        if size > 200_000:
            raise QuotaError("too much")
        told.append((kind, size))

    client_5.connection.holds = holds
    answers = []
    for number in range(1, 1300):
        client_5.sends(Publish("a/b", b"x", 2, number))
        client_5.durable()
        answers += client_5.gets()
    assert {kind for kind, _ in told} == {Held.PACKET_IDS}
    assert 3 <= len(told) <= 6
    refused = [answer for answer in answers if answer.reason_code == ReasonCode.QUOTA_EXCEEDED]
    assert 100 < len(refused) < 900
    for number in range(1, 1000):
        client_5.sends(Pubrel(number))
    assert told[-1][1] < told[-4][1]


def test_nothing_of_a_packet_is_kept_when_it_is_handled(client_5):
    client_5.sends(*(Publish("a/b", b"%d" % number * 300, 0, 0) for number in range(10)))
    counts = [sys.getrefcount(message.body) for message in messages(client_5)]
    assert counts == [2] * 10, "the message, and who asks"
