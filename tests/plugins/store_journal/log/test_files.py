"""Data files: made ahead, kept in reserve, opened again."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import pytest
from journal_kit import CrashStorage, full

from tidegate.spi import StoreClosedError, StoreFullError, StoreIOError
from tidegate_store_journal import JournalOptions
from tidegate_store_journal.log import homes as _homes
from tidegate_store_journal.log.datafile import DataFile
from tidegate_store_journal.log.files import DataFiles, Reclaimer
from tidegate_store_journal.log.format import FILE_HEADER_BYTES, decode_file_header

STORE_ID = "0" * 32
LENGTH = 65536


@asynccontextmanager
async def data_files(
    storage: CrashStorage, *, files_min: int = 2, free_limit: int = 0, **more: Any
) -> AsyncIterator[DataFiles]:
    with ThreadPoolExecutor(2) as executor:
        options = JournalOptions(
            journal_max_file_length=LENGTH,
            journal_min_files=files_min,
            **more,
        )
        files = DataFiles(storage, executor, options, store_id=STORE_ID, free_limit=free_limit)
        yield files
        await files.close()


async def taken(files: DataFiles, length: int, *, grows: bool) -> DataFile:
    """As a batch would: ask again when a file was made ready."""
    while True:
        file = await files.take(length, grows=grows)
        if file is not None:
            files.begun()
            return file
        await files.make_ready(grows=grows, waits=True)


async def until_spares(files: DataFiles, count: int) -> None:
    async with asyncio.timeout(60):
        while files.spare_count < count:
            await asyncio.sleep(0.001)


async def test_spares_are_made_ahead() -> None:
    storage = CrashStorage()
    async with data_files(storage, files_min=4) as files:
        current = await taken(files, 100, grows=True)
        current.first_batch = 1
        files.refill(half_used=False)
        await until_spares(files, 3)
        assert len(files) == 4
        assert files.disk_bytes == 4 * LENGTH
        names = [file.name for file in (current, *[files.get(item) for item in (2, 3, 4)]) if file]
        assert sorted(storage.list()) == sorted(names)


async def test_one_more_is_made_when_the_current_one_is_half_used() -> None:
    async with data_files(CrashStorage()) as files:
        current = await taken(files, 100, grows=False)
        current.first_batch = 1
        files.refill(half_used=False)
        await until_spares(files, 1)
        assert len(files) == 2
        files.refill(half_used=True)
        await until_spares(files, 2)


@pytest.mark.parametrize("is_put_back", [False, True])
async def test_a_file_whose_first_batch_is_under_way_is_the_one_that_was_soon_needed(
    is_put_back: bool,
) -> None:
    """Else one more is made just then, and the disk has a file too many for good."""
    async with data_files(CrashStorage()) as files:
        (await taken(files, 100, grows=False)).first_batch = 1
        files.refill(half_used=True)
        await until_spares(files, 2)
        under_way = await files.take(100, grows=True)
        assert under_way is not None
        # A round of the reclaimer ends meanwhile, and others ask for a file.
        files.reclaimed(for_good=False)
        await files.make_ready(grows=True, waits=True)
        await files.make_ready(grows=True, waits=False)
        assert (files.spare_count, len(files)) == (1, 3)
        assert files._preparing is None  # pyright: ignore[reportPrivateUsage]
        if is_put_back:
            files.put_back(under_way)
            assert files.spare_count == 2
        else:
            under_way.first_batch = 2
            files.begun()
            files.refill(half_used=False)
            assert files._preparing is None  # pyright: ignore[reportPrivateUsage]
            files.refill(half_used=True)
            await until_spares(files, 2)


async def test_a_file_taken_while_another_is_made_is_not_replaced_before_it_is_begun() -> None:
    async with data_files(CrashStorage()) as files:
        (await taken(files, 100, grows=False)).first_batch = 1
        files.refill(half_used=False)
        await until_spares(files, 1)
        files.refill(half_used=True)  # the second spare is being made now
        assert await files.take(100, grows=False) is not None
        preparing = files._preparing  # pyright: ignore[reportPrivateUsage]
        assert preparing is not None
        await preparing
        assert (files.spare_count, len(files)) == (1, 3)


async def test_the_last_spare_is_for_batches_that_free_room() -> None:
    storage = CrashStorage()
    async with data_files(storage) as files:
        told: list[bool] = []
        files.on_full = lambda: told.append(True)
        (await taken(files, 100, grows=False)).first_batch = 1
        files.refill(half_used=False)
        await until_spares(files, 1)
        storage.fault = full("preallocate")
        with pytest.raises(StoreFullError, match="no room"):
            await taken(files, 100, grows=True)
        assert told
        assert files.spare_count == 1
        reserve = await taken(files, 100, grows=False)
        assert files.spare_count == 0
        with pytest.raises(StoreFullError):
            await taken(files, 100, grows=False)
        storage.fault = lambda _operation, _name: None
        assert await taken(files, 100, grows=True) is not reserve


async def test_no_spare_is_made_beyond_the_reserve_when_room_would_fall_below_the_limit() -> None:
    storage = CrashStorage()
    storage.free = LENGTH + 999
    async with data_files(storage, free_limit=1000) as files:
        with pytest.raises(StoreFullError):
            await taken(files, 100, grows=True)
        assert files.spare_count == 1
        storage.free += 1
        await taken(files, 100, grows=True)


async def test_a_batch_that_is_too_large_gets_a_file_of_its_own_size() -> None:
    storage = CrashStorage()
    async with data_files(storage) as files:
        special = await taken(files, 3 * LENGTH, grows=True)
        assert special.length == 3 * LENGTH
        assert storage.list() == [special.name]
        files.put_back(special)
        assert files.spare_count == 0  # of no use for others, so it is deleted
        assert len(files) == 0
    assert storage.list() == []


async def test_a_batch_that_is_too_large_for_the_disk_is_refused() -> None:
    storage = CrashStorage()
    async with data_files(storage) as files:
        storage.fault = full("preallocate")
        with pytest.raises(StoreFullError, match=str(3 * LENGTH)):
            await taken(files, 3 * LENGTH, grows=True)
        storage.fault = lambda *_: OSError(5, "broken")
        with pytest.raises(StoreIOError, match="broken"):
            await taken(files, 3 * LENGTH, grows=True)
        with pytest.raises(StoreIOError, match="broken"):
            await taken(files, 100, grows=True)


async def test_a_file_put_back_is_the_next_one_taken() -> None:
    async with data_files(CrashStorage()) as files:
        first = await taken(files, 100, grows=True)
        files.put_back(first)
        assert await taken(files, 100, grows=True) is first


async def test_nothing_is_taken_after_closing() -> None:
    async with data_files(CrashStorage()) as files:
        await files.close()
        with pytest.raises(StoreClosedError):
            await taken(files, 100, grows=True)


async def test_only_so_many_old_files_stay_open_and_one_being_read_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_homes, "OPEN_FILES_MAX", 2)
    async with data_files(CrashStorage()) as files:
        made = [await taken(files, 2 * LENGTH, grows=True) for _ in range(4)]
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


# --------------------------------------------------------------------------------- dead and reused


async def used_files(files: DataFiles, count: int) -> list[DataFile]:
    """So many files that hold batches; the reserve stays."""
    made: list[DataFile] = []
    for number in range(count):
        file = await taken(files, 100, grows=False)
        file.first_batch = number + 1
        made.append(file)
    return made


def ends(storage: CrashStorage, ending: str) -> list[str]:
    return sorted(name for name in storage.list() if name.endswith(ending))


async def test_a_dead_file_is_kept_and_is_the_next_one_made_ready() -> None:
    storage = CrashStorage()
    async with data_files(storage) as files:
        made = await used_files(files, 3)
        await files.dispose(made[:2])
        assert len(files.own.pool) == 2
        assert ends(storage, ".free") == ["journal-0000000001.free", "journal-0000000002.free"]
        assert len(files) == 1
        assert files.disk_bytes == 3 * LENGTH
        before = storage.written
        file = await taken(files, 100, grows=False)
        assert (file.reused, file.file_id) == (True, 4)
        assert storage.written - before < 2 * 4096
        assert ends(storage, ".free") == ["journal-0000000002.free"]
        assert files.disk_bytes == 3 * LENGTH


async def test_files_are_parted_with_but_for_the_reserve() -> None:
    storage = CrashStorage()
    async with data_files(storage) as files:
        made = await used_files(files, 5)
        await files.dispose(made[:4])
        before = files.spare_count + len(files.own.pool)
        parted = 0
        while await files.part_with_one():
            parted += 1
        assert files.spare_count + len(files.own.pool) == before - parted == 1
        assert len(ends(storage, ".free")) == len(files.own.pool)
        assert len(ends(storage, ".data")) == len(files)
        assert await taken(files, 100, grows=False)


@pytest.mark.parametrize("is_broken", [False, True])
async def test_a_dead_file_is_not_used_again_while_its_old_name_could_come_back(
    is_broken: bool,
) -> None:
    """Else a power cut could leave the new file's bytes under the old file's name."""
    storage = CrashStorage()
    async with data_files(storage) as files:
        made = await used_files(files, 4)
        counts: list[tuple[int, int]] = []
        sync_directory = storage.sync_directory

        def sync() -> None:
            counts.append((len(files.own.pool), files.disk_bytes))
            if is_broken and len(counts) == 1:
                raise OSError(errno.EIO, "broken")
            sync_directory()

        storage.sync_directory = sync
        if is_broken:
            with pytest.raises(OSError, match="broken"):
                await files.dispose(made[:1])
            assert len(files.own.pool) == 0
            await files.dispose(made[1:2])
        else:
            await files.dispose(made[:2])
        assert counts == [(0, 4 * LENGTH)] * len(counts)
        assert len(files.own.pool) == 2


@pytest.mark.parametrize(("pool_files", "kept"), [(-1, 8), (0, 2), (4, 2), (6, 4), (100, 8)])
async def test_dead_files_are_kept_up_to_the_limit_of_files_in_all(
    pool_files: int, kept: int
) -> None:
    """Two are kept at least: the spares that are needed next."""
    storage = CrashStorage()
    async with data_files(storage, journal_pool_files=pool_files) as files:
        made = await used_files(files, 10)
        await files.dispose(made[:8])
        assert len(files.own.pool) == kept
        assert len(ends(storage, ".free")) == kept
        assert len(ends(storage, ".data")) == 2


async def test_files_of_another_length_are_never_kept() -> None:
    storage = CrashStorage()
    async with data_files(storage) as files:
        special = await taken(files, 3 * LENGTH, grows=True)
        special.first_batch = 1
        await files.dispose([special])
        assert storage.list() == []
        assert len(files.own.pool) == 0


async def test_dead_files_go_into_the_archive_with_all_their_bytes() -> None:
    storage = CrashStorage()
    async with data_files(storage, archive_data_logs=True, directory_archive="old/logs") as files:
        made = await used_files(files, 3)
        assert made[0].handle is not None
        made[0].handle.pwritev([b"here"], 5000)
        made[0].handle.datasync()
        await files.dispose(made[:2])
        assert len(files.own.pool) == 0
        after = storage.crash(1)
        moved = [f"old/logs/{file.name}" for file in made[:2]]
        assert sorted(after.list()) == sorted([*moved, made[2].name])
        assert after.open(moved[0]).pread(4, 5000) == b"here"


async def test_a_file_that_cannot_be_put_away_and_those_behind_it_are_still_there() -> None:
    storage = CrashStorage()
    async with data_files(storage, archive_data_logs=True) as files:
        made = await used_files(files, 4)
        real = storage.rename

        def rename(old: str, new: str) -> None:
            if old == made[1].name:
                raise OSError(5, "broken")
            real(old, new)

        storage.rename = rename  # type: ignore[method-assign]  # a fault
        with pytest.raises(OSError, match="broken"):
            await files.dispose(made[:3])
        assert files.used() == made[1:]
        storage.rename = real  # type: ignore[method-assign]  # mended
        await files.dispose(made[1:3])
        assert files.used() == made[3:]


class Reclaiming(Reclaimer):
    """A reclaimer that gives back a file at each of so many rounds."""

    def holds(self, room_left: int) -> bool:
        return room_left < 1000

    def __init__(self, files: DataFiles, dead: list[DataFile]) -> None:
        self.files = files
        self.dead = dead
        self.rounds = 0

    def reclaim(self) -> bool:
        return bool(self.dead)

    async def until_reclaimed(self) -> None:
        self.rounds += 1
        await self.files.dispose([self.dead.pop(0)])
        self.files.reclaimed(for_good=False)


async def test_who_needs_a_file_waits_for_a_dead_one_and_makes_one_only_when_there_is_none() -> (
    None
):
    storage = CrashStorage()
    async with data_files(storage) as files:
        made = await used_files(files, 4)
        files.reclaimer = reclaiming = Reclaiming(files, made[:2])
        file = await taken(files, 100, grows=True)
        assert file.reused
        assert reclaiming.rounds == 2  # one for the reserve, one for the batch
        assert files.disk_bytes == 4 * LENGTH
        await taken(files, 100, grows=True)
        assert files.disk_bytes == 5 * LENGTH  # nothing was dead any more


async def test_on_a_full_disk_what_frees_room_waits_for_a_dead_file_though_none_can_be_made() -> (
    None
):
    """It was refused when a file that was wanted ahead could not be made just while it waited."""
    storage = CrashStorage()
    async with data_files(storage) as files:
        made = await used_files(files, 3)
        files.refill(half_used=False)
        await until_spares(files, 1)
        storage.fault = full("preallocate")
        files.refill(half_used=True)
        await asyncio.sleep(0)  # it is under way, and will fail
        files.reclaimer = reclaiming = Reclaiming(files, made[:1])
        assert (await taken(files, 100, grows=False)).length == LENGTH
        assert reclaiming.rounds == 1


async def test_a_spare_for_later_is_not_padded_while_a_file_can_be_reclaimed() -> None:
    storage = CrashStorage()
    async with data_files(storage) as files:
        made = await used_files(files, 3)
        files.refill(half_used=False)
        await until_spares(files, 1)
        files.reclaimer = reclaiming = Reclaiming(files, made[:1])
        files.refill(half_used=True)
        assert files.spare_count == 1
        await reclaiming.until_reclaimed()
        await until_spares(files, 2)
        assert files.disk_bytes == 4 * LENGTH


async def test_room_is_held_for_the_reclaimer_only_when_there_is_no_other_file() -> None:
    async with data_files(CrashStorage()) as files:
        (await taken(files, 100, grows=False)).first_batch = 1
        (await taken(files, 100, grows=False)).first_batch = 2
        assert files.spare_count == 0
        assert not files.holds(0)  # nobody copies anything
        files.reclaimer = Reclaiming(files, [])
        assert files.holds(999)
        assert not files.holds(1000)
        files.refill(half_used=False)
        await until_spares(files, 1)
        assert not files.holds(0)


@pytest.mark.parametrize("is_large", [False, True])
async def test_files_for_large_batches_are_not_padded(is_large: bool) -> None:
    storage = CrashStorage()
    async with data_files(storage) as files:
        files.has_large_batches = is_large
        (await taken(files, 100, grows=False)).first_batch = 1
        assert (storage.written < LENGTH) is is_large
        assert files.disk_bytes == len(files) * LENGTH
