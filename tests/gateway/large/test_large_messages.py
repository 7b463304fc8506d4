"""Large messages from client to client: a whole gateway with its journal, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import wire
from large_messages import (
    KB,
    MB,
    PIECE,
    Arrived,
    LargeClient,
    body_files,
    connected,
    digest_of,
    no_collector,
    open_digest_of,
    open_pieces,
    pieces,
)
from websockets.asyncio.client import connect as websocket_connect
from websockets.typing import Subprotocol
from wire import MqttClient

from tidegate.testing.embedded import EmbeddedGateway
from tidegate_store_journal.bodies import large as _large

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


@pytest.fixture
def from_memory() -> None:
    """Bodies that were just written are delivered from memory, as they are outside these tests."""


@pytest.fixture(autouse=True)
def from_files(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every body is read from its file, unless a test wants :func:`from_memory`."""
    if "from_memory" not in request.fixturenames:
        monkeypatch.setattr(_large, "RECENT_BYTES_MAX", 0)


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


@pytest.fixture(autouse=True)
def files_go_at_once() -> Iterator[None]:
    with no_collector():
        yield


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


# ---------------------------------------------------------------------------------------- queues


async def test_a_large_body_goes_through_a_file_that_ends_with_its_acknowledgement() -> None:
    async with gateway() as running:
        await publish(running, 1, kind="a\\cb")
        assert len(body_files(running.data_directory)) == 1
        async with connected(running.stomp_port) as consumer:
            await subscribe(consumer)
            arrived = await consumer.receive()
            check(arrived, 1)
            assert arrived.headers["kind"] == "a\\cb"
            assert arrived.headers["destination"] == "/queue/a"
            assert len(body_files(running.data_directory)) == 1
            await acknowledge(consumer, arrived)
            await until_files(running, 0)


@pytest.mark.parametrize("size", [100 * KB - 1, 100 * KB])
async def test_the_size_decides_whether_a_body_has_a_file(size: int) -> None:
    async with gateway() as running:
        await publish(running, 1, size=size)
        assert len(body_files(running.data_directory)) == (size == 100 * KB)
        async with connected(running.stomp_port) as consumer:
            await subscribe(consumer)
            check(await consumer.receive(), 1, size)


@pytest.mark.parametrize("size", [100 * KB - 1, 100 * KB, SIZE])
async def test_a_body_without_content_length_has_a_file_by_its_size(size: int) -> None:
    async with gateway() as running, connected(running.stomp_port) as client:
        await client.send_open(size, destination="/queue/a", receipt="1", kind="open")
        await client.receipt("1")
        assert len(body_files(running.data_directory)) == (size >= 100 * KB)
        await subscribe(client)
        arrived = await client.receive()
        assert (arrived.size, arrived.digest) == (size, open_digest_of(size))
        assert arrived.headers["kind"] == "open"
        await acknowledge(client, arrived)
        await until_files(running, 0)


@pytest.mark.parametrize("case", ["limit", "disk"])
async def test_a_body_without_content_length_is_refused_while_it_grows(
    case: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with gateway() as running:
        large = running.gateway.broker.large_bodies
        async with connected(running.stomp_port) as producer:
            producer.frame_head("SEND", destination="/queue/a", receipt="r")
            with contextlib.suppress(OSError):
                for number, piece in enumerate(open_pieces(9 * MB)):
                    producer.writer.write(piece)
                    await producer.writer.drain()
                    if case == "disk" and number == 3:
                        await until_files(running, 1)
                        large._free_limit_bytes = 1 << 60
            arrived = await producer.receive()
            assert arrived.command == "ERROR", arrived
            assert arrived.headers["receipt-id"] == "r"
            problem = "limit of 8388608 bytes" if case == "limit" else "store is full"
            assert problem in arrived.headers["message"]
            assert ("has no room" in caplog.text) == (case == "disk")
        await until_files(running, 0)


async def test_a_client_that_dies_in_a_body_without_content_length_leaves_nothing() -> None:
    async with gateway() as running:
        async with connected(running.stomp_port) as producer:
            producer.frame_head("SEND", destination="/queue/a")
            for piece in open_pieces(3 * MB):
                producer.writer.write(piece)
                await producer.writer.drain()
            await until_files(running, 1)
        await until_files(running, 0)


async def test_frames_keep_their_order_around_large_bodies() -> None:
    async with gateway() as running, connected(running.stomp_port) as producer:

        async def send() -> None:
            for number in range(12):
                headers = {"destination": "/queue/a", "receipt": str(number), "n": str(number)}
                await producer.send(number, SIZE if number % 3 else 10, **headers)

        sending = asyncio.create_task(send())
        for number in range(12):
            await producer.receipt(str(number))
        await sending
        async with connected(running.stomp_port) as consumer:
            await subscribe(consumer, ack="auto")
            for number in range(12):
                arrived = await consumer.receive()
                assert arrived.headers["n"] == str(number)
                check(arrived, number, SIZE if number % 3 else 10)


async def test_a_message_that_is_acknowledged_when_sent_is_still_sent_whole() -> None:
    async with gateway() as running:
        await publish(running, 1, 2, size=4 * MB)
        async with connected(running.stomp_port) as consumer:
            await subscribe(consumer, ack="auto")
            # Its file must outlive the acknowledgement, and checkpoints, until it is read.
            await asyncio.sleep(0.2)
            check(await consumer.receive(), 1, 4 * MB)
            check(await consumer.receive(), 2, 4 * MB)
            await until_files(running, 0)


async def test_a_consumer_that_leaves_in_the_middle_gets_it_again_whole() -> None:
    async with gateway() as running:
        await publish(running, 1, size=6 * MB)
        async with connected(running.stomp_port) as first:
            await subscribe(first)
            await first.reader.readuntil(b"\n\n")
            await first.reader.readexactly(PIECE)
        async with connected(running.stomp_port) as second:
            await subscribe(second)
            arrived = await second.receive()
            check(arrived, 1, 6 * MB)
            assert arrived.headers["redelivered"] == "true"


async def test_a_rejected_one_is_redelivered_and_becomes_a_dead_letter_with_its_body() -> None:
    async with gateway() as running:
        await publish(running, 1)
        async with connected(running.stomp_port) as consumer:
            await subscribe(consumer)
            for _ in range(6):
                arrived = await consumer.receive()
                check(arrived, 1)
                consumer.frame("NACK", id=arrived.headers["ack"])
            await subscribe(consumer, "/queue/DLQ.a", id="2")
            arrived = await consumer.receive()
            check(arrived, 1)
            assert arrived.headers["original-destination"] == r"queue\c//a"
            await until_files(running, 1)
            await acknowledge(consumer, arrived)
            await until_files(running, 0)


async def test_an_expired_one_takes_its_file_along() -> None:
    async with gateway() as running:
        await publish(running, 1, expires="1000")
        await publish(running, 2)
        async with connected(running.stomp_port) as consumer:
            await subscribe(consumer)
            check(await consumer.receive(), 2)
            await until_files(running, 1)


async def test_browsing_shows_the_body_and_leaves_it() -> None:
    async with gateway() as running:
        await publish(running, 1, 2)
        async with connected(running.stomp_port) as client:
            await subscribe(client, browser="true", ack="auto")
            check(await client.receive(), 1)
            check(await client.receive(), 2)
            assert (await client.receive()).headers["browser"] == "end"
        async with connected(running.stomp_port) as client:
            await subscribe(client)
            check(await client.receive(), 1)


async def test_a_selector_chooses_by_the_headers() -> None:
    async with gateway() as running:
        await publish(running, 1, colour="red")
        await publish(running, 2, colour="blue")
        async with connected(running.stomp_port) as client:
            await subscribe(client, selector="colour = 'blue'")
            check(await client.receive(), 2)


async def test_a_cumulative_ack_covers_large_messages() -> None:
    async with gateway() as running:
        await publish(running, 1, 2, 3)
        async with connected(running.stomp_port) as client:
            await subscribe(client, ack="client")
            for seed in (1, 2, 3):
                arrived = await client.receive()
                check(arrived, seed)
            await acknowledge(client, arrived)
            await until_files(running, 0)


# ---------------------------------------------------------------------------------------- topics


async def test_all_subscribers_of_a_topic_read_one_file() -> None:
    async with gateway() as running, contextlib.AsyncExitStack() as stack:
        clients: list[LargeClient] = []
        for number, mode in enumerate(("auto", "client", "client-individual", "auto")):
            client = await stack.enter_async_context(
                connected(running.stomp_port, client_id=f"c{number}")
            )
            durable = {"durable-subscription-name": "d"} if number == 3 else {}
            await subscribe(client, "/topic/t", ack=mode, **durable)
            clients.append(client)
        await publish(running, 1, destination="/topic/t")
        assert len(body_files(running.data_directory)) == 1
        for client in clients:
            arrived = await client.receive()
            check(arrived, 1)
            if "ack" in arrived.headers:
                await acknowledge(client, arrived)
        await until_files(running, 0)


@pytest.mark.parametrize(("cursor", "limit"), [("vm", "20kb"), ("file", "1kb")])
async def test_a_subscriber_without_storage_reads_what_waited_for_it(
    cursor: str, limit: str
) -> None:
    policy = (
        f'\n[[destinations]]\nmatch = "topic://>"\nsubscriber_cursor = "{cursor}"\n'
        f'memory_limit = "{limit}"\n'
    )
    async with gateway(store=policy) as running, connected(running.stomp_port) as slow:
        await subscribe(slow, "/topic/t", ack="auto")
        await publish(running, *range(1, 9), destination="/topic/t", size=2 * MB)
        for seed in range(1, 9):
            check(await slow.receive(), seed, 2 * MB)
        await until_files(running, 0)


async def test_a_topic_that_nobody_wants_keeps_nothing() -> None:
    async with gateway() as running:
        await publish(running, 1, destination="/topic/nobody")
        await until_files(running, 0)


async def test_a_message_to_be_retained_passes_through_memory() -> None:
    async with gateway() as running, connected(running.stomp_port) as client:
        await publish(running, 1, destination="/topic/t", retain="true")
        assert body_files(running.data_directory) == []
        client.frame("SUBSCRIBE", destination="/topic/t", id="1", retained="true")
        check(await client.receive(), 1)


# ---------------------------------------------------------------------------------- transactions


@pytest.mark.parametrize("end", ["COMMIT", "ABORT", "leave"])
async def test_a_transaction_decides_over_its_large_messages(end: str) -> None:
    async with gateway() as running:
        async with connected(running.stomp_port) as producer:
            producer.frame("BEGIN", transaction="t")
            for seed in (1, 2):
                await producer.send(
                    seed, SIZE, destination="/queue/a", transaction="t", receipt=str(seed)
                )
            for seed in (1, 2):
                await producer.receipt(str(seed))
            assert len(body_files(running.data_directory)) == 2
            if end != "leave":
                producer.frame(end, transaction="t", receipt="end")
                await producer.receipt("end")
        if end == "COMMIT":
            async with connected(running.stomp_port) as consumer:
                await subscribe(consumer)
                arrived = [await consumer.receive() for _ in (1, 2)]
                for seed in (1, 2):
                    check(arrived[seed - 1], seed)
                    await acknowledge(consumer, arrived[seed - 1])
                    await until_files(running, 2 - seed)
        else:
            await until_files(running, 0)


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


REFUSED = {
    "too large": ({"destination": "/queue/a"}, 9 * MB, "above this listener's limit of 8388608"),
    "no destination": ({"x": "y"}, SIZE, "needs a destination"),
    "no such transaction": (
        {"destination": "/queue/a", "transaction": "t"},
        SIZE,
        "no open transaction",
    ),
    "gateway's own topic": ({"destination": "/topic/$SYS.x"}, SIZE, "topics of the gateway"),
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
            assert "not the NUL" in arrived.headers["message"]
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
