"""A large batch is encoded and taken into the index in slices, and is whole for whoever must find it so."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from journal_kit import (
    ANY_SIZE,
    CrashStorage,
    checkpoint,
    in_single_steps,
    killed,
    opened,
    pending,
    write,
    write_only,
)
from numbered import ack, add
from power_cuts import live_and_crash, policy_of, sparse_load

from tidegate.spi import RemoveSubscription, StoreIOError
from tidegate_store_journal import JournalStore
from tidegate_store_journal.index.index import Index
from tidegate_store_journal.write import encode

LISTS = tuple(range(1, 21))


@pytest.fixture(autouse=True)
def step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    in_single_steps(monkeypatch)


def index_of(store: JournalStore) -> Index:
    return store._index  # pyright: ignore[reportPrivateUsage]


def sizes(store: JournalStore) -> list[int]:
    found = index_of(store).lists
    return [len(found[one]) if one in found else 0 for one in LISTS]


async def test_one_list_a_turn_of_the_loop_gets_what_many_get(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    task = asyncio.create_task(write(store, *[add(number, *LISTS) for number in range(1, 6)]))
    before = sizes(store)
    partly = 0
    while not task.done():
        await asyncio.sleep(0)
        after = sizes(store)
        assert sum(now != then for now, then in zip(after, before, strict=True)) <= 1
        partly += 0 < sum(map(bool, after)) < len(LISTS)
        before = after
    assert partly >= len(LISTS) - 1
    assert before == [5] * len(LISTS)
    await store.close()


async def test_one_message_a_turn_of_the_loop_is_encoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = await opened(tmp_path)
    count, to_bytes = 0, encode.encode

    def counted(value: Any) -> bytes:
        nonlocal count
        count += 1
        return to_bytes(value)

    monkeypatch.setattr(encode, "encode", counted)
    task = asyncio.create_task(write(store, *[add(number) for number in range(1, 31)]))
    before = 0
    while not task.done():
        await asyncio.sleep(0)
        assert count - before <= 1
        before = count
    assert count == 30
    assert await pending(store) == list(range(1, 31))
    await store.close()


async def test_a_long_list_gets_its_messages_part_by_part(tmp_path: Path) -> None:
    """And whoever reads it meanwhile finds the first ones, in order."""
    store, _ = await opened(tmp_path)
    task = asyncio.create_task(write(store, *[add(number) for number in range(1, 11)]))
    while (count := sizes(store)[0]) < 4:
        await asyncio.sleep(0)
    page = await store.page_in(1, 0, count, ANY_SIZE)
    assert [item.sequence for item in page] == [1, 2, 3, 4]
    await task
    assert await pending(store) == list(range(1, 11))
    await store.close()


@pytest.mark.parametrize("has_begun", [False, True])
async def test_a_checkpoint_amid_it_is_as_of_one_batch(tmp_path: Path, has_begun: bool) -> None:
    """A kill right behind it: what it did not take is replayed, and nothing else."""
    store, _ = await opened(tmp_path / "first")
    await write(store, add(1, *LISTS))
    before = None
    if has_begun:  # one that goes through the lists when the batch comes
        before = asyncio.create_task(checkpoint(store))
        await asyncio.sleep(0)
    task = asyncio.create_task(
        write(store, add(2, *LISTS), *[ack(1, pending_list=one) for one in LISTS[5:]])
    )
    while not (sizes(store)[0] == 2 and sizes(store)[-1] == 1):
        await asyncio.sleep(0)
    await checkpoint(store, cleanup=True)
    if before is not None:
        await before
    await task
    after = killed(tmp_path / "first", tmp_path / "second")
    await store.close()
    store, _ = await opened(after)
    for one in LISTS:
        assert await pending(store, one) == ([1, 2] if one in LISTS[:5] else [2])
    await store.close()


async def test_rows_that_are_read_amid_it_are_on_disk(tmp_path: Path) -> None:
    storage = CrashStorage()
    store, _ = await opened(tmp_path, storage, keep=True)
    await write(store, add(1, *LISTS))
    task = asyncio.create_task(write_only(store, *[ack(1, pending_list=one) for one in LISTS]))
    while not (rows := store.log_statistics().last):
        await asyncio.sleep(0)
    assert rows < len(LISTS)
    page = await store.acknowledged(0, 100, ANY_SIZE)
    after = storage.crash()
    await task
    await store.close()
    store, _ = await opened(tmp_path, after, keep=True)
    assert store.log_statistics().last >= len(page.rows) > 0
    await store.close()


async def test_the_next_batch_waits_for_its_end(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    tasks = [
        asyncio.create_task(write(store, add(number, *LISTS), ack(number, pending_list=1)))
        for number in range(1, 6)
    ]
    await asyncio.gather(*tasks)
    assert await pending(store) == []
    for one in LISTS[1:]:
        assert await pending(store, one) == [1, 2, 3, 4, 5]
    await store.close()


async def test_a_mistake_amid_it_ends_the_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = await opened(tmp_path)
    await write(store, add(1, *LISTS))

    def wrong(*_: object) -> None:
        raise LookupError("a bug")

    apply_one = index_of(store)._apply_one  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setitem(apply_one, RemoveSubscription, wrong)
    with pytest.raises(StoreIOError, match="a bug"):
        await write(store, add(2, *LISTS), RemoveSubscription(2))
    with pytest.raises(StoreIOError, match="read-only"):
        await write(store, add(3))
    await store.close()


@pytest.mark.parametrize("seed", range(16))
async def test_after_a_power_cut_the_store_is_in_a_state_that_it_went_through(
    tmp_path: Path, seed: int
) -> None:
    assert await live_and_crash(tmp_path, seed) == ""


@pytest.mark.parametrize("seed", range(8))
async def test_and_amid_compaction(tmp_path: Path, seed: int) -> None:
    changes = {"metadata": seed % 3 == 0, **policy_of(seed)}
    assert await live_and_crash(tmp_path, seed, sparse_load, 150, **changes) == ""
