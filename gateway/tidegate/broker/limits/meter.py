"""How fast the connections of one principal are read: a token bucket of bytes."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol, final

#: Throttle reason: the principal has sent more than ``quotas.receive_rate`` allows.
RATE: Final = "rate"


class Reader(Protocol):
    """A connection."""

    def throttle(self, reason: object) -> None: ...
    def unthrottle(self, reason: object) -> None: ...


@final
class Meter:
    """Lets *rate* bytes a second through, and a second's worth at once.

    What was read is never refused: a connection that brought more than was left is not read until
    that is made up for. All connections of the principal share it; each waits for its own excess.
    """

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._left = float(rate)
        self._at = asyncio.get_running_loop().time()
        self._waiting: dict[Reader, None] = {}

    @property
    def is_full(self) -> bool:
        """It is as good as new: there is nothing to make up for."""
        missing = self._rate - self._left
        return missing <= (asyncio.get_running_loop().time() - self._at) * self._rate

    def received(self, reader: Reader, count: int) -> None:
        """*count* bytes of *reader* were read."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._left = min(self._rate, self._left + (now - self._at) * self._rate) - count
        self._at = now
        if self._left < 0 and reader not in self._waiting:
            if not self._waiting:
                loop.call_later(-self._left / self._rate, self._go_on)
            self._waiting[reader] = None
            reader.throttle(RATE)

    def _go_on(self) -> None:
        loop = asyncio.get_running_loop()
        missing = -(self._left + (loop.time() - self._at) * self._rate)
        if missing > 0.5:  # others brought more meanwhile; half a byte is rounding of the clock
            loop.call_later(missing / self._rate, self._go_on)
            return
        waiting, self._waiting = self._waiting, {}
        for reader in waiting:
            reader.unthrottle(RATE)
