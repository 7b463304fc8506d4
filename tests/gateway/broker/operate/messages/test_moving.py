"""Messages that are purged, moved and copied: which, in which order, and within which limits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from broker_harness import Broker
from operated import ME, ask, bodies, consumed, filled
from virtual_loop import run

from tidegate.broker.operate.messages.over_messages import PAGE_COUNT
from tidegate.broker.operate.operations import Operations
from tidegate.config import DestinationPolicy
from tidegate.spi import (
    Discard,
    DiscardReason,
    FlowControlError,
    Move,
    RequestError,
    StoreFullError,
)
from tidegate.spi.operate import (
    CopyMessages,
    CreateDestination,
    MoveMessages,
    PurgeDestination,
    ShowDestination,
    perform,
)

A, B = "queue://a", "queue://b"


# --- messages -----------------------------------------------------------------------------------


def test_purge_leaves_what_is_in_flight_and_what_comes_later() -> None:
    async def main() -> None:
        async with Broker() as broker:
            await filled(broker, 2 * PAGE_COUNT + 10)
            client = await broker.client()
            client.subscribe(A, prefetch_count=5)
            await broker.settle()
            done = await ask(broker, PurgeDestination(A))
            assert (done.count, done.is_complete) == (2 * PAGE_COUNT + 5, True)
            assert broker.store.pending(A) == bodies(0, 1, 2, 3, 4)
            discards = broker.store.operations(Discard)
            assert {item.reason for item in discards} == {DiscardReason.PURGED}
            client.ack_all()
            await filled(broker, 1)
            assert client.bodies() == bodies(0, 1, 2, 3, 4, 0)
            client.ack_all()
            await broker.settle()

    run(main())


@pytest.mark.parametrize("cursor", ["store", "vm", "file"])
def test_purge_with_a_selector_and_a_number_takes_just_those(cursor: str) -> None:
    async def main() -> None:
        # So little memory that most of it is only in the store, or spooled.
        policy = DestinationPolicy(
            ">", cursor=cursor, memory_limit=2000 if cursor != "vm" else 1 << 20
        )
        async with Broker(policy) as broker:
            await filled(broker, 30)
            done = await ask(broker, PurgeDestination(A, "n >= 10", count_max=15))
            assert done.count == 15
            done = await ask(broker, PurgeDestination(A, "n = 3 or n = 26 or n = 12"))
            assert done.count == 2
            kept = [n for n in range(30) if (n < 10 or n >= 25) and n not in (3, 26)]
            assert broker.store.pending(A) == bodies(*kept)
            assert broker.queue("a").cursor.size == len(kept)
            assert await consumed(broker, A) == bodies(*kept)

    run(main())


@pytest.mark.parametrize("cursor", ["store", "vm", "file"])
def test_move_keeps_headers_and_order_and_no_message_is_in_two_queues(cursor: str) -> None:
    async def main() -> None:
        policy = DestinationPolicy(
            ">", cursor=cursor, memory_limit=2000 if cursor != "vm" else 1 << 20
        )
        async with Broker(policy) as broker:
            await filled(broker, 20)
            await ask(broker, CreateDestination(B))
            done = await ask(broker, MoveMessages(A, B, "n < 15", count_max=10))
            assert (done.count, done.is_complete) == (10, True)
            assert broker.store.pending(A) == bodies(*range(10, 20))
            assert broker.store.pending(B) == bodies(*range(10))
            moved = broker.store.operations(Move)
            assert [dict(item.message.headers)["n"] for item in moved[:2]] == ["0", "1"]
            assert moved[0].message.destination == B
            assert await consumed(broker, B) == bodies(*range(10))
            assert await consumed(broker, A) == bodies(*range(10, 20))

    run(main())


def test_moved_messages_are_delivered_to_a_consumer_that_waits_with_new_sequences() -> None:
    async def main() -> None:
        async with Broker() as broker:
            await filled(broker, 3)
            client = await broker.client()
            client.subscribe(B)
            await ask(broker, MoveMessages(A, B))
            assert client.bodies() == bodies(0, 1, 2)
            assert client.counts() == [0, 0, 0]
            assert client.sequences() == sorted(client.sequences())
            client.ack_all()
            await broker.settle()
            assert broker.store.pending(B) == []

    run(main())


def test_copies_stay_in_both_queues() -> None:
    async def main() -> None:
        async with Broker() as broker:
            await filled(broker, 4)
            await ask(broker, CreateDestination(B))
            assert (await ask(broker, CopyMessages(A, B, "n <> 2"))).count == 3
            assert await consumed(broker, A) == bodies(0, 1, 2, 3)
            assert await consumed(broker, B) == bodies(0, 1, 3)

    run(main())


def test_a_move_into_a_store_without_room_leaves_everything_where_it_is() -> None:
    async def main() -> None:
        async with Broker() as broker:
            await filled(broker, 3)
            await ask(broker, CreateDestination(B))
            broker.store.refuse(1)
            with pytest.raises(StoreFullError):
                await ask(broker, MoveMessages(A, B))
            assert broker.store.pending(A) == bodies(0, 1, 2)
            assert broker.store.pending(B) == []
            assert await consumed(broker, A) == bodies(0, 1, 2)

    run(main())


def test_a_page_that_is_older_than_what_it_shows_gives_nothing_twice() -> None:
    """A message that a consumer with a selector has had and acknowledged while the page was read."""

    async def main() -> None:
        async with Broker() as broker:
            await filled(broker, 3)
            await ask(broker, CreateDestination(B))
            client = await broker.client()
            client.subscribe(A, selector="n = 2")
            await broker.settle()
            assert client.bodies() == bodies(2)
            inner, read = broker.store.page_in, asyncio.Event()

            async def slow(*arguments: Any) -> Any:
                page = await inner(*arguments)
                if not read.is_set():
                    read.set()
                    client.ack_all()
                    for _ in range(20):
                        await asyncio.sleep(0)
                return page

            broker.store.page_in = slow  # type: ignore[method-assign]  # slow for once
            assert (await ask(broker, MoveMessages(A, B))).count == 2
            assert broker.store.pending(B) == bodies(0, 1)
            assert broker.queue("a").cursor.size == 0

    run(main())


def test_a_consumer_with_a_selector_is_not_given_what_was_purged_after_it_was_found() -> None:
    async def main() -> None:
        async with Broker() as broker:
            await filled(broker, 6)
            client = await broker.client()
            client.subscribe(A, selector="n >= 0", prefetch_count=2)
            await broker.settle()
            assert (await ask(broker, PurgeDestination(A, "n = 3"))).count == 1
            for _ in range(4):
                client.ack_all()
                await broker.settle()
            assert client.bodies() == bodies(0, 1, 2, 4, 5)

    run(main())


def test_a_limited_queue_counts_what_is_purged_and_moved_and_takes_no_more_than_it_may() -> None:
    async def main() -> None:
        policies = (
            DestinationPolicy("queue://a", bytes_max=1 << 20),
            DestinationPolicy("queue://b", messages_max=300),
        )
        async with Broker(*policies) as broker:
            await filled(broker, 500)
            row = (await ask(broker, ShowDestination(A))).row
            assert row.body_bytes == sum(len(str(number)) for number in range(500))
            await ask(broker, CreateDestination(B))
            done = await ask(broker, MoveMessages(A, B))
            assert (done.count, done.is_complete) == (300, False)
            with pytest.raises(FlowControlError, match="is full"):
                await ask(broker, MoveMessages(A, B, after=done.after, through=done.through))
            assert broker.store.pending(B) == bodies(*range(300))
            assert broker.store.pending(A) == bodies(*range(300, 500))
            assert (await ask(broker, PurgeDestination(A, count_max=199))).count == 199
            row = (await ask(broker, ShowDestination(A))).row
            assert (row.pending, row.body_bytes) == (1, 3)

    run(main())


@pytest.mark.parametrize("limit", [{"messages_max": 5}, {"bytes_max": 5}])
@pytest.mark.parametrize("request_type", [MoveMessages, CopyMessages])
def test_what_is_moved_or_copied_drops_nothing_from_a_queue_at_its_limit(
    limit: dict[str, Any], request_type: type[MoveMessages | CopyMessages]
) -> None:
    async def main() -> None:
        async with Broker(DestinationPolicy(B, overflow="drop_oldest", **limit)) as broker:
            await filled(broker, 8)
            client = await broker.client()
            client.send(B, "x")
            client.send(B, "y")
            client.subscribe(B, prefetch_count=1)  # what is in flight is in the queue, too
            await broker.settle()
            done = await ask(broker, request_type(A, B))
            assert (done.count, done.is_complete) == (3, False)
            with pytest.raises(FlowControlError, match="is full"):
                await ask(broker, request_type(A, B, after=done.after, through=done.through))
            assert broker.store.pending(B) == [b"x", b"y", *bodies(*range(3))]
            moved = 3 if request_type is MoveMessages else 0
            assert broker.store.pending(A) == bodies(*range(moved, 8))
            assert broker.core.flow.dropped == 0

    run(main())


def test_a_publish_beside_a_move_sees_what_the_move_takes_of_the_limit() -> None:
    async def main() -> None:
        async with Broker(DestinationPolicy(B, messages_max=5, overflow="refuse")) as broker:
            await filled(broker, 5)
            client = await broker.client()
            client.send(B, "x")
            await broker.settle()
            broker.store.hold()
            move = asyncio.create_task(
                perform(Operations(broker.core), ME, MoveMessages(A, B, count_max=4))
            )
            for _ in range(50):
                await asyncio.sleep(0)
            client.send(A, "y")  # whatever is to be durable
            broker.store.release()
            while not broker.core.writer.is_adding(broker.queue("b")):
                await asyncio.sleep(0)
            with pytest.raises(FlowControlError):
                client.send(B, "z")
            await move
            await broker.settle()
            assert broker.store.pending(B) == [b"x", *bodies(*range(4))]

    run(main())


def test_a_queue_whose_producers_wait_for_its_limit_is_shown_as_full() -> None:
    async def main() -> None:
        async with Broker(DestinationPolicy(A, messages_max=3, overflow="slow")) as broker:
            await filled(broker, 2)
            assert not (await ask(broker, ShowDestination(A))).row.is_full
            await filled(broker, 1)
            assert (await ask(broker, ShowDestination(A))).row.is_full
            await ask(broker, PurgeDestination(A))
            assert not (await ask(broker, ShowDestination(A))).row.is_full

    run(main())


def test_two_operations_on_one_queue_do_not_mix() -> None:
    async def main() -> None:
        async with Broker() as broker:
            await filled(broker, 3)
            operations = Operations(broker.core)
            first = asyncio.create_task(operations.purge_destination(ME, PurgeDestination(A)))
            await asyncio.sleep(0)
            with pytest.raises(RequestError, match="another operation"):
                await operations.purge_destination(ME, PurgeDestination(A))
            assert (await first).count == 3
            assert (await ask(broker, PurgeDestination(A))).count == 0

    run(main())


@pytest.mark.parametrize(
    ("move", "problem"),
    [
        (MoveMessages(A, A), "the same queue"),
        (MoveMessages(A, "queue://none"), "there is no queue"),
        (MoveMessages("queue://none", A), "there is no queue"),
        (MoveMessages(A, "topic://t"), "is not a queue"),
        (MoveMessages(A, B, "n = "), "selector"),
    ],
)
def test_a_move_that_makes_no_sense_is_refused(move: MoveMessages, problem: str) -> None:
    async def main() -> None:
        async with Broker() as broker:
            await filled(broker, 1)
            await ask(broker, CreateDestination(B))
            with pytest.raises(RequestError, match=problem):
                await ask(broker, move)
            assert broker.store.pending(A) == bodies(0)

    run(main())
