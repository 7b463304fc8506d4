"""Fault 18: what a checkpoint synced is damaged when it is not whole, also when nothing follows it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from journal_kit import checkpoint, damage_byte, data_files, killed, opened, pending, write
from numbered import add

from tidegate.spi import AddDestination, CorruptRecordError


def damage_the_last_batch(directory: Path) -> None:
    """One wrong bit in the last byte that was written."""
    path = data_files(directory)[0]
    damage_byte(path, len(path.read_bytes().rstrip(b"\0")) - 1)


async def refuses_and_reports(directory: Path) -> None:
    with pytest.raises(CorruptRecordError, match="damaged"):
        await opened(directory)
    store, state = await opened(directory, damaged_journal_policy="quarantine")
    assert await pending(store) == [1]
    assert state.report.notes
    assert list((directory / "journal").glob("damage-*.report"))
    await store.close()


@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
async def test_the_last_batch_before_a_checkpoint_is_no_torn_tail(
    tmp_path: Path, is_killed: bool
) -> None:
    store, _ = await opened(tmp_path / "store")
    await write(store, AddDestination("queue://q", 1), add(1))
    await checkpoint(store)
    await write(store, add(2))
    await checkpoint(store)  # with nothing to carry
    if is_killed:
        directory = killed(tmp_path / "store", tmp_path / "found")
        await store.close()
    else:
        await store.close()
        directory = tmp_path / "store"
    shutil.rmtree(directory / "journal" / "metadata")
    damage_the_last_batch(directory)
    await refuses_and_reports(directory)


async def test_an_older_checkpoint_does_not_make_it_a_torn_tail(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path / "store")
    await write(store, AddDestination("queue://q", 1), add(1))
    await checkpoint(store)
    older = killed(tmp_path / "store", tmp_path / "older")
    await write(store, add(2))
    await checkpoint(store)
    found = killed(tmp_path / "store", tmp_path / "found")
    await store.close()
    shutil.rmtree(found / "journal" / "metadata")
    shutil.copytree(older / "journal" / "metadata", found / "journal" / "metadata")
    damage_the_last_batch(found)
    await refuses_and_reports(found)


async def test_what_came_behind_the_last_checkpoint_may_be_torn(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path / "store")
    await write(store, AddDestination("queue://q", 1), add(1))
    await checkpoint(store)
    await write(store, add(2))
    found = killed(tmp_path / "store", tmp_path / "found")
    await store.close()
    damage_the_last_batch(found)
    store, state = await opened(found)
    assert await pending(store) == [1]
    assert any("torn tail" in note for note in state.report.notes)
    await store.close()
