"""Data files: made ahead, kept in reserve, opened again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import pytest
from journal_kit import CrashStorage, full, run

from tidegate.spi import StoreClosedError, StoreFullError, StoreIOError
from tidegate_store_journal import _files
from tidegate_store_journal._files import DataFiles, prepare
from tidegate_store_journal._format import FILE_HEADER_BYTES, decode_file_header

STORE_ID = "0" * 32
LENGTH = 65536


@asynccontextmanager
async def data_files(
    storage: CrashStorage, *, files_min: int = 2, free_limit: int = 0
) -> AsyncIterator[DataFiles]:
    with ThreadPoolExecutor(2) as executor:
        files = DataFiles(
            storage,
            executor,
            store_id=STORE_ID,
            file_length=LENGTH,
            files_min=files_min,
            free_limit_bytes=free_limit,
        )
        yield files
        await files.close()


async def until_spares(files: DataFiles, count: int) -> None:
    async with asyncio.timeout(10):
        while files.spare_count < count:
            await asyncio.sleep(0.001)


def test_a_prepared_file_survives_a_power_cut_empty_and_whole() -> None:
    storage = CrashStorage()
    file = prepare(storage, STORE_ID, 3, LENGTH)
    after = storage.crash()
    handle = after.open(file.name)
    header = decode_file_header(handle.pread(FILE_HEADER_BYTES, 0))
    assert (header.store_id, header.file_id, header.length) == (STORE_ID, 3, LENGTH)
    assert header.seed == file.seed
    assert handle.pread(LENGTH, FILE_HEADER_BYTES) == bytes(LENGTH - FILE_HEADER_BYTES)


def test_two_files_never_have_the_same_seed() -> None:
    storage = CrashStorage()
    seeds = {prepare(storage, STORE_ID, 3, LENGTH).seed for _ in range(5)}
    assert len(seeds) == 5


def test_a_file_that_cannot_be_prepared_leaves_nothing_behind() -> None:
    storage = CrashStorage()
    storage.fault = full("preallocate")
    with pytest.raises(OSError, match="space"):
        prepare(storage, STORE_ID, 3, LENGTH)
    assert storage.list() == []


def test_spares_are_made_ahead() -> None:
    async def scenario() -> None:
        storage = CrashStorage()
        async with data_files(storage, files_min=4) as files:
            current = await files.take(100, grows=True)
            current.first_batch = 1
            files.refill(half_used=False)
            await until_spares(files, 3)
            assert len(files) == 4
            assert files.disk_bytes == 4 * LENGTH
            names = [
                file.name for file in (current, *[files.get(item) for item in (2, 3, 4)]) if file
            ]
            assert sorted(storage.list()) == sorted(names)

    run(scenario())


def test_one_more_is_made_when_the_current_one_is_half_used() -> None:
    async def scenario() -> None:
        async with data_files(CrashStorage()) as files:
            current = await files.take(100, grows=False)
            current.first_batch = 1
            files.refill(half_used=False)
            await until_spares(files, 1)
            assert len(files) == 2
            files.refill(half_used=True)
            await until_spares(files, 2)

    run(scenario())


def test_the_last_spare_is_for_batches_that_free_room() -> None:
    async def scenario() -> None:
        storage = CrashStorage()
        async with data_files(storage) as files:
            told: list[bool] = []
            files.on_full = lambda: told.append(True)
            (await files.take(100, grows=False)).first_batch = 1
            files.refill(half_used=False)
            await until_spares(files, 1)
            storage.fault = full("preallocate")
            with pytest.raises(StoreFullError, match="no room"):
                await files.take(100, grows=True)
            assert told
            assert files.spare_count == 1
            reserve = await files.take(100, grows=False)
            assert files.spare_count == 0
            with pytest.raises(StoreFullError):
                await files.take(100, grows=False)
            storage.fault = lambda _operation, _name: None
            assert await files.take(100, grows=True) is not reserve

    run(scenario())


def test_no_spare_is_made_beyond_the_reserve_when_room_would_fall_below_the_limit() -> None:
    async def scenario() -> None:
        storage = CrashStorage()
        storage.free = LENGTH + 999
        async with data_files(storage, free_limit=1000) as files:
            with pytest.raises(StoreFullError):
                await files.take(100, grows=True)
            assert files.spare_count == 1
            storage.free += 1
            await files.take(100, grows=True)

    run(scenario())


def test_a_batch_that_is_too_large_gets_a_file_of_its_own_size() -> None:
    async def scenario() -> None:
        storage = CrashStorage()
        async with data_files(storage) as files:
            special = await files.take(3 * LENGTH, grows=True)
            assert special.length == 3 * LENGTH
            assert storage.list() == [special.name]
            files.put_back(special)
            assert files.spare_count == 0  # of no use for others, so it is deleted
            assert len(files) == 0
        assert storage.list() == []

    run(scenario())


def test_a_batch_that_is_too_large_for_the_disk_is_refused() -> None:
    async def scenario() -> None:
        storage = CrashStorage()
        async with data_files(storage) as files:
            storage.fault = full("preallocate")
            with pytest.raises(StoreFullError, match=str(3 * LENGTH)):
                await files.take(3 * LENGTH, grows=True)
            storage.fault = lambda *_: OSError(5, "broken")
            with pytest.raises(StoreIOError, match="broken"):
                await files.take(3 * LENGTH, grows=True)
            with pytest.raises(StoreIOError, match="broken"):
                await files.take(100, grows=True)

    run(scenario())


def test_a_file_put_back_is_the_next_one_taken() -> None:
    async def scenario() -> None:
        async with data_files(CrashStorage()) as files:
            first = await files.take(100, grows=True)
            files.put_back(first)
            assert await files.take(100, grows=True) is first

    run(scenario())


def test_nothing_is_taken_after_closing() -> None:
    async def scenario() -> None:
        async with data_files(CrashStorage()) as files:
            await files.close()
            with pytest.raises(StoreClosedError):
                await files.take(100, grows=True)

    run(scenario())


def test_only_so_many_old_files_stay_open_and_one_being_read_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(_files, "OPEN_FILES_MAX", 2)
        async with data_files(CrashStorage()) as files:
            made = [await files.take(2 * LENGTH, grows=True) for _ in range(4)]
            files.borrow(made[0])
            for file in made:
                files.retire(file)
            assert made[0].handle is not None
            assert made[1].handle is None
            files.give_back(made[0])
            # Reading a closed one opens it again.
            handle = files.borrow(made[1])
            assert decode_file_header(handle.pread(FILE_HEADER_BYTES, 0)).file_id == made[1].file_id
            assert sum(file.handle is not None for file in made) <= 3
            files.give_back(made[1])

    run(scenario())
