"""Whether a client is read now, and how long it has been silent.

The two belong together: a client that is not read cannot be heard, so its silence says nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Final, final

from tidegate_protocols.mqtt.session.context import Runtime, Timer
from tidegate_protocols.transport import Link

#: Answers that may pile up for a client that sends without reading, before it is not read either.
#: Deliveries stop much earlier; the answers to one full socket buffer fit many times.
UNREAD_REPLIES_BYTES_MAX: Final = 1024 * 1024


class Pause(enum.IntFlag):
    """Why the socket is not read; any of them pauses it."""

    AUTHENTICATING = 1
    BY_BROKER = 2
    UNREAD_REPLIES = 4
    BEHIND_LARGE = 8  # the disk is behind, or what comes next has to wait for it
    OTHERS_TURN = 16  # it has had its slice of time, and what it sent is not handled yet


@final
class Reading:
    """Owned by one session.

    Attributes:
        is_writing_paused: the client does not read fast enough.
        last_heard: when it last gave a sign of life, monotonic seconds.
    """

    __slots__ = (
        "_link",
        "_pauses",
        "_runtime",
        "_silence_s",
        "_silent",
        "_timer",
        "_unread_bytes",
        "is_writing_paused",
        "last_heard",
    )

    def __init__(self, link: Link, runtime: Runtime) -> None:
        self._link = link
        self._runtime = runtime
        self._pauses = 0  # of Pause; a plain integer, which is tested without a call
        self._unread_bytes = 0
        self._silence_s = 0.0
        self._silent: Callable[[], None] | None = None
        self._timer: Timer | None = None
        self.is_writing_paused = False
        self.last_heard = runtime.time()

    def pause(self, reason: Pause) -> None:
        """Read no more."""
        if not self._pauses:
            self._link.pause_reading()
        self._pauses |= int(reason)

    def resume(self, reason: Pause) -> None:
        """*reason* is gone; read on when there is no other."""
        if self._pauses & reason:
            self._pauses &= ~int(reason)
            if not self._pauses:
                self.last_heard = self._runtime.time()  # it could not be heard until now
                self._link.resume_reading()

    # ------------------------------------------------------------------------- what is written

    def writing_paused(self) -> None:
        """The client does not read fast enough; see :meth:`wrote`."""
        self.is_writing_paused = True

    def writing_resumed(self) -> None:
        """It has caught up."""
        self.is_writing_paused = False
        self._unread_bytes = 0
        self.resume(Pause.UNREAD_REPLIES)

    def wrote(self, count: int) -> None:
        """*count* bytes were written to a client that does not read fast enough."""
        self._unread_bytes += count
        if self._unread_bytes > UNREAD_REPLIES_BYTES_MAX:
            self.pause(Pause.UNREAD_REPLIES)

    # ------------------------------------------------------------------------------ keep-alive

    def watch(self, silence_s: float, silent: Callable[[], None]) -> None:
        """Call *silent* once when nothing was heard for *silence_s* seconds; 0: never."""
        self.last_heard = self._runtime.time()
        self._silence_s = silence_s
        self._silent = silent
        if silence_s:
            self._timer = self._runtime.call_later(silence_s, self._check)

    def _check(self) -> None:
        """One timer for the whole connection instead of one for each packet."""
        now = self._runtime.time()
        if self._pauses:
            self.last_heard = now  # we do not listen
        rest = self._silence_s - (now - self.last_heard)
        if rest > 0:
            self._timer = self._runtime.call_later(rest, self._check)
        elif self._silent is not None:
            self._silent()

    def stop(self) -> None:
        """Watch no more."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._silent = None
