"""The conformance kit for cursors::

    pytest --pyargs tidegate.testing.cursor_kit --cursor=NAME

runs it over the cursor installed under the entry point ``cursor-NAME``. To run it from your own
test suite, subclass :class:`CursorConformance` and override ``cursor_factory``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import hypothesis
import msgspec
import pytest
from hypothesis.stateful import run_state_machine_as_test

from tidegate.spi import (
    CursorFactory,
    FeedReason,
    StoredMessage,
    StoreIOError,
    memory_bytes,
)
from tidegate.testing._cursor_kit.box import ANY_SIZE, CursorBox, messages_of, switch_over
from tidegate.testing._cursor_kit.switch_over import BEFORE_MAX, orders
from tidegate.testing._cursor_machine import (
    CURSOR_MACHINE_SETTINGS,
    CursorMachine,
)
from tidegate.testing._harness import Scenarios, plugin_factory

__all__ = ["ANY_SIZE", "CursorBox", "CursorConformance", "messages_of"]


class CursorConformance(Scenarios):
    """What every cursor must do. Subclass it and override ``cursor_factory``."""

    @pytest.fixture
    def cursor_factory(self, request: pytest.FixtureRequest) -> CursorFactory:
        """The factory under test."""
        name = cast("str | None", request.config.getoption("--cursor"))
        if not name:
            raise pytest.UsageError(
                "name the cursor to test: --cursor=NAME (entry point cursor-NAME)"
            )
        return cast(CursorFactory, plugin_factory(f"cursor-{name}", "register_cursor"))

    @pytest.fixture
    def box(self, cursor_factory: CursorFactory, tmp_path: Path) -> CursorBox:
        """An empty list."""
        return CursorBox(cursor_factory, tmp_path)

    @pytest.fixture
    def machine_settings(self) -> hypothesis.settings:
        """How long the model-based test runs."""
        return CURSOR_MACHINE_SETTINGS

    async def test_a_new_cursor_is_empty(self, box: CursorBox) -> None:
        cursor = box.make()
        assert (cursor.size, cursor.memory_bytes) == (0, 0)
        assert not cursor.is_full
        assert not cursor.needs_page
        assert list(cursor.take(10, ANY_SIZE)) == []
        await cursor.page_in()
        await cursor.close()
        await cursor.close()

    async def test_messages_are_taken_in_order_as_they_were_offered(self, box: CursorBox) -> None:
        cursor = box.make()
        messages = messages_of(1, 9)
        box.offer(cursor, messages[:4])
        box.offer(cursor, messages[4:])
        assert cursor.size == 9
        assert [*cursor.take(3, ANY_SIZE), *cursor.take(100, ANY_SIZE)] == messages
        assert (cursor.size, cursor.memory_bytes) == (0, 0)
        await cursor.close()

    async def test_consumers_that_keep_up_cost_no_reading(self, box: CursorBox) -> None:
        cursor = box.make(memory_limit_bytes=50_000)
        for first in range(1, 1_000, 10):
            box.offer(cursor, messages_of(first, first + 9))
            assert len(cursor.take(10, ANY_SIZE)) == 10
        assert box.store.pages == []
        await cursor.close()

    async def test_memory_is_accounted_by_message(self, box: CursorBox) -> None:
        cursor = box.make()
        messages = messages_of(1, 5, size=1_000)
        box.offer(cursor, messages)
        cost = memory_bytes(messages[0].message)
        assert cursor.memory_bytes == 5 * cost
        taken = cursor.take(2, ANY_SIZE)
        assert cursor.memory_bytes == 3 * cost
        cursor.put_back(taken)
        assert cursor.memory_bytes == 5 * cost
        assert cursor.remove([1, 5]) == 2
        assert cursor.memory_bytes == 3 * cost
        await cursor.close()
        assert cursor.memory_bytes == 0

    async def test_headers_are_memory_too(self, box: CursorBox) -> None:
        """A client decides their size as it does the body's."""
        cursor = box.make(memory_limit_bytes=50_000)
        headers = tuple((f"note{number}", "n" * 1_000) for number in range(10))
        plain = messages_of(1, 20, size=1)
        messages = [
            StoredMessage.of(item.sequence, msgspec.structs.replace(item.message, headers=headers))
            for item in plain
        ]
        box.offer(cursor, messages)
        assert cursor.is_full or cursor.memory_bytes <= 75_000
        assert cursor.memory_bytes >= 10_000
        assert await box.drain(cursor, 3) == [item.sequence for item in messages]
        assert cursor.memory_bytes == 0
        await cursor.close()

    async def test_what_is_held_is_told(self, box: CursorBox) -> None:
        """All cursors of one kind together have a limit, so each reports what it holds."""
        first, second = box.make(memory_limit_bytes=5_000), box.make(memory_limit_bytes=5_000)
        for number in range(1, 40, 4):
            box.offer(first, messages_of(number, number + 1, size=400))
            box.offer(second, messages_of(number + 2, number + 3, size=400))
            second.take(1, ANY_SIZE)
            assert box.shared.used == first.memory_bytes + second.memory_bytes
        await first.close()
        assert box.shared.used == second.memory_bytes
        await second.close()
        await second.close()
        assert box.shared.used == 0

    async def test_take_stops_at_the_limits_but_gives_one(self, box: CursorBox) -> None:
        cursor = box.make()
        box.offer(cursor, messages_of(1, 6, size=100))
        counts = [len(cursor.take(*limits)) for limits in ((0, ANY_SIZE), (2, 10), (9, 250))]
        assert counts == [0, 1, 2]
        assert len(cursor.take(2, ANY_SIZE)) == 2
        assert cursor.size == 1
        await cursor.close()

    async def test_put_back_messages_return_to_their_place(self, box: CursorBox) -> None:
        cursor = box.make()
        box.offer(cursor, messages_of(1, 9))
        taken = list(cursor.take(6, ANY_SIZE))
        again = StoredMessage.of(4, taken[3].message, delivery_count=1)
        cursor.put_back([taken[5], again])
        cursor.put_back([taken[0]])
        assert cursor.size == 6
        found = cursor.take(10, ANY_SIZE)
        assert [(stored.sequence, stored.delivery_count) for stored in found] == [
            (1, 0), (4, 1), (6, 0), (7, 0), (8, 0), (9, 0),
        ]  # fmt: skip
        await cursor.close()

    async def test_recovered_messages_come_before_new_ones(self, box: CursorBox) -> None:
        cursor = box.make(recovered=messages_of(1, 25))
        assert cursor.size == 25
        assert cursor.needs_page
        box.offer(cursor, messages_of(30, 35))
        assert cursor.size == 31
        assert await box.drain(cursor) == [*range(1, 26), *range(30, 36)]
        await cursor.close()

    async def test_a_backlog_above_the_memory_limit_comes_out_in_order(
        self, box: CursorBox
    ) -> None:
        cursor = box.make(memory_limit_bytes=20_000, recovered=messages_of(1, 100, size=500))
        for first in range(101, 400, 30):
            box.offer(cursor, messages_of(first, first + 29, size=500))
        assert cursor.size == 400
        assert cursor.is_full or cursor.memory_bytes <= 30_000
        assert await box.drain(cursor, limit=7) == list(range(1, 401))
        pages = len(box.store.pages)
        box.offer(cursor, messages_of(500, 509))
        assert [stored.sequence for stored in cursor.take(20, ANY_SIZE)] == list(range(500, 510))
        assert len(box.store.pages) == pages, "caught up, so nothing need be read"
        await cursor.close()

    async def test_memory_holds_no_more_messages_than_it_may(self, box: CursorBox) -> None:
        cursor = box.make(memory_limit_messages=5)
        box.offer(cursor, messages_of(1, 4))
        assert not cursor.is_full
        box.offer(cursor, messages_of(5, 20))
        held = 20 if cursor.is_full else 5
        assert len(cursor.take(1_000, ANY_SIZE)) == held
        assert not cursor.is_full
        assert await box.drain(cursor) == list(range(held + 1, 21))
        await cursor.close()

    async def test_a_page_brings_no_more_messages_than_memory_may_hold(
        self, box: CursorBox
    ) -> None:
        cursor = box.make(memory_limit_messages=5, recovered=messages_of(1, 12))
        await cursor.page_in()
        assert len(cursor.take(1_000, ANY_SIZE)) == 5
        assert await box.drain(cursor) == list(range(6, 13))
        await cursor.close()

    async def test_no_more_bytes_are_read_at_once_than_may_be(self, box: CursorBox) -> None:
        cursor = box.make(page_bytes=2_500, recovered=messages_of(1, 10, size=1_000))
        assert await box.drain(cursor) == list(range(1, 11))
        assert {bytes_max for _, _, bytes_max in box.store.pages} == {2_500}
        await cursor.close()

    # --- the switch from memory to pages and back ----------------------------------------------

    async def test_the_switch_to_pages_and_back_at_every_point(
        self, cursor_factory: CursorFactory, tmp_path: Path
    ) -> None:
        """Each order of the steps, with varying numbers of messages."""
        for number, order in enumerate(orders()):
            count = number % (BEFORE_MAX + 1)
            await switch_over(cursor_factory, tmp_path, count // 2, count - count // 2, order)

    # --- room: a quota, a full disk, shared memory -----------------------------------------------

    async def test_all_cursors_together_keep_to_the_quota(self, box: CursorBox) -> None:
        """What an unstored list drops is reported; what it keeps is in memory or counted as spooled."""
        if box.factory.needs_store:
            return
        box.space.limit_bytes = 2 << 20
        cursors = [box.make(stored=False, memory_limit_bytes=20_000) for _ in range(2)]
        kept: list[list[StoredMessage]] = [[], []]
        for first in range(1, 2_000, 10):
            for cursor, mine in zip(cursors, kept, strict=True):
                offered = messages_of(first, first + 9, size=1_000)
                mine += offered
                dropped = list(cursor.offer(offered))
                assert dropped == mine[: len(dropped)], "the oldest go first"
                del mine[: len(dropped)]
                await box.settle(cursor, 45_000)
                held = sum(len(stored.message.body) for one in kept for stored in one)
                memory = sum(cursor.memory_bytes for cursor in cursors)
                assert box.space.used <= box.space.limit_bytes
                assert box.space.used + memory >= held, "more is kept than was counted"
        for cursor, mine in zip(cursors, kept, strict=True):
            assert await box.drain(cursor, 50) == [stored.sequence for stored in mine]
            await cursor.close()
        assert (box.space.used, box.space.unwritten) == (0, 0)

    async def test_a_disk_without_room_costs_a_stored_list_nothing(self, box: CursorBox) -> None:
        box.space.refuses = True
        cursor = box.make(memory_limit_bytes=20_000)
        for first in range(1, 200, 10):
            box.offer(cursor, messages_of(first, first + 9, size=1_000))
            await asyncio.sleep(0)
        await box.settle_disk(0)
        assert await box.drain(cursor) == list(range(1, 201))
        await cursor.close()

    async def test_a_disk_without_room_costs_an_unstored_list_its_oldest(
        self, box: CursorBox
    ) -> None:
        if box.factory.needs_store:
            return
        box.space.refuses = True
        cursor = box.make(stored=False, memory_limit_bytes=20_000)
        kept: list[StoredMessage] = []
        for first in range(1, 200, 10):
            offered = messages_of(first, first + 9, size=1_000)
            kept += offered
            dropped = list(cursor.offer(offered))
            assert dropped == kept[: len(dropped)]
            del kept[: len(dropped)]
            await asyncio.sleep(0)
        await box.settle_disk(0)
        assert await box.drain(cursor) == [stored.sequence for stored in kept]
        assert len(kept) >= 10
        await cursor.close()

    async def test_above_the_high_water_mark_it_takes_what_it_needs(self, box: CursorBox) -> None:
        """Others hold half of the shared limit, which is where this one gives way."""
        box.shared.limit_bytes = 1 << 20
        cursor = box.make(memory_high_water_percent=50)
        box.shared.add(600 << 10)
        box.offer(cursor, messages_of(1, 200, size=1_000))
        was_full = cursor.is_full
        await box.settle(cursor, 100 << 10)
        assert cursor.is_full or cursor.memory_bytes <= 100 << 10
        box.shared.add(-(550 << 10))
        assert not cursor.is_full
        assert box.has_room or not was_full, "its producers wait, and nobody tells them"
        assert await box.drain(cursor, 20) == list(range(1, 201))
        await cursor.close()
        assert box.shared.used == 50 << 10

    async def test_below_the_high_water_mark_it_has_all_of_its_own(self, box: CursorBox) -> None:
        box.shared.limit_bytes = 1 << 20
        cursor = box.make(memory_high_water_percent=50)
        box.shared.add(100 << 10)
        box.offer(cursor, messages_of(1, 200, size=1_000))
        assert not cursor.is_full
        assert len(cursor.take(1_000, ANY_SIZE)) == 200
        await cursor.close()

    async def test_one_message_above_the_memory_limit_passes(self, box: CursorBox) -> None:
        cursor = box.make(memory_limit_bytes=1_000, recovered=messages_of(1, 2, size=50_000))
        box.offer(cursor, messages_of(3, 5, size=50_000))
        assert await box.drain(cursor) == [1, 2, 3, 4, 5]
        await cursor.close()

    async def test_claimed_messages_are_out_wherever_they_were(self, box: CursorBox) -> None:
        cursor = box.make(memory_limit_bytes=10_000, recovered=messages_of(1, 20, size=400))
        box.offer(cursor, messages_of(21, 60, size=400))
        await cursor.page_in()
        first = cursor.take(1, ANY_SIZE)
        wanted = [1, 2, 15, 16, 19, 20, 21, 40, 41, 59, 60]
        assert list(cursor.claim(wanted)) == wanted[1:], "1 is out already"
        assert list(cursor.claim(wanted)) == []
        assert cursor.size == 60 - len(wanted)
        left = [sequence for sequence in range(1, 61) if sequence not in wanted]
        assert await box.drain(cursor, limit=5) == left
        cursor.put_back(first)
        assert [stored.sequence for stored in cursor.take(9, ANY_SIZE)] == [1]
        await cursor.close()

    async def test_claimed_messages_return_to_their_place_with_their_counts(
        self, box: CursorBox
    ) -> None:
        cursor = box.make(memory_limit_bytes=10_000, recovered=messages_of(1, 20, size=400))
        box.offer(cursor, messages_of(21, 60, size=400))
        wanted = [3, 19, 30, 45, 60]
        assert list(cursor.claim(wanted)) == wanted
        again = [StoredMessage.of(n, box.store.messages[n].message, 1) for n in (45, 3, 60)]
        cursor.put_back(again)
        for sequence in (19, 30):
            del box.store.messages[sequence]
        assert cursor.remove([19, 30]) == 0, "they were taken"
        assert cursor.size == 58
        found: list[StoredMessage] = []
        while cursor.size:
            if cursor.needs_page:
                await cursor.page_in()
            found += cursor.take(7, ANY_SIZE)
        assert [stored.sequence for stored in found] == [
            sequence for sequence in range(1, 61) if sequence not in (19, 30)
        ]
        counted = [stored.sequence for stored in found if stored.delivery_count]
        assert counted == [3, 45, 60]
        await cursor.close()

    async def test_removed_messages_are_not_seen_wherever_they_were(self, box: CursorBox) -> None:
        cursor = box.make(memory_limit_bytes=10_000, recovered=messages_of(1, 20, size=400))
        box.offer(cursor, messages_of(21, 60, size=400))
        await cursor.page_in()
        gone = [1, 2, 15, 16, 19, 20, 21, 40, 41, 59, 60]
        for sequence in gone:
            del box.store.messages[sequence]
        assert cursor.remove(gone) == len(gone)
        assert cursor.size == 60 - len(gone)
        left = [sequence for sequence in range(1, 61) if sequence not in gone]
        assert await box.drain(cursor, limit=5) == left
        await cursor.close()

    async def test_a_purge_empties_it_even_while_a_page_is_read(self, box: CursorBox) -> None:
        cursor = box.make(memory_limit_bytes=10_000, recovered=messages_of(1, 50, size=400))
        box.store.gate = asyncio.Event()
        task = asyncio.create_task(cursor.page_in())
        await asyncio.sleep(0)
        assert cursor.remove(list(range(1, 51))) == 50
        box.store.messages.clear()
        assert cursor.size == 0
        box.offer(cursor, messages_of(60, 62))
        box.store.gate.set()
        await task
        box.store.gate = None
        assert await box.drain(cursor) == [60, 61, 62]
        await cursor.close()

    @pytest.mark.parametrize("taken", ["claimed", "purged"])
    async def test_what_is_offered_while_a_page_is_read_leaves_no_room_for_that_page(
        self, box: CursorBox, taken: str
    ) -> None:
        """The page's room was found before it was read, and has been used up since."""
        cursor = box.make(recovered=messages_of(1, 1), memory_limit_bytes=1, page_count=1)
        box.store.gate = asyncio.Event()
        task = asyncio.create_task(cursor.page_in())
        await asyncio.sleep(0)
        if taken == "claimed":
            assert list(cursor.claim([1])) == [1]
        else:
            box.store.messages.clear()
            assert cursor.remove([1]) == 1
        offered = messages_of(2, 3)
        box.offer(cursor, offered)
        box.store.gate.set()
        await task
        box.store.gate = None
        assert cursor.is_full or cursor.memory_bytes <= memory_bytes(offered[0].message)
        assert await box.drain(cursor) == [2, 3]
        await cursor.close()

    async def test_a_page_that_fails_can_be_read_again(self, box: CursorBox) -> None:
        cursor = box.make(recovered=messages_of(1, 5))
        box.store.error = StoreIOError("the disk is gone")
        with pytest.raises(StoreIOError):
            await cursor.page_in()
        assert cursor.size == 5
        assert await box.drain(cursor) == [1, 2, 3, 4, 5]
        await cursor.close()

    async def test_a_page_that_is_cancelled_can_be_read_again(self, box: CursorBox) -> None:
        cursor = box.make(recovered=messages_of(1, 5))
        box.store.gate = asyncio.Event()
        task = asyncio.create_task(cursor.page_in())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        box.store.gate = None
        assert await box.drain(cursor) == [1, 2, 3, 4, 5]
        await cursor.close()

    async def test_a_page_under_way_when_it_is_closed_brings_nothing(self, box: CursorBox) -> None:
        cursor = box.make(recovered=messages_of(1, 5))
        box.store.gate = asyncio.Event()
        task = asyncio.create_task(cursor.page_in())
        await asyncio.sleep(0)
        await cursor.close()
        box.store.gate.set()
        await task
        assert (cursor.memory_bytes, list(cursor.take(5, ANY_SIZE))) == (0, [])

    async def test_a_list_without_a_store_is_served_or_refused(self, box: CursorBox) -> None:
        if box.factory.needs_store:
            with pytest.raises(ValueError, match="queue://q"):
                box.make(stored=False)
            return
        cursor = box.make(stored=False, memory_limit_bytes=10_000)
        dropped: list[int] = []
        for first in range(1, 100, 10):
            found = cursor.offer(messages_of(first, first + 9, size=300))
            dropped += [stored.sequence for stored in found]
        left = await box.drain(cursor, limit=6)
        assert sorted([*dropped, *left]) == list(range(1, 101))
        assert left == sorted(left)
        assert box.store.pages == []
        await cursor.close()

    async def test_it_tells_where_it_feeds_from_and_what_came_which_way(
        self, box: CursorBox
    ) -> None:
        cursor = box.make(memory_limit_bytes=10_000)
        feed = cursor.feed
        assert (feed.is_paging, feed.reason, feed.turns) == (False, FeedReason.START, 0)
        box.offer(cursor, messages_of(1, 3, size=100))
        assert (feed.is_paging, feed.direct_count, feed.direct_bytes) == (False, 3, 300)
        for first in range(4, 100, 4):
            box.offer(cursor, messages_of(first, first + 3, size=100))
        pages = not cursor.is_full
        if pages:
            assert (feed.is_paging, feed.reason, feed.turns) == (True, FeedReason.LIMIT, 1)
            assert feed.direct_count < 99
        assert await box.drain(cursor, limit=6) == list(range(1, 100))
        if pages:
            assert (feed.is_paging, feed.reason, feed.turns) == (False, FeedReason.DRAINED, 2)
        assert feed.direct_count + feed.paged_count == 99
        assert feed.direct_bytes + feed.paged_bytes == 9_900
        box.offer(cursor, messages_of(100, 100))
        assert feed.direct_count + feed.paged_count == 100
        assert not feed.is_paging
        await cursor.close()

    async def test_what_waited_before_the_start_comes_from_pages(self, box: CursorBox) -> None:
        cursor = box.make(recovered=messages_of(1, 25))
        feed = cursor.feed
        assert (feed.is_paging, feed.reason, feed.turns) == (True, FeedReason.START, 0)
        assert await box.drain(cursor) == list(range(1, 26))
        assert (feed.is_paging, feed.reason, feed.turns) == (False, FeedReason.DRAINED, 1)
        assert (feed.direct_count, feed.paged_count) == (0, 25)
        await cursor.close()

    @pytest.mark.hypothesis
    def test_any_sequence_of_calls_gives_what_a_plain_list_gives(
        self,
        cursor_factory: CursorFactory,
        tmp_path: Path,
        machine_settings: hypothesis.settings,
    ) -> None:
        run: Callable[..., Any] = run_state_machine_as_test
        run(lambda: CursorMachine(cursor_factory, tmp_path), settings=machine_settings)


class TestCursor(CursorConformance):
    """Runs the kit over the cursor that ``--cursor`` names."""
