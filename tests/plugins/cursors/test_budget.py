"""Many store cursors stay within one limit, and lose nothing and repeat nothing by it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis.stateful import run_state_machine_as_test

from tidegate.spi import (
    MESSAGE_OVERHEAD_BYTES,
    CursorContext,
    CursorFactory,
    CursorMemory,
    PendingCursor,
)
from tidegate.testing._cursor_machine import CURSOR_MACHINE_SETTINGS, CursorMachine
from tidegate.testing.cursor_kit import ANY_SIZE, CursorBox, CursorConformance, messages_of
from tidegate_cursors import FileCursorFactory, StoreCursorFactory, VmCursorFactory, _budget
from tidegate_cursors._budget import MemoryBudget, Share
from tidegate_cursors._ordered_memory import OrderedMemory


class Sharing:
    """Makes store cursors that may hold a few messages together."""

    needs_store = True
    spools = False

    def __init__(self, shared_bytes: int) -> None:
        self._factory = StoreCursorFactory()
        self._shared_bytes = shared_bytes

    def create(self, context: CursorContext) -> PendingCursor:
        context.shared_memory.limit_bytes = context.shared_memory.limit_bytes or self._shared_bytes
        return self._factory.create(context)


class Crowded:
    """Makes cursors while others hold far more than is allowed."""

    needs_store = False

    def __init__(self, factory: CursorFactory) -> None:
        self._factory = factory
        self.spools = factory.spools
        self._memory = CursorMemory(100_000)
        self._memory.used = 1 << 30

    def create(self, context: CursorContext) -> PendingCursor:
        return self._factory.create(replace(context, shared_memory=self._memory))


@pytest.fixture(autouse=True)
def small_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_budget, "FLOOR_BYTES", 2000)


class LettingGoMachine(CursorMachine):
    """Always more than the shared memory of 3000 bytes allows, so that it lets go all the time."""

    memory_limits = (20_000, 1 << 30)


class TestStoreCursorThatHasToLetGo(CursorConformance):
    """The contract holds when memory is taken away."""

    @pytest.fixture
    def cursor_factory(self) -> CursorFactory:
        return Sharing(20_000)

    def test_it_loses_repeats_and_reorders_nothing(self, tmp_path: Path) -> None:
        run: Callable[..., Any] = run_state_machine_as_test
        run(lambda: LettingGoMachine(Sharing(3000), tmp_path), settings=CURSOR_MACHINE_SETTINGS)


class TestFileCursorAmongOthers:
    async def test_it_spools_what_is_more_than_its_part_and_keeps_all(self, tmp_path: Path) -> None:
        box = CursorBox(Crowded(FileCursorFactory()), tmp_path)
        for stored in (True, False):
            cursor = box.make(memory_limit_bytes=1 << 30, stored=stored)
            box.offer(cursor, messages_of(1, 200, size=1000))
            await box.settle(cursor, 4_999)
            assert await box.drain(cursor, 7) == list(range(1, 201))
            await cursor.close()


class TestVmCursorAmongOthers:
    async def test_its_producers_wait_when_it_has_more_than_its_part(self, tmp_path: Path) -> None:
        box = CursorBox(Crowded(VmCursorFactory()), tmp_path)
        cursor = box.make(memory_limit_bytes=1 << 30)
        box.offer(cursor, messages_of(1, 1, size=500))
        assert not cursor.is_full
        box.offer(cursor, messages_of(2, 4, size=500))
        assert cursor.is_full
        assert await box.drain(cursor) == [1, 2, 3, 4]
        assert not cursor.is_full
        await cursor.close()


class Lists:
    """Lists of one gateway, each with its cursor."""

    def __init__(self, directory: Path, count: int, shared_bytes: int) -> None:
        factory = Sharing(shared_bytes)
        self.boxes = [CursorBox(factory, directory) for _ in range(count)]
        for box in self.boxes:
            box.shared = self.boxes[0].shared
        self.cursors = [box.make(memory_limit_bytes=1 << 20) for box in self.boxes]

    def offer(self, number: int, first: int, last: int) -> None:
        self.boxes[number].offer(
            self.cursors[number], messages_of(first, last, size=1000 - MESSAGE_OVERHEAD_BYTES)
        )

    @property
    def used(self) -> int:
        return sum(cursor.memory_bytes for cursor in self.cursors)


class TestPages:
    async def test_pages_that_are_read_at_the_same_time_stay_within_it(
        self, tmp_path: Path
    ) -> None:
        factory = Sharing(50_000)
        boxes = [CursorBox(factory, tmp_path) for _ in range(20)]
        cursors: list[PendingCursor] = []
        for box in boxes:
            box.shared = boxes[0].shared
            backlog = messages_of(1, 100, size=1000 - MESSAGE_OVERHEAD_BYTES)
            cursors.append(box.make(recovered=backlog, memory_limit_bytes=1 << 20, page_count=1000))
        await asyncio.gather(*[cursor.page_in() for cursor in cursors])
        assert 0 < boxes[0].shared.used < 60_000
        for box, cursor in zip(boxes, cursors, strict=True):
            assert await box.drain(cursor) == list(range(1, 101))
            await cursor.close()
        assert boxes[0].shared.used == 0


class TestLists:
    async def test_all_lists_together_stay_at_the_limit_and_every_message_comes(
        self, tmp_path: Path
    ) -> None:
        lists = Lists(tmp_path, 5, 50_000)
        for first in range(1, 200, 20):
            for number in range(5):
                lists.offer(number, first, first + 19)
                assert lists.used <= 50_000
        for box, cursor in zip(lists.boxes, lists.cursors, strict=True):
            assert cursor.size == 200
            assert await box.drain(cursor, 7) == list(range(1, 201))
        assert lists.used == 0

    async def test_however_many_lists_there_are_the_limit_holds(self, tmp_path: Path) -> None:
        lists = Lists(tmp_path, 40, 50_000)  # 40 floors are 80,000 bytes
        for first in (1, 11, 21):
            for number in range(40):
                lists.offer(number, first, first + 9)
        assert lists.used <= 50_000
        for box, cursor in zip(lists.boxes, lists.cursors, strict=True):
            assert await box.drain(cursor, 7) == list(range(1, 31))

    async def test_who_takes_nothing_lets_go_first(self, tmp_path: Path) -> None:
        idle, busy = 0, 1
        lists = Lists(tmp_path, 2, 50_000)
        lists.offer(idle, 1, 45)
        for first in range(1, 400, 10):
            lists.offer(busy, first, first + 9)
            assert len(lists.cursors[busy].take(10, ANY_SIZE)) == 10, "fed from memory"
        assert lists.boxes[busy].store.pages == []
        lists.offer(busy, 401, 440)
        assert lists.cursors[idle].memory_bytes <= 2000
        assert lists.cursors[busy].memory_bytes == 40_000

    async def test_who_lets_go_tells_that_it_holds_less(self, tmp_path: Path) -> None:
        lists, told = Lists(tmp_path, 2, 50_000), [0, 0]
        for number, cursor in enumerate(lists.cursors):
            cursor.feed.on_change = partial(_count, told, number)
        lists.offer(0, 1, 45)
        assert told == [0, 0], "the broker knows whom it has called"
        lists.offer(1, 1, 10)
        assert lists.cursors[0].memory_bytes < 45_000
        assert told == [1, 0]
        for cursor in lists.cursors:
            await cursor.close()
        assert told == [1, 0]

    async def test_what_is_in_flight_is_not_read_again(self, tmp_path: Path) -> None:
        lists = Lists(tmp_path, 2, 50_000)
        lists.offer(0, 1, 40)
        out = lists.cursors[0].take(15, ANY_SIZE)
        claimed = lists.cursors[0].claim([20])
        assert list(claimed) == [20]
        lists.offer(1, 1, 5)
        lists.cursors[1].take(1, ANY_SIZE)
        lists.offer(1, 6, 45)
        assert lists.cursors[0].memory_bytes < 10_000
        assert await lists.boxes[0].drain(lists.cursors[0]) == [*range(16, 20), *range(21, 41)]
        lists.cursors[0].put_back(out[:2])
        assert [item.sequence for item in lists.cursors[0].take(9, ANY_SIZE)] == [1, 2]

    async def test_a_closed_list_gives_back_what_it_held(self, tmp_path: Path) -> None:
        lists = Lists(tmp_path, 2, 50_000)
        lists.offer(0, 1, 40)
        await lists.cursors[0].close()
        lists.offer(1, 1, 45)
        assert lists.cursors[1].memory_bytes == 45_000


def _count(told: list[int], number: int) -> None:
    told[number] += 1


def test_when_nobody_can_let_go_it_is_not_tried_with_each_message(tmp_path: Path) -> None:
    class Stubborn:
        taken_at = 0
        asked = 0

        def let_go(self, floor_bytes: int) -> None:
            self.asked += 1

    budget, holder = MemoryBudget(CursorMemory(16_000)), Stubborn()
    budget.join(holder)
    for used in range(15_000, 20_001):
        budget.memory.used = used
        budget.make_room(holder)
    assert holder.asked == 4
    shares = [_share(9000, tmp_path, shared_memory=one) for one in (budget.memory, CursorMemory())]
    assert [share.allowed for share in shares] == [2000, 9000]


def _share(memory_bytes: int, directory: Path, **limits: Any) -> Share:
    context = CursorContext(
        destination="queue://q",
        read_page=None,
        recovered_count=0,
        memory_limit_bytes=memory_bytes,
        page_count=50,
        temporary_directory=directory,
        temporary_limit_bytes=0,
    )
    return Share(replace(context, **limits), None)


def test_a_page_is_as_large_as_the_room_and_never_empty(tmp_path: Path) -> None:
    memory = OrderedMemory()
    for room in (1, 5_000, 100_000, 10_000_000):
        share = _share(room, tmp_path)
        limit, bytes_max = share.page_bounds(memory)
        assert 1 <= limit <= 50
        assert bytes_max >= 1
        if room >= 2 * MESSAGE_OVERHEAD_BYTES:
            assert limit * MESSAGE_OVERHEAD_BYTES + bytes_max <= room
    assert share.page_bounds(memory)[0] == 50
    assert _share(1 << 30, tmp_path, page_bytes=7_000).page_bounds(memory) == (50, 7_000)
    memory.append(messages_of(1, 20))
    counted = _share(1 << 30, tmp_path, memory_limit_messages=30)
    assert counted.page_bounds(memory)[0] == 10
    assert counted.has_room(memory)
    memory.append(messages_of(21, 31))
    assert (counted.has_room(memory), counted.is_above(memory)) == (False, True)
    assert counted.page_bounds(memory)[0] == 1


def test_whoever_waits_is_told_once_when_all_hold_less(tmp_path: Path) -> None:
    told: list[str] = []
    memory = CursorMemory(160_000)
    limits: dict[str, Any] = {"shared_memory": memory}
    high = _share(1 << 30, tmp_path, has_room=lambda: told.append("high"), **limits)
    low = _share(
        1 << 30,
        tmp_path,
        has_room=lambda: told.append("low"),
        memory_high_water_percent=50,
        **limits,
    )
    high.wait()
    low.wait()
    memory.add(100_000)
    assert (high.allowed, low.allowed) == (1 << 30, 2000)
    memory.add(100_000)
    assert (high.allowed, low.allowed) == (2000, 2000)
    high.wait()
    low.wait()
    low.wait()
    memory.add(-45_000)
    assert told == [], "not at once: they would be full again with the next message"
    memory.add(-10_000)
    assert told == ["high"]
    memory.add(-100_000)
    assert told == ["high", "low"]
    memory.add(150_000)
    low.wait()
    low.end()
    memory.add(-150_000)
    assert told == ["high", "low"]
