"""What reading a journal back must stand: failed syncs, few descriptors, full disks, senseless lengths."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from journal_kit import KB, CrashStorage, data_files, killed, opened, pending, write, write_only
from numbered import add

from tidegate.spi import AddDestination, StoreError, StoreIOError
from tidegate.testing.faulty_storage import Call, Faults, FaultyDisk
from tidegate_store_journal.log import format as _format
from tidegate_store_journal.log.format import DATA_OFFSET
from tidegate_store_journal.tools.verify import verify

NAME = "journal-0000000001.data"


def silent(_what: str, _done: int, _total: int) -> None: ...


@pytest.mark.parametrize("seed", range(6))
async def test_messages_replayed_after_a_failed_sync_survive_the_next_power_cut(
    tmp_path: Path, seed: int
) -> None:
    """The new process reads bytes that the disk never got, and its own sync of them does nothing."""
    disk = FaultyDisk(seed)
    store, _ = await opened(tmp_path, disk.start())
    await write(store, AddDestination("queue://q", 1), add(1))
    await store.close()
    errors: dict[tuple[Call, int], int] = {}
    storage = disk.start(Faults(errors=errors))
    store, _ = await opened(tmp_path, storage)
    errors[Call.SYNC, storage.count_of(Call.SYNC) + 1 + seed] = errno.EIO
    sequence = 1
    with contextlib.suppress(StoreError):
        while sequence < 30:
            sequence += 1
            await write(store, add(sequence))
    await store.close()
    store, _ = await opened(tmp_path, disk.start())  # the log said: restart
    found = await pending(store)
    await write(store, add(100))  # confirmed, behind what was replayed
    disk.cut_power()
    with contextlib.suppress(StoreError, OSError):
        await store.close()
    store, state = await opened(tmp_path, disk.start())
    assert await pending(store) == [*found, 100]
    assert state.report.counts["repaired_bytes"] == 0
    await store.close()


async def test_a_journal_of_many_files_opens_and_is_verified_with_few_descriptors(
    tmp_path: Path,
) -> None:
    async def filled() -> None:
        store, _ = await opened(tmp_path / "a")
        for sequence in range(1, 120):
            await write(store, add(sequence, size=50 * KB))
        killed(tmp_path / "a", tmp_path / "b")
        await store.close()

    async def scenario() -> None:
        store, _ = await opened(tmp_path / "b", journal_pool_files=5)
        assert len(await pending(store)) == 119
        await store.close()
        shutil.rmtree(tmp_path / "b" / "journal" / "metadata")
        store, _ = await opened(tmp_path / "b")
        assert len(await pending(store)) == 119
        await store.close()

    await filled()
    assert len(data_files(tmp_path / "b")) > 100
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 90, limits[1]))
    try:
        await scenario()
        assert verify(tmp_path / "b" / "journal", silent).damages == []
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


async def torn(tmp_path: Path) -> tuple[CrashStorage, int]:
    """Two batches of which the second is torn. Returns: where that one begins."""
    storage = CrashStorage()
    store, _ = await opened(tmp_path, storage)
    await write(store, add(1))
    begin = store._appender.tail.offset  # pyright: ignore[reportPrivateUsage]
    await write(store, add(2, size=3000))
    after = storage.crash()
    await store.close()
    after.flip(NAME, begin + 200)
    return after, begin


@pytest.mark.parametrize("is_always_full", [True, False])
async def test_a_torn_tail_on_a_full_disk_does_not_keep_the_store_from_opening(
    tmp_path: Path, is_always_full: bool
) -> None:
    storage, _ = await torn(tmp_path)
    storage.open("reserve", create=True).pwritev([b"x"], 0)

    def fault(call: str, name: str) -> OSError | None:
        is_full = is_always_full or "reserve" in storage.list()
        if call == "pwritev" and name.endswith(".torn") and is_full:
            return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return None

    storage.fault = fault
    store, state = await opened(tmp_path, storage)
    assert await pending(store) == [1]
    assert state.report.counts["repaired_bytes"] > 3000
    copies = [name for name in storage.list() if name.endswith(".torn")]
    assert len(copies) == (not is_always_full)
    what = "There was no room for a copy" if is_always_full else "A copy is kept in"
    assert what in state.report.notes[0]
    await write(store, add(3))
    await store.close()


async def test_a_length_of_four_gigabytes_takes_no_memory(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    await write(store, add(1))
    end = store._appender.tail.offset  # pyright: ignore[reportPrivateUsage]
    await store.close()
    path = data_files(tmp_path)[0]
    data = bytearray(path.read_bytes())
    seed = _format.decode_file_header(bytes(data[:64])).seed
    last = _format.decode_batch_header(seed, bytes(data[DATA_OFFSET : DATA_OFFSET + 64]))
    assert last is not None
    whole = _format.encode_batch_header(seed, (), last.batch + 1, last.batch, 2, 0, 1, 1)
    body = whole[:4] + (0xFFFF_FFFF).to_bytes(4, "little") + whole[8:60]
    data[end : end + 64] = body + _format.crc32c(seed, body).to_bytes(4, "little")
    path.write_bytes(data)
    with path.open("r+b") as file:
        file.truncate(5 << 30)  # nothing of it is on the disk
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (6 << 30), limits[1]))
    try:
        found = verify(tmp_path / "journal", silent, sleep=lambda _: None)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert [f"{NAME} at offset {end}: a torn batch" in note for note in found.notes] == [True]


@pytest.mark.parametrize("command", ["verify", "inspect"])
async def test_what_is_no_regular_file_is_named_and_does_not_stop_a_tool(
    tmp_path: Path, command: str
) -> None:
    store, _ = await opened(tmp_path)
    await write(store, add(1))
    await store.close()
    journal = tmp_path / "journal"
    os.mkfifo(journal / "journal-0000000077.data")
    done = subprocess.run(
        [sys.executable, "-m", "tidegate", "journal", command, "-d", str(journal)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert "journal-0000000077.data" in done.stdout + done.stderr
    assert "regular file" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


async def test_a_start_names_what_is_no_regular_file(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    os.mkfifo(tmp_path / "journal" / "journal-0000000077.data")
    with pytest.raises(StoreIOError, match="regular file"):
        await opened(tmp_path)


@pytest.mark.parametrize("name", ["lock", "journal-0000000001.data.tmp", "index-store-state.tmp"])
async def test_nothing_is_written_through_a_symbolic_link(tmp_path: Path, name: str) -> None:
    """Whoever may write into the directory must not have other files of ours overwritten."""
    other = tmp_path / "other"
    other.write_bytes(b"mine")
    (tmp_path / "journal").mkdir()
    (tmp_path / "journal" / name).symlink_to(other)
    if name == "lock":
        with pytest.raises(StoreIOError, match="lock"):
            await opened(tmp_path)
    else:
        store, _ = await opened(tmp_path)
        await write(store, add(1))
        await store.close()
    assert other.read_bytes() == b"mine"


async def test_a_temporary_file_made_meanwhile_as_a_symbolic_link_is_replaced(
    tmp_path: Path,
) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"mine")
    store, _ = await opened(tmp_path)
    for number in range(2, 60):
        path = tmp_path / "journal" / f"journal-{number:010d}.data.tmp"
        if not path.with_suffix("").exists():
            path.symlink_to(other)
    for sequence in range(1, 12):
        await write(store, add(sequence, size=20_000))
    assert await pending(store) == [*range(1, 12)]
    await store.close()
    assert other.read_bytes() == b"mine"


@pytest.mark.parametrize("seed", range(8))
async def test_records_in_directories_are_written_again_too(tmp_path: Path, seed: int) -> None:
    """A reference that was replayed must not outlive its record, which was in memory only."""
    disk = FaultyDisk(seed)
    changes: dict[str, Any] = {"per_destination": ("queue://>",)}
    errors: dict[tuple[Call, int], int] = {}
    storage = disk.start(Faults(errors=errors))
    periodic = {"journal_disk_sync_strategy": "periodic", "journal_disk_sync_interval": 60.0}
    store, _ = await opened(tmp_path, storage, **changes, **periodic)
    await write(store, AddDestination("queue://q", 1), add(1))
    first = storage.count_of(Call.SYNC) + 1
    errors.update({(Call.SYNC, number): errno.EIO for number in range(first, first + 99)})
    with contextlib.suppress(StoreError):
        for sequence in range(2, 12):
            await write_only(store, add(sequence))
        await write(store, add(12))
    await store.close()
    store, _ = await opened(tmp_path, disk.start(), **changes)
    found = await pending(store)
    await write(store, add(100))
    disk.cut_power()
    with contextlib.suppress(StoreError, OSError):
        await store.close()
    store, _ = await opened(tmp_path, disk.start(), **changes)
    assert await pending(store) == [*found, 100]
    await store.close()
