"""The SQL store on SQLite loses power before every change of a recorded load: nothing confirmed is lost."""

from __future__ import annotations

import itertools
import os
import sqlite3
from collections.abc import Iterable
from pathlib import Path

import pytest
from jdbc_kit import QUEUE, new_store, opened, write
from numbered import ack, add, message
from sqlite_disk import library, recorded

from tidegate.spi import Operation
from tidegate.testing.crash_schedules import CrashPoint, Recording
from tidegate.testing.faulty_storage import FaultyDisk

BATCHES = 12
#: Messages that stay pending.
STAYING = 3

pytestmark = pytest.mark.skipif(library() is None, reason="SQLite is inside the interpreter")


def batch(number: int) -> list[Operation]:
    """Add message *number*, and acknowledge the one :data:`STAYING` before it."""
    gone = [ack(number - STAYING)] if number > STAYING else []
    return [QUEUE, add(number, size=number * 700), *gone]


async def load(directory: Path) -> Recording:
    """All batches, of which every third is not synced."""
    recording, disk = Recording(), FaultyDisk()
    directory /= "load"
    directory.mkdir()
    with recording.of(disk), recorded(directory, disk.start()):
        store, _ = await opened(directory, use_database_lock=False, connections_max=1)
        for number in range(1, BATCHES + 1):
            is_synced = number % 3 != 0
            await write(store, *batch(number), synced=is_synced)
            if is_synced:
                recording.promise(number)
            if number == BATCHES // 3:  # the log is carried into the file, and begins anew
                other = sqlite3.connect(directory / "tidegate.db")
                assert other.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()[0] == 0
                other.close()
            if number == BATCHES * 2 // 3:
                await store.close()
                recording.promise(number)
                store, _ = await opened(directory, use_database_lock=False, connections_max=1)
        await store.close()
        recording.promise(BATCHES)
    return recording


async def check(point: CrashPoint, directory: Path) -> None:
    """Open what the power cut left, twice. Raises: whatever the store or an assertion does."""
    directory.mkdir()
    for name, content in point.disk().read_all().items():
        (directory / name).write_bytes(content)
    last = point.promised
    for _ in range(2):
        store = new_store(directory, use_database_lock=False, connections_max=1)
        try:
            state = await store.open()
            assert state.last_sequence >= last, f"{state.last_sequence} of {last}"
            last = state.last_sequence
            page = await store.page_in(1, 0, 100, 1 << 40)
            first = max(1, last - STAYING + 1)
            assert [stored.sequence for stored in page] == list(range(first, last + 1))
            for stored in page:
                assert stored.message == message(stored.sequence, stored.sequence * 700)
            await write(store, *batch(last + 1))
            last += 1
        finally:
            await store.close()


async def problems(points: Iterable[CrashPoint], directory: Path) -> list[str]:
    """What is wrong at which of *points*."""
    found: list[str] = []
    for number, point in enumerate(points):
        try:
            await check(point, directory / str(number))
        except Exception as error:
            found.append(
                f"before change {point.number}, {point.kind}, seed {point.seed}: {error!r}"
            )
    return found


async def test_nothing_confirmed_is_lost_with_the_power(tmp_path: Path) -> None:
    points = (await load(tmp_path)).points([1], more_at_syncs=[2])
    assert await problems(itertools.islice(points, 0, None, 9), tmp_path) == []


@pytest.mark.crash
async def test_nothing_confirmed_is_lost_with_the_power_at_any_change(tmp_path: Path) -> None:
    points = (await load(tmp_path)).points([1, 2, 3], more_at_syncs=[4, 5])
    assert await problems(points, tmp_path) == []


@pytest.mark.parametrize("without", ["sync", "names"])
async def test_on_a_disk_that_does_not_sync_it_is_lost(without: str, tmp_path: Path) -> None:
    points = (await load(tmp_path)).points([1], without=without)
    assert await problems(itertools.islice(points, 100, None, 60), tmp_path)


async def test_the_directories_of_a_new_database_are_durable_before_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    store, _ = await opened(tmp_path, url="sqlite:///new/inner/tidegate.db")
    assert [str(tmp_path), str(tmp_path / "new")] == synced[-2:]
    await store.close()
