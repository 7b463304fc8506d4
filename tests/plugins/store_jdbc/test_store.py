"""The store as the broker sees it: clean-up, cancellation, errors, other programs' queries."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sqlite3
import time
from pathlib import Path

import pytest
from jdbc_kit import (
    ANY_SIZE,
    QUEUE,
    new_store,
    opened,
    pending,
    postgres_options,
    prefix,
    sqlite_rows,
    write,
)
from numbered import ack, add
from postgres_server import PostgresServer

from tidegate.spi import (
    Acknowledge,
    AddDestination,
    AddMessage,
    CorruptRecordError,
    Message,
    RemoveDestination,
    StoreClosedError,
    StoreContext,
    StoreIOError,
)
from tidegate_store_jdbc import JdbcOptions, JdbcStore, Step


async def until(condition: object) -> None:
    assert callable(condition)
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


async def test_what_was_consumed_is_room_for_new_messages(tmp_path: Path) -> None:
    """SQLite's file does not shrink: a full disk would never be enough again."""
    store, _ = await opened(tmp_path)
    await write(store, QUEUE, *[add(number) for number in range(1, 1001)])
    await store._room.measure()  # pyright: ignore[reportPrivateUsage] - what its maintenance does
    before = store.statistics()
    await write(store, Acknowledge(1, tuple(range(1, 1001))))
    await store._room.measure()  # pyright: ignore[reportPrivateUsage]
    after = store.statistics()
    assert after.disk_bytes >= before.disk_bytes
    assert after.reusable_bytes - before.reusable_bytes > 1000 * 100
    assert store.capabilities.directories == (tmp_path,)
    await store.close()


async def test_operators_see_the_file_its_log_and_who_has_the_lease(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    await write(store, QUEUE, *[add(number) for number in range(1, 1001)])
    await write(store, Acknowledge(1, tuple(range(1, 1001))))
    assert store.capabilities.parts is store
    file, wal, lease = await store.store_parts()
    path = tmp_path / "tidegate.db"
    assert (file.kind, file.name, file.disk_bytes) == (
        "database file",
        str(path),
        path.stat().st_size,
    )
    assert file.reusable_bytes is not None
    assert file.reusable_bytes > 1000 * 100
    (free, pages), size = (
        sqlite_rows(
            tmp_path,
            "SELECT freelist_count, page_count FROM pragma_freelist_count(), pragma_page_count()",
        )[0],
        sqlite_rows(tmp_path, "PRAGMA page_size")[0][0],
    )
    assert file.state == f"{free} of {pages} pages of {size} bytes are free"
    assert file.reusable_bytes == free * size
    assert (wal.kind, wal.name) == ("write-ahead log", f"{path}-wal")
    assert wal.disk_bytes == Path(wal.name).stat().st_size > 0
    assert (lease.kind, lease.name) == ("lease", "TIDEGATE_LOCK")
    assert lease.holder == f"test on {socket.gethostname()}"
    assert lease.expires_at is not None
    assert lease.expires_at > time.time_ns() // 1000
    await store.close()
    with pytest.raises(StoreClosedError):
        await store.store_parts()


async def test_a_database_in_memory_is_seen_without_files(tmp_path: Path) -> None:
    store = JdbcStore(StoreContext(tmp_path, "test", persistent=False), JdbcOptions())
    await store.open()
    await write(store, QUEUE, add(1))
    memory, lease = await store.store_parts()
    assert (memory.kind, memory.name, memory.disk_bytes) == ("database", "memory", None)
    assert (lease.kind, lease.expires_at) == ("lease", None)
    assert lease.state == "fencing token 1, not kept up"
    await store.close()


async def test_the_wal_is_given_back_when_the_disk_is_nearly_full(tmp_path: Path) -> None:
    """What it took of the disk would be missing for ever if nothing is written any more."""
    context = StoreContext(tmp_path, "test", disk_free_limit=1 << 60)
    wal = tmp_path / "tidegate.db-wal"
    for store in (new_store(tmp_path), JdbcStore(context, JdbcOptions())):
        await store.open()
        is_given_back = store._context is context  # pyright: ignore[reportPrivateUsage]
        first = 1001 if is_given_back else 1
        await write(store, QUEUE, *[add(n, size=6000) for n in range(first, first + 1000)])
        assert wal.stat().st_size > 4 << 20
        await store._room.measure()  # pyright: ignore[reportPrivateUsage] - what its maintenance does
        assert (wal.stat().st_size == 0) is is_given_back
        await store.close()


async def test_what_the_wal_will_take_is_claimed_before_it_is_taken(tmp_path: Path) -> None:
    """SQLite was 15 to 39 MB below what was to stay free: the WAL grows, and its pages go into the file, too."""
    file, wal = tmp_path / "tidegate.db", tmp_path / "tidegate.db-wal"
    store, _ = await opened(tmp_path)
    page = 4096
    wal_full = 8192 * (page + 24) + (4 << 20)
    before = 0
    for first in range(1, 1001, 200):
        await write(store, QUEUE, *[add(n, size=6000) for n in range(first, first + 200)])
        found = store.statistics()  # of now, not of a second ago
        assert found.disk_bytes > before + 200 * 6000
        before = found.disk_bytes
        file_bytes, wal_bytes = file.stat().st_size, wal.stat().st_size
        assert file_bytes + wal_bytes + found.claimed_bytes == found.disk_bytes + wal_full
        assert 0 < wal_bytes < wal_full
    await store.close()
    store, _ = await opened(tmp_path)
    assert store.statistics().claimed_bytes <= wal_full
    assert store.statistics().disk_bytes >= before
    await store.close()


async def test_a_removed_queue_is_gone_at_once_and_deleted_bit_by_bit(tmp_path: Path) -> None:
    options = JdbcOptions(cleanup_limit=100, cleanup_period=3600)
    store, _ = await opened(tmp_path, options)
    await write(store, QUEUE, AddDestination("queue://r", 2))
    await write(store, *[add(n, 1, 2) if n % 2 else add(n) for n in range(1, 501)])
    await write(store, RemoveDestination("queue://q", 1))
    assert await pending(store) == []
    count = "SELECT COUNT(*) FROM TIDEGATE_ACKS WHERE pending_list = 1"
    assert sqlite_rows(tmp_path, count) == [(400,)]  # one transaction was not enough
    await store.close()
    # The next start goes on with it, and still does not show it.
    store, state = await opened(tmp_path, options)
    assert sqlite_rows(tmp_path, count) == [(300,)]
    assert set(state.pending) == {2}
    assert await pending(store) == []
    await store._writer.clean()  # pyright: ignore[reportPrivateUsage] - what cleanup_period starts
    assert sqlite_rows(tmp_path, count) == [(0,)]
    assert sqlite_rows(tmp_path, "SELECT COUNT(*) FROM TIDEGATE_REMOVED") == [(0,)]
    assert sqlite_rows(tmp_path, "SELECT COUNT(*) FROM TIDEGATE_MSGS") == [(250,)]
    assert store.statistics().pending_messages == 250
    assert len(await pending(store, 2)) == 250
    await store.close()


async def test_the_clean_up_is_started_by_its_period(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path, cleanup_limit=10, cleanup_period=0.02)
    await write(store, QUEUE, *[add(n) for n in range(1, 301)])
    await write(store, RemoveDestination("queue://q", 1))
    await until(lambda: store.statistics().pending_messages == 0)
    await until(lambda: sqlite_rows(tmp_path, "SELECT 1 FROM TIDEGATE_REMOVED") == [])
    await store.close()


async def test_writes_go_on_between_the_steps_of_a_clean_up(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path, cleanup_limit=5)
    await write(store, QUEUE, AddDestination("queue://r", 2))
    await write(store, *[add(n) for n in range(1, 501)])
    await write(store, RemoveDestination("queue://q", 1))
    cleaning = asyncio.create_task(
        store._writer.clean()  # pyright: ignore[reportPrivateUsage]
    )
    await asyncio.sleep(0)
    await write(store, add(501, 2))
    assert not cleaning.done()
    assert await pending(store, 2) == [501]
    await cleaning
    assert store.statistics().pending_messages == 1
    await store.close()


async def test_a_large_log_is_released_in_bounded_transactions(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path, cleanup_limit=50, keep=True)
    await write(store, QUEUE, *[add(n) for n in range(1, 401)])
    await write(store, ack(*range(1, 401)))
    before = sqlite_rows(tmp_path, "SELECT batch FROM TIDEGATE_LOCK")[0][0]
    await store.release_acknowledged(390)
    after = sqlite_rows(tmp_path, "SELECT batch FROM TIDEGATE_LOCK")[0][0]
    assert after - before == 8
    assert sqlite_rows(tmp_path, "SELECT COUNT(*) FROM TIDEGATE_MSGS") == [(10,)]
    statistics = store.log_statistics()
    assert (statistics.first, statistics.held_bytes) == (391, 1000)
    assert statistics.oldest_at == 2000
    await store.close()


async def test_a_released_message_stays_while_another_list_holds_it(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path, keep=True)
    await write(store, QUEUE, AddDestination("queue://r", 2), add(1, 1, 2))
    await write(store, ack(1))
    await store.release_acknowledged(1)
    assert await pending(store, 2) == [1]
    await write(store, ack(1, pending_list=2))
    page = await store.acknowledged(1, 10, ANY_SIZE)
    assert [row.sequence for row in page.rows] == [1]
    await store.release_acknowledged(2)
    assert sqlite_rows(tmp_path, "SELECT COUNT(*) FROM TIDEGATE_MSGS") == [(0,)]
    await store.close()


async def test_damaged_rows_of_the_log_say_what_is_whole_and_those_that_are_gone_are_left_out(
    tmp_path: Path,
) -> None:
    store, _ = await opened(tmp_path, keep=True)
    await write(store, QUEUE, *[add(n) for n in range(1, 5)])
    await write(store, ack(1, 2, 3, 4))
    with contextlib.closing(sqlite3.connect(tmp_path / "tidegate.db")) as connection:
        connection.execute("UPDATE TIDEGATE_MSGS SET message = x'c1ff' WHERE sequence = 2")
        connection.execute("DELETE FROM TIDEGATE_MSGS WHERE sequence = 3")
        connection.commit()
    with pytest.raises(CorruptRecordError) as caught:
        await store.acknowledged(0, 10, ANY_SIZE)
    assert caught.value.known is None
    with pytest.raises(CorruptRecordError) as caught:
        await store.acknowledged(1, 1, ANY_SIZE)
    known = caught.value.known
    assert known is not None
    assert (known.ack_sequence, known.sequence, known.message.body) == (2, 2, add(2).message.body)
    assert caught.value.raw == b"\xc1\xff"
    page = await store.acknowledged(2, 1, ANY_SIZE)
    assert ([row.ack_sequence for row in page.rows], page.last) == ([4], 4)
    await store.release_acknowledged(4)
    assert store.log_statistics().first == 5
    await store.close()


async def test_rows_of_written_batches_are_synced_before_they_are_shown(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path, keep=True)
    await write(store, QUEUE, add(1))
    await write(store, ack(1), synced=False)
    batch = sqlite_rows(tmp_path, "SELECT batch FROM TIDEGATE_LOCK")[0][0]
    page = await store.acknowledged(0, 10, ANY_SIZE)
    assert (len(page.rows), page.last) == (1, 1)
    assert sqlite_rows(tmp_path, "SELECT batch FROM TIDEGATE_LOCK")[0][0] == batch + 1
    await store.close()


async def test_a_batch_that_the_database_refuses_makes_the_store_read_only(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    await write(store, QUEUE, add(1))
    with pytest.raises(StoreIOError, match="add_message_statement"):
        await write(store, add(1))  # the broker never does: numbers are unique
    assert not store.statistics().writable
    with pytest.raises(StoreIOError):
        await write(store, add(2))
    with pytest.raises(StoreIOError):
        await store.page_in(1, 0, 1, 1)
    await store.close()
    store, _ = await opened(tmp_path)
    assert await pending(store) == [1]
    await store.close()


async def test_a_cancelled_write_keeps_the_counters_right(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path, keep=True)
    await write(store, QUEUE, *[add(n) for n in range(1, 11)])
    for number in range(1, 11):
        task = asyncio.create_task(write(store, ack(number), add(100 + number)))
        for _ in range(number % 4):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await write(store)
    found = await pending(store)
    assert store.statistics().pending_messages == len(found)
    page = await store.acknowledged(0, 100, ANY_SIZE)
    assert [row.ack_sequence for row in page.rows] == list(range(1, len(page.rows) + 1))
    await store.close()


async def test_closing_waits_for_the_batch_under_way(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    writing = asyncio.create_task(write(store, QUEUE, *[add(n) for n in range(1, 2000)]))
    await asyncio.sleep(0)
    await store.close()
    await writing
    with pytest.raises(StoreClosedError):
        await write(store, add(2000))
    store, _ = await opened(tmp_path)
    assert len(await pending(store)) == 1999
    await store.close()


async def test_a_store_is_opened_only_once(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    with pytest.raises(StoreClosedError, match="only once"):
        await store.open()
    await store.close()


async def test_zero_persistence_never_touches_the_server(tmp_path: Path) -> None:
    options = JdbcOptions(url="postgresql://192.0.2.1/never")
    store = JdbcStore(StoreContext(tmp_path, "test", persistent=False), options)
    await store.open()
    assert not store.capabilities.durable
    await write(store, QUEUE, add(1))
    assert await pending(store) == [1]
    await store.close()


ORDER = Message(
    "queue://orders",
    b'{"total": 12}',
    (("color", "red"), ("n", "1")),
    client_id="shop",
    content_type="application/json",
)


def documented(name: str) -> str:
    """A query of docs/store-jdbc.md, by the comment in its first line."""
    text = (Path(__file__).parents[3] / "docs" / "store-jdbc.md").read_text()
    return text.partition(f"-- {name}\n")[2].partition("```")[0]


async def test_the_documented_queries_work_on_sqlite(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path, keep=True)
    await write(store, AddDestination("queue://orders", 1), AddMessage(1, ORDER, (1,)))
    await write(store, AddMessage(2, ORDER, (1,)), ack(1))
    await store.close()
    assert sqlite_rows(tmp_path, documented("depth of every queue")) == [("queue://orders", 1, 13)]
    found = sqlite_rows(tmp_path, documented("by a header, SQLite"))
    assert [(row[0], json.loads(row[1])) for row in found] == [(2, {"total": 12})]
    assert sqlite_rows(tmp_path, documented("by a field of a JSON body, SQLite")) == [(2,)]
    acknowledged = sqlite_rows(tmp_path, documented("who acknowledged what"))
    assert [row[:3] for row in acknowledged] == [(1, "queue://orders", "client")]


async def test_the_documented_queries_work_on_postgres(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    import asyncpg

    store, _ = await opened(tmp_path, postgres_options(postgres, tmp_path), keep=True)
    await write(store, AddDestination("queue://orders", 1), AddMessage(1, ORDER, (1,)))
    await write(store, AddMessage(2, ORDER, (1,)), ack(1))
    connection = await asyncpg.connect(postgres.url, user="tidegate", password=postgres.password)

    async def ask(name: str) -> list[tuple[object, ...]]:
        query = documented(name).replace("TIDEGATE_", f"{prefix(tmp_path)}TIDEGATE_")
        return [tuple(row) for row in await connection.fetch(query)]

    assert await ask("depth of every queue") == [("queue://orders", 1, 13)]
    found = await ask("by a header, PostgreSQL")
    assert found == [(2, '{"total": 12}')]
    assert await ask("by a field of a JSON body, PostgreSQL") == [(2,)]
    assert [row[:3] for row in await ask("who acknowledged what")] == [
        (1, "queue://orders", "client")
    ]
    await connection.close()
    await store.close()


async def test_explicit_steps_must_pass_the_fence(tmp_path: Path) -> None:
    from tidegate_store_jdbc import FenceError

    store = new_store(tmp_path)
    await store.open()
    await write(store, QUEUE, add(1))
    adapter = store._adapter  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(FenceError):
        await adapter.transaction(
            [
                Step("lock_update_statement", [(5, 999)]),
                Step("remove_pending_statement", [(1, 1)]),
            ],
            synced=True,
        )
    assert await pending(store) == [1]
    await store.close()
