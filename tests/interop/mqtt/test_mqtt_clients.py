"""What every version of MQTT can do, by paho-mqtt against the running gateway; and STOMP beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho_recorder import WAIT_S, Paho
from stomp_recorder import stomp_connect

pytestmark = pytest.mark.interop


@pytest.fixture(
    params=[paho.MQTTv31, paho.MQTTv311, paho.MQTTv5], ids=["3.1", "3.1.1", "5.0"], scope="module"
)
def version(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def client_of(gateway, version) -> Callable[..., Paho]:
    """Makes clients of one version; their ids and topics are told apart by it."""

    def make(client_id: str, *, clean: bool = True) -> Paho:
        return Paho(gateway.mqtt_port, f"{client_id}-{version}", version=version, clean=clean)

    return make


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_paho_publishes_and_receives(client_of, qos) -> None:
    with client_of(f"sub{qos}") as subscriber, client_of(f"pub{qos}") as publisher:
        subscriber.subscribe(f"paho/{qos}/+", qos)
        for number in range(20):
            publisher.publish(f"paho/{qos}/x", f"{number}".encode(), qos)
        got = [subscriber.next() for _ in range(20)]
        assert [m.payload for m in got] == [str(n).encode() for n in range(20)]
        assert {m.qos for m in got} == {qos}
        assert {m.topic for m in got} == {f"paho/{qos}/x"}


def test_a_persistent_session_gets_what_it_missed(client_of, version) -> None:
    with client_of("sleeper", clean=False) as sleeper:
        assert not sleeper.flags.session_present
        sleeper.subscribe("sleep/#", 2)
    with client_of("waker") as waker:
        for number in range(6):
            waker.publish("sleep/a", str(number).encode(), 1 + number % 2)
    with client_of("sleeper", clean=False) as sleeper:
        assert sleeper.flags.session_present == (version != paho.MQTTv31), "3.1 has no such flag"
        got = [sleeper.next() for _ in range(6)]
        # Each QoS in its order: a client hands over a QoS 2 message at PUBREL, so they may mix.
        assert [m.payload for m in got if m.qos == 1] == [b"0", b"2", b"4"]
        assert [m.payload for m in got if m.qos == 2] == [b"1", b"3", b"5"]
    with client_of("sleeper", clean=True) as sleeper:
        assert not sleeper.flags.session_present


def test_retained_messages_reach_later_subscribers(client_of) -> None:
    with client_of("keeper") as keeper:
        keeper.publish("retained/a", b"first", 1, retain=True)
        keeper.publish("retained/a", b"second", 1, retain=True)
        keeper.publish("retained/b", b"gone", 1, retain=True)
        keeper.publish("retained/b", b"", 1, retain=True)
        keeper.subscribe("retained/#", 1)
        message = keeper.next()
        assert (message.payload, message.retain) == (b"second", True)
        keeper.publish("retained/a", b"live", 1)
        message = keeper.next()
        assert (message.payload, message.retain) == (b"live", False)


def test_the_will_is_published_when_a_client_vanishes(client_of) -> None:
    with client_of("mourner") as mourner:
        mourner.subscribe("wills/+", 1)
        dying = client_of("dying")
        dying.client.will_set("wills/dying", b"farewell", 1)
        with dying:
            dying.vanish()
            assert mourner.next().payload == b"farewell"
        leaving = client_of("leaving")
        leaving.client.will_set("wills/leaving", b"never", 1)
        with leaving:
            pass
        with client_of("other") as other:
            other.publish("wills/other", b"end", 1)
        while (message := mourner.next()).payload != b"end":
            assert message.payload != b"never"


def test_a_queue_is_the_same_queue_for_both_protocols(gateway, client_of) -> None:
    connection, recorder = stomp_connect(gateway)
    with client_of("bridge") as client:
        connection.subscribe("/queue/shared.orders", id="1", ack="client-individual")
        client.publish("$queue/shared/orders", b"from mqtt", 1)
        frame = recorder.messages.get(timeout=WAIT_S)
        assert frame.body == b"from mqtt"
        connection.ack(frame.headers["ack"])
        connection.unsubscribe(id="1")
        client.subscribe("$queue/shared/orders", 1)
        connection.send("/queue/shared.orders", b"from stomp", receipt="r")
        assert client.next().payload == b"from stomp"
    connection.disconnect()


def test_topic_names_map_both_ways_without_loss(gateway, client_of) -> None:
    connection, recorder = stomp_connect(gateway)
    with client_of("names") as client:
        connection.subscribe("/topic/>", id="1", ack="auto")
        client.subscribe("names/#", 1)
        client.publish("names/a.b/c d", b"1", 1)
        frame = recorder.messages.get(timeout=WAIT_S)
        assert (frame.headers["destination"], frame.body) == ("/topic/names.a/b.c d", b"1")
        assert client.next().topic == "names/a.b/c d"
        connection.send("/topic/names.x/y.z", b"2")
        assert client.next().topic == "names/x.y/z"
    connection.disconnect()


def test_stomp_connection_survives_a_mqtt_take_over(client_of, version) -> None:
    with client_of("twin") as first, client_of("twin") as second:
        flags, code, _ = first.lost.get(timeout=WAIT_S)
        if version == paho.MQTTv5:
            assert (flags.is_disconnect_packet_from_server, code.value) == (True, 0x8E)
        first.client.loop_stop()
        second.subscribe("twin", 1)
        second.publish("twin", b"x", 1)
        assert second.next().payload == b"x"


@pytest.mark.parametrize(("kind", "form"), [("queue", "$queue/{}"), ("topic", "{}")])
def test_an_mqtt_client_answers_a_stomp_request(gateway, client_of, version, kind, form) -> None:
    asking, recorder = stomp_connect(gateway)
    asking.subscribe(f"/temp-{kind}/answers.mine", id="a", ack="client-individual")
    asking.subscribe("/topic/service", id="b", ack="auto")
    asking.send("/topic/service", b"?", headers={"reply-to": f"/temp-{kind}/answers.mine"})
    reply_to = recorder.messages.get(timeout=WAIT_S).headers["reply-to"]
    name = reply_to.removeprefix(f"/{kind}/").replace(".", "/")
    with client_of(f"responder-{kind}") as responder:
        responder.publish(form.format(name), b"answer", 1)
        frame = recorder.messages.get(timeout=WAIT_S)
        assert (frame.body, frame.headers["subscription"]) == (b"answer", "a")
        asking.ack(frame.headers["ack"])
        assert responder.subscribe(form.format(name), 1).is_failure, "only the owner may subscribe"
        asking.disconnect(receipt="bye")
        assert recorder.receipts.get(timeout=WAIT_S) == "bye"
        assert recorder.disconnected.wait(WAIT_S)
        # The gateway lets go of the owner one turn after the RECEIPT; a round trip is longer.
        responder.publish("elsewhere", b"", 1)
        if version == paho.MQTTv5:
            assert responder.publish(form.format(name), b"too late", 1).is_failure
        else:
            responder.client.publish(form.format(name), b"too late", 1)
            assert responder.lost.get(timeout=WAIT_S), "it can be refused only by closing"
