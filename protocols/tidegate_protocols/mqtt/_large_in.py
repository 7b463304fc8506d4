"""Large PUBLISH packets of one connection: bodies that go to the store as they come.

While a body comes, nothing else of the connection can: it is behind it in the stream. When it is
complete, the next large PUBLISH may come while the one before is synced; any other packet stays
undecoded until all before it are published, so the order of the client's packets is kept.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Final, Protocol, final

from tidegate.spi import GatewayError, LargeBodies, LargeBody, LargeWriter
from tidegate_protocols.mqtt._codec import Codec
from tidegate_protocols.mqtt._codes import ReasonCode
from tidegate_protocols.mqtt._context import Timer
from tidegate_protocols.mqtt._incoming import Coming
from tidegate_protocols.mqtt._large_head import TextCheck
from tidegate_protocols.mqtt._packets import LargePublish, Publish
from tidegate_protocols.mqtt._reasons import RefusedError

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


class Publisher(Protocol):
    """Where large messages go; see :class:`tidegate_protocols.mqtt._incoming.Incoming`."""

    def begin_large(self, packet: Publish) -> Coming:
        """Look at a PUBLISH whose body is still to come. Raises: GatewayError."""
        ...

    def text_check(self, packet: Publish) -> TextCheck | None:
        """How its body is to be looked at; None: not at all."""
        ...

    def refuse_large(self, coming: Coming, error: GatewayError) -> None:
        """It cannot be published. Raises: *error*, when the connection has to end for it."""
        ...

    def end_large(self, coming: Coming, body: LargeBody | None, now_us: int) -> None:
        """All of it is here; body: None when it was not kept. Raises: GatewayError."""
        ...


class _Body:
    """One body on its way, or in its place what its header was refused for.

    Attributes:
        writer: None when the body is not kept.
        fatal: the connection ends when it is the turn of this one.
    """

    __slots__ = (
        "coming",
        "fatal",
        "is_complete",
        "pieces",
        "result",
        "task",
        "text",
        "wake",
        "writer",
    )

    def __init__(self, coming: Coming | None, fatal: GatewayError | None = None) -> None:
        self.coming = coming
        self.fatal = fatal
        self.writer: LargeWriter | None = None
        self.text: TextCheck | None = None
        self.pieces: deque[bytes] = deque()
        self.is_complete = False
        self.result: LargeBody | None = None
        self.wake = asyncio.Event()
        self.task: Timer | None = None  # that writes it

    @property
    def is_done(self) -> bool:
        """What is to become of it is known, and can be carried out in its turn."""
        return self.result is not None or (self.is_complete and self.writer is None)


@final
class LargeIn:
    """See the module.

    Args:
        now_us: microseconds since the epoch.
        spawn: makes a coroutine and runs it as a task that somebody looks after.
        pause: called with True when the socket is not to be read, with False when it is again.
        failed: called when the connection has to end, from a task.
        go_on: called when all is published and packets can be read again, from a task.
    """

    def __init__(
        self,
        bodies: LargeBodies,
        codec: Codec,
        publisher: Publisher,
        *,
        now_us: Callable[[], int],
        spawn: Callable[[Callable[[], Coroutine[None, None, None]]], Timer],
        pause: Callable[[bool], None],
        failed: Callable[[GatewayError], None],
        go_on: Callable[[], None],
    ) -> None:
        self._bodies = bodies
        self._codec = codec
        self._publisher = publisher
        self._now_us = now_us
        self._spawn = spawn
        self._pause = pause
        self._failed = failed
        self._go_on = go_on
        self._queue: deque[_Body] = deque()
        self._coming: _Body | None = None  # the last of the queue, when it is not complete
        self._held: LargePublish | None = None  # has to wait for one of the queue
        self._waiting_bytes = 0
        self._is_full = False
        self._is_cut = False

    @property
    def is_busy(self) -> bool:
        """Messages are not published yet, so other packets have to wait."""
        return bool(self._queue)

    def begin(self, packet: LargePublish) -> None:
        """A large body follows. Raises: GatewayError, when the connection has to end for it."""
        try:
            coming = self._publisher.begin_large(packet.head)
            body = _Body(coming)
            if coming.is_wanted:
                body.writer = self._create(coming, packet.size)
        except GatewayError as error:
            if not self._queue:
                raise
            self._queue.append(_Body(None, error))  # when it is its turn
            return
        self._queue.append(body)
        self._coming = body
        writer = body.writer
        if writer is not None:
            body.text = self._publisher.text_check(packet.head)
            body.task = self._spawn(lambda: self._write(body, writer))

    def receive(self) -> bool:
        """Take from the codec what belongs to large messages.

        Returns: True when the next packet may be read: nothing is coming and all is published.
        Raises: GatewayError, when the connection has to end.
        """
        queue, codec = self._queue, self._codec
        while queue or self._held is not None:
            body = self._coming
            if body is not None:
                self._take_body(body)
                if not body.is_complete:
                    break
                self._coming = None
                body.wake.set()
                self._end_done()
                continue
            packet, self._held = self._held, None
            if packet is None and len(queue) < BODIES_MAX and queue[-1].fatal is None:
                packet = codec.next_large()
            if packet is None:
                break
            if self._repeats_one(packet.head):
                self._held = packet
                break
            self.begin(packet)
        if self._is_cut:
            self._drop_coming()
        self._adjust()
        return not queue

    def cut(self) -> bool:
        """The client is gone: the body that is coming never will be whole.

        Returns: True when others are, and are still to be published.
        """
        self._is_cut = True
        self._drop_coming()
        return bool(self._queue)

    def abandon(self) -> None:
        """The session ended: what is not published never will be. Idempotent."""
        queue = self._queue
        self._coming = self._held = None
        while queue:
            self._drop(queue.pop())
        self._waiting_bytes = 0

    def _repeats_one(self, packet: Publish) -> bool:
        """It is perhaps the same QoS 2 message as one of the queue, which will be known then."""
        return packet.qos == 2 and any(
            body.coming is not None and body.coming.packet.packet_id == packet.packet_id
            for body in self._queue
        )

    # ---------------------------------------------------------------------------------- bodies

    def _create(self, coming: Coming, size: int) -> LargeWriter | None:
        try:
            return self._bodies.create(size)
        except GatewayError as error:
            self._publisher.refuse_large(coming, error)
            return None

    def _take_body(self, body: _Body) -> None:
        """Raises: GatewayError."""
        codec = self._codec
        while data := codec.take_body():
            is_last = not codec.body_left
            if body.text is not None and not body.text.accepts(data, is_last=is_last):
                problem = "the payload is not UTF-8"
                self._refuse(body, RefusedError(ReasonCode.PAYLOAD_FORMAT_INVALID, problem))
            if body.writer is not None:
                body.pieces.append(data)
                self._waiting_bytes += len(data)
        body.wake.set()
        body.is_complete = not codec.body_left

    def _refuse(self, body: _Body, error: GatewayError) -> None:
        """The body is not kept; what still comes of it is not either. Raises: GatewayError."""
        assert body.coming is not None, "a body has a header"
        self._drop(body)
        self._publisher.refuse_large(body.coming, error)

    def _drop_coming(self) -> None:
        if self._coming is not None:
            self._coming = None
            self._drop(self._queue.pop())

    def _drop(self, body: _Body) -> None:
        """Forget what there is of a body."""
        task, body.task = body.task, None
        writer, body.writer = body.writer, None
        body.text = body.result = None
        self._waiting_bytes -= sum(map(len, body.pieces))
        body.pieces.clear()
        if task is not None:
            task.cancel()
        if writer is not None:
            writer.abandon()

    async def _write(self, body: _Body, writer: LargeWriter) -> None:
        """Cancelled when the body is dropped."""
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
                await writer.write(*taken)
            body.result = await writer.finish(*last)
        except GatewayError as error:
            body.task = None
            self._after_failure(body, error)
            return
        except BaseException:
            if body.writer is writer:  # not dropped: a bug, or the front-end stops
                body.task = None
                self.abandon()
            raise
        body.task = None
        self._proceed()

    def _take(self, pieces: deque[bytes]) -> list[bytes]:
        taken = [pieces.popleft()]
        size = len(taken[0])
        while pieces and size + len(pieces[0]) <= _WRITE_BYTES_MAX:
            size += len(pieces[0])
            taken.append(pieces.popleft())
        self._waiting_bytes -= size
        self._adjust()
        return taken if len(taken) <= _PIECES_MAX else [b"".join(taken)]

    def _after_failure(self, body: _Body, error: GatewayError) -> None:
        try:
            self._refuse(body, error)
        except GatewayError as fatal:
            self._failed(fatal)
        else:
            self._proceed()

    # ---------------------------------------------------------------------------------- the order

    def _proceed(self) -> None:
        """Publish what can be, and read on; from a task."""
        try:
            self._end_done()
            is_over = self.receive()
        except GatewayError as error:
            self._failed(error)
            return
        if is_over:
            self._go_on()

    def _end_done(self) -> None:
        """Publish what is done, in the order in which it came. Raises: GatewayError."""
        queue = self._queue
        while queue and (queue[0].is_done or queue[0].fatal is not None):
            body = queue.popleft()
            if body.fatal is not None:
                raise body.fatal
            assert body.coming is not None, "a body has a header"
            self._publisher.end_large(body.coming, body.result, self._now_us())

    def _adjust(self) -> None:
        if self._is_full:
            self._is_full = self._waiting_bytes > LOW_BYTES
        else:
            self._is_full = self._waiting_bytes > HIGH_BYTES
        is_held = bool(self._queue) and self._coming is None and not self._codec.is_drained
        self._pause(self._is_full or is_held)
