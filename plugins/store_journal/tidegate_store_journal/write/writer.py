"""The writer thread: one write and one sync per batch, then one wake-up of the loop.

The two hand-overs cost more than anything else on this path, because the thread needs the GIL to
begin and again to report:

- *To the thread*: ``queue.SimpleQueue`` (measured against a lock and an eventfd: equal within the
  noise, about 15 µs with an idle loop). When the loop goes on working after :meth:`Writer.submit`,
  the thread would wait for the GIL up to the interpreter's switch interval (5 ms) before the disk
  has anything to do. So for a batch that shows that the loop is busy, submit waits a moment until
  the thread has taken over: about 20 µs, bounded by HAND_OVER_SECONDS_MAX.
- *Back*: ``loop.call_soon_threadsafe``, once per batch. The system calls run without the GIL.

*On the loop.* Both together take longer than a good disk needs for one message. So a small batch is
written and synced on the loop itself while nothing else waits for the disk and the last syncs were
quick. The first slow one sends later batches to the thread, until syncs there are quick again.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable, Generator, Sequence
from typing import Final

import msgspec

from tidegate.spi import StoreLockedError
from tidegate_store_journal.log.storage import File
from tidegate_store_journal.options import ALWAYS, NEVER, PERIODIC, JournalOptions

logger = logging.getLogger("tidegate.store.journal")

#: What was written but not synced is synced after this at the latest when the journal is otherwise
#: idle: the bound on what WRITTEN batches can lose in a power cut.
BACKGROUND_SYNC_SECONDS: Final = 0.05
#: A batch of this many bytes did not come from a client that waits for each message, so the loop
#: has more to do and will keep the GIL.
HAND_OVER_BYTES_MIN: Final = 4096
#: Syncs that take at most this long on average may be made on the loop: others wait no longer than
#: that. A hand-over there and back takes 0.05 ms on an idle machine and 0.2 on a busy one. A disk on
#: which every tenth sync takes some milliseconds is still quick.
QUICK_SYNC_SECONDS: Final = 0.001
#: A disk has to prove that it is quick: some 20 syncs, and as many again after one this long.
_SYNC_SECONDS_AT_FIRST: Final = 0.01
#: Weight of a sync in the average.
_SYNC_WEIGHT: Final = 1 / 8
#: More than this is not synced on the loop, however quick the last syncs were.
_QUICK_SYNC_BYTES_MAX: Final = 64 << 10
#: The thread answers in 20 µs unless the machine is overloaded; then it is not worth waiting for.
HAND_OVER_SECONDS_MAX: Final = 0.001


class Request(msgspec.Struct, eq=False):
    """One batch to write, or (without a file) a request to sync everything before it.

    Attributes:
        done: called on the loop with this request, at the earliest within ``submit``.
        file, offset, buffers: what goes where.
        batch: its number, or 0.
        sync: sync after writing.
        sync_first: whether to sync everything unsynced before anything is written to *file*.
        error: what went wrong; sync_failed: in a sync, or unexpectedly, so that it
            is unknown what is on disk.
    """

    done: Callable[[Request], None]
    file: File | None = None
    offset: int = 0
    buffers: Sequence[bytes] = ()
    batch: int = 0
    sync: bool = True
    sync_first: bool = False
    error: Exception | None = None
    sync_failed: bool = False
    started: threading.Lock | None = None


#: Write the buffers to the file at the offset, and, if the last says so, sync it then. An OSError is
#: thrown in; if it is the sync's, the request already says so.
Steps = Generator[tuple[File, Sequence[bytes], int, bool], None, None]


class BatchWriter:
    """Carries batches to the disk, one after the other: in which order, and what its errors mean.

    :class:`Writer` and ``ring.RingWriter`` decide how calls are made.

    Attributes:
        synced_batch: every batch up to this one is on stable storage. Read without a lock: it only
            grows, and an old value is always true.
        syncs: how many syncs were made.
        fence: called after each sync and before it is believed, in any thread; raises when another
            gateway may own the journal, or that is unknown. None: nobody else can.
        clock: in seconds; measures how long a sync takes.
    """

    def __init__(
        self,
        loop: AbstractEventLoop,
        options: JournalOptions,
        on_failure: Callable[[Exception], None],
    ) -> None:
        """*on_failure* is called with a failed sync that nobody requested."""
        self._loop = loop
        #: When writes without a sync are synced; None: never.
        self._background = {
            ALWAYS: BACKGROUND_SYNC_SECONDS,
            PERIODIC: options.journal_disk_sync_interval,
            NEVER: None,
        }[options.sync_strategy]
        self._slow = options.slow_sync_threshold
        self._on_failure = on_failure
        self._dirty: list[File] = []
        self._dirty_bytes = 0
        self._dirty_since = 0.0
        self._sync_seconds = _SYNC_SECONDS_AT_FIRST  # on average
        self._timer: TimerHandle | None = None
        self._written_batch = 0
        self._sync_is_broken = False
        self.synced_batch = 0
        self.syncs = 0
        self.clock = time.monotonic
        self.fence: Callable[[], None] | None = None

    def start(self, synced_batch: int) -> None:
        """Begin; everything up to *synced_batch* is on stable storage."""
        self.synced_batch = self._written_batch = synced_batch

    def submit(self, request: Request) -> None:
        """Carry *request* out, or queue it; ``request.done`` is called on the loop afterwards."""
        raise NotImplementedError

    async def close(self) -> None:
        """Carry out what was submitted, sync, and end."""
        raise NotImplementedError

    def _can_sync_at_once(self, request: Request) -> bool:
        """Whether writing and syncing it in one step leaves nothing unsynced."""
        raise NotImplementedError

    # ------------------------------------------------------------------------- one request

    def _carry_out(self, request: Request) -> Steps:
        """Raises: OSError."""
        if self._sync_is_broken:
            request.sync_failed = True
            raise OSError("an earlier sync failed; what is on disk is unknown")
        file = request.file
        if file is None:
            yield from self._sync(request)
            return
        if request.sync_first:
            yield from self._sync(request)
        is_synced = request.sync and self._can_sync_at_once(request)
        begin = self.clock() if is_synced else 0.0
        try:
            yield file, request.buffers, request.offset, is_synced
        except OSError:
            if not request.sync_failed:
                yield from self._wipe(file, request)
            raise
        self._written_batch = request.batch
        if is_synced:
            self._count_sync(self.clock() - begin)
            self._dirty.clear()
            self._believe(request)
            return
        if file not in self._dirty:
            if not self._dirty:
                self._dirty_since = self._loop.time()
            self._dirty.append(file)
        self._dirty_bytes += sum(map(len, request.buffers))
        if request.sync:
            yield from self._sync(request)

    def _wipe(self, file: File, request: Request) -> Steps:
        """Undo a half-written batch, so that the next start does not find a torn tail."""
        try:
            yield file, [bytes(sum(map(len, request.buffers)))], request.offset, False
        except OSError:
            # The same full disk. The next batch goes to the same place; and a torn batch that was
            # never confirmed is what recovery repairs anyway.
            logger.info("a batch that failed half-way could not be wiped offset=%d", request.offset)

    def _sync(self, request: Request) -> Steps:
        """Sync what was written but not synced, file by file."""
        while self._dirty:
            begin = self.clock()
            yield self._dirty[0], (), 0, True
            self._count_sync(self.clock() - begin)
            del self._dirty[0]
        self._believe(request)

    def _believe(self, request: Request) -> None:
        """Check that what was written is on stable storage, and that nobody else has gone on without it."""
        if self.fence is not None:
            try:
                self.fence()
            except BaseException:
                self._break(request)
                raise
        self._dirty_bytes = 0
        self.synced_batch = self._written_batch

    def _count_sync(self, taken: float) -> None:
        self.syncs += 1
        self._sync_seconds += (taken - self._sync_seconds) * _SYNC_WEIGHT
        if self._slow and taken > self._slow:
            text = "slow sync seconds=%.3f threshold=%.3f batch=%d"
            logger.warning(text, taken, self._slow, self._written_batch)

    def _note_error(self, request: Request, error: Exception) -> None:
        request.error = error
        if not isinstance(
            error, OSError
        ):  # no memory, or a bug: the waiting caller must learn of it
            self._break(request)

    def _break(self, request: Request) -> None:
        """A sync failed. After that the kernel may have dropped the dirty pages and call them clean:
        a second sync would succeed and prove nothing. So this is final."""
        self._sync_is_broken = request.sync_failed = True

    # -------------------------------------------------------------- syncs in the background

    def _finish(self, request: Request) -> None:
        """On the loop, after a request: unsynced writes must not stay so."""
        request.done(request)
        if self._dirty and self._timer is None and self._background is not None:
            self._timer = self._loop.call_at(self._dirty_since + self._background, self._is_time)

    def _is_time(self) -> None:
        self._timer = None
        if not self._dirty or self._sync_is_broken or self._background is None:
            return
        if self._loop.time() < self._dirty_since + self._background:
            self._timer = self._loop.call_at(self._dirty_since + self._background, self._is_time)
        else:
            self.submit(Request(self._synced_in_background))

    def _synced_in_background(self, request: Request) -> None:
        if request.error is not None:
            self._on_failure(request.error)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class Writer(BatchWriter):
    """See the module. ``submit`` and ``close`` are for the loop's thread."""

    def start(self, synced_batch: int) -> None:
        super().start(synced_batch)
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._waiting = 0  # requests that the thread has; with none its state is the loop's
        self._thread = threading.Thread(
            target=self._run, name="tidegate-journal-writer", daemon=True
        )
        self._thread.start()

    def submit(self, request: Request) -> None:
        size = sum(map(len, request.buffers))
        if not self._waiting and self._is_quick(request, size):
            self._attempt(request)
            self._finish(request)
            return
        self._waiting += 1
        if size > HAND_OVER_BYTES_MIN and self._waiting == 1:
            started = request.started = threading.Lock()
            started.acquire()
            self._requests.put(request)
            started.acquire(timeout=HAND_OVER_SECONDS_MAX)
        else:
            self._requests.put(request)

    def _can_sync_at_once(self, request: Request) -> bool:
        return not self._dirty or self._dirty == [request.file]

    def _is_quick(self, request: Request, size: int) -> bool:
        """Whether it may be carried out on the loop: hardly longer than the hand-overs take."""
        return (
            size <= HAND_OVER_BYTES_MIN
            and self._sync_seconds < QUICK_SYNC_SECONDS
            and self._dirty_bytes < _QUICK_SYNC_BYTES_MAX
            and request.file is not None
            and not request.sync_first
        )

    def _answered(self, request: Request) -> None:
        self._waiting -= 1
        self._finish(request)

    def stop(self) -> None:
        """Carry out what was submitted, sync, and end. Blocks; call it from another thread."""
        self._requests.put(None)
        self._thread.join()

    async def close(self) -> None:
        """As :meth:`stop`, for the loop."""
        self._stop_timer()
        await asyncio.to_thread(self.stop)

    # ------------------------------------------- in the thread; on the loop while that has nothing

    def _run(self) -> None:
        while (request := self._requests.get()) is not None:
            if request.started is not None:
                request.started.release()
            self._attempt(request)
            try:
                self._loop.call_soon_threadsafe(self._answered, request)
            except RuntimeError:
                return  # the loop was closed without closing the store; nobody listens any more
        if not self._sync_is_broken:
            last = Request(self._synced_in_background)
            self._attempt(last)
            # Whoever lost the lock reports that.
            if last.error is not None and not isinstance(last.error, StoreLockedError):
                logger.warning("the last sync failed error=%r", last.error)

    def _attempt(self, request: Request) -> None:
        steps = self._carry_out(request)
        try:
            step = next(steps, None)
            while step is not None:
                file, buffers, offset, is_synced = step
                try:
                    if buffers:
                        file.pwritev(buffers, offset)
                    if is_synced:
                        try:
                            file.datasync()
                        except OSError:
                            self._break(request)
                            raise
                except OSError as error:
                    step = steps.throw(error)
                else:
                    step = next(steps, None)
        except Exception as error:
            self._note_error(request, error)
