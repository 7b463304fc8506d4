"""The writer of ``journal_type = "ASYNCIO"``: requests to the kernel instead of a thread.

The loop hands a batch to the kernel and learns of its end from a descriptor that it watches anyway:
no thread, so no waiting for the interpreter's lock, twice a batch. What is written and synced, and
in which order, is the same as in ``_writer``:

- One batch after the other. A batch that fits into one request, and before which everything is
  synced, is one request that writes and syncs (``O_DSYNC``). Everything else is written in requests of
  ``journal_buffer_size``, at most ``journal_max_io`` of them under way, and then synced.
- A file is begun when the one before it is synced.
- After a sync that failed, or an error that nobody thought of, nothing is written any more.

All methods are for the event loop.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import time
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol

from tidegate_store_journal.log.files import FULL_ERRNOS
from tidegate_store_journal.log.storage import File
from tidegate_store_journal.write.writer import BackgroundSyncs, Request

logger = logging.getLogger("tidegate.store.journal")

#: Told what a request came to: bytes written (0 for a sync), or ``-errno``.
Completed = Callable[[int], None]
#: Told what several requests came to.
_Then = Callable[[OSError | None], None]


class Ring(Protocol):
    """A queue of requests to the system.

    Requests may be carried out in any order. *done* is called on the event loop, never before the
    method that it was given to has returned.
    """

    def write(self, file: File, data: bytes, offset: int, done: Completed, *, synced: bool) -> None:
        """Write *data*, or the first part of it; *synced*: and this range is on stable storage."""
        ...

    def datasync(self, file: File, done: Completed) -> None:
        """As ``File.datasync``."""
        ...

    def close(self) -> None:
        """Give everything back. No request is under way. Idempotent."""
        ...


class RingWriter(BackgroundSyncs):
    """See the module; the interface is that of ``_writer.Writer``.

    Attributes:
        requests_max: most requests that were under way at once.
    """

    def __init__(
        self,
        loop: AbstractEventLoop,
        ring: Ring,
        *,
        max_io: int,
        request_bytes_max: int,
        background_sync_seconds: float | None,
        slow_sync_seconds: float,
        on_failure: Callable[[Exception], None],
    ) -> None:
        super().__init__(
            loop,
            background_sync_seconds=background_sync_seconds,
            slow_sync_seconds=slow_sync_seconds,
            on_failure=on_failure,
        )
        self._ring = ring
        self._max_io = max_io
        self._request_bytes_max = request_bytes_max
        self._queue: deque[Request] = deque()
        self._current: Request | None = None
        self._is_lost = False  # nobody knows what is under way: see _guarded
        self._is_closed = False
        # The transfer that is under way:
        self._pieces: deque[tuple[int, bytes]] = deque()
        self._in_flight = 0
        self._error: OSError | None = None
        self.requests_max = 0

    def start(self, synced_batch: int) -> None:
        """Begin; everything up to *synced_batch* is on stable storage."""
        self.synced_batch = self._written_batch = synced_batch

    def submit(self, request: Request) -> None:
        """Queue *request*; ``request.done`` is called later, when it is carried out."""
        self._queue.append(request)
        if self._current is None:
            self._next()

    async def close(self) -> None:
        """Carry out what was submitted, sync, and give the ring back. Idempotent.

        Cancellation: safe; the ring stays open.
        """
        if self._is_closed:
            return
        if not self._sync_is_broken:
            synced = asyncio.Event()
            self.submit(Request(lambda _: synced.set()))
            await synced.wait()
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._ring.close()

    # -------------------------------------------------------------------------- one request

    def _next(self) -> None:
        request = self._current = self._queue.popleft()
        if self._sync_is_broken:
            request.sync_failed = True
            error = OSError("an earlier sync failed; what is on disk is unknown")
            self._loop.call_soon(self._finish, error)
        else:
            self._guarded(self._begin, request)

    def _begin(self, request: Request) -> None:
        if request.file is None:
            self._sync_dirty(self._finish)
        elif request.sync_first and self._dirty:
            self._sync_dirty(self._write)
        else:
            self._write(None)

    def _guarded(self, step: Callable[..., None], *arguments: Any) -> None:
        """Take a step of the request under way; after an error that nobody thought of it is over."""
        if self._is_lost:
            return  # the end of something that was under way then
        try:
            step(*arguments)
        except Exception as error:  # no memory, or a bug: whoever waits must learn of it
            self._is_lost = self._sync_is_broken = True
            if self._current is None:
                self._on_failure(error)
            else:
                self._current.sync_failed = True
                self._loop.call_soon(self._finish, error)

    def _write(self, error: OSError | None) -> None:
        if error is not None:
            self._finish(error)
            return
        request = self._current
        assert request is not None
        pieces = cut(request.buffers, request.offset, self._request_bytes_max)
        if request.sync and not self._dirty and len(pieces) == 1:
            self._transfer(pieces, partial(self._written_and_synced, time.monotonic()), True)
        else:
            self._transfer(pieces, self._written)

    def _written_and_synced(self, begin: float, error: OSError | None) -> None:
        request = self._current
        assert request is not None
        if error is not None and error.errno not in FULL_ERRNOS:
            # It may be the sync that failed: see _writer.
            self._sync_is_broken = request.sync_failed = True
            self._finish(error)
        elif error is not None:
            self._wipe(error)
        else:
            self._written_batch = request.batch
            self._count_sync(time.monotonic() - begin)
            self.synced_batch = request.batch
            self._finish(None)

    def _written(self, error: OSError | None) -> None:
        request = self._current
        assert request is not None
        if error is not None:
            self._wipe(error)
            return
        self._note_written(request)
        if request.sync:
            self._sync_dirty(self._finish)
        else:
            self._finish(None)

    def _wipe(self, error: OSError) -> None:
        """Take a half-written batch back, so that the next start does not find a torn tail."""
        request = self._current
        assert request is not None
        zeros = bytes(sum(map(len, request.buffers)))

        def wiped(problem: OSError | None) -> None:
            if problem is not None:
                # The same full disk, as in _writer.
                logger.info(
                    "a batch that failed half-way could not be wiped offset=%d", request.offset
                )
            self._finish(error)

        self._transfer(cut([zeros], request.offset, self._request_bytes_max), wiped)

    def _finish(self, error: Exception | None) -> None:
        request = self._current
        assert request is not None
        self._current = None
        request.error = error
        request.done(request)
        self._watch_dirty()
        if self._queue and self._current is None:
            self._next()

    # ------------------------------------------------------------------------------- syncs

    def _sync_dirty(self, then: _Then) -> None:
        """Sync what was written but not synced, one file after the other."""
        if not self._dirty:
            self.synced_batch = self._written_batch
            self._loop.call_soon(self._guarded, then, None)
            return
        begin = time.monotonic()

        def synced(result: int) -> None:
            if result < 0:
                # Final: see _writer.
                self._sync_is_broken = True
                if self._current is not None:
                    self._current.sync_failed = True
                then(_error(result))
                return
            self._count_sync(time.monotonic() - begin)
            del self._dirty[0]
            if self._dirty:
                self._sync_dirty(then)
            else:
                self.synced_batch = self._written_batch
                then(None)

        self._note_request(1)
        self._ring.datasync(self._dirty[0], partial(self._guarded, synced))

    # ---------------------------------------------------------------------------- transfers

    def _transfer(
        self, pieces: Sequence[tuple[int, bytes]], then: _Then, synced: bool = False
    ) -> None:
        """Write all *pieces*; *then* is told the first error, when nothing is under way any more."""
        self._pieces.extend(pieces)
        self._error = None
        self._fill(then, synced)

    def _fill(self, then: _Then, synced: bool) -> None:
        request = self._current
        assert request is not None
        assert request.file is not None
        pieces = self._pieces
        while pieces and self._in_flight < self._max_io:
            offset, data = pieces.popleft()
            self._in_flight += 1
            done = partial(self._guarded, self._transferred, offset, data, then, synced)
            self._ring.write(request.file, data, offset, done, synced=synced)
        self._note_request(self._in_flight)

    def _note_request(self, count: int) -> None:
        if count > self.requests_max:
            self.requests_max = count

    def _transferred(
        self, offset: int, data: bytes, then: _Then, synced: bool, result: int
    ) -> None:
        self._in_flight -= 1
        if 0 < result < len(data):
            # A signal, a nearly full disk: the error that ends it, if any, comes with the rest.
            self._pieces.appendleft((offset + result, data[result:]))
        elif result <= 0 and self._error is None:
            self._error = _error(result or -errno.EIO)
        if self._error is not None:
            self._pieces.clear()
        if self._pieces:
            self._fill(then, synced)
        elif not self._in_flight:
            then(self._error)


def _error(result: int) -> OSError:
    return OSError(-result, os.strerror(-result))


#: A batch that is so much longer than a request is one all the same.
_REST_BYTES: Final = 4096


def cut(buffers: Sequence[bytes], offset: int, length_max: int) -> list[tuple[int, bytes]]:
    """*buffers*, one behind the other, as (offset, at most about *length_max* bytes)."""
    total = sum(map(len, buffers))
    if total <= length_max + _REST_BYTES:
        return [(offset, b"".join(buffers))]
    pieces: list[tuple[int, bytes]] = []
    parts: list[memoryview] = []
    size = 0
    for buffer in buffers:
        rest = memoryview(buffer)
        while rest:
            part = rest[: length_max - size]
            rest = rest[len(part) :]
            parts.append(part)
            size += len(part)
            if size == length_max:
                pieces.append((offset, b"".join(parts)))
                offset += size
                parts.clear()
                size = 0
    if parts:
        pieces.append((offset, b"".join(parts)))
    return pieces
