"""The quick journal: bodies in the journal, references in the database."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from jdbc_kit import ANY_SIZE, QUEUE, pending, sqlite_rows
from journaled_kit import checkpoint, crash, opened, write
from numbered import ack, add

from tidegate_store_journaled import JournaledStore


async def bodies_kept(store: JournaledStore) -> list[int]:
    front = store._front  # pyright: ignore[reportPrivateUsage]
    return [owner async for page in front.body_owners() for _, owner in page]


async def test_the_database_has_sizes_and_no_bodies(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path, use_quick_journal=True)
    await write(store, QUEUE, *[add(n) for n in range(1, 6)])
    await checkpoint(store)
    query = "SELECT body, body_bytes FROM TIDEGATE_MSGS"
    assert sqlite_rows(tmp_path, query) == [(b"", 100)] * 5
    await store.close()
    store, state = await opened(tmp_path, use_quick_journal=True)
    assert state.pending[1].body_bytes == 500
    page = await store.page_in(1, 0, 10, ANY_SIZE)
    assert [stored.message for stored in page] == [add(n).message for n in range(1, 6)]
    await store.close()


async def test_a_body_goes_with_its_message(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path, use_quick_journal=True)
    await write(store, QUEUE, *[add(n) for n in range(1, 6)])
    await checkpoint(store)
    await write(store, add(6), add(7), ack(1, 2, 6))
    await checkpoint(store)
    assert await bodies_kept(store) == [3, 4, 5, 7]
    await store.close()


async def test_the_log_keeps_bodies_until_they_are_released(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path, keep=True, use_quick_journal=True)
    await write(store, QUEUE, *[add(n) for n in range(1, 6)])
    await checkpoint(store)
    await write(store, ack(1, 2, 3))
    page = await store.acknowledged(0, 10, ANY_SIZE)
    assert [row.message for row in page.rows] == [add(n).message for n in (1, 2, 3)]
    await store.release_acknowledged(2)
    await checkpoint(store)
    assert await bodies_kept(store) == [3, 4, 5]
    await store.close()


async def test_bodies_that_a_crash_left_behind_are_swept(tmp_path: Path, monkeypatch: Any) -> None:
    store, _ = await opened(tmp_path, use_quick_journal=True)
    await write(store, QUEUE, *[add(n) for n in range(1, 6)])
    await checkpoint(store)
    await write(store, ack(1, 2))

    async def fails(*_: object) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(store._front, "discard", fails)  # pyright: ignore[reportPrivateUsage]
    try:
        await checkpoint(store)
    except asyncio.CancelledError:
        pass
    await crash(store)
    store, _ = await opened(tmp_path, use_quick_journal=True)
    async with asyncio.timeout(60):
        while await bodies_kept(store) != [3, 4, 5]:
            await asyncio.sleep(0.02)
    assert await pending(store) == [3, 4, 5]
    await store.close()


async def test_the_mode_may_change_between_two_starts(tmp_path: Path) -> None:
    for number, quick in ((1, True), (2, False), (3, True)):
        store, _ = await opened(tmp_path, use_quick_journal=quick)
        await write(store, *([QUEUE] if number == 1 else []), add(number))
        await store.close()
    store, _ = await opened(tmp_path, use_quick_journal=False)
    page = await store.page_in(1, 0, 10, ANY_SIZE)
    assert [stored.message for stored in page] == [add(n).message for n in (1, 2, 3)]
    await write(store, ack(1, 2, 3))
    await checkpoint(store)
    assert await bodies_kept(store) == []
    await store.close()
