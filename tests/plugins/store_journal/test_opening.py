"""Which files of the last run are used again."""

from __future__ import annotations

from pathlib import Path

import pytest
from journal_kit import CrashStorage, ack, add, opened, options, pending, write

from tidegate.spi import AddDestination, RemoveDestination
from tidegate_store_journal.log.datafile import prepare
from tidegate_store_journal.start.opening import usable_pool, usable_spares

STORE_ID = "0" * 32
LENGTH = 65536


def test_spares_of_another_length_are_deleted() -> None:
    storage = CrashStorage()
    files = [prepare(storage, STORE_ID, number, LENGTH * (1 + number % 2)) for number in range(4)]
    assert usable_spares(storage, files, LENGTH) == [files[0], files[2]]
    assert sorted(storage.list()) == [files[0].name, files[2].name]
    assert files[1].handle is None


@pytest.mark.parametrize(("pool_files", "kept"), [(-1, 5), (4, 1), (3, 0), (6, 3)])
def test_the_pool_is_cut_to_its_limit_and_to_files_of_our_length(
    pool_files: int, kept: int
) -> None:
    storage = CrashStorage()
    names: list[str] = []
    for number in range(6):
        file = prepare(storage, STORE_ID, number, LENGTH if number else 2 * LENGTH)
        names.append(file.name.replace("data", "free"))
        storage.rename(file.name, names[-1])
    found = usable_pool(storage, names, options(journal_pool_files=pool_files), 3)
    assert found == names[1 : 1 + kept]
    assert sorted(storage.list()) == found


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
