"""Counts what a client was sent and has not read; past a limit, its own input is not read either.

Deliveries stop much earlier, as soon as the socket's buffer is full. But answers to the client's
own input go on, and pile up here while it sends without reading.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, final

from tidegate.spi import FlowControlError, format_duration
from tidegate_protocols._pace import Timer
from tidegate_protocols.transport import Link, nobody

logger = logging.getLogger("tidegate.transport")

#: The broker is told each time this many more bytes wait.
_STEP_BYTES: Final = 64 * 1024


@final
class UnreadOutput:
    """Owned by one session.

    Args:
        limit: bytes of answers above which the client is not read (``unread_output_max``).
        timeout_s: a client not read for this long that took no byte of what waits for it is
            disconnected (``unread_output_timeout``); 0: never.
        call_later: the event loop's.
        stop_reading: called when the limit is reached; :meth:`resumed` must undo it.

    Attributes:
        is_paused: the socket takes no more for now.
        tell: told how many bytes wait. May raise FlowControlError, which counts as the limit.
    """

    __slots__ = (
        "_answers",
        "_call_later",
        "_is_over",
        "_limit",
        "_link",
        "_size",
        "_stop_reading",
        "_timeout_s",
        "_timer",
        "_told",
        "_unsent",
        "is_paused",
        "tell",
    )

    def __init__(
        self,
        link: Link,
        limit: int,
        timeout_s: float,
        call_later: Callable[[float, Callable[[], None]], Timer],
        stop_reading: Callable[[], None],
    ) -> None:
        self.is_paused = False
        self.tell: Callable[[int], None] | None = None
        self._link = link
        self._limit = limit
        self._timeout_s = timeout_s
        self._call_later = call_later
        self._stop_reading = stop_reading
        self._answers = 0  # written since the socket was full
        self._size = 0  # including what waited before
        self._told = 0
        self._unsent = 0
        self._is_over = False
        self._timer: Timer | None = None

    def paused(self) -> None:
        """The socket is full."""
        self.is_paused = True
        self._size = self._link.unsent_bytes
        self._report()

    def wrote(self, count: int) -> None:
        """*count* bytes were written while the socket is full."""
        self._answers += count
        self._size += count
        if self._size - self._told >= _STEP_BYTES:
            self._report()
        if self._answers > self._limit:
            self._over()

    def resumed(self) -> None:
        """The client has caught up."""
        self.is_paused = self._is_over = False
        self._answers = self._size = 0
        self._report()
        self.stop()

    def stop(self) -> None:
        """Stop watching: the connection has ended, or caught up. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def forget(self) -> None:
        """The link is gone: report nothing any more."""
        self.stop()
        self.tell = None
        self._stop_reading = nobody

    def _report(self) -> None:
        if self.tell is not None and self._told != self._size:
            self._told = self._size
            try:
                self.tell(self._size)
            except FlowControlError:
                self._over()

    def _over(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._stop_reading()
        if self._timeout_s:
            self._unsent = self._link.unsent_bytes
            self._timer = self._call_later(self._timeout_s, self._check)

    def _check(self) -> None:
        unsent = self._link.unsent_bytes
        if unsent < self._unsent:
            self._unsent = unsent
            self._timer = self._call_later(self._timeout_s, self._check)
            return
        self._timer = None
        logger.warning(
            "connection aborted, client does not read: peer=%s unread_bytes=%d: it "
            "took nothing for %s (unread_output_timeout)",
            self._link.peer,
            unsent,
            format_duration(self._timeout_s),
        )
        self._link.abort()
