"""A long list that is dropped does not hold up the loop, and all that it held is given up."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from journal_kit import KB, checkpoint, data_files, killed, opened, pending, write
from numbered import ack, add

from tidegate.spi import AddDestination, RemoveDestination
from tidegate_store_journal import JournalStore

_COUNT = 20_000
_PART = 2000


async def filled(directory: Path) -> JournalStore:
    """A store with a long list, of which each hundredth message is also in a short one."""
    store, _ = await opened(directory, journal_max_file_length=256 * KB)
    await write(store, AddDestination("queue://q", 1), AddDestination("queue://r", 2))
    for begin in range(1, _COUNT + 1, _PART):
        numbers = range(begin, begin + _PART)
        lists = [(1,) if number % 100 else (1, 2) for number in numbers]
        await write(store, *[add(number, *ids) for number, ids in zip(numbers, lists, strict=True)])
    await write(store, ack(3, 5000, 19_999))
    return store


async def until_given_up(store: JournalStore) -> None:
    while store.statistics().pending_messages > _COUNT // 100:
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("saved", [False, True])
async def test_what_a_long_list_held_is_given_up_in_parts(tmp_path: Path, saved: bool) -> None:
    store = await filled(tmp_path)
    if saved:
        await checkpoint(store, cleanup=True)
    files = len(data_files(tmp_path))
    await write(store, RemoveDestination("queue://q", 1))
    assert await pending(store) == []  # at once
    assert store.statistics().pending_messages > _COUNT // 2
    await checkpoint(store, cleanup=True)  # in between
    await until_given_up(store)
    kept = list(range(100, _COUNT + 1, 100))
    assert await pending(store, 2) == kept
    await write(store, ack(*kept, pending_list=2))
    assert store.statistics().pending_messages == store.live_bytes == 0
    await checkpoint(store, cleanup=True)
    await checkpoint(store, cleanup=True)
    assert len(data_files(tmp_path)) < files / 2
    await store.close()


@pytest.mark.parametrize("rebuilt", [False, True])
async def test_a_kill_or_a_close_on_the_way_brings_nothing_back(
    tmp_path: Path, rebuilt: bool
) -> None:
    store = await filled(tmp_path / "0")
    await write(store, RemoveDestination("queue://q", 1))
    await checkpoint(store, cleanup=True)
    killed(tmp_path / "0", tmp_path / "1")
    await store.close()
    for name in ("0", "1"):
        if rebuilt:
            (tmp_path / name / "journal" / "index-store-state").unlink(missing_ok=True)
        store, _ = await opened(tmp_path / name, journal_max_file_length=256 * KB)
        assert await pending(store) == []
        kept = list(range(100, _COUNT + 1, 100))
        assert await pending(store, 2) == kept
        assert store.statistics().pending_messages == len(kept)
        await store.close()
