"""The per-destination layout: batches are atomic over destinations, and room is used again safely."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import crash_crew
import pytest
import test_crash_points
from crash_crew import amount, job
from journal_crash import fast_directory
from journal_kit import (
    ANY_SIZE,
    CrashStorage,
    ack,
    check_bodies,
    opened,
    pending,
    run,
    write,
    write_only,
)
from split_kit import (
    ALL,
    add,
    checkpoint,
    folder_of,
    message,
    split_of,
    split_store,
    tidy_of,
    vrfile,
)
from test_crash_points import BLOCK, History, live_and_crash, load, policy_of, sparse_load

from tidegate.spi import (
    AddDestination,
    AddMessage,
    CorruptRecordError,
    Move,
    PendingCount,
    StoreFullError,
    StoreIOError,
    WriteBatch,
)
from tidegate_store_journal import JournalStore
from tidegate_store_journal.index.acklog import ROW_BYTES
from tidegate_store_journal.split import split as _split
from tidegate_store_journal.split import splittidy as _splittidy
from tidegate_store_journal.split.recordfolder import Job, RecordFolder
from tidegate_store_journal.split.splitcompact import write_copy

QUEUES = ("queue://a", "queue://b")


def test_each_destination_has_a_directory_and_the_journal_only_references(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await split_store(tmp_path)
        await write(store, add(1, size=5000, queue="a"), add(2, 1, 2, size=5000, queue="b"))
        assert b"1 ....." in vrfile(tmp_path, "a").read_bytes()
        assert b"2 ....." in vrfile(tmp_path, "b").read_bytes()
        journal = b"".join(path.read_bytes() for path in (tmp_path / "journal").glob("*.data"))
        assert b"....." not in journal
        assert await pending(store) == [1, 2]
        assert await pending(store, 2) == [2]
        await store.close()

    run(scenario())


def test_counts_and_pages_go_by_the_real_bodies(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await split_store(tmp_path, keep=True)
        await write(store, *(add(sequence, size=1000) for sequence in range(1, 11)))
        assert len(await store.page_in(1, 0, 100, 3500)) == 3
        await write(store, ack(1, 2))
        assert store.statistics().acknowledged_bytes == 2 * (1000 + ROW_BYTES)
        await store.close()
        _, state = await opened(tmp_path, keep=True, per_destination=ALL)
        assert state.pending == {1: PendingCount(8, 8000)}

    run(scenario())


def test_only_destinations_that_a_filter_covers_have_a_directory(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await split_store(tmp_path, per_destination=("queue://a",))
        await write(store, add(1, queue="a"), add(2, queue="b"), add(3, queue="$temporary.1"))
        assert await pending(store) == [1, 2, 3]
        assert [folder.name for folder in split_of(store).folders()] == ["queue#a"]
        await store.close()

    run(scenario())


def test_a_dead_letter_moves_to_the_directory_of_its_queue(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await split_store(tmp_path)
        await write(store, add(1, queue="a"), add(2, queue="a"))
        await write(store, Move(1, 1, 2, 3, message(3, queue="dead")))
        assert await pending(store, 1) == [2]
        assert await pending(store, 2) == [3]
        await checkpoint(store)
        await write(store, add(4, queue="a"))
        assert folder_of(store, "a").messages == 2
        assert folder_of(store, "dead").messages == 1
        await store.close()
        store = await split_store(tmp_path)
        assert await pending(store, 2) == [3]
        await store.close()

    run(scenario())


def test_blocks_are_used_again_only_when_the_acknowledgement_is_on_disk(tmp_path: Path) -> None:
    async def scenario() -> None:
        storage = CrashStorage()
        store = await split_store(tmp_path, storage)
        await write(store, add(1, size=4000))
        await write_only(store, ack(1))
        await asyncio.sleep(0)
        writer = store._writer  # pyright: ignore[reportPrivateUsage]
        free = folder_of(store).space.free
        if writer.synced_batch < 2:  # else the background sync was faster than we are
            split_of(store).collect()
            assert folder_of(store).space.free == free
        await write(store)  # syncs
        split_of(store).collect()
        assert folder_of(store).space.free > free
        await store.close()

    run(scenario())


def test_released_rows_give_their_blocks_back_after_the_checkpoint(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await split_store(tmp_path, keep=True)
        await write(store, add(1, size=4000))
        free = folder_of(store).space.free
        await write(store, ack(1))
        split_of(store).collect()
        assert folder_of(store).space.free == free
        await store.release_acknowledged(1)
        split_of(store).collect()
        assert folder_of(store).space.free == free
        await checkpoint(store)
        split_of(store).collect()
        assert folder_of(store).space.free > free
        await store.close()

    run(scenario())


def test_blocks_that_are_being_read_are_not_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        store = await split_store(tmp_path)
        await write(store, *(add(sequence) for sequence in range(1, 11)))
        begun, goes_on = threading.Event(), threading.Event()
        real = _split.read_pieces

        def slow(*arguments: object) -> object:
            begun.set()
            assert goes_on.wait(20)
            return real(*arguments)  # pyright: ignore[reportArgumentType]

        monkeypatch.setattr(_split, "read_pieces", slow)
        page = asyncio.create_task(store.page_in(1, 0, 10, ANY_SIZE))
        await asyncio.to_thread(begun.wait, 20)
        await write(store, ack(*range(1, 11)))
        for sequence in range(11, 31):
            await write(store, add(sequence))
        goes_on.set()
        found = await page
        assert [item.sequence for item in found] == list(range(1, 11))
        check_bodies(found)
        monkeypatch.setattr(_split, "read_pieces", real)
        split_of(store).collect()
        assert folder_of(store).messages == 20
        await store.close()

    run(scenario())


def test_the_record_file_stays_small_while_a_load_is_consumed(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await split_store(tmp_path)
        for sequence in range(1, 1001):
            before = [ack(sequence - 5)] if sequence > 5 else []
            await write_only(store, add(sequence, size=1000), *before)
            if sequence % 50 == 0:
                await write(store)
        assert folder_of(store).record_file_bytes < 300_000
        await store.close()

    run(scenario())


def no_room(operation: str, part: str, code: int = errno.ENOSPC) -> object:
    def fault(name: str, file: str) -> OSError | None:
        if name == operation and part in file:
            return OSError(code, os.strerror(code))
        return None

    return fault


@pytest.mark.parametrize(
    ("operation", "part"),
    [("pwritev", "vrfile"), ("preallocate", "vrfile"), ("pwritev", ".msg"), ("pwritev", ".data")],
)
def test_a_full_disk_refuses_the_batch_and_nothing_changes(
    tmp_path: Path, operation: str, part: str
) -> None:
    async def scenario() -> None:
        storage = CrashStorage()
        store = await split_store(tmp_path, storage, max_record_size=2048)
        await write(store, add(1, size=100))
        free = folder_of(store).space.free
        good = storage.fault
        storage.fault = no_room(operation, part)  # type: ignore[assignment]
        batch = [add(2, size=1500, queue="b"), add(3, size=5000), add(4, 1, 2, size=1500)]
        batch += [add(sequence, size=1500) for sequence in range(5, 60)]
        with pytest.raises(StoreFullError):
            await write(store, *batch)
        storage.fault = good
        assert split_of(store).messages == 1
        assert folder_of(store).space.length - folder_of(store).space.free == 2
        assert folder_of(store).space.free >= free
        await write(store, *batch)
        assert await pending(store) == list(range(1, 60))
        after = storage.crash()
        await store.close()
        store, _ = await opened(tmp_path, after)
        assert await pending(store) == list(range(1, 60))
        assert await pending(store, 2) == [4]
        await store.close()

    run(scenario())


def test_short_room_refuses_messages_before_they_are_written(tmp_path: Path) -> None:
    async def scenario() -> None:
        storage = CrashStorage()
        store = await split_store(tmp_path, storage, disk_free_limit=1 << 20)
        await write(store, add(1))
        storage.free = 1000
        await store._maintenance._room.look()  # pyright: ignore[reportPrivateUsage]
        written = storage.written
        with pytest.raises(StoreFullError):
            await write(store, add(2, size=50_000))
        assert storage.written - written < 50_000
        await write(store, ack(1))
        await store.close()

    run(scenario())


def test_a_broken_disk_makes_the_store_read_only(tmp_path: Path) -> None:
    async def scenario() -> None:
        storage = CrashStorage()
        store = await split_store(tmp_path, storage)
        await write(store, add(1))
        storage.fault = no_room("datasync", "vrfile", errno.EIO)  # type: ignore[assignment]
        with pytest.raises(StoreIOError):
            await write(store, add(2))
        storage.fault = lambda _operation, _name: None
        with pytest.raises(StoreIOError, match="read-only"):
            await write(store, ack(1))
        assert not store.statistics().writable
        assert await pending(store) == [1]
        await store.close()

    run(scenario())


def test_a_cancelled_write_leaves_the_store_whole(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await split_store(tmp_path)
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
        store = await split_store(tmp_path)
        assert await pending(store) == found
        assert split_of(store).messages == len(found)
        await store.close()

    run(scenario())


def test_many_destinations_need_few_open_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_split, "_OPEN_FILES_MAX", 3)

    async def scenario() -> None:
        store = await split_store(tmp_path)
        for round_ in range(2):
            await write(store, *(add(10 * round_ + n, queue=f"q{n}") for n in range(1, 9)))
        for n in range(1, 9):
            await write(store, add(30 + n, queue=f"q{n}"))
        assert len(await pending(store)) == 24
        folders = split_of(store).folders()
        assert len(folders) == 8
        await write(store, add(99, queue="q1"))
        assert sum(folder.handle is not None for folder in folders) <= 4
        await store.close()

    run(scenario())


def test_destinations_are_remembered_and_their_bytes_are_counted(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await split_store(tmp_path)
        before = store.statistics().disk_bytes
        await write(store, AddDestination("queue://q", 1), add(1, size=500_000))
        assert store.statistics().disk_bytes - before >= 500_000
        await store.close()
        _, state = await opened(tmp_path, per_destination=ALL)
        assert [item.destination for item in state.destinations] == ["queue://q"]

    run(scenario())


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


def crash(directory: Path, seed: int, **changes: object) -> str:
    live, syncs = ((load, 60), (sparse_load, 300))[seed % 2]
    options = {**OPTIONS, **policy_of(seed), **changes}
    return run(live_and_crash(directory, seed, live, syncs, metadata=seed % 3 == 0, **options))


@pytest.fixture
def with_two_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_crash_points, "add", two_queues)


@pytest.mark.usefixtures("with_two_queues")
@pytest.mark.parametrize("seed", range(24))
def test_after_a_power_cut_a_batch_is_there_in_all_directories_or_in_none(
    tmp_path: Path, seed: int
) -> None:
    assert crash(tmp_path, seed) == ""


def problems_with_directories(kind: str, first: int) -> dict[int, str]:
    """Four lives each for BLOCK seeds from *first* on. Returns: what was wrong, by seed."""
    attempt = {"cuts": crash, "copies": crash_amid_copies}[kind]
    problems: dict[int, str] = {}
    with (
        pytest.MonkeyPatch.context() as patch,
        fast_directory(Path(tempfile.gettempdir())) as name,
    ):
        patch.setattr(test_crash_points, "add", two_queues)
        for seed in range(first, first + BLOCK):
            if problem := attempt(Path(name, str(seed)), seed):
                problems[seed] = problem
    return problems


def jobs_with_directories() -> list[crash_crew.Job]:
    blocks = range(amount(4, 20))
    return [job(problems_with_directories, "cuts", 1000 + BLOCK * block) for block in blocks]


@pytest.mark.crash
@pytest.mark.crew(jobs=jobs_with_directories)
def test_many_power_cuts_with_directories(results: list[dict[int, str]]) -> None:
    assert [problems for problems in results if problems] == []


@pytest.mark.usefixtures("with_two_queues")
def test_without_the_sync_of_the_record_files_the_same_check_finds_losses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control."""
    real = Job.run

    def careless(job: Job) -> None:
        job.sync = False
        real(job)

    monkeypatch.setattr(Job, "run", careless)
    problems: list[str] = []
    for seed in range(0, 20, 2):
        try:
            problems.append(crash(tmp_path / str(seed), seed))
        except Exception as error:
            problems.append(repr(error))
    assert any(problems)


@pytest.mark.usefixtures("with_two_queues")
def test_blocks_used_again_too_soon_are_found_by_the_same_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other negative control: freed blocks are given out before that is on disk."""
    real = _split.Split.__init__

    def hasty(split: _split.Split, *arguments: object, **options: object) -> None:
        options["is_durable"] = lambda _batch, _released: True
        real(split, *arguments, **options)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(_split.Split, "__init__", hasty)
    problems: list[str] = []
    for seed in range(1, 60, 2):
        try:
            problems.append(crash(tmp_path / str(seed), seed))
        except Exception as error:
            problems.append(repr(error))
        if problems[-1]:
            break
    assert any(problems)


async def compacted_load(store: JournalStore, history: History, chance: random.Random) -> None:
    """As ``sparse_load``, while every record file is written anew again and again, so slowly that
    some batches come between the choice of what is copied and the copy."""
    batches = threading.Semaphore(0)
    write_batch = store.write

    async def counted(batch: WriteBatch) -> None:
        await write_batch(batch)
        batches.release()

    def slow_copy(*arguments: Any) -> Any:
        for _ in range(4):
            if not batches.acquire(timeout=0.01):
                break
        return write_copy(*arguments)

    async def compact() -> None:
        while True:
            for folder in split_of(store).folders():
                await tidy_of(store).compact(folder.header.destination)
            await asyncio.sleep(0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "write", counted)
        patch.setattr(_splittidy, "write_copy", slow_copy)
        task = asyncio.create_task(compact())
        try:
            await sparse_load(store, history, chance)
        finally:
            task.cancel()
            try:
                await task
            except (asyncio.CancelledError, StoreIOError, StoreFullError):
                pass  # the power went
            except CorruptRecordError as error:
                raise AssertionError(f"copied what was written over: {error}") from error


def crash_amid_copies(directory: Path, seed: int) -> str:
    options = {**OPTIONS, **policy_of(seed)}
    return run(live_and_crash(directory, seed, compacted_load, 500, **options))


@pytest.mark.usefixtures("with_two_queues")
@pytest.mark.parametrize("seed", range(12))
def test_after_a_power_cut_amid_the_compaction_of_record_files_nothing_is_lost(
    tmp_path: Path, seed: int
) -> None:
    assert crash_amid_copies(tmp_path, seed) == ""


def jobs_amid_copies() -> list[crash_crew.Job]:
    blocks = range(amount(2, 4))
    return [job(problems_with_directories, "copies", 1000 + BLOCK * block) for block in blocks]


@pytest.mark.crash
@pytest.mark.crew(jobs=jobs_amid_copies)
def test_many_power_cuts_amid_the_compaction_of_record_files(
    results: list[dict[int, str]],
) -> None:
    assert [problems for problems in results if problems] == []


@pytest.mark.usefixtures("with_two_queues")
def test_blocks_used_again_while_they_are_copied_are_found_by_the_same_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control of the compaction beside batches."""
    real = _split.Split.collect

    def hasty(split: _split.Split) -> None:
        held, split._held = split._held, 0  # pyright: ignore[reportPrivateUsage]
        real(split)
        split._held = held  # pyright: ignore[reportPrivateUsage]

    monkeypatch.setattr(_split.Split, "collect", hasty)
    problems: list[str] = []
    for seed in range(40):
        try:
            problems.append(crash_amid_copies(tmp_path / str(seed), seed))
        except Exception as error:
            problems.append(repr(error))
        if problems[-1]:
            break
    assert any(problems)


@pytest.mark.usefixtures("with_two_queues")
def test_the_load_uses_blocks_again_and_files_of_single_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the power cuts would prove nothing about either."""
    given_back: dict[str, int] = {}
    real = RecordFolder.give_back

    def counted(folder: RecordFolder, place: object) -> str:
        act = real(folder, place)  # pyright: ignore[reportArgumentType]
        given_back[act] = given_back.get(act, 0) + 1
        return act

    monkeypatch.setattr(RecordFolder, "give_back", counted)

    async def scenario() -> None:
        store, _ = await opened(tmp_path, keep=True, **OPTIONS)
        history = History([], lists={1: [], 2: []})
        await sparse_load(store, history, random.Random(1))
        assert folder_of(store, "a").messages > 10
        await store.close()

    run(scenario())
    assert given_back.get("", 0) > 20
    assert given_back.get("delete", 0) + given_back.get("empty", 0) > 2


# ------------------------------------------------------------------------------------ real kills

CHILD = """
import asyncio, os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from journal_kit import ack, opened
from split_kit import add
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
        await store.release_acknowledged(store.statistics().acknowledged_last - 50)

asyncio.run(main())
"""


def test_a_real_kill_loses_nothing_that_was_confirmed_in_any_directory(tmp_path: Path) -> None:
    acked: set[int] = set()
    for turn in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(tmp_path), str(Path(__file__).parent)],
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        added = 0
        for line in process.stdout:  # to its end: what was confirmed just before the kill counts
            what, number = line.split()
            if what == b"added":
                added = int(number)
            else:
                acked |= set(range(int(number) - 14, int(number) + 1))
            if added >= (turn + 1) * 300 + turn * 7:
                process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()

        async def check(added: int = added, acked: frozenset[int] = frozenset(acked)) -> None:
            store, state = await opened(tmp_path, keep=True, per_destination=ALL)
            assert state.last_sequence >= added
            assert state.last_sequence % 20 == 0  # batches are whole
            found = await pending(store)
            statistics = store.statistics()
            first = statistics.acknowledged_first
            page = await store.acknowledged(first - 1, 1_000_000, ANY_SIZE)
            rows = [row.sequence for row in page.rows]
            assert all(row.message.body.split()[0] == b"%d" % row.sequence for row in page.rows)
            # Every confirmed message is pending, in the log, or released; exactly once.
            every = set(range(1, state.last_sequence + 1))
            assert every >= set(found) | set(rows)
            assert not set(found) & set(rows)
            assert len(found) + statistics.acknowledged_last == state.last_sequence
            assert not set(found) & acked
            await store.close()

        run(check())
