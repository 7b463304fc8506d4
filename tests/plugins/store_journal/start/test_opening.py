"""Which files of the last run are used again."""

from __future__ import annotations

from pathlib import Path

import pytest
from journal_kit import KB, opened, pending, write
from numbered import ack, add

from tidegate.spi import AddDestination, RemoveDestination

NEVER = {"journal_compact_min_files": 0}


def names_of(where: Path, ending: str) -> list[str]:
    return sorted(path.name for path in (where / "journal").glob(f"journal-*.{ending}"))


async def with_dead_files(where: Path) -> None:
    """One used file, spares, and several dead ones."""
    store, _ = await opened(where, **NEVER)
    for sequence in range(1, 17):
        await write(store, add(sequence, size=20_000))
    await write(store, ack(*range(1, 17)))
    await store.close()


async def test_spares_and_dead_files_of_another_length_are_deleted(tmp_path: Path) -> None:
    await with_dead_files(tmp_path)
    before = {*names_of(tmp_path, "free"), *names_of(tmp_path, "data")[-1:]}
    assert len(before) > 3
    store, _ = await opened(tmp_path, journal_max_file_length=128 * KB, **NEVER)
    for path in (tmp_path / "journal").glob("journal-*"):
        if path.name in before:
            assert path.stat().st_size == 128 * KB, path.name
    await store.close()


@pytest.mark.parametrize("pool_files", [-1, 0, 4])
async def test_dead_files_are_kept_up_to_the_limit(tmp_path: Path, pool_files: int) -> None:
    await with_dead_files(tmp_path)
    there = len(names_of(tmp_path, "free")) + len(names_of(tmp_path, "data"))
    assert there > 5
    store, _ = await opened(tmp_path, journal_pool_files=pool_files, **NEVER)
    dead, others = len(names_of(tmp_path, "free")), len(names_of(tmp_path, "data"))
    if pool_files < 0:
        assert dead + others == there
    else:
        assert dead == max(0, pool_files - others)
    await store.close()


async def test_the_broker_is_told_the_highest_list_that_was_ever_used(tmp_path: Path) -> None:
    store, state = await opened(tmp_path)
    assert (state.last_sequence, state.last_pending_list) == (0, 0)
    await write(store, AddDestination("queue://a", 3), AddDestination("queue://b", 4))
    await write(store, add(7, 3), add(8, 4))
    await write(store, ack(8, pending_list=4), RemoveDestination("queue://b", 4))
    await store.close()
    store, again = await opened(tmp_path)
    assert again.store_id == state.store_id
    assert again.last_sequence == 8
    assert again.last_pending_list == 4
    assert [item.destination for item in again.destinations] == ["queue://a"]
    assert {key: count.messages for key, count in again.pending.items()} == {3: 1}
    assert await pending(store, 3) == [7]
    await store.close()
