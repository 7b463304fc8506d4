"""Minutes of sustained load on one gateway: memory and disk stay bounded, nothing piles up.

A producer and a consumer on a queue, a persistent MQTT session that comes and goes, and one message that is
never acknowledged. ``make soak``; the length is SOAK_SECONDS (default 90).
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import psutil
import pytest
import wire
from gateway_process import GatewayProcess
from wire import MqttClient, StompClient

SECONDS = float(os.environ.get("SOAK_SECONDS", "90"))
BODY = b"x" * 1024
WINDOW = 200
FILE_MB = 2
#: Live data is a few messages; the rest is the file in use, those made ahead, what the last clean-up
#: interval wrote, and the metadata store.
DISK_MB_MAX = 120
RSS_GROWTH_MB_MAX = 80


async def produce(port: int, until: float) -> int:
    client = await StompClient.connect(port)
    sent = confirmed = 0
    while time.monotonic() < until or confirmed < sent:
        while sent - confirmed < WINDOW and time.monotonic() < until:
            sent += 1
            client.send("SEND", BODY, destination="/queue/soak", receipt=str(sent))
        await client.writer.drain()
        frame = await client.receive()
        assert frame.command == "RECEIPT", frame
        confirmed += 1
    await client.aclose()
    return sent


async def consume(port: int, counted: list[int]) -> None:
    client = await StompClient.connect(port)
    client.send("SUBSCRIBE", destination="/queue/soak", id="1", ack="client-individual")
    try:
        while True:
            frame = await client.receive()
            counted[0] += 1
            client.send("ACK", id=frame.headers["ack"])
    finally:
        await client.aclose()


async def come_and_go(port: int, until: float) -> int:
    """A persistent session that misses messages again and again, and takes them up again."""
    publisher = await MqttClient.connect(port, "soak-publisher")
    total = 0
    while time.monotonic() < until:
        session = await MqttClient.connect(port, "soak-session", clean=False)
        if not session.session_present:
            await session.subscribe("soak/#", 1)
        session.disconnect()
        for number in range(1, 51):
            publisher.publish("soak/t", BODY, qos=1, packet_id=number)
        for _ in range(50):
            assert (await publisher.receive()).kind == wire.PUBACK
        session = await MqttClient.connect(port, "soak-session", clean=False)
        for _ in range(50):
            message = wire.parse_publish(await session.receive())
            session.acknowledge(wire.PUBACK, message.packet_id)
            total += 1
        session.disconnect()
    publisher.disconnect()
    return total


def disk_mb(directory: Path) -> float:
    return sum(f.stat().st_blocks * 512 for f in directory.rglob("*") if f.is_file()) / 2**20


async def watch(gateway: GatewayProcess, until: float) -> list[tuple[float, float]]:
    """(resident memory, disk) in MB, twice a second."""
    process = psutil.Process(gateway.pid)
    seen: list[tuple[float, float]] = []
    while time.monotonic() < until:
        await asyncio.sleep(0.5)
        try:
            disk = disk_mb(gateway.directory / "data")
        except FileNotFoundError:  # a file was deleted between listing and looking
            continue
        seen.append((process.memory_info().rss / 2**20, disk))
    return seen


async def scenario(gateway: GatewayProcess) -> None:
    stuck = await StompClient.connect(gateway.stomp_port)
    stuck.send("SEND", b"never acknowledged", destination="/queue/stuck", receipt="r")
    await stuck.receipt("r")
    until = time.monotonic() + SECONDS
    counted = [0]
    consumer = asyncio.create_task(consume(gateway.stomp_port, counted))
    sent, came, seen = await asyncio.gather(
        produce(gateway.stomp_port, until),
        come_and_go(gateway.mqtt_port, until),
        watch(gateway, until),
    )
    async with asyncio.timeout(60):
        while counted[0] < sent:
            await asyncio.sleep(0.05)
    consumer.cancel()
    await asyncio.gather(consumer, stuck.aclose(), return_exceptions=True)
    warm = max(rss for rss, _ in seen[: len(seen) // 3])
    last = max(rss for rss, _ in seen[-len(seen) // 3 :])
    disk = max(disk for _, disk in seen)
    print(
        f"sent={sent} session={came} seconds={SECONDS:g}"
        f" rss_mb={warm:.0f}->{last:.0f} disk_mb_max={disk:.0f}"
    )
    assert counted[0] == sent
    assert came > 0
    assert disk < DISK_MB_MAX
    assert last - warm < RSS_GROWTH_MB_MAX


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 300)
def test_memory_and_disk_stay_bounded_under_sustained_load(tmp_path: Path) -> None:
    store = f"""
[store]
plugin = "journal"
journal_max_file_length = "{FILE_MB}mb"
cleanup_interval = "1s"
checkpoint_interval = "1s"
"""
    gateway = GatewayProcess(tmp_path, extra=store)
    with gateway:
        asyncio.run(scenario(gateway))
        assert gateway.stop() == 0, gateway.tail()
    assert "Traceback" not in gateway.log.read_text(), gateway.tail()
