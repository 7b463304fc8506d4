"""Whose journal it is: what a start refuses because going on would lose confirmed messages."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest
from jdbc_kit import QUEUE, new_store, pending
from journaled_kit import checkpoint, crash, opened, write
from numbered import add

from tidegate.spi import StoreIOError


async def crashed(where: Path) -> None:
    """Message 1 is in the database, message 2 in the journal alone."""
    store, _ = await opened(where)
    await write(store, QUEUE, add(1))
    await checkpoint(store)
    await write(store, add(2))
    await crash(store)


async def test_the_plain_store_refuses_a_database_whose_journal_holds_more(tmp_path: Path) -> None:
    async def scenario() -> None:
        await crashed(tmp_path)
        with pytest.raises(StoreIOError, match=f"journal in .*{tmp_path}.* may hold confirmed"):
            await new_store(tmp_path).open()
        with pytest.raises(StoreIOError, match="may hold confirmed"):
            await new_store(tmp_path).open()
        store, _ = await opened(tmp_path)
        assert await pending(store) == [1, 2]
        await store.close()
        plain = new_store(tmp_path)  # closed properly, the journal holds nothing
        await plain.open()
        assert await pending(plain) == [1, 2]
        await write_plain(plain)
        await plain.close()
        store, _ = await opened(tmp_path)
        assert await pending(store) == [1, 2, 3]
        await store.close()

    async def write_plain(store: object) -> None:
        from tidegate.spi import MessageStore, WriteBatch

        assert isinstance(store, MessageStore)
        await store.write(WriteBatch([add(3)]))

    await scenario()


async def test_another_journal_is_refused_unless_the_messages_are_given_up(tmp_path: Path) -> None:
    await crashed(tmp_path)
    shutil.move(tmp_path / "journaled", tmp_path / "elsewhere")
    with pytest.raises(StoreIOError, match="may hold confirmed messages"):
        await opened(tmp_path)
    store, _ = await opened(tmp_path, journal_lost_policy="ignore")
    assert await pending(store) == [1]
    await write(store, add(3))
    await store.close()
    # And that journal is not quietly merged into what became of the database meanwhile.
    with pytest.raises(StoreIOError, match="holds 1 batches"):
        await opened(tmp_path, journal_directory="elsewhere")
    store, _ = await opened(tmp_path)
    assert await pending(store) == [1, 3]
    await store.close()


async def test_an_older_copy_of_the_database_is_noticed(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    await write(store, QUEUE, add(1))
    await checkpoint(store)
    source = sqlite3.connect(tmp_path / "tidegate.db")
    copy = sqlite3.connect(tmp_path / "copy.db")
    source.backup(copy)
    copy.execute("UPDATE TIDEGATE_LOCK SET expires_at = 0")
    copy.commit()
    source.close()
    copy.close()
    await write(store, add(2))
    await checkpoint(store)
    await write(store, add(3))
    await crash(store)
    for file in tmp_path.glob("tidegate.db*"):
        file.unlink()
    (tmp_path / "copy.db").rename(tmp_path / "tidegate.db")
    with pytest.raises(StoreIOError, match="older copy of the database"):
        await opened(tmp_path)


async def test_a_replay_says_what_it_did(tmp_path: Path) -> None:
    await crashed(tmp_path)
    store, state = await opened(tmp_path)
    assert (state.report.clean, state.report.counts["replayed"]) == (False, 1)
    assert state.last_sequence == 2
    await store.close()
    store, state = await opened(tmp_path)
    assert (state.report.clean, state.report.counts["replayed"]) == (True, 0)
    await store.close()
