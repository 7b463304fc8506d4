"""amqtt's client and paho-mqtt against the running gateway, and both protocols together."""

from __future__ import annotations

import asyncio
import queue
import threading
from typing import Any

import paho.mqtt.client as paho
import pytest
from amqtt.client import MQTTClient
from gateway_process import GatewayProcess
from paho.mqtt.enums import CallbackAPIVersion
from stomp_recorder import stomp_connect

pytestmark = pytest.mark.interop
WAIT_S = 20.0


class Paho:
    """A paho client whose callbacks fill queues."""

    def __init__(self, gateway: GatewayProcess, client_id: str, *, clean: bool = True) -> None:
        self.messages: queue.Queue[Any] = queue.Queue()
        self.subscribed = threading.Event()
        self.connected: queue.Queue[Any] = queue.Queue()
        self.client = paho.Client(
            CallbackAPIVersion.VERSION2, client_id, clean_session=clean, protocol=paho.MQTTv311
        )
        self.client.on_message = lambda _c, _u, message: self.messages.put(message)
        self.client.on_subscribe = lambda *_: self.subscribed.set()
        self.client.on_connect = lambda _c, _u, flags, code, _p: self.connected.put((flags, code))
        self._port = gateway.mqtt_port

    def __enter__(self) -> Paho:
        self.client.connect("127.0.0.1", self._port)
        self.client.loop_start()
        self.flags, code = self.connected.get(timeout=WAIT_S)
        assert not code.is_failure, code
        return self

    def __exit__(self, *_: object) -> None:
        self.client.disconnect()
        self.client.loop_stop()

    def subscribe(self, topic: str, qos: int) -> None:
        self.subscribed.clear()
        self.client.subscribe(topic, qos)
        assert self.subscribed.wait(WAIT_S)

    def publish(self, topic: str, body: bytes, qos: int, *, retain: bool = False) -> None:
        self.client.publish(topic, body, qos, retain).wait_for_publish(WAIT_S)

    def next(self) -> Any:
        return self.messages.get(timeout=WAIT_S)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_paho_publishes_and_receives(gateway, qos) -> None:
    with Paho(gateway, f"sub{qos}") as subscriber, Paho(gateway, f"pub{qos}") as publisher:
        subscriber.subscribe(f"paho/{qos}/+", qos)
        for number in range(20):
            publisher.publish(f"paho/{qos}/x", f"{number}".encode(), qos)
        got = [subscriber.next() for _ in range(20)]
        assert [m.payload for m in got] == [str(n).encode() for n in range(20)]
        assert {m.qos for m in got} == {qos}
        assert {m.topic for m in got} == {f"paho/{qos}/x"}


def test_a_persistent_session_gets_what_it_missed(gateway) -> None:
    with Paho(gateway, "sleeper", clean=False) as sleeper:
        assert not sleeper.flags.session_present
        sleeper.subscribe("sleep/#", 1)
    with Paho(gateway, "waker") as waker:
        for number in range(5):
            waker.publish("sleep/a", str(number).encode(), 1)
    with Paho(gateway, "sleeper", clean=False) as sleeper:
        assert sleeper.flags.session_present
        assert [sleeper.next().payload for _ in range(5)] == [b"0", b"1", b"2", b"3", b"4"]
    with Paho(gateway, "sleeper", clean=True) as sleeper:
        assert not sleeper.flags.session_present


def test_retained_messages_reach_later_subscribers(gateway) -> None:
    with Paho(gateway, "keeper") as keeper:
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


def test_the_will_is_published_when_a_client_vanishes(gateway) -> None:
    with Paho(gateway, "mourner") as mourner:
        mourner.subscribe("wills/+", 1)
        dying = Paho(gateway, "dying")
        dying.client.will_set("wills/dying", b"farewell", 1)
        with dying:
            link: Any = dying.client.socket()
            link.shutdown(2)  # neither DISCONNECT nor a goodbye of any kind
            assert mourner.next().payload == b"farewell"
        leaving = Paho(gateway, "leaving")
        leaving.client.will_set("wills/leaving", b"never", 1)
        with leaving:
            pass
        with Paho(gateway, "other") as other:
            other.publish("wills/other", b"end", 1)
        while (message := mourner.next()).payload != b"end":
            assert message.payload != b"never"


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_amqtt_publishes_and_receives(gateway, qos) -> None:
    async def scenario() -> list[bytes]:
        url = f"mqtt://127.0.0.1:{gateway.mqtt_port}/"
        subscriber, publisher = MQTTClient(f"amqtt-s{qos}"), MQTTClient(f"amqtt-p{qos}")
        await subscriber.connect(url)
        await publisher.connect(url)
        await subscriber.subscribe([(f"amqtt/{qos}/#", qos)])
        got: list[bytes] = []
        for number in range(10):
            await publisher.publish(f"amqtt/{qos}/t", str(number).encode(), qos=qos)
        for _ in range(10):
            message = await subscriber.deliver_message(timeout_duration=WAIT_S)
            assert message is not None
            got.append(bytes(message.data or b""))
        await subscriber.disconnect()
        await publisher.disconnect()
        return got

    assert asyncio.run(scenario()) == [str(n).encode() for n in range(10)]


def test_a_queue_is_the_same_queue_for_both_protocols(gateway) -> None:
    connection, recorder = stomp_connect(gateway)
    with Paho(gateway, "bridge") as client:
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


def test_topic_names_map_both_ways_without_loss(gateway) -> None:
    connection, recorder = stomp_connect(gateway)
    with Paho(gateway, "names") as client:
        connection.subscribe("/topic/>", id="1", ack="auto")
        client.subscribe("names/#", 1)
        client.publish("names/a.b/c d", b"1", 1)
        frame = recorder.messages.get(timeout=WAIT_S)
        assert (frame.headers["destination"], frame.body) == ("/topic/names.a/b.c d", b"1")
        assert client.next().topic == "names/a.b/c d"
        connection.send("/topic/names.x/y.z", b"2")
        assert client.next().topic == "names/x.y/z"
    connection.disconnect()


def test_stomp_connection_survives_a_mqtt_take_over(gateway) -> None:
    with Paho(gateway, "twin") as first:
        gone = threading.Event()
        first.client.on_disconnect = lambda *_: gone.set()
        with Paho(gateway, "twin") as second:
            assert gone.wait(WAIT_S), "the older connection must be closed"
            first.client.loop_stop()
            second.subscribe("twin", 1)
            second.publish("twin", b"x", 1)
            assert second.next().payload == b"x"


@pytest.mark.parametrize(("kind", "form"), [("queue", "$queue/{}"), ("topic", "{}")])
def test_an_mqtt_client_answers_a_stomp_request(gateway, kind, form) -> None:
    asking, recorder = stomp_connect(gateway)
    asking.subscribe(f"/temp-{kind}/answers.mine", id="a", ack="client-individual")
    asking.subscribe("/topic/service", id="b", ack="auto")
    asking.send("/topic/service", b"?", headers={"reply-to": f"/temp-{kind}/answers.mine"})
    reply_to = recorder.messages.get(timeout=WAIT_S).headers["reply-to"]
    name = reply_to.removeprefix(f"/{kind}/").replace(".", "/")
    with Paho(gateway, f"responder-{kind}") as responder:
        responder.publish(form.format(name), b"answer", 1)
        frame = recorder.messages.get(timeout=WAIT_S)
        assert (frame.body, frame.headers["subscription"]) == (b"answer", "a")
        asking.ack(frame.headers["ack"])
        codes: queue.Queue[Any] = queue.Queue()
        responder.client.on_subscribe = lambda _c, _u, _m, answers, _p: codes.put(answers)
        responder.client.subscribe(form.format(name), 1)
        assert codes.get(timeout=WAIT_S)[0].is_failure, "only the owner may subscribe"
        asking.disconnect(receipt="bye")
        assert recorder.receipts.get(timeout=WAIT_S) == "bye"
        assert recorder.disconnected.wait(WAIT_S)
        # The gateway lets go of the owner one turn after the RECEIPT; a round trip is longer.
        responder.publish("elsewhere", b"", 1)
        lost = threading.Event()
        responder.client.on_disconnect = lambda *_: lost.set()
        responder.client.publish(form.format(name), b"too late", 1)
        assert lost.wait(WAIT_S), "MQTT 3.1.1 can refuse a publish only by closing"
