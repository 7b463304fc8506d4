"""A rebuild with a data file missing in the middle: only a carry can say that nothing of it counts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from journal_kit import checkpoint, data_files, killed, opened, pending, write
from numbered import ack, add

from tidegate.spi import CorruptRecordError, PutSession, Session
from tidegate_store_journal import JournalStore

PUT_SESSION = PutSession(Session("client", 7))


async def three_files(store: JournalStore) -> None:
    """A message stays in the first one; the second has a session beside a message that goes."""
    await write(store, add(1, size=40_000))
    await write(store, add(2, size=40_000), PUT_SESSION)
    await write(store, add(3, size=40_000), ack(2))


async def test_what_a_lost_bindings_journal_said_is_not_dropped_without_a_word(
    tmp_path: Path,
) -> None:
    """The middle file was put away behind a carry; both homes of what was in it are gone then."""
    store, _ = await opened(tmp_path / "original")
    await three_files(store)
    assert await checkpoint(store, cleanup=True) == 1
    await store.close()
    shutil.rmtree(tmp_path / "original" / "journal" / "metadata")
    sound = shutil.copytree(tmp_path / "original", tmp_path / "sound")
    store, state = await opened(sound)
    assert state.sessions == [PUT_SESSION.session]
    assert await pending(store) == [1, 3]
    await store.close()
    for path in (tmp_path / "original" / "journal").glob("bindings-*"):
        path.unlink()
    with pytest.raises(CorruptRecordError, match="sessions or retained messages are lost"):
        await opened(tmp_path / "original")
    store, state = await opened(tmp_path / "original", damaged_journal_policy="quarantine")
    assert any("sessions or retained messages are lost" in note for note in state.report.notes)
    assert await pending(store) == [1, 3]
    await store.close()


async def test_a_file_that_no_carry_speaks_of_is_missed(tmp_path: Path) -> None:
    """Nobody put it away: messages and sessions were in it that nothing else has."""
    store, _ = await opened(tmp_path / "original")
    await three_files(store)
    found = killed(tmp_path / "original", tmp_path / "found")
    await store.close()
    shutil.rmtree(found / "journal" / "metadata")
    data_files(found)[1].unlink()
    with pytest.raises(CorruptRecordError, match="data files are missing"):
        await opened(found)
    store, state = await opened(found, ignore_missing_journalfiles=True)
    assert any("data files are missing" in note for note in state.report.notes)
    assert await pending(store) == [1, 3]
    await store.close()
