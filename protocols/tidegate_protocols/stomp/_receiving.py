"""What a connected client sends, from its bytes to the client's handling of each frame.

In small steps (:class:`~tidegate_protocols.transport.Share`), in the client's order: a step ends after
a number of frames, and earlier when they are costly. What arrived completely before the link was lost
is handled as if the link still existed, including a large body (:mod:`tidegate_protocols._large_in`).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Mapping
from typing import Final, Protocol, final

from tidegate.spi import GatewayError, LargeBodies, LargeBody
from tidegate_protocols._large_in import LargeIn
from tidegate_protocols._pace import Pace
from tidegate_protocols.stomp._client import ACTIONS, Client
from tidegate_protocols.stomp._wire import Wire
from tidegate_protocols.stomp.codec.decoder import Decoder
from tidegate_protocols.stomp.codec.frames import ACK_RUN, AckRun, Frame, LargeSend
from tidegate_protocols.transport import STEP_PACKETS, Share

logger = logging.getLogger("tidegate.stomp")

#: Frames that can take a millisecond: each counts as all the frames of a step.
_COSTS: Final[Mapping[str, int]] = dict.fromkeys(
    ("SUBSCRIBE", "UNSUBSCRIBE", "COMMIT", "ABORT", ACK_RUN), STEP_PACKETS // 2
)


@final
class LargeSends(LargeIn[Frame | AckRun | LargeSend, LargeSend, Frame]):
    """STOMP can answer a faulty frame only by ending the connection.

    Args: check: checks a head; publish: called when its body is in the store. Both raise
    GatewayError.
    """

    def __init__(
        self,
        bodies: LargeBodies,
        decoder: Decoder,
        *,
        check: Callable[[Frame], None],
        publish: Callable[[Frame, LargeBody], None],
        adjust: Callable[[], None],
        failed: Callable[[GatewayError, object], None],
        go_on: Callable[[], None],
        crashed: Callable[[Exception], None],
        pace: Pace,
    ) -> None:
        super().__init__(
            bodies,
            decoder,
            spawn=asyncio.get_running_loop().create_task,
            adjust=adjust,
            failed=failed,
            go_on=go_on,
            crashed=crashed,
            pace=pace,
        )
        self._decoder = decoder
        self._check_head = check
        self._send = publish

    def _next(self) -> Frame | AckRun | LargeSend | None:
        return next(self._decoder.events(), None)

    def _as_large(self, event: Frame | AckRun | LargeSend) -> LargeSend | None:
        return event if isinstance(event, LargeSend) else None

    def _admit(self, event: LargeSend) -> Frame:
        self._check_head(event.head)
        return event.head

    def _publish(self, head: Frame, body: LargeBody | None) -> None:
        assert body is not None, "a body that is not kept ends the connection"
        self._send(head, body)


class Session(Protocol):
    """What receiving needs of the session."""

    @property
    def is_connected(self) -> bool: ...
    @property
    def is_closed(self) -> bool: ...
    def step_by(self, frame: Frame | AckRun | LargeSend) -> None:
        """Handle a frame that changes the state, or comes at the wrong moment. Raises: GatewayError."""
        ...

    def refuse(self, error: GatewayError, frame: object) -> None:
        """ERROR, then close."""
        ...

    def adjust_reading(self) -> None:
        """:attr:`Receiving.wants_pause` may have changed."""
        ...

    def lose(self) -> None:
        """The link is gone, and everything that arrived completely is handled."""
        ...


@final
class Receiving:
    """Owned by one session, from CONNECTED to the end.

    Args: decoder: has the bytes; bodies: the store for large ones; None: there is none; pace: theirs.
    Attributes: is_lost: the link is gone, and there is still something to handle.
    """

    __slots__ = (
        "_bodies",
        "_client",
        "_decoder",
        "_large_in",
        "_pace",
        "_session",
        "_share",
        "_wire",
        "is_lost",
    )

    def __init__(
        self,
        session: Session,
        client: Client,
        decoder: Decoder,
        wire: Wire,
        bodies: LargeBodies | None,
        pace: Pace,
    ) -> None:
        self._pace = pace
        self._session = session
        self._client = client
        self._decoder = decoder
        self._wire = wire
        self._bodies = bodies
        self._share = Share(wire.link, self._work, self._turned)
        self._large_in: LargeSends | None = None  # since the first large SEND
        self.is_lost = False

    def hold(self, value: bool) -> None:
        """Make input already read wait, too, from the next frame on; or let it go on.

        The session also calls this when it has ended: one flag checked for each frame serves both.
        """
        if value:
            self._share.hold()
        else:
            self._share.release()

    @property
    def wants_pause(self) -> bool:
        """The socket should not be read."""
        return self._share.is_waiting or (self._large_in is not None and self._large_in.wants_pause)

    @property
    def is_behind(self) -> bool:
        """Large messages have arrived completely but are not published yet."""
        return self._large_in is not None and self._large_in.is_busy

    def run(self) -> None:
        """The decoder has new bytes."""
        self._share.run()

    def lost(self) -> bool:
        """The link is gone. Returns: True when the session must wait: it is told later."""
        large = self._large_in
        is_large = large is not None and large.cut()
        self.is_lost = is_large or self._share.is_waiting or self._share.is_held
        return self.is_lost

    def fail_behind(self, error: GatewayError) -> bool:
        """End the connection once everything that arrived completely is published. Returns: False: it is."""
        large = self._large_in
        if large is None or not large.cut():
            return False
        large.fail(error)
        return True

    def stop(self) -> None:
        """The session ended: nothing more is handled."""
        self._share.stop()
        large, self._large_in = self._large_in, None
        if large is not None:
            large.abandon()

    # ----------------------------------------------------------------------------------- in steps

    def _turned(self) -> None:
        """The connection has to wait for its turn, or no longer has to."""
        self._session.adjust_reading()
        self._lose_if_done()

    def _work(self, count_max: int) -> bool:
        """The hot loop: handle at most *count_max* frames of the client. Returns: True when there may be more."""
        session, client = self._session, self._client
        if not session.is_connected:
            return False
        client.received_at = time.time_ns() // 1000
        share, touched = self._share, client.touched
        blamed: Frame | AckRun | LargeSend | None = None
        left = count_max
        try:
            events = self._decoder.events()
            large = self._large_in
            if large is not None:
                if not large.receive():
                    return False
                held = large.take_held()
                if held is not None:
                    events = itertools.chain((held,), events)
            for frame in events:
                command = frame.command
                if touched and command != ACK_RUN and command != "ACK":
                    client.flush_acknowledged()
                action = ACTIONS.get(command)
                blamed = frame
                if action is None:
                    if isinstance(frame, LargeSend):
                        blamed = frame.head
                        self._begin_large(frame)
                        return True
                    session.step_by(frame)
                    if not session.is_connected:  # DISCONNECT
                        return False
                else:
                    action(client, frame)
                blamed = None  # what fails from here on comes after it
                left -= 1 if command == "SEND" else _COSTS.get(command, 1)
                if share.is_held:
                    if not session.is_connected:  # the broker ended the connection meanwhile
                        return False
                    left = 0
                if left <= 0:
                    break
            if touched:
                client.flush_acknowledged()
        except GatewayError as error:
            with contextlib.suppress(GatewayError):  # the first problem is the one to report
                client.flush_acknowledged()  # what came before the bad frame counts
            session.refuse(error, blamed)
            return False
        return left <= 0  # even when that was all: the decoder releases it at the next look

    # ------------------------------------------------------------------------------- large bodies

    def _begin_large(self, event: LargeSend) -> None:
        """A SEND whose body is still to come. Raises: GatewayError."""
        if self._large_in is None:
            assert self._bodies is not None, "the decoder was told of a store that streams"
            self._large_in = LargeSends(
                self._bodies,
                self._decoder,
                check=self._client.check_large,
                publish=self._publish_large,
                adjust=self._session.adjust_reading,
                failed=self._session.refuse,
                go_on=self._go_on_behind_large,
                crashed=self._large_crashed,
                pace=self._pace,
            )
        self._large_in.begin(event)

    def _publish_large(self, frame: Frame, body: LargeBody) -> None:
        if not self._session.is_connected:
            return  # nothing refers to the body, so it is removed
        self._client.received_at = time.time_ns() // 1000
        self._client.send(frame, body)

    def _go_on_behind_large(self) -> None:
        """Everything is published that the next frame had to wait for."""
        if self._session.is_connected:
            self._share.run()
            self._session.adjust_reading()
            self._lose_if_done()

    def _lose_if_done(self) -> None:
        is_busy = self._share.is_waiting or self._share.is_held or self.is_behind
        if (
            self.is_lost and not is_busy and not self._session.is_closed
        ):  # otherwise the session reports it itself
            self._session.lose()

    def _large_crashed(self, error: Exception) -> None:
        link = self._wire.link
        logger.error("a large message failed peer=%s", link.peer, exc_info=error)
        link.abort()
        if self.is_lost:  # nobody else will report it
            asyncio.get_running_loop().call_soon(self._session.lose)
