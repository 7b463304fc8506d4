"""The list that cursors are tested against answers as a store would."""

import asyncio

import pytest

from tidegate.spi import StoreIOError
from tidegate.testing._cursor_machine import ListStore, message_of


async def read(store: ListStore, after: int, limit: int, bytes_max: int) -> list[int]:
    page = await store.read_page(after, limit, bytes_max)
    return [stored.sequence for stored in page]


async def test_pages_end_at_their_limits() -> None:
    store = ListStore()
    store.add([message_of(sequence, bytes(100)) for sequence in (9, 2, 5)])
    assert await read(store, 0, 2, 1_000) == [2, 5]
    assert await read(store, 2, 9, 1_000) == [5, 9]
    assert await read(store, 0, 9, 199) == [2]
    assert await read(store, 0, 9, 1) == [2]
    assert await read(store, 9, 9, 1) == []
    assert store.pages[0] == (0, 2, 1_000)


async def test_a_page_fails_once() -> None:
    store = ListStore()
    store.error = StoreIOError("once")
    with pytest.raises(StoreIOError):
        await read(store, 0, 1, 1)
    assert await read(store, 0, 1, 1) == []


@pytest.mark.parametrize(("before", "expected"), [(True, [1, 2]), (False, [1])])
async def test_a_gate_holds_a_page_before_or_after_it_is_read(
    before: bool, expected: list[int]
) -> None:
    async def scenario() -> list[int]:
        store = ListStore()
        store.gate, store.gate_before = asyncio.Event(), before
        store.add([message_of(1)])
        task = asyncio.create_task(store.read_page(0, 10, 1_000))
        await asyncio.sleep(0)
        assert not task.done()
        store.add([message_of(2)])
        store.gate.set()
        return [stored.sequence for stored in await task]

    assert await scenario() == expected
