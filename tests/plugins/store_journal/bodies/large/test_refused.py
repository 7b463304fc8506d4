"""Large bodies without room, on broken disks, and in stores that take none."""

from __future__ import annotations

import asyncio
import errno
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from journal_kit import KB, checkpoint, new_store, opened, options, write, write_only
from large_bodies import (
    SIZE,
    ShortDirectory,
    add_large,
    bodies_of,
    body_files,
    content,
    download,
    message_with,
    pending,
    store_with,
    upload,
    use_up,
)
from numbered import ack

from tidegate.spi import (
    Acknowledge,
    AddMessage,
    LargeBodyError,
    Message,
    StoreClosedError,
    StoreFullError,
    StoreIOError,
)
from tidegate.testing.faulty_storage import Call, Faults, FaultyDisk
from tidegate_store_journal.bodies.large import LARGE_THREADS, LargeFiles
from tidegate_store_journal.index.largereferences import LargeReferences
from tidegate_store_journal.log.memory import MemoryStorage
from tidegate_store_journal.log.storage import DirectoryStorage

# ---------------------------------------------------------------------------------- full, broken


async def test_a_body_without_room_is_refused_before_it_is_written(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    writer = bodies_of(store).create(1 << 60)
    with pytest.raises(StoreFullError, match="disk_free_limit"):
        await writer.write(b"x")
    assert body_files(tmp_path) == []
    await write(store, AddMessage(1, Message("queue://q", b"small"), (1,)))
    await store.close()


async def test_a_body_whose_size_is_not_known_is_as_long_as_what_was_written(
    tmp_path: Path,
) -> None:
    store, _ = await opened(tmp_path)
    writer = bodies_of(store).create(None)
    for _ in range(3):
        await writer.write(content(), b"", b"x")
    body = await writer.finish()
    assert body.size == 3 * SIZE + 3
    await write(store, AddMessage(1, message_with(body), (1,)))
    await store.close()
    again, state = await opened(tmp_path)
    assert state.pending[1].body_bytes == 3 * SIZE + 3
    assert await download(again, body) == 3 * (content() + b"x")
    await again.close()


async def test_a_body_whose_size_is_not_known_has_one_byte_at_least(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    with pytest.raises(ValueError, match="0 bytes of a body"):
        await bodies_of(store).create(None).finish()
    await store.close()
    assert body_files(tmp_path) == []


async def test_a_body_whose_size_is_not_known_is_refused_when_it_takes_the_room(
    tmp_path: Path,
) -> None:
    storage = ShortDirectory(tmp_path / "large")
    store = store_with(tmp_path, storage)
    await store.open()
    limit = bodies_of(store)._free_limit_bytes
    await use_up(store, 1)
    writer = bodies_of(store).create(None)
    await writer.write(content())
    storage.free = limit + 10
    await writer.write(b"y" * 10)
    assert [name for name in storage.list() if name.endswith(".free")], "there is room yet"
    with pytest.raises(StoreFullError, match=f"{SIZE + 21} bytes or more has no room"):
        await writer.write(b"y" * 10, b"z")
    assert [name for name in storage.list() if name.endswith(".free")] == []
    async with asyncio.timeout(60):
        while any(name.endswith(".body") for name in storage.list()):
            await asyncio.sleep(0.002)
    await store.close()


FAULTS = {
    "full while writing": ((Call.WRITE, 2), errno.ENOSPC, StoreFullError),
    "broken while writing": ((Call.WRITE, 1), errno.EIO, LargeBodyError),
    "broken sync": ((Call.SYNC, 1), errno.EIO, LargeBodyError),
    "broken directory": ((Call.SYNC_DIRECTORY, 1), errno.EIO, LargeBodyError),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_disk_that_fails_costs_the_upload_and_nothing_else(
    tmp_path: Path, fault: str
) -> None:
    call, number, expected = FAULTS[fault]
    disk = FaultyDisk(seed=1)
    storage = disk.start(Faults(errors={call: number}))

    store = store_with(tmp_path, storage)
    await store.open()
    with pytest.raises(expected):
        await upload(store)
    async with asyncio.timeout(60):
        while any(name.endswith(".body") for name in storage.list()):
            await asyncio.sleep(0.002)
    await add_large(store, 1)
    assert store.statistics().writable
    await store.close()


@pytest.mark.parametrize("cut_at_sync", range(1, 8))
async def test_a_power_cut_takes_no_body_of_a_confirmed_message(
    tmp_path: Path, cut_at_sync: int
) -> None:
    """The journal itself is safe here (its own tests cut its power): only the bodies' disk fails."""
    disk = FaultyDisk(seed=cut_at_sync)

    async def load() -> list[int]:
        confirmed: list[int] = []
        store = store_with(tmp_path, disk.start(Faults(cut_at_sync=cut_at_sync)))
        await store.open()
        try:
            for sequence in (1, 2, 3):
                await add_large(store, sequence, number=sequence)
                confirmed.append(sequence)
        except (LargeBodyError, StoreIOError):
            pass
        await store.close()
        return confirmed

    async def look(confirmed: list[int]) -> None:
        storage = disk.start()
        store = store_with(tmp_path, storage)
        await store.open()
        found = await pending(store)
        assert [stored.sequence for stored in found] == confirmed
        for stored in found:
            assert stored.message.large is not None
            assert await download(store, stored.message.large) == content(stored.sequence)
        assert len([n for n in storage.list() if n.endswith(".body")]) == len(confirmed)
        await store.close()

    confirmed = await load()
    disk.cut_power()
    await look(confirmed)
    assert (len(confirmed) == 3) == (cut_at_sync > 6)


# ------------------------------------------------------------------------------------- the rest


async def test_nothing_is_taken_before_open_and_after_close(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    body = await upload(store)
    reader = bodies_of(store).open(body)
    writer = bodies_of(store).create(SIZE)
    await writer.write(b"x")
    await store.close()
    for use in (lambda: bodies_of(store).create(1), lambda: bodies_of(store).open(body)):
        with pytest.raises(StoreClosedError):
            use()
    with pytest.raises(StoreClosedError):
        await reader.read(1)
    with pytest.raises(StoreClosedError):
        await writer.write(b"x")
    reader.close()
    with pytest.raises(StoreClosedError):
        await reader.read(1)


def test_stores_that_are_not_on_disk_or_do_not_want_to_have_no_large_bodies(tmp_path: Path) -> None:
    assert new_store(tmp_path, large_message_min_size=0).capabilities.large_bodies is None
    assert new_store(tmp_path, persistent=False).capabilities.large_bodies is None
    assert new_store(tmp_path, MemoryStorage()).capabilities.large_bodies is None
    assert bodies_of(new_store(tmp_path)).size_min == 100 * KB


async def test_bodies_that_are_there_are_delivered_after_new_ones_were_switched_off(
    tmp_path: Path,
) -> None:
    store, _ = await opened(tmp_path)
    body = await upload(store)
    await write(store, AddMessage(1, Message("queue://q", b"", large=body), (1,)))
    await store.close()
    store, state = await opened(tmp_path, large_message_min_size=0)
    assert state.report.notes == ()
    (found,) = await pending(store)
    assert found.message.large is not None
    assert await download(store, found.message.large) == content()
    assert bodies_of(store).size_min > 1 << 60
    await write(store, ack(1))
    del found
    await store.close()
    assert not list((tmp_path / "journal" / "large-messages").glob("*.body"))


async def test_the_thread_count_is_enough_for_uploads_and_downloads_at_once(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    numbers = range(2 * LARGE_THREADS)
    made = await asyncio.gather(*[upload(store, number) for number in numbers])
    read = await asyncio.gather(*[download(store, body) for body in made])
    assert read == [content(number) for number in numbers]
    await store.close()


async def test_strategy_never_does_not_sync_bodies(tmp_path: Path) -> None:
    syncs: list[str] = []

    class Counting(DirectoryStorage):
        def sync_directory(self) -> None:
            syncs.append("directory")

    files = LargeFiles(Counting(tmp_path), options(journal_datasync=False))
    files.prepare("test", LargeReferences(), False)
    with ThreadPoolExecutor() as executor:
        files.start(executor, executor)
        body = await files.create(None).finish(b"whole")
        assert await files.open(body).read(10) == b"whole"
        files.stop()
    assert syncs == []
    files.release()


async def test_acknowledging_without_a_sync_keeps_the_file_until_the_checkpoint(
    tmp_path: Path,
) -> None:
    store, _ = await opened(tmp_path)
    await add_large(store, 1)
    operation = ack(1)
    assert isinstance(operation, Acknowledge)
    await write_only(store, operation)
    assert len(body_files(tmp_path)) == 1
    await checkpoint(store)
    assert body_files(tmp_path) == []
    await store.close()


async def test_a_checkpoint_keeps_the_body_of_a_message_that_came_and_went_while_it_was_written(
    tmp_path: Path,
) -> None:
    """Its acknowledgement need not be on disk yet: after a power cut it would have no body."""
    store, _ = await opened(tmp_path)
    checkpointer: Any = store._checkpointer  # pyright: ignore[reportPrivateUsage]
    sync = checkpointer.sync
    waiting = [message_with(await upload(store))]

    async def sync_while_it_comes_and_goes() -> None:
        checkpointer.sync = sync
        await sync()
        await write(store, AddMessage(1, waiting.pop(), (1,)))
        await write_only(store, ack(1))

    checkpointer.sync = sync_while_it_comes_and_goes
    await checkpointer.run(force=True)
    assert (waiting, len(body_files(tmp_path))) == ([], 1)
    await checkpoint(store)
    assert body_files(tmp_path) == []
    await store.close()
