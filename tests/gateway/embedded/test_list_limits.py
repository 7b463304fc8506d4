"""Limits of queues and subscriptions over real sockets and real stores, through a restart."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Final

import mqtt_raw as raw
import pytest
from wire import StompClient

from tidegate.testing.embedded import EmbeddedGateway

STORES: Final = ("journal", "jdbc")
BODY: Final = 100  # bytes


def table(match: str, **options: object) -> str:
    lines = [f"{key} = {json.dumps(value)}\n" for key, value in {"match": match, **options}.items()]
    return "[[destinations]]\n" + "".join(lines)


#: Each queue is named like its act, and holds three messages or their bytes; topics like their
#: subscriptions'.
CONFIG: Final = "".join(
    [
        *(
            table(f"queue://{limit}.{act}", overflow=act, **{limit: value})
            for limit, value in (("messages_max", 3), ("bytes_max", f"{3 * BODY}b"))
            for act in ("slow", "refuse", "drop_oldest", "drop_newest", "disconnect")
        ),
        table("queue://dead", messages_max=3, overflow="drop_oldest", overflow_dead_letter=True),
        *(
            table(f"topic://{act}", subscription_messages_max=3, subscription_overflow=act)
            for act in ("slow", "refuse", "drop_oldest", "drop_newest", "disconnect")
        ),
    ]
)


def body(number: int) -> bytes:
    return b"%d" % number + b"." * (BODY - 1)


def bodies(numbers: range) -> list[bytes]:
    return [body(number) for number in numbers]


async def stomp_fills(port: int, name: str) -> tuple[int, str]:
    """Send five messages one by one. Returns: how many were confirmed; the ERROR's message."""
    client = await StompClient.connect(port)
    try:
        for number in range(5):
            client.send("SEND", body(number), destination=name, receipt=f"{number}")
            answer = await client.receive()
            if answer.command == "ERROR":
                assert await client.reader.read() == b""
                return number, answer.headers["message"]
        return 5, ""
    finally:
        await client.aclose()


async def drained(port: int, name: str, count: int) -> list[bytes]:
    """The first *count* messages of a queue, behind which there is nothing."""
    client = await StompClient.connect(port)
    found: list[bytes] = []
    try:
        client.send("SUBSCRIBE", id="s", destination=name, ack="client-individual")
        while len(found) < count:
            frame = await client.receive()
            found.append(frame.body)
            client.send("ACK", id=frame.headers["ack"], receipt=f"{len(found)}")
        acknowledged = 0
        while acknowledged < count:  # what is more than that comes before or between
            frame = await client.receive()
            assert frame.command == "RECEIPT", frame
            acknowledged += 1
        client.send("SEND", b"end", destination=name)
        assert (await client.receive()).body == b"end"
        return found
    finally:
        await client.aclose()


@pytest.mark.parametrize("store", STORES)
async def test_each_act_on_a_stomp_producer_and_what_is_left_behind_a_restart(
    tmp_path: Path, store: str
) -> None:
    config = f'[store]\nplugin = "{store}"\n{CONFIG}'
    async with EmbeddedGateway(config, data_directory=tmp_path) as gateway:
        for limit in ("messages_max", "bytes_max"):
            for act, confirmed in (
                *(("refuse", 3), ("disconnect", 3)),
                *(("drop_oldest", 5), ("drop_newest", 5)),
            ):
                name = f"/queue/{limit}.{act}"
                count, told = await stomp_fills(gateway.stomp_port, name)
                assert count == confirmed, name
                assert not told or limit in told
        assert await stomp_fills(gateway.stomp_port, "/queue/dead") == (5, "")
        await gateway.restart()
        port = gateway.stomp_port
        for limit in ("messages_max", "bytes_max"):
            # What was there before the start counts.
            assert (await stomp_fills(port, f"/queue/{limit}.refuse"))[0] == 0
            for act, kept in (
                *(("refuse", range(3)), ("disconnect", range(3))),
                *(("drop_oldest", range(2, 5)), ("drop_newest", range(3))),
            ):
                assert await drained(port, f"/queue/{limit}.{act}", len(kept)) == bodies(kept)
        assert await drained(port, "/queue/dead", 3) == bodies(range(2, 5))
        assert await drained(port, "/queue/DLQ.dead", 2) == bodies(range(2))
        assert (await stomp_fills(port, "/queue/messages_max.refuse"))[0] == 2  # "end" is there


@pytest.mark.parametrize("name", ["messages_max.slow", "bytes_max.slow"])
async def test_a_stomp_producer_that_is_slowed_is_confirmed_when_there_is_room(
    tmp_path: Path, name: str
) -> None:
    async with EmbeddedGateway(CONFIG, data_directory=tmp_path) as gateway:
        producer = await StompClient.connect(gateway.stomp_port)
        consumer = await StompClient.connect(gateway.stomp_port)
        for number in range(4):
            receipt = {"receipt": f"{number}"}
            producer.send("SEND", body(number), destination=f"/queue/{name}", **receipt)
            if number < 3:
                await producer.receipt(f"{number}")
        others = await StompClient.connect(gateway.stomp_port)
        for number in range(20):  # others go on meanwhile
            others.send("SEND", b"x", destination="/queue/other", receipt=f"{number}")
            await others.receipt(f"{number}")
        assert not producer.reader._buffer  # type: ignore[attr-defined]  # what has come so far
        consumer.send("SUBSCRIBE", id="s", destination=f"/queue/{name}", ack="client-individual")
        for number in range(4):
            frame = await consumer.receive()
            assert frame.body == body(number)
            consumer.send("ACK", id=frame.headers["ack"])
        await producer.receipt("3")
        for client in (producer, consumer, others):
            await client.aclose()


def mqtt_story(port: int) -> None:
    """One producer of MQTT 5.0 and one of 3.1.1 for each act."""
    for act in ("refuse", "drop_newest", "drop_oldest", "disconnect"):
        topic = f"$queue/messages_max/{act}"
        client = raw.Client(port, raw.V5)
        client.connect("five")
        answers = [client.publishes(topic, body(number)).code for number in range(4)]
        assert answers[:3] == [0, 0, 0]
        # 0x10: nobody got it.
        expected = {"refuse": 0x97, "disconnect": 0x97, "drop_newest": 0x10, "drop_oldest": 0}
        assert answers[3] == expected[act]
        if act == "disconnect":
            assert client.receive(raw.DISCONNECT).code == 0x97
            assert client.is_closed()
        client.close()
        older = raw.Client(port)
        older.connect("older")
        if act in ("refuse", "disconnect"):
            older.publish(topic, body(4), qos=1, packet_id=1)
            assert older.is_closed()
        else:
            older.publishes(topic, body(4))
        older.close()


async def test_each_act_on_an_mqtt_producer(tmp_path: Path) -> None:
    async with EmbeddedGateway(CONFIG, data_directory=tmp_path) as gateway:
        await asyncio.to_thread(mqtt_story, gateway.mqtt_port)
        port = gateway.stomp_port
        for act, kept in (
            *(("refuse", range(3)), ("disconnect", range(3))),
            *(("drop_newest", range(3)), ("drop_oldest", range(2, 5))),
        ):
            name = f"/queue/messages_max.{act}"
            assert await drained(port, name, len(kept)) == bodies(kept), act


def sessions_story(port: int) -> None:
    """A session at its limit, with each act; the others hear everything in any case."""
    for act, answers, kept in (
        ("refuse", [0, 0, 0, 0x97, 0x97], range(3)),
        ("drop_newest", [0] * 5, range(3)),
        ("drop_oldest", [0] * 5, range(2, 5)),
        ("disconnect", [0] * 5, range(3)),
    ):
        away = raw.Client(port, raw.V5)
        away.connect(f"away {act}", session_expiry=1000, receive_maximum=1)
        away.subscribe(act, 1)
        if act != "disconnect":
            away.leave()
        other = raw.Client(port, raw.V5)
        other.connect("other")
        other.subscribe(act, 0)
        producer = raw.Client(port, raw.V5)
        producer.connect("producer")
        assert [producer.publishes(act, body(i)).code for i in range(5)] == answers
        heard = [other.message().body for _ in range(answers.count(0))]
        assert heard == bodies(range(answers.count(0)))
        if act == "disconnect":
            assert away.message().body == body(0)  # and it acknowledges nothing
            assert away.receive(raw.DISCONNECT).code == 0x97
            assert away.is_closed()
            away.close()
        again = raw.Client(port, raw.V5)
        again.connect(f"away {act}", clean=False, session_expiry=1000)
        assert [again.takes().body for _ in kept] == bodies(kept), act
        assert again.is_quiet()
        for client in (again, other, producer):
            client.leave()


async def test_each_act_of_a_session_that_is_away_or_slow(tmp_path: Path) -> None:
    async with EmbeddedGateway(CONFIG, data_directory=tmp_path) as gateway:
        await asyncio.to_thread(sessions_story, gateway.mqtt_port)


async def test_a_durable_stomp_subscription_at_its_limit_stops_the_topic_for_nobody(
    tmp_path: Path,
) -> None:
    """The default act: its oldest messages leave it."""
    config = table("topic://news", subscription_messages_max=3)
    headers = {"id": "s", "destination": "/topic/news", "durable_subscription_name": "d"}
    async with EmbeddedGateway(config, data_directory=tmp_path) as gateway:
        away = await StompClient.connect(gateway.stomp_port, client_id="c")
        away.send("SUBSCRIBE", **headers, ack="client", receipt="s")
        await away.receipt("s")
        await away.aclose()
        assert (await stomp_fills(gateway.stomp_port, "/topic/news"))[0] == 5
        await gateway.restart()
        again = await StompClient.connect(gateway.stomp_port, client_id="c")
        again.send("SUBSCRIBE", **headers, ack="client")
        assert [(await again.receive()).body for _ in range(3)] == bodies(range(2, 5))
        await again.aclose()
