"""Directories of destinations: their bound on the disk, compaction, pools, and how they come and go."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Self

import pytest
from journal_kit import KB, CrashStorage, opened, pending, write
from numbered import ack
from series_kit import (
    ALL,
    add,
    checkpoint,
    directory_of,
    files_of,
    series_store,
    size_of,
    tidy_of,
)

from tidegate.spi import (
    AddDestination,
    AddMessage,
    RemoveDestination,
    StoreIOError,
)
from tidegate_store_journal.log.format import RECORD_HEADER_BYTES, encode

FILE = 64 << 10


class Watched:
    """A store whose directories are measured at every operation on its disk.

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
        self.store = await series_store(self._where, self.storage, **self._changes)
        self.storage.fault = self._measure
        return self

    async def __aexit__(self, *_: object) -> None:
        self.storage.fault = lambda _operation, _name: None
        await self.store.close()

    def bytes_in(self, part: str) -> int:
        """Bytes of all files whose names have *part* in them."""
        names = [name for name in self.storage.list() if part in name]
        return sum(len(self.storage._names[name].now) for name in names)  # pyright: ignore[reportPrivateUsage]

    def _measure(self, _operation: str, _name: str) -> None:
        total = self.bytes_in("message|")
        self.highest = max(self.highest, total)
        self.worst = max(self.worst, total - self._bound)

    async def add(self, *operations: AddMessage) -> None:
        """Add, and reckon what lives; what is acknowledged then may still have its room."""
        for item in operations:
            size = RECORD_HEADER_BYTES + len(encode(item.message))
            self._live.setdefault(item.message.destination, {})[item.sequence] = size
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
        live = sum(4096 + sum(items.values()) for items in self._live.values())
        self._bound = 3 * live + 4 * FILE


async def endure(watched: Watched, batches: int, size: int, keep_one_in: int) -> None:
    """A load on one queue of which some messages are never acknowledged."""
    for batch in range(batches):
        sequences = range(50 * batch + 1, 50 * batch + 51)
        await watched.add(*(add(item, size=size) for item in sequences))
        await watched.acknowledge("q", *(item for item in sequences if item % keep_one_in))


async def outgrow(watched: Watched) -> None:
    """Each phase leaves some of its messages, and those of the next one are larger."""
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
    ("larger and larger", outgrow),
    ("many queues", move_on),
]


@pytest.mark.parametrize("keep", [True, False], ids=["with a sink", "without"])
@pytest.mark.parametrize("load", [load for _, load in LOADS], ids=[name for name, _ in LOADS])
async def test_directories_never_take_more_than_three_times_what_lives_and_four_files(
    tmp_path: Path, load: Callable[[Watched], Awaitable[None]], keep: bool
) -> None:
    """Also amid a compaction, when the old file and the new one are there."""
    async with Watched(tmp_path, keep=keep) as watched:
        await load(watched)
        assert watched.worst <= 0
        assert watched.highest > FILE // 2  # else the load was none


@pytest.mark.parametrize("load", [outgrow, move_on])
@pytest.mark.parametrize("option", ["journal_compact_percentage", "journal_compact_min_files"])
async def test_without_compaction_the_bound_does_not_hold(
    tmp_path: Path, load: Callable[[Watched], Awaitable[None]], option: str
) -> None:
    """The negative control of the test above; either option turns it off, as for data files."""
    async with Watched(tmp_path, keep=False, **{option: 0}) as watched:
        await load(watched)
        assert watched.worst > 0


async def test_a_consumed_backlog_is_given_back_at_the_cleanup(tmp_path: Path) -> None:
    async with Watched(tmp_path, keep=True) as watched:
        for first in range(1, 1001, 100):
            await watched.add(*(add(first + n, size=1000) for n in range(100)))
        assert watched.bytes_in("queue#q") > 1_000_000
        await watched.acknowledge("q", *range(1, 1000))
        await watched.clean_up()
        assert watched.bytes_in("queue#q") <= 4 * FILE
        assert await pending(watched.store) == [1000]


async def test_a_damaged_record_keeps_its_file_and_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Watched(tmp_path, keep=False) as watched:
        storage = watched.storage
        sequence = 0
        for queue in ("a", "q", "z"):
            first = sequence + 1
            for _ in range(4):
                sequences = range(sequence + 1, sequence + 51)
                sequence += 50
                await watched.add(*(add(n, size=1000, queue=queue) for n in sequences))
            if queue == "q":
                name = min(item for item in storage.list() if "queue#q" in item)
                storage.flip(name, 4096 + 500)
            gone = [n for n in range(first, sequence + 1) if (n - first) % 50]
            await watched.acknowledge(queue, *gone)
        await watched.clean_up()
        assert "a data file cannot be compacted" in caplog.text
        assert f"{name}" in storage.list()
        # And it is not tried again with every batch.
        before = caplog.text.count("cannot be compacted")
        for n in range(1, 30):
            await watched.add(add(1000 + n, size=3000, queue="b"))
        assert caplog.text.count("cannot be compacted") == before


_BATCHES = {10_000: 20_000, 100: 8_000, 4: 4_000}


@pytest.mark.soak
@pytest.mark.parametrize("keep_one_in", _BATCHES)
async def test_the_bound_holds_for_long(tmp_path: Path, keep_one_in: int) -> None:
    async with Watched(tmp_path, keep=False) as watched:
        await endure(watched, _BATCHES[keep_one_in], 200, keep_one_in)
        assert watched.worst <= 0


# ------------------------------------------------------------------------------- waiting for disks


async def test_a_batch_waits_for_its_slowest_directory_and_not_for_all_of_them(
    tmp_path: Path,
) -> None:
    """100 directories of 20 ms each were a second, two at a time; also beside a checkpoint."""
    storage = CrashStorage()
    store = await series_store(tmp_path, storage)
    await write(store, *[add(n, queue=f"q{n}") for n in range(1, 101)])
    under_way, are_many = itertools.count(1), threading.Event()

    def meet(operation: str, name: str) -> None:
        """The first syncs wait until there are 20 at once."""
        if operation == "datasync" and "message|" in name:
            if next(under_way) == 20:
                are_many.set()
            assert are_many.wait(60)

    storage.fault = meet
    await write(store, *(add(100 + n, queue=f"q{n}") for n in range(1, 101)))
    assert are_many.is_set()

    under_way, are_many = itertools.count(1), threading.Event()
    is_stuck, may_go_on = threading.Event(), threading.Event()

    def stuck(operation: str, name: str) -> None:
        meet(operation, name)
        if operation == "datasync" and "bindings" in name:  # what a checkpoint writes
            is_stuck.set()
            assert may_go_on.wait(60)

    storage.fault = stuck
    await write(store, AddDestination("queue://new", 1000))
    checkpoints = [asyncio.create_task(checkpoint(store)) for _ in range(2)]
    await asyncio.to_thread(is_stuck.wait, 60)
    await write(store, *(add(200 + n, queue=f"q{n}") for n in range(1, 101)))
    assert are_many.is_set()
    assert not any(task.done() for task in checkpoints)
    may_go_on.set()
    await asyncio.gather(*checkpoints)
    storage.fault = lambda _operation, _name: None
    await store.close()


# ------------------------------------------------------------------------------- coming and going


async def test_the_directory_of_a_removed_destination_goes(tmp_path: Path) -> None:
    store = await series_store(tmp_path)
    await write(store, AddDestination("queue://q", 1), AddDestination("queue://other", 2))
    await write(store, add(1), add(2, 2, queue="other"))
    await write(store, ack(1), RemoveDestination("queue://q", 1))
    await tidy_of(store).tidy()
    assert not directory_of(tmp_path).exists()
    assert files_of(tmp_path, "other")
    await write(store, AddDestination("queue://q", 3), add(3, 3))
    assert await pending(store, 3) == [3]
    await store.close()
    store = await series_store(tmp_path)
    assert (await pending(store, 2), await pending(store, 3)) == ([2], [3])
    await store.close()


async def test_directories_of_topics_in_which_nothing_is_go(tmp_path: Path) -> None:
    """Every topic that was ever published to had one for good."""
    store, _ = await opened(tmp_path, per_destination=ALL)
    root = tmp_path / "journal" / "message"
    for number in range(1, 51):
        await write(store, add(number, queue=f"t{number}"))
    await write(store, ack(*range(1, 50)))
    assert len(list(root.iterdir())) == 50
    for _ in range(2):
        await tidy_of(store).tidy()
    assert [item.name for item in root.iterdir()] == ["queue#t50"]
    await write(store, add(51, queue="t1"))
    assert await pending(store) == [50, 51]
    await store.close()


async def test_a_batch_into_a_directory_that_is_going_is_not_lost(tmp_path: Path) -> None:
    store = await series_store(tmp_path)
    for number in range(1, 200, 2):
        await write(store, add(number, queue="a"))
        await write(store, ack(number))
        tidy = asyncio.create_task(tidy_of(store).tidy())
        for _ in range(number % 23):
            await asyncio.sleep(0)
        await write(store, add(number + 1, 2, queue="a"))
        await tidy
    expected = list(range(2, 201, 2))
    assert await pending(store, 2) == expected
    await store.close()
    store = await series_store(tmp_path)
    assert await pending(store, 2) == expected
    await store.close()


async def test_a_store_that_is_closed_amid_a_tidy_up_writes_nothing_after_its_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"checkpoint_interval": 0.05, "cleanup_interval": 0.05}
    store = await series_store(tmp_path, journal_max_file_length=512 * KB, **options)
    await write(store, *(add(n, size=1000) for n in range(1, 1001)))
    reader = store._reader  # pyright: ignore[reportPrivateUsage]
    read_values = reader.read_values
    is_copying = asyncio.Event()

    async def read_late(wanted: Sequence[tuple[int, int]]) -> list[bytes]:
        is_copying.set()
        await asyncio.sleep(0.2)
        return await read_values(wanted)

    monkeypatch.setattr(reader, "read_values", read_late)
    await write(store, ack(*(n for n in range(1, 1001) if n % 10)))
    async with asyncio.timeout(60):
        await is_copying.wait()
    await store.close()
    store, state = await opened(tmp_path, per_destination=ALL)
    assert (state.report.clean, state.report.counts["replayed"]) == (True, 0)
    assert await pending(store) == list(range(10, 1001, 10))
    await store.close()


@pytest.mark.parametrize("limit", [0, 2, 100])
async def test_dead_files_are_kept_up_to_the_limit(tmp_path: Path, limit: int) -> None:
    store = await series_store(tmp_path, filepool_limit=limit, max_record_size=1024)
    await write(store, *(add(n, size=5000) for n in range(1, 7)), add(7))
    assert len(files_of(tmp_path)) == 7
    await write(store, ack(*range(1, 7)))
    await checkpoint(store)
    assert len(files_of(tmp_path, suffix="free")) == min(limit, 6)
    assert len(files_of(tmp_path)) == 1
    await write(store, add(10, size=5000))
    assert len(files_of(tmp_path, suffix="free")) == max(0, min(limit, 6) - 1)
    await store.close()
    store = await series_store(tmp_path)
    assert await pending(store) == [7, 10]
    await store.close()


@pytest.mark.parametrize(("ratio", "emptied"), [(0, 0), (50, 2), (100, 4)])
async def test_the_clean_ratio_says_how_many_are_emptied_and_cleanup_empties_all(
    tmp_path: Path, ratio: int, emptied: int
) -> None:
    store = await series_store(
        tmp_path, filepool_cleanratio=ratio, max_record_size=1024, message_cleanup=True
    )
    await write(store, *(add(n, size=5000) for n in range(1, 5)), add(5))
    await write(store, ack(*range(1, 5)))
    await checkpoint(store)
    sizes = [path.stat().st_size for path in files_of(tmp_path, suffix="free")]
    assert (len(sizes), sizes.count(0)) == (4, emptied)
    await write(store, *(add(n, size=6000) for n in range(10, 14)))
    assert await pending(store) == [5, 10, 11, 12, 13]
    await write(store, ack(*range(10, 14)))
    await store.close()
    assert {path.stat().st_size for path in files_of(tmp_path, suffix="free")} == {0}


# ------------------------------------------------------------------------------------- by command


@pytest.mark.parametrize("keep", [True, False])
async def test_one_destination_is_compacted_by_command_whatever_the_options_say(
    tmp_path: Path, keep: bool
) -> None:
    store = await series_store(tmp_path, keep=keep, journal_compact_percentage=0)
    for first in range(1, 401, 50):
        await write(store, *(add(2 * n, size=1000) for n in range(first, first + 50)))
        await write(store, add(2 * first + 99, 2, queue="other"))
    gone = [2 * n for n in range(1, 401) if n % 10]
    await write(store, ack(*gone))
    others = size_of(tmp_path, "other")
    done = await store.compact_destination("queue://q")
    assert done.destination == "queue://q"
    assert done.bytes_before > 400_000
    assert done.bytes_after == size_of(tmp_path)
    assert size_of(tmp_path, "other") == others
    if not keep:
        assert done.messages == 40
        assert done.bytes_after < done.bytes_before / 5
    with pytest.raises(StoreIOError, match=r"queue://none has no .*queue#other, queue#q"):
        await store.compact_destination("queue://none")
    await store.close()
    store = await series_store(tmp_path, keep=keep)
    assert await pending(store) == list(range(20, 801, 20))
    assert len(await pending(store, 2)) == 8
    if keep:
        page = await store.acknowledged(0, 1000, 1 << 40)
        assert [row.sequence for row in page.rows] == gone
    await store.close()
