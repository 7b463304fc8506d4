"""What goes on beside the writing, each at its interval."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from journal_kit import KB, CrashStorage, data_files, opened, pending, until, write
from numbered import ack, add

from tidegate.spi import StoreFullError, is_room_again, room_for
from tidegate_store_journal import JournalStore
from tidegate_store_journal.log.room import RoomWatch


async def test_cleanup_happens_at_its_interval(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path, checkpoint_interval=0.02, cleanup_interval=0.05)
    for sequence in range(1, 20):
        await write(store, add(sequence, size=20_000))
    await write(store, ack(*range(1, 20)))
    await until(lambda: len(data_files(tmp_path)) <= 4)
    await store.close()


async def test_a_checkpoint_happens_at_its_interval(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path, checkpoint_interval=0.02)
    count = store.metadata_counters.checkpoints
    await write(store, add(1))
    await until(lambda: store.metadata_counters.checkpoints > count)
    assert store.metadata_counters.pending_put == 1
    await store.close()


async def test_a_checkpoint_happens_early_when_many_messages_stay(tmp_path: Path) -> None:
    store, _ = await opened(
        tmp_path, max_checkpoint_message_add_size=4096, journal_max_file_length=8192 * KB
    )
    counters = store.metadata_counters
    before = counters.checkpoints
    sequence = 0
    for _ in range(100):  # what is consumed does not count
        batch = range(sequence + 1, sequence + 101)
        await write(store, *[add(item, size=1) for item in batch])
        await write(store, ack(*batch))
        sequence += 100
    assert counters.checkpoints == before
    for number in (1, 2):
        await write(store, *[add(sequence + item, size=1) for item in range(1, 4097)])
        sequence += 4096
        await until(lambda number=number: counters.checkpoints == before + number)
    assert counters.pending_put == 2 * 4096
    await store.close()


async def test_files_that_wait_to_be_used_again_are_the_disks_when_it_was_short(
    tmp_path: Path,
) -> None:
    length, limit = 64 * KB, 1024 * KB
    storage = CrashStorage()
    store, _ = await opened(
        tmp_path,
        storage,
        disk_free_limit=limit,
        journal_max_file_length=length,
        checkpoint_interval=0.02,
        cleanup_interval=0.05,
    )

    def files() -> int:
        return sum(name.endswith((".data", ".free")) for name in storage.list())

    for sequence in range(1, 61):
        await write(store, add(sequence, size=20_000))
    # Somebody else takes the rest; what is acknowledged leaves files that count as half of the limit at most.
    others = files() * length + limit // 4
    storage.free_bytes = lambda: others - files() * length  # type: ignore[method-assign]
    await until(lambda: store._maintenance.room.is_short)  # pyright: ignore[reportPrivateUsage]
    await write(store, ack(*range(1, 61)))
    await until(lambda: is_room_again(_room(store, storage, limit), limit))
    await write(store, add(61))
    await store.close()
    store, _ = await opened(
        tmp_path, storage, disk_free_limit=limit, journal_max_file_length=length
    )
    assert await pending(store) == [61]
    await store.close()


def _room(store: JournalStore, storage: CrashStorage, limit: int) -> int:
    """As the broker counts it."""
    return room_for(storage.free_bytes(), store.statistics().reusable_bytes, limit)


async def test_the_watch_says_when_room_is_short_and_when_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken() -> int:
        raise OSError(5, "gone")

    with caplog.at_level(logging.WARNING, "tidegate.store.journal"):
        storage = CrashStorage()
        with ThreadPoolExecutor(1) as executor:
            room = RoomWatch(storage, executor, 1000)
            await room.require()
            storage.free = 999
            with pytest.raises(StoreFullError, match="disk_free_limit"):
                await room.require()
            assert room.is_short
            storage.free = 1000
            await room.require()
            room.report_full()
            assert (room.is_short, room.is_urgent, room.event.is_set()) == (True, True, True)
            await room.look()
            assert not room.is_short
            storage.free = 600
            room.reusable = lambda: 10_000  # half of the limit counts, and no more
            await room.require()
            storage.free = 499
            await room.look()
            assert room.is_short
            storage.free = 500
            await room.look()
            storage.free_bytes = broken  # type: ignore[method-assign]  # a fault
            await room.look()
            assert not room.is_short  # unknown is not short
    assert "room is short free_bytes=999" in caplog.text
    assert "room is back free_bytes=1000" in caplog.text
    assert "cannot tell how much room is left" in caplog.text
