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
import os
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol, Unpack

from tidegate_store_journal.log.storage import File
from tidegate_store_journal.write.writer import BatchWriter, Request, Steps, WriterSettings

#: Told what a request came to: bytes written (0 for a sync), or ``-errno``.
Completed = Callable[[int], None]


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


class RingWriter(BatchWriter):
    """See the module.

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
        **settings: Unpack[WriterSettings],
    ) -> None:
        super().__init__(loop, **settings)
        self._ring = ring
        self._max_io = max_io
        self._synced_bytes_max = request_bytes_max + _REST_BYTES
        self._request_bytes_max = request_bytes_max
        self._queue: deque[Request] = deque()
        self._is_lost = False  # nobody knows what is under way: see _advance
        self._is_closed = False
        # The request that is under way:
        self._current: Request | None = None
        self._steps: Steps
        # And the step of it that is:
        self._pieces: deque[tuple[int, bytes]] = deque()
        self._in_flight = 0
        self._error: OSError | None = None
        self.requests_max = 0

    def submit(self, request: Request) -> None:
        """See BatchWriter."""
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

    def _next(self) -> None:
        while self._queue and self._current is None:
            self._current = self._queue.popleft()
            self._steps = self._carry_out(self._current)
            self._advance(None)

    def _advance(self, error: Exception | None) -> None:
        """Begin the next step of the request under way, or end it."""
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
            self._pieces.extend(cut(buffers, offset, self._request_bytes_max))
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
            # A signal, a nearly full disk: the error that ends it, if any, comes with the rest.
            self._pieces.appendleft((offset + result, data[result:]))
        elif (result < 0 or (data and not result)) and self._error is None:
            self._error = _error(result or -errno.EIO)
        if self._error is not None:
            self._pieces.clear()
        try:
            self._fill(file, synced)
        except Exception as problem:
            self._advance(problem)
        else:
            if not self._in_flight:
                self._advance(self._error)
        self._next()


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
