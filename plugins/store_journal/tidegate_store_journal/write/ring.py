"""The writer of ``journal_type = "ASYNCIO"``: requests to the kernel instead of a thread.

The loop hands a batch to the kernel and learns of its end from a descriptor that it watches anyway:
no thread, so no waiting for the interpreter's lock twice per batch. What is written and synced, and
in which order, is the same as in ``writer``:

- One batch after the other. A batch that fits into one request, and before which everything is
  synced, is one request that writes and syncs (``O_DSYNC``). Everything else is written in requests of
  ``journal_buffer_size``, at most ``journal_max_io`` of them at a time, and then synced.
- A file is begun once the previous one is synced.
- After a failed sync, or an unexpected error, nothing is written any more.

All methods are for the event loop.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import sys
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from tidegate_store_journal.log.storage import (
    FULL_ERRNOS,
    DirectoryFile,
    DirectoryStorage,
    File,
    Storage,
)
from tidegate_store_journal.options import ASYNCIO, JournalOptions
from tidegate_store_journal.write.writer import (
    HAND_OVER_BYTES_MIN,
    BatchWriter,
    Request,
    Steps,
    Writer,
)

if TYPE_CHECKING:
    from caio.linux_uring import Operation

logger = logging.getLogger("tidegate.store.journal")

#: Called with the result of a request: bytes written (0 for a sync), or ``-errno``.
Completed = Callable[[int], None]

#: A batch that exceeds a request by this much is still one request.
_REST_BYTES: Final = 4096
#: The system had no memory for a request; it is submitted again after this.
_AGAIN_SECONDS: Final = 0.005


class Ring(Protocol):
    """A queue of requests to the system.

    Requests may be carried out in any order. *done* is called on the event loop, never before the
    method that it was given to has returned.
    """

    def write(self, file: File, data: bytes, offset: int, done: Completed, *, synced: bool) -> None:
        """Write *data*, or the first part of it; *synced*: and put this range on stable storage."""
        ...

    def datasync(self, file: File, done: Completed) -> None:
        """As ``File.datasync``."""
        ...

    def close(self) -> None:
        """Give everything back. No request is in progress. Idempotent."""
        ...


@runtime_checkable
class RingStorage(Protocol):
    """A storage whose files take requests (tests, fault injection)."""

    def make_ring(self, loop: AbstractEventLoop, entries: int) -> Ring:
        """A ring for its files, with room for *entries*. Raises: OSError: there is none."""
        ...


class RingWriter(BatchWriter):
    """See the module.

    Attributes:
        requests_max: most requests in progress at once.
    """

    def __init__(
        self,
        loop: AbstractEventLoop,
        options: JournalOptions,
        on_failure: Callable[[Exception], None],
        ring: Ring,
    ) -> None:
        super().__init__(loop, options, on_failure)
        self._ring = ring
        self._max_io = options.max_io
        self._request_bytes_max = options.journal_buffer_size
        self._queue: deque[Request] = deque()
        self._is_lost = False  # what is in progress is unknown: see _advance
        self._is_closed = False
        # The request in progress:
        self._current: Request | None = None
        self._steps: Steps
        # And its current step:
        self._pieces: deque[tuple[int, bytes]] = deque()
        self._in_flight = 0
        self._error: OSError | None = None
        self.requests_max = 0

    def submit(self, request: Request) -> None:
        self._queue.append(request)
        self._next()

    async def close(self) -> None:
        """See BatchWriter; and give the ring back. Idempotent.

        Cancellation: safe; the ring stays open.
        """
        if self._is_closed:
            return
        if not self._sync_is_broken:
            synced = asyncio.Event()
            self.submit(Request(lambda _: synced.set()))
            await synced.wait()
        self._is_closed = True
        self._stop_timer()
        self._ring.close()

    def _can_sync_at_once(self, request: Request) -> bool:
        # Only its own range will be on stable storage.
        size = sum(map(len, request.buffers))
        return not self._dirty and size <= self._request_bytes_max + _REST_BYTES

    def _next(self) -> None:
        while self._queue and self._current is None:
            self._current = self._queue.popleft()
            self._steps = self._carry_out(self._current)
            self._advance(None)

    def _advance(self, error: Exception | None) -> None:
        """Begin the next step of the request in progress, or end it."""
        request = self._current
        assert request is not None
        try:
            step = next(self._steps, None) if error is None else self._steps.throw(error)
            if step is not None:
                self._begin(*step)
                return
        except Exception as problem:
            self._is_lost |= not isinstance(problem, OSError)
            self._note_error(request, problem)
        self._current = None
        self._finish(request)

    def _begin(self, file: File, buffers: Sequence[bytes], offset: int, synced: bool) -> None:
        self._error = None
        if buffers:
            self._pieces.extend(_cut(b"".join(buffers), offset, self._request_bytes_max))
            self._fill(file, synced)
        else:
            self._in_flight = 1
            self._ring.datasync(file, partial(self._done, file, 0, b"", synced))
        self.requests_max = max(self.requests_max, self._in_flight)

    def _fill(self, file: File, synced: bool) -> None:
        while self._pieces and self._in_flight < self._max_io:
            offset, data = self._pieces.popleft()
            self._in_flight += 1
            done = partial(self._done, file, offset, data, synced)
            self._ring.write(file, data, offset, done, synced=synced)

    def _done(self, file: File, offset: int, data: bytes, synced: bool, result: int) -> None:
        """One request to the system has ended."""
        if self._is_lost:
            return
        self._in_flight -= 1
        if 0 < result < len(data):
            # A signal, a nearly full disk: its error, if any, comes with the rest.
            self._pieces.appendleft((offset + result, data[result:]))
        elif (result < 0 or (data and not result)) and self._error is None:
            code = -result or errno.EIO
            self._error = OSError(code, os.strerror(code))
        if self._error is not None:
            self._pieces.clear()
            if synced and not (data and self._error.errno in FULL_ERRNOS):
                assert self._current is not None
                self._break(self._current)  # it may be the sync that failed
        try:
            self._fill(file, synced)
        except Exception as problem:
            self._advance(problem)
        else:
            if not self._in_flight:
                self._advance(self._error)
        self._next()


def _cut(data: bytes, offset: int, length_max: int) -> list[tuple[int, bytes]]:
    """*data* as (offset, at most about *length_max* bytes)."""
    if len(data) <= length_max + _REST_BYTES:
        return [(offset, data)]
    return [(offset + at, data[at : at + length_max]) for at in range(0, len(data), length_max)]


class CaioRing:
    """Linux's io_uring through the package *caio* (the extra ``asyncio``), for ``DirectoryStorage``.

    An eventfd, which the event loop watches, tells the end of a request. A synced write
    goes to a second descriptor of the same file, opened with O_DSYNC, so that it needs neither
    a separate request for the sync nor a link between two.
    """

    def __init__(self, loop: AbstractEventLoop, entries: int) -> None:
        """*entries*: most requests in progress.

        Raises: ImportError: the package is missing, or the system does not allow io_uring;
            OSError: no ring is available. Both say why.
        """
        if sys.platform != "linux" or not os.path.isdir("/proc/self/fd"):
            raise OSError(errno.ENOSYS, "io_uring needs Linux with /proc")
        from caio import linux_uring  # optional

        self._loop = loop
        self._operation = linux_uring.Operation
        try:
            self._context = linux_uring.Context(max_requests=entries)
        except (SystemError, RuntimeError) as error:
            raise OSError(str(error)) from error
        self._completed: list[tuple[Completed, int]] = []
        self._is_closed = False
        loop.add_reader(self._context.fileno, self._ready)

    def write(self, file: File, data: bytes, offset: int, done: Completed, *, synced: bool) -> None:
        """See Ring."""
        assert isinstance(file, DirectoryFile)
        try:
            fd = file.synced_fileno() if synced else file.fileno()
        except OSError as error:
            # No descriptor left. Nothing was written, so the journal is as good as before.
            self._loop.call_soon(done, -(error.errno or errno.EIO))
            return
        self._submit(self._operation.write(data, fd, offset), done)
        if len(data) > HAND_OVER_BYTES_MIN:
            # The loop will go on working, see writer, and a kernel thread has to begin.
            # Where all processors are busy it would wait for the end of the loop's time slice:
            # milliseconds, for a call that otherwise costs less than one microsecond.
            os.sched_yield()

    def datasync(self, file: File, done: Completed) -> None:
        """See Ring."""
        assert isinstance(file, DirectoryFile)
        self._submit(self._operation.fdsync(file.fileno()), done)

    def close(self) -> None:
        """See Ring."""
        if not self._is_closed:
            self._is_closed = True
            self._loop.remove_reader(self._context.fileno)

    def _submit(self, operation: Operation, done: Completed) -> None:
        operation.set_callback(lambda result: self._completed.append((done, result)))
        self._context.submit(operation)  # pyright: ignore[reportUnknownMemberType]
        self._flush()

    def _flush(self) -> None:
        try:
            self._context.flush()
        except SystemError as error:
            logger.warning("the system takes no request now; trying again error=%s", error)
            self._loop.call_later(_AGAIN_SECONDS, self._flush)
        if self._completed:  # carried out at once
            self._loop.call_soon(self._deliver)

    def _ready(self) -> None:
        try:
            self._context.poll()
        except BlockingIOError:
            pass  # the event was for a request seen before
        while self._context.process_events():
            pass
        self._deliver()

    def _deliver(self) -> None:
        completed, self._completed = self._completed, []
        for done, result in completed:
            done(result)


def make_writer(
    options: JournalOptions,
    storage: Storage,
    loop: AbstractEventLoop,
    on_failure: Callable[[Exception], None],
) -> BatchWriter:
    """The writer of the journal type, or its substitute where that is not available; not started."""
    if options.journal_type == ASYNCIO and storage.durable:
        try:
            ring = _make_ring(storage, loop, options.max_io)
        except (ImportError, OSError) as error:
            logger.warning("journal_type=ASYNCIO falls back to NIO reason=%s", error)
        else:
            return RingWriter(loop, options, on_failure, ring)
    return Writer(loop, options, on_failure)


def _make_ring(storage: Storage, loop: AbstractEventLoop, entries: int) -> Ring:
    if isinstance(storage, DirectoryStorage):
        return CaioRing(loop, entries)
    if isinstance(storage, RingStorage):
        return storage.make_ring(loop, entries)
    raise OSError(f"{storage.describe('')} takes no requests")
