"""Unfinished frames and packets: counted, and required to keep moving.

A streamed body is not counted, because it is not kept in memory; but it must keep moving too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from tidegate.spi import FlowControlError, GatewayError, format_duration, format_size
from tidegate_protocols._pace import Pace, Timer
from tidegate_protocols.transport import nobody

#: The broker is told each time this much more has arrived. Any connection may have less than this
#: waiting, which is reported only if it stays.
STEP_BYTES: Final = 64 * 1024

#: Bytes that must arrive within each ``frame_timeout``: 17 KiB/s by default.
PROGRESS_BYTES: Final = 1024 * 1024

#: The same below ``STEP_BYTES``: 17 bytes/s by default, which even the slowest line manages.
SMALL_PROGRESS_BYTES: Final = 1024


@final
class UnfinishedInput:
    """Owned by one session.

    One timer runs while anything waits, and is not reset for each frame: when it fires it checks
    whether the same frame is still there. So a frame gets ``frame_timeout``, and up to twice that
    behind other frames of a busy client.

    Args:
        tell: told how many of its bytes are held. May raise FlowControlError.
        pace: with ``frame_timeout``; see ``PROGRESS_BYTES``.
        refuse: called when it is too slow.
        measure: returns the bytes waiting now: a complete frame may just await its turn.

    Attributes:
        size: bytes last reported.
        read: bytes received so far, of all frames; the session counts them.
        least: call :meth:`waits` from this many bytes on.
    """

    __slots__ = (
        "_ended",
        "_had",
        "_look",
        "_measure",
        "_pace",
        "_refuse",
        "_tell",
        "_timer",
        "least",
        "read",
        "size",
    )

    def __init__(
        self,
        tell: Callable[[int], None],
        pace: Pace,
        refuse: Callable[[GatewayError], None],
        measure: Callable[[], int],
    ) -> None:
        self.size = 0
        self.read = 0
        self.least = 1 if pace.timeout_s else STEP_BYTES
        self._tell = tell
        self._pace = pace
        self._refuse = refuse
        self._measure = measure
        self._timer: Timer | None = None
        # When the timer was set: bytes of ended frames and of this one, and the pace's mark.
        self._ended = 0
        self._had = 0
        self._look = 0

    def waits(self, size: int) -> None:
        """After a read: *size* bytes of an unfinished frame are here. Call it when that is at least
        :attr:`least`, and while :attr:`size` is not 0.

        Raises: FlowControlError: more than may be held.
        """
        if size < self.size:  # it has ended
            self.stop()
            self._put(0)
        if size - self.size >= STEP_BYTES:
            self._put(size)
        if size and self._timer is None and self._pace.timeout_s:
            self._begin(size)

    def stop(self) -> None:
        """Nothing is unfinished any more, or the session is over. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self.least = 1

    def _put(self, size: int) -> None:
        if size != self.size:
            self._tell(size)
            self.size = size

    def _begin(self, size: int) -> None:
        self._ended = self.read - size
        self._look = self._pace.look()
        self._had = size
        self._timer = self._pace.call_later(self._pace.timeout_s, self._check)
        self.least = STEP_BYTES

    def _check(self) -> None:
        self._timer = None
        self.least = 1
        size = self._measure()
        try:
            if not self._pace.was_read_since(self._look):
                self._put(min(size, self.size))
            elif self.read - size != self._ended:  # that frame has ended and another begun
                self._put(size if size >= STEP_BYTES else 0)
            else:
                wanted = SMALL_PROGRESS_BYTES if self._had < STEP_BYTES else PROGRESS_BYTES
                if size - self._had < wanted:
                    raise FlowControlError(
                        f"the frame is incomplete: {format_size(size)} have arrived, "
                        f"fewer than {format_size(wanted)} more in "
                        f"{format_duration(self._pace.timeout_s)} (frame_timeout)"
                    )
                self._put(size)
        except GatewayError as error:
            self._refuse(error)
            return
        if size:
            self._begin(size)


@final
class IdleBodies:
    """Ends a connection whose streamed body stalls. Owned by one session.

    Args: pace: with ``body_timeout``; refuse: called when nothing has arrived for
        ``pace.timeout_s``, which ends the watch.
    """

    __slots__ = ("_has_moved", "_look", "_pace", "_refuse", "_timer")

    def __init__(self, pace: Pace, refuse: Callable[[GatewayError], None]) -> None:
        self._pace = pace
        self._refuse = refuse
        self._timer: Timer | None = None
        self._has_moved = False
        self._look = 0

    def moves(self) -> None:
        """A body has begun, or more of it has arrived."""
        self._has_moved = True
        if self._timer is None and self._pace.timeout_s:
            self._begin()

    def stop(self) -> None:
        """No body is arriving any more. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def end(self) -> None:
        """No body will arrive ever again: call nothing any more."""
        self.stop()
        self._refuse = nobody

    def _begin(self) -> None:
        self._has_moved = False
        self._look = self._pace.look()
        self._timer = self._pace.call_later(self._pace.timeout_s, self._check)

    def _check(self) -> None:
        self._timer = None
        if self._has_moved or not self._pace.was_read_since(self._look):
            self._begin()
            return
        self._refuse(
            FlowControlError(
                "nothing more of a large message arrived for "
                f"{format_duration(self._pace.timeout_s)} (body_timeout)"
            )
        )
