"""One batch after the other at the end of the journal."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from journal_kit import CrashStorage, ShuffledRing, opened, pending, write, write_only
from numbered import ack, add

from tidegate.spi import StoreIOError
from tidegate_store_journal.write import append as _append
from tidegate_store_journal.write.encode import EncodedBatch, encode_batch


async def test_a_cancelled_write_keeps_its_place_and_the_next_one_follows_it(
    tmp_path: Path,
) -> None:
    store, _ = await opened(tmp_path)
    task = asyncio.create_task(write(store, add(1)))
    await asyncio.sleep(0)
    task.cancel()
    await write(store, add(2))
    assert await pending(store) == [1, 2]
    task = asyncio.create_task(write(store, add(3)))
    await asyncio.sleep(0)
    task.cancel()
    await store.close()
    store, _ = await opened(tmp_path)
    assert await pending(store) == [1, 2, 3]
    await store.close()


async def test_two_who_write_at_once_wait_for_each_other_and_both_land(tmp_path: Path) -> None:
    """The broker and the compactor; each batch is encoded when all before it have landed."""
    store, _ = await opened(tmp_path)
    appender = store._appender  # pyright: ignore[reportPrivateUsage]
    index = store._index  # pyright: ignore[reportPrivateUsage]

    async def one(number: int) -> None:
        def encode(file_id: int, offset: int) -> EncodedBatch:
            sequence = index.last_sequence + 1
            return encode_batch([add(sequence, number + 1)], file_id, offset, index)

        for _ in range(20):
            await appender.append(encode, synced=False)

    await asyncio.gather(*[one(number) for number in range(3)])
    found = [item for number in range(3) for item in await pending(store, number + 1)]
    assert sorted(found) == list(range(1, 61))
    await store.close()
    store, _ = await opened(tmp_path)
    assert [len(await pending(store, number + 1)) for number in range(3)] == [20, 20, 20]
    await store.close()


async def test_a_batch_that_cannot_be_encoded_leaves_the_way_free(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)

    def encode(_file_id: int, _offset: int) -> EncodedBatch:
        raise LookupError("no")

    with pytest.raises(LookupError):
        await store._appender.append(encode, synced=True)  # pyright: ignore[reportPrivateUsage]
    await write(store, add(1))
    assert await pending(store) == [1]
    await store.close()


async def test_every_batch_in_a_reused_file_is_followed_by_the_end_mark(tmp_path: Path) -> None:
    storage = CrashStorage()
    store, _ = await opened(tmp_path, storage)
    tail = store._appender.tail  # pyright: ignore[reportPrivateUsage]
    seen = 0
    for sequence in range(1, 120):
        await write(store, add(sequence, size=5000), add(sequence + 1000, 2, size=10))
        await write(store, ack(sequence), ack(sequence + 1000, pending_list=2))
        assert tail.file is not None
        if tail.file.reused:
            seen += 1
            behind = storage.open(tail.file.name).pread(64, tail.offset)
            assert behind == bytes(len(behind))
    assert seen > 50
    await store.close()


@pytest.mark.parametrize("size", [100, 40_000])
async def test_files_are_padded_unless_batches_are_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(_append, "LARGE_BATCH_BYTES", 20_000)

    storage = CrashStorage()
    store, _ = await opened(tmp_path, storage)
    files = store._files  # pyright: ignore[reportPrivateUsage]
    sequence = 0
    made = files._next_id  # pyright: ignore[reportPrivateUsage]
    while files._next_id < made + 4:  # pyright: ignore[reportPrivateUsage]
        sequence += 1
        await write(store, add(sequence, size=size))
    assert files.has_large_batches is (size > 20_000)
    await store.close()


class _Unforeseen:
    """A storage whose data files can no longer be written, for a reason that is no OSError."""

    def __init__(self, operation: str) -> None:
        self.storage = CrashStorage()
        self.storage.fault = self._fault
        self.is_armed = False
        self._operation = operation

    def _fault(self, operation: str, name: str) -> None:
        if self.is_armed and operation == self._operation and ".data" in name:
            raise MemoryError

    def make_ring(self, loop: asyncio.AbstractEventLoop, _entries: int) -> ShuffledRing:
        ring = ShuffledRing(loop)
        take = ring.write if self._operation == "pwritev" else ring.datasync

        def refuse(*arguments: Any, **named: Any) -> None:
            if self.is_armed:
                raise MemoryError
            take(*arguments, **named)

        setattr(ring, "write" if self._operation == "pwritev" else "datasync", refuse)
        return ring


@pytest.mark.parametrize("operation", ["pwritev", "datasync"])
@pytest.mark.parametrize("journal_type", ["NIO", "ASYNCIO"])
async def test_an_error_that_nobody_thought_of_makes_the_store_read_only_and_hangs_nobody(
    tmp_path: Path, journal_type: str, operation: str
) -> None:
    fault = _Unforeseen(operation)
    storage: Any = fault.storage
    if journal_type == "ASYNCIO":
        storage.make_ring = fault.make_ring
    store, _ = await opened(tmp_path, storage, journal_type=journal_type)
    await write(store, add(1))
    await write_only(store, add(2))  # so that the ring syncs by itself
    fault.is_armed = True
    for sequence in (3, 4):
        with pytest.raises(StoreIOError, match="MemoryError"):
            await write(store, add(sequence))
    assert not store.statistics().writable
    assert await pending(store) == [1, 2]
    await store.close()
