"""A real full disk under the running gateway: it says so, refuses, and recovers by itself.

Its data directory is a small file system of its own (``small_disk``).
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from small_disk import SmallDiskGateway, need_mounts
from wire import StompClient

MB = 1 << 20
BODY = b"x" * 8192
WAIT_S = 60.0


async def publish(client: StompClient, number: int) -> bool:
    """Send one message with a receipt; False when the gateway refused it with an ERROR."""
    body = str(number).encode() + b" " + BODY
    client.send("SEND", body, destination="/queue/full", receipt=str(number))
    await client.writer.drain()
    answer = await client.receive()
    if answer.command == "RECEIPT":
        return True
    assert answer.command == "ERROR", answer
    assert answer.headers.get("receipt-id") == str(number)
    assert "full" in (answer.headers["message"] + answer.body.decode()).lower(), answer
    return False


async def consume(consumer: StompClient, got: list[int]) -> int:
    """Take one frame: acknowledge a message, or return 1 for a receipt."""
    frame = await consumer.receive()
    if frame.command == "RECEIPT":
        return 1
    assert frame.command == "MESSAGE", frame
    got.append(int(frame.body.split()[0]))
    consumer.send("ACK", id=frame.headers["ack"], receipt="a")
    return 0


async def scenario(gateway: SmallDiskGateway) -> None:
    clients: list[StompClient] = []
    try:
        await fill_and_recover(gateway, clients)
    finally:
        for client in clients:
            await client.aclose()


async def connect(gateway: SmallDiskGateway, clients: list[StompClient]) -> StompClient:
    clients.append(await StompClient.connect(gateway.stomp_port))
    return clients[-1]


async def fill_and_recover(gateway: SmallDiskGateway, clients: list[StompClient]) -> None:
    confirmed: list[int] = []
    number = 0
    client = await connect(gateway, clients)
    for number in range(20):
        assert await publish(client, number)
        confirmed.append(number)
    await asyncio.to_thread(gateway.fill)
    refused = False
    async with asyncio.timeout(WAIT_S):
        while not refused:  # what was pre-created is used up first
            number += 1
            if await publish(client, number):
                confirmed.append(number)
            else:
                refused = True
    consumer = await connect(gateway, clients)
    consumer.send("SUBSCRIBE", destination="/queue/full", id="1", ack="client-individual")
    got: list[int] = []
    receipts = 0
    while receipts < 10:  # consuming goes on, and its acknowledgements are confirmed
        receipts += await consume(consumer, got)
    await asyncio.to_thread(gateway.free)
    async with asyncio.timeout(WAIT_S):
        recovered = False
        while not recovered:
            number += 1
            client = await connect(gateway, clients)
            if recovered := await publish(client, number):
                confirmed.append(number)
            else:
                await asyncio.sleep(0.2)
    while confirmed[-1] not in got:
        await consume(consumer, got)
    lost = set(confirmed) - set(got)
    assert not lost, f"confirmed and lost: {sorted(lost)}"
    assert got == sorted(got), "order"


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_a_full_disk_refuses_tells_and_recovers(tmp_path: Path) -> None:
    policy = '[[destinations]]\nmatch = ">"\nprefetch_count = 1\n'
    small = '\n[store]\nplugin = "journal"\njournal_max_file_length = "4mb"\n'
    need_mounts()
    gateway = SmallDiskGateway(tmp_path, extra=policy + small, broker='disk_free_limit = "1mb"')
    with gateway:
        await scenario(gateway)
        assert gateway.stop() == 0, gateway.tail()
    assert "Traceback" not in gateway.log.read_text(), gateway.tail()


LIMIT_MB = 40


async def publish_until_refused(gateway: SmallDiskGateway, queue: str) -> int:
    """Returns: how many were confirmed."""
    client = await StompClient.connect(gateway.stomp_port)
    confirmed = 0
    while True:
        for _ in range(32):
            client.send("SEND", BODY, destination=queue, receipt="r")
        await client.writer.drain()
        for _ in range(32):
            if (await client.receive()).command != "RECEIPT":
                await client.aclose()
                return confirmed
            confirmed += 1


async def look_at(gateway: SmallDiskGateway, least: list[int]) -> None:
    """Keep the least that was free in *least*, until cancelled."""
    while True:
        least.append(min(least.pop(), gateway.free_bytes()))
        await asyncio.sleep(0.005)


async def drain(gateway: SmallDiskGateway, queue: str, count: int) -> None:
    client = await StompClient.connect(gateway.stomp_port)
    client.send("SUBSCRIBE", destination=queue, id="1", ack="client-individual")
    for left in range(count, 0, -1):
        frame = await client.receive()
        assert frame.command == "MESSAGE", frame
        client.send("ACK", id=frame.headers["ack"], **({"receipt": "last"} if left == 1 else {}))
    assert (await client.receive()).command == "RECEIPT"
    await client.aclose()


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("store", "size_mb"), [("jdbc", 128), ("journaled", 256)])
async def test_what_is_to_stay_free_stays_free_with_sqlite(
    tmp_path: Path, store: str, size_mb: int
) -> None:
    """Its WAL took 28 of 40 MB; and then a checkpoint of the journaled store all of it, for 28 s."""
    need_mounts()
    gateway = SmallDiskGateway(
        tmp_path,
        extra=f'[store]\nplugin = "{store}"\n',
        broker=f'disk_free_limit = "{LIMIT_MB}mb"',
    )
    gateway.size_mb = size_mb
    with gateway:
        least = [1 << 40]
        looking = asyncio.create_task(look_at(gateway, least))
        queues = ["/queue/one", "/queue/two"]
        async with asyncio.timeout(WAIT_S):
            counts = await asyncio.gather(*[publish_until_refused(gateway, q) for q in queues])
        assert sum(counts) > 1000
        for queue, count in zip(queues, counts, strict=True):
            await drain(gateway, queue, count)
        async with asyncio.timeout(WAIT_S):
            while not await publish_one(gateway):
                await asyncio.sleep(0.2)
        looking.cancel()
        # What arrives between two looks may be missing, on a machine that is busy.
        assert least[0] >= (LIMIT_MB - 8) * MB
        assert gateway.stop() == 0, gateway.tail()
    log = gateway.log.read_text()
    assert "Traceback" not in log, gateway.tail()
    assert "database or disk is full" not in log, gateway.tail()


async def publish_one(gateway: SmallDiskGateway) -> bool:
    client = await StompClient.connect(gateway.stomp_port)
    client.send("SEND", BODY, destination="/queue/one", receipt="r")
    answer = await client.receive()
    await client.aclose()
    return answer.command == "RECEIPT"
