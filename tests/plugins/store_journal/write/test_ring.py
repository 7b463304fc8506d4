"""The writer without a thread: requests, their order and number, syncs, and failures."""

from __future__ import annotations

import asyncio
import errno
import logging

import pytest
from journal_kit import ShuffledRing, writer_options

from tidegate_store_journal.log.memory import MemoryFile
from tidegate_store_journal.write.ring import RingWriter
from tidegate_store_journal.write.writer import Request


class FailingFile(MemoryFile):
    """Raises what it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.sync_error: OSError | None = None

    def datasync(self) -> None:
        if self.sync_error is not None:
            raise self.sync_error


class Bench:
    """A writer over a ring that shuffles, and requests as awaitables."""

    def __init__(
        self,
        *,
        max_io: int = 500,
        bytes_max: int = 1 << 20,
        background: float | None = None,
        slow: float = 0.0,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.ring = ShuffledRing(self.loop)
        self.failed: asyncio.Future[Exception] = self.loop.create_future()
        options = writer_options(
            background,
            journal_type="ASYNCIO",
            journal_max_io=max_io,
            journal_buffer_size=bytes_max,
            slow_sync_threshold=slow,
        )
        self.writer = RingWriter(self.loop, options, self.failed.set_result, self.ring)
        self.writer.start(0)

    def begin(
        self,
        file: MemoryFile | None = None,
        data: bytes = b"data",
        *,
        batch: int = 0,
        sync: bool = True,
        sync_first: bool = False,
    ) -> asyncio.Future[Request]:
        future: asyncio.Future[Request] = self.loop.create_future()
        buffers = (b"head", data) if file is not None else ()
        self.writer.submit(
            Request(future.set_result, file, 0, buffers, batch, sync=sync, sync_first=sync_first)
        )
        return future


async def test_a_batch_alone_is_one_request_that_writes_and_syncs() -> None:
    bench = Bench()
    file = MemoryFile()
    request = await bench.begin(file, batch=1)
    assert request.error is None
    assert bench.ring.calls == ["write synced"]
    assert file.pread(8, 0) == b"headdata"
    assert bench.writer.synced_batch == 1
    assert bench.writer.syncs == 1
    await bench.writer.close()


async def test_behind_a_batch_that_was_only_written_the_whole_file_is_synced() -> None:
    """A synced write makes its own range durable, and nothing else."""
    bench = Bench()
    file = MemoryFile()
    await bench.begin(file, batch=1, sync=False)
    assert bench.writer.synced_batch == 0
    await bench.begin(file, batch=2)
    assert bench.ring.calls == ["write", "write", "sync"]
    assert bench.writer.synced_batch == 2
    await bench.begin(file, batch=3)
    assert bench.ring.calls[3:] == ["write synced"]
    await bench.writer.close()


async def test_a_file_is_begun_when_the_one_before_it_is_synced() -> None:
    bench = Bench()
    first, second = MemoryFile(), MemoryFile()
    await bench.begin(first, batch=1, sync=False)
    await bench.begin(second, batch=2, sync=False, sync_first=True)
    assert bench.ring.calls == ["write", "sync", "write"]
    await bench.begin()
    assert bench.ring.calls[3:] == ["sync"]
    assert bench.writer.synced_batch == 2
    await bench.writer.close()


@pytest.mark.parametrize("max_io", [1, 3, 500])
async def test_a_large_batch_is_several_requests_of_which_so_many_are_under_way(
    max_io: int,
) -> None:
    bench = Bench(max_io=max_io, bytes_max=4096)
    file = MemoryFile()
    data = bytes(range(256)) * 400
    await bench.begin(file, data, batch=1)
    assert bench.ring.calls == ["write"] * 26 + ["sync"]
    assert bench.ring.under_way == min(max_io, 26) == bench.writer.requests_max
    assert file.pread(1 << 20, 0) == b"head" + data
    assert bench.writer.synced_batch == 1
    await bench.writer.close()


async def test_batches_are_carried_out_one_after_the_other() -> None:
    bench = Bench()
    file = MemoryFile()
    ends: list[int] = []
    futures = [bench.begin(file, b"%d" % batch * 4, batch=batch) for batch in range(1, 6)]
    for batch, future in enumerate(futures, 1):
        await future
        ends.append(batch)
        assert bench.ring.under_way == 1
    assert file.pread(8, 0) == b"head5555"
    assert bench.writer.synced_batch == 5
    await bench.writer.close()


async def test_a_short_write_is_finished() -> None:
    bench = Bench()
    bench.ring.results = [3, 2]
    file = MemoryFile()
    request = await bench.begin(file, batch=1)
    assert request.error is None
    assert file.pread(8, 0) == b"headdata"
    assert bench.ring.calls == ["write synced"] * 3
    await bench.writer.close()


@pytest.mark.parametrize("sync", [True, False])
async def test_a_write_that_has_no_room_is_wiped_and_the_next_takes_its_place(sync: bool) -> None:
    bench = Bench()
    bench.ring.results = [3, -errno.ENOSPC]
    file = MemoryFile()
    request = await bench.begin(file, batch=1, sync=sync)
    assert isinstance(request.error, OSError)
    assert request.error.errno == errno.ENOSPC
    assert not request.sync_failed
    assert file.pread(8, 0) == bytes(8)
    request = await bench.begin(file, batch=1)
    assert request.error is None
    assert file.pread(8, 0) == b"headdata"
    await bench.writer.close()


async def test_a_disk_that_cannot_even_be_wiped_reports_the_first_error() -> None:
    bench = Bench(max_io=2, bytes_max=4096)
    bench.ring.results = [-errno.ENOSPC, -errno.ENOSPC, -errno.EIO, -errno.EIO]
    file = MemoryFile()
    request = await bench.begin(file, bytes(100_000), batch=1)
    assert isinstance(request.error, OSError)
    assert request.error.errno == errno.ENOSPC
    assert len(bench.ring.calls) == 4  # what is not under way yet is given up
    request = await bench.begin(file, batch=1)
    assert request.error is None
    await bench.writer.close()


async def test_a_write_of_nothing_is_an_error() -> None:
    bench = Bench()
    bench.ring.results = [0]
    request = await bench.begin(MemoryFile(), batch=1, sync=False)
    assert isinstance(request.error, OSError)
    assert request.error.errno == errno.EIO
    await bench.writer.close()


@pytest.mark.parametrize("is_alone", [True, False])
async def test_a_failed_sync_is_final(is_alone: bool) -> None:
    bench = Bench()
    file = FailingFile()
    if not is_alone:
        await bench.begin(file, batch=1, sync=False)
    file.sync_error = OSError(errno.EIO, "broken")
    request = await bench.begin(file, batch=2)
    assert request.sync_failed
    file.sync_error = None
    # The kernel may have dropped the pages: a sync that succeeds now would prove nothing.
    calls = len(bench.ring.calls)
    request = await bench.begin(file, batch=3)
    assert request.sync_failed
    assert request.error is not None
    assert bench.writer.synced_batch == 0
    assert len(bench.ring.calls) == calls
    await bench.writer.close()
    assert bench.ring.is_closed


async def test_an_idle_journal_syncs_what_was_only_written() -> None:
    bench = Bench(background=0.01)
    file = MemoryFile()
    await bench.begin(file, batch=1, sync=False)
    assert bench.ring.calls == ["write"]
    async with asyncio.timeout(60):
        while bench.writer.synced_batch != 1:
            await asyncio.sleep(0.001)
    assert bench.ring.calls == ["write", "sync"]
    # And again: the time begins with the first batch that is not synced.
    await bench.begin(file, batch=2)
    await bench.begin(file, batch=3, sync=False)
    async with asyncio.timeout(60):
        while bench.writer.synced_batch != 3:
            await asyncio.sleep(0.001)
    await bench.writer.close()


async def test_a_failed_background_sync_is_reported() -> None:
    bench = Bench(background=0.001)
    file = FailingFile()
    file.sync_error = OSError(errno.EIO, "broken")
    await bench.begin(file, batch=1, sync=False)
    async with asyncio.timeout(60):
        error = await bench.failed
    assert isinstance(error, OSError)
    assert error.errno == errno.EIO
    await bench.writer.close()


async def test_without_a_background_sync_only_closing_syncs() -> None:
    bench = Bench(background=None)
    await bench.begin(MemoryFile(), batch=1, sync=False)
    await bench.begin(MemoryFile(), batch=2, sync=False)
    assert bench.ring.calls == ["write", "write"]
    await bench.writer.close()
    await bench.writer.close()
    assert bench.ring.calls == ["write", "write", "sync", "sync"]
    assert bench.ring.is_closed


async def test_a_slow_sync_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(slow=0.5)
    times = iter([1.0, 1.4, 2.0, 2.6])
    bench.writer.clock = lambda: next(times)
    with caplog.at_level(logging.WARNING, "tidegate.store.journal"):
        await bench.begin(MemoryFile(), batch=1)
        assert not caplog.records
        await bench.begin(MemoryFile(), batch=2)
    assert "slow sync" in caplog.text
    await bench.writer.close()


@pytest.mark.parametrize("length_max", [4096, 5000, 100_000])
@pytest.mark.parametrize("size", [0, 20, 9000, 50_000])
async def test_what_is_cut_into_requests_is_whole_in_the_file(size: int, length_max: int) -> None:
    bench = Bench(bytes_max=length_max)
    file = MemoryFile()
    data = bytes(range(256)) * (size // 256 + 1)
    await bench.begin(file, data, batch=1)
    assert file.pread(1 << 20, 0) == b"head" + data
    await bench.writer.close()
