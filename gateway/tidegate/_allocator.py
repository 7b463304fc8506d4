"""Gives unused memory that the C library's allocator keeps back to the system.

What a burst needed for a moment lies scattered among what stays. glibc gives back only what is free
at the end of a heap, so a process keeps up to the most it ever needed at once; each thread also has
its own heap. So threads share one heap here, and what is free in its middle goes back when memory
that nothing accounts for has grown: decision 12. With another C library nothing is done.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from typing import Final

_log = logging.getLogger("tidegate.collector")

#: ``mallopt(3)``: the maximum number of heaps.
_M_ARENA_MAX: Final = -8

#: Growth of memory that nothing accounts for that is worth a look, in a second in which the process
#: has little to do.
FREE_MIN_BYTES: Final = 16 << 20
#: How long to wait for such a second.
WAIT_MAX_S: Final = 60.0
#: Giving back takes at most a hundredth of the time.
TIMES_REST_MIN: Final = 100
#: One that takes longer is logged.
NOTABLE_S: Final = 0.05


def one_heap() -> None:
    """Threads made from now on share the main thread's heap."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)


def trim() -> None:
    """Give back what is free in the middle of heaps: some 0.1 ms for each MiB (malloc_trim(3))."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


class FreeMemory:
    """Decides when free memory goes back to the system.

    Args: clock: monotonic seconds; give_back: does it.
    """

    def __init__(self, clock: Callable[[], float], give_back: Callable[[], None] = trim) -> None:
        self._clock = clock
        self._give_back = give_back
        self._least = 0.0  # least that nothing accounted for, since memory was given back
        self._grown_at: float | None = None  # when there was first more than that
        self._ended_at = clock()
        self._took_s = 0.0

    def look(self, uncounted: float, *, is_quiet: bool) -> bool:
        """Args: uncounted: bytes that nothing accounts for; is_quiet: there is little to do.

        Returns: whether something may have been given back, so that memory must be read again.
        """
        now = self._clock()
        self._least = min(self._least, uncounted)
        if uncounted - self._least <= FREE_MIN_BYTES:
            self._grown_at = None
            return False
        if self._grown_at is None:
            self._grown_at = now
        is_time = is_quiet or now - self._grown_at >= WAIT_MAX_S
        if not is_time or now - self._ended_at < TIMES_REST_MIN * self._took_s:
            return False
        self._give_back()
        self._ended_at = self._clock()
        self._took_s = self._ended_at - now
        level = logging.INFO if self._took_s > NOTABLE_S else logging.DEBUG
        _log.log(level, "given_back_ms=%d", self._took_s * 1000)
        return True

    def settle(self, uncounted: float) -> None:
        """*uncounted* bytes are left when all that is free has gone back."""
        self._least = uncounted
        self._grown_at = None
