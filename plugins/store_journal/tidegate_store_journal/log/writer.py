"""The writer thread: one write and one sync a batch, then one wake-up of the loop.

The two hand-overs cost more than anything else on this path, because the thread needs the GIL to
begin and again to report:

- *To the thread*: ``queue.SimpleQueue`` (measured against a lock and an eventfd: equal within the
  noise, about 15 µs with an idle loop). When the loop goes on working after :meth:`Writer.submit`,
  the thread would wait for the GIL up to the interpreter's switch interval (5 ms) before the disk
  has anything to do. So for a batch that shows that the loop is busy, submit waits a moment until
  the thread has taken over: about 20 µs, bounded by HAND_OVER_SECONDS_MAX.
- *Back*: ``loop.call_soon_threadsafe``, once a batch. The system calls run without the GIL.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from asyncio import AbstractEventLoop
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from tidegate_store_journal.log.storage import File

logger = logging.getLogger("tidegate.store.journal")

#: What was written but not synced is synced at the latest after this when the journal is idle
#: otherwise: the bound on what WRITTEN batches can lose in a power cut.
BACKGROUND_SYNC_SECONDS: Final = 0.05
#: A batch of this many bytes did not come from a client that waits for each message, so the loop
#: has more to do and will keep the GIL.
HAND_OVER_BYTES_MIN: Final = 4096
#: The thread answers in 20 µs unless the machine is overloaded; then it is not worth waiting for.
HAND_OVER_SECONDS_MAX: Final = 0.001


class Request:
    """One batch to write, or (without buffers) a wish to sync everything before it.

    Attributes:
        file, offset, buffers: what goes where.
        batch: its number, or 0.
        sync: sync after writing.
        sync_first: files that must be synced before anything is written to *file*.
        done: called on the loop with this request.
        error: what went wrong; sync_failed: in a sync, or in a way that nobody thought of, so that it
            is unknown what is on disk.
    """

    __slots__ = (
        "batch",
        "buffers",
        "done",
        "error",
        "file",
        "offset",
        "started",
        "sync",
        "sync_failed",
        "sync_first",
    )

    def __init__(
        self,
        done: Callable[[Request], None],
        file: File | None = None,
        offset: int = 0,
        buffers: Sequence[bytes] = (),
        batch: int = 0,
        *,
        sync: bool = True,
        sync_first: bool = False,
    ) -> None:
        self.done = done
        self.file = file
        self.offset = offset
        self.buffers = buffers
        self.batch = batch
        self.sync = sync
        self.sync_first = sync_first
        self.error: Exception | None = None
        self.sync_failed = False
        self.started: threading.Lock | None = None


class BatchWriter(Protocol):
    """What carries batches to the disk, one after the other; see :class:`Writer`."""

    @property
    def synced_batch(self) -> int: ...

    def start(self, synced_batch: int) -> None: ...

    def submit(self, request: Request) -> None: ...

    async def close(self) -> None: ...


def log_slow_sync(taken: float, threshold: float, batch: int) -> None:
    """Tell the operator that a sync took longer (seconds) than ``slow_sync_threshold``."""
    logger.warning("slow sync seconds=%.3f threshold=%.3f batch=%d", taken, threshold, batch)


class Writer:
    """See the module. ``submit`` is for the loop's thread, the rest of the state for readers.

    Attributes:
        synced_batch: every batch up to this one is on stable storage. Read without a lock: it only
            grows, and an old value is always true.
    """

    def __init__(
        self,
        loop: AbstractEventLoop,
        *,
        background_sync_seconds: float | None,
        slow_sync_seconds: float,
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._loop = loop
        self._background = background_sync_seconds
        self._slow = slow_sync_seconds
        self._on_failure = on_failure
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._idle = True
        self._dirty: list[File] = []
        self._dirty_since = 0.0
        self._written_batch = 0
        self._sync_is_broken = False
        self.synced_batch = 0
        self.syncs = 0
        self._thread = threading.Thread(
            target=self._run, name="tidegate-journal-writer", daemon=True
        )

    def start(self, synced_batch: int) -> None:
        """Begin; everything up to *synced_batch* is on stable storage."""
        self.synced_batch = self._written_batch = synced_batch
        self._thread.start()

    def submit(self, request: Request) -> None:
        """Queue *request*; ``request.done`` is called on the loop when it is carried out."""
        if (
            self._idle
            and len(request.buffers) > 1
            and len(request.buffers[1]) > HAND_OVER_BYTES_MIN
        ):
            started = request.started = threading.Lock()
            started.acquire()
            self._requests.put(request)
            started.acquire(timeout=HAND_OVER_SECONDS_MAX)
        else:
            self._requests.put(request)

    def stop(self) -> None:
        """Carry out what was submitted, sync, and end. Blocks; call it from another thread."""
        self._requests.put(None)
        self._thread.join()

    async def close(self) -> None:
        """As :meth:`stop`, for the loop."""
        await asyncio.to_thread(self.stop)

    # ------------------------------------------------------------------------ in the thread

    def _run(self) -> None:
        get = self._requests.get
        while True:
            try:
                request = get(timeout=self._time_to_sync())
            except queue.Empty:
                self._idle = False
                self._sync_in_background()
                self._idle = True
                continue
            if request is None:
                self._sync_in_background()
                return
            self._idle = False
            try:
                if request.started is not None:
                    request.started.release()
                self._carry_out(request)
            except OSError as error:
                request.error = error
            except Exception as error:  # no memory, or a bug: whoever waits must learn of it
                self._sync_is_broken = request.sync_failed = True
                request.error = error
            self._idle = True
            try:
                self._loop.call_soon_threadsafe(request.done, request)
            except RuntimeError:
                return  # the loop was closed without closing the store; nobody listens any more

    def _time_to_sync(self) -> float | None:
        if not self._dirty or self._background is None:
            return None
        return max(0.0, self._dirty_since + self._background - time.monotonic())

    def _carry_out(self, request: Request) -> None:
        if self._sync_is_broken:
            request.sync_failed = True
            raise OSError("an earlier sync failed; what is on disk is unknown")
        file = request.file
        if file is not None:
            if request.sync_first:
                self._sync(request)
            try:
                file.pwritev(request.buffers, request.offset)
            except OSError:
                self._wipe(file, request)
                raise
            self._written_batch = request.batch
            if file not in self._dirty:
                if not self._dirty:
                    self._dirty_since = time.monotonic()
                self._dirty.append(file)
        if request.sync:
            self._sync(request)

    def _wipe(self, file: File, request: Request) -> None:
        """Take a half-written batch back, so that the next start does not find a torn tail."""
        try:
            file.pwritev([bytes(sum(map(len, request.buffers)))], request.offset)
        except OSError:
            # The same full disk. The next batch goes to the same place; and a torn batch that was
            # never confirmed is what recovery repairs anyway.
            logger.info("a batch that failed half-way could not be wiped offset=%d", request.offset)

    def _sync(self, request: Request | None) -> None:
        for file in self._dirty:
            begin = time.monotonic()
            try:
                file.datasync()
            except OSError:
                # After a failed fsync the kernel may have dropped the dirty pages and call them
                # clean: a second sync would succeed and prove nothing. So this is final.
                self._sync_is_broken = True
                if request is not None:
                    request.sync_failed = True
                raise
            taken = time.monotonic() - begin
            self.syncs += 1
            if self._slow and taken > self._slow:
                log_slow_sync(taken, self._slow, self._written_batch)
        self._dirty.clear()
        self.synced_batch = self._written_batch

    def _sync_in_background(self) -> None:
        if self._sync_is_broken:
            return
        try:
            self._sync(None)
        except Exception as error:
            self._sync_is_broken = True
            try:
                self._loop.call_soon_threadsafe(self._on_failure, error)
            except RuntimeError:
                logger.warning("sync failed after the loop was closed error=%s", error)
