"""aiomqtt against the running gateway: 3.1.1 and 5.0, over TCP, TLS and WebSocket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import aiomqtt
import pytest
from paho_recorder import properties

pytestmark = pytest.mark.interop
WAIT_S = 60.0
VERSIONS = {"3.1.1": aiomqtt.ProtocolVersion.V311, "5.0": aiomqtt.ProtocolVersion.V5}


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def client_of(mqtt_gateway) -> Callable[..., aiomqtt.Client]:
    def make(
        version: str, client_id: str, *, transport: str = "tcp", clean: bool = True, **more: Any
    ) -> aiomqtt.Client:
        if version == "5.0":
            more["clean_start"] = clean
            if not clean:
                more["properties"] = properties("CONNECT", SessionExpiryInterval=3600)
        else:
            more["clean_session"] = clean
        if transport in ("tls", "wss"):
            more["tls_context"] = mqtt_gateway.context()
        if transport in ("ws", "wss"):
            more |= {"transport": "websockets", "websocket_path": "/mqtt"}
        return aiomqtt.Client(
            "127.0.0.1",
            mqtt_gateway.ports[transport],
            identifier=f"{client_id}-{version}",
            protocol=VERSIONS[version],
            timeout=WAIT_S,
            **more,
        )

    return make


def run(scenario: Any) -> Any:
    return asyncio.run(asyncio.wait_for(scenario, 60))


async def heard(client: aiomqtt.Client, count: int) -> list[aiomqtt.Message]:
    got: list[aiomqtt.Message] = []
    async with asyncio.timeout(WAIT_S):
        async for message in client.messages:
            got.append(message)
            if len(got) == count:
                break
    return got


@pytest.mark.parametrize("transport", ["tcp", "tls", "ws", "wss"])
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_what_is_published_is_heard_in_order(client_of, version, transport, qos) -> None:
    name = f"aiomqtt/{version}/{transport}/{qos}"

    async with (
        client_of(version, f"{name}-s", transport=transport) as subscriber,
        client_of(version, f"{name}-p", transport=transport) as publisher,
    ):
        await subscriber.subscribe(f"{name}/#", qos)
        for number in range(20):
            await publisher.publish(f"{name}/x", b"%d" % number, qos)
        got = await heard(subscriber, 20)
        assert [message.payload for message in got] == [b"%d" % n for n in range(20)]
        assert {(str(message.topic), message.qos) for message in got} == {(f"{name}/x", qos)}


async def test_many_publishes_at_once_are_all_confirmed(client_of, version) -> None:
    name = f"aiomqtt/{version}/many"

    async with client_of(version, "many") as client:
        await client.subscribe(name, 2)
        await asyncio.gather(*(client.publish(name, b"%d" % n, 2) for n in range(200)))
        got = await heard(client, 200)
        assert sorted(int(message.payload) for message in got) == list(range(200))


async def test_retained_messages_reach_later_subscribers(client_of, version) -> None:
    name = f"aiomqtt/{version}/kept"

    async with client_of(version, "keeper") as client:
        await client.publish(f"{name}/a", b"old", 1, True)
        await client.publish(f"{name}/b", b"gone", 1, True)
        await client.publish(f"{name}/b", b"", 1, True)
        await client.subscribe(f"{name}/+", 1)
        await client.publish(f"{name}/a", b"live", 1)
        first, second = await heard(client, 2)
        assert (first.payload, first.retain) == (b"old", True)
        assert (second.payload, bool(second.retain)) == (b"live", False)


async def test_a_persistent_session_gets_what_it_missed(client_of, version) -> None:
    name = f"aiomqtt/{version}/sleep"

    async with client_of(version, "sleeper", clean=False) as sleeper:
        await sleeper.subscribe(name, 1)
    async with client_of(version, "waker") as waker:
        for number in range(5):
            await waker.publish(name, b"%d" % number, 1)
    async with client_of(version, "sleeper", clean=False) as sleeper:
        got = await heard(sleeper, 5)
        assert [message.payload for message in got] == [b"%d" % n for n in range(5)]


async def test_the_will_is_published_when_a_client_vanishes(client_of, version) -> None:
    name = f"aiomqtt/{version}/will"

    async def vanish(dying: aiomqtt.Client) -> None:
        async with dying:
            inner: Any = dying._client
            inner.socket().shutdown(2)
            await heard(dying, 1)

    async def scenario() -> None:
        dying = client_of(version, "dying", will=aiomqtt.Will(name, b"farewell", 1))
        async with client_of(version, "mourner") as mourner:
            await mourner.subscribe(name, 1)
            with pytest.raises(aiomqtt.MqttError):
                await vanish(dying)
            assert [message.payload for message in await heard(mourner, 1)] == [b"farewell"]

    await scenario()


async def test_request_and_response_with_properties(client_of) -> None:
    async def answer_one(client: aiomqtt.Client) -> None:
        (request,) = await heard(client, 1)
        asked: Any = request.properties
        assert (asked.ContentType, asked.UserProperty) == ("text/plain", [("a", "1"), ("a", "2")])
        back = properties("PUBLISH", CorrelationData=asked.CorrelationData)
        await client.publish(asked.ResponseTopic, b"answer", 1, properties=back)

    async with (
        client_of("5.0", "asking") as asking,
        client_of("5.0", "answering") as answering,
    ):
        await answering.subscribe("$share/services/aiomqtt/service", 1)
        await asking.subscribe(
            "aiomqtt/replies", 1, properties=properties("SUBSCRIBE", SubscriptionIdentifier=5)
        )
        more = properties(
            "PUBLISH",
            ContentType="text/plain",
            ResponseTopic="aiomqtt/replies",
            CorrelationData=b"\xff\x00",
            MessageExpiryInterval=60,
            UserProperty=[("a", "1"), ("a", "2")],
        )
        await asking.publish("aiomqtt/service", b"question", 1, properties=more)
        await answer_one(answering)
        (answer,) = await heard(asking, 1)
        got: Any = answer.properties
        assert (answer.payload, got.CorrelationData) == (b"answer", b"\xff\x00")
        assert got.SubscriptionIdentifier == [5]


async def test_a_refused_connect_and_a_refused_filter_are_named(client_of) -> None:
    with pytest.raises(aiomqtt.MqttError, match="Client identifier not valid"):
        async with client_of("5.0", "x" * 2000):
            pass
    async with client_of("5.0", "refused") as client:
        codes = await client.subscribe([("$share/g", 1), ("aiomqtt/fine", 1)])
        assert [code.value for code in codes] == [0x8F, 1]
