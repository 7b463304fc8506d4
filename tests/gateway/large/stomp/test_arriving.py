"""Large messages from client to client: a whole gateway with its journal, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import pytest
from large_gateway import SIZE, acknowledge, check, gateway, publish, subscribe, until_files
from large_messages import (
    KB,
    MB,
    PIECE,
    LargeClient,
    body_files,
    connected,
    open_digest_of,
    open_pieces,
)

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
