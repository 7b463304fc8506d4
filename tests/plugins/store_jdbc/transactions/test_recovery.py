"""What a start reads: numbers that are never given out twice, counts, leftovers."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from jdbc_kit import QUEUE, filled, new_store, opened, pending, write
from numbered import ack, add

from tidegate.spi import (
    AddDestination,
    CorruptRecordError,
    LogStatistics,
    PendingCount,
    StoreContext,
)
from tidegate_store_jdbc import JdbcOptions, JdbcStore
from tidegate_store_jdbc.transactions.lock import LockRow
from tidegate_store_jdbc.transactions.recovery import numbers, recover


def change(where: Path, statement: str) -> None:
    connection = sqlite3.connect(where / "tidegate.db")
    with connection:
        connection.execute(statement)
    connection.close()


async def test_counts_are_those_of_the_tables(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path, keep=True)
    await filled(store)
    before, log = store.statistics(), store.log_statistics()
    await store.close()
    store, state = await opened(tmp_path, keep=True)
    after = store.statistics()
    assert after.pending_messages == before.pending_messages == 1001 + 199
    assert store.log_statistics() == log == LogStatistics(1, 999, 800 * 100, 2000)
    assert state.pending == {1: PendingCount(1001, 100_100), 2: PendingCount(400, 40_000)}
    await store.close()


async def test_the_tables_are_believed_when_the_lock_row_was_made_anew(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path, keep=True)
    await write(store, QUEUE, AddDestination("queue://r", 7), add(41), add(42))
    await write(store, ack(41))
    await store.close()
    change(tmp_path, "DELETE FROM TIDEGATE_LOCK")
    store, state = await opened(tmp_path, keep=True)
    assert (state.last_sequence, state.last_pending_list) == (42, 7)
    await write(store, ack(42))
    page = await store.acknowledged(0, 10, 1000)
    assert [row.ack_sequence for row in page.rows] == [1, 2]
    await store.close()


async def test_a_clean_close_is_told_from_a_crash(tmp_path: Path) -> None:
    store, state = await opened(tmp_path)
    assert state.report.clean
    await store.close()
    store, state = await opened(tmp_path)
    assert state.report.clean
    await store.close()
    change(tmp_path, "UPDATE TIDEGATE_LOCK SET owner = 'dead', expires_at = 5")
    store, state = await opened(tmp_path)
    assert not state.report.clean
    await store.close()


async def test_a_damaged_value_is_reported_with_its_table(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    await write(store, QUEUE, add(1))
    await store.close()
    change(tmp_path, "UPDATE TIDEGATE_MSGS SET message = x'c1'")
    store, _ = await opened(tmp_path)
    with pytest.raises(CorruptRecordError, match="message 1"):
        await pending(store)
    await store.close()
    change(tmp_path, "UPDATE TIDEGATE_DESTS SET value = x'ff'")
    with pytest.raises(CorruptRecordError, match="destination table"):
        await opened(tmp_path)


async def test_rows_are_read_into_a_state(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    await write(store, QUEUE, add(5))
    adapter = store._adapter  # pyright: ignore[reportPrivateUsage]
    lock = LockRow("me", 1, 0, 0, batch=9, last_sequence=4, last_list=0, ack_last=3,
                   ack_released=2)  # fmt: skip
    counters = await numbers(adapter, lock)
    found = await recover(adapter, counters, "id")
    assert (counters.batch, counters.last_sequence, counters.last_list) == (9, 5, 1)
    assert (counters.ack_last, counters.ack_released) == (3, 2)
    assert found.pending == {1: PendingCount(1, 100)}
    await store.close()


async def test_a_log_that_nobody_reads_any_more_is_deleted(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path, keep=True)
    await filled(store)
    await store.close()
    store = JdbcStore(StoreContext(tmp_path, "test"), JdbcOptions(cleanup_limit=100))
    await store.open()
    assert store.log_statistics() == LogStatistics(1000, 999, 0, 0)
    await store.close()
    store = new_store(tmp_path, keep=True)
    await store.open()
    page = await store.acknowledged(999, 10, 1000)
    assert page.rows == []
    assert store.statistics().pending_messages == 1200
    await store.close()
