"""Directories of destinations: batches are atomic over them, and nothing that was confirmed is lost."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import crash_crew
import power_cuts
import pytest
import uvloop
from crash_crew import amount, job
from journal_crash import fast_directory
from journal_kit import (
    ANY_SIZE,
    SUPPORT,
    CrashStorage,
    check_bodies,
    killed_after,
    opened,
    pending,
    write,
    write_only,
)
from numbered import ack
from power_cuts import BLOCK, History, live_and_crash, load, policy_of, sparse_load
from series_kit import (
    ALL,
    add,
    checkpoint,
    directory_of,
    files_of,
    message,
    series_store,
    size_of,
    tidy_of,
)

from tidegate.spi import (
    AddDestination,
    AddMessage,
    Move,
    PendingCount,
    RemoveDestination,
    StoreFullError,
    StoreIOError,
)
from tidegate_store_journal import JournalStore
from tidegate_store_journal.bodies import series as _series
from tidegate_store_journal.bodies.directory import Job, carry_out
from tidegate_store_journal.bodies.folders import folder_name
from tidegate_store_journal.checkpoint.checkpoint import Checkpointer
from tidegate_store_journal.index.acklog import ROW_BYTES
from tidegate_store_journal.log.format import RECORD_HEADER_BYTES, encode

QUEUES = ("queue://a", "queue://b")


async def test_each_destination_has_a_directory_and_the_journal_only_references(
    tmp_path: Path,
) -> None:
    store = await series_store(tmp_path)
    await write(store, add(1, size=5000, queue="a"), add(2, 1, 2, size=5000, queue="b"))
    assert b"1 ....." in files_of(tmp_path, "a")[0].read_bytes()
    assert b"2 ....." in files_of(tmp_path, "b")[0].read_bytes()
    journal = b"".join(path.read_bytes() for path in (tmp_path / "journal").glob("*.data"))
    assert b"....." not in journal
    assert await pending(store) == [1, 2]
    assert await pending(store, 2) == [2]
    await store.close()


async def test_counts_and_pages_go_by_the_real_bodies(tmp_path: Path) -> None:
    store = await series_store(tmp_path, keep=True)
    await write(store, *(add(sequence, size=1000) for sequence in range(1, 11)))
    assert len(await store.page_in(1, 0, 100, 3500)) == 3
    await write(store, ack(1, 2))
    size = len(encode(message(1, 1000))) + RECORD_HEADER_BYTES
    assert store.log_statistics().held_bytes == 2 * (size + ROW_BYTES)
    await store.close()
    _, state = await opened(tmp_path, keep=True, per_destination=ALL)
    assert state.pending == {1: PendingCount(8, 8000)}


async def test_only_destinations_that_a_filter_covers_have_a_directory(tmp_path: Path) -> None:
    store = await series_store(tmp_path, per_destination=("queue://a",))
    await write(store, add(1, queue="a"), add(2, queue="b"), add(3, queue="$temporary.1"))
    assert await pending(store) == [1, 2, 3]
    assert [item.name for item in directory_of(tmp_path, "a").parent.iterdir()] == ["queue#a"]
    await store.close()


async def test_a_dead_letter_moves_to_the_directory_of_its_queue(tmp_path: Path) -> None:
    store = await series_store(tmp_path)
    await write(store, add(1, queue="a"), add(2, queue="a"))
    await write(store, Move(1, 1, 2, 3, message(3, queue="dead")))
    assert await pending(store, 1) == [2]
    assert await pending(store, 2) == [3]
    await checkpoint(store)
    await write(store, add(4, queue="a"))
    assert len(files_of(tmp_path, "a")) == len(files_of(tmp_path, "dead")) == 1
    await store.close()
    store = await series_store(tmp_path)
    assert await pending(store, 2) == [3]
    await store.close()


async def test_the_directory_stays_small_while_a_load_is_consumed(tmp_path: Path) -> None:
    store = await series_store(tmp_path)
    for sequence in range(1, 1001):
        before = [ack(sequence - 5)] if sequence > 5 else []
        await write_only(store, add(sequence, size=1000), *before)
        if sequence % 50 == 0:
            await write(store)
    assert size_of(tmp_path) < 300_000
    assert await pending(store) == list(range(996, 1001))
    await store.close()


async def test_a_file_is_used_again_only_when_nobody_reads_from_it(tmp_path: Path) -> None:
    store = await series_store(tmp_path)
    await write(store, *(add(sequence, size=5000) for sequence in range(1, 12)))
    await write(store, add(12, size=30_000))  # the first file is full
    pages = [asyncio.create_task(store.page_in(1, 0, 12, ANY_SIZE)) for _ in range(20)]
    await asyncio.sleep(0)
    await write(store, ack(*range(1, 12)))
    await checkpoint(store)
    for sequence in range(20, 60):
        await write(store, add(sequence, size=5000))
    for page in pages:
        check_bodies(await page)
    assert await pending(store) == [12, *range(20, 60)]
    await store.close()


async def test_a_dead_file_that_cannot_be_emptied_now_is_put_away_all_the_same(
    tmp_path: Path,
) -> None:
    storage = CrashStorage()
    store = await series_store(tmp_path, storage, filepool_cleanratio=100)
    await write(store, *(add(sequence, size=5000) for sequence in range(1, 12)))
    await write(store, add(12, size=30_000))  # the first file is full
    await write(store, ack(*range(1, 12)))
    real = storage.open

    def open_no_more(name: str, *, create: bool = False) -> Any:
        if name.endswith(".free"):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(name, create=create)

    storage.open = open_no_more  # type: ignore[method-assign]  # a fault
    with pytest.raises(OSError, match="open files"):
        await checkpoint(store)
    storage.open = real  # type: ignore[method-assign]  # mended
    await checkpoint(store)
    assert sum(name.endswith(".free") and "queue#q" in name for name in storage.list()) == 1
    for sequence in range(20, 60):
        await write(store, add(sequence, size=5000))
    assert await pending(store) == [12, *range(20, 60)]
    await store.close()


def no_room(operation: str, part: str, code: int = errno.ENOSPC) -> object:
    def fault(name: str, file: str) -> OSError | None:
        if name == operation and part in file:
            return OSError(code, os.strerror(code))
        return None

    return fault


@pytest.mark.parametrize(
    ("operation", "part"),
    [("pwritev", "message|"), ("pwritev", "queue#q"), ("pwritev", ".data")],
)
async def test_a_full_disk_refuses_the_batch_and_nothing_changes(
    tmp_path: Path, operation: str, part: str
) -> None:
    storage = CrashStorage()
    store = await series_store(tmp_path, storage, max_record_size=2048)
    await write(store, add(1, size=100))
    good = storage.fault
    storage.fault = no_room(operation, part)  # type: ignore[assignment]
    batch = [add(2, size=1500, queue="b"), add(3, size=5000), add(4, 1, 2, size=1500)]
    batch += [add(sequence, size=1500) for sequence in range(5, 60)]
    with pytest.raises(StoreFullError):
        await write(store, *batch)
    storage.fault = good
    assert await pending(store) == [1]
    await write(store, *batch)
    assert await pending(store) == list(range(1, 60))
    after = storage.crash()
    await store.close()
    store, _ = await opened(tmp_path, after)
    assert await pending(store) == list(range(1, 60))
    assert await pending(store, 2) == [4]
    await store.close()


async def test_short_room_refuses_messages_before_they_are_written(tmp_path: Path) -> None:
    storage = CrashStorage()
    store = await series_store(tmp_path, storage, disk_free_limit=1 << 20)
    await write(store, add(1))
    storage.free = 1000
    await store._maintenance.room.look()  # pyright: ignore[reportPrivateUsage]
    written = storage.written
    with pytest.raises(StoreFullError):
        await write(store, add(2, size=50_000))
    assert storage.written - written < 50_000
    await write(store, ack(1))
    await store.close()


async def test_a_broken_disk_makes_the_store_read_only(tmp_path: Path) -> None:
    storage = CrashStorage()
    store = await series_store(tmp_path, storage)
    await write(store, add(1))
    storage.fault = no_room("datasync", "message|", errno.EIO)  # type: ignore[assignment]
    with pytest.raises(StoreIOError):
        await write(store, add(2))
    storage.fault = lambda _operation, _name: None
    with pytest.raises(StoreIOError, match="read-only"):
        await write(store, ack(1))
    assert not store.statistics().writable
    assert await pending(store) == [1]
    await store.close()


async def test_a_cancelled_write_leaves_the_store_whole(tmp_path: Path) -> None:
    store = await series_store(tmp_path)
    await write(store, add(1))
    for sequence in range(2, 40):
        task = asyncio.create_task(write(store, add(sequence, size=300)))
        for _ in range(sequence % 7):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await write(store, add(100))
    await write(store, add(101))
    found = await pending(store)
    assert {1, 100, 101} <= set(found)
    await store.close()
    store = await series_store(tmp_path)
    assert await pending(store) == found
    await store.close()


async def test_many_destinations_need_few_open_files(tmp_path: Path) -> None:
    store = await series_store(tmp_path)
    for round_ in range(3):
        batch = [add(200 * round_ + n, queue=f"q{n}") for n in range(1, 201)]
        await write(store, *batch)
    opened_files = [item for item in os.listdir("/proc/self/fd") if _is_data(item)]
    assert len(opened_files) <= 140
    assert len(await pending(store)) == 600
    await store.close()


def _is_data(descriptor: str) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").endswith(".data")
    except OSError:
        return False


async def test_a_queue_may_be_named_like_the_hashed_folder_of_another(tmp_path: Path) -> None:
    """Both were in one file once: whoever was compacted or removed took the other one along."""
    long = "x" * 300
    short = folder_name(f"queue://{long}").partition("#")[2]
    store = await series_store(tmp_path)
    await write(store, AddDestination(f"queue://{long}", 1), AddDestination(f"queue://{short}", 2))
    await write(store, *(add(n, queue=long) for n in range(1, 4)))
    await write(store, *(add(n, 2, queue=short) for n in range(4, 7)))
    assert len(list((tmp_path / "journal" / "message").iterdir())) == 2
    await write(store, ack(1, 2, 3), RemoveDestination(f"queue://{long}", 1))
    for _ in range(2):
        await tidy_of(store).tidy()
    assert await pending(store, 2) == [4, 5, 6]
    await store.close()
    store = await series_store(tmp_path)
    assert await pending(store, 2) == [4, 5, 6]
    await store.close()


async def test_destinations_are_remembered_and_their_bytes_are_counted(tmp_path: Path) -> None:
    store = await series_store(tmp_path)
    before = store.statistics().disk_bytes
    await write(store, AddDestination("queue://q", 1), add(1, size=500_000))
    assert store.statistics().disk_bytes - before >= 500_000
    await store.close()
    _, state = await opened(tmp_path, per_destination=ALL)
    assert [item.destination for item in state.destinations] == ["queue://q"]


# ------------------------------------------------------------------------------------ power cuts


def two_queues(sequence: int, *lists: int, size: int = 100) -> AddMessage:
    """Batches of the crash points that touch two directories and the journal itself."""
    return add(sequence, *lists, size=size, queue="abc"[sequence % 3])


OPTIONS = {
    "per_destination": QUEUES,
    "max_record_size": 8000,
    "filepool_limit": 3,
    "filepool_cleanratio": 50,
}


async def crash(directory: Path, seed: int, **changes: object) -> str:
    live, syncs = ((load, 60), (sparse_load, 300))[seed % 2]
    options = {**OPTIONS, **policy_of(seed), **changes}
    return await live_and_crash(directory, seed, live, syncs, metadata=seed % 3 == 0, **options)


@pytest.fixture
def with_two_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(power_cuts, "add", two_queues)


@pytest.mark.usefixtures("with_two_queues")
@pytest.mark.parametrize("seed", range(24))
async def test_after_a_power_cut_a_batch_is_there_in_all_directories_or_in_none(
    tmp_path: Path, seed: int
) -> None:
    assert await crash(tmp_path, seed) == ""


def problems_with_directories(kind: str, first: int) -> dict[int, str]:
    """Four lives each for BLOCK seeds from *first* on. Returns: what was wrong, by seed."""
    attempt = {"cuts": crash, "copies": crash_amid_copies}[kind]
    problems: dict[int, str] = {}
    with (
        pytest.MonkeyPatch.context() as patch,
        fast_directory(Path(tempfile.gettempdir())) as name,
    ):
        patch.setattr(power_cuts, "add", two_queues)
        for seed in range(first, first + BLOCK):
            if problem := uvloop.run(attempt(Path(name, str(seed)), seed)):
                problems[seed] = problem
    return problems


def jobs_with_directories() -> list[crash_crew.Job]:
    blocks = range(amount(4, 20))
    return [job(problems_with_directories, "cuts", 1000 + BLOCK * block) for block in blocks]


@pytest.mark.crash
@pytest.mark.crew(jobs=jobs_with_directories)
def test_many_power_cuts_with_directories(results: list[dict[int, str]]) -> None:
    assert [problems for problems in results if problems] == []


async def is_found(
    attempt: Callable[[Path, int], Awaitable[str]], tmp_path: Path, seeds: Iterable[int]
) -> bool:
    """A negative control: some life goes wrong."""
    for seed in seeds:
        try:
            if await attempt(tmp_path / str(seed), seed):
                return True
        except Exception:
            return True
    return False


@pytest.mark.usefixtures("with_two_queues")
async def test_without_the_sync_of_the_directories_the_same_check_finds_losses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control."""

    def careless(jobs: Sequence[Job], *, synced: bool) -> None:
        del synced
        carry_out(jobs, synced=False)

    monkeypatch.setattr(_series, "carry_out", careless)
    assert await is_found(crash, tmp_path, range(0, 40, 2))


@pytest.mark.usefixtures("with_two_queues")
async def test_files_used_again_too_soon_are_found_by_the_same_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other negative control: a file goes although a checkpoint may still name it."""

    async def hasty(self: Checkpointer, **_: object) -> int:
        await self.files.dispose(self.files.dead_elsewhere())
        return 0

    checkpointers: list[Checkpointer] = []
    monkeypatch.setattr(_series.Series, "_get_back", lambda _: hasty(checkpointers[-1]))
    real = Checkpointer.__init__

    def known(self: Checkpointer, *arguments: Any, **options: Any) -> None:
        real(self, *arguments, **options)
        checkpointers.append(self)

    monkeypatch.setattr(Checkpointer, "__init__", known)
    assert await is_found(crash, tmp_path, range(1, 60, 2))


async def compacted_load(store: JournalStore, history: History, chance: random.Random) -> None:
    """As ``sparse_load``, while the directories are compacted again and again."""

    async def compact() -> None:
        while True:
            for queue in "ab":
                with contextlib.suppress(StoreIOError):
                    await tidy_of(store).compact(f"queue://{queue}")
            await asyncio.sleep(0.001)

    task = asyncio.create_task(compact())
    try:
        await sparse_load(store, history, chance)
    finally:
        task.cancel()
        try:
            await task
        except (asyncio.CancelledError, StoreIOError, StoreFullError, OSError):
            pass  # the power went


async def crash_amid_copies(directory: Path, seed: int) -> str:
    options = {**OPTIONS, **policy_of(seed)}
    return await live_and_crash(directory, seed, compacted_load, 500, **options)


@pytest.mark.usefixtures("with_two_queues")
@pytest.mark.parametrize("seed", range(12))
async def test_after_a_power_cut_amid_the_compaction_of_directories_nothing_is_lost(
    tmp_path: Path, seed: int
) -> None:
    assert await crash_amid_copies(tmp_path, seed) == ""


def jobs_amid_copies() -> list[crash_crew.Job]:
    blocks = range(amount(2, 4))
    return [job(problems_with_directories, "copies", 1000 + BLOCK * block) for block in blocks]


@pytest.mark.crash
@pytest.mark.crew(jobs=jobs_amid_copies)
def test_many_power_cuts_amid_the_compaction_of_directories(
    results: list[dict[int, str]],
) -> None:
    assert [problems for problems in results if problems] == []


# ------------------------------------------------------------------------------------ real kills

CHILD = """
import asyncio, os, sys
from pathlib import Path
sys.path[:0] = sys.argv[2].split(os.pathsep)
from journal_kit import opened
from numbered import ack
from series_kit import add
from tidegate.spi import WriteBatch

async def main():
    store, state = await opened(Path(sys.argv[1]), preset="flatfile", directory="journal", keep=True,
                                checkpoint_interval=0.02, cleanup_interval=0.05,
                                max_record_size=1024)
    sequence = state.last_sequence
    while True:
        first = sequence + 1
        sequence += 20
        batch = [add(item, size=2000 if item % 10 == 0 else 700, queue="abc"[item % 3])
                 for item in range(first, sequence + 1)]
        await store.write(WriteBatch(batch))
        os.write(1, b"added %d\\n" % sequence)
        await store.write(WriteBatch([ack(*range(first, first + 15))]))
        os.write(1, b"acked %d\\n" % (first + 14))
        await store.release_acknowledged(store.log_statistics().last - 50)

asyncio.run(main())
"""


async def test_a_real_kill_loses_nothing_that_was_confirmed_in_any_directory(
    tmp_path: Path,
) -> None:
    acked: set[int] = set()
    for turn in range(3):
        added = killed_after(
            [sys.executable, "-c", CHILD, str(tmp_path), SUPPORT],
            (turn + 1) * 300 + turn * 7,
            acked,
        )

        async def check(added: int = added, acked: frozenset[int] = frozenset(acked)) -> None:
            store, state = await opened(tmp_path, keep=True, per_destination=ALL)
            assert state.last_sequence >= added
            assert state.last_sequence % 20 == 0  # batches are whole
            found = await pending(store)
            statistics = store.log_statistics()
            first = statistics.first
            page = await store.acknowledged(first - 1, 1_000_000, ANY_SIZE)
            rows = [row.sequence for row in page.rows]
            assert all(row.message.body.split()[0] == b"%d" % row.sequence for row in page.rows)
            # Every confirmed message is pending, in the log, or released; exactly once.
            every = set(range(1, state.last_sequence + 1))
            assert every >= set(found) | set(rows)
            assert not set(found) & set(rows)
            assert len(found) + statistics.last == state.last_sequence
            assert not set(found) & acked
            await store.close()

        await check()
