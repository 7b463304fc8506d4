"""Files that are open have a limit: a store of many data files works within it, and after it was met."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from journal_crash import fast_directory, live_with_few_handles
from journal_kit import opened, pending, write
from journal_load import Profile
from numbered import add

from tidegate.testing.faulty_storage import Faults, FaultyDisk

#: Two messages of this size do not fit into a data file of the tests.
BIG = 40_000
MESSAGES = 60
#: Far below the data files that there are.
FEW = 24


async def filled(where: Path, disk: FaultyDisk | None) -> None:
    """A store with a data file for each message, closed."""
    store, _ = await opened(where, disk.start() if disk else None)
    for number in range(1, MESSAGES + 1):
        await write(store, add(number, size=BIG))
    await store.close()


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "killed"])
async def test_a_store_with_more_data_files_than_may_be_open_starts(
    tmp_path: Path, *, is_closed: bool
) -> None:
    """Fault 7: EMFILE at about 32 GB with 1,024 descriptors."""
    disk = FaultyDisk()
    await filled(tmp_path, disk)
    if not is_closed:
        disk.cut_power()
    assert sum(name.endswith(".data") for name in disk.read_all()) > MESSAGES
    storage = disk.start(Faults(open_max=FEW))
    store, _ = await opened(tmp_path, storage)
    assert await pending(store) == [*range(1, MESSAGES + 1)]
    await write(store, add(MESSAGES + 1, size=BIG))
    await store.close()
    assert (storage.open_peak <= FEW, storage.open_count) == (True, 0)


async def test_a_running_store_does_not_keep_every_data_file_open(tmp_path: Path) -> None:
    """Fault 7, while it runs."""
    storage = FaultyDisk().start(Faults(open_max=FEW))
    store, _ = await opened(tmp_path, storage)
    for number in range(1, MESSAGES + 1):
        await write(store, add(number, size=BIG))
    assert await pending(store) == [*range(1, MESSAGES + 1)]
    await store.close()


@pytest.mark.parametrize("command", ["verify", "inspect", "rebuild-index"])
async def test_a_tool_does_not_open_every_data_file_at_once(tmp_path: Path, command: str) -> None:
    """Fault 7, of the tools: they fail when they are needed most."""
    await filled(tmp_path, None)
    limited = subprocess.run(
        [sys.executable, "-m", "tidegate", "journal", command, "-d", str(tmp_path / "journal")],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40)),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert limited.returncode == 0, limited.stderr


PROFILES = (
    Profile("state", small=0.5, unordered=0.3, batches=50),
    Profile("large files", sizes=(5, 9000, 20_000), batches=50),
)


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE], ids=["EMFILE", "ENFILE"])
async def test_a_store_that_could_open_no_file_works_on_when_it_can(
    tmp_path: Path, error: int
) -> None:
    """Fault 17: clients can use up the descriptors; it is as retryable as a full disk."""

    with fast_directory(tmp_path) as name:
        directory = Path(name)
        for seed in range(6):
            problem, count = await live_with_few_handles(
                directory / str(seed), seed, PROFILES[seed % 2], error
            )
            assert not problem, f"seed {seed}: {problem}"
            assert count > 20, "too few batches to prove anything"


async def test_a_store_keeps_descriptors_that_clients_cannot_take(tmp_path: Path) -> None:
    """Fault 17: when everything else is taken, batches are still stored, over many data files."""
    store, _ = await opened(tmp_path)
    await write(store, add(1))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20, limits[1]))
    taken: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        for number in range(2, 20):
            await write(store, add(number, size=BIG))
        assert await pending(store) == [*range(1, 20)]
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    await store.close()
