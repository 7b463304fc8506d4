"""Heart-beats: negotiation and the two timers. STOMP 1.2 "Heart-beating".

Any byte counts, in both directions. A peer is given :attr:`grace_factor` times its interval, because
it promises when it *sends*, while networks and busy loops cause delays; strict peers are the most
common cause of needless reconnects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, final

from tidegate.spi import PeerProtocolError

#: Most digits of an interval in milliseconds (11 days); no client needs more.
_DIGITS_MAX: Final = 9

#: Our own timer runs twice per interval and writes when nothing was written since the last run, so
#: that at most one interval lies between two writes.
_RUNS_PER_INTERVAL: Final = 2

#: After a busy spell of the loop, timers run before sockets are read: the peer's data may be
#: waiting in the kernel. So it is checked once more after this many seconds.
_SECOND_LOOK_S: Final = 0.1


def parse(header: str) -> tuple[int, int]:
    """Read a ``heart-beat`` header: milliseconds the sender can send, and wants to receive.

    Raises: PeerProtocolError.
    """
    parts = [part.strip(" ") for part in header.split(",")]
    if len(parts) != 2 or not all(
        part.isascii() and part.isdigit() and len(part) <= _DIGITS_MAX for part in parts
    ):
        raise PeerProtocolError(
            f"heart-beat:{header[:40]} is not valid; write two numbers of milliseconds, "
            "such as 10000,10000"
        )
    return int(parts[0]), int(parts[1])


def negotiate(client: tuple[int, int], server: tuple[int, int]) -> tuple[int, int]:
    """Milliseconds between our heart-beats and between the client's; 0: none.

    *client* and *server*: what each announced: (can send every, wants to receive every).
    """
    send = max(server[0], client[1]) if server[0] and client[1] else 0
    receive = max(client[0], server[1]) if client[0] and server[1] else 0
    return send, receive


@final
class HeartBeat:
    """The timers of one connection.

    Args:
        send_s, receive_s: negotiated intervals in seconds; 0: none.
        grace_factor: the peer is lost after ``receive_s * grace_factor`` without a byte.
        write: called when a heart-beat is due.
        expired: called once, with the seconds since the peer was last heard.
    """

    __slots__ = (
        "_expired",
        "_limit_s",
        "_loop",
        "_pause_s",
        "_receive_timer",
        "_second_look",
        "_send_timer",
        "_write",
        "heard_at",
        "is_reading",
        "is_silent",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        send_s: float,
        receive_s: float,
        grace_factor: float,
        write: Callable[[], None],
        expired: Callable[[float], None],
    ) -> None:
        self._loop = loop
        self._pause_s = send_s / _RUNS_PER_INTERVAL
        self._limit_s = receive_s * grace_factor
        self._write = write
        self._expired = expired
        self._second_look = False
        #: The owner clears it whenever it writes.
        self.is_silent = True
        #: The owner sets it, on the loop's clock, whenever it reads.
        self.heard_at = loop.time()
        #: The owner clears it while it does not read: the peer cannot be heard then.
        self.is_reading = True
        self._send_timer = loop.call_later(self._pause_s, self._send) if send_s else None
        self._receive_timer = loop.call_later(self._limit_s, self._look) if receive_s else None

    def stop(self) -> None:
        """Cancel the timers. Idempotent."""
        for timer in (self._send_timer, self._receive_timer):
            if timer is not None:
                timer.cancel()
        self._send_timer = self._receive_timer = None

    def _send(self) -> None:
        self._send_timer = self._loop.call_later(self._pause_s, self._send)
        if self.is_silent:
            self._write()
        self.is_silent = True

    def _look(self) -> None:
        now = self._loop.time()
        if not self.is_reading:
            self.heard_at = now
        silent_s = now - self.heard_at
        if silent_s < self._limit_s:
            self._second_look = False
            self._receive_timer = self._loop.call_later(self._limit_s - silent_s, self._look)
        elif not self._second_look:
            self._second_look = True
            self._receive_timer = self._loop.call_later(_SECOND_LOOK_S, self._look)
        else:
            self._receive_timer = None
            self._expired(silent_s)
