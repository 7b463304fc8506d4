"""The vm cursor keeps the contract, and says when producers must wait."""

import pytest

from tidegate.spi import MESSAGE_OVERHEAD_BYTES, CursorFactory
from tidegate.testing.cursor_kit import ANY_SIZE, CursorBox, CursorConformance, messages_of
from tidegate_cursors import VmCursorFactory


class TestVmCursor(CursorConformance):
    @pytest.fixture
    def cursor_factory(self) -> CursorFactory:
        return VmCursorFactory()

    async def test_it_is_full_at_the_limit_and_no_longer_when_drained(self, box: CursorBox) -> None:
        cursor = box.make(memory_limit_bytes=10_000)
        box.offer(cursor, messages_of(1, 6, size=1_600 - MESSAGE_OVERHEAD_BYTES))
        assert not cursor.is_full
        box.offer(cursor, messages_of(7, 7, size=1_600 - MESSAGE_OVERHEAD_BYTES))
        assert cursor.is_full
        assert not cursor.needs_page
        cursor.take(1, ANY_SIZE)
        assert not cursor.is_full
        assert box.store.pages == []
        await cursor.close()

    async def test_one_page_in_loads_all_that_was_recovered(self, box: CursorBox) -> None:
        cursor = box.make(recovered=messages_of(1, 95), page_count=10)
        await cursor.page_in()
        assert len(box.store.pages) == 10
        assert len(cursor.take(1_000, ANY_SIZE)) == 95
        await cursor.close()

    async def test_a_backlog_larger_than_memory_is_loaded_in_parts(self, box: CursorBox) -> None:
        cursor = box.make(
            recovered=messages_of(1, 50, size=1_600 - MESSAGE_OVERHEAD_BYTES),
            memory_limit_bytes=16_000,
        )
        box.offer(cursor, messages_of(60, 60, size=1_600 - MESSAGE_OVERHEAD_BYTES))
        await cursor.page_in()
        assert cursor.memory_bytes <= 17_000
        assert 1 < len(cursor.take(1_000, ANY_SIZE)) < 20
        assert (await box.drain(cursor))[-1] == 60
        await cursor.close()

    async def test_new_messages_are_free_once_the_rest_of_the_backlog_is_purged(
        self, box: CursorBox
    ) -> None:
        cursor = box.make(recovered=messages_of(1, 20))
        box.offer(cursor, messages_of(21, 23))
        assert list(cursor.take(5, ANY_SIZE)) == []
        assert cursor.remove([*range(1, 21), 22]) == 21
        assert [stored.sequence for stored in cursor.take(5, ANY_SIZE)] == [21, 23]
        assert cursor.size == 0
        await cursor.close()
