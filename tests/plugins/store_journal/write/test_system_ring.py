"""io_uring of this machine: written, synced, and told on the loop."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
from pathlib import Path

import pytest

from tidegate_store_journal.log.storage import DirectoryFile, DirectoryStorage
from tidegate_store_journal.write.ring import CaioRing


def made(tmp_path: Path) -> DirectoryFile:
    file = DirectoryStorage(tmp_path).open("file", create=True)
    assert isinstance(file, DirectoryFile)
    return file


async def result_of(ring: CaioRing, file: DirectoryFile, data: bytes, at: int, synced: bool) -> int:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    ring.write(file, data, at, future.set_result, synced=synced)
    assert not future.done()  # never before it returned
    async with asyncio.timeout(60):
        return await future


@pytest.mark.parametrize("synced", [True, False])
async def test_what_is_written_is_in_the_file_when_that_is_told(
    tmp_path: Path, synced: bool
) -> None:
    ring = CaioRing(asyncio.get_running_loop(), 8)
    file = made(tmp_path)
    assert await result_of(ring, file, b"x" * 10_000, 0, synced) == 10_000
    assert await result_of(ring, file, b"yy", 5_000, synced) == 2
    assert file.pread(20_000, 0) == b"x" * 5000 + b"yy" + b"x" * 4998
    ring.close()
    ring.close()
    file.close()


async def test_many_requests_are_under_way_at_once(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    ring = CaioRing(loop, 64)
    file = made(tmp_path)
    futures: list[asyncio.Future[int]] = []
    for number in range(64):
        future: asyncio.Future[int] = loop.create_future()
        ring.write(file, b"%4d" % number, 4 * number, future.set_result, synced=False)
        futures.append(future)
    async with asyncio.timeout(60):
        assert await asyncio.gather(*futures) == [4] * 64
    synced: asyncio.Future[int] = loop.create_future()
    ring.datasync(file, synced.set_result)
    async with asyncio.timeout(60):
        assert await synced == 0
    assert file.pread(300, 0) == b"".join(b"%4d" % number for number in range(64))
    ring.close()
    file.close()


async def test_a_file_that_was_renamed_is_still_the_one_that_is_written(tmp_path: Path) -> None:
    ring = CaioRing(asyncio.get_running_loop(), 8)
    file = made(tmp_path)
    (tmp_path / "file").rename(tmp_path / "other")
    assert await result_of(ring, file, b"data", 0, True) == 4
    assert (tmp_path / "other").read_bytes() == b"data"
    assert not (tmp_path / "file").exists()
    ring.close()
    file.close()


async def test_an_error_of_the_system_is_told_by_its_number(tmp_path: Path) -> None:
    ring = CaioRing(asyncio.get_running_loop(), 8)
    (tmp_path / "read").write_bytes(b"data")
    only_read = DirectoryFile(os.open(tmp_path / "read", os.O_RDONLY))
    assert await result_of(ring, only_read, b"x", 0, False) == -errno.EBADF
    ring.close()
    only_read.close()


async def test_without_a_descriptor_for_synced_writes_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = CaioRing(asyncio.get_running_loop(), 8)
    file = made(tmp_path)

    def none_left(_: DirectoryFile) -> int:
        raise OSError(errno.EMFILE, "too many")

    monkeypatch.setattr(DirectoryFile, "synced_fileno", none_left)
    assert await result_of(ring, file, b"x", 0, True) == -errno.EMFILE
    assert file.length == 0
    ring.close()
    file.close()


async def test_a_request_that_the_system_cannot_take_now_is_offered_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ring = CaioRing(asyncio.get_running_loop(), 8)
    file = made(tmp_path)
    context = ring._context  # pyright: ignore[reportPrivateUsage]

    class Busy:
        """Fails once."""

        def __getattr__(self, name: str) -> object:
            return getattr(context, name)

        def flush(self) -> int:
            monkeypatch.undo()
            raise SystemError("[Errno 11] Resource temporarily unavailable")

    monkeypatch.setattr(ring, "_context", Busy())
    assert await result_of(ring, file, b"data", 0, True) == 4
    assert "trying again" in caplog.text
    ring.close()
    file.close()


async def test_other_systems_have_no_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(OSError, match="io_uring needs Linux"):
        CaioRing(asyncio.get_running_loop(), 8)


@pytest.mark.parametrize("entries", [1, 500, 4096])
async def test_rings_of_every_size_that_can_be_configured(tmp_path: Path, entries: int) -> None:
    ring = CaioRing(asyncio.get_running_loop(), entries)
    file = made(tmp_path)
    assert await result_of(ring, file, b"data", 0, True) == 4
    ring.close()
    file.close()


async def test_a_busy_loop_lets_the_kernel_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the writer's hand-over: a batch that is not one client's that waits."""
    yields: list[int] = []
    monkeypatch.setattr(os, "sched_yield", lambda: yields.append(1))

    ring = CaioRing(asyncio.get_running_loop(), 8)
    file = made(tmp_path)
    await result_of(ring, file, bytes(400), 0, True)
    assert len(yields) == 0
    await result_of(ring, file, bytes(40_000), 0, True)
    assert len(yields) == 1
    ring.close()
    file.close()
