"""What a running gateway does about room: sparse record files are compacted, empty directories go."""

from __future__ import annotations

import asyncio
import errno
import os
import random
from pathlib import Path

import pytest
from journal_kit import (
    ANY_SIZE,
    CrashStorage,
    ack,
    opened,
    pending,
    run,
    write,
    write_only,
)
from split_kit import ALL, add, checkpoint, folder_of, split_of, split_store, tidy_of, vrfile

from tidegate.spi import (
    AddDestination,
    CorruptRecordError,
    RemoveDestination,
    StoreFullError,
    StoreIOError,
)
from tidegate_store_journal import JournalStore

SPARSE = {"journal_max_file_length": 128 << 10}


async def sparse_store(where: Path, storage: object = None) -> JournalStore:
    store = await split_store(where, storage, **SPARSE)
    await write(store, AddDestination("queue://q", 1))
    for begin in range(1, 301, 50):
        await write(store, *(add(begin + n, size=1000) for n in range(50)))
    await write(store, ack(*(n for n in range(1, 301) if n % 30)))
    await checkpoint(store)
    return store


LEFT = list(range(30, 301, 30))


def test_a_sparse_record_file_is_compacted(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await sparse_store(tmp_path)
        before = folder_of(store).record_file_bytes
        await tidy_of(store).tidy()
        assert folder_of(store).record_file_bytes < before / 10
        assert vrfile(tmp_path).stat().st_size == folder_of(store).record_file_bytes
        assert await pending(store) == LEFT
        await write(store, add(400), ack(30))
        assert await pending(store) == [*LEFT[1:], 400]
        await store.close()
        store = await split_store(tmp_path)
        assert await pending(store) == [*LEFT[1:], 400]
        await store.close()

    run(scenario())


def test_short_or_full_files_are_left_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await split_store(tmp_path, **SPARSE)
        await write(store, *(add(n, size=1000) for n in range(1, 101)))
        await write(store, add(200, queue="small"), add(201, queue="small"))
        before = vrfile(tmp_path).stat().st_ino, vrfile(tmp_path, "small").stat().st_ino
        await tidy_of(store).tidy()
        assert (vrfile(tmp_path).stat().st_ino, vrfile(tmp_path, "small").stat().st_ino) == before
        await store.close()

    run(scenario())


def test_it_happens_by_itself_at_the_cleanup_interval(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await sparse_store(tmp_path)
        await store.close()
        before = vrfile(tmp_path).stat().st_size
        store = await split_store(
            tmp_path, checkpoint_interval=0.01, cleanup_interval=0.01, **SPARSE
        )
        async with asyncio.timeout(20):
            while vrfile(tmp_path).stat().st_size >= before:
                await asyncio.sleep(0.005)
        assert await pending(store) == LEFT
        await store.close()

    run(scenario())


def test_the_directory_of_a_removed_destination_goes(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await split_store(tmp_path)
        await write(store, AddDestination("queue://q", 1), AddDestination("queue://r", 2))
        await write(store, add(1), add(2, 2, queue="r"))
        await write(store, RemoveDestination("queue://q", 1))
        await checkpoint(store)
        await tidy_of(store).tidy()
        assert not vrfile(tmp_path).parent.exists()
        assert vrfile(tmp_path, "r").exists()
        await write(store, AddDestination("queue://q", 3), add(3, 3))
        assert await pending(store, 3) == [3]
        await store.close()
        store = await split_store(tmp_path)
        assert await pending(store, 3) == [3]
        assert await pending(store, 2) == [2]
        await store.close()

    run(scenario())


@pytest.mark.parametrize("seed", range(6))
def test_a_power_cut_during_compaction_loses_nothing(tmp_path: Path, seed: int) -> None:
    """Killed at each of its disk operations in turn."""

    async def scenario() -> None:
        for step in range(1, 9):
            storage = CrashStorage()
            store = await sparse_store(tmp_path, storage)
            # Consumed, but not durably: these must survive a cut, compaction or not.
            await write_only(store, ack(60, 90))
            images: list[CrashStorage] = []
            count = 0

            def watch(
                _operation: str,
                name: str,
                *,
                storage: CrashStorage = storage,
                images: list[CrashStorage] = images,
                step: int = step,
            ) -> OSError | None:
                nonlocal count
                if "vrfile" in name:
                    count += 1
                    if count == step:
                        images.append(storage.crash(seed))
                return None

            storage.fault = watch
            await tidy_of(store).compact("queue://q")
            storage.fault = lambda _operation, _name: None
            images.append(storage.crash(seed))
            await store.close()
            for image in images:
                again, _ = await opened(tmp_path, image, per_destination=ALL)
                assert set(await pending(again)) >= set(LEFT) - {60, 90}
                await again.close()

    run(scenario())


def test_pages_and_writes_go_on_beside_compactions(tmp_path: Path) -> None:
    async def scenario() -> None:
        chance = random.Random(5)
        store = await split_store(tmp_path, **SPARSE)
        expected: list[int] = []
        is_over = False

        async def compacting() -> None:
            while not is_over:
                await tidy_of(store).compact("queue://q")
                await asyncio.sleep(0)

        async def reading() -> None:
            while not is_over:
                for item in await store.page_in(1, 0, 1000, ANY_SIZE):
                    assert item.message.body.split()[0] == b"%d" % item.sequence
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as group:
            group.create_task(compacting())
            group.create_task(reading())
            for sequence in range(1, 201):
                expected.append(sequence)
                gone = chance.sample(expected, min(len(expected) - 1, chance.randrange(3)))
                expected = [item for item in expected if item not in gone]
                operations = [add(sequence, size=chance.randrange(10, 3000))]
                await write(store, *operations, *([ack(*gone)] if gone else []))
            is_over = True
        assert await pending(store) == expected
        await store.close()
        store = await split_store(tmp_path)
        assert await pending(store) == expected
        await store.close()

    run(scenario())


def test_a_full_disk_stops_the_compaction_and_nothing_else(tmp_path: Path) -> None:
    async def scenario() -> None:
        storage = CrashStorage()
        store = await sparse_store(tmp_path, storage)

        def full(operation: str, name: str) -> OSError | None:
            if operation == "pwritev" and "vrfile.tmp" in name:
                return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return None

        storage.fault = full
        with pytest.raises(StoreFullError):
            await tidy_of(store).compact("queue://q")
        assert not [name for name in storage.list() if name.endswith(".tmp")]
        await write(store, add(400))
        assert await pending(store) == [*LEFT, 400]
        await store.close()

    run(scenario())


def test_a_rename_that_fails_makes_the_store_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        storage = CrashStorage()
        store = await sparse_store(tmp_path, storage)

        def broken() -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr(storage, "sync_directory", broken)
        with pytest.raises(StoreIOError):
            await tidy_of(store).compact("queue://q")
        monkeypatch.undo()
        with pytest.raises(StoreIOError, match="read-only"):
            await write(store, add(400))
        await store.close()

    run(scenario())


def test_damage_is_reported_and_the_file_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        store = await sparse_store(tmp_path)
        path = vrfile(tmp_path)
        data = path.read_bytes()
        at = data.index(b"60 ....") + 500
        with path.open("r+b") as file:
            file.seek(at)
            file.write(b"?")
        with pytest.raises(CorruptRecordError, match="message 60"):
            await tidy_of(store).compact("queue://q")
        assert path.stat().st_size == len(data)
        await write(store, add(400))
        await store.close()
        store = await split_store(
            tmp_path, checkpoint_interval=0.01, cleanup_interval=0.01, **SPARSE
        )
        async with asyncio.timeout(20):
            while "cannot be compacted" not in caplog.text:
                await asyncio.sleep(0.005)
        assert split_of(store).messages == 11
        await store.close()

    run(scenario())
