"""How much memory a real gateway process takes for bodies that are larger than that memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from gateway_process import GatewayProcess
from large_messages import (
    GB,
    MB,
    body_files,
    connected,
    digest_of,
    open_digest_of,
    pieces,
    resident_peak,
)
from large_mqtt import mqtt_client

from tidegate_protocols.mqtt import Puback, Publish

STORE = '[store]\nplugin = "journal"\ncheckpoint_interval = "200ms"\ncleanup_interval = "1s"\n'


async def through(gateway: GatewayProcess, size: int) -> None:
    """One message from a producer through the disk to a consumer, and its file is gone."""
    async with connected(gateway.stomp_port) as producer:
        await producer.send(1, size, destination="/queue/a", receipt="sent")
        await producer.receipt("sent")
    async with connected(gateway.stomp_port) as consumer:
        consumer.frame("SUBSCRIBE", id="1", destination="/queue/a", ack="client")
        arrived = await consumer.receive()
        assert (arrived.size, arrived.digest) == (size, digest_of(1, size))
        consumer.frame("ACK", id=arrived.headers["ack"], receipt="acked")
        await consumer.receipt("acked")
    while body_files(gateway.directory / "data"):
        await asyncio.sleep(0.01)


async def from_mqtt(gateway: GatewayProcess, size: int) -> None:
    """The same from an MQTT client, in a packet of its protocol."""
    async with mqtt_client(gateway.mqtt_port) as producer:
        await producer.pour(Publish("$queue/a", b"", 1, 7), pieces(1, size), size)
        await producer.expect(Puback(7))
    async with connected(gateway.stomp_port) as consumer:
        consumer.frame("SUBSCRIBE", id="1", destination="/queue/a", ack="client")
        arrived = await consumer.receive()
        assert (arrived.size, arrived.digest) == (size, digest_of(1, size))
        consumer.frame("ACK", id=arrived.headers["ack"], receipt="acked")
        await consumer.receipt("acked")


async def without_length(gateway: GatewayProcess, size: int) -> None:
    """The same with a body that ends at its NUL, which nobody knows before."""
    async with connected(gateway.stomp_port) as producer:
        await producer.send_open(size, destination="/queue/a", receipt="sent")
        await producer.receipt("sent")
    async with connected(gateway.stomp_port) as consumer:
        consumer.frame("SUBSCRIBE", id="1", destination="/queue/a", ack="client")
        arrived = await consumer.receive()
        assert (arrived.size, arrived.digest) == (size, open_digest_of(size))
        consumer.frame("ACK", id=arrived.headers["ack"], receipt="acked")
        await consumer.receipt("acked")


def peak_with(
    directory: Path, size: int, way: Callable[[GatewayProcess, int], Awaitable[None]] = through
) -> tuple[int, int]:
    """The most resident memory before the message, and in all."""

    async def main(gateway: GatewayProcess) -> None:
        await way(gateway, size)

    with GatewayProcess(directory, extra=STORE, mqtt='packet_bytes_max = "255mb"') as gateway:
        before = resident_peak(gateway.pid)
        asyncio.run(main(gateway))
        return before, resident_peak(gateway.pid)


def test_a_body_of_64_mib_takes_24_mib_of_memory_at_most(tmp_path: Path) -> None:
    before, peak = peak_with(tmp_path, 64 * MB)
    assert peak - before < 24 * MB


@pytest.mark.parametrize(
    "size", [32 * MB, pytest.param(200 * MB, marks=[pytest.mark.soak, pytest.mark.timeout(300)])]
)
def test_a_large_publish_takes_24_mib_of_memory_at_most(tmp_path: Path, size: int) -> None:
    before, peak = peak_with(tmp_path, size, from_mqtt)
    assert peak - before < 24 * MB


@pytest.mark.parametrize(
    "size", [64 * MB, pytest.param(200 * MB, marks=[pytest.mark.soak, pytest.mark.timeout(300)])]
)
def test_a_body_without_content_length_takes_24_mib_of_memory_at_most(
    tmp_path: Path, size: int
) -> None:
    before, peak = peak_with(tmp_path, size, without_length)
    assert peak - before < 24 * MB


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_body_of_one_gib_passes_in_less_than_300_mib(tmp_path: Path) -> None:
    before, peak = peak_with(tmp_path, GB)
    assert peak < 300 * MB
    assert peak - before < 24 * MB


def test_a_consumer_that_does_not_read_costs_no_memory(tmp_path: Path) -> None:
    """Nor do thirty large messages that wait for it, already handed to its connection."""

    async def scenario(gateway: GatewayProcess) -> None:
        async with connected(gateway.stomp_port) as consumer:
            consumer.frame("SUBSCRIBE", id="1", destination="/queue/a", ack="client")
            async with connected(gateway.stomp_port) as producer:

                async def send() -> None:
                    for number in range(30):
                        await producer.send(
                            number, 2 * MB, destination="/queue/a", receipt=str(number)
                        )

                sending = asyncio.create_task(send())
                for number in range(30):
                    await producer.receipt(str(number))
                await sending
            for number in range(30):
                assert (await consumer.receive()).digest == digest_of(number, 2 * MB)

    with GatewayProcess(tmp_path, extra=STORE) as gateway:
        before = resident_peak(gateway.pid)
        asyncio.run(scenario(gateway))
        assert resident_peak(gateway.pid) - before < 24 * MB
