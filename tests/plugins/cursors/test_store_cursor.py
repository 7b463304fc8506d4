"""The store cursor keeps the contract, and reads the store only when consumers fall behind."""

import pytest

from tidegate.spi import MESSAGE_OVERHEAD_BYTES, CursorFactory
from tidegate.testing.cursor_kit import ANY_SIZE, CursorBox, CursorConformance, messages_of
from tidegate_cursors import StoreCursorFactory


class TestStoreCursor(CursorConformance):
    @pytest.fixture
    def cursor_factory(self) -> CursorFactory:
        return StoreCursorFactory()

    async def test_it_is_never_full(self, box: CursorBox) -> None:
        cursor = box.make(memory_limit_bytes=5_000)
        box.offer(cursor, messages_of(1, 1_000))
        assert not cursor.is_full
        assert cursor.memory_bytes <= 5_000
        assert cursor.size == 1_000
        await cursor.close()

    async def test_it_changes_to_paging_and_back(self, box: CursorBox) -> None:
        cursor = box.make(memory_limit_bytes=10 * (MESSAGE_OVERHEAD_BYTES + 50), page_count=10)
        for round_ in range(3):
            first = 1 + 100 * round_
            box.offer(cursor, messages_of(first, first + 29))
            held = len(cursor.take(100, ANY_SIZE))
            assert held == 10
            box.offer(cursor, messages_of(first + 30, first + 34))
            assert list(cursor.take(100, ANY_SIZE)) == [], "new messages do not overtake"
            assert await box.drain(cursor) == list(range(first + held, first + 35))
            read = len(box.store.pages)
            assert read > 0
            box.offer(cursor, messages_of(first + 40, first + 41))
            assert len(cursor.take(100, ANY_SIZE)) == 2
            assert len(box.store.pages) == read
        await cursor.close()

    async def test_a_page_is_not_read_into_full_memory(self, box: CursorBox) -> None:
        cursor = box.make(memory_limit_bytes=5_000)
        box.offer(cursor, messages_of(1, 100, size=5_000 - MESSAGE_OVERHEAD_BYTES))
        await cursor.page_in()
        assert box.store.pages == []
        await cursor.close()
