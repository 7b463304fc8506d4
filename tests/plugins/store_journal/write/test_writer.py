"""The writer thread: order, syncs, and what it does when the disk does not do its part."""

from __future__ import annotations

import asyncio
import errno
import logging
import threading
from collections.abc import Sequence

import pytest
from journal_kit import writer_options

from tidegate_store_journal.log.memory import MemoryFile
from tidegate_store_journal.write.writer import Request, Writer


class Clock:
    """Goes on only while a file is synced."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class RecordingFile(MemoryFile):
    """Notes its calls in a list that several files share; raises what it is told to.

    Attributes: sync_seconds: that a sync takes, by the clock.
    """

    def __init__(self, name: str, calls: list[str], clock: Clock) -> None:
        super().__init__()
        self.name = name
        self.calls = calls
        self.clock = clock
        self.write_error: OSError | None = None
        self.sync_error: OSError | None = None
        self.sync_seconds = 0.0
        self.threads: list[threading.Thread] = []  # of the syncs

    def pwritev(self, buffers: Sequence[bytes], offset: int) -> None:
        if self.write_error is not None:
            error, self.write_error = self.write_error, None
            super().pwritev([b"".join(buffers)[:3]], offset)
            raise error
        self.calls.append(f"write {self.name}")
        super().pwritev(buffers, offset)

    def datasync(self) -> None:
        self.threads.append(threading.current_thread())
        if self.sync_error is not None:
            raise self.sync_error
        self.clock.now += self.sync_seconds
        self.calls.append(f"sync {self.name}")


class Bench:
    """A writer, its files' calls, and requests as awaitables."""

    def __init__(self, *, background: float | None = None, slow: float = 0.0) -> None:
        self.loop = asyncio.get_running_loop()
        self.calls: list[str] = []
        self.failures: list[Exception] = []
        self.failed = asyncio.Event()
        self.clock = Clock()
        options = writer_options(background, slow_sync_threshold=slow)
        self.writer = Writer(self.loop, options, self.on_failure)
        self.writer.clock = self.clock
        self.writer.start(0)

    def on_failure(self, error: Exception) -> None:
        self.failures.append(error)
        self.failed.set()

    def file(self, name: str) -> RecordingFile:
        return RecordingFile(name, self.calls, self.clock)

    async def submit(
        self,
        file: RecordingFile | None = None,
        data: bytes = b"data",
        *,
        batch: int = 0,
        sync: bool = True,
        sync_first: bool = False,
    ) -> Request:
        future: asyncio.Future[Request] = self.loop.create_future()
        buffers = (b"head", data) if file is not None else ()
        request = Request(
            future.set_result, file, 0, buffers, batch, sync=sync, sync_first=sync_first
        )
        self.writer.submit(request)
        return await future

    async def stop(self) -> None:
        await asyncio.to_thread(self.writer.stop)


async def test_a_synced_batch_is_written_then_synced_then_reported() -> None:
    bench = Bench()
    file = bench.file("a")
    request = await bench.submit(file, batch=1)
    assert request.error is None
    assert bench.calls == ["write a", "sync a"]
    assert bench.writer.synced_batch == 1
    assert file.pread(8, 0) == b"headdata"
    await bench.stop()


async def test_a_large_batch_is_handed_over_and_written_like_any_other() -> None:
    bench = Bench()
    file = bench.file("a")
    data = bytes(range(256)) * 64
    await bench.submit(file, data, batch=1)
    assert file.pread(len(data), 4) == data
    await bench.stop()


async def test_a_written_batch_is_synced_with_the_next_synced_one() -> None:
    bench = Bench()
    first, second = bench.file("a"), bench.file("b")
    await bench.submit(first, batch=1, sync=False)
    assert bench.writer.synced_batch == 0
    await bench.submit(second, batch=2)
    assert bench.calls == ["write a", "write b", "sync a", "sync b"]
    assert bench.writer.synced_batch == 2
    await bench.stop()


async def test_a_new_file_begins_only_after_the_old_one_is_synced() -> None:
    bench = Bench()
    await bench.submit(bench.file("a"), batch=1, sync=False)
    await bench.submit(bench.file("b"), batch=2, sync=False, sync_first=True)
    assert bench.calls == ["write a", "sync a", "write b"]
    await bench.submit()
    assert bench.calls[3:] == ["sync b"]
    assert bench.writer.synced_batch == 2
    await bench.stop()


async def test_an_idle_journal_syncs_what_was_only_written() -> None:
    bench = Bench(background=0.01)
    file = bench.file("a")
    await bench.submit(file, batch=1, sync=False)
    async with asyncio.timeout(60):
        while bench.writer.synced_batch != 1:
            await asyncio.sleep(0.001)
    assert bench.calls == ["write a", "sync a"]
    await bench.stop()


async def test_without_a_background_sync_only_stopping_syncs() -> None:
    bench = Bench(background=None)
    await bench.submit(bench.file("a"), batch=1, sync=False)
    await bench.submit(bench.file("b"), batch=2, sync=False)
    assert bench.calls == ["write a", "write b"]
    await bench.stop()
    assert bench.calls == ["write a", "write b", "sync a", "sync b"]


async def test_a_write_that_failed_is_wiped_and_the_next_takes_its_place() -> None:
    bench = Bench()
    file = bench.file("a")
    file.write_error = OSError(errno.ENOSPC, "full")
    request = await bench.submit(file, batch=1)
    assert isinstance(request.error, OSError)
    assert request.error.errno == errno.ENOSPC
    assert not request.sync_failed
    assert file.pread(8, 0) == bytes(8)
    request = await bench.submit(file, batch=1)
    assert request.error is None
    assert file.pread(8, 0) == b"headdata"
    await bench.stop()


async def test_a_failed_sync_is_final() -> None:
    bench = Bench()
    file = bench.file("a")
    file.sync_error = OSError(errno.EIO, "broken")
    request = await bench.submit(file, batch=1)
    assert request.sync_failed
    file.sync_error = None
    # The kernel may have dropped the pages: a sync that succeeds now would prove nothing.
    request = await bench.submit(file, batch=2)
    assert request.sync_failed
    assert bench.writer.synced_batch == 0
    assert bench.calls == ["write a"]
    await bench.stop()


async def test_a_failed_background_sync_is_reported() -> None:
    bench = Bench(background=0.001)
    file = bench.file("a")
    file.sync_error = OSError(errno.EIO, "broken")
    await bench.submit(file, batch=1, sync=False)
    async with asyncio.timeout(60):
        await bench.failed.wait()
    (failure,) = bench.failures
    assert isinstance(failure, OSError)
    assert failure.errno == errno.EIO
    await bench.stop()


async def test_a_slow_sync_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(slow=0.005)
    file = bench.file("a")
    with caplog.at_level(logging.WARNING, "tidegate.store.journal"):
        await bench.submit(file, batch=1)
        assert not caplog.records
        file.sync_seconds = 0.01
        await bench.submit(file, batch=2)
    assert "slow sync" in caplog.text
    await bench.stop()


async def quick(bench: Bench) -> RecordingFile:
    """A file whose disk has proved to be quick."""
    file = bench.file("a")
    for number in range(100):
        await bench.submit(file, batch=number)
        if file.threads[-1] is threading.main_thread():
            return file
    pytest.fail("a quick disk is never synced on the loop")


async def test_a_quick_disk_is_synced_on_the_loop_without_yielding_to_it() -> None:
    bench = Bench()
    file = await quick(bench)
    assert len(file.threads) > 10, "a few quick syncs prove nothing"
    turns: list[int] = []
    bench.loop.call_soon(turns.append, 1)
    request = await bench.submit(file, batch=101)
    assert not turns, "it took a turn of the loop"
    assert request.error is None
    assert bench.writer.synced_batch == 101
    await bench.stop()


async def test_a_slow_sync_sends_the_next_ones_to_the_thread_until_the_disk_is_quick_again() -> (
    None
):
    bench = Bench()
    file = await quick(bench)
    file.sync_seconds = 0.005
    await bench.submit(file, batch=101)
    await bench.submit(file, batch=102)
    assert file.threads[-1] is not threading.main_thread()
    file.sync_seconds = 0.0
    file.threads.clear()
    await quick(bench)
    await bench.stop()


async def test_what_may_take_long_goes_to_the_thread_however_quick_the_disk_is() -> None:
    """Large batches, new files, syncs of what was written long ago, what others wait behind."""
    bench = Bench(background=0.01)
    file = await quick(bench)
    await bench.submit(file, bytes(5000), batch=101)
    await bench.submit(bench.file("b"), batch=102, sync_first=True)
    other = bench.file("c")
    for number in range(20):  # 80 KiB that are not synced
        await bench.submit(other, bytes(4096), batch=103 + number, sync=False)
    await bench.submit(other, batch=123)
    assert threading.main_thread() not in other.threads
    behind = bench.submit(file, bytes(5000), batch=124), bench.submit(file, batch=125)
    file.threads.clear()
    await asyncio.gather(*behind)
    assert threading.main_thread() not in file.threads
    await bench.stop()


async def test_what_was_only_written_on_the_loop_is_synced_in_the_background() -> None:
    bench = Bench(background=0.01)
    file = await quick(bench)
    file.threads.clear()
    await bench.submit(file, batch=101, sync=False)
    assert bench.writer.synced_batch < 101
    while bench.writer.synced_batch < 101:
        await asyncio.sleep(0.001)
    assert file.threads[-1] is not threading.main_thread()
    await bench.stop()


async def test_a_failed_sync_on_the_loop_is_final() -> None:
    bench = Bench()
    file = await quick(bench)
    file.sync_error = OSError(errno.EIO, "broken")
    for number in (101, 102):
        request = await bench.submit(file, batch=number)
        assert request.error is not None
        assert request.sync_failed
    assert bench.writer.synced_batch < 101
    await bench.stop()
