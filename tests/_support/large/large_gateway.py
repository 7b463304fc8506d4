"""A gateway for large messages, in the test's own process, and what STOMP clients do with it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from large_messages import KB, Arrived, LargeClient, body_files, connected, digest_of, pieces

from tidegate.testing.embedded import EmbeddedGateway

SIZE = 700 * KB
CONFIG = """
[store]
plugin = "journal"
{intervals}
{store}

[[listeners]]
protocol = "stomp"
bind = "127.0.0.1:0"
heart_beat_send_minimum = "20ms"
heart_beat_receive_minimum = "20ms"
large_message_max_size = "8mb"

[[listeners]]
protocol = "mqtt"
bind = "127.0.0.1:0"

[[listeners]]
protocol = "stomp"
transport = "ws"
bind = "127.0.0.1:0"
"""


@contextlib.asynccontextmanager
async def gateway(
    store: str = "",
    directory: Path | None = None,
    intervals: str = 'checkpoint_interval = "20ms"\ncleanup_interval = "1s"',
) -> AsyncIterator[EmbeddedGateway]:
    config = CONFIG.format(store=store, intervals=intervals)
    async with asyncio.timeout(60):
        async with EmbeddedGateway(config, data_directory=directory) as running:
            yield running


async def until_files(running: EmbeddedGateway, count: int) -> None:
    while len(body_files(running.data_directory)) != count:
        await asyncio.sleep(0.005)


async def subscribe(client: LargeClient, destination: str = "/queue/a", **headers: str) -> None:
    wanted = {"id": "1", "ack": "client-individual"} | headers
    if destination.startswith("/queue/"):  # messages may come before a receipt
        client.frame("SUBSCRIBE", destination=destination, **wanted)
        return
    client.frame("SUBSCRIBE", destination=destination, receipt="subscribed", **wanted)
    await client.receipt("subscribed")


async def publish(running: EmbeddedGateway, *seeds: int, size: int = SIZE, **headers: str) -> None:
    async with connected(running.stomp_port) as producer:
        for seed in seeds:
            wanted = {"destination": "/queue/a", "receipt": f"r{seed}"} | headers
            await producer.send(seed, size, **wanted)
            await producer.receipt(f"r{seed}")


def check(arrived: Arrived, seed: int, size: int = SIZE) -> None:
    assert (arrived.command, arrived.size) == ("MESSAGE", size)
    assert arrived.digest == digest_of(seed, size)


async def acknowledge(client: LargeClient, arrived: Arrived) -> None:
    client.frame("ACK", id=arrived.headers["ack"], receipt="acked")
    await client.receipt("acked")


async def until_no_connection(running: EmbeddedGateway, listener: int = 0) -> Any:
    """Returns: the listener, whose connections have all ended."""
    front_end = running.gateway._front_ends[listener]
    while front_end._listener.connection_count:
        await asyncio.sleep(0.005)
    return front_end


def size_of(number: int) -> int:
    return SIZE if number % 3 else 10


def frame_of(number: int) -> bytes:
    size = size_of(number)
    head = f"SEND\ndestination:/queue/a\nn:{number}\ncontent-length:{size}\n\n".encode()
    return head + b"".join(pieces(number, size)) + b"\0"


def hold_syncs(running: EmbeddedGateway) -> threading.Event:
    """Large bodies wait for the event before they are synced."""
    large, event = running.gateway.broker.large_bodies, threading.Event()
    sync = large.sync

    def wait(call: Callable[[], None]) -> None:
        assert event.wait(60)
        sync(call)

    large.sync = wait
    return event
