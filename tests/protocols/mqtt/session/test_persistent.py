"""Sessions that last: what they remember, and how they go on.

What the broker does with a call is its own test; here counts what is asked of it, when, and what
the client hears before and after it is durable.
"""

from mqtt_session import LOST, OUT, PUBLISHED, RELEASED, subscribe

from tidegate.spi import (
    ConnectionEndedError,
    InflightRecord,
    Subscription,
)
from tidegate_protocols.mqtt import (
    Connack,
    Connect,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Unsubscribe,
)

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
