"""``index-store-state``: removing it asks for a rebuild; after a clean stop it seals the metadata."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from journal_kit import checkpoint, killed, opened, pending, write
from numbered import ack, add

from tidegate_store_journal.checkpoint.marker import (
    MARKER_NAME,
    seal_marker,
    take_marker,
)
from tidegate_store_journal.checkpoint.metadata import MetadataError
from tidegate_store_journal.log.storage import DirectoryStorage


async def test_removing_the_marker_makes_the_next_start_rebuild(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    await write(store, add(1), add(2))
    await store.close()
    (tmp_path / "journal" / MARKER_NAME).unlink()
    store, state = await opened(tmp_path)
    assert [MARKER_NAME in note for note in state.report.notes] == [True]
    assert not state.report.clean
    assert await pending(store) == [1, 2]
    await store.close()
    store, state = await opened(tmp_path)
    assert state.report.notes == ()
    assert state.report.clean
    await store.close()


async def test_a_metadata_store_that_changed_since_the_clean_stop_is_rebuilt(
    tmp_path: Path,
) -> None:
    store, _ = await opened(tmp_path)
    await write(store, add(1), add(2))
    await store.close()
    path = tmp_path / "journal" / "metadata" / "data.mdb"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1  # LMDB itself would never look there
    path.write_bytes(data)
    store, state = await opened(tmp_path, archive_corrupted_index=True)
    assert "not what it was when the gateway stopped" in state.report.notes[0]
    kept = tmp_path / "journal" / "metadata.corrupt-1"
    assert str(kept) in state.report.notes[1]
    assert (kept / "data.mdb").read_bytes() == data
    assert await pending(store) == [1, 2]
    await store.close()


async def test_after_a_kill_there_is_no_seal_and_nothing_is_rebuilt(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path / "a")
    await write(store, add(1))
    copy = killed(tmp_path / "a", tmp_path / "b")
    await store.close()
    assert "sealed" not in (copy / "journal" / MARKER_NAME).read_text()
    assert "sealed" in (tmp_path / "a" / "journal" / MARKER_NAME).read_text()
    store, state = await opened(copy)
    assert state.report.notes == ()
    assert await pending(store) == [1]
    await store.close()


def test_a_seal_is_broken_by_any_change_of_the_marker_itself(tmp_path: Path) -> None:
    storage = DirectoryStorage(tmp_path)
    metadata = tmp_path / "metadata"
    metadata.mkdir()
    (metadata / "data.mdb").write_bytes(b"pages")
    assert not take_marker(storage, metadata)  # there is none although there are pages
    assert take_marker(storage, metadata)
    seal_marker(storage, metadata)
    sealed = (tmp_path / MARKER_NAME).read_bytes()
    assert take_marker(storage, metadata)
    for offset in range(len(sealed)):
        changed = bytearray(sealed)
        changed[offset] ^= 1
        (tmp_path / MARKER_NAME).write_bytes(changed)
        with pytest.raises(MetadataError):
            take_marker(storage, metadata)


def test_a_seal_is_for_one_start_and_every_wrong_bit_in_it_is_noticed(tmp_path: Path) -> None:
    storage = DirectoryStorage(tmp_path)
    metadata = tmp_path / "metadata"
    metadata.mkdir()
    (metadata / "data.mdb").write_bytes(b"pages")
    assert not take_marker(storage, metadata)
    assert take_marker(storage, metadata)  # after a kill
    seal_marker(storage, metadata)
    written = (tmp_path / MARKER_NAME).read_bytes()
    assert b"sealed" in written
    assert take_marker(storage, metadata)
    assert b"sealed" not in (tmp_path / MARKER_NAME).read_bytes()
    for offset in range(len(written)):
        changed = bytearray(written)
        changed[offset] ^= 1
        (tmp_path / MARKER_NAME).write_bytes(changed)
        with pytest.raises(MetadataError):
            take_marker(storage, metadata)


async def test_a_checkpoint_older_than_the_last_clean_up_is_told_and_rebuilt(
    tmp_path: Path,
) -> None:
    """Somebody puts a copy of ``metadata/`` back, or LMDB falls back to its older meta page."""
    store, _ = await opened(tmp_path / "a")
    await write(store, *[add(sequence, size=20_000) for sequence in range(1, 8)])
    await checkpoint(store)
    shutil.copytree(tmp_path / "a" / "journal" / "metadata", tmp_path / "old")
    await write(store, *[add(sequence, size=20_000) for sequence in range(8, 15)])
    await write(store, ack(*range(1, 14)))
    assert await checkpoint(store, cleanup=True) > 0
    copy = killed(tmp_path / "a", tmp_path / "b")
    await store.close()
    shutil.rmtree(copy / "journal" / "metadata")
    shutil.copytree(tmp_path / "old", copy / "journal" / "metadata")
    store, state = await opened(copy)
    assert ["older than the last clean-up" in note for note in state.report.notes] == [True]
    assert await pending(store) == [14]
    again = killed(copy, tmp_path / "c")
    await store.close()
    store, state = await opened(again)
    assert state.report.notes == ()  # what was rebuilt is trusted
    assert await pending(store) == [14]
    await store.close()
