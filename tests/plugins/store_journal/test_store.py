"""The store as the broker sees it: durability, options, files, concurrency, kills."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from journal_kit import (
    ANY_SIZE,
    JOURNAL_TYPES,
    KB,
    SUPPORT,
    CrashStorage,
    check_bodies,
    checkpoint,
    data_files,
    killed_after,
    new_store,
    opened,
    pending,
    until,
    write,
    write_only,
)
from numbered import ack, add, message

from tidegate.spi import (
    AddDestination,
    AddMessage,
    Message,
    RequestError,
    StoreClosedError,
    StoreIOError,
    StoreLockedError,
)
from tidegate_store_journal.log import format as _format
from tidegate_store_journal.options import NEVER, PERIODIC
from tidegate_store_journal.write.writer import BACKGROUND_SYNC_SECONDS

# ------------------------------------------------------------------------------------ durability


async def test_a_synced_batch_survives_a_power_cut_at_once(tmp_path: Path) -> None:
    storage = CrashStorage()
    store, _ = await opened(tmp_path, storage)
    assert store.capabilities.durable
    await write_only(store, add(1))
    await write(store, add(2))
    after = storage.crash()
    await store.close()
    store, _ = await opened(tmp_path, after)
    assert await pending(store) == [1, 2]
    await store.close()


async def test_without_a_sync_the_same_batch_is_lost(tmp_path: Path) -> None:
    """The negative control of every power-cut test here."""
    storage = CrashStorage()
    store, _ = await opened(tmp_path, storage, journal_disk_sync_strategy=NEVER)
    assert not store.capabilities.durable
    await write(store, add(1))
    after = storage.crash()
    await store.close()
    store, _ = await opened(tmp_path, after)
    assert await pending(store) == []
    await store.close()


async def test_a_written_batch_is_synced_soon_when_the_journal_is_idle(tmp_path: Path) -> None:
    assert BACKGROUND_SYNC_SECONDS <= 0.05
    storage = CrashStorage()
    store, _ = await opened(tmp_path, storage)
    before = storage.syncs
    await write_only(store, add(1))
    await until(lambda: storage.syncs > before)
    after = storage.crash()
    await store.close()
    store, _ = await opened(tmp_path, after)
    assert await pending(store) == [1]
    await store.close()


async def test_periodic_syncs_come_at_their_interval_and_not_with_the_batch(tmp_path: Path) -> None:
    storage = CrashStorage()
    store, _ = await opened(
        tmp_path,
        storage,
        journal_disk_sync_strategy=PERIODIC,
        journal_disk_sync_interval=0.05,
    )
    assert not store.capabilities.durable
    await write(store, add(1))
    writer = store._writer  # pyright: ignore[reportPrivateUsage]
    assert writer.synced_batch == 0
    await until(lambda: writer.synced_batch == 1)
    await store.close()


async def test_strategy_never_syncs_only_for_the_log_and_checkpoints(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path, keep=True, journal_disk_sync_strategy=NEVER)
    writer = store._writer  # pyright: ignore[reportPrivateUsage]
    await write(store, add(1), ack(1))
    await asyncio.sleep(2 * BACKGROUND_SYNC_SECONDS)
    assert writer.synced_batch == 0
    page = await store.acknowledged(0, 10, ANY_SIZE)
    assert [row.sequence for row in page.rows] == [1]
    assert writer.synced_batch == 1
    await store.close()


async def test_an_empty_synced_batch_syncs_what_was_written(tmp_path: Path) -> None:
    storage = CrashStorage()
    store, _ = await opened(tmp_path, storage)
    await write_only(store, add(1))
    await write(store)
    after = storage.crash()
    await store.close()
    store, _ = await opened(tmp_path, after)
    assert await pending(store) == [1]
    await store.close()


async def test_rows_are_shown_only_once_they_are_on_disk(tmp_path: Path) -> None:
    storage = CrashStorage()
    store, _ = await opened(tmp_path, storage, keep=True)
    await write(store, add(1), add(2))
    await write_only(store, ack(2))
    page = await store.acknowledged(0, 10, ANY_SIZE)
    assert [(row.ack_sequence, row.sequence) for row in page.rows] == [(1, 2)]
    after = storage.crash()
    await store.close()
    store, _ = await opened(tmp_path, after, keep=True)
    page = await store.acknowledged(0, 10, ANY_SIZE)
    assert [(row.ack_sequence, row.sequence) for row in page.rows] == [(1, 2)]
    await store.release_acknowledged(1)
    with pytest.raises(RequestError, match="released"):
        await store.acknowledged(0, 10, ANY_SIZE)
    await store.close()


async def test_a_reader_of_the_log_makes_no_sync_while_there_are_rows_on_disk(
    tmp_path: Path,
) -> None:
    """Each sync would hold up the batches behind it; and no row is shown before it is on disk."""
    storage = CrashStorage()
    store, _ = await opened(tmp_path, storage, keep=True)
    writer = store._writer  # pyright: ignore[reportPrivateUsage]

    async def shown(after: int, limit: int = 10) -> list[int]:
        page = await store.acknowledged(after, limit, ANY_SIZE)
        assert len(await rows_of(storage.crash())) >= page.last
        return [row.ack_sequence for row in page.rows]

    async def rows_of(after: CrashStorage) -> list[object]:
        other, _ = await opened(tmp_path, after, keep=True)
        try:
            return list((await other.acknowledged(0, 100, ANY_SIZE)).rows)
        finally:
            await other.close()

    await write(store, *(add(n) for n in range(1, 10)))
    await write(store, ack(1), ack(2), ack(3))
    syncs = writer.syncs
    await write_only(store, ack(4), ack(5))
    assert await shown(3) == [4, 5]
    assert writer.syncs == syncs + 1  # nothing else to show
    await write_only(store, ack(6))
    assert await shown(1, 2) == [2, 3]
    assert await shown(3) == [4, 5]
    assert writer.syncs == syncs + 1
    await write_only(store, ack(7))
    await write(store, ack(8))
    syncs = writer.syncs
    await write_only(store, ack(9))
    assert await shown(5) == [6]  # of 7 and 8 it is not known
    assert await shown(6) == [7, 8, 9]
    assert writer.syncs == syncs + 1
    await store.close()


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 5), st.booleans(), st.booleans()), max_size=15))
async def test_the_log_is_dense_over_restarts_and_releases(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, bool, bool]]
) -> None:
    directory = tmp_path_factory.mktemp("log")
    store, _ = await opened(directory, keep=True)
    sequence, released, total = 0, 0, 0
    for count, restart, release in steps:
        items = range(sequence + 1, sequence + count + 1)
        sequence += count
        await write(store, *[add(item) for item in items])
        await write(store, ack(*reversed(items)))
        total += count
        if release:
            released = (released + total) // 2
            await store.release_acknowledged(released)
        if restart:
            await store.close()
            store, _ = await opened(directory, keep=True)
        page = await store.acknowledged(released, 1000, ANY_SIZE)
        assert [row.ack_sequence for row in page.rows] == list(range(released + 1, total + 1))
        assert page.last == total
        statistics = store.log_statistics()
        assert (statistics.first, statistics.last) == (released + 1, total)
        for row in page.rows:
            assert row.message == message(row.sequence)
    await store.close()


# --------------------------------------------------------------------------- files and ownership


async def test_batches_larger_than_a_data_file_are_stored_and_come_back(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    big = Message("queue://q", b"3 " + os.urandom(500_000))
    await write(store, add(1))
    await write(store, add(2), AddMessage(3, big, (1,)), add(4))
    await write(store, add(5))
    for _ in range(2):
        page = await store.page_in(1, 0, 10, ANY_SIZE)
        check_bodies(page)
        assert [item.sequence for item in page] == [1, 2, 3, 4, 5]
        assert page[2].message == big
        await store.close()
        store, state = await opened(tmp_path)
    assert state.report.clean
    await write(store, ack(1, 2, 3, 4, 5))
    await store.close()
    assert max(path.stat().st_size for path in data_files(tmp_path)) == 64 << 10


async def test_the_minimum_of_files_is_there_from_the_beginning(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path, journal_min_files=5)
    await until(lambda: len(data_files(tmp_path)) == 5)
    assert {path.stat().st_size for path in data_files(tmp_path)} == {64 << 10}
    files = store._files  # pyright: ignore[reportPrivateUsage]
    await until(lambda: len(files) == 5)
    assert store.statistics().disk_bytes >= 5 * (64 << 10)
    await store.close()


async def test_another_gateway_is_told_who_owns_the_journal(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    with pytest.raises(StoreLockedError) as caught:
        await opened(tmp_path)
    assert f"pid={os.getpid()}" in caught.value.owner
    await store.close()
    store, _ = await opened(tmp_path)
    await store.close()


async def test_the_directory_option_moves_the_journal(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    for directory, expected in (("sub/j", tmp_path / "sub/j"), (str(elsewhere), elsewhere)):
        store, _ = await opened(tmp_path, directory=directory)
        await write(store, add(1))
        await store.close()
        assert list(expected.glob("journal-*.data"))
    assert not (tmp_path / "journal").exists()


async def test_a_directory_that_cannot_be_made_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreIOError, match="file/journal"):
        await opened(tmp_path, directory="file/journal")


async def test_a_store_is_opened_once_and_refuses_work_before_and_after(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    with pytest.raises(StoreClosedError):
        await write(store, add(1))
    await store.open()
    with pytest.raises(StoreClosedError):
        await store.open()
    await store.close()
    with pytest.raises(StoreClosedError):
        await store.page_in(1, 0, 1, 1)


async def test_slow_syncs_are_logged_above_the_threshold(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "tidegate.store.journal"):
        store, _ = await opened(tmp_path, slow_sync_threshold=1e-9)
        await write(store, add(1))
        await store.close()
    assert "slow sync" in caplog.text


# ----------------------------------------------------------------------------------- persistence


async def test_zero_persistence_is_the_same_engine_without_files(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path, persistent=False, keep=True, cleanup_interval=3600.0)
    assert not store.capabilities.durable
    for sequence in range(1, 30):
        await write(store, add(sequence, size=20_000))
    await write(store, ack(*range(1, 21)))
    assert await pending(store) == list(range(21, 30))
    page = await store.acknowledged(0, 100, ANY_SIZE)
    assert [row.sequence for row in page.rows] == list(range(1, 21))
    before = store.statistics().disk_bytes
    await store.release_acknowledged(20)
    assert await checkpoint(store, cleanup=True) > 3
    assert store.statistics().disk_bytes < before
    assert await pending(store) == list(range(21, 30))
    await store.close()
    assert list(tmp_path.iterdir()) == []


async def test_without_a_persistent_index_there_is_no_metadata_store_and_none_is_left(
    tmp_path: Path,
) -> None:
    metadata = tmp_path / "journal" / "metadata"
    store, _ = await opened(tmp_path)
    await write(store, AddDestination("queue://q", 1), *[add(item) for item in range(1, 9)])
    await store.close()
    assert metadata.is_dir()
    store, state = await opened(tmp_path, persistent_index=False)
    assert not metadata.exists()  # it would describe the journal as it once was
    assert state.report.notes == ()
    await write(store, ack(1, 2), add(9))
    await store.close()
    assert not metadata.exists()
    store, state = await opened(tmp_path, persistent_index=False)
    assert state.report.counts["replayed"] > 8
    assert [item.destination for item in state.destinations] == ["queue://q"]
    assert await pending(store) == list(range(3, 10))
    await store.close()
    store, _ = await opened(tmp_path)
    assert await pending(store) == list(range(3, 10))
    await store.close()


# ----------------------------------------------------------------------------------- concurrency


async def test_pages_are_read_while_batches_are_written_and_files_deleted(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path, checkpoint_interval=0.02, cleanup_interval=0.03)
    total = 1500
    consumed: list[int] = []

    lock = asyncio.Lock()  # the broker has one write in flight

    async def produce() -> None:
        for first in range(1, total, 10):
            async with lock:
                await write(store, *[add(item, size=1000) for item in range(first, first + 10)])

    async def consume() -> None:
        while len(consumed) < total:
            after = consumed[-1] if consumed else 0
            page = await store.page_in(1, after, 37, ANY_SIZE)
            check_bodies(page)
            if not page:
                await asyncio.sleep(0)
                continue
            consumed.extend(item.sequence for item in page)
            async with lock:
                await write_only(store, ack(*[item.sequence for item in page]))

    await asyncio.gather(produce(), consume())
    assert consumed == list(range(1, total + 1))
    assert store.statistics().pending_messages == 0
    await until(lambda: len(data_files(tmp_path)) <= 4)
    await store.close()


# ------------------------------------------------------------------------------------ real kills

CHILD = """
import asyncio, os, sys
from pathlib import Path
sys.path[:0] = sys.argv[2].split(os.pathsep)
from journal_kit import opened
from numbered import ack, add
from tidegate.spi import Durability, WriteBatch

async def main():
    store, state = await opened(Path(sys.argv[1]), keep=True, checkpoint_interval=0.02,
                                cleanup_interval=0.05, journal_type=sys.argv[3])
    sequence = state.last_sequence
    while True:
        first = sequence + 1
        sequence += 20
        await store.write(WriteBatch([add(item, size=700) for item in range(first, sequence + 1)]))
        os.write(1, b"added %d\\n" % sequence)
        await store.write(WriteBatch([ack(*range(first, first + 15))]))
        os.write(1, b"acked %d\\n" % (first + 14))

asyncio.run(main())
"""


@pytest.mark.parametrize("journal_type", JOURNAL_TYPES)
@pytest.mark.long
async def test_a_real_kill_under_load_loses_nothing_that_was_confirmed(
    tmp_path: Path, journal_type: str
) -> None:
    child = [sys.executable, "-c", CHILD]
    journal = tmp_path / "data"
    journal.mkdir()
    acked: set[int] = set()
    for turn in range(3):
        added = killed_after(
            [*child, str(journal), SUPPORT, journal_type], (turn + 1) * 1000 + turn * 7, acked
        )

        async def check(added: int = added, acked: frozenset[int] = frozenset(acked)) -> None:
            store, state = await opened(journal, keep=True)
            assert state.last_sequence >= added
            found = await pending(store)
            page = await store.acknowledged(0, 1_000_000, ANY_SIZE)
            rows = [row.sequence for row in page.rows]
            assert [row.ack_sequence for row in page.rows] == list(range(1, len(rows) + 1))
            # Every confirmed message is either pending or in the log, exactly once.
            assert sorted(found + rows) == list(range(1, state.last_sequence + 1))
            assert set(rows) >= acked
            assert state.last_sequence % 20 == 0  # batches are whole
            await store.close()

        await check()


async def test_dead_files_are_archived_whole_and_the_store_goes_on(tmp_path: Path) -> None:
    changes = {"archive_data_logs": True, "directory_archive": "old"}
    store, _ = await opened(tmp_path, **changes)
    for sequence in range(1, 31):
        await write(store, add(sequence, size=20_000))
        await write(store, ack(sequence))
    await write(store, add(31))
    await store.close()
    archived = sorted((tmp_path / "journal" / "old").iterdir())
    assert len(archived) >= 8
    for path in archived:
        data = path.read_bytes()
        assert len(data) == 64 * KB
        assert _format.file_name(_format.decode_file_header(data).file_id) == path.name
    assert b"".join(path.read_bytes() for path in archived).count(b"....") > 1000
    assert not list((tmp_path / "journal").glob("journal-*.free"))
    store, _ = await opened(tmp_path, **changes)
    assert await pending(store) == [31]
    await store.close()


async def test_what_a_backlog_took_shrinks_to_the_pool_when_it_is_consumed(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path, journal_pool_files=6)
    for sequence in range(1, 61):
        await write(store, add(sequence, size=20_000))
    assert store.statistics().disk_bytes > 20 * 64 * KB
    await write(store, ack(*range(1, 61)))
    await checkpoint(store, cleanup=True)

    def files() -> int:
        return len([*data_files(tmp_path), *(tmp_path / "journal").glob("journal-*.free")])

    await until(lambda: files() == 6)  # one of them may just be made ready for the writer
    await store.close()
    # A smaller pool, and another length of file, are obeyed at the next start.
    store, _ = await opened(tmp_path, journal_pool_files=4)
    assert files() <= 4
    await store.close()
    store, _ = await opened(tmp_path, journal_max_file_length=128 * KB)
    assert not list((tmp_path / "journal").glob("journal-*.free"))
    await store.close()


async def test_a_file_in_the_pool_is_used_again_after_a_restart(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    for sequence in range(1, 31):
        await write(store, add(sequence, size=20_000))
    await write(store, ack(*range(1, 31)))
    await store.close()
    free = {path.name for path in (tmp_path / "journal").glob("journal-*.free")}
    assert len(free) > 5
    store, _ = await opened(tmp_path)
    for sequence in range(31, 51):
        await write(store, add(sequence, size=20_000))
    assert await pending(store) == list(range(31, 51))
    left = {path.name for path in (tmp_path / "journal").glob("journal-*.free")}
    assert left < free
    used = store._files.used()  # pyright: ignore[reportPrivateUsage]
    assert sum(file.reused for file in used) >= 3
    assert min(file.file_id for file in used if file.reused) > int(max(free)[8:18])
    await store.close()
