"""What a client of MQTT 3.1.1 subscribes to, and what it is given.

What the broker does with a call is its own test; here counts what is asked of it, when, and what
the client hears before and after it is durable.
"""

import pytest
from mqtt_session import subscribe

from tidegate.spi import (
    AccessError,
    FlowControlError,
    RequestError,
    RetainHandling,
    StoreFullError,
)
from tidegate_protocols.mqtt import (
    Disconnect,
    Puback,
    Publish,
    Suback,
    Unsuback,
    Unsubscribe,
)

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
