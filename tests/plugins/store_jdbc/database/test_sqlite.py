"""SQLite: every statement finds its rows by an index, files, errors, power cuts of written batches."""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
import stat
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from jdbc_kit import QUEUE, WHOLE_TABLES, filled, opened, pending, sample_rows, sqlite_rows, write
from numbered import ack, add

from tidegate.spi import CorruptRecordError, StoreContext, StoreFullError, StoreIOError
from tidegate_store_jdbc import STATEMENTS, DatabaseError, JdbcOptions, JdbcStore, Step
from tidegate_store_jdbc.database import sqlite
from tidegate_store_jdbc.database.sqlite import CHUNKS, DIALECT, SqliteAdapter

#: Our tables, by name or by the aliases that the statements give them.
SCAN = re.compile(r"SCAN (TIDEGATE_\w+|[almnt])\b")


def adapter(store: JdbcStore) -> SqliteAdapter:
    found = store._adapter  # pyright: ignore[reportPrivateUsage]
    assert isinstance(found, SqliteAdapter)
    return found


@pytest.mark.parametrize("count", [1, 16, 300])
async def test_every_statement_finds_its_rows_by_an_index(tmp_path: Path, count: int) -> None:
    store, _ = await opened(tmp_path, keep=True)
    for statement in sorted(STATEMENTS.keys() - WHOLE_TABLES):
        plan = await adapter(store).explain(statement, sample_rows(statement, count) or [()])
        assert not SCAN.search(plan) or "MAX(" in DIALECT.statements[statement], (
            f"{statement}:\n{plan}"
        )
    await store.close()


@pytest.mark.parametrize(
    ("statement", "dropped"),
    [
        ("remove_message_statement", "TIDEGATE_ACKS_SEQ"),
        ("delete_old_messages_statement", "TIDEGATE_ACKLOG_SEQ"),
    ],
)
async def test_the_check_notices_a_missing_index(
    tmp_path: Path, statement: str, dropped: str
) -> None:
    store, _ = await opened(tmp_path, keep=True)
    await adapter(store).create([("test", f"DROP INDEX {dropped}")])
    plan = await adapter(store).explain(statement, sample_rows(statement, 16))
    assert SCAN.search(plan)
    await store.close()


async def test_the_file_is_made_for_its_owner_only(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path, url="sqlite:///deep/down/store.db")
    await write(store, QUEUE, add(1))
    for name in ("store.db", "store.db-wal"):
        mode = (tmp_path / "deep/down" / name).stat().st_mode
        assert stat.S_IMODE(mode) == 0o600
    await store.close()


async def test_a_synced_batch_is_committed_with_full_synchronisation(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    levels: list[int] = []
    writer = adapter(store)._writer  # pyright: ignore[reportPrivateUsage]

    async def level() -> None:
        rows = await writer.run(lambda c: c.execute("PRAGMA synchronous").fetchall())
        levels.append(rows[0][0])

    await write(store, QUEUE, add(1))
    await level()
    await write(store, add(2), synced=False)
    await level()
    await write(store, add(3))
    await level()
    assert levels == [2, 1, 2]  # FULL, NORMAL, FULL
    rows = await writer.run(lambda c: c.execute("PRAGMA journal_mode").fetchall())
    assert rows == [("wal",)]
    await store.close()


async def test_an_empty_synced_batch_syncs_what_was_only_written(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    await write(store, QUEUE, add(1), synced=False)
    batch = "SELECT batch FROM TIDEGATE_LOCK"
    before = sqlite_rows(tmp_path, batch)
    await write(store)
    assert sqlite_rows(tmp_path, batch)[0][0] == before[0][0] + 1
    await write(store)  # nothing is left to sync
    assert sqlite_rows(tmp_path, batch)[0][0] == before[0][0] + 1
    await store.close()


async def test_rows_go_out_in_few_statements_whatever_their_number(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    await write(store, QUEUE)
    seen: list[str] = []
    writer = adapter(store)._writer  # pyright: ignore[reportPrivateUsage]
    await writer.run(lambda c: c.set_trace_callback(seen.append))
    await write(store, *[add(n) for n in range(1, 1 + sum(CHUNKS))])
    await writer.run(lambda c: c.set_trace_callback(None))
    inserts = [text for text in seen if text.startswith("INSERT INTO TIDEGATE_MSGS")]
    assert len(inserts) == len(CHUNKS)
    assert len(await pending(store)) == sum(CHUNKS)
    await store.close()


async def test_a_full_database_refuses_the_batch_and_stays_usable(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    await write(store, QUEUE, *[add(n, size=1000) for n in range(1, 101)])
    writer = adapter(store)._writer  # pyright: ignore[reportPrivateUsage]
    pages = (await writer.run(lambda c: c.execute("PRAGMA page_count").fetchall()))[0][0]
    await writer.run(lambda c: c.execute(f"PRAGMA max_page_count = {pages}").fetchall())
    with pytest.raises(StoreFullError, match="no room"):
        await write(store, add(101, size=1_000_000))
    assert store.statistics().writable
    await write(store, ack(*range(1, 101)))
    await write(store, add(102))
    assert await pending(store) == [102]
    assert store.statistics().pending_messages == 1
    await store.close()


async def test_a_file_that_is_no_database_is_reported_as_damaged(tmp_path: Path) -> None:
    (tmp_path / "tidegate.db").write_bytes(b"not a database at all " * 1000)
    with pytest.raises(CorruptRecordError) as caught:
        await opened(tmp_path)
    assert caught.value.location == "sqlite:///tidegate.db"


@pytest.mark.parametrize(
    ("blocks", "said"), [(0, "there is no room on its disk"), (1, "I/O error$")]
)
async def test_no_room_for_what_lies_beside_the_database_is_told_from_a_broken_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocks: int, said: str
) -> None:
    def fails(*_: object, **__: object) -> None:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR_SHMSIZE
        raise error

    monkeypatch.setattr(sqlite, "_set_up", fails)
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=blocks))
    with pytest.raises(StoreIOError if blocks else StoreFullError, match=said):
        await opened(tmp_path)


async def test_one_that_is_cancelled_while_it_is_opened_leaves_no_thread_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would tell a loop that is closed by then how it went, with a trace at the end of the log."""
    set_up, is_there, may_go_on = sqlite._set_up, threading.Event(), threading.Event()

    def waits(connection: sqlite3.Connection, *, is_first: bool) -> None:
        is_there.set()
        may_go_on.wait(60)
        set_up(connection, is_first=is_first)

    monkeypatch.setattr(sqlite, "_set_up", waits)
    made = adapter(JdbcStore(StoreContext(tmp_path, "here"), JdbcOptions()))
    connecting = asyncio.create_task(made.connect())
    assert await asyncio.to_thread(is_there.wait, 60)
    connecting.cancel()
    for _ in range(10):
        await asyncio.sleep(0)
    assert not connecting.done()  # its thread has not ended
    may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await connecting
    assert not [each for each in threading.enumerate() if "_connection_worker" in each.name]


async def test_a_directory_that_cannot_be_made_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreIOError, match=r"file/x\.db"):
        await opened(tmp_path, url="sqlite:///file/x.db")


async def test_a_transaction_that_fails_leaves_nothing(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    await filled(store)
    before = await pending(store)
    with pytest.raises(DatabaseError) as caught:
        await adapter(store).transaction(
            [
                Step("lock_update_statement", [(5, 1)]),
                Step("remove_pending_statement", [(1, n) for n in before]),
                Step("add_pending_statement", [(2, 5, 0, 0, 0)]),  # is there already
            ],
            synced=True,
        )
    assert caught.value.statement == "add_pending_statement"
    assert await pending(store) == before
    await store.close()


async def test_a_store_is_read_by_other_programs_while_it_runs(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    await write(store, QUEUE, add(1))
    other = sqlite3.connect(tmp_path / "tidegate.db")
    other.execute("BEGIN")
    assert other.execute("SELECT COUNT(*) FROM TIDEGATE_MSGS").fetchall() == [(1,)]
    await write(store, add(2))  # a reader keeps nobody from writing
    assert other.execute("SELECT COUNT(*) FROM TIDEGATE_MSGS").fetchall() == [(1,)]
    other.close()
    await store.close()
