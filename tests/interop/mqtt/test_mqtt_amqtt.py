"""amqtt's client (MQTT 3.1.1) against the running gateway, over every transport."""

from __future__ import annotations

import gc
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from amqtt.client import MQTTClient

pytestmark = [
    pytest.mark.interop,
    # amqtt 0.11 leaves the socket of a WebSocket connection to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
WAIT_S = 60.0


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """What amqtt leaves behind is collected here and not in somebody else's test."""
    yield
    gc.collect()


def url_of(gateway: Any, transport: str) -> str:
    scheme = {"tcp": "mqtt", "tls": "mqtts"}.get(transport, transport)
    path = "" if scheme.startswith("mqtt") else "mqtt"
    return f"{scheme}://127.0.0.1:{gateway.ports[transport]}/{path}"


@pytest.fixture
def client_of(mqtt_gateway) -> Callable[..., Any]:
    """Makes connected clients; what they are given as *config* goes to amqtt as it is."""

    @asynccontextmanager
    async def connected(
        client_id: str, *, clean: bool = True, transport: str = "tcp", **config: Any
    ) -> AsyncGenerator[MQTTClient]:
        client = MQTTClient(client_id, config={"auto_reconnect": False, **config})
        await client.connect(
            url_of(mqtt_gateway, transport), cleansession=clean, cafile=mqtt_gateway.cafile
        )
        yield client
        await client.disconnect()

    return connected


async def heard(client: MQTTClient) -> Any:
    message = await client.deliver_message(timeout_duration=WAIT_S)
    assert message is not None
    return message


@pytest.mark.parametrize("transport", ["tcp", "tls", "ws", "wss"])
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_what_is_published_is_heard_in_order(client_of, transport, qos) -> None:
    name = f"amqtt/{transport}/{qos}"

    async def scenario() -> list[Any]:
        async with (
            client_of(f"s-{name}", transport=transport) as subscriber,
            client_of(f"p-{name}", transport=transport) as publisher,
        ):
            assert await subscriber.subscribe([(f"{name}/#", qos)]) == [qos]
            for number in range(10):
                await publisher.publish(f"{name}/t", str(number).encode(), qos=qos)
            got = [await heard(subscriber) for _ in range(10)]
            return [(message.topic, bytes(message.data), message.qos) for message in got]

    wanted = [(f"{name}/t", str(number).encode(), qos) for number in range(10)]
    assert await scenario() == wanted


async def test_retained_messages_reach_later_subscribers(client_of) -> None:
    async with client_of("amqtt-retain") as client:
        await client.publish("amqtt-kept/a", b"old", qos=1, retain=True)
        await client.publish("amqtt-kept/b", b"gone", qos=1, retain=True)
        await client.publish("amqtt-kept/b", b"", qos=1, retain=True)
        await client.subscribe([("amqtt-kept/+", 1)])
        message = await heard(client)
        assert (message.topic, bytes(message.data)) == ("amqtt-kept/a", b"old")
        assert message.retain
        await client.publish("amqtt-kept/a", b"live", qos=1)
        message = await heard(client)
        assert (bytes(message.data), bool(message.retain)) == (b"live", False)


async def test_a_persistent_session_gets_what_it_missed(client_of) -> None:
    async with client_of("amqtt-sleeper", clean=False) as sleeper:
        await sleeper.subscribe([("amqtt-sleep/#", 2)])
    async with client_of("amqtt-waker") as waker:
        for number in range(6):
            await waker.publish("amqtt-sleep/a", str(number).encode(), qos=1 + number % 2)
    async with client_of("amqtt-sleeper", clean=False) as sleeper:
        got = [await heard(sleeper) for _ in range(6)]
        # Each QoS in its order: amqtt hands over a QoS 2 message at PUBREL, so they may mix.
        assert [bytes(m.data) for m in got if m.qos == 1] == [b"0", b"2", b"4"]
        assert [bytes(m.data) for m in got if m.qos == 2] == [b"1", b"3", b"5"]


async def test_the_will_is_published_when_a_client_vanishes(client_of) -> None:
    will = {"topic": "amqtt-wills/dying", "message": "farewell", "qos": 1, "retain": False}

    async with client_of("amqtt-mourner") as mourner:
        await mourner.subscribe([("amqtt-wills/+", 1)])
        async with client_of("amqtt-dying", will=will) as dying:
            handler: Any = dying._handler
            handler.writer._writer.transport.abort()
            message = await heard(mourner)
            assert (message.topic, bytes(message.data)) == ("amqtt-wills/dying", b"farewell")


async def test_a_refused_subscription_is_0x80_and_the_others_go_on(client_of) -> None:
    async with client_of("amqtt-refused") as client:
        assert await client.subscribe([("$share/g", 1), ("amqtt-ok", 1)]) == [0x80, 1]
