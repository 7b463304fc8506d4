"""The spool of what is not stored: nothing gets lost or comes twice, whatever the disk says."""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tidegate.broker.unstored import segments as files
from tidegate.broker.unstored import spool as module
from tidegate.broker.unstored.segments import Segments, Threads
from tidegate.broker.unstored.spool import FLOOR_BYTES, ListSpool, Share
from tidegate.spi import (
    MESSAGE_OVERHEAD_BYTES,
    CursorMemory,
    Message,
    StoredMessage,
    StoreIOError,
    TemporarySpace,
)

ALL = 1 << 40
#: What a message of these tests takes in memory.
SIZE = MESSAGE_OVERHEAD_BYTES + 10


def stored(sequence: int, size: int = 10) -> StoredMessage:
    return StoredMessage.of(
        sequence, Message("queue://q", b"%d " % sequence + bytes(size)[: -len(b"%d " % sequence)])
    )


@dataclass
class Box:
    """A spool and what it shares with others."""

    directory: Path
    memory: CursorMemory = field(default_factory=CursorMemory)
    space: TemporarySpace = field(default_factory=TemporarySpace)
    threads: Threads = field(default_factory=Threads)
    told: int = 0
    made: list[ListSpool] = field(default_factory=list[ListSpool])

    def make(self, messages: int, limit: int = ALL, **more: Any) -> ListSpool:
        """With so many messages in memory."""
        share = Share(self.memory, messages * SIZE, **more)
        made = ListSpool(
            "queue://q", share, Segments(self.directory, limit, self.space), self.threads, self.tell
        )
        self.made.append(made)
        return made

    def tell(self) -> None:
        self.told += 1


@pytest.fixture
async def box(tmp_path: Path) -> AsyncIterator[Box]:
    made = Box(tmp_path)
    yield made
    for spool in made.made:
        await spool.close()
    made.threads.close()
    assert made.memory.used == made.space.used == 0
    assert list(tmp_path.iterdir()) == []


async def quiet(spool: ListSpool) -> None:
    """The disk has caught up."""
    while spool._job is not None:
        await asyncio.wait([spool._job])


async def add(spool: ListSpool, *sequences: int) -> None:
    for sequence in sequences:
        spool.add(stored(sequence))
        spool.settle()
        await quiet(spool)


async def everything(spool: ListSpool) -> list[int]:
    found, is_all = await spool.read(0, 1_000_000, ALL, ALL)
    assert is_all
    assert len(found) == spool.count
    assert [item for item in found if item.message != stored(item.sequence).message] == []
    return [item.sequence for item in found]


async def test_what_is_above_its_share_is_in_files_and_the_oldest_stay_in_memory(box: Box) -> None:
    spool = box.make(16)
    await add(spool, *range(1, 101))
    assert 14 * SIZE <= spool.memory_bytes <= 18 * SIZE
    assert box.memory.used == spool.memory_bytes
    assert box.space.used == spool.file_bytes > 0
    in_memory = [block.first for block in spool._blocks if block.messages is not None]
    assert in_memory[:5] == [1, 3, 5, 7, 9]
    assert await everything(spool) == list(range(1, 101))


async def test_a_limit_in_messages_is_one_too(box: Box) -> None:
    spool = box.make(1000, memory_messages=16)
    await add(spool, *range(1, 101))
    assert 14 <= spool._in_memory <= 18
    assert await everything(spool) == list(range(1, 101))


async def test_files_are_given_back_as_they_are_emptied(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "SEGMENT_BYTES_MIN", 1000)
    monkeypatch.setattr(files, "SEGMENT_BYTES_MAX", 2000)
    spool = box.make(8)
    most = 0
    for sequence in range(1, 400):
        await add(spool, sequence)
        if sequence > 50:
            spool.remove([sequence - 50])
            spool.settle()
        most = max(most, spool.file_bytes)
    assert spool.count == 50
    assert most < 12_000
    assert len(spool._segments._segments) < 8


async def test_above_what_all_lists_may_have_little_is_in_memory(box: Box) -> None:
    box.memory.limit_bytes = 1000 * SIZE
    spool = box.make(900, high_water_percent=50)
    box.memory.add(600 * SIZE)  # others
    await add(spool, *range(1, 500))
    assert spool.memory_bytes < FLOOR_BYTES + 20 * SIZE + module.BLOCK_BYTES_MAX
    box.memory.add(-600 * SIZE)


async def test_without_room_it_stays_in_memory_and_producers_wait_until_there_is(
    box: Box, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.01)
    box.space.limit_bytes = 1
    spool = box.make(16)
    await add(spool, *range(1, 60))
    assert spool.is_full
    assert spool.file_bytes == 0
    assert "kept_in_memory" in caplog.text
    box.space.limit_bytes = 0
    while spool.is_full:
        await asyncio.sleep(0.01)
    await quiet(spool)
    assert box.told > 0
    assert spool.file_bytes > 0
    assert await everything(spool) == list(range(1, 60))


async def test_its_own_limit_is_kept(box: Box) -> None:
    spool = box.make(16, 2000)
    await add(spool, *range(1, 80))
    assert spool.file_bytes <= 2000
    assert spool.is_full
    for sequence in range(1, 80):
        assert await everything(spool) == list(range(sequence, 80))
        spool.remove([sequence])
        spool.settle()
        await quiet(spool)
    assert box.told == 1
    assert not spool.is_full
    assert spool.file_bytes == 0


@pytest.mark.parametrize("problem", [errno.ENOSPC, errno.EIO])
async def test_a_disk_that_refuses_loses_nothing(
    box: Box, monkeypatch: pytest.MonkeyPatch, problem: int
) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.01)
    write = os.pwrite

    def refuse(*_: object) -> int:
        raise OSError(problem, "no")

    monkeypatch.setattr(os, "pwrite", refuse)
    spool = box.make(16)
    await add(spool, *range(1, 60))
    assert spool.is_full
    assert await everything(spool) == list(range(1, 60))
    monkeypatch.setattr(os, "pwrite", write)
    while spool.is_full:
        await asyncio.sleep(0.01)
    await quiet(spool)
    assert await everything(spool) == list(range(1, 60))


async def test_enough_is_left_free_for_the_store(box: Box) -> None:
    box.space.free_limit_bytes = ALL << 20
    spool = box.make(16)
    await add(spool, *range(1, 60))
    assert spool.is_full
    assert spool.file_bytes == 0


async def test_to_take_one_out_twice_is_to_take_it_out_once(box: Box) -> None:
    spool = box.make(16)
    await add(spool, *range(1, 60))
    for _ in range(2):
        spool.remove([1, 2, 3, 50, 51])
        spool.set_delivery_counts({1: 1, 50: 1})
    assert await everything(spool) == [*range(4, 50), *range(52, 60)]


async def test_what_cannot_be_read_is_an_error_and_stays(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = box.make(16)
    await add(spool, *range(1, 60))

    def refuse(*_: object) -> bytes:
        raise OSError(errno.EIO, "no")

    monkeypatch.setattr(os, "pread", refuse)
    with pytest.raises(StoreIOError, match="queue://q: cannot read what is not stored"):
        await spool.read(0, 100, ALL, ALL)
    monkeypatch.undo()
    assert await everything(spool) == list(range(1, 60))


@pytest.mark.parametrize("seed", range(3))
async def test_it_is_as_a_list_whatever_happens(
    box: Box, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(module, "RETRY_S", 0.0)
    monkeypatch.setattr(files, "SEGMENT_BYTES_MIN", 2000)
    write = os.pwrite

    def perhaps(descriptor: int, data: bytes, offset: int) -> int:
        if chance.random() < 0.1:
            raise OSError(errno.ENOSPC, "no")
        return write(descriptor, bytes(data)[: chance.randint(1, 3000)], offset)

    monkeypatch.setattr(os, "pwrite", perhaps)
    spool = box.make(20)
    model: dict[int, int] = {}
    last = 0
    for _ in range(600):
        action = chance.random()
        if action < 0.55 or not model:
            last += chance.randint(1, 3)
            spool.add(stored(last, chance.choice([10, 10, 2000])))
            model[last] = 0
        elif action < 0.75:
            gone = min(model) if chance.random() < 0.7 else chance.choice(list(model))
            spool.remove([gone])
            del model[gone]
        elif action < 0.85:
            which, count = chance.choice(list(model)), chance.randint(1, 9)
            spool.set_delivery_counts({which: count})
            model[which] = count
        else:
            after, limit = chance.randint(0, last), chance.randint(1, 30)
            reading = asyncio.create_task(spool.read(after, limit, ALL, last))
            await asyncio.sleep(0)
            if model and chance.random() < 0.3:
                gone = chance.choice(list(model))
                spool.remove([gone])
                del model[gone]
            found, is_all = await reading
            expected = [number for number in sorted(model) if number > after]
            # What was removed meanwhile may be among those, and counts for the limit.
            kept = [item.sequence for item in found if item.sequence in model]
            assert kept == expected[: len(kept)]
            assert len(found) == limit or kept == expected
            assert is_all or len(found) == limit
        assert spool.those([last, last + 1]) == [last] * (last in model)
        spool.settle()
        if chance.random() < 0.5:
            await asyncio.sleep(0)
        assert spool.count == len(model)
    found, _ = await spool.read(0, ALL, ALL, ALL)
    assert {item.sequence: item.delivery_count for item in found} == model
