"""``journal_buffer_timeout``: batches gather for a while, and are then written and synced as one.

Without a timeout this is not used: what arrives while a batch is under way gathers in the broker anyway.
The timeout makes that longer: fewer syncs, later confirmations.

All methods are for the event loop.
"""

from __future__ import annotations

import asyncio
from asyncio import TimerHandle
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.spi import AddMessage, Operation, SetRetained, StoreClosedError

#: Writes operations as one batch; True: synced.
Write = Callable[[list[Operation], bool], Awaitable[None]]

#: What an operation is taken to need besides the body of its message.
_OPERATION_BYTES: Final = 64


@dataclass(slots=True)
class _Entry:
    operations: list[Operation]
    synced: bool
    future: asyncio.Future[None]


class TimedBuffer:
    """See the module."""

    def __init__(self, write: Write, *, timeout_seconds: float, bytes_max: int) -> None:
        self._write = write
        self._timeout = timeout_seconds
        self._bytes_max = bytes_max
        self._loop = asyncio.get_running_loop()
        self._entries: list[_Entry] = []  # that gather
        self._bytes = 0
        self._timer: TimerHandle | None = None
        self._groups: deque[list[_Entry]] = deque()  # that are due
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    async def write(self, operations: list[Operation], synced: bool) -> None:
        """Returns when they are written, and synced if asked for.

        Raises: what the batch would have met alone. Cancellation: it may be written or not.
        """
        if self._is_closed:
            raise StoreClosedError("the journal store is not open")
        size = estimate(operations)
        if self._entries and self._bytes + size > self._bytes_max:
            self._flush()
        entry = _Entry(operations, synced, self._loop.create_future())
        self._entries.append(entry)
        self._bytes += size
        if self._bytes >= self._bytes_max:
            self._flush()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._timeout, self._flush)
        await entry.future

    async def close(self) -> None:
        """Write what has gathered; returns when it is. Idempotent. Cancellation: safe."""
        self._is_closed = True
        self._flush()
        if self._task is not None:
            await asyncio.shield(self._task)

    def _flush(self) -> None:
        """What has gathered is due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._entries:
            return
        self._groups.append(self._entries)
        self._entries = []
        self._bytes = 0
        if self._task is None:
            self._task = self._loop.create_task(self._run(), name="tidegate-journal-buffer")

    async def _run(self) -> None:
        try:
            while self._groups:
                await self._write_group(self._groups.popleft())
        finally:
            self._task = None

    async def _write_group(self, group: Sequence[_Entry]) -> None:
        error: Exception | None = None
        try:
            await self._write(
                [operation for entry in group for operation in entry.operations],
                any(entry.synced for entry in group),
            )
        except Exception as problem:
            error = problem
        if error is not None and len(group) > 1:  # nothing took effect: each meets its own fate
            for entry in group:
                await self._write_group([entry])
            return
        for entry in group:
            if entry.future.done():
                continue  # the caller was cancelled
            if error is None:
                entry.future.set_result(None)
            else:
                entry.future.set_exception(error)


def estimate(operations: Sequence[Operation]) -> int:
    """Bytes that *operations* take in the journal, about."""
    size = _OPERATION_BYTES * len(operations)
    for operation in operations:
        if isinstance(operation, AddMessage | SetRetained):
            size += len(operation.message.body)
    return size
