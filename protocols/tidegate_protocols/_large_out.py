"""Writes large bodies to a client in pieces; everything else for that client queues behind them.

The front-ends use it only while a large body is being sent to a client; the ordinary path writes
straight to the link.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Final, final

import msgspec

from tidegate.spi import GatewayError, LargeBodies, LargeBody, LargeReader
from tidegate_protocols.transport import Link

logger = logging.getLogger("tidegate.large")

#: Bytes read from the store and given to the link at a time: the maximum, and the minimum however many
#: clients there are. One piece waits in the link, one is read ahead, and one of the next body.
PIECE_BYTES_MAX: Final = 1 << 20
PIECE_BYTES_MIN: Final = 64 << 10
#: Memory for the pieces of all clients together before pieces get smaller.
_SHARED_BYTES: Final = 64 << 20
_PIECES_MIN: Final = 3  # per client at a time
#: Bodies of one client whose first piece is read while the one ahead of them is written.
AHEAD_MAX: Final = 3


class Share:
    """Divides memory between all clients that are being sent large bodies.

    Attributes: clients: how many there are.
    """

    def __init__(self) -> None:
        self.clients = 0

    @property
    def piece_bytes(self) -> int:
        """Bytes that a piece may have now."""
        fair = _SHARED_BYTES // (_PIECES_MIN * max(self.clients, 1))
        return min(PIECE_BYTES_MAX, max(PIECE_BYTES_MIN, fair))

    @property
    def ahead(self) -> int:
        """How many of a client's bodies may be read ahead now, after the one being written."""
        fair = _SHARED_BYTES // (PIECE_BYTES_MAX * max(self.clients, 1)) - _PIECES_MIN + 1
        return min(AHEAD_MAX, max(1, fair))


#: The process's single one.
_SHARE: Final = Share()


class Streamed(msgspec.Struct, frozen=True):
    """A message that is written in pieces.

    Attributes:
        head, tail: the bytes before and after the body.
        body: where the body is stored.
        reader: open since the message was delivered, so that the body stays until it is written.
        missing: called when the body cannot be read and nothing of the message is written yet.
    """

    head: bytes
    body: LargeBody
    tail: bytes
    reader: LargeReader
    missing: Callable[[GatewayError], None]


class LargeWire(bytes):
    """The bytes before a large body, for front-ends that pass bytes around.

    Attributes: large: the body, which follows.
    """

    large: LargeBody

    @classmethod
    def made(cls, head: bytes, large: LargeBody) -> LargeWire:
        """*head* followed by *large*."""
        wire = cls(head)
        wire.large = large
        return wire


@final
class LargeOut:
    """The output queue of one client.

    Args:
        idle: called when everything has been written; not after :meth:`cancel`.
        broken: called when a body breaks off: nothing valid can be written any more.
    """

    def __init__(
        self,
        link: Link,
        bodies: LargeBodies,
        *,
        idle: Callable[[], None],
        broken: Callable[[GatewayError], None],
        share: Share = _SHARE,
    ) -> None:
        self._link = link
        self._bodies = bodies
        self._idle = idle
        self._broken = broken
        self._share = share
        self._queue: deque[bytes | Streamed] = deque()
        self._task: asyncio.Task[None] | None = None
        self._ahead: dict[int, asyncio.Task[bytes]] = {}  # next pieces by id() of their message
        self._may_write = asyncio.Event()
        self._may_write.set()

    @property
    def is_busy(self) -> bool:
        """Whether output is queued, so that any more must queue behind it."""
        return self._task is not None

    def send(self, data: bytes) -> None:
        """Write *data* after whatever is queued; at once if nothing is."""
        if self._task is None:
            self._link.send(data)
        else:
            self._queue.append(data)

    def stream(
        self, head: bytes, body: LargeBody, tail: bytes, missing: Callable[[GatewayError], None]
    ) -> None:
        """Write *head*, the body and *tail*."""
        reader = self._bodies.open(body)
        self._queue.append(Streamed(head, body, tail, reader, missing))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def writable(self, value: bool) -> None:
        """The link's buffer is full (False) or drained (True)."""
        if value:
            self._may_write.set()
        else:
            self._may_write.clear()

    def cancel(self) -> None:
        """The connection is gone: forget everything. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        for ahead in self._ahead.values():
            ahead.add_done_callback(_unasked)
            ahead.cancel()
        self._ahead.clear()
        while self._queue:
            item = self._queue.popleft()
            if isinstance(item, Streamed):
                item.reader.close()

    async def _run(self) -> None:
        queue, link = self._queue, self._link
        self._share.clients += 1
        try:
            while queue:
                item = queue.popleft()
                if isinstance(item, Streamed):
                    try:
                        await self._write_body(item)
                    finally:
                        item.reader.close()
                else:
                    link.send(item)
                    await self._flushed()
        except GatewayError as error:
            self._task = None
            self.cancel()
            self._broken(error)
            return
        except Exception:
            logger.exception("writing a large body failed peer=%s", link.peer)
            self._task = None
            self.cancel()
            link.abort()
            return
        finally:
            self._share.clients -= 1
        self._task = None
        self._idle()

    async def _write_body(self, item: Streamed) -> None:
        """Raises: GatewayError when the body breaks off."""
        left = item.body.size
        try:
            data = await self._read(item)
        except GatewayError as error:
            item.missing(error)
            return
        head = item.head
        while True:
            left -= len(data)
            is_last = left <= 0
            if not is_last:
                self._read_ahead(item)
            for behind in islice(self._queue, self._share.ahead):
                self._read_ahead(behind)
            # One by one: the link would join them, copying the whole piece.
            if head:
                self._link.send_piece(head, last=False)
                self._link.flush()
                head = b""
            self._link.send_piece(data, last=is_last and not item.tail)
            if is_last and item.tail:
                self._link.flush()
                self._link.send_piece(item.tail, last=True)
            await self._flushed()
            if is_last:
                return
            data = await self._read(item)

    def _read_ahead(self, item: bytes | Streamed) -> None:
        """The disk is read while the socket is written."""
        if isinstance(item, Streamed) and id(item) not in self._ahead:
            self._ahead[id(item)] = asyncio.get_running_loop().create_task(
                _next_piece(item.reader, self._share.piece_bytes)
            )

    async def _read(self, item: Streamed) -> bytes:
        """The next piece. Raises: GatewayError."""
        ahead = self._ahead.pop(id(item), None)
        if ahead is not None:
            return await ahead
        return await item.reader.read(self._share.piece_bytes)

    async def _flushed(self) -> None:
        """Hand everything to the socket, and wait while its buffer is full."""
        self._link.flush()
        if not self._may_write.is_set():
            await self._may_write.wait()


async def _next_piece(reader: LargeReader, size: int) -> bytes:
    return await reader.read(size)


def _unasked(task: asyncio.Task[bytes]) -> None:
    """Retrieve a dropped task's result, which nobody awaits."""
    if not task.cancelled():
        task.exception()
