"""``journal_buffer_timeout``: batches gather for a while, then are written and synced as one.

Without a timeout this is not used: what arrives while a batch is in progress gathers in the broker anyway.
The timeout extends that: fewer syncs, later confirmations.

All methods are for the event loop.
"""

from __future__ import annotations

import asyncio
from asyncio import TimerHandle
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from tidegate.spi import AddMessage, Operation, SetRetained, StoreClosedError

#: Writes operations as one batch; True: synced.
Write = Callable[[list[Operation], bool], Awaitable[None]]

#: Assumed bytes of an operation besides the body of its message.
_OPERATION_BYTES: Final = 64


class _Entry(NamedTuple):
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
        self._entries: list[_Entry] = []  # gathering
        self._bytes = 0
        self._timer: TimerHandle | None = None
        self._turn = asyncio.Lock()  # groups that are due are written in order
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def write(self, operations: list[Operation], synced: bool) -> None:
        """Returns when they are written, and synced if requested.

        Raises: what the batch would have met alone. Cancellation: it may or may not be written.
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
        """Write what has gathered, and wait for that. Idempotent. Cancellation: safe."""
        self._is_closed = True
        self._flush()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _flush(self) -> None:
        """What has gathered is due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._entries:
            task = self._loop.create_task(self._write_due(self._entries))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            self._entries = []
            self._bytes = 0

    async def _write_due(self, group: Sequence[_Entry]) -> None:
        async with self._turn:
            await self._write_group(group)

    async def _write_group(self, group: Sequence[_Entry]) -> None:
        try:
            await self._write(
                [operation for entry in group for operation in entry.operations],
                any(entry.synced for entry in group),
            )
        except Exception as error:
            if len(group) > 1:  # nothing took effect: each meets its own fate
                for entry in group:
                    await self._write_group([entry])
            elif not group[0].future.done():
                group[0].future.set_exception(error)
            return
        for entry in group:
            if not entry.future.done():  # else the caller was cancelled
                entry.future.set_result(None)


def estimate(operations: Sequence[Operation]) -> int:
    """Approximate bytes that *operations* take in the journal."""
    size = _OPERATION_BYTES * len(operations)
    for operation in operations:
        if isinstance(operation, AddMessage | SetRetained):
            size += len(operation.message.body)
    return size
