"""SIGKILL of a real gateway around large messages: confirmed ones are whole, others are not there.

The first test goes through the moments one by one; the loop (``make crash``) kills at random moments
while producers and consumers work.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path
from typing import Any

import pytest
from crash_crew import amount
from gateway_process import GatewayProcess
from large_messages import (
    KB,
    MB,
    Arrived,
    LargeClient,
    body_files,
    connected,
    digest_of,
    pieces,
)
from large_mqtt import mqtt_client

from tidegate_protocols.mqtt import Properties, Publish, Pubrec

STORE = """
[store]
plugin = "journal"
journal_max_file_length = "1mb"
checkpoint_interval = "200ms"
cleanup_interval = "1s"
"""
SIZE = 3 * MB
#: Messages of up to 2.5 MB that the producers of the loop are ahead by, at most.
BACKLOG = 60
LOST = (OSError, EOFError, asyncio.IncompleteReadError)


async def until(condition: object) -> None:
    assert callable(condition)
    while not condition():
        await asyncio.sleep(0.002)


async def expect(client: LargeClient, seed: int) -> Arrived:
    arrived = await client.receive()
    assert (arrived.headers["n"], arrived.size) == (str(seed), SIZE)
    assert arrived.digest == digest_of(seed, SIZE)
    return arrived


def consume(client: LargeClient) -> None:
    client.frame("SUBSCRIBE", id="1", destination="/queue/a", ack="client-individual")


async def send(client: LargeClient, seed: int) -> None:
    await client.send(seed, SIZE, destination="/queue/a", n=str(seed), receipt=str(seed))


@pytest.mark.long
async def test_sigkill_in_every_moment_of_a_large_message(tmp_path: Path) -> None:
    gateway = GatewayProcess(tmp_path, extra=STORE).start()
    data = tmp_path / "data"

    async def upload_and_die() -> None:
        async with connected(gateway.stomp_port) as client:
            await send(client, 1)
            await client.receipt("1")
            client.begin(SIZE, destination="/queue/a", n="2", receipt="2")
            for piece in pieces(2, 2 * MB):
                client.writer.write(piece)
                await client.writer.drain()
            await until(lambda: any(path.stat().st_size < SIZE for path in body_files(data)))
            assert len(body_files(data)) == 2
            gateway.kill()

    async def deliver_and_die() -> None:
        assert len(body_files(data)) == 1, "the orphan is removed at the start"
        async with connected(gateway.stomp_port) as client:
            consume(client)
            await client.reader.readuntil(b"\n\n")
            await client.reader.readexactly(MB)
            gateway.kill()

    async def acknowledge_and_die() -> None:
        async with connected(gateway.stomp_port) as client:
            await send(client, 3)
            await client.receipt("3")
        async with connected(gateway.stomp_port) as client:
            consume(client)
            arrived = await expect(client, 1)
            await expect(client, 3)
            client.frame("ACK", id=arrived.headers["ack"], receipt="acked")
            await client.receipt("acked")
            gateway.kill()

    async def look() -> None:
        assert len(body_files(data)) == 1
        async with connected(gateway.stomp_port) as client:
            consume(client)
            await expect(client, 3)

    try:
        async with asyncio.timeout(90):
            for step in (upload_and_die, deliver_and_die, acknowledge_and_die, look):
                await step()
                if step is not look:
                    await asyncio.to_thread(gateway.start)
    finally:
        gateway.stop()


@pytest.mark.long
@pytest.mark.parametrize("level", [4, 5])
async def test_sigkill_in_the_middle_of_a_large_publish_leaves_no_file(
    tmp_path: Path, level: int
) -> None:
    gateway = GatewayProcess(tmp_path, extra=STORE).start()
    data = tmp_path / "data"
    session: dict[str, Any] = {"clean_session": False}
    if level == 5:
        session["properties"] = Properties(session_expiry_interval=1000)

    async def publish_and_die() -> None:
        async with mqtt_client(gateway.mqtt_port, level, **session) as client:
            await client.pour(Publish("$queue/a", b"", 2, 1), pieces(1, SIZE), SIZE)
            await client.expect(Pubrec(1))
            await client.pour(Publish("$queue/a", b"", 2, 2), pieces(2, 2 * MB), SIZE)
            await until(lambda: any(path.stat().st_size < SIZE for path in body_files(data)))
            assert len(body_files(data)) == 2
            gateway.kill()

    async def publish_again() -> None:
        assert len(body_files(data)) == 1, "the orphan is removed at the start"
        async with mqtt_client(gateway.mqtt_port, level, **session) as client:
            for number in (1, 2):  # the first was confirmed and is known, the second was not
                head = Publish("$queue/a", b"", 2, number, dup=True)
                await client.pour(head, pieces(number, SIZE), SIZE)
                await client.expect(Pubrec(number))
            assert len(body_files(data)) == 2
            gateway.kill()

    async def look() -> None:
        assert len(body_files(data)) == 2
        async with connected(gateway.stomp_port) as client:
            consume(client)
            for number in (1, 2):
                arrived = await client.receive()
                assert (arrived.size, arrived.digest) == (SIZE, digest_of(number, SIZE))
                client.frame("ACK", id=arrived.headers["ack"])
            client.frame("DISCONNECT", receipt="all")
            await client.receipt("all")
        await until(lambda: body_files(data) == [])

    try:
        async with asyncio.timeout(90):
            for step in (publish_and_die, publish_again, look):
                await step()
                if step is not look:
                    await asyncio.to_thread(gateway.start)
    finally:
        gateway.stop()


class Oracle:
    def __init__(self) -> None:
        self.is_over = False  # nothing more is sent; what is there is still consumed
        self.stop = False
        self.next = 0
        self.sent: set[int] = set()
        self.confirmed: set[int] = set()
        self.delivered: set[int] = set()
        self.acknowledged: set[int] = set()
        self.problems: list[str] = []


async def produce(oracle: Oracle, port: int) -> None:
    while not oracle.is_over:
        with contextlib.suppress(*LOST):
            async with connected(port) as client:
                while not oracle.is_over:
                    if len(oracle.confirmed - oracle.delivered) > BACKLOG:
                        await asyncio.sleep(0.01)
                        continue
                    oracle.next += 1
                    seed = oracle.next
                    oracle.sent.add(seed)
                    size = (seed * 997 % 2500 + 1) * KB
                    headers = {"destination": "/queue/a", "n": str(seed), "receipt": str(seed)}
                    await client.send(seed, size, **headers)
                    await client.receipt(str(seed))
                    oracle.confirmed.add(seed)
        await asyncio.sleep(0.02)


async def consume_all(oracle: Oracle, port: int) -> None:
    while not oracle.stop:
        with contextlib.suppress(*LOST):
            async with connected(port) as client:
                consume(client)
                while not oracle.stop:
                    arrived = await client.receive()
                    if arrived.command == "RECEIPT":
                        oracle.acknowledged.add(int(arrived.headers["receipt-id"]))
                        continue
                    seed = int(arrived.headers["n"])
                    size = (seed * 997 % 2500 + 1) * KB
                    if seed not in oracle.sent or arrived.digest != digest_of(seed, size):
                        oracle.problems.append(f"{seed} is not what was sent: {arrived}")
                    if seed in oracle.acknowledged:
                        oracle.problems.append(f"{seed} came again")
                    oracle.delivered.add(seed)
                    client.frame("ACK", id=arrived.headers["ack"], receipt=str(seed))
        await asyncio.sleep(0.02)


@pytest.mark.crash
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1, 2])
async def test_killed_again_and_again_no_confirmed_large_message_is_lost(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    gateway = GatewayProcess(tmp_path, extra=STORE).start()
    oracle = Oracle()

    try:
        port = gateway.stomp_port
        producers = [asyncio.create_task(produce(oracle, port)) for _ in range(3)]
        consumers = [asyncio.create_task(consume_all(oracle, port)) for _ in range(2)]
        for _ in range(amount(8, 12)):
            await asyncio.sleep(chance.uniform(0.1, 1.5))
            gateway.kill()
            await asyncio.to_thread(gateway.start)
        await asyncio.sleep(1)
        await until(lambda: len(oracle.confirmed) > 20)  # fewer prove nothing
        oracle.is_over = True
        await asyncio.gather(*producers)
        missing = lambda: oracle.confirmed - oracle.delivered  # noqa: E731
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(180):
                await until(lambda: not missing())
        oracle.stop = True
        for task in consumers:
            task.cancel()
        await asyncio.gather(*consumers, return_exceptions=True)
        assert not missing()
    finally:
        gateway.stop()
    assert oracle.problems == []
