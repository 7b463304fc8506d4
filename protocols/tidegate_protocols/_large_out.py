"""Writes large bodies to a client in pieces; everything else for that client waits behind them.

Used by the front-ends only while a large body is on its way to a client: the ordinary path writes to
the link and knows nothing of it.
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

#: Bytes read from the store, and given to the link, at a time: at most, and at least however many
#: clients there are. One waits in the link, one is read ahead, and one of the body behind.
PIECE_BYTES_MAX: Final = 1 << 20
PIECE_BYTES_MIN: Final = 64 << 10
#: What the pieces of all clients may have together before they become smaller.
_SHARED_BYTES: Final = 64 << 20
_PIECES_MIN: Final = 3  # that a client may have at a time
#: Bodies of one client whose first piece is read while the one in front of them is written.
AHEAD_MAX: Final = 3


class Share:
    """Divides memory between all clients to which large bodies are on their way.

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
        """Bodies of a client that are begun to be read behind the one that is written, now."""
        fair = _SHARED_BYTES // (PIECE_BYTES_MAX * max(self.clients, 1)) - _PIECES_MIN + 1
        return min(AHEAD_MAX, max(1, fair))


#: Of this process.
_SHARE: Final = Share()


class Streamed(msgspec.Struct, frozen=True):
    """A message that is written in pieces.

    Attributes:
        head, tail: what goes before and behind the body.
        body: where it is.
        reader: open since the message was handed out, so that the body stays until it is written.
        missing: called when the body cannot be read and nothing of the message was written yet.
    """

    head: bytes
    body: LargeBody
    tail: bytes
    reader: LargeReader
    missing: Callable[[GatewayError], None]


class LargeWire(bytes):
    """The bytes in front of a large body, for front-ends that hand bytes around.

    Attributes: large: the body, which follows.
    """

    large: LargeBody

    @classmethod
    def made(cls, head: bytes, large: LargeBody) -> LargeWire:
        """*head* before *large*."""
        wire = cls(head)
        wire.large = large
        return wire


@final
class LargeOut:
    """What waits to be written to one client.

    Args:
        idle: called when everything has been written; not after :meth:`cancel`.
        broken: called when a body ends in the middle: nothing sensible can be written any more.
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
        self._ahead: dict[int, asyncio.Task[bytes]] = {}  # next pieces by id() of what they are of
        self._may_write = asyncio.Event()
        self._may_write.set()

    @property
    def is_busy(self) -> bool:
        """Something waits, so whatever comes has to wait behind it."""
        return self._task is not None

    def send(self, data: bytes) -> None:
        """Write *data* behind what waits, at once when nothing does."""
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
        """Raises: GatewayError when the body ends in the middle."""
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
            # One by one, because the link would put them together: a copy of the whole piece.
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
        """Hand everything to the socket, and wait while that has too much of it."""
        self._link.flush()
        if not self._may_write.is_set():
            await self._may_write.wait()


async def _next_piece(reader: LargeReader, size: int) -> bytes:
    return await reader.read(size)


def _unasked(task: asyncio.Task[bytes]) -> None:
    """Nobody asks any more how it went."""
    if not task.cancelled():
        task.exception()
