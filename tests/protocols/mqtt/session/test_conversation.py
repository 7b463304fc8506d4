"""Both directions of one connected session, put together; each part has its own tests."""

import pytest

from tidegate.spi import (
    ConnectResult,
    InflightDirection,
    InflightRecord,
    InflightState,
    StoreFullError,
)
from tidegate_protocols.mqtt import (
    Connect,
    MqttOptions,
    Pingreq,
    Properties,
    Puback,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
    Subscribe,
    TopicRequest,
)
from tidegate_protocols.mqtt._answers import Answers
from tidegate_protocols.mqtt.session.connect import Origin, read_connect
from tidegate_protocols.mqtt.session.context import SessionContext
from tidegate_protocols.mqtt.session.conversation import Conversation

NOW_US = 1_000_000_000


@pytest.fixture
def sent():
    return []


@pytest.fixture
def begin(make_client, broker, connection, sent):
    """``begin(*records, level=…, present=…)``: a conversation with ``connection``."""

    def make(*records, level=4, present=False, clean_session=True):
        context = SessionContext(broker, MqttOptions(), make_client().runtime, allow_anonymous=True)
        packet = Connect(client_id="dev", level=level, clean_session=clean_session)
        origin = Origin("192.0.2.1:5000", "mqtt://gateway:1883", "", anonymous_allowed=True)
        terms, _ = read_connect(packet, context.options, origin, NOW_US)
        result = ConnectResult(connection, present, (), records, "dev")
        return Conversation(context, terms, Answers(level), result, sent.append)

    return make


def never(packet):
    raise AssertionError(f"{packet!r} is not for the session")


@pytest.mark.parametrize("level", [4, 5])
def test_messages_and_acknowledgements_do_not_trouble_the_session(begin, connection, stored, level):
    conversation = begin(level=level)
    assert list(conversation.subscribe(Subscribe(1, (TopicRequest("a", 1),)))) == []
    conversation.deliver("a", [stored(41)])
    assert conversation.receive([Publish("b", b"x", 1, 7), Puback(1)], NOW_US, never) is True
    conversation.settle()
    assert connection.take("acknowledge") == [("a", [41], None)]
    ((message, _),) = connection.take("publish")
    assert (message.destination, message.received_at) == ("topic://b", NOW_US)


def test_what_a_client_of_5_0_refuses_is_told_with_its_reason(begin, connection, stored):
    conversation = begin(level=5)
    assert list(conversation.subscribe(Subscribe(1, (TopicRequest("a", 2),)))) == []
    conversation.deliver("a", [stored(41, qos=1), stored(42, qos=2)])
    puback = Puback(1, ReasonCode.NOT_AUTHORIZED, Properties(reason_string="not mine"))
    conversation.receive([puback], NOW_US, never)
    conversation.control(Pubrec(2, ReasonCode.QUOTA_EXCEEDED))
    conversation.settle()
    assert connection.take("acknowledge") == []
    assert connection.take("refuse") == [
        ("a", [41], "0x87 not authorized: not mine"),
        ("a", [42], "0x97 quota exceeded"),
    ]


def test_what_the_session_ends_is_read_no_further(begin, connection):
    seen = []

    def control(packet):
        seen.append(packet)
        return False

    packets = [Publish("a", b"1"), Pingreq(), Publish("a", b"2")]
    assert begin().receive(packets, NOW_US, control) is False
    assert seen == [Pingreq()]
    assert [message.body for message, _ in connection.take("publish")] == [b"1"]


def test_what_is_not_about_messages_or_subscriptions_is_a_bug_of_ours(begin):
    with pytest.raises(AssertionError, match="Pingreq"):
        begin().control(Pingreq())


def test_nothing_is_delivered_for_a_subscription_that_is_not_there(begin, sent, stored):
    begin().deliver("a", [stored(1)])
    assert sent == []


@pytest.mark.parametrize(("level", "is_answered"), [(4, False), (5, True)])
def test_only_5_0_has_an_answer_to_a_failure(begin, connection, sent, level, is_answered):
    conversation = begin(level=level)
    conversation.receive([Publish("a", b"x", 1, 7)], NOW_US, never)
    assert conversation.failed(connection.tokens[0], StoreFullError("full")) is is_answered
    assert len(sent) == is_answered


def test_a_session_that_is_taken_up_to_end_is_still_the_stores(begin, connection):
    record = InflightRecord("dev", InflightDirection.IN, 7, InflightState.RECEIVED)
    conversation = begin(record, level=5, present=True, clean_session=False)
    conversation.control(Pubrel(7))
    assert connection.take("record_inflight") == [([], [(InflightDirection.IN, 7)])]


def test_leaving_says_what_was_answered_and_what_was_not(begin, connection, stored):
    conversation = begin()
    assert list(conversation.subscribe(Subscribe(1, (TopicRequest("$share/g/a", 2),)))) == []
    conversation.deliver("$share/g/a", [stored(41, qos=1), stored(42)])
    conversation.receive([Puback(1)], NOW_US, never)
    connection.calls.clear()
    conversation.leave(graceful=True, publish_will=True, session_expiry=5)
    assert connection.calls == [
        ("acknowledge", ("$share/g/a", [41], None)),
        ("disconnect", (True, True, 5)),
    ]
    assert connection.unanswered == {"$share/g/a": [42]}


def test_the_last_acknowledgements_may_be_lost_but_the_broker_is_left(begin, connection, stored):
    conversation = begin()
    assert list(conversation.subscribe(Subscribe(1, (TopicRequest("a", 1),)))) == []
    conversation.deliver("a", [stored(41)])
    conversation.receive([Puback(1)], NOW_US, never)
    connection.errors["acknowledge"] = StoreFullError("full")
    conversation.leave(graceful=False, publish_will=False, session_expiry=None)
    assert connection.take("disconnect") == [(False, False, None)]
