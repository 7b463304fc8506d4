"""The store as the broker sees it when the disk is full or broken."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from journal_kit import ANY_SIZE, CrashStorage, full, opened, pending, until, write, write_only
from numbered import ack, add

from tidegate.spi import CorruptRecordError, StoreFullError, StoreIOError

# ------------------------------------------------------------------------------------- full disk


async def test_a_full_disk_refuses_the_batch_and_takes_the_next_one_when_there_is_room(
    tmp_path: Path,
) -> None:
    storage = CrashStorage()
    store, _ = await opened(tmp_path, storage)
    await write(store, add(1))
    storage.fault = full()
    with pytest.raises(StoreFullError):
        await write(store, add(2), add(3))
    assert await pending(store) == [1]
    assert store.statistics().writable
    with pytest.raises(StoreFullError):
        await write(store, add(2))
    storage.fault = lambda *_: None
    await write(store, add(4))
    await write(store, add(5), ack(1))
    assert await pending(store) == [4, 5]
    after = storage.crash()
    await store.close()
    store, state = await opened(tmp_path, after)
    assert await pending(store) == [4, 5]
    assert state.report.counts["repaired_bytes"] == 0
    await store.close()


async def test_acknowledgements_go_through_when_no_file_can_be_made_and_make_room(
    tmp_path: Path,
) -> None:
    storage = CrashStorage()
    store, _ = await opened(tmp_path, storage)
    files = store._files  # pyright: ignore[reportPrivateUsage]
    await until(lambda: files.spare_count >= 1)
    storage.fault = full("preallocate")
    sequence = 0
    is_full = False
    while not is_full:
        try:
            await write(store, add(sequence + 1, size=20_000))
            sequence += 1
        except StoreFullError:
            is_full = True
    assert sequence >= 3
    assert files.spare_count == 1
    # The current file is full; acknowledgements begin the reserve.
    for item in range(1, sequence + 1):
        await write(store, ack(item))
    assert await pending(store) == []
    with pytest.raises(StoreFullError):
        await write(store, *[add(900 + item, size=60_000) for item in range(3)])
    # They killed every older file, and cleanup is already on its way.
    await until(lambda: len(files) <= 2)
    storage.fault = lambda *_: None
    await write(store, add(1000))
    assert await pending(store) == [1000]
    await store.close()


async def test_new_messages_are_refused_below_the_limit_of_free_room_and_acknowledgements_are_not(
    tmp_path: Path,
) -> None:
    storage = CrashStorage()
    store, _ = await opened(tmp_path, storage, disk_free_limit=10_000_000)
    await write(store, add(1), add(2))
    storage.free = 9_000_000
    await until(lambda: store._maintenance.room.is_short)  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(StoreFullError, match="disk_free_limit"):
        await write(store, add(3))
    await write(store, ack(1))
    storage.free = 11_000_000
    await write(store, add(3))  # at once, without waiting for the next look
    assert await pending(store) == [2, 3]
    await store.close()


async def test_a_store_that_finds_no_room_at_its_first_start_says_so(tmp_path: Path) -> None:
    storage = CrashStorage()
    storage.fault = full("preallocate")
    with pytest.raises(StoreIOError, match="no room"):
        await opened(tmp_path, storage)


async def test_a_large_batch_that_does_not_fit_takes_no_room(tmp_path: Path) -> None:
    storage = CrashStorage()
    store, _ = await opened(tmp_path, storage)
    await write(store, add(1))
    before = store.statistics().disk_bytes
    storage.fault = full()
    with pytest.raises(StoreFullError):
        await write(store, add(2, size=300_000))
    await until(
        lambda: not [n for n in storage.list() if ".data" in n and storage.open(n).length > 200_000]
    )
    assert store.statistics().disk_bytes <= before + (64 << 10)
    storage.fault = lambda *_: None
    await write(store, add(2, size=300_000))
    assert await pending(store) == [1, 2]
    await store.close()


# ----------------------------------------------------------------------------------- broken disk


@pytest.mark.parametrize("operation", ["pwritev", "datasync"])
async def test_a_broken_disk_makes_the_store_read_only(tmp_path: Path, operation: str) -> None:
    storage = CrashStorage()
    store, _ = await opened(tmp_path, storage)
    await write(store, add(1))
    storage.fault = lambda name, _: OSError(errno.EIO, "broken") if name == operation else None
    with pytest.raises(StoreIOError, match="read-only"):
        await write(store, add(2))
    storage.fault = lambda *_: None
    with pytest.raises(StoreIOError):
        await write(store, ack(1))
    assert not store.statistics().writable
    assert await pending(store) == [1]
    after = storage.crash()
    await store.close()
    store, _ = await opened(tmp_path, after)
    assert await pending(store) in ([1], [1, 2])
    await write(store, add(3))
    await store.close()


async def test_a_full_disk_that_shows_only_at_the_sync_is_not_taken_lightly(tmp_path: Path) -> None:
    storage = CrashStorage()
    store, _ = await opened(tmp_path, storage)
    await write(store, add(1))
    storage.fault = full("datasync")
    with pytest.raises(StoreIOError):
        await write(store, add(2))
    assert not store.statistics().writable
    storage.fault = lambda *_: None
    await store.close()


async def test_a_failed_background_sync_makes_the_store_read_only(tmp_path: Path) -> None:
    storage = CrashStorage()
    store, _ = await opened(tmp_path, storage, keep=True)
    await write(store, add(1))
    storage.fault = lambda name, _: OSError(errno.EIO, "x") if name == "datasync" else None
    await write_only(store, ack(1))
    await until(lambda: not store.statistics().writable)
    with pytest.raises(StoreIOError):
        await store.acknowledged(0, 1, 1)
    storage.fault = lambda *_: None
    await store.close()


async def test_damaged_messages_are_reported_and_the_others_are_read(tmp_path: Path) -> None:
    storage = CrashStorage()
    store, _ = await opened(tmp_path, storage)
    await write(store, add(1))
    offset = store._appender.tail.offset  # pyright: ignore[reportPrivateUsage]
    await write(store, add(2))
    await write(store, add(3))
    storage.flip("journal-0000000001.data", offset + 64 + 36 + 20)
    with pytest.raises(CorruptRecordError, match="message 2") as caught:
        await store.page_in(1, 1, 10, ANY_SIZE)
    assert caught.value.location.startswith("crash:journal-0000000001.data at offset")
    assert [item.sequence for item in await store.page_in(1, 0, 10, ANY_SIZE)] == [1]
    assert [item.sequence for item in await store.page_in(1, 2, 9, ANY_SIZE)] == [3]
    await store.close()


async def test_a_damaged_row_of_the_log_that_is_asked_for_alone_says_what_is_whole(
    tmp_path: Path,
) -> None:
    storage = CrashStorage()
    store, _ = await opened(tmp_path, storage, keep=True)
    await write(store, add(1))
    offset = store._appender.tail.offset  # pyright: ignore[reportPrivateUsage]
    await write(store, add(2))
    await write(store, add(3), ack(1, 2, 3))
    storage.flip("journal-0000000001.data", offset + 64 + 36 + 20)
    with pytest.raises(CorruptRecordError) as caught:
        await store.acknowledged(0, 10, ANY_SIZE)
    assert caught.value.known is None
    assert len((await store.acknowledged(0, 1, ANY_SIZE)).rows) == 1
    with pytest.raises(CorruptRecordError) as caught:
        await store.acknowledged(1, 1, ANY_SIZE)
    known = caught.value.known
    assert known is not None
    assert (known.ack_sequence, known.sequence, known.message.body) == (2, 2, b"")
    assert b"queue://q" in caught.value.raw
    assert [row.sequence for row in (await store.acknowledged(2, 9, ANY_SIZE)).rows] == [3]
    await store.close()
