"""How a journal ends: torn tails are cut off, damage is refused."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from journal_kit import (
    ANY_SIZE,
    CrashStorage,
    checkpoint,
    data_files,
    killed,
    opened,
    pending,
    unlink_bindings,
    write,
    write_only,
)
from numbered import ack, add

from tidegate.spi import (
    AddDestination,
    CorruptRecordError,
    Durability,
    Operation,
    WriteBatch,
)
from tidegate_store_journal import JournalStore
from tidegate_store_journal.log.format import DATA_NAME, DATA_OFFSET

NAME = "journal-0000000001.data"


async def tail_of(store: JournalStore) -> int:
    """Offset behind the last batch."""
    return store._appender.tail.offset  # pyright: ignore[reportPrivateUsage]


async def test_a_tail_torn_at_any_byte_is_cut_off_and_the_rest_is_there(tmp_path: Path) -> None:
    storage = CrashStorage()
    store, _ = await opened(tmp_path, storage)
    await write(store, AddDestination("queue://q", 1), add(1, size=20))
    begin = await tail_of(store)
    await write(store, add(2, size=5))
    end = await tail_of(store)
    whole = bytes(storage.open(NAME).pread(1 << 20, 0))
    await store.close()
    for cut in range(begin, end + 1):
        torn = storage.crash()
        file = torn.open(NAME)
        file.pwritev([whole[:cut], bytes(len(whole) - cut)], 0)
        unlink_bindings(torn)
        store, state = await opened(tmp_path, torn)
        # What was cut off may have been zeros anyway.
        complete = whole[:cut] + bytes(len(whole) - cut) == whole
        assert await pending(store) == ([1, 2] if complete else [1])
        # Bytes that happen to be zero at the cut are not missed.
        lost = whole[begin:cut].rstrip(b"\0")
        assert state.report.counts["repaired_bytes"] == (0 if complete else len(lost))
        copies = [name for name in torn.list() if name.endswith(".torn")]
        if lost and not complete:
            assert copies == [f"{NAME}.{begin}.torn"]
            assert torn.open(copies[0]).pread(1 << 20, 0) == lost
        else:
            assert copies == []
        await write(store, add(3))
        await store.close()
        store, state = await opened(tmp_path, torn)
        assert await pending(store) == ([1, 2, 3] if complete else [1, 3])
        assert state.report.counts["repaired_bytes"] == 0
        await store.close()


async def test_a_file_that_is_shorter_than_it_should_be_is_torn_and_made_whole(
    tmp_path: Path,
) -> None:
    store, _ = await opened(tmp_path / "a")
    await write(store, add(1))
    await write(store, add(2))
    copy = killed(tmp_path / "a", tmp_path / "b")
    end = await tail_of(store)
    await store.close()
    path = data_files(copy)[0]
    length = path.stat().st_size
    path.write_bytes(path.read_bytes()[: end - 3])
    store, state = await opened(copy)
    assert await pending(store) == [1]
    assert state.report.counts["repaired_bytes"] > 0
    assert not state.report.clean
    assert path.stat().st_size == length
    await write(store, add(3))
    await store.close()


@pytest.mark.parametrize("seed", range(25))
async def test_a_power_cut_leaves_a_beginning_with_everything_that_was_synced(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    storage = CrashStorage(tmp_path / "metadata" if seed % 2 else None)
    store, _ = await opened(tmp_path, storage, keep=True)
    sequence = 0
    for number_of_cut in range(3):
        # States after each batch; what was synced may not be lost.
        alive: list[int] = await pending(store)
        states = [list(alive)]
        synced = 0
        for number in range(1, chance.randrange(2, 25)):
            operations: list[Operation] = []
            for _ in range(chance.randrange(1, 4)):
                sequence += 1
                operations.append(add(sequence, size=chance.choice([10, 3000, 30_000])))
                alive.append(sequence)
            if chance.random() < 0.5:
                taken = alive[: chance.randrange(1, 4)]
                del alive[: len(taken)]
                operations.append(ack(*taken))
            durability = chance.choice([Durability.SYNCED, Durability.WRITTEN])
            await store.write(WriteBatch(operations, durability))
            if chance.random() < 0.2:
                await checkpoint(store, cleanup=True)
                synced = number
            states.append(list(alive))
            if durability is Durability.SYNCED:
                synced = number
        after = storage.crash(seed)
        if after.metadata_directory is not None:
            # LMDB keeps what it has committed; closing the store must not reach this copy.
            kept = tmp_path / f"metadata-{number_of_cut}"
            shutil.copytree(after.metadata_directory, kept)
            after.metadata_directory = kept
        await store.close()
        storage = after
        store, state = await opened(tmp_path, storage, keep=True)
        found = await pending(store)
        assert found in states[synced:], (found, states, synced)
        assert state.last_sequence <= sequence
        sequence = max(sequence, state.last_sequence)
        page = await store.acknowledged(0, 10_000, ANY_SIZE)
        assert [row.ack_sequence for row in page.rows] == list(range(1, page.last + 1))
        gone = [row.sequence for row in page.rows]
        assert len(set(gone)) == len(gone)
        assert not set(gone) & set(found)
    await store.close()


async def test_unsynced_batches_after_a_lost_one_are_cut_off_too(tmp_path: Path) -> None:
    storage = CrashStorage()
    store, _ = await opened(tmp_path, storage, journal_disk_sync_strategy="never")
    await write(store, add(1))
    begin = await tail_of(store)
    await write(store, add(2))
    await write(store, add(3))
    storage.flip(NAME, begin + 70)
    torn = storage.crash()
    await store.close()
    store, state = await opened(tmp_path, torn)
    assert await pending(store) == [1]
    assert state.report.counts["repaired_bytes"] > 300
    assert "torn tail" in state.report.notes[0]
    await store.close()


@pytest.mark.parametrize("where", [4, 40, 52, 63, 64, 90, 100, 150])
async def test_damage_in_the_middle_stops_the_start_and_changes_nothing(
    tmp_path: Path, where: int
) -> None:
    storage = CrashStorage()
    store, _ = await opened(tmp_path, storage)
    await write(store, add(1))
    begin = await tail_of(store)
    await write(store, add(2))
    await write(store, add(3))
    await store.close()
    storage.flip(NAME, begin + where)
    before = bytes(storage.open(NAME).pread(1 << 20, 0))
    with pytest.raises(CorruptRecordError) as caught:
        await opened(tmp_path, storage)
    assert caught.value.location == f"crash:{NAME} at offset {begin}"
    assert "damaged" in caught.value.problem
    assert storage.open(NAME).pread(1 << 20, 0) == before
    assert not [name for name in storage.list() if name.endswith(".torn")]


@pytest.mark.parametrize("rebuilding", [True, False])
async def test_damage_at_the_beginning_of_a_file_is_not_taken_for_a_spare(
    tmp_path: Path, rebuilding: bool
) -> None:
    metadata = None if rebuilding else tmp_path / "metadata"
    storage = CrashStorage(metadata)
    store, _ = await opened(tmp_path, storage)
    for sequence in range(1, 8):
        await write(store, add(sequence, size=20_000))
    await store.close()
    for name in sorted(name for name in storage.list() if DATA_NAME.fullmatch(name))[:2]:
        broken = storage.crash()
        if metadata is not None:
            broken.metadata_directory = tmp_path / name
            shutil.copytree(metadata, tmp_path / name)
        broken.flip(name, DATA_OFFSET + 10)
        with pytest.raises(CorruptRecordError) as caught:
            await opened(tmp_path, broken)
        assert name in caught.value.location


async def test_every_flipped_bit_is_noticed_or_harmless(tmp_path: Path) -> None:
    storage = CrashStorage()
    store, _ = await opened(tmp_path, storage)
    await write(store, AddDestination("queue://q", 1), add(1, size=10))
    await write(store, add(2, size=10))
    await write(store, ack(1), add(3, size=10))
    end = await tail_of(store)
    last = end
    await store.close()
    step = 3  # every third byte: the same fields of several records, in a second or two
    for at in [*range(0, 64, step), *range(DATA_OFFSET, last, step), last + 1000]:
        broken = storage.crash()
        unlink_bindings(broken)
        broken.flip(NAME, at)
        try:
            store, state = await opened(tmp_path, broken)
        except CorruptRecordError:
            continue
        found = await pending(store)
        assert found == [2, 3] or (found == [1, 2] and state.report.counts["repaired_bytes"]), at
        await store.close()


# ----------------------------------------------------------------------------------- reused files


async def reach_reused_file(store: JournalStore, first: int = 1) -> int:
    """Write until the journal goes on in a file that had an earlier life. Returns: last sequence."""
    tail = store._appender.tail  # pyright: ignore[reportPrivateUsage]
    sequence = first - 1
    while tail.file is None or not tail.file.reused:
        assert sequence < 200
        sequence += 1
        await write(store, add(sequence, size=9000))
        await write(store, ack(sequence))
    return sequence


async def reused_tail(tmp_path: Path) -> tuple[CrashStorage, str, int, int, int]:
    """A journal whose last two batches are in a reused file.

    Returns: storage, name of that file, where the last batch begins and ends, last sequence.
    """
    storage = CrashStorage()
    store, _ = await opened(tmp_path, storage)
    sequence = await reach_reused_file(store) + 2
    file = store._appender.tail.file  # pyright: ignore[reportPrivateUsage]
    assert file is not None
    await write(store, add(sequence - 1, size=20))
    begin = await tail_of(store)
    await write(store, add(sequence, size=300))
    end = await tail_of(store)
    after = storage.crash()
    await store.close()
    return after, file.name, begin, end, sequence


async def test_a_tail_torn_at_any_byte_of_a_reused_file_is_cut_off(tmp_path: Path) -> None:
    storage, name, begin, end, sequence = await reused_tail(tmp_path)
    whole = storage.open(name).pread(1 << 20, 0)
    assert whole[end : end + 64] == bytes(64)
    assert whole[end + 64 :].strip(b"\0")  # of an earlier life
    for cut in [*range(begin, begin + 70), *range(begin + 70, end + 1, 17), end]:
        torn = storage.crash()
        torn.open(name).pwritev([bytes(min(64, end - cut)) or b"\0"], cut)
        if cut == end:  # only the end mark was lost
            torn.open(name).pwritev([b"\xa5" * 64], end)
        store, state = await opened(tmp_path, torn)
        left = [sequence - 1, sequence] if cut == end else [sequence - 1]
        assert await pending(store) == left
        if begin < cut < begin + 64 or cut == end:
            # The header is there but not whole, or bytes are where the mark should be.
            assert state.report.counts["repaired_bytes"] > 0
        await write(store, add(sequence + 1, size=300))
        await store.close()
        store, state = await opened(tmp_path, torn)
        assert await pending(store) == [*left, sequence + 1]
        assert state.report.counts["repaired_bytes"] == 0
        await store.close()


async def test_an_untouched_reused_file_needs_no_repair_after_a_kill(tmp_path: Path) -> None:
    storage, _, _, _, sequence = await reused_tail(tmp_path)
    store, state = await opened(tmp_path, storage)
    assert state.report.counts["repaired_bytes"] == 0
    assert state.report.notes == ()
    assert await pending(store) == [sequence - 1, sequence]
    await store.close()


async def test_damage_in_the_middle_of_a_reused_file_is_refused(tmp_path: Path) -> None:
    storage, name, begin, _, _ = await reused_tail(tmp_path)
    for offset in (begin - 100, begin + 5):
        damaged = storage.crash()
        damaged.flip(name, offset)
        if offset < begin:
            # The batch behind says that this one had been synced.
            with pytest.raises(CorruptRecordError, match="damaged") as caught:
                await opened(tmp_path, damaged)
            assert name in str(caught.value)
        else:
            store, state = await opened(tmp_path, damaged)
            assert state.report.counts["repaired_bytes"] > 0  # the last one: could be torn
            await store.close()


async def test_a_batch_that_was_lost_with_a_later_one_kept_does_not_come_back(
    tmp_path: Path,
) -> None:
    """In a reused file: what is kept lies behind zeros, where nobody would look but the scan."""
    storage, name, begin, end, sequence = await reused_tail(tmp_path)
    lost = storage.crash()
    store, _ = await opened(tmp_path, lost)
    await write_only(store, add(sequence + 1, size=300))
    await write_only(store, add(sequence + 2, size=300))
    data = lost.open(name).pread(1 << 20, 0)
    await store.close()
    size = end - begin
    lost = storage.crash()
    lost.open(name).pwritev([data[end + size : end + 2 * size + 64]], end + size)
    lost.open(name).datasync()
    store, state = await opened(tmp_path, lost)
    assert state.report.counts["repaired_bytes"] > 0
    assert await pending(store) == [sequence - 1, sequence]
    await write(store, add(sequence + 1, size=300))  # exactly as long as the lost one
    assert await tail_of(store) == end + size
    after = lost.crash()
    await store.close()
    store, state = await opened(tmp_path, after)
    assert await pending(store) == [sequence - 1, sequence, sequence + 1]
    await store.close()
