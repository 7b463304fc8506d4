"""Directories of destinations: damage, missing files, and what a power cut may cost without syncs."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from journal_kit import (
    ANY_SIZE,
    CrashStorage,
    damage_byte,
    killed,
    new_store,
    opened,
    pending,
    write,
)
from numbered import ack
from series_kit import ALL, add, directory_of, files_of, series_store

from tidegate.spi import AddDestination, CorruptRecordError, StoreUnavailableError
from tidegate.testing.faulty_storage import Call, Faults, FaultyDisk
from tidegate_store_journal import JournalStore
from tidegate_store_journal.options import NEVER, PERIODIC
from tidegate_store_journal.tools.verify import verify

QUARANTINE = {"damaged_journal_policy": "quarantine"}
IGNORE = {"ignore_missing_journalfiles": True}
CHECK = {"check_for_corrupt_journal_files": True}
SINGLE = {"max_record_size": 2048}


async def closed_store(where: Path, *, keep: bool = False) -> None:
    """List 1 has 1 to 5 and 7, which has a file of its own; list 2 has 6."""
    store = await series_store(where, keep=keep, **SINGLE)
    await write(store, AddDestination("queue://q", 1), AddDestination("queue://other", 2))
    await write(store, *(add(n) for n in range(1, 6)), add(6, 2, queue="other"), add(7, size=5000))
    await store.close()


def damage(path: Path, number: int) -> None:
    damage_byte(path, path.read_bytes().index(b"%d ...." % number) + 10)


def report_of(where: Path, number: int = 1) -> str:
    return (where / "journal" / f"damage-{number:04d}.report").read_text()


async def refused(where: Path, **changes: Any) -> str:
    with pytest.raises(CorruptRecordError) as caught:
        await new_store(where, **{"per_destination": ALL, **changes}).open()
    return str(caught.value)


async def served(where: Path, *expected: int, **changes: Any) -> JournalStore:
    """Open: list 1 has *expected*, list 2 its message; and everything goes on."""
    store = await series_store(where, **changes)
    assert await pending(store) == list(expected)
    assert await pending(store, 2) == [6]
    return store


async def whole(where: Path, *expected: int) -> None:
    """Without any policy, and for whoever verifies it."""
    store = await served(where, *expected, **CHECK)
    await write(store, add(100))
    assert await pending(store) == [*expected, 100]
    await write(store, ack(100))
    await store.close()


async def test_a_damaged_record_is_named_and_with_quarantine_the_rest_is_served(
    tmp_path: Path,
) -> None:
    await closed_store(tmp_path)
    path = files_of(tmp_path)[0]
    damage(path, 3)
    store = await series_store(tmp_path)
    assert [item.sequence for item in await store.page_in(1, 0, 10, ANY_SIZE)] == [1, 2]
    with pytest.raises(CorruptRecordError) as caught:
        await store.page_in(1, 2, 10, ANY_SIZE)
    assert f"{path} at offset " in str(caught.value)
    assert "CRC of message 3" in str(caught.value)
    await store.close()
    store = await served(tmp_path, 1, 2, 4, 5, 7, **QUARANTINE)
    assert "message 3 of queue://q (list 1) cannot be read" in report_of(tmp_path)
    await store.close()
    await whole(tmp_path, 1, 2, 4, 5, 7)


async def test_a_start_that_checks_every_file_finds_damaged_records(tmp_path: Path) -> None:
    await closed_store(tmp_path)
    first, single = files_of(tmp_path)
    damage(first, 3)
    damage(single, 7)
    text = await refused(tmp_path, **CHECK)
    for part in (str(first), str(single), "message 3", "message 7", "'quarantine'"):
        assert part in text
    store = await served(tmp_path, 1, 2, 4, 5, **CHECK, **QUARANTINE)
    report = report_of(tmp_path)
    assert "lost because their records are damaged" in report
    assert "queue://q (list 1): 3, 7" in report
    await store.close()
    await whole(tmp_path, 1, 2, 4, 5)
    assert verify(tmp_path / "journal", lambda *_: None).damages == []


async def test_damage_in_a_header_costs_nothing(tmp_path: Path) -> None:
    """A message is found by its reference and checked by its own CRC."""
    await closed_store(tmp_path)
    for path in files_of(tmp_path):
        for offset in (9, 44, 4096, 4100, 4150):
            damage_byte(path, offset)
    await whole(tmp_path, 1, 2, 3, 4, 5, 7)


def one_file(where: Path) -> None:
    files_of(where)[0].unlink()


def the_directory(where: Path) -> None:
    shutil.rmtree(directory_of(where))


@pytest.mark.parametrize(
    ("remove", "left"), [(one_file, [7]), (the_directory, [])], ids=["file", "directory"]
)
async def test_what_is_missing_costs_its_messages_when_that_is_allowed(
    tmp_path: Path, remove: Callable[[Path], None], left: list[int]
) -> None:
    await closed_store(tmp_path)
    name = files_of(tmp_path)[0].name
    remove(tmp_path)
    text = await refused(tmp_path, **QUARANTINE)
    assert f"{name} (5 pending messages of queue://q)" in text
    assert "ignore_missing_journalfiles = true" in text
    store = await served(tmp_path, *left, **IGNORE)
    report = report_of(tmp_path)
    assert "lost because the data files are missing that held them" in report
    assert f"queue://q (list 1): {'1-5' if left else '1-5, 7'}" in report
    await store.close()
    await whole(tmp_path, *left)


@pytest.mark.parametrize("per_destination", [ALL, ()], ids=["goes on", "without"])
async def test_all_directories_may_be_missing_when_that_is_allowed(
    tmp_path: Path, per_destination: tuple[str, ...]
) -> None:
    await closed_store(tmp_path)
    shutil.rmtree(directory_of(tmp_path).parent)
    await refused(tmp_path, per_destination=per_destination)
    store = await series_store(tmp_path, **IGNORE, per_destination=per_destination)
    assert await pending(store) == await pending(store, 2) == []
    assert "queue://other (list 2): 6" in report_of(tmp_path)
    await store.close()


async def test_a_missing_directory_is_noticed_without_the_metadata_as_well(tmp_path: Path) -> None:
    store = await series_store(tmp_path)
    await write(store, AddDestination("queue://q", 1), AddDestination("queue://other", 2))
    await write(store, add(1), add(2, 2, queue="other"))
    killed(tmp_path / "journal", tmp_path / "killed" / "journal")
    await store.close()
    shutil.rmtree(directory_of(tmp_path / "killed"))
    shutil.rmtree(tmp_path / "killed" / "journal" / "metadata")
    assert "(1 pending messages of queue://q)" in await refused(tmp_path / "killed")
    store = await series_store(tmp_path / "killed", **IGNORE)
    assert (await pending(store), await pending(store, 2)) == ([], [2])
    await store.close()


@pytest.mark.parametrize("allowed", [True, False])
async def test_a_file_that_goes_missing_while_the_store_runs(tmp_path: Path, allowed: bool) -> None:
    await closed_store(tmp_path)
    store = await series_store(tmp_path, **(IGNORE if allowed else QUARANTINE))
    files_of(tmp_path)[1].unlink()
    if allowed:
        assert await pending(store) == [1, 2, 3, 4, 5]
        assert "message 7 of queue://q (list 1) cannot be read" in report_of(tmp_path)
    else:
        with pytest.raises(CorruptRecordError, match=r"held message 7 is missing") as caught:
            await pending(store)
        assert "ignore_missing_journalfiles" in str(caught.value)
    await store.close()


@pytest.mark.parametrize("what", ["missing", "damaged"])
async def test_rows_of_the_acknowledged_log_are_given_up_with_those_before_them(
    tmp_path: Path, what: str
) -> None:
    await closed_store(tmp_path, keep=True)
    store = await series_store(tmp_path, keep=True)
    await write(store, ack(2, 3, 4))
    await store.close()
    path = files_of(tmp_path)[0]
    if what == "missing":
        path.unlink()
    else:
        damage(path, 3)
    store = await series_store(tmp_path, keep=True, **QUARANTINE, **IGNORE, **CHECK)
    released = 3 if what == "missing" else 2
    rows = (await store.acknowledged(released, 10, ANY_SIZE)).rows
    assert [row.sequence for row in rows] == ([] if what == "missing" else [4])
    assert f"Rows 1 to {released} of the acknowledged log are lost" in report_of(tmp_path)
    await store.close()
    store = await series_store(tmp_path, keep=True)
    await store.close()


async def test_a_bit_flipped_in_any_byte_of_a_data_file_is_noticed_or_harmless(
    tmp_path: Path,
) -> None:
    store = await series_store(tmp_path)
    await write(store, AddDestination("queue://q", 1), add(1), add(2))
    await store.close()
    path = files_of(tmp_path)[0]
    data = path.read_bytes()
    store = await series_store(tmp_path)
    bad = 0
    for offset in [*range(64), *range(4096, len(data), 3)]:
        damage_byte(path, offset)
        try:
            page = await store.page_in(1, 0, 10, ANY_SIZE)
            while len(page) < 2:
                page = [*page, *await store.page_in(1, page[-1].sequence, 10, ANY_SIZE)]
            assert [item.message for item in page] == [add(1).message, add(2).message]
        except CorruptRecordError:
            bad += 1
        path.write_bytes(data)
    assert bad > 60
    await store.close()


# ------------------------------------------------------------------------------- without syncs


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("strategy", [NEVER, PERIODIC])
async def test_without_syncs_a_power_cut_costs_messages_and_the_report_says_so(
    tmp_path: Path, strategy: str, keep: bool
) -> None:
    storage = CrashStorage()
    store = await series_store(
        tmp_path,
        storage,
        keep=keep,
        journal_disk_sync_strategy=strategy,
        journal_disk_sync_interval=3600.0,
    )
    await write(store, add(1), add(10, queue="other"))
    await store._sync_all()  # pyright: ignore[reportPrivateUsage]
    await write(store, add(12), add(13), add(14, queue="other"))
    if keep:
        await write(store, ack(1, 10), ack(13))
    await store._appender.sync()  # pyright: ignore[reportPrivateUsage]
    after = storage.crash()
    await store.close()
    store, state = await opened(tmp_path, after, keep=keep, per_destination=ALL)
    assert await pending(store) == ([] if keep else [1, 10])
    assert any("a power cut took them" in note for note in state.report.notes)
    page = await store.acknowledged(3 if keep else 0, 10, ANY_SIZE)
    assert (list(page.rows), page.last) == ([], 3 if keep else 0)
    await write(store, add(15))
    assert (await pending(store))[-1] == 15
    await store.close()
    store, state = await opened(tmp_path, after, keep=keep, per_destination=ALL)
    assert state.report.notes == ()
    await store.close()


async def test_periodic_syncs_reach_the_directories(tmp_path: Path) -> None:
    storage = CrashStorage()
    store = await series_store(
        tmp_path,
        storage,
        journal_disk_sync_strategy=PERIODIC,
        journal_disk_sync_interval=0.001,
        **SINGLE,
    )
    await write(store, add(1), add(2, size=5000))
    await write(store, add(3))
    series = store._series  # pyright: ignore[reportPrivateUsage]
    while series._unsynced or series._tasks:  # pyright: ignore[reportPrivateUsage]
        await asyncio.sleep(0.001)
    await store._appender.sync()  # pyright: ignore[reportPrivateUsage]
    after = storage.crash()
    await store.close()
    store, state = await opened(tmp_path, after, per_destination=ALL)
    assert state.report.notes == ()
    assert await pending(store) == [1, 2, 3]
    await store.close()


async def test_nobody_relies_on_a_sync_that_is_under_way(tmp_path: Path) -> None:
    """A checkpoint that came while the periodic sync was under way named what was not on disk yet."""
    storage = FaultyDisk().start(Faults(slow_syncs=dict.fromkeys(range(1, 100), 0.05)))
    store = await series_store(
        tmp_path, storage, journal_disk_sync_strategy=PERIODIC, journal_disk_sync_interval=100.0
    )
    await write(store, add(1))
    await write(store, add(2))
    series = store._series  # pyright: ignore[reportPrivateUsage]
    assert series._unsynced  # pyright: ignore[reportPrivateUsage]
    before = storage.count_of(Call.SYNC)
    first = asyncio.create_task(series.sync())
    while storage.count_of(Call.SYNC) == before:
        await asyncio.sleep(0.001)
    await asyncio.create_task(series.sync())
    assert first.done()
    await store.close()


async def test_a_sync_that_found_no_handles_is_made_later(tmp_path: Path) -> None:
    storage = FaultyDisk().start()
    store = await series_store(
        tmp_path, storage, journal_disk_sync_strategy=PERIODIC, journal_disk_sync_interval=100.0
    )
    for begin in (1, 201):
        await write(store, *(add(begin + number, queue=f"q{number}") for number in range(200)))
    series = store._series  # pyright: ignore[reportPrivateUsage]
    unsynced = len(series._unsynced)  # pyright: ignore[reportPrivateUsage]
    before = storage.count_of(Call.SYNC)
    storage.open_max = storage.open_count - 10
    with pytest.raises(StoreUnavailableError):
        await series.sync()
    storage.open_max = 0
    await series.sync()
    assert storage.count_of(Call.SYNC) - before >= unsynced
    await store.close()


async def test_messages_from_before_the_layout_stay_where_they_are(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    await write(store, add(1), add(2))
    await store.close()
    store = await series_store(tmp_path)
    await write(store, add(4), add(5))
    assert await pending(store) == [1, 2, 4, 5]
    await store.close()
    store, _ = await opened(tmp_path)
    await write(store, add(7))
    assert await pending(store) == [1, 2, 4, 5, 7]
    await write(store, ack(4, 5))
    await store._tidy.tidy()  # pyright: ignore[reportPrivateUsage]
    await store._tidy.tidy()  # pyright: ignore[reportPrivateUsage]
    assert not directory_of(tmp_path).exists()
    await store.close()


async def test_without_persistence_there_are_no_directories(tmp_path: Path) -> None:
    store = await series_store(tmp_path, persistent=False)
    await write(store, add(1))
    assert await pending(store) == [1]
    await store.close()
    assert list(tmp_path.iterdir()) == []
