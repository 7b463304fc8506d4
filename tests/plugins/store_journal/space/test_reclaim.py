"""Getting files back: on demand, in rounds, and never in vain for ever."""

from __future__ import annotations

import asyncio
import errno
import logging
from pathlib import Path

import pytest
from journal_kit import KB, CrashStorage, opened, options, pending, until, write, write_only
from numbered import ack, add

from tidegate.spi import AddDestination, StoreContext, is_store_low_again
from tidegate_store_journal import JournalStore
from tidegate_store_journal.space import maintenance
from tidegate_store_journal.space.reclaim import Reclaim


def reclaim_of(store: JournalStore) -> Reclaim:
    return store._reclaim  # pyright: ignore[reportPrivateUsage]


async def test_a_long_load_that_is_consumed_writes_each_byte_once(tmp_path: Path) -> None:
    """Padding happens for the first few files only; after that dead ones are used again."""
    storage = CrashStorage()
    store, _ = await opened(tmp_path, storage, journal_max_file_length=256 * KB)
    sequence = 0

    async def load(batches: int) -> tuple[int, int]:
        """Returns: bytes of the journal, bytes written to the storage."""
        nonlocal sequence
        tail = store._appender.tail  # pyright: ignore[reportPrivateUsage]
        written = storage.written
        total = 0
        for _ in range(batches):
            before = tail.offset
            numbers = range(sequence + 1, sequence + 11)
            sequence += 10
            await write(store, *[add(item, size=500) for item in numbers])
            await write(store, ack(*numbers))
            # A batch that began a new file is not counted, so the ratio is on the safe side.
            total += max(0, tail.offset - before)
        return total, storage.written - written

    await load(200)  # four files' worth: all there are from now on
    files = store._files  # pyright: ignore[reportPrivateUsage]
    in_all = files.disk_bytes
    journal, written = await load(1000)
    assert journal > 20 * 256 * KB
    assert written < 1.1 * journal
    assert files.disk_bytes == in_all <= 4 * 256 * KB
    await store.close()


async def test_a_store_that_cannot_put_files_away_goes_on_and_tries_again_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    storage = CrashStorage()
    store, _ = await opened(tmp_path, storage)
    real = storage.rename
    failures = 0

    def rename(old: str, new: str) -> None:
        nonlocal failures
        if new.endswith(".free"):
            failures += 1
            raise OSError(errno.EIO, "broken")
        real(old, new)

    storage.rename = rename  # type: ignore[method-assign]  # a fault
    with caplog.at_level(logging.WARNING, "tidegate.store.journal"):
        for sequence in range(1, 41):
            await write(store, add(sequence, size=20_000))
            await write(store, ack(sequence))
    assert "broken" in caplog.text
    # Once, and not at every batch; new files were made instead.
    assert failures == 1
    assert store._files.disk_bytes > 8 * 64 * KB  # pyright: ignore[reportPrivateUsage]
    storage.rename = real  # type: ignore[method-assign]  # mended
    reclaim_of(store).retry()
    assert reclaim_of(store).reclaim()
    await until(lambda: not reclaim_of(store).is_wanted)
    assert len(store._files.own.pool) > 5  # pyright: ignore[reportPrivateUsage]
    assert store.statistics().reusable_bytes > 5 * 64 * KB
    assert await pending(store) == []
    await store.close()


async def test_there_is_nothing_to_reclaim_in_an_empty_or_a_full_store(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    assert not reclaim_of(store).reclaim()
    for sequence in range(1, 11):
        await write(store, add(sequence, size=60_000))
    assert not reclaim_of(store).reclaim()
    await reclaim_of(store).until_reclaimed()  # nobody is at work, so nobody to wait for
    await store.close()
    assert not reclaim_of(store).reclaim()


async def test_a_sparse_store_is_compacted_at_its_cleanup_without_any_writes(
    tmp_path: Path,
) -> None:
    store, _ = await opened(tmp_path, cleanup_interval=0.05, checkpoint_interval=0.05)
    for first in range(1, 201, 10):
        await write_only(store, *[add(first + item, size=6000) for item in range(10)])
    files = store._files  # pyright: ignore[reportPrivateUsage]
    assert len(files.used()) >= 20
    # One message of each file stays.
    await write(store, ack(*[item for item in range(1, 201) if item % 10]))
    # About 6 KB live in each file, so 3 times that and the files of the bound are left.
    await until(lambda: len(files.used()) <= 7)
    assert await pending(store) == list(range(10, 201, 10))
    await store.close()


async def test_a_file_that_cannot_be_emptied_does_not_keep_others_from_it(tmp_path: Path) -> None:
    storage = CrashStorage()
    store, _ = await opened(tmp_path, storage)
    for first in range(1, 101, 10):
        await write_only(store, *[add(first + item, size=6000) for item in range(10)])
    index = store._index  # pyright: ignore[reportPrivateUsage]
    place = index.lists[1].get(10) or 0
    damaged = store._files.get(place >> 100)  # pyright: ignore[reportPrivateUsage]
    assert damaged is not None
    storage.flip(damaged.name, (place >> 64 & 0x7_FFFF_FFFF) + 200)
    await write(store, ack(*[item for item in range(1, 101) if item % 10]))
    assert reclaim_of(store).reclaim()
    await until(lambda: not reclaim_of(store).is_wanted)
    left = [file.name for file in store._files.used()]  # pyright: ignore[reportPrivateUsage]
    assert damaged.name in left
    assert len(left) <= 4
    page = await store.page_in(1, 10, 100, 1 << 40)
    assert [item.sequence for item in page] == list(range(20, 101, 10))
    await store.close()


async def test_a_store_that_is_closed_amid_compaction_stops_at_the_next_step(
    tmp_path: Path,
) -> None:
    store, _ = await opened(tmp_path, journal_max_file_length=1024 * KB)
    for first in range(1, 5001, 100):
        await write_only(store, *[add(first + item, size=1000) for item in range(100)])
    await write(store, ack(*[item for item in range(1, 5001) if item % 4]))
    compactor = store._compactor  # pyright: ignore[reportPrivateUsage]
    assert reclaim_of(store).reclaim()
    await until(lambda: compactor.copied_messages > 0)
    await store.close()
    assert compactor.copied_messages < 1250
    store, state = await opened(tmp_path, journal_max_file_length=1024 * KB)
    assert state.report.clean
    assert await pending(store) == list(range(4, 5001, 4))
    await store.close()


async def test_a_bug_in_compaction_stops_neither_writers_nor_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store, _ = await opened(tmp_path)

    async def broken(_file: object, **_: object) -> bool:
        raise RuntimeError("bug")

    monkeypatch.setattr(store._compactor, "compact", broken)  # pyright: ignore[reportPrivateUsage]
    for first in range(1, 201, 10):
        await write(store, *[add(first + item, size=6000) for item in range(10)])
        await write(store, ack(*[first + item for item in range(9)]))
    assert "bug" in caplog.text
    count = store.metadata_counters.checkpoints
    reclaim_of(store).retry()
    store._maintenance.room.hurry()  # pyright: ignore[reportPrivateUsage]
    await until(lambda: store.metadata_counters.checkpoints > count)
    assert await pending(store) == list(range(10, 201, 10))
    await store.close()


async def test_compaction_hurries_when_the_current_file_is_nearly_full(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    is_urgent = reclaim_of(store)._is_urgent  # pyright: ignore[reportPrivateUsage]
    assert not is_urgent()
    await write(store, add(1, size=50_000))
    files = store._files  # pyright: ignore[reportPrivateUsage]
    await until(lambda: files.spare_count == 2)
    assert not is_urgent()  # the next two files are there
    files._spares.pop()  # pyright: ignore[reportPrivateUsage]
    assert is_urgent()
    await store.close()


async def test_a_writer_that_waits_for_the_copies_is_let_go_when_the_store_is_closed(
    tmp_path: Path,
) -> None:
    store, _ = await opened(tmp_path)
    reclaim = reclaim_of(store)
    compactor = store._compactor  # pyright: ignore[reportPrivateUsage]
    files = store._files  # pyright: ignore[reportPrivateUsage]
    await write(store, *[add(number, size=1000) for number in range(1, 31)])
    await until(lambda: files._preparing is None)  # pyright: ignore[reportPrivateUsage]
    files._spares.clear()  # pyright: ignore[reportPrivateUsage]
    reclaim.victim = files.used()[0]
    assert compactor.room_needed(files.used()[0]) > 30 * 1000
    assert not files.holds(0)  # no round is under way
    reclaim.is_wanted = True
    assert files.holds(compactor.room_needed(files.used()[0]) - 1)
    assert not files.holds(compactor.room_needed(files.used()[0]))
    waiting = asyncio.ensure_future(write(store, add(31, size=10_000)))
    await until(lambda: bool(reclaim._waiting))  # pyright: ignore[reportPrivateUsage]
    assert not waiting.done()
    reclaim.close()
    await waiting
    reclaim.victim = None
    assert await pending(store) == list(range(1, 32))
    await store.close()


async def test_messages_of_which_two_fill_a_file_are_not_copied_round_and_round(
    tmp_path: Path,
) -> None:
    """Each file is alive to less than half, yet the living of two do not fit into one."""
    storage = CrashStorage()
    options = {"journal_compact_min_files": 3, "journal_compact_percentage": 50}
    store, _ = await opened(tmp_path, storage, **options)
    living: list[int] = []
    for number in range(1, 60, 2):
        await write(store, add(number, size=31_700))
        await write(store, add(number + 1, size=24_000))
        await write(store, ack(number + 1))
        living.append(number)
        if len(living) > 6:
            await write(store, ack(living.pop(0)))
    assert await pending(store) == living
    reclaim = reclaim_of(store)
    await until(lambda: not reclaim.is_wanted)
    assert store._compactor.copied_messages < 100  # pyright: ignore[reportPrivateUsage]
    await store.close()


@pytest.mark.parametrize("is_limited", [True, False])
async def test_a_store_at_its_limit_gets_room_back_wherever_there_is_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_limited: bool
) -> None:
    """Each file is alive to a half: worth no copies, until publishers wait for what they would bring."""
    monkeypatch.setattr(maintenance, "ROOM_CHECK_SECONDS", 0.01)
    limit = 30 * 64 * KB
    context = StoreContext(tmp_path, "test", store_limit=limit if is_limited else 0)
    store = JournalStore(context, options(journal_max_file_length=64 * KB))
    await store.open()
    await write(store, AddDestination("queue://q", 1))
    sequence = 0
    while store.statistics().used_bytes < limit:
        await write(store, *[add(sequence + step, size=1000) for step in range(1, 11)])
        sequence += 10
    await write(store, ack(*range(1, sequence, 2)))
    if is_limited:
        await until(lambda: is_store_low_again(store.statistics().used_bytes, limit))
        assert store.statistics().used_bytes > sequence // 2 * 1000
    else:
        await asyncio.sleep(0.2)
        assert not is_store_low_again(store.statistics().used_bytes, limit)
    assert await pending(store) == list(range(2, sequence + 1, 2))
    await store.close()
