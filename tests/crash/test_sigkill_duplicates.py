"""Producers that repeat what was not confirmed, under its duplicate id: each message arrives once.

A gateway is killed while they send, and half of the confirmations get lost on the way besides;
without duplicate ids each message whose confirmation was lost would be there twice.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest
from gateway_process import GatewayProcess
from mqtt_raw import V5, Client
from wire import StompClient

LOST = (OSError, EOFError, asyncio.IncompleteReadError)
QUEUE = "/queue/orders"
COUNT = 400
KILLS = 4


async def produce(port: int, wanted: list[int], confirmed: set[int], chance: random.Random) -> None:
    """Send all of *wanted*, a transaction now and then, until the connection is lost."""
    client = await StompClient.connect(port)
    receipts: dict[str, list[int]] = {}
    try:
        for first in range(0, len(wanted), 4):
            numbers = wanted[first : first + 4]
            receipt = str(first)
            receipts[receipt] = numbers
            in_transaction = numbers[0] % 8 == 0  # the same ones each time
            if in_transaction:
                client.send("BEGIN", transaction=receipt)
            for number in numbers:
                headers = {"destination": QUEUE, "_AMQ_DUPL_ID": f"id-{number}"}
                if in_transaction:
                    headers["transaction"] = receipt
                elif number == numbers[-1]:
                    headers["receipt"] = receipt
                lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
                client.writer.write(f"SEND\n{lines}\n{number}\0".encode())
            if in_transaction:
                client.send("COMMIT", transaction=receipt, receipt=receipt)
        while receipts:
            frame = await client.receive()
            if frame.command == "ERROR":
                # The COMMIT that was not answered had been carried out: that transaction is there.
                assert "was already sent" in frame.body.decode() + str(frame.headers)
                confirmed.update(receipts[frame.headers["receipt-id"]])
                return
            numbers = receipts.pop(frame.headers["receipt-id"])
            if chance.random() < 0.5:
                confirmed.update(numbers)
    finally:
        client.close()


async def consume_all(port: int) -> list[int]:
    """Everything in the queue, up to a mark sent now."""
    client = await StompClient.connect(port)
    client.send("SEND", b"-1", destination=QUEUE, receipt="mark")
    await client.receipt("mark")
    client.send("SUBSCRIBE", destination=QUEUE, id="1", ack="auto")
    found: list[int] = []
    while not found or found[-1] != -1:
        found.append(int((await client.receive()).body))
    client.close()
    return found[:-1]


async def counts_after_kills(directory: Path, store: str, broker: str = "") -> Counter[int]:
    """How often each message is there in the end."""

    async def scenario() -> Counter[int]:
        confirmed: set[int] = set()
        chance = random.Random(1)
        extra = f'[store]\nplugin = "{store}"\n'
        with GatewayProcess(directory, extra=extra, broker=broker) as gateway:
            for kill in range(1000):
                wanted = [n for n in range(COUNT) if n // 4 * 4 not in confirmed]
                if not wanted:
                    break
                # In order, and whole groups of four: those that were confirmed are left out.
                work = asyncio.create_task(produce(gateway.stomp_port, wanted, confirmed, chance))
                if kill < KILLS:
                    goal = len(confirmed) + 20
                    async with asyncio.timeout(60):
                        while len(confirmed) < goal and not work.done():
                            await asyncio.sleep(0)
                    gateway.kill()
                await asyncio.gather(work, return_exceptions=True)
                if not work.cancelled() and work.exception() is not None:
                    assert isinstance(work.exception(), LOST), work.exception()
                if kill < KILLS:
                    gateway.start()
            return Counter(await consume_all(gateway.stomp_port))

    return await scenario()


@pytest.mark.long
@pytest.mark.parametrize("store", ["journal", "jdbc"])
async def test_what_is_repeated_after_a_kill_is_there_once(tmp_path: Path, store: str) -> None:
    assert await counts_after_kills(tmp_path, store) == Counter(range(COUNT))


@pytest.mark.long
async def test_without_the_cache_the_same_load_leaves_duplicates(tmp_path: Path) -> None:
    """The negative control: the test above can fail."""
    counts = await counts_after_kills(tmp_path, "journal", "id_cache_size = 0")
    assert set(counts) == set(range(COUNT))
    assert max(counts.values()) > 1


@pytest.mark.long
async def test_both_protocols_know_the_id_after_a_kill(tmp_path: Path) -> None:
    async def send(port: int, body: bytes) -> None:
        stomp = await StompClient.connect(port)
        stomp.writer.write(
            b"SEND\ndestination:/topic/a\n_AMQ_DUPL_ID:one\nreceipt:r\n\n" + body + b"\0"
        )
        await stomp.receipt("r")
        stomp.close()

    with GatewayProcess(tmp_path) as gateway:
        kept = {"clean": False, "session_expiry": 1000}
        reader = Client(gateway.mqtt_port, V5)
        reader.connect("reader", **kept)
        reader.subscribe("a", 2)
        reader.drop()
        await send(gateway.stomp_port, b"first")
        gateway.kill()
        gateway.start()
        client = Client(gateway.mqtt_port, V5)
        client.connect("client")
        named = [("_AMQ_DUPL_ID", "one")]
        for qos in (1, 2):
            answer = client.publishes("a", b"repeated", qos, user_property=named)
            assert answer.code == 0
        assert (
            client.publishes("a", b"second", 2, user_property=[("_AMQ_DUPL_ID", "two")]).code == 0
        )
        client.drop()
        reader = Client(gateway.mqtt_port, V5)
        reader.connect("reader", **kept)
        found = [reader.takes() for _ in range(2)]
        reader.drop()
        assert [item.body for item in found] == [b"first", b"second"]
