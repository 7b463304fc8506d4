"""paho-mqtt against the running gateway in MQTT 5.0: what that version adds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions
from paho_recorder import WAIT_S, Paho, properties

pytestmark = pytest.mark.interop


@pytest.fixture
def client_of(mqtt_gateway) -> Callable[..., Paho]:
    def make(client_id: str = "", **more: Any) -> Paho:
        return Paho(mqtt_gateway.mqtt_port, client_id, version=paho.MQTTv5, **more)

    return make


@pytest.mark.parametrize("transport", ["tcp", "tls", "ws", "wss"])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_is_published_is_heard_in_order(mqtt_gateway, transport, qos) -> None:
    name = f"paho5/{transport}/{qos}"
    with Paho(
        mqtt_gateway.ports[transport],
        version=paho.MQTTv5,
        transport="websockets" if transport.startswith("ws") else "tcp",
        cafile=mqtt_gateway.cafile if transport in ("tls", "wss") else None,
    ) as client:
        assert client.subscribe(f"{name}/#", qos).value == qos
        bodies = [b"%d" % number * 5_000 for number in range(20)]
        for body in bodies:
            assert client.publish(f"{name}/t", body, qos).value == 0
        got = [client.next() for _ in bodies]
        assert [message.payload for message in got] == bodies
        assert {(message.topic, message.qos) for message in got} == {(f"{name}/t", qos)}


def test_connack_says_what_the_gateway_can_do(client_of) -> None:
    with client_of() as client:
        said = client.connack
        assert said.AssignedClientIdentifier
        assert not client.flags.session_present
        assert said.TopicAliasMaximum >= 1
        for feature in (
            "MaximumQoS",
            "RetainAvailable",
            "WildcardSubscriptionAvailable",
            "SubscriptionIdentifierAvailable",
            "SharedSubscriptionAvailable",
        ):
            assert getattr(said, feature, 1) != 0, f"{feature}: absent means that it is there"


def test_every_property_of_a_message_goes_along(client_of) -> None:
    with client_of("p5-properties") as client:
        client.subscribe("p5/properties", 1)
        sent = properties(
            "PUBLISH",
            PayloadFormatIndicator=1,
            MessageExpiryInterval=600,
            ContentType="text/plain; charset=utf-8",
            ResponseTopic="p5/answers",
            CorrelationData=b"\x00\xff",
            UserProperty=[("b", "1"), ("a", ""), ("b", "2")],
        )
        client.publish("p5/properties", "€".encode(), 1, properties=sent)
        got = client.next().properties
        assert 590 <= got.MessageExpiryInterval <= 600
        assert (got.PayloadFormatIndicator, got.ContentType) == (1, "text/plain; charset=utf-8")
        assert (got.ResponseTopic, got.CorrelationData) == ("p5/answers", b"\x00\xff")
        assert got.UserProperty == [("b", "1"), ("a", ""), ("b", "2")], (
            "in order, repeated ones too"
        )


def test_a_message_expires_while_its_subscriber_is_away(client_of) -> None:
    with client_of("p5-late", clean=False) as late:
        late.subscribe("p5/expiry", 1)
    with client_of() as client:
        for seconds in (1, 600):
            client.publish(
                "p5/expiry",
                b"%d" % seconds,
                1,
                properties=properties("PUBLISH", MessageExpiryInterval=seconds),
            )
    time.sleep(1.1)  # the expiry interval itself; it has whole seconds only
    with client_of("p5-late", clean=False) as late:
        message = late.next()
        assert message.payload == b"600"
        assert message.properties.MessageExpiryInterval <= 599


def test_topic_aliases_both_ways(client_of) -> None:
    limit = properties("CONNECT", TopicAliasMaximum=2)
    with client_of("p5-alias", properties=limit) as client:
        client.subscribe("p5/alias/+", 1)
        first = properties("PUBLISH", TopicAlias=1)
        client.publish("p5/alias/a", b"name and alias", 1, properties=first)
        client.client.publish("", b"alias alone", 1, properties=first)
        other = properties("PUBLISH", TopicAlias=1)
        client.client.publish("p5/alias/b", b"another name", 1, properties=other)
        client.client.publish("", b"alias of it", 1, properties=other)
        got = [client.next() for _ in range(4)]
        assert [message.payload for message in got] == [
            b"name and alias",
            b"alias alone",
            b"another name",
            b"alias of it",
        ]
        # Ours towards paho, which does not resolve them: a name comes with the alias at first.
        names: dict[int, str] = {}
        for message, name in zip(got, "aabb", strict=True):
            alias = getattr(message.properties, "TopicAlias", 0)
            assert 0 <= alias <= 2
            if message.topic:
                names[alias] = message.topic
            assert (message.topic or names[alias]) == f"p5/alias/{name}"


def test_an_alias_above_the_maximum_ends_the_connection(client_of) -> None:
    with client_of("p5-alias-high") as client:
        high = client.connack.TopicAliasMaximum + 1
        client.client.publish("a", b"x", 1, properties=properties("PUBLISH", TopicAlias=high))
        flags, code, _ = client.lost.get(timeout=WAIT_S)
        assert (flags.is_disconnect_packet_from_server, code.value) == (True, 0x94)


def test_a_shared_subscription_shares(client_of) -> None:
    with client_of("p5-a") as one, client_of("p5-b") as two, client_of("p5-c") as alone:
        for client in (one, two):
            assert not client.subscribe("$share/group/p5/shared/#", 1).is_failure
        alone.subscribe("p5/shared/#", 1)
        for number in range(40):
            alone.publish("p5/shared/x", b"%d" % number, 1)
        assert [int(alone.next().payload) for _ in range(40)] == list(range(40))
        # A round trip of each member: what it was sent before has come.
        halves: list[list[int]] = []
        for client in (one, two):
            client.subscribe("p5/flush", 1)
            client.publish("p5/flush", b"", 1)
            half: list[int] = []
            while (message := client.next()).topic != "p5/flush":
                half.append(int(message.payload))
            halves.append(half)
            client.client.unsubscribe("p5/flush")
        assert sorted(halves[0] + halves[1]) == list(range(40))
        assert all(half == sorted(half) and half for half in halves), halves


def test_subscription_identifiers_say_which_subscription_it_was(client_of) -> None:
    with client_of("p5-ids") as client:
        for name, identifier in (("p5/ids/+", 7), ("p5/ids/a", 268_435_455)):
            options = SubscribeOptions(qos=1)
            client.subscribe(
                [(name, options)],
                properties=properties("SUBSCRIBE", SubscriptionIdentifier=identifier),
            )
        client.publish("p5/ids/b", b"b", 1)
        assert client.next().properties.SubscriptionIdentifier == [7]
        client.publish("p5/ids/a", b"a", 1)
        found = list(client.next().properties.SubscriptionIdentifier)
        if len(found) == 1:  # a copy for each subscription, which the specification leaves open
            found += client.next().properties.SubscriptionIdentifier
        assert sorted(found) == [7, 268_435_455]


def test_subscription_options(client_of) -> None:
    with client_of("p5-options") as client, client_of("p5-other") as other:
        other.publish("p5/options/kept", b"old", 1, retain=True)
        never = SubscribeOptions(qos=1, retainHandling=SubscribeOptions.RETAIN_DO_NOT_SEND)
        never.retainAsPublished = True
        never.noLocal = True
        client.subscribe([("p5/options/+", never)])
        client.publish("p5/options/own", b"mine", 1)
        other.publish("p5/options/kept", b"new", 1, retain=True)
        message = client.next()
        assert (message.payload, message.retain) == (b"new", True)
        new = SubscribeOptions(qos=1, retainHandling=SubscribeOptions.RETAIN_SEND_IF_NEW_SUB)
        client.subscribe([("p5/options/+", new)])
        other.publish("p5/options/end", b"end", 1, retain=True)
        message = client.next()
        assert (message.payload, message.retain) == (b"end", False), "it was not a new subscription"
        always = SubscribeOptions(qos=1)
        client.subscribe([("p5/options/+", always)])
        got = [client.next() for _ in range(2)]
        assert {(m.payload, m.retain) for m in got} == {(b"new", True), (b"end", True)}


def test_request_and_response(client_of) -> None:
    with client_of("p5-asking") as asking, client_of("p5-answering") as answering:
        answering.subscribe("p5/service", 1)
        asking.subscribe("p5/replies/asking", 1)
        for number in range(5):
            more = properties(
                "PUBLISH", ResponseTopic="p5/replies/asking", CorrelationData=b"%d" % number
            )
            asking.publish("p5/service", b"question", 1, properties=more)
            request = answering.next().properties
            back = properties("PUBLISH", CorrelationData=request.CorrelationData)
            answering.publish(request.ResponseTopic, b"answer", 1, properties=back)
            answer = asking.next()
            assert (answer.payload, answer.properties.CorrelationData) == (
                b"answer",
                b"%d" % number,
            )


def test_reason_codes_of_every_answer(client_of) -> None:
    with client_of("p5-reasons") as client:
        assert client.publish("p5/nobody/hears", b"x", 1).value == 0x10
        # Refused, and the connection goes on.
        assert client.publish("$SYS/mine", b"x", 1).is_failure
        assert client.subscribe([("$share/g", SubscribeOptions(qos=1))]).value == 0x8F
        assert client.subscribe([("p5/fine", SubscribeOptions(qos=2))]).value == 2
        removed: list[Any] = []
        client.client.on_unsubscribe = lambda _c, _u, _m, codes, _p: client.subscribed.put(
            (codes, None)
        )
        for name in ("p5/fine", "p5/never"):
            client.client.unsubscribe(name)
            removed.append(client.subscribed.get(timeout=WAIT_S)[0][0].value)
        assert removed == [0, 0x11]


def test_a_refused_connect_has_a_reason(client_of) -> None:
    refused = client_of("x" * 2000)  # longer than client_id_bytes_max
    code = refused.connect()
    assert code.value == 0x85
    assert refused.lost.get(timeout=WAIT_S)
    refused.client.loop_stop()


def test_a_session_lives_as_long_as_its_expiry(client_of) -> None:
    def kept(seconds: int, *, clean: bool = False) -> Paho:
        wanted = properties("CONNECT", SessionExpiryInterval=seconds)
        return client_of("p5-expiry", clean=clean, properties=wanted)

    with kept(600) as client:
        assert not client.flags.session_present
    with kept(600) as client:
        assert client.flags.session_present
        # The last word is DISCONNECT's.
        client.client.disconnect(properties=properties("DISCONNECT", SessionExpiryInterval=0))
        client.lost.get(timeout=WAIT_S)
    with kept(1) as client:
        assert not client.flags.session_present
    for _ in range(20):  # it counts from when the gateway sees the end of the connection
        time.sleep(1.5)  # the session expiry interval itself; it has whole seconds only
        with kept(1) as client:
            is_kept = client.flags.session_present
        if not is_kept:
            break
    assert not is_kept


def test_a_will_has_properties_and_a_delay_that_coming_back_ends(client_of) -> None:
    with client_of("p5-heir") as heir:
        heir.subscribe("p5/wills/+", 1)

        def dying(name: str, delay: int) -> Paho:
            client = client_of(name, clean=False)
            client.client.will_set(
                f"p5/wills/{name}",
                b"farewell",
                1,
                properties=properties(
                    "WILLMESSAGE",
                    WillDelayInterval=delay,
                    ContentType="text/plain",
                    UserProperty=[("why", "gone")],
                ),
            )
            return client

        with dying("back", 2) as client:
            client.vanish()
            client.lost.get(timeout=WAIT_S)
        with client_of("back", clean=False) as client:
            assert client.flags.session_present
        with dying("gone", 1) as client:
            client.vanish()
            message = heir.next()
        assert (message.topic, message.payload) == ("p5/wills/gone", b"farewell")
        assert message.properties.ContentType == "text/plain"
        assert message.properties.UserProperty == [("why", "gone")]


def test_disconnect_with_will_publishes_it(client_of) -> None:
    with client_of("p5-heir-4") as heir:
        heir.subscribe("p5/will4", 1)
        leaving = client_of("p5-leaving")
        leaving.client.will_set("p5/will4", b"on purpose", 1)
        with leaving:
            leaving.client.disconnect(ReasonCode(PacketTypes.DISCONNECT, identifier=4))
            assert heir.next().payload == b"on purpose"


def test_the_receive_maximum_of_a_client_is_kept(client_of) -> None:
    with client_of("p5-window", clean=False) as sleeper:
        sleeper.subscribe("p5/window", 1)
    with client_of() as client:
        for number in range(10):
            client.publish("p5/window", b"%d" % number, 1)
    wanted = properties("CONNECT", ReceiveMaximum=3, SessionExpiryInterval=600)
    slow = client_of("p5-window", clean=False, properties=wanted)
    slow.client.manual_ack_set(True)
    with slow:
        first = [slow.next() for _ in range(3)]
        slow.subscribe("p5/flush3", 0)
        slow.publish("p5/flush3", b"round trip", 0)
        assert slow.next().payload == b"round trip", "a fourth one would have come before"
        for message in first:
            slow.client.ack(message.mid, 1)
        rest = [slow.next() for _ in range(3)]
        assert [int(message.payload) for message in first + rest] == list(range(6))
