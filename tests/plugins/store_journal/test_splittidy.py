"""What a running gateway does about room: sparse record files are compacted, empty directories go."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Self

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
    AddMessage,
    CorruptRecordError,
    RemoveDestination,
    StoreFullError,
    StoreIOError,
)
from tidegate_store_journal import JournalStore
from tidegate_store_journal.log.format import encode
from tidegate_store_journal.split import splittidy as _splittidy
from tidegate_store_journal.split.records import blocks_of
from tidegate_store_journal.split.splitcompact import write_copy

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


def test_batches_go_on_while_a_record_file_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is added to and taken from the file meanwhile is right in the new one, and the room of what
    is taken is not written over while it is read."""

    async def scenario() -> None:
        store = await sparse_store(tmp_path)
        folder = folder_of(store)
        may_copy = threading.Event()
        begun: list[int] = []

        def slow_copy(*arguments: Any) -> Any:
            begun.append(1)
            if len(begun) == 1:
                assert may_copy.wait(20)
            return write_copy(*arguments)

        monkeypatch.setattr(_splittidy, "write_copy", slow_copy)
        compacting = asyncio.create_task(tidy_of(store).compact("queue://q"))
        while not begun:
            await asyncio.sleep(0)
        async with asyncio.timeout(20):
            await write(store, ack(30, 60), add(400), add(401, size=5000))
            await checkpoint(store)
            free = folder.space.free
            split_of(store).collect()
            assert folder.space.free == free  # held
            await write(store, ack(401, 90), add(402), add(403, queue="other"))
            assert await pending(store) == [*LEFT[3:], 400, 402, 403]
        assert not compacting.done()
        may_copy.set()
        await compacting
        assert len(begun) == 2
        expected = [*LEFT[3:], 400, 402, 403]
        assert await pending(store) == expected
        await checkpoint(store)
        split_of(store).collect()
        assert folder.live_blocks == 7 * 9 + 2 * 2
        # Everything that is free can be written over.
        more = range(500, 540)
        await write(store, *(add(n, size=300) for n in more))
        assert await pending(store) == [*expected, *more]
        assert vrfile(tmp_path).stat().st_size == folder.record_file_bytes
        await store.close()
        store = await split_store(tmp_path)
        assert await pending(store) == [*expected, *more]
        await store.close()

    run(scenario())


def test_a_batch_that_fails_while_a_record_file_is_copied_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        store = await sparse_store(tmp_path)
        may_copy = threading.Event()

        def slow_copy(*arguments: Any) -> Any:
            assert may_copy.wait(20)
            return write_copy(*arguments)

        async def never(_operations: object) -> None:
            raise StoreFullError("no room")

        monkeypatch.setattr(_splittidy, "write_copy", slow_copy)
        compacting = asyncio.create_task(tidy_of(store).compact("queue://q"))
        await asyncio.sleep(0.01)
        with pytest.raises(StoreFullError):
            await split_of(store).write([add(400), add(401)], never)
        await write(store, add(402))
        may_copy.set()
        await compacting
        assert folder_of(store).live_blocks == len(LEFT) * 9 + 2
        assert await pending(store) == [*LEFT, 402]
        await store.close()

    run(scenario())


def test_closing_waits_for_the_copy_that_is_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        store = await sparse_store(tmp_path)
        may_copy = threading.Event()

        def slow_copy(*arguments: Any) -> Any:
            assert may_copy.wait(20)
            return write_copy(*arguments)

        monkeypatch.setattr(_splittidy, "write_copy", slow_copy)
        compacting = asyncio.create_task(tidy_of(store).compact("queue://q"))
        await asyncio.sleep(0.01)
        closing = asyncio.create_task(store.close())
        await asyncio.sleep(0.01)
        assert not closing.done()
        may_copy.set()
        await closing
        assert compacting.done()
        store = await split_store(tmp_path)
        assert await pending(store) == LEFT
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


# ------------------------------------------------------------------------------------- the bound

FILE = 64 << 10


class Watched:
    """A store whose record files are measured at every operation on its disk.

    Attributes: worst: the most bytes above the bound so far; negative: it was kept.
    """

    def __init__(self, where: Path, *, keep: bool, **changes: Any) -> None:
        self._where = where
        self._changes = {"journal_max_file_length": FILE, "keep": keep, **changes}
        self._keep = keep
        self._row = 0
        self._live: dict[str, dict[int, int]] = {}
        self._bound = 0
        self.storage = CrashStorage()
        self.worst = -(1 << 60)
        self.highest = 0

    async def __aenter__(self) -> Self:
        self.store = await split_store(self._where, self.storage, **self._changes)
        self.storage.fault = self._measure
        return self

    async def __aexit__(self, *_: object) -> None:
        self.storage.fault = lambda _operation, _name: None
        await self.store.close()

    def _measure(self, _operation: str, _name: str) -> None:
        names = [name for name in self.storage.list() if "vrfile" in name]
        total = sum(len(self.storage._names[name].now) for name in names)  # pyright: ignore[reportPrivateUsage]
        self.highest = max(self.highest, total)
        self.worst = max(self.worst, total - self._bound)

    async def add(self, *operations: AddMessage) -> None:
        """Add, and reckon what lives; what is acknowledged then may still have its room."""
        for item in operations:
            blocks = blocks_of(len(encode(item.message)))
            self._live.setdefault(item.message.destination, {})[item.sequence] = blocks
        self._reckon()
        await write(self.store, *operations)

    async def acknowledge(self, queue: str, *sequences: int) -> None:
        """As a consumer, and a sink behind it."""
        for sequence in sequences:
            del self._live[f"queue://{queue}"][sequence]
        await write(self.store, ack(*sequences))
        if self._keep:
            self._row += len(sequences)
            await self.store.release_acknowledged(self._row)

    async def clean_up(self) -> None:
        """What the cleanup interval brings; from here on nothing else counts than what lives."""
        await tidy_of(self.store).tidy()
        self._reckon()
        self._measure("", "")

    def _reckon(self) -> None:
        live = sum(4096 + 128 * sum(items.values()) for items in self._live.values())
        self._bound = 3 * live + 4 * FILE


async def endure(watched: Watched, batches: int, size: int, keep_one_in: int) -> None:
    """A load on one queue of which some messages are never acknowledged."""
    for batch in range(batches):
        sequences = range(50 * batch + 1, 50 * batch + 51)
        await watched.add(*(add(item, size=size) for item in sequences))
        await watched.acknowledge("q", *(item for item in sequences if item % keep_one_in))


async def outgrow_the_holes(watched: Watched) -> None:
    """Each phase leaves holes, and the messages of the next one are larger than those."""
    sequence = 0
    for size, count in ((20, 4000), (1000, 400), (6000, 80), (40_000, 12)):
        first = sequence + 1
        for _ in range(4):
            sequences = range(sequence + 1, sequence + count // 4 + 1)
            sequence += count // 4
            await watched.add(*(add(item, size=size) for item in sequences))
        await watched.acknowledge("q", *(n for n in range(first, sequence + 1) if n % 6))
        await watched.clean_up()


async def move_on(watched: Watched) -> None:
    """A backlog in one queue after the other, none of which is as long as a data file."""
    sequence = 0
    for number in range(40):
        queue = f"q{number}"
        sequences = range(sequence + 1, sequence + 21)
        sequence += 20
        await watched.add(*(add(item, size=1000, queue=queue) for item in sequences))
        await watched.acknowledge(queue, *sequences[1:])
    await watched.clean_up()


LOADS: list[tuple[str, Callable[[Watched], Awaitable[None]]]] = [
    ("one in many", lambda watched: endure(watched, 150, 200, 1000)),
    ("one in five", lambda watched: endure(watched, 100, 500, 5)),
    ("larger and larger", outgrow_the_holes),
    ("many queues", move_on),
]


@pytest.mark.parametrize("keep", [True, False], ids=["with a sink", "without"])
@pytest.mark.parametrize("load", [load for _, load in LOADS], ids=[name for name, _ in LOADS])
def test_record_files_never_take_more_than_three_times_what_lives_and_four_files(
    tmp_path: Path, load: Callable[[Watched], Awaitable[None]], keep: bool
) -> None:
    """Also amid a compaction, when the old file and the new one are there."""

    async def scenario() -> None:
        async with Watched(tmp_path, keep=keep) as watched:
            await load(watched)
            assert watched.worst <= 0
            assert watched.highest > FILE // 2  # else the load was none

    run(scenario())


@pytest.mark.parametrize("load", [outgrow_the_holes, move_on])
@pytest.mark.parametrize("option", ["journal_compact_percentage", "journal_compact_min_files"])
def test_without_compaction_the_bound_does_not_hold(
    tmp_path: Path, load: Callable[[Watched], Awaitable[None]], option: str
) -> None:
    """The negative control of the test above; either option turns it off, as for data files."""

    async def scenario() -> None:
        async with Watched(tmp_path, keep=False, **{option: 0}) as watched:
            await load(watched)
            assert watched.worst > 0

    run(scenario())


def test_a_consumed_backlog_is_given_back_at_the_cleanup(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Watched(tmp_path, keep=True) as watched:
            for first in range(1, 1001, 100):
                await watched.add(*(add(first + n, size=1000) for n in range(100)))
            assert folder_of(watched.store).record_file_bytes > 1_000_000
            await watched.acknowledge("q", *range(1, 1000))
            await watched.clean_up()
            assert folder_of(watched.store).record_file_bytes == 4096 + 9 * 128
            assert await pending(watched.store) == [1000]

    run(scenario())


def test_a_damaged_record_keeps_its_file_and_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with Watched(tmp_path, keep=False) as watched:
            storage, store = watched.storage, watched.store
            sequence = 0
            for queue in ("a", "q", "z"):
                first = sequence + 1
                for _ in range(4):
                    sequences = range(sequence + 1, sequence + 51)
                    sequence += 50
                    await watched.add(*(add(n, size=1000, queue=queue) for n in sequences))
                if queue == "q":
                    name = next(item for item in storage.list() if "queue#q" in item)
                    storage.flip(name, 4096 + 500)
                await watched.acknowledge(queue, *range(first + 1, sequence + 1))
            await watched.clean_up()
            assert "a destination cannot be compacted" in caplog.text
            sizes = [folder_of(store, queue).record_file_bytes for queue in ("a", "q", "z")]
            assert (sizes[0], sizes[2]) == (4096 + 9 * 128, 4096 + 9 * 128)
            assert sizes[1] > 200_000
            # And it is not tried again with every batch.
            before = caplog.text.count("cannot be compacted")
            for n in range(1, 30):
                await watched.add(add(1000 + n, size=3000, queue="b"))
            assert caplog.text.count("cannot be compacted") == before

    run(scenario())


_BATCHES = {10_000: 20_000, 100: 8_000, 4: 4_000}


@pytest.mark.soak
@pytest.mark.parametrize("keep_one_in", _BATCHES)
def test_the_bound_holds_for_long(tmp_path: Path, keep_one_in: int) -> None:
    async def scenario() -> None:
        async with Watched(tmp_path, keep=False) as watched:
            await endure(watched, _BATCHES[keep_one_in], 200, keep_one_in)
            assert watched.worst <= 0

    run(scenario())
