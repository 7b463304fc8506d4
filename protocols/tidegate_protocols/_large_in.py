"""Streams large bodies of one connection to the store as they arrive, in either protocol.

While a body arrives nothing else of the connection can: everything else comes after it in the stream.
Once it is complete, the next body may arrive while this one is synced. Any other frame or packet waits
until all messages before it are published, so the client's order is kept. So does the end of the
connection, or of readable input: what arrived completely before it counts, as with small messages.
"""

from __future__ import annotations

import abc
import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Final, Generic, Protocol, TypeVar

from tidegate.spi import GatewayError, LargeBodies, LargeBody, LargeWriter
from tidegate_protocols._pace import Pace
from tidegate_protocols._unfinished import IdleBodies

#: Received bytes that may wait for the disk before the socket is paused, and the level at which
#: reading resumes.
HIGH_BYTES: Final = 2 << 20
LOW_BYTES: Final = 1 << 19
#: Bodies of one connection that are being written or synced at a time.
BODIES_MAX: Final = 4
#: Most bytes handed to the store at a time.
_WRITE_BYTES_MAX: Final = 1 << 20
#: Most pieces handed over as they are; more and smaller ones are joined.
_PIECES_MAX: Final = 16


class Task(Protocol):
    """Something that can be cancelled."""

    def cancel(self) -> object: ...


class BodySource(Protocol):
    """A decoder that has returned a :class:`LargeEvent`."""

    def take_body(self) -> bytes:
        """The received bytes of its body; b"": none now. Raises: PeerProtocolError."""
        ...

    def end_body(self) -> bool:
        """Whether all of it was taken, and its end has arrived. Raises: PeerProtocolError."""
        ...


class LargeEvent(Protocol):
    """What a decoder returns when a large body follows."""

    @property
    def head(self) -> object: ...

    @property
    def size(self) -> int | None:
        """Size of the body in bytes; None: unknown until its end."""
        ...


EventT = TypeVar("EventT")
StreamedT = TypeVar("StreamedT", bound=LargeEvent)
HeadT = TypeVar("HeadT")


class _Body(Generic[HeadT]):
    """One body in transfer. writer: None when it is not kept."""

    __slots__ = ("head", "is_complete", "pieces", "result", "task", "wake", "writer")

    def __init__(self, head: HeadT) -> None:
        self.head = head
        self.writer: LargeWriter | None = None
        self.pieces: deque[bytes] = deque()
        self.is_complete = False
        self.result: LargeBody | None = None
        self.wake = asyncio.Event()
        self.task: Task | None = None  # the task that writes it

    @property
    def is_done(self) -> bool:
        """Whether its outcome is known and can be carried out in its turn."""
        return self.result is not None or (self.is_complete and self.writer is None)


class LargeIn(abc.ABC, Generic[EventT, StreamedT, HeadT]):
    """See the module. Type parameters: what the decoder returns, what it returns when a large body follows,
    and what is kept of that until the body is here.

    Args:
        spawn: runs a coroutine as a task.
        adjust: called when :attr:`wants_pause` changed.
        failed: called once when the connection has to end, in its turn, with the head that caused
            it, if any.
        go_on: called when everything is published and :attr:`held`, and what follows, can be handled.
        crashed: called for unexpected errors.
        pace: how long a body may stall.

    Attributes: held: an event that waits until everything before it is published.
    """

    def __init__(
        self,
        bodies: LargeBodies,
        source: BodySource,
        *,
        spawn: Callable[[Coroutine[None, None, None]], Task],
        adjust: Callable[[], None],
        failed: Callable[[GatewayError, object], None],
        go_on: Callable[[], None],
        crashed: Callable[[Exception], None],
        pace: Pace,
    ) -> None:
        self._idle = IdleBodies(pace, self._fail_coming)
        self._bodies = bodies
        self._source = source
        self._spawn = spawn
        self._adjust = adjust
        self._failed = failed
        self._go_on = go_on
        self._crashed = crashed
        self._queue: deque[_Body[HeadT]] = deque()
        self._coming: _Body[HeadT] | None = None  # the last of the queue while incomplete
        self._error: tuple[GatewayError, object] | None = None  # takes effect after the whole queue
        self._waiting_bytes = 0
        self._is_full = self._is_paused = self._is_cut = self._is_over = False
        self.held: EventT | None = None

    # ------------------------------------------------------------------ for each protocol to define

    @abc.abstractmethod
    def _next(self) -> EventT | None:
        """The decoder's next event, once complete. Raises: PeerProtocolError."""

    @abc.abstractmethod
    def _as_large(self, event: EventT) -> StreamedT | None:
        """*event*, if its large body may be received before the others are published."""

    @abc.abstractmethod
    def _admit(self, event: StreamedT) -> HeadT:
        """Check a head. Raises: GatewayError if the connection has to end for it."""

    @abc.abstractmethod
    def _publish(self, head: HeadT, body: LargeBody | None) -> None:
        """Publish in the client's order; body: None when it was not kept. Raises: GatewayError."""

    def _is_wanted(self, head: HeadT) -> bool:
        """Whether its body is to be kept."""
        return True

    def _check(self, head: HeadT, data: bytes) -> None:
        """Check a piece of a kept body. Raises: GatewayError."""

    def _refuse(self, head: HeadT, error: GatewayError) -> None:
        """Refuse the message. Raises: *error*, if the connection has to end for it."""
        raise error

    # ----------------------------------------------------------------------------- for the session

    @property
    def is_busy(self) -> bool:
        """Whether other events must wait because messages are not published yet."""
        return bool(self._queue)

    @property
    def wants_pause(self) -> bool:
        """Whether the socket should not be read."""
        return self._is_full or self.held is not None or self._error is not None

    def begin(self, event: StreamedT) -> None:
        """Begin a large body. Raises: GatewayError if the connection has to end for it."""
        head = self._admit(event)
        body = _Body(head)
        if self._is_wanted(head):
            try:
                body.writer = self._bodies.create(event.size)
            except GatewayError as error:
                self._refuse(head, error)
        self._queue.append(body)
        self._coming = body
        self._idle.moves()
        if body.writer is not None:
            body.task = self._spawn(self._write(body, body.writer))

    def receive(self) -> bool:
        """Take from the decoder what belongs to large messages.

        Returns: True when :attr:`held`, and what follows, can be handled: everything is published.
        """
        queue = self._queue
        while queue and self._error is None:
            if self._coming is not None:
                if not self._take_body(self._coming):
                    break
            elif not self._begin_next():
                break
            self._end_done()
        if self._is_cut:
            self._drop_coming()
        self._adjust_reading()
        return not queue and not self._is_over

    def take_held(self) -> EventT | None:
        """Return the held event, which may be handled now."""
        held, self.held = self.held, None
        self._adjust_reading()
        return held

    def fail(self, error: GatewayError, blamed: object = None) -> None:
        """End the connection once what came before is published; ignore anything after."""
        self.held = None
        self._error = error, blamed
        self._adjust_reading()
        self._end_done()

    def cut(self) -> bool:
        """The client is gone: an incoming body will never be complete. Idempotent.

        Returns: True when others are complete and still to be published.
        """
        self._is_cut = True
        self._drop_coming()
        return bool(self._queue)

    def abandon(self) -> None:
        """The session has ended: drop what is not published. Idempotent."""
        self._is_over = True
        self._idle.end()
        self.held = self._error = None
        if self._queue:
            self._drop_from(self._queue[0])

    # -------------------------------------------------------------------------------------- bodies

    def _begin_next(self) -> bool:
        """Start on the next body, if nothing precedes it. Returns: whether one is arriving now."""
        blamed: object = None
        try:
            event = self.held if self.held is not None else self._next()
            self.held = event
            if event is None or len(self._queue) >= BODIES_MAX:
                return False
            large = self._as_large(event)
            if large is None:
                return False
            self.held, blamed = None, large.head
            self.begin(large)
        except GatewayError as error:
            self.fail(error, blamed)
            return False
        return True

    def _take_body(self, body: _Body[HeadT]) -> bool:
        """Take the received part of the incoming body. Returns: whether that is all of it."""
        source = self._source
        try:
            while data := source.take_body():
                self._idle.moves()
                if body.writer is None:
                    continue
                try:
                    self._check(body.head, data)
                except GatewayError as error:
                    self._give_up(body, error)
                else:
                    body.pieces.append(data)
                    self._waiting_bytes += len(data)
            is_complete = source.end_body()
        except GatewayError as error:
            self._drop_from(body)
            self.fail(error, body.head)
            return False
        if is_complete and self._coming is body:
            body.is_complete = True
            self._coming = None
            self._idle.stop()
        body.wake.set()
        return body.is_complete

    def _give_up(self, body: _Body[HeadT], error: GatewayError) -> None:
        """Drop a body that cannot be kept; skip the rest of it if the connection continues."""
        self._drop(body)
        try:
            self._refuse(body.head, error)
        except GatewayError as fatal:
            self._drop_from(body)
            self.fail(fatal, body.head)

    def _fail_coming(self, error: GatewayError) -> None:
        """The body has stalled: end the connection after whatever arrived completely before it."""
        body = self._coming
        if body is not None:
            self._drop_from(body)
            self.fail(error, body.head)

    def _drop_coming(self) -> None:
        if self._coming is not None:
            self._drop_from(self._coming)

    def _drop_from(self, first: _Body[HeadT]) -> None:
        """Forget *first* and all bodies after it."""
        self._idle.stop()
        self._coming = body = None  # it is the last one
        while body is not first:
            body = self._queue.pop()
            self._drop(body)

    def _drop(self, body: _Body[HeadT]) -> None:
        """Discard a partial body."""
        task, body.task = body.task, None
        writer, body.writer = body.writer, None
        body.result = None
        self._waiting_bytes -= sum(map(len, body.pieces))
        body.pieces.clear()
        if task is not None:
            task.cancel()
        if writer is not None:
            writer.abandon()

    async def _write(self, body: _Body[HeadT], writer: LargeWriter) -> None:
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
                    await writer.write(*taken)
                body.result = await writer.finish(*last)
                body.task = None
            except GatewayError as error:
                body.task = None
                self._give_up(body, error)
            self._proceed()
        except (
            Exception
        ) as error:  # nobody awaits this task; without this the connection would wait for ever
            body.task = None
            self.abandon()
            self._crashed(error)
        except asyncio.CancelledError:
            if body.writer is writer:  # not dropped: the front-end stops
                body.task = None
                self.abandon()
            raise

    def _take(self, pieces: deque[bytes]) -> list[bytes]:
        taken = [pieces.popleft()]
        size = len(taken[0])
        while pieces and size + len(pieces[0]) <= _WRITE_BYTES_MAX:
            size += len(pieces[0])
            taken.append(pieces.popleft())
        self._waiting_bytes -= size
        self._adjust_reading()
        return taken if len(taken) <= _PIECES_MAX else [b"".join(taken)]

    # ----------------------------------------------------------------------------------- the order

    def _proceed(self) -> None:
        """Publish what is ready, and read on."""
        self._end_done()
        if self.receive():
            self._go_on()

    def _end_done(self) -> None:
        """Publish what is complete, in order of arrival; then handle the end of the connection."""
        queue = self._queue
        while queue and queue[0].is_done:
            body = queue.popleft()
            try:
                self._publish(body.head, body.result)
            except GatewayError as error:
                if queue:
                    self._drop_from(queue[0])
                self._error = error, body.head
        if self._error is not None and not queue:
            self._end(*self._error)

    def _end(self, error: GatewayError, blamed: object) -> None:
        # Outside the except block: an error held by its own frames is collected much later, and with it
        # whatever they hold: a body and its file.
        self.held = self._error = None
        self._is_over = True
        self._failed(error, blamed)

    def _adjust_reading(self) -> None:
        self._is_full = self._waiting_bytes > (LOW_BYTES if self._is_full else HIGH_BYTES)
        if self.wants_pause is not self._is_paused:
            self._is_paused = not self._is_paused
            self._adjust()
