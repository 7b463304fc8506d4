"""The contents of lists are there after a restart."""

from __future__ import annotations

import asyncio

import pytest

from tidegate.spi import (
    Acknowledge,
    AddMessage,
    Message,
    PendingCount,
    RecordDelivery,
    StoreLockedError,
)
from tidegate.testing._portable_contents import by_key
from tidegate.testing._store_kit.box import OTHER, QUEUE, StoreBox, StoreFixtures, add


class StoreRestarts(StoreFixtures):
    """Messages, their order and counts, and their owners, in stores that outlive the process."""

    async def test_the_identity_stays_over_restarts(self, box: StoreBox, durable: None) -> None:
        await box.open()
        first = box.state.store_id
        await box.restart()
        assert box.state.store_id == first

    async def test_only_one_store_at_a_time_owns_the_contents(
        self, box: StoreBox, durable: None
    ) -> None:
        await box.open(QUEUE, add(1))
        with pytest.raises(StoreLockedError):
            await box.make().open()
        await box.write(add(2))
        await box.restart()
        assert await box.sequences() == [1, 2]

    async def test_a_message_survives_a_restart_unchanged(
        self, box: StoreBox, durable: None
    ) -> None:
        message = Message("queue://orders", bytes(1_000_000), (("k", "v"),), 5, 6, 7)
        await box.open(QUEUE, AddMessage(3, message, (1,)))
        await box.restart()
        (stored,) = await box.page(1)
        assert (stored.sequence, stored.message) == (3, message)
        assert by_key(box.state)["pending"] == {1: PendingCount(1, 1_000_000)}

    async def test_delivery_counts_belong_to_message_and_list(
        self, box: StoreBox, durable: None
    ) -> None:
        await box.open(QUEUE, OTHER, add(1, 1, 2), add(2, 1, 2))
        await box.write(RecordDelivery(1, (1, 2), (1, 1)), RecordDelivery(1, (2,), (3,)))
        for _ in range(2):
            for number, expected in ((1, [1, 3]), (2, [0, 0])):
                page = await box.page(number)
                assert [stored.delivery_count for stored in page] == expected
            await box.restart()

    async def test_thousands_of_messages_keep_their_order_over_a_restart(
        self, box: StoreBox, durable: None
    ) -> None:
        await box.open(QUEUE, OTHER)
        left: list[int] = []
        for first in range(1, 3001, 100):
            numbers = range(first, first + 100)
            await box.write(*[add(number, 1, 2, body=bytes(number)) for number in numbers])
            await box.write(Acknowledge(1, tuple(number for number in numbers if number % 7)))
            left += [number for number in numbers if number % 7 == 0]
        await box.restart()
        assert await box.sequences(1) == left
        assert await box.sequences(2) == list(range(1, 3001))
        page = await box.page(2, 2000, 500)
        assert [len(stored.message.body) for stored in page] == list(range(2001, 2501))

    async def test_a_cancelled_write_leaves_all_of_its_batch_or_nothing(
        self, box: StoreBox, durable: None
    ) -> None:
        await box.open(QUEUE)
        expected: list[int] = []
        for first in range(1, 201, 10):
            numbers = list(range(first, first + 5))
            task = asyncio.create_task(box.write(*[add(number) for number in numbers]))
            for _ in range(first % 3):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await box.write(add(first + 5))
            page = await box.page(1, first - 1, 10)
            found = [stored.sequence for stored in page]
            assert found in ([first + 5], [*numbers, first + 5])
            expected += found
        await box.restart()
        assert await box.sequences() == expected
