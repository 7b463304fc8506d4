"""Journal types and sync options, counted at the storage: what is written, and what is synced."""

from __future__ import annotations

import asyncio
import builtins
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from journal_kit import (
    JOURNAL_TYPES,
    KB,
    CrashStorage,
    ShuffledRing,
    checkpoint,
    data_files,
    opened,
    options,
    pending,
    with_ring,
    write,
    write_only,
)
from numbered import ack, add

from tidegate.spi import Durability, SyncedFor, WriteBatch
from tidegate_store_journal import JournalStore
from tidegate_store_journal.assembly import open_directory
from tidegate_store_journal.log.mapped import MappedFile
from tidegate_store_journal.log.memory import MemoryStorage
from tidegate_store_journal.log.names import NamedStorage
from tidegate_store_journal.write.ring import RingWriter, make_writer
from tidegate_store_journal.write.writer import Writer

PLAIN, TRANSACTION = SyncedFor.SINGLE, SyncedFor.TRANSACTION


class Counting(CrashStorage):
    """Counts writes to data files; syncs are counted already."""

    writes = 0

    def __init__(self) -> None:
        super().__init__()
        self.fault = self._count

    def _count(self, operation: str, name: str) -> OSError | None:
        if operation == "pwritev" and ".data" in name:
            self.writes += 1
        return None


async def counted(**changes: Any) -> tuple[JournalStore, Counting]:
    """A store in which nothing goes on beside what the test does."""
    storage = Counting()
    store, _ = await opened(Path("unused"), with_ring(storage), **changes)
    async with asyncio.timeout(60):
        while store._files._preparing is not None:  # pyright: ignore[reportPrivateUsage]
            await asyncio.sleep(0.001)
    return store, storage


async def cost(store: JournalStore, storage: Counting, batch: WriteBatch) -> tuple[int, int]:
    """Writes and syncs before *batch* is confirmed."""
    writes, syncs = storage.writes, storage.syncs
    await store.write(batch)
    return storage.writes - writes, storage.syncs - syncs


# ------------------------------------------------------------------------------------- the types


@pytest.mark.parametrize("journal_type", JOURNAL_TYPES)
async def test_every_type_has_its_files_and_its_writer(tmp_path: Path, journal_type: str) -> None:
    chosen = options(journal_type=journal_type)
    storage = open_directory(chosen, tmp_path)
    file = storage.open("journal-0000000001.data", create=True)
    assert isinstance(file, MappedFile) is (journal_type == "MAPPED")
    file.close()
    writer = make_writer(chosen, storage, asyncio.get_running_loop(), lambda _: None)
    assert isinstance(writer, RingWriter if journal_type == "ASYNCIO" else Writer)
    writer.start(0)
    await writer.close()


async def life(where: Path, journal_type: str, first: int) -> list[int]:
    """Some of everything; returns what is pending in the end."""
    store, state = await opened(where, journal_type=journal_type)
    assert state.report.notes == ()
    for number in range(first, first + 200):
        size = (50, 900, 20_000, 150_000)[number % 4 if number % 10 == 0 else number % 3]
        await write(store, add(number, size=size))
        if number % 7:
            await write_only(store, ack(number))
    left = await pending(store)
    await store.close()
    return left


@pytest.mark.parametrize("journal_type", JOURNAL_TYPES)
async def test_what_one_type_wrote_every_other_reads(tmp_path: Path, journal_type: str) -> None:
    left: list[int] = []
    for round_number, other in enumerate((journal_type, *JOURNAL_TYPES)):
        first = 1 + 200 * round_number
        left += [number for number in range(first, first + 200) if number % 7 == 0]
        assert await life(tmp_path, other, first) == left


async def test_the_bytes_on_disk_are_the_same_for_every_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(where: Path, journal_type: str) -> Sequence[bytes]:
        store, _ = await opened(where, journal_type=journal_type)
        for number in range(1, 400):
            await write(store, add(number, size=(40, 3000)[number % 2]))
        await store.close()
        return [path.read_bytes() for path in data_files(where)]

    monkeypatch.setattr("secrets.randbits", lambda _: 7)
    monkeypatch.setattr("secrets.token_hex", lambda size=16: "5" * 2 * size)
    monkeypatch.setattr("uuid.uuid4", lambda: __import__("uuid").UUID(int=5))
    found = {
        journal_type: await scenario(tmp_path / journal_type, journal_type)
        for journal_type in JOURNAL_TYPES
    }
    assert len(found["NIO"]) > 5
    assert found["ASYNCIO"] == found["NIO"]
    assert found["MAPPED"] == found["NIO"]


async def test_without_the_package_asyncio_falls_back_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real_import = builtins.__import__

    def without_caio(name: str, *rest: Any, **more: Any) -> Any:
        if name.split(".")[0] == "caio":
            raise ImportError("No module named 'caio'")
        return real_import(name, *rest, **more)

    with caplog.at_level(logging.WARNING, "tidegate.store.journal"):
        monkeypatch.setattr(builtins, "__import__", without_caio)
        store, _ = await opened(tmp_path, journal_type="ASYNCIO")
        assert isinstance(store._writer, Writer)  # pyright: ignore[reportPrivateUsage]
        await write(store, *[add(number) for number in range(1, 50)])
        assert len(await pending(store)) == 49
        await store.close()
    assert [record.message for record in caplog.records] == [
        "journal_type=ASYNCIO falls back to NIO reason=No module named 'caio'"
    ]


async def test_a_storage_that_takes_no_requests_falls_back_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop = asyncio.get_running_loop()
    chosen = options(journal_type="ASYNCIO")
    assert isinstance(make_writer(chosen, CrashStorage(), loop, lambda _: None), Writer)
    assert "crash: takes no requests" in caplog.text
    caplog.clear()
    assert isinstance(make_writer(chosen, MemoryStorage(), loop, lambda _: None), Writer)
    assert not caplog.records  # nothing gets to a disk, by whatever way


async def test_the_options_reach_the_ring(tmp_path: Path) -> None:
    made: list[tuple[int, ShuffledRing]] = []
    storage: Any = CrashStorage()

    def make_ring(loop: asyncio.AbstractEventLoop, entries: int) -> ShuffledRing:
        made.append((entries, ShuffledRing(loop)))
        return made[-1][1]

    storage.make_ring = make_ring
    store, _ = await opened(
        tmp_path,
        storage,
        journal_type="ASYNCIO",
        journal_max_io=3,
        journal_buffer_size=4 * KB,
    )
    ((entries, ring),) = made
    assert entries == 3
    await write(store, add(1, size=40 * KB))
    assert ring.calls.count("write") == 11
    assert ring.under_way == 3
    await store.close()
    assert ring.is_closed


# -------------------------------------------------------------------------------- what is synced


@pytest.mark.parametrize("journal_type", ["NIO", "ASYNCIO"])
@pytest.mark.parametrize(
    ("changes", "plain", "transaction", "both"),
    [
        ({}, 1, 1, 1),
        ({"journal_sync_transactional": False}, 1, 0, 1),
        ({"journal_sync_non_transactional": False}, 0, 1, 1),
        (
            {"journal_sync_transactional": False, "journal_sync_non_transactional": False},
            0,
            0,
            0,
        ),
        ({"journal_datasync": False}, 0, 0, 0),
        ({"journal_disk_sync_strategy": "never"}, 0, 0, 0),
        ({"journal_disk_sync_strategy": "periodic", "journal_disk_sync_interval": 3600.0}, 0, 0, 0),
    ],
)
async def test_a_batch_is_synced_before_it_is_confirmed_where_the_options_say_so(
    journal_type: str, changes: dict[str, object], plain: int, transaction: int, both: int
) -> None:
    store, storage = await counted(journal_type=journal_type, **changes)
    expected = ((PLAIN, plain), (TRANSACTION, transaction), (PLAIN | TRANSACTION, both))
    for number, (origin, syncs) in enumerate(expected, 1):
        batch = WriteBatch([add(number)], Durability.SYNCED, origin)
        assert await cost(store, storage, batch) == (1, syncs), origin
    assert store.capabilities.durable is (plain + transaction == 2)
    await store.close()


@pytest.mark.parametrize("journal_type", ["NIO", "ASYNCIO"])
async def test_what_was_confirmed_without_a_sync_is_synced_soon(journal_type: str) -> None:
    store, storage = await counted(journal_type=journal_type, journal_sync_non_transactional=False)
    await write(store, add(1))
    async with asyncio.timeout(60):
        while store._writer.synced_batch < 1:  # pyright: ignore[reportPrivateUsage]
            await asyncio.sleep(0.001)
    after = storage.crash()
    await store.close()
    store, _ = await opened(Path("unused"), after)
    assert await pending(store) == [1]
    await store.close()


async def test_without_datasync_a_checkpoint_is_still_not_ahead_of_the_data(tmp_path: Path) -> None:
    store, storage = await counted(journal_datasync=False)
    await write(store, *[add(number) for number in range(1, 10)])
    before = storage.syncs
    await checkpoint(store, force=True)
    assert storage.syncs > before
    await store.close()


# ------------------------------------------------------------------------------ the timed buffer


@pytest.mark.parametrize("journal_type", ["NIO", "ASYNCIO"])
async def test_batches_that_gather_are_one_write_and_one_sync(journal_type: str) -> None:
    store, storage = await counted(journal_type=journal_type, journal_buffer_timeout=0.02)
    writes, syncs = storage.writes, storage.syncs
    await asyncio.gather(*[write(store, add(number)) for number in range(1, 21)])
    assert (storage.writes - writes, storage.syncs - syncs) == (1, 1)
    assert await pending(store) == list(range(1, 21))
    await store.close()


async def test_without_the_timeout_each_is_written_at_once() -> None:
    store, storage = await counted()
    writes, syncs = storage.writes, storage.syncs
    await asyncio.gather(*[write(store, add(number)) for number in range(1, 21)])
    assert (storage.writes - writes, storage.syncs - syncs) == (20, 20)
    await store.close()


async def test_the_buffer_is_written_when_it_is_full() -> None:
    store, storage = await counted(journal_buffer_timeout=3600.0, journal_buffer_size=8 * KB)
    writes, syncs = storage.writes, storage.syncs
    # Three of these fill it, and the last one fills it alone.
    sizes = [2 * KB] * 8 + [8 * KB]
    await asyncio.gather(
        *[write(store, add(number, size=size)) for number, size in enumerate(sizes, 1)]
    )
    assert (storage.writes - writes, storage.syncs - syncs) == (4, 4)
    await store.close()


async def test_what_has_gathered_is_written_when_the_store_is_closed(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path, journal_buffer_timeout=3600.0)
    waiting = asyncio.ensure_future(write(store, add(1)))
    await asyncio.sleep(0)
    await store.close()
    await waiting
    store, _ = await opened(tmp_path)
    assert await pending(store) == [1]
    await store.close()


def test_a_directory_is_an_ordinary_one_by_default(tmp_path: Path) -> None:
    assert type(open_directory(options(), tmp_path)) is NamedStorage
