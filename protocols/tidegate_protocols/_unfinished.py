"""A frame or packet that has begun and does not end: counted, and given a time in which it must move.

A body that is streamed is not counted, because it is not kept in memory; it must move, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from tidegate.spi import FlowControlError, GatewayError, format_duration, format_size
from tidegate_protocols._pace import Pace, Timer
from tidegate_protocols.transport import nobody

#: Fewer bytes of a frame are not worth a timer: what every connection may have waiting anyway. The broker
#: is told each time that it is so many more.
STEP_BYTES: Final = 64 * 1024

#: So much more of it must have come each time that ``frame_timeout`` is over: 17 KiB/s by default.
PROGRESS_BYTES: Final = 1024 * 1024


@final
class UnfinishedInput:
    """Owned by one session.

    Args:
        tell: told how many bytes are held of it. May raise FlowControlError.
        pace: with ``frame_timeout``; see ``PROGRESS_BYTES``.
        refuse: called when it is too slow.
        measure: how many bytes wait now: what came whole may have been waiting for its turn only.

    Attributes: size: bytes told.
    """

    __slots__ = (
        "_least",
        "_measure",
        "_pace",
        "_refuse",
        "_tell",
        "_timer",
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
        self._tell = tell
        self._pace = pace
        self._refuse = refuse
        self._measure = measure
        self._least = 0
        self._timer: Timer | None = None

    def waits(self, size: int) -> None:
        """After a read: *size* bytes have come of a frame whose end has not. Call it when that is at
        least ``STEP_BYTES``, and as long as :attr:`size` is not 0.

        Raises: FlowControlError: it is more than may be held.
        """
        if size < self.size:  # it has ended
            self.stop()
            self._put(0)
        if size - self.size < STEP_BYTES:
            return
        self._put(size)
        if self._timer is None and self._pace.timeout_s:
            self._begin()

    def stop(self) -> None:
        """Nothing waits any more, or nobody for it. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _put(self, size: int) -> None:
        self._tell(size)
        self.size = size

    def _begin(self) -> None:
        self._least = self.size + PROGRESS_BYTES
        self._timer = self._pace.call_later(self._pace.timeout_s, self._check)

    def _check(self) -> None:
        self._timer = None
        size = self._measure()
        if size < STEP_BYTES:
            self._put(0)
            return
        if self._pace.is_paused() or size < self.size or size >= self._least:
            self._put(min(size, self.size))
            self._begin()
            return
        self._refuse(
            FlowControlError(
                f"of a frame {format_size(self.size)} have come, and less than"
                f" {format_size(PROGRESS_BYTES)} of it in {format_duration(self._pace.timeout_s)}"
                " (frame_timeout)"
            )
        )


@final
class IdleBodies:
    """Ends a connection whose streamed body has begun and does not come. Owned by one session.

    Args: pace: with ``body_timeout``; refuse: called when nothing has come for ``pace.timeout_s``; nothing is watched then.
    """

    __slots__ = ("_has_moved", "_pace", "_refuse", "_timer")

    def __init__(self, pace: Pace, refuse: Callable[[GatewayError], None]) -> None:
        self._pace = pace
        self._refuse = refuse
        self._timer: Timer | None = None
        self._has_moved = False

    def moves(self) -> None:
        """A body has begun, or something of it has come."""
        self._has_moved = True
        if self._timer is None and self._pace.timeout_s:
            self._begin()

    def stop(self) -> None:
        """None is on its way any more. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def end(self) -> None:
        """None ever will be: nobody is called any more."""
        self.stop()
        self._refuse = nobody

    def _begin(self) -> None:
        self._has_moved = False
        self._timer = self._pace.call_later(self._pace.timeout_s, self._check)

    def _check(self) -> None:
        self._timer = None
        if self._has_moved or self._pace.is_paused():
            self._begin()
            return
        self._refuse(
            FlowControlError(
                "of a large message nothing has come for"
                f" {format_duration(self._pace.timeout_s)} (body_timeout)"
            )
        )
