"""Compaction: which file is next, what it copies, and the bound on the disk that it keeps."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from pathlib import Path

import pytest
from journal_kit import (
    ANY_SIZE,
    KB,
    CrashStorage,
    checkpoint,
    killed,
    new_store,
    opened,
    pending,
    write,
    write_only,
)
from numbered import ack, add

from tidegate.spi import Durability, WriteBatch
from tidegate_store_journal import JournalOptions, JournalStore
from tidegate_store_journal.index.index import Index
from tidegate_store_journal.log.datafile import DataFile
from tidegate_store_journal.log.files import DataFiles
from tidegate_store_journal.space.reclaim import choose

MB = 1 << 20


# ------------------------------------------------------------------------------------- choosing


class Journal:
    """Data files of 1000 bytes with so many live bytes each."""

    def __init__(self, *live: int) -> None:
        self.index = Index(keep_acknowledged=False)
        small = JournalOptions(journal_max_file_length=1000)
        self.files = DataFiles(CrashStorage(), None, small, store_id="0" * 32)  # pyright: ignore[reportArgumentType]  # nothing is prepared
        self.made = [
            DataFile(number, 1000, 0, home=CrashStorage()) for number in range(1, len(live) + 1)
        ]
        for file, count in zip(self.made, live, strict=True):
            file.first_batch = file.file_id
            use = self.index.file_use(file.file_id)
            use.live_bytes = count
            use.references = int(count > 0)
        self.files.adopt(self.made, [], [], len(live) + 1)

    def choose(self, min_files: int = 10, percentage: int = 30, *unfit: int) -> int | None:
        file = choose(
            self.files,
            self.index,
            self.made[-1],
            min_files=min_files,
            percentage=percentage,
            unfit=frozenset(unfit),
        )
        return file and file.file_id


def test_the_file_with_the_lowest_share_of_live_bytes_is_next() -> None:
    assert Journal(500, 9, 400, 3, 0).choose(1, 90) == 4
    assert Journal(500, 9, 400, 3, 0).choose(1, 90, 4) == 2


def test_of_equals_the_oldest_is_next() -> None:
    assert Journal(5, 5, 5, 5).choose(1, 90) == 1


def test_the_current_file_and_dead_ones_are_never_chosen() -> None:
    assert Journal(0, 0, 0, 1).choose(1, 90) is None


def test_nothing_happens_before_the_minimum_of_files_or_above_the_percentage() -> None:
    full = [1000] * 5
    sparse = [100, 100, 100, 100]
    assert Journal(*sparse, *full).choose(9, 60) is None  # 60.0 percent live
    assert Journal(*sparse, *full).choose(9, 61) == 1
    assert Journal(*sparse, *full).choose(10, 61) is None


def test_the_bound_does_not_wait_for_the_minimum_of_files() -> None:
    assert Journal(1, 0).choose() is None
    assert Journal(1, 1, 0).choose() == 1  # and two spares would be five files
    # Three old files of 1000: one of them may be there whatever lives, two need 667 live bytes.
    assert Journal(333, 333, 1, 0).choose(100) is None
    assert Journal(333, 332, 1, 0).choose(100) == 3


@pytest.mark.parametrize("off", [(0, 30), (10, 0)])
def test_zero_turns_compaction_off(off: tuple[int, int]) -> None:
    assert Journal(*[1] * 50).choose(*off) is None


# --------------------------------------------------------------------------------------- copying


async def sparse_store(
    where: Path, storage: CrashStorage, *, keep: bool = False
) -> tuple[JournalStore, list[int]]:
    """A store that compacts nothing by itself, and the few messages that live in each file."""
    store, _ = await opened(where, storage, keep=keep, journal_compact_min_files=0)
    staying: list[int] = []
    for first in range(1, 101, 10):
        sequences = range(first, first + 10)
        await write(store, *[add(item, 1, 2, size=4000) for item in sequences[:1]])
        await write(store, *[add(item, size=4000) for item in sequences[1:]])
        await write(store, ack(*sequences[3:]))
        staying += sequences[:3]
    return store, staying


async def compact_all(store: JournalStore) -> int:
    """Compact every file but the current one, then clean up. Returns: files that are left."""
    files = store._files  # pyright: ignore[reportPrivateUsage]
    for file in files.used()[:-1]:
        assert await store._compactor.compact(file)  # pyright: ignore[reportPrivateUsage]
    await checkpoint(store, cleanup=True)
    return len(files.used())


@pytest.mark.parametrize("deletes", ["nothing", "metadata"])
async def test_what_was_copied_is_there_in_order_before_and_after_a_restart(
    tmp_path: Path, deletes: str
) -> None:
    store = new_store(tmp_path, journal_compact_min_files=0)
    await store.open()
    staying: list[int] = []
    for first in range(1, 101, 10):
        await write(store, add(first, 1, 2, size=4000))
        await write(store, *[add(item, size=4000) for item in range(first + 1, first + 10)])
        await write(store, ack(*range(first + 3, first + 10)))
        staying += [first, first + 1, first + 2]
    files = store._files  # pyright: ignore[reportPrivateUsage]
    before = len(files.used())
    left = await compact_all(store)
    assert before >= 7
    assert left <= 4
    # 30 messages, but those of the current file stayed where they were.
    assert store._compactor.copied_messages >= 24  # pyright: ignore[reportPrivateUsage]
    assert await pending(store) == staying
    assert await pending(store, 2) == staying[::3]
    await write(store, ack(*staying[:4]), ack(1, pending_list=2))
    copy = killed(tmp_path, tmp_path.parent / f"{tmp_path.name}-copy")
    await store.close()
    if deletes == "metadata":
        for path in (copy / "journal" / "metadata").iterdir():
            path.unlink()
    store, state = await opened(copy)
    assert await pending(store) == staying[4:]
    assert await pending(store, 2) == staying[3::3]
    assert state.last_sequence == 100
    await store.close()


async def test_rows_that_no_sink_has_released_are_alive_and_are_copied(tmp_path: Path) -> None:
    storage = CrashStorage()
    store, staying = await sparse_store(tmp_path, storage, keep=True)
    # All rows but three are released; of those the messages lie in the oldest files.
    await store.release_acknowledged(70)
    await write(store, ack(1, 11, 21), ack(1, pending_list=2))
    await compact_all(store)

    async def rows() -> list[tuple[int, int, int, str]]:
        page = await store.acknowledged(70, 10, ANY_SIZE)
        for row in page.rows:
            assert row.message.body.split()[0] == b"%d" % row.sequence
        return [(r.ack_sequence, r.sequence, r.delivered_at, r.client_id) for r in page.rows]

    expected = [
        (71, 1, 1001, "client"),
        (72, 11, 1011, "client"),
        (73, 21, 1021, "client"),
        (74, 1, 1001, "client"),
    ]
    left = [item for item in staying if item not in (1, 11, 21)]
    assert await rows() == expected
    after = storage.crash()
    await store.close()
    # CrashStorage has no metadata store: everything comes from copies and copied rows.
    store, state = await opened(tmp_path, after, keep=True)
    assert state.report.notes == ()
    assert await rows() == expected
    assert await pending(store) == left
    await store.release_acknowledged(74)
    assert store.log_statistics().held_bytes == 0
    await store.close()


async def test_messages_acknowledged_while_their_file_is_compacted_stay_acknowledged(
    tmp_path: Path,
) -> None:
    storage = CrashStorage()
    store, staying = await sparse_store(tmp_path, storage, keep=True)
    compactor = store._compactor  # pyright: ignore[reportPrivateUsage]
    files = store._files  # pyright: ignore[reportPrivateUsage]
    await store.release_acknowledged(70)
    gone: list[int] = []
    for file in files.used()[:-1]:
        work = asyncio.create_task(compactor.compact(file))
        await asyncio.sleep(0)
        item = staying[len(gone) * 3 + 1]
        await write(store, ack(item))
        gone.append(item)
        assert await work
        use = store._index.files.get(file.file_id)  # pyright: ignore[reportPrivateUsage]
        # None: somebody needed a file meanwhile, and this one was put away.
        assert use is None or (use.references, use.live_bytes) == (0, 0)
    left = [item for item in staying if item not in gone]
    assert await pending(store) == left
    await checkpoint(store, cleanup=True)
    after = storage.crash()
    await store.close()
    store, _ = await opened(tmp_path, after, keep=True)
    assert await pending(store) == left
    page = await store.acknowledged(70, 100, ANY_SIZE)
    assert [row.sequence for row in page.rows] == gone
    await store.close()


async def test_a_file_with_a_damaged_message_is_left_alone_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    storage = CrashStorage()
    store, staying = await sparse_store(tmp_path, storage)
    file = store._files.used()[0]  # pyright: ignore[reportPrivateUsage]
    place = store._index.lists[1].get(2) or 0  # pyright: ignore[reportPrivateUsage]
    storage.flip(file.name, (place >> 64 & 0x7_FFFF_FFFF) + 200)
    with caplog.at_level(logging.WARNING, "tidegate.store.journal"):
        assert not await store._compactor.compact(file)  # pyright: ignore[reportPrivateUsage]
    assert file.name in caplog.text
    assert "message 2" in caplog.text
    page = await store.page_in(1, 2, 100, ANY_SIZE)  # the others are not affected
    assert [item.sequence for item in page] == staying[2:]
    await store.close()


@pytest.mark.long
async def test_confirmations_pass_between_the_steps(tmp_path: Path) -> None:
    """A synced batch that is written while a large file is compacted waits for a step at most."""
    storage = CrashStorage()
    store, _ = await opened(
        tmp_path, storage, journal_max_file_length=4 * MB, journal_compact_min_files=0
    )
    for first in range(1, 3001, 100):
        await write_only(store, *[add(item, size=1000) for item in range(first, first + 100)])
    await write_only(store, *[add(item, size=1000) for item in range(3001, 4001)])
    compactor = store._compactor  # pyright: ignore[reportPrivateUsage]
    file = store._files.used()[0]  # pyright: ignore[reportPrivateUsage]
    work = asyncio.create_task(compactor.compact(file))
    sequence = 4000
    seen: list[int] = []
    while not work.done():
        sequence += 1
        before, tail = compactor.copied_bytes, compactor.appender.tail.file
        await write(store, add(sequence))
        # One that waits for the next file to be made waits for a disk, however slow that is.
        if compactor.appender.tail.file is tail:
            seen.append(compactor.copied_bytes - before)
    assert work.result()
    assert compactor.copied_messages > 2000
    assert len(seen) > 20
    assert max(seen) <= 2 * 128 * KB
    await store.close()


# ------------------------------------------------------------------------------------- the bound


def bytes_of_files(directory: Path) -> int:
    """A file that is renamed between the listing and the look at it means to list again."""
    while True:
        try:
            return sum(path.stat().st_size for path in directory.glob("journal-*"))
        except FileNotFoundError:
            continue


async def endure(where: Path, messages: int, keep_one_in: int, file_length: int) -> JournalStore:
    """A load in which some messages are never acknowledged; the bound is checked at every batch."""
    store, _ = await opened(where, journal_max_file_length=file_length)
    files = store._files  # pyright: ignore[reportPrivateUsage]
    uses = store._index.files  # pyright: ignore[reportPrivateUsage]
    highest = 0.0
    for first in range(1, messages + 1, 250):
        sequences = range(first, first + 250)
        await store.write(
            WriteBatch([add(item, size=64) for item in sequences], Durability.WRITTEN)
        )
        # Files are got back when one is needed, so what counts is what lived when they were.
        live = sum(use.live_bytes for use in uses.values())
        gone = [item for item in sequences if item % keep_one_in]
        await store.write(WriteBatch([ack(*gone)], Durability.WRITTEN))
        assert files.disk_bytes <= 3 * live + 4 * file_length, (first, live)
        highest = max(highest, files.disk_bytes / (3 * live + 4 * file_length))
    assert bytes_of_files(where / "journal") <= files.disk_bytes
    assert highest > 0.5  # else the load was none
    return store


async def has_all(store: JournalStore, messages: int, keep_one_in: int) -> None:
    found = await pending(store)
    assert found == list(range(keep_one_in, messages + 1, keep_one_in))


@pytest.mark.parametrize(
    ("messages", "keep_one_in"),
    [(200_000, 10_000), (30_000, 500), (20_000, 20), (20_000, 5), (20_000, 3), (20_000, 2)],
)
async def test_the_disk_never_holds_more_than_three_times_what_lives_and_a_few_files(
    tmp_path: Path, messages: int, keep_one_in: int
) -> None:
    store = await endure(tmp_path, messages, keep_one_in, 512 * KB)
    await has_all(store, messages, keep_one_in)
    await store.close()
    store, _ = await opened(tmp_path, journal_max_file_length=512 * KB)
    await has_all(store, messages, keep_one_in)
    await store.close()


@pytest.mark.parametrize("is_held", [True, False])
async def test_writers_leave_the_rest_of_the_last_file_to_the_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_held: bool
) -> None:
    """Compaction that is as slow as can be: before each step the writers fill the current file until
    the step has just no room there any more, or until they are made to wait. Without that (the
    negative control) the next step begins yet another file.
    """
    if not is_held:
        monkeypatch.setattr(DataFiles, "holds", lambda *_: False)
    store, _ = await opened(tmp_path, journal_max_file_length=256 * KB)
    reclaim = store._reclaim  # pyright: ignore[reportPrivateUsage]
    reader = store._reader  # pyright: ignore[reportPrivateUsage]
    tail = store._appender.tail  # pyright: ignore[reportPrivateUsage]
    files = store._files  # pyright: ignore[reportPrivateUsage]
    uses = store._index.files  # pyright: ignore[reportPrivateUsage]
    read_values = reader.read_values
    progress = asyncio.Event()
    is_over = False

    async def read_late(wanted: Sequence[tuple[int, int]]) -> list[bytes]:
        values = await read_values(wanted)
        step = sum(map(len, values))  # and some more: it has no room in what is left
        while tail.file and tail.file.length - tail.offset > step:
            if is_over or reclaim._waiting:  # pyright: ignore[reportPrivateUsage]
                break
            progress.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.01):
                    await progress.wait()
        return values

    monkeypatch.setattr(reader, "read_values", read_late)
    worst = 0
    for first in range(1, 55_001, 50):
        sequences = range(first, first + 50)
        await write_only(store, *[add(item, size=64) for item in sequences])
        live = sum(use.live_bytes for use in uses.values())
        await write_only(store, ack(*[item for item in sequences if item % 20]))
        progress.set()
        worst = max(worst, files.disk_bytes - 3 * live)
    is_over = True
    progress.set()
    await has_all(store, 55_000, 20)
    await store.close()
    assert (worst <= 4 * 256 * KB) is is_held


@pytest.mark.soak
async def test_the_bound_holds_for_ten_million_messages(tmp_path: Path) -> None:
    store = await endure(tmp_path, 10_000_000, 10_000, 8 * MB)
    await has_all(store, 10_000_000, 10_000)
    await store.close()


async def test_without_compaction_the_same_load_breaks_the_bound(tmp_path: Path) -> None:
    """The negative control."""
    store, _ = await opened(
        tmp_path, journal_max_file_length=512 * KB, journal_compact_percentage=0
    )
    for first in range(1, 60_001, 250):
        sequences = range(first, first + 250)
        await write_only(store, *[add(item, size=64) for item in sequences])
        await write_only(store, ack(*[item for item in sequences if item % 2000]))
    files = store._files  # pyright: ignore[reportPrivateUsage]
    assert files.disk_bytes > 12 * 512 * KB
    await store.close()


# ------------------------------------------------------------------- half-compacted, and forgotten


@pytest.mark.parametrize("copy_outlives_the_acknowledgement", [True, False])
async def test_a_copied_message_that_was_acknowledged_does_not_come_back_with_its_original(
    tmp_path: Path, copy_outlives_the_acknowledgement: bool
) -> None:
    """Compaction stopped half-way: the original is still there, the acknowledgement is not."""
    storage = CrashStorage()  # without a metadata store: every start is a rebuild
    store, _ = await opened(tmp_path, storage, journal_compact_min_files=0)
    compactor = store._compactor  # pyright: ignore[reportPrivateUsage]
    files = store._files  # pyright: ignore[reportPrivateUsage]

    async def next_file() -> None:
        """Fill the current file with what is gone at once."""
        before = files.used()[-1]
        while files.used()[-1] is before:
            sequence = store._index.last_sequence + 1  # pyright: ignore[reportPrivateUsage]
            await write(store, add(sequence, 9, size=20_000), ack(sequence, pending_list=9))

    await write(store, *[add(item, size=5000) for item in range(1, 11)])
    first = files.used()[0]
    await next_file()
    found = await compactor._find(first.file_id)  # pyright: ignore[reportPrivateUsage]
    assert [item.sequence for item in found] == list(range(1, 11))
    assert await compactor._copy(first, found[:2], lambda: True) == 2  # pyright: ignore[reportPrivateUsage]
    assert files.used()[-1] is not first
    if copy_outlives_the_acknowledgement:
        await next_file()
        await write(store, ack(1))
    else:
        await write(store, ack(1, 2))
    await next_file()
    await checkpoint(store, cleanup=True)
    names = storage.list()
    assert first.name in names
    bindings = store._bindings  # pyright: ignore[reportPrivateUsage]
    assert bindings is not None
    assert first.file_id in bindings.lives
    after = storage.crash()
    await store.close()
    store, state = await opened(tmp_path, after)
    assert state.report.notes == ()
    left = range(2, 11) if copy_outlives_the_acknowledgement else range(3, 11)
    assert await pending(store) == list(left)
    await store.close()
