"""SUBSCRIBE and UNSUBSCRIBE of MQTT 5.0, and what comes back with a session.

For the older versions see session/test_delivering.py.
"""

import pytest

from tidegate.spi import (
    AccessError,
    FlowControlError,
    RequestError,
    RetainHandling,
    StoreFullError,
    Subscription,
)
from tidegate_protocols.mqtt import (
    Connect,
    Disconnect,
    Properties,
    Publish,
    Suback,
    Subscribe,
    TopicRequest,
    Unsuback,
    Unsubscribe,
)

KEPT = Properties(session_expiry_interval=60)


@pytest.fixture
def kept(make_client):
    """A client of MQTT 5.0 whose session outlives its connection."""
    client = make_client()
    assert client.connects(level=5, properties=KEPT).reason_code == 0
    return client


def subscribe(*requests, packet_id=1, identifier=0, user=()):
    identifiers = (identifier,) if identifier else ()
    properties = Properties(subscription_identifiers=identifiers, user_properties=user)
    wanted = [r if isinstance(r, TopicRequest) else TopicRequest(*r) for r in requests]
    return Subscribe(packet_id, tuple(wanted), properties)


def identifiers(client):
    return [packet.properties.subscription_identifiers for packet in client.gets()]


@pytest.mark.parametrize("handling", RetainHandling)
def test_the_options_reach_the_broker(kept, handling):
    kept.sends(
        subscribe(TopicRequest("a/+", 1, True, True, handling), identifier=300, user=(("k", "v"),))
    )
    (request,) = kept.connection.take("subscribe")
    assert (request.key, request.destination, request.qos) == ("a/+", "topic://a.*", 1)
    assert (request.no_local, request.retain_handling) == (True, handling)
    assert request.options == {"identifier": "300", "retain-as-published": "1"}
    kept.durable()
    assert kept.gets() == [Suback(1, (1,))]


def test_a_plain_subscription_has_no_options(kept):
    kept.sends(subscribe(("a", 0)))
    (request,) = kept.connection.take("subscribe")
    assert (request.no_local, request.options) == (False, {})


@pytest.mark.parametrize("key", ["$queue/q", "$share/g/a", "a"])
def test_what_a_session_subscribes_to_comes_back_with_it(kept, client_5, key):
    kept.sends(subscribe((key, 1)))
    assert kept.connection.take("subscribe")[0].durable_name == key
    client_5.sends(subscribe((key, 1)))
    assert client_5.connection.take("subscribe")[0].durable_name == ""


@pytest.mark.parametrize("key", ["$queue/q", "$share/g/$queue/q"])
@pytest.mark.parametrize(("asked", "granted"), [(0, 0), (1, 1), (2, 1)])
def test_a_queue_is_granted_qos_1_at_most(client_5, key, asked, granted):
    client_5.sends(subscribe((key, asked)))
    (request,) = client_5.connection.take("subscribe")
    assert (request.qos, request.acknowledge) == (granted, granted > 0)
    client_5.durable()
    assert client_5.gets() == [Suback(1, (granted,))]


def test_a_group_is_not_sent_retained_messages(client_5):
    client_5.sends(subscribe(("$share/g/a", 1)))
    (request,) = client_5.connection.take("subscribe")
    assert (request.share_group, request.destination) == ("g", "topic://a")
    assert request.retain_handling is RetainHandling.DO_NOT_SEND


# ------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (AccessError("no"), 0x87),
        (RequestError("bad"), 0x83),
        (StoreFullError("full"), 0x97),
        (FlowControlError("x"), 0x97),
    ],
)
def test_a_refused_subscription_has_a_reason(client_5, error, reason):
    client_5.connection.errors["subscribe"] = error
    client_5.sends(subscribe(("a", 1)))
    client_5.durable()
    assert client_5.gets() == [Suback(1, (reason,), Properties(reason_string=error.for_client))]


def test_each_filter_has_its_own_answer(make_client):
    client = make_client(subscriptions_max=2)
    client.connects(level=5)
    client.sends(subscribe(("$share/g", 1), ("b", 2), ("c", 0), ("d", 0), ("b", 1)))
    client.durable()
    (suback,) = client.gets()
    assert suback.reason_codes == (0x8F, 2, 0, 0x97, 1)  # 5.0:MQTT-3.8.4-6
    assert "$share/g" in suback.properties.reason_string  # the first one


def test_a_refused_renewal_leaves_the_subscription_as_it_was(client_5, stored):
    client_5.sends(subscribe(("a", 1), identifier=7))
    client_5.connection.errors["subscribe"] = RequestError("no")
    client_5.sends(subscribe(("a", 0), packet_id=2, identifier=9))
    client_5.durable()
    client_5.gets()
    client_5.session.deliver("a", [stored(1)])
    (packet,) = client_5.gets()
    assert (packet.qos, packet.properties.subscription_identifiers) == (1, (7,))


def test_an_answer_too_large_for_the_client_ends_the_connection(make_client):
    client = make_client()
    client.connects(level=5, properties=Properties(maximum_packet_size=20))
    client.sends(subscribe(*((f"t{n}", 0) for n in range(20))))
    (packet,) = client.gets()
    assert (type(packet), packet.reason_code) == (Disconnect, 0x95)  # 5.0:MQTT-3.1.2-24


def test_an_unsubscribe_has_one_reason_for_each_filter(client_5, stored):
    client_5.sends(subscribe(("a", 0)), Unsubscribe(2, ("a", "never/there", "a")))
    assert client_5.connection.take("unsubscribe") == [("a", True)]
    assert client_5.gets() == []
    client_5.durable()
    assert client_5.gets() == [Suback(1, (0,)), Unsuback(2, (0, 0x11, 0x11))]
    client_5.session.deliver("a", [stored(1)])
    assert client_5.gets() == []


# ----------------------------------------------------------------------- subscription identifiers


def test_a_message_has_the_identifiers_of_all_it_matches(client_5, stored):
    client_5.sends(subscribe(("a/#", 0), identifier=1), subscribe(("a/+", 0), identifier=2))
    client_5.sends(subscribe(("a/b", 0)), subscribe(("c", 0), identifier=3))
    client_5.session.deliver("a/#", [stored(1, "topic://a.b"), stored(2, "topic://a.b.c")])
    assert identifiers(client_5) == [(1, 2), (1,)]  # 5.0:MQTT-3.3.4-3 5.0:MQTT-3.3.4-4


def test_identifiers_follow_what_is_subscribed(client_5, stored):
    client_5.sends(subscribe(("a", 0), identifier=1), subscribe(("+", 0), identifier=2))
    client_5.session.deliver("a", [stored(1)])
    client_5.sends(subscribe(("a", 0), identifier=9))
    client_5.session.deliver("a", [stored(2)])
    client_5.sends(Unsubscribe(5, ("+",)))
    client_5.session.deliver("a", [stored(3)])
    client_5.sends(subscribe(("a", 0)))
    client_5.session.deliver("a", [stored(4)])
    assert identifiers(client_5) == [(1, 2), (9, 2), (9,), ()]


def test_messages_during_the_subscribe_have_its_identifier(client_5, stored):
    client_5.connection.on_call = lambda name: (
        client_5.session.deliver("a", [stored(1, retained=True)]) if name == "subscribe" else None
    )
    client_5.sends(subscribe(("#", 0), packet_id=3, identifier=8))
    client_5.gets()
    client_5.sends(subscribe(("a", 0), identifier=7))
    (packet,) = client_5.gets()
    # A retained message is for the subscription that was just made.
    assert (packet.retain, packet.properties.subscription_identifiers) == (True, (7,))


def test_what_others_share_has_its_own_identifier_only(client_5, stored):
    client_5.sends(subscribe(("#", 0), identifier=1))
    client_5.sends(subscribe(("$share/g/a", 0), identifier=2))
    client_5.session.deliver("$share/g/a", [stored(1)])
    client_5.session.deliver("#", [stored(2)])
    assert identifiers(client_5) == [(2,), (1,)]


def test_the_copy_for_subscriptions_without_local_messages_has_their_identifiers(client_5, stored):
    filters = [("#", False), ("a", False), ("+", True), ("a/#", True)]
    for number, (name, no_local) in enumerate(filters, start=1):
        client_5.sends(subscribe(TopicRequest(name, 0, no_local), identifier=number))
    client_5.session.deliver("a", [stored(1)])
    client_5.session.deliver("+", [stored(1)])
    assert identifiers(client_5) == [(1, 2), (3, 4)]


def test_before_5_0_there_are_no_identifiers(client, stored):
    client.sends(Subscribe(1, (TopicRequest("a", 0),)))
    client.session.deliver("a", [stored(1, headers=(("k", "v"),))])
    assert client.gets() == [Publish("a", b"x", 0)]


# ---------------------------------------------------------------------------- what comes back


def test_a_subscription_that_ceases_to_take_local_messages_keeps_where_its_packet_ids_begin(
    make_client, broker, stored
):
    first = make_client(broker=broker)
    first.connects(level=5, properties=Properties(session_expiry_interval=1000))
    first.sends(subscribe(TopicRequest("a", 1)))
    first.sends(subscribe(TopicRequest("a", 1, True)))
    before, after = first.connection.take("subscribe")
    assert (before.options, after.options) == ({}, {"id-offset": "0"})
    first.session.deliver("a", [stored(7, "topic://a")])
    broker.session_present = True
    broker.subscriptions = [
        Subscription(1, "dev", "a", "topic://a", True, 1, True, "mqtt", "", after.options)
    ]
    again = make_client(broker=broker)
    again.connects(
        level=5, clean_session=False, properties=Properties(session_expiry_interval=1000)
    )
    again.session.deliver("a", [stored(7, "topic://a", delivery_count=1)])
    ids = [
        packet.packet_id
        for client in (first, again)
        for packet in client.gets()
        if isinstance(packet, Publish)
    ]
    assert ids == [8, 8]


def test_restored_subscriptions_are_as_they_were(make_client, broker, stored):
    options = {"identifier": "5", "retain-as-published": "1"}
    broker.session_present = True
    broker.subscriptions = [
        Subscription(1, "dev", "a/#", "topic://a.>", True, 1, options=options),
        Subscription(0, "dev", "$queue/q", "queue://q", True, 1, options={"identifier": "6"}),
        Subscription(0, "dev", "$share/g/x", "topic://x", True, 1, share_group="g"),
        Subscription(2, "dev", "odd", "topic://odd", True, 0, options={"identifier": "x"}),
    ]
    client = make_client(broker)
    client.sends(Connect(client_id="dev", clean_session=False, level=5, properties=KEPT))
    assert client.gets()[0].session_present is True
    client.connection.calls.clear()
    client.session.deliver("a/#", [stored(1, "topic://a.b", retain=True)])
    client.session.deliver("$queue/q", [stored(2, "queue://q", retain=True)])
    client.session.deliver("$share/g/x", [stored(3, "topic://x")])
    client.session.deliver("odd", [stored(4, "topic://odd")])
    found = [
        (packet.topic, packet.qos, packet.retain, packet.properties.subscription_identifiers)
        for packet in client.gets()
    ]
    assert found == [
        ("a/b", 1, True, (5,)),
        ("$queue/q", 1, False, (6,)),
        ("x", 1, False, ()),
        ("odd", 0, False, ()),
    ]
