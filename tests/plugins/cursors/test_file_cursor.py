"""The file cursor keeps the contract; it spools, and has an answer when it cannot."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from examples import examples
from hypothesis.stateful import run_state_machine_as_test

from tidegate.spi import CursorFactory, StoredMessage, StoreIOError
from tidegate.testing._cursor_machine import CURSOR_MACHINE_SETTINGS, CursorMachine, message_of
from tidegate.testing.cursor_kit import ANY_SIZE, CursorBox, CursorConformance, messages_of
from tidegate_cursors import FileCursorFactory
from tidegate_cursors._file_cursor import FileCursor
from tidegate_cursors._spool_file import SpoolFile


class SpoolingMachine(CursorMachine):
    """Always near both limits, where spool, store and dropping meet."""

    memory_limits = (2_000, 4_000)
    spool_limits = (1_500, 4_000)


class TestFileCursor(CursorConformance):
    @pytest.fixture
    def cursor_factory(self) -> CursorFactory:
        return FileCursorFactory()

    def test_it_keeps_order_near_its_limits(
        self, cursor_factory: CursorFactory, tmp_path: Path
    ) -> None:
        run: Callable[..., Any] = run_state_machine_as_test
        settings = hypothesis.settings(CURSOR_MACHINE_SETTINGS, max_examples=examples(100))
        run(lambda: SpoolingMachine(cursor_factory, tmp_path), settings=settings)

    async def test_a_spooled_backlog_is_not_read_from_the_store(self, box: CursorBox) -> None:
        cursor = box.make(memory_limit_bytes=5_000)
        for first in range(1, 1_000, 50):
            box.offer(cursor, messages_of(first, first + 49))
        await box.settle(cursor, 5_000 * 5 // 4)
        assert not cursor.is_full
        assert await box.drain(cursor) == list(range(1, 1_001))
        assert box.store.pages == []
        await cursor.close()

    async def test_what_the_spool_has_no_room_for_is_read_from_the_store(
        self, box: CursorBox
    ) -> None:
        cursor = box.make(memory_limit_bytes=5_000, temporary_limit_bytes=3_000)
        box.offer(cursor, messages_of(1, 100))
        assert await box.drain(cursor) == list(range(1, 101))
        first_read_from_store = box.store.pages[0][0] + 1
        assert 10 < first_read_from_store < 100
        box.offer(cursor, messages_of(101, 130))
        pages = len(box.store.pages)
        assert await box.drain(cursor) == list(range(101, 131))
        assert len(box.store.pages) == pages, "it spools again"
        await cursor.close()

    async def test_an_unstored_list_drops_its_oldest(self, box: CursorBox) -> None:
        cursor = box.make(stored=False, memory_limit_bytes=5_000, temporary_limit_bytes=3_000)
        dropped: list[int] = []
        for first in range(1, 500, 10):
            found = cursor.offer(messages_of(first, first + 9))
            dropped += [stored.sequence for stored in found]
        assert dropped == list(range(1, len(dropped) + 1))
        assert len(dropped) > 400
        assert await box.drain(cursor) == list(range(len(dropped) + 1, 501))
        await cursor.close()

    async def test_an_unstored_message_above_all_limits_replaces_everything(
        self, box: CursorBox
    ) -> None:
        cursor = box.make(stored=False, memory_limit_bytes=2_000, temporary_limit_bytes=1_000)
        cursor.offer(messages_of(1, 4))
        dropped = cursor.offer(messages_of(5, 5, size=50_000))
        assert [stored.sequence for stored in dropped] == [1, 2, 3, 4]
        assert await box.drain(cursor) == [5]
        await cursor.close()

    async def test_a_stored_list_survives_the_loss_of_its_spool(
        self, box: CursorBox, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cursor = box.make(memory_limit_bytes=5_000, temporary_limit_bytes=10_000)
        box.offer(cursor, messages_of(1, 200))
        first = [stored.sequence for stored in cursor.take(1_000, ANY_SIZE)]
        gone = [20, 150]
        for sequence in gone:
            del box.store.messages[sequence]
        assert cursor.remove(gone) == 2
        await box.settle(cursor, 0)
        monkeypatch.setattr(SpoolFile, "read", _fail)
        rest = await box.drain(cursor)
        assert [*first, *rest] == [number for number in range(1, 201) if number not in gone]
        await cursor.close()

    async def test_an_unstored_list_says_that_its_spool_is_lost_and_goes_on(
        self, box: CursorBox, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cursor = box.make(stored=False, memory_limit_bytes=5_000)
        cursor.offer(messages_of(1, 50))
        held = len(cursor.take(100, ANY_SIZE))
        await box.settle(cursor, 5_000 // 4)
        with monkeypatch.context() as patch:
            patch.setattr(SpoolFile, "read", _fail)
            with pytest.raises(StoreIOError):
                await cursor.page_in()
        assert 0 < held < 50
        assert cursor.size == 0
        cursor.offer(messages_of(60, 90))
        assert await box.drain(cursor) == list(range(60, 91))
        await cursor.close()

    async def test_dropping_while_a_page_is_read_keeps_the_order(self, box: CursorBox) -> None:
        cursor = box.make(stored=False, memory_limit_bytes=3_000, temporary_limit_bytes=3_000)
        seen: list[int] = []
        dropped: set[int] = set()
        for first in range(1, 2_000, 20):
            task = asyncio.create_task(cursor.page_in())
            await asyncio.sleep(0)
            found = cursor.offer(messages_of(first, first + 19))
            dropped |= {stored.sequence for stored in found}
            await task
            seen += [stored.sequence for stored in cursor.take(4, ANY_SIZE)]
        seen += await box.drain(cursor)
        assert seen == [number for number in range(1, 2_001) if number not in dropped]
        await cursor.close()

    async def test_what_is_put_back_behind_what_was_read_on_is_not_lost(
        self, box: CursorBox
    ) -> None:
        """It was claimed from the spool of an unstored list, and the spool was read on meanwhile."""
        cursor = box.make(
            stored=False, memory_limit_bytes=2_000, temporary_limit_bytes=1_500, page_count=1
        )
        dropped: list[int] = []

        def offer(*sizes: int) -> None:
            for size in sizes:
                messages.append(message_of(len(messages) + 1, bytes(size)))
            found = cursor.offer(messages[-len(sizes) :])
            dropped.extend(stored.sequence for stored in found)

        messages: list[StoredMessage] = []
        offer(0)
        offer(0)
        offer(1000)
        offer(1000, 0, 1000)
        assert list(cursor.claim([6])) == [6]
        offer(1000)
        cursor.put_back([messages[5]])
        assert cursor.size == 7 - len(dropped)
        left = await box.drain(cursor)
        assert left == [number for number in range(1, 8) if number not in dropped]
        assert 6 in left
        await cursor.close()

    async def test_a_directory_that_cannot_be_written_leaves_the_rest_in_the_store(
        self, tmp_path: Path
    ) -> None:
        box = CursorBox(FileCursorFactory(), tmp_path / "missing")
        cursor = box.make(memory_limit_bytes=5_000)
        assert isinstance(cursor, FileCursor)
        box.offer(cursor, messages_of(1, 50))
        assert cursor._spool._job is not None
        await asyncio.wait([cursor._spool._job])
        box.offer(cursor, messages_of(51, 100))
        assert not cursor.is_full
        assert await box.drain(cursor) == list(range(1, 101))
        assert box.store.pages
        await cursor.close()


def _fail(*_: object) -> bytes:
    raise OSError("the spool is gone")
