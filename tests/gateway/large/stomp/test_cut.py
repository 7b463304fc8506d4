"""Large messages that are refused, cut off or damaged on their way through a whole gateway."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from large_gateway import (
    SIZE,
    acknowledge,
    check,
    frame_of,
    gateway,
    hold_syncs,
    publish,
    size_of,
    subscribe,
    until_files,
    until_no_connection,
)
from large_messages import KB, MB, body_files, connected, pieces

from tidegate.testing.embedded import EmbeddedGateway

# --------------------------------------------------------------------------- refused, cut, damaged


async def test_a_client_that_dies_in_the_middle_of_a_body_leaves_nothing() -> None:
    async with gateway() as running:
        async with connected(running.stomp_port) as producer:
            producer.begin(6 * MB, destination="/queue/a")
            for piece in pieces(1, 3 * MB):
                producer.writer.write(piece)
                await producer.writer.drain()
            await until_files(running, 1)
        await until_files(running, 0)
        async with connected(running.stomp_port) as consumer:
            await publish(running, 2)
            await subscribe(consumer)
            check(await consumer.receive(), 2)


@pytest.mark.parametrize("rest", [0, 1, 300 * KB, SIZE + 1])
async def test_what_a_client_sent_whole_before_it_closed_is_published(rest: int) -> None:
    """Over a raw socket, whose end has come before the disk has any of the bodies."""

    async with gateway() as running:
        may_sync = hold_syncs(running)
        async with raw_client(running.stomp_port) as raw:
            data = frame_of(1) + frame_of(2) + frame_of(4)
            last = frame_of(5)
            await asyncio.to_thread(raw.sendall, data + last[: len(last) - SIZE - 1 + rest])
        await until_input_ended(running)
        may_sync.set()
        await until_no_connection(running)
        wanted = [1, 2, 4, 5] if rest == SIZE + 1 else [1, 2, 4]
        async with connected(running.stomp_port) as consumer:
            await subscribe(consumer, ack="auto")
            for number in wanted:
                check(await consumer.receive(), number)
            await until_files(running, 0)


@pytest.mark.parametrize("end", [b"", b"SEND\ndestination:/queue/a\n\nx", b"NONSENSE\n\n\0"])
async def test_frames_of_all_sizes_before_the_end_of_a_client_arrive_in_order(end: bytes) -> None:
    async with gateway() as running:
        async with raw_client(running.stomp_port) as raw:
            data = b"".join(map(frame_of, range(1, 12)))
            await asyncio.to_thread(raw.sendall, data + end)
            if end.startswith(b"NONSENSE"):
                answer = await asyncio.to_thread(raw.makefile("rb").read)
                assert answer.startswith(b"ERROR\n")
        async with connected(running.stomp_port) as consumer:
            await subscribe(consumer, ack="auto")
            for number in range(1, 12):
                arrived = await consumer.receive()
                assert arrived.headers["n"] == str(number)
                check(arrived, number, size_of(number))
            await until_files(running, 0)


async def test_the_front_end_stops_at_once_whatever_the_disk_has_not_finished() -> None:
    async with gateway() as running:
        may_sync = hold_syncs(running)
        async with raw_client(running.stomp_port) as raw:
            await asyncio.to_thread(raw.sendall, frame_of(1) + frame_of(2) + frame_of(4))
        front_end = await until_input_ended(running)
        assert len(front_end._sessions) == 1
        await running.gateway.broker.end_connections()
        await front_end.stop()
        await asyncio.sleep(0)
        assert not front_end._sessions
        may_sync.set()


@contextlib.asynccontextmanager
async def raw_client(port: int) -> AsyncIterator[socket.socket]:
    """A connected client that is closed without DISCONNECT."""

    def connect() -> socket.socket:
        raw = socket.create_connection(("127.0.0.1", port), timeout=30)
        raw.sendall(b"CONNECT\naccept-version:1.2\n\n\0")
        answer = b""
        while not answer.endswith(b"\0"):
            answer += raw.recv(1)
        return raw

    with await asyncio.to_thread(connect) as raw:
        yield raw


async def until_input_ended(running: EmbeddedGateway) -> Any:
    """Returns: the STOMP listener, whose clients have all closed, though not all is published."""
    front_end = running.gateway._front_ends[0]
    while not all(session._farewells.has_ended for session in front_end._sessions):
        await asyncio.sleep(0.005)
    return front_end


REFUSED = {
    "too large": ({"destination": "/queue/a"}, 9 * MB, "exceeds this listener's limit of 8388608"),
    "no destination": ({"x": "y"}, SIZE, "needs a destination"),
    "no such transaction": (
        {"destination": "/queue/a", "transaction": "t"},
        SIZE,
        "no open transaction",
    ),
    "gateway's own topic": ({"destination": "/topic/$SYS.x"}, SIZE, "the gateway's own topics"),
    "bad priority": ({"destination": "/queue/a", "priority": "x"}, SIZE, "priority"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_what_is_refused_is_told_and_leaves_no_file(case: str) -> None:
    headers, size, problem = REFUSED[case]

    async with gateway() as running:
        async with connected(running.stomp_port) as producer:
            with contextlib.suppress(OSError):
                await producer.send(1, size, receipt="r", **headers)
            arrived = await producer.receive()
            assert arrived.command == "ERROR", arrived
            assert problem in arrived.headers["message"]
            assert arrived.headers.get("receipt-id") in ("r", None)
        await until_files(running, 0)


async def test_a_body_that_does_not_end_where_it_should_is_an_error() -> None:
    async with gateway() as running:
        async with connected(running.stomp_port) as producer:
            producer.begin(SIZE, destination="/queue/a")
            producer.writer.write(b"x" * (SIZE + 1))
            arrived = await producer.receive()
            assert arrived.command == "ERROR"
            assert "not followed by NUL" in arrived.headers["message"]
        await until_files(running, 0)


async def test_a_body_without_room_on_the_disk_is_an_error_and_small_ones_still_go(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with gateway('large_message_min_size = "2kb"') as running:
        large = running.gateway.broker.large_bodies
        large._free_limit_bytes = 1 << 60
        async with connected(running.stomp_port) as producer:
            with contextlib.suppress(OSError):
                await producer.send(1, SIZE, destination="/queue/a", receipt="r")
            arrived = await producer.receive()
            assert arrived.command == "ERROR"
            assert "store is full" in arrived.headers["message"]
            assert "has no room" in caplog.text
            assert arrived.headers["receipt-id"] == "r"
        await publish(running, 2, size=100)
        assert body_files(running.data_directory) == []


@pytest.mark.usefixtures("from_memory")
async def test_bodies_are_delivered_from_memory_while_they_are_new(tmp_path: Path) -> None:
    never = 'checkpoint_interval = "1h"\ncleanup_interval = "1h"'  # when it is idle, they go
    async with gateway(directory=tmp_path, intervals=never) as running:
        await publish(running, 1)
        await publish(running, 2)
        for number, path in enumerate(body_files(tmp_path)):
            path.rename(tmp_path / f"aside-{number}")
        async with connected(running.stomp_port) as consumer:
            await subscribe(consumer, ack="client")
            check(await consumer.receive(), 1)
            check(await consumer.receive(), 2)
        async with connected(running.stomp_port) as consumer:
            await subscribe(consumer, ack="client")
            check(await consumer.receive(), 1)  # again: nothing was acknowledged
            second = await consumer.receive()
            check(second, 2)
            await acknowledge(consumer, second)


async def test_a_message_whose_file_is_gone_does_not_hold_up_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with gateway(directory=tmp_path) as running:
        await publish(running, 1)
        (lost,) = body_files(tmp_path)
        await publish(running, 2)
        lost.rename(tmp_path / "kept")
        async with connected(running.stomp_port) as consumer:
            await subscribe(consumer, ack="client")
            arrived = await consumer.receive()
            check(arrived, 2)
            await acknowledge(consumer, arrived)
        (tmp_path / "kept").rename(lost)
        async with connected(running.stomp_port) as consumer:
            await subscribe(consumer)
            check(await consumer.receive(), 1)  # the cumulative ACK did not cover it
    assert "message not delivered" in caplog.text


async def test_a_body_that_is_damaged_never_ends_as_a_whole_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with gateway(directory=tmp_path) as running:
        await publish(running, 1, size=3 * MB)
        (path,) = body_files(tmp_path)
        data = bytearray(path.read_bytes())
        data[2 * MB] ^= 1
        path.write_bytes(data)
        async with connected(running.stomp_port) as consumer:
            await subscribe(consumer)
            with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                await consumer.receive()
        # It costs a connection once; from now on it is in nobody's way.
        await publish(running, 2)
        async with connected(running.stomp_port) as consumer:
            await subscribe(consumer)
            arrived = await consumer.receive()
            check(arrived, 2)
            await acknowledge(consumer, arrived)
        data[2 * MB] ^= 1
        path.write_bytes(data)  # from a copy
        async with connected(running.stomp_port) as consumer:
            await subscribe(consumer)
            check(await consumer.receive(), 1, 3 * MB)
    assert "checksum" in caplog.text
