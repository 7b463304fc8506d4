"""The disk of the store is nearly full: publishers are told, consumers make room, and it goes on.

Over the wire, in both protocols, with each store; what the file system says is the test's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

import mqtt_raw as raw
import pytest
from wire import StompClient

from tidegate.broker.limits import disk
from tidegate.spi import MessageStore
from tidegate.testing.embedded import EmbeddedGateway

MB: Final = 1 << 20
STORES: Final = ("journal", "jdbc", "journaled")
WAIT_S: Final = 60


class Disk:
    """Attributes: free: bytes besides those that *store* has claimed; is_asked: somebody looked."""

    def __init__(self, store: MessageStore) -> None:
        self.free = 1 << 40
        self.is_asked = False
        self._store = store

    def __call__(self, directories: object) -> int:
        self.is_asked = True
        return self.free + self._store.statistics().claimed_bytes


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "LOOK_EVERY_S", 0.001)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.001)


def mqtt_codes(port: int) -> list[int]:
    """What a client of MQTT 5.0 is told of a publish to a queue, a retained one, and its will."""
    client = raw.Client(port, raw.V5)
    client.connect("c")
    found = [
        client.publishes("$queue/q", b"x", qos=qos, retain=retain).code
        for qos, retain in ((1, False), (2, False), (1, True))
    ]
    client.leave()
    return found


async def stomp_answer(port: int, command: str, **headers: str) -> str:
    client = await StompClient.connect(port)
    client.send(command, b"x", receipt="r", **headers)
    answer = await client.receive()
    await client.aclose()
    return answer.command if answer.command == "RECEIPT" else answer.headers["message"]


async def consume(port: int, count: int) -> None:
    """Take so many messages of the queue, and have each acknowledgement confirmed."""
    consumer = await StompClient.connect(port)
    consumer.send("SUBSCRIBE", destination="/queue/q", id="0", ack="client-individual")
    confirmed = 0
    while confirmed < count:
        answer = await consumer.receive()
        if answer.command == "MESSAGE":
            consumer.send("ACK", id=answer.headers["ack"], receipt="a")
        else:
            assert answer.command == "RECEIPT"
            confirmed += 1
    await consumer.aclose()


@pytest.mark.parametrize("store", STORES)
async def test_publishers_are_told_and_consumers_make_room(tmp_path: Path, store: str) -> None:
    config = f'[broker]\ndisk_free_limit = "10mb"\n[store]\nplugin = "{store}"\n'
    async with EmbeddedGateway(config, data_directory=tmp_path) as running:
        port, broker = running.stomp_port, running.gateway.broker
        small_disk = broker.disk.look = Disk(broker.store)
        for _ in range(3):
            assert await stomp_answer(port, "SEND", destination="/queue/q") == "RECEIPT"
        small_disk.free = 10 * MB - 1
        await until(lambda: broker.disk.is_short)
        told = await stomp_answer(port, "SEND", destination="/queue/q")
        assert "full" in told
        assert str(tmp_path) not in told
        assert await asyncio.to_thread(mqtt_codes, running.mqtt_port) == [0x97, 0x97, 0x97]

        await consume(port, 3)

        small_disk.free = 12 * MB
        await asyncio.sleep(0)
        assert broker.disk.is_short, "there is not a quarter more"
        small_disk.free = 13 * MB
        await until(lambda: not broker.disk.is_short)
        assert await stomp_answer(port, "SEND", destination="/queue/q") == "RECEIPT"
        assert await asyncio.to_thread(mqtt_codes, running.mqtt_port) == [0, 0, 0]


async def test_without_the_limit_nobody_is_told(tmp_path: Path) -> None:
    """The control."""
    config = '[broker]\ndisk_free_limit = 0\n[store]\nplugin = "jdbc"\n'
    async with EmbeddedGateway(config, data_directory=tmp_path) as running:
        small_disk = Disk(running.gateway.broker.store)
        small_disk.free = 0
        running.gateway.broker.disk.look = small_disk
        await asyncio.sleep(0.01)
        assert await stomp_answer(running.stomp_port, "SEND", destination="/queue/q") == "RECEIPT"
        assert not small_disk.is_asked


#: Small enough that a few megabytes are files and pages to be freed.
OPTIONS: Final = {
    "journal": 'journal_max_file_length = "1mb"\ncheckpoint_interval = "100ms"\n'
    'cleanup_interval = "100ms"\n',
    "jdbc": "",
    "journaled": 'journal_log_file_size = "1mb"\ncheckpoint_interval = "10ms"\n',
}


@pytest.mark.parametrize("store", STORES)
async def test_a_store_that_is_full_takes_messages_again_when_some_were_consumed(
    tmp_path: Path, store: str
) -> None:
    """What the store says it takes is real here."""
    config = f'[broker]\nstore_limit = "12mb"\n[store]\nplugin = "{store}"\n{OPTIONS[store]}'
    body = b"x" * 100_000
    async with EmbeddedGateway(config, data_directory=tmp_path) as running:
        port, watched = running.stomp_port, running.gateway.broker.disk
        producer = await StompClient.connect(port)
        sent, answer = 0, None
        async with asyncio.timeout(WAIT_S):
            while answer is None or answer.command == "RECEIPT":
                producer.send("SEND", body, destination="/queue/q", receipt="r")
                await producer.writer.drain()
                answer = await producer.receive()
                sent += answer.command == "RECEIPT"
        await producer.aclose()
        assert answer.headers["message"] == "the message store is full; try again later"
        assert watched.snapshot()["store.full"] == 1
        assert watched.used + 2 * len(body) >= 12 * MB, "what is accepted counts, too"
        assert await asyncio.to_thread(mqtt_codes, running.mqtt_port) == [0x97, 0x97, 0x97]
        await consume(port, sent)
        await until(lambda: not watched.is_short)
        assert await stomp_answer(port, "SEND", destination="/queue/q") == "RECEIPT"
        assert await asyncio.to_thread(mqtt_codes, running.mqtt_port) == [0, 0, 0]
