"""Large messages beside heart-beats, over WebSocket, and to subscribers of MQTT."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator

import pytest
import wire
from large_gateway import (
    SIZE,
    check,
    frame_of,
    gateway,
    hold_syncs,
    publish,
    subscribe,
    until_files,
    until_no_connection,
)
from large_messages import MB, body_files, connected, pieces
from websockets.asyncio.client import connect as websocket_connect
from websockets.typing import Subprotocol
from wire import MqttClient

from tidegate.testing.embedded import EmbeddedGateway

# -------------------------------------------------------------------------------------- heart-beats


async def test_heart_beats_fail_in_neither_direction_while_a_body_is_slow() -> None:
    async with gateway() as running:
        # What the gateway says while a body comes must not disturb, nor be missing.
        async with connected(running.stomp_port, heart_beat="2000,50") as producer:
            producer.begin(SIZE, destination="/queue/a", receipt="r")
            for number, piece in enumerate(pieces(1, SIZE)):
                producer.writer.write(piece)
                await producer.writer.drain()
                await asyncio.sleep(0.06 if number < 2 else 0)
            producer.writer.write(b"\0")
            await producer.receipt("r")
        async with connected(running.stomp_port, heart_beat="0,50") as consumer:
            await publish(running, 2, size=8 * MB)
            await subscribe(consumer)
            check(await consumer.receive(), 1)
            arriving = asyncio.create_task(consumer.receive())
            check(await arriving, 2, 8 * MB)  # a heart-beat inside would change the body


# -------------------------------------------------------------------------------- other transports


async def test_what_came_whole_over_websocket_counts_too() -> None:
    async with gateway() as running:
        may_sync = hold_syncs(running)
        async with websocket_connect(
            running.addresses[2].replace("stomp+ws", "ws"),
            subprotocols=[Subprotocol("v12.stomp")],
            proxy=None,
            open_timeout=60,
        ) as client:
            await client.send("CONNECT\naccept-version:1.2\n\n\0")
            assert str(await client.recv()).startswith("CONNECTED")
            for number in (1, 2, 4):
                await client.send(frame_of(number))
            await client.send(frame_of(5)[:-1])
        await until_no_connection(running, 2)
        may_sync.set()
        async with connected(running.stomp_port) as consumer:
            await subscribe(consumer, ack="auto")
            for number in (1, 2, 4):
                check(await consumer.receive(), number)
            await until_files(running, 0)


async def test_over_websocket_a_large_message_is_one_message_in_both_directions() -> None:
    async with gateway() as running:
        url = running.addresses[2].replace("stomp+ws", "ws")
        body = b"".join(pieces(1, SIZE))
        async with websocket_connect(
            url, subprotocols=[Subprotocol("v12.stomp")], max_size=None, proxy=None
        ) as client:
            await client.send("CONNECT\naccept-version:1.2\n\n\0")
            assert str(await client.recv()).startswith("CONNECTED")
            head = f"SEND\ndestination:/queue/a\nreceipt:1\ncontent-length:{SIZE}\n\n"
            await client.send(head.encode() + body + b"\0")
            assert await client.recv() == b"RECEIPT\nreceipt-id:1\n\n\0"
            assert len(body_files(running.data_directory)) == 1
            await client.send("SUBSCRIBE\nid:1\ndestination:/queue/a\nack:auto\n\n\0")
            message = await client.recv()
            assert isinstance(message, bytes)
            assert message.partition(b"\n\n")[2] == body + b"\0"
            await client.send("SEND\ndestination:/queue/a\n\nsmall\0")
            assert b"small" in bytes(await client.recv(decode=False))


# -------------------------------------------------------------------------------------------- MQTT


@contextlib.asynccontextmanager
async def mqtt(
    running: EmbeddedGateway, client_id: str = "m", *, clean: bool = True
) -> AsyncIterator[MqttClient]:
    client = await MqttClient.connect(running.mqtt_port, client_id, clean=clean)
    try:
        yield client
    finally:
        client.disconnect()
        await asyncio.gather(client.writer.wait_closed(), return_exceptions=True)


def published(packet: wire.Packet) -> tuple[int, int, bytes]:
    """QoS, packet id, payload."""
    assert packet.kind == wire.PUBLISH, packet.kind
    qos = packet.flags >> 1 & 3
    size = struct.unpack(">H", packet.payload[:2])[0]
    rest = packet.payload[2 + size :]
    if not qos:
        return 0, 0, rest
    return qos, struct.unpack(">H", rest[:2])[0], rest[2:]


@pytest.mark.parametrize(
    ("qos", "clean"), [(0, True), (1, True), (1, False), (2, True), (2, False)]
)
async def test_mqtt_subscribers_get_large_messages_between_small_ones(
    qos: int, clean: bool
) -> None:
    async with gateway() as running, mqtt(running, clean=clean) as client:
        await client.subscribe("t", qos)
        for seed in range(6):
            size = SIZE if seed % 3 else 10
            await publish(running, seed, destination="/topic/t", size=size)
        found: list[bytes] = []
        while len(found) < 6:
            packet = await client.receive()
            if packet.kind == wire.PUBREL:
                client.acknowledge(wire.PUBCOMP, packet.packet_id)
                continue
            found_qos, packet_id, payload = published(packet)
            assert found_qos == qos
            found.append(payload)
            if qos:
                client.acknowledge((wire.PUBACK, wire.PUBREC)[qos - 1], packet_id)
        sizes = [SIZE if seed % 3 else 10 for seed in range(6)]
        assert found == [b"".join(pieces(seed, sizes[seed])) for seed in range(6)]
        await until_files(running, 0)


async def test_two_mqtt_subscribers_get_everything_of_one_page() -> None:
    """With QoS 0 what one was sent is kept for the next; a large body is no part of that."""

    async with gateway() as running, mqtt(running) as one, mqtt(running, "n") as two:
        await one.subscribe("t", 0)
        await two.subscribe("t", 0)
        sizes = [10, 10, SIZE, 10, SIZE, 10]
        async with connected(running.stomp_port) as producer:
            producer.frame("BEGIN", transaction="t")
            for seed, size in enumerate(sizes):
                await producer.send(seed, size, destination="/topic/t", transaction="t")
            producer.frame("COMMIT", transaction="t", receipt="done")
            await producer.receipt("done")
        for client in (one, two):
            for seed, size in enumerate(sizes):
                _, _, payload = published(await client.receive())
                assert payload == b"".join(pieces(seed, size))


async def test_a_ping_is_answered_behind_a_large_body() -> None:
    async with gateway() as running, mqtt(running) as client:
        await client.subscribe("t", 0)
        await publish(running, 1, destination="/topic/t", size=8 * MB)
        client.writer.write(wire.packet(wire.PINGREQ))
        _, _, payload = published(await client.receive())
        assert payload == b"".join(pieces(1, 8 * MB))
        assert (await client.receive()).kind == wire.PINGRESP
