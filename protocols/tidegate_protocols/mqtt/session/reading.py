"""Whether a client is read now, and how long it has been silent.

The two belong together: a client that is not read cannot be heard, so its silence means nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import final

from tidegate_protocols._pace import Timer
from tidegate_protocols._unread import UnreadOutput
from tidegate_protocols.mqtt.session.context import Runtime
from tidegate_protocols.transport import Link


class Pause(enum.IntFlag):
    """Why the socket is not read; any of them pauses it."""

    AUTHENTICATING = 1
    BY_BROKER = 2
    UNREAD_REPLIES = 4
    BEHIND_LARGE = 8  # the disk is behind, or what comes next has to wait for it
    OTHERS_TURN = 16  # it has used its slice of time, and not everything it sent is handled yet


@final
class Reading:
    """Owned by one session.

    Args: unread_max, unread_timeout_s: see :class:`UnreadOutput`.

    Attributes:
        unread: what the client was sent and does not read.
        last_heard: when it last gave a sign of life, monotonic seconds.
        pauses: how often it was not read.
    """

    __slots__ = (
        "_link",
        "_pauses",
        "_runtime",
        "_silence_s",
        "_silent",
        "_timer",
        "last_heard",
        "pauses",
        "unread",
    )

    def __init__(
        self, link: Link, runtime: Runtime, unread_max: int, unread_timeout_s: float
    ) -> None:
        self._link = link
        self._runtime = runtime
        self.pauses = 0
        self._pauses = 0  # of Pause; a plain integer, which is tested without a call
        self.unread = UnreadOutput(
            link,
            unread_max,
            unread_timeout_s,
            runtime.call_later,
            lambda: self.pause(Pause.UNREAD_REPLIES),
        )
        self._silence_s = 0.0
        self._silent: Callable[[], None] | None = None
        self._timer: Timer | None = None
        self.last_heard = runtime.time()

    @property
    def is_paused(self) -> bool:
        """The client is not read."""
        return bool(self._pauses)

    def pause(self, reason: Pause) -> None:
        """Read no more."""
        if not self._pauses:
            self.pauses += 1
            self._link.pause_reading()
        self._pauses |= int(reason)

    def resume(self, reason: Pause) -> None:
        """*reason* is gone; read on unless there is another one."""
        if self._pauses & reason:
            self._pauses &= ~int(reason)
            if not self._pauses:
                self.last_heard = self._runtime.time()  # it could not be heard until now
                self._link.resume_reading()

    # ------------------------------------------------------------------------- what is written

    def writing_resumed(self) -> None:
        """The client has caught up."""
        self.unread.resumed()
        self.resume(Pause.UNREAD_REPLIES)

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
            self.last_heard = now  # we are not listening
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
        self.unread.stop()
