"""Files of large bodies that nobody needs are written anew, or given back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from journal_kit import KB, checkpoint, killed, opened, until, write
from large_bodies import (
    SIZE,
    ShortDirectory,
    add_large,
    bodies_of,
    body_files,
    content,
    download,
    files,
    message_with,
    pending,
    store_with,
    upload,
    use_up,
)
from numbered import ack

from tidegate.spi import AddMessage, LargeBodyError, StoreFullError, StoreIOError
from tidegate.testing.faulty_storage import Faults, FaultyDisk
from tidegate_store_journal import JournalStore


async def test_the_next_body_of_about_the_size_is_written_over_a_file_that_nobody_needs(
    tmp_path: Path,
) -> None:
    store, _ = await opened(tmp_path)
    await use_up(store, 1)
    (free,) = [name for name in files(tmp_path) if name.endswith(".free")]
    place = tmp_path / "journal" / "large-messages"
    inode = (place / free).stat().st_ino
    body = await upload(store, 2, SIZE - 50 * KB)
    await write(store, AddMessage(2, message_with(body), (1,)))
    assert body.id + ".free" != free
    (name,) = body_files(tmp_path)
    assert ((place / name).stat().st_ino, (place / name).stat().st_size) == (inode, SIZE)
    assert store.statistics().disk_bytes >= SIZE
    assert await download(store, body) == content(2, SIZE - 50 * KB)
    await store.close()
    again, state = await opened(tmp_path)
    assert state.report.notes == ()
    (stored,) = await pending(again)
    assert stored.message.large is not None
    assert await download(again, stored.message.large) == content(2, SIZE - 50 * KB)
    await again.close()


async def test_free_files_are_given_back_when_nothing_comes_and_when_the_store_is_closed(
    tmp_path: Path,
) -> None:
    store, _ = await opened(tmp_path)
    await use_up(store, 1)
    for _ in range(2):
        assert len([name for name in files(tmp_path) if name.endswith(".free")]) == 1
        await checkpoint(store)
    assert [name for name in files(tmp_path) if name.endswith(".free")] == []
    await use_up(store, 2)
    killed(tmp_path / "journal", tmp_path / "copy" / "journal")
    await store.close()
    assert [name for name in files(tmp_path) if name.endswith(".free")] == []
    again, state = await opened(tmp_path / "copy")  # as after SIGKILL
    assert state.report.notes == ()
    assert [name for name in files(tmp_path / "copy") if name.endswith(".free")] == []
    await again.close()


async def test_a_free_file_that_somebody_removed_is_made_anew(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    await use_up(store, 1)
    for path in (tmp_path / "journal" / "large-messages").glob("*.free"):
        path.unlink()
    body = await upload(store, 2)
    assert await download(store, body) == content(2)
    await store.close()


async def test_an_upload_that_began_with_a_free_file_and_is_given_up_leaves_none(
    tmp_path: Path,
) -> None:
    store, _ = await opened(tmp_path)
    await use_up(store, 1)
    bodies_of(store).create(SIZE).abandon()  # before its first byte
    async with asyncio.timeout(60):
        while any(name.endswith(".free") for name in files(tmp_path)):
            await asyncio.sleep(0.002)
    await use_up(store, 2)
    writer = bodies_of(store).create(SIZE)
    await writer.write(b"x" * KB, b"y" * KB)
    writer.abandon()
    await until(lambda: not any(name.endswith((".free", ".body")) for name in files(tmp_path)))
    await store.close()


async def test_free_files_are_the_first_to_go_when_the_disk_is_short(tmp_path: Path) -> None:
    storage = ShortDirectory(tmp_path / "large")
    store = store_with(tmp_path, storage)
    await store.open()
    await use_up(store, 1)
    assert [name.rpartition(".")[2] for name in storage.list() if "." in name] == ["free"]
    storage.free = 0
    with pytest.raises(StoreFullError, match="has no room"):
        await upload(store, 2, 3 * SIZE)
    assert [name for name in storage.list() if name.endswith(".free")] == []
    storage.free = 100 << 20  # enough for bodies, too little to keep files that nobody needs
    await use_up(store, 3)
    assert [name for name in storage.list() if name.endswith((".free", ".body"))] == []
    await store.close()


async def unhurried(directory: Path, monkeypatch: pytest.MonkeyPatch) -> JournalStore:
    """A store that makes no checkpoint by the clock, only for two bodies that nobody needs."""
    monkeypatch.setattr("tidegate_store_journal.index.largereferences.LOOSE_BYTES_MAX", 2 * SIZE)
    store, _ = await opened(directory, checkpoint_interval=3600, cleanup_interval=3600)
    return store


async def test_bodies_that_go_in_numbers_make_a_checkpoint_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await unhurried(tmp_path, monkeypatch)
    await add_large(store, 1)
    await add_large(store, 2, number=2)
    await write(store, ack(1))
    await asyncio.sleep(0.05)
    assert len(body_files(tmp_path)) == 2
    await write(store, ack(2))
    await until(lambda: not body_files(tmp_path))
    await store.close()


async def test_bodies_that_nobody_takes_make_a_checkpoint_due_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await unhurried(tmp_path, monkeypatch)
    for number in range(6):  # as for a topic to which nobody subscribes
        await upload(store, number)
    await until(lambda: len(body_files(tmp_path)) <= 2)
    await store.close()


@pytest.mark.parametrize("seed", range(12))
async def test_a_power_cut_while_files_are_used_again_takes_no_body_of_a_confirmed_message(
    tmp_path: Path, seed: int
) -> None:
    disk = FaultyDisk(seed=seed)

    async def load() -> list[int]:
        confirmed: list[int] = []
        store = store_with(tmp_path, disk.start(Faults(cut_at_sync=1 + 2 * seed + seed % 2)))
        await store.open()
        try:
            await add_large(store, 1)
            confirmed.append(1)
            for sequence in range(2, 8):
                await use_up(store, sequence)
                await add_large(store, 10 + sequence, number=10 + sequence)
                confirmed.append(10 + sequence)
        except (LargeBodyError, StoreIOError):
            pass
        await store.close()
        return confirmed

    async def look(confirmed: list[int]) -> None:
        store = store_with(tmp_path, disk.start())
        await store.open()
        found = {stored.sequence: stored for stored in await pending(store)}
        assert [number for number in found if number == 1 or number > 10] == confirmed
        for sequence in confirmed:
            large = found[sequence].message.large
            assert large is not None
            assert await download(store, large) == content(sequence)
        await store.close()

    confirmed = await load()
    disk.cut_power()
    await look(confirmed)
