"""What a store does with messages in lists, and while it is open."""

from __future__ import annotations

import pytest

from tidegate.spi import (
    Acknowledge,
    AddMessage,
    Discard,
    DiscardReason,
    Durability,
    Message,
    Move,
    StoreClosedError,
)
from tidegate.testing._portable_contents import FULL
from tidegate.testing._store_kit.box import OTHER, QUEUE, StoreBox, StoreFixtures, add


class StoreLists(StoreFixtures):
    """Opening and closing, pages, and each operation on a pending list."""

    async def test_a_new_store_is_empty_and_has_an_identity(self, box: StoreBox) -> None:
        await box.open()
        state = box.state
        assert state.store_id
        assert (state.last_sequence, state.last_pending_list) == (0, 0)
        assert not any([state.destinations, state.subscriptions, state.sessions])
        assert not any([state.inflight, state.retained, state.pending])
        assert await box.sequences() == []

    async def test_a_new_directory_gives_another_identity(self, box: StoreBox) -> None:
        first, second = box.other("a"), box.other("b")
        await first.open()
        await second.open()
        assert first.state.store_id != second.state.store_id

    async def test_a_closed_store_refuses_all_work(self, box: StoreBox) -> None:
        await box.open(QUEUE, add(1))
        await box.end()
        with pytest.raises(StoreClosedError):
            await box.write(add(2))
        with pytest.raises(StoreClosedError):
            await box.page(1, 0, 1, 1)
        log = box.store.capabilities.acknowledged_log
        if log is not None:
            with pytest.raises(StoreClosedError):
                await log.acknowledged(0, 1, 1)
            with pytest.raises(StoreClosedError):
                await log.release_acknowledged(1)

    async def test_close_may_be_called_twice_and_before_open(self, box: StoreBox) -> None:
        await box.open()
        await box.end()
        await box.end()
        await box.end(box.make())

    async def test_a_store_that_is_not_persistent_touches_no_disk(self, box: StoreBox) -> None:
        await box.open(QUEUE, add(1), add(2), persistent=False)
        assert not box.store.capabilities.durable
        await box.write(Acknowledge(1, (1,)))
        assert await box.sequences() == [2]
        await box.end()
        assert list(box.directory.iterdir()) == []

    async def test_messages_come_back_in_order_with_all_their_fields(self, box: StoreBox) -> None:
        await box.open(QUEUE, AddMessage(7, FULL, (1,)), add(9, body=b""))
        first, second = await box.page(1)
        assert (first.sequence, first.message, first.delivery_count) == (7, FULL, 0)
        assert (second.sequence, second.message.body) == (9, b"")

    async def test_a_page_begins_behind_after_and_ends_at_the_limit(self, box: StoreBox) -> None:
        await box.open(QUEUE, *[add(sequence) for sequence in range(10, 60, 10)])

        async def page(after: int, limit: int) -> list[int]:
            found = await box.page(1, after, limit)
            return [stored.sequence for stored in found]

        assert await page(0, 2) == [10, 20]
        assert await page(20, 2) == [30, 40]
        assert await page(29, 2) == [30, 40]
        assert await page(40, 2) == [50]
        assert await page(50, 2) == []
        assert await page(0, 5) == [10, 20, 30, 40, 50]

    async def test_a_page_stops_before_its_bodies_exceed_the_byte_limit(
        self, box: StoreBox
    ) -> None:
        await box.open(QUEUE, *[add(sequence, body=bytes(100)) for sequence in range(1, 6)])

        async def count(bytes_max: int) -> int:
            return len(await box.page(1, 0, 10, bytes_max))

        assert [await count(size) for size in (1, 99, 100, 199, 200, 399, 500)] == [
            1, 1, 1, 1, 2, 3, 5,
        ]  # fmt: skip

    async def test_an_unknown_list_is_empty(self, box: StoreBox) -> None:
        await box.open(QUEUE, add(1))
        assert await box.sequences(99) == []

    async def test_acknowledged_and_discarded_messages_leave_their_list_only(
        self, box: StoreBox
    ) -> None:
        await box.open(QUEUE, OTHER, *[add(sequence, 1, 2) for sequence in range(1, 7)])
        await box.write(Acknowledge(1, (4, 2)), Discard(2, (1, 6), DiscardReason.EXPIRED))
        assert await box.sequences(1) == [1, 3, 5, 6]
        assert await box.sequences(2) == [2, 3, 4, 5]

    async def test_a_moved_message_is_the_last_of_its_new_list(self, box: StoreBox) -> None:
        await box.open(QUEUE, OTHER, add(1), add(2), add(3, 2))
        moved = Message("queue://returns", b"message 1", (("reason", "rejected"),))
        await box.write(Move(1, 1, 2, 4, moved))
        assert await box.sequences(1) == [2]
        page = await box.page(2)
        assert [(stored.sequence, stored.message.headers) for stored in page] == [
            (3, ()),
            (4, (("reason", "rejected"),)),
        ]

    async def test_an_empty_batch_changes_nothing(self, box: StoreBox) -> None:
        await box.open(QUEUE, add(1))
        await box.write()
        await box.write(durability=Durability.WRITTEN)
        assert await box.sequences() == [1]
