"""Large SENDs of one connection: bodies that go to the store as they come.

While a body comes, nothing else of the connection can (it is behind it in the stream). When it is
complete, the next body may come while the one before is synced; any other frame waits until all
messages before it are published, so the order of the client's frames is kept. So does the end: of
the connection, or of what can be understood. What came whole before it counts, as with small ones.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final, final

from tidegate.spi import GatewayError, LargeBodies, LargeBody, LargeWriter, PeerProtocolError
from tidegate_protocols.stomp._decoder import Decoder
from tidegate_protocols.stomp._frames import AckRun, Frame, LargeSend

logger = logging.getLogger("tidegate.stomp")

#: Received bytes that may wait for the disk before the socket is paused, and the level at which it
#: is read again.
HIGH_BYTES: Final = 2 << 20
LOW_BYTES: Final = 1 << 19
#: Bodies of one connection that are being written or synced at a time.
BODIES_MAX: Final = 4
#: What is handed to the store at a time at most.
_WRITE_BYTES_MAX: Final = 1 << 20
#: Pieces that are handed over as they are; more and smaller ones are put together.
_PIECES_MAX: Final = 16


class _Body:
    """One body on its way."""

    __slots__ = (
        "frame",
        "is_complete",
        "is_open",
        "left",
        "pieces",
        "result",
        "task",
        "wake",
        "writer",
    )

    def __init__(self, frame: Frame, size: int | None, writer: LargeWriter) -> None:
        self.frame = frame
        self.is_open = size is None  # until its NUL
        self.left = size or 0
        self.writer = writer
        self.pieces: deque[bytes] = deque()
        self.is_complete = False  # with the NUL behind it
        self.result: LargeBody | None = None
        self.wake = asyncio.Event()
        self.task: asyncio.Task[None] | None = None


@final
class LargeIn:
    """See the module.

    Args:
        publish: called in the frames' order when a body is in the store. Raises: GatewayError.
        refuse: called once when something went wrong, in its turn, with the frame if there is one.
        adjust: called when :attr:`wants_pause` changed.
        go_on: called when frames can be read again after nothing could; after :meth:`cut` also
            when all is published.
        crashed: called when one of these failed in a way that nobody has foreseen.

    Attributes: held: a frame that waits until everything before it is published.
    """

    def __init__(
        self,
        bodies: LargeBodies,
        decoder: Decoder,
        *,
        publish: Callable[[Frame, LargeBody], None],
        refuse: Callable[[GatewayError, Frame | None], None],
        adjust: Callable[[], None],
        go_on: Callable[[], None],
        crashed: Callable[[], None],
    ) -> None:
        self._bodies = bodies
        self._decoder = decoder
        self._publish = publish
        self._refuse = refuse
        self._adjust = adjust
        self._go_on = go_on
        self._crashed = crashed
        self._queue: deque[_Body] = deque()
        self._coming: _Body | None = None
        self._waiting_bytes = 0
        self._is_full = False
        self._is_cut = False
        self._error: tuple[GatewayError, Frame | None] | None = None  # behind all of the queue
        self.held: Frame | AckRun | LargeSend | None = None

    @property
    def is_busy(self) -> bool:
        """Messages are not published yet, so other frames have to wait."""
        return bool(self._queue)

    @property
    def wants_pause(self) -> bool:
        """The socket is to be paused."""
        return self._is_full or self.held is not None or self._error is not None

    def begin(self, event: LargeSend) -> None:
        """A large body follows. Raises: StoreError."""
        writer = self._bodies.create(event.size)
        body = self._coming = _Body(event.frame, event.size, writer)
        self._queue.append(body)
        body.task = asyncio.get_running_loop().create_task(self._write(body))

    def receive(self) -> bool:
        """Take from the decoder what belongs to the body that is coming.

        Returns: True when the next frame may be read: nothing is coming, held or wrong.
        """
        body = self._coming
        if body is None:
            return self.held is None and self._error is None
        decoder = self._decoder
        while body.left:
            data = decoder.take_body(body.left)
            if not data:
                break
            body.left -= len(data)
            body.pieces.append(data)
            self._waiting_bytes += len(data)
        try:
            while body.is_open and (data := decoder.take_open_body()):
                body.pieces.append(data)
                self._waiting_bytes += len(data)
            is_complete = not body.left and decoder.end_body()
        except PeerProtocolError as error:
            self._drop_from(body)
            self.fail(error, body.frame)
            return False
        if is_complete:
            body.is_complete = True
            self._coming = None
        elif self._is_cut:
            self._drop_from(body)
            return False
        body.wake.set()
        if self._waiting_bytes > HIGH_BYTES and not self._is_full:
            self._is_full = True
            self._adjust()
        return self._coming is None

    def hold(self, event: Frame | AckRun | LargeSend) -> bool:
        """Keep *event* until it may be handled; False when it may be already."""
        if not self._queue or (isinstance(event, LargeSend) and len(self._queue) < BODIES_MAX):
            return False
        self.held = event
        self._adjust()
        return True

    def take_held(self) -> Frame | AckRun | LargeSend | None:
        """The event that was held, now that it may be handled."""
        held, self.held = self.held, None
        return held

    def fail(self, error: GatewayError, frame: Frame | None) -> None:
        """Refuse *frame* once what came before it is published; nothing behind it counts."""
        self.held = None
        self._error = (error, frame)
        self._adjust()
        self._proceed()

    def cut(self) -> bool:
        """The client is gone: the body that is coming never will be whole. Idempotent.

        Returns: True when others are, and are still to be published.
        """
        self._is_cut = True
        if self._coming is not None:
            self._drop_from(self._coming)
        return bool(self._queue)

    def abandon(self) -> None:
        """The session ended: what is not published never will be. Idempotent."""
        self.held = self._error = None
        if self._queue:
            self._drop_from(self._queue[0])

    def _drop_from(self, first: _Body) -> None:
        """Forget *first* and all bodies behind it."""
        queue = self._queue
        self._coming = None  # it is the last one
        body = None
        while body is not first:
            body = queue.pop()
            self._waiting_bytes -= sum(map(len, body.pieces))
            body.pieces.clear()
            if body.task is not None:
                body.task.cancel()
            body.writer.abandon()

    async def _write(self, body: _Body) -> None:
        """Cancelled when the body is dropped."""
        try:
            try:
                last: list[bytes] = []
                while body.pieces or not body.is_complete:
                    if not body.pieces:
                        body.wake.clear()
                        await body.wake.wait()
                        continue
                    taken = self._take(body.pieces)
                    if body.is_complete and not body.pieces:
                        last = taken
                        break
                    await body.writer.write(*taken)
                body.result = await body.writer.finish(*last)
            except GatewayError as error:
                body.task = None
                self._drop_from(body)
                self.fail(error, body.frame)
            else:
                body.task = None
                self._publish_finished()
        except Exception:  # nobody awaits this task, and the connection would wait for ever
            logger.exception("a large message failed, connection aborted")
            self.abandon()
            self._crashed()

    def _take(self, pieces: deque[bytes]) -> list[bytes]:
        taken = [pieces.popleft()]
        size = len(taken[0])
        while pieces and size + len(pieces[0]) <= _WRITE_BYTES_MAX:
            size += len(pieces[0])
            taken.append(pieces.popleft())
        self._waiting_bytes -= size
        if self._is_full and self._waiting_bytes <= LOW_BYTES:
            self._is_full = False
            self._adjust()
        return taken if len(taken) <= _PIECES_MAX else [b"".join(taken)]

    def _publish_finished(self) -> None:
        queue = self._queue
        while queue and queue[0].result is not None:
            body = queue.popleft()
            assert body.result is not None
            try:
                self._publish(body.frame, body.result)
            except GatewayError as error:
                if queue:
                    self._drop_from(queue[0])
                self.fail(error, body.frame)
                return
        self._proceed()

    def _proceed(self) -> None:
        """Do what had to wait, if all before it is published."""
        if self._error is not None:
            if not self._queue:
                error, self._error = self._error, None
                self._refuse(*error)
        elif self.held is not None:
            if not self.hold(self.held):
                self._go_on()
        elif self._is_cut and not self._queue:
            self._go_on()
