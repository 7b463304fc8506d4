"""When Python's cycle collector looks through everything: rarely, and never because of a client.

Reference counts free what the gateway releases; only cycles are left to the collector, and the
gateway makes none per message or connection. Cycles of plugins and libraries are mostly found while
young. Looking for the rest holds the loop for as long as it takes to visit every object, and CPython
does so whenever their number has grown by a quarter, which an attacker can cause. So full
collections begin here, in a gateway's own process, and nowhere else: decision 12.
"""

from __future__ import annotations

import gc
import logging
import resource
import time
from collections.abc import Callable
from typing import Final

from tidegate._allocator import FreeMemory, one_heap, trim

_log = logging.getLogger("tidegate.collector")

#: For CPython's counters: full collections never begin by themselves.
NEVER: Final = 2**31 - 1

#: How often to check whether one is due.
LOOK_EVERY_S: Final = 1.0

#: Full collections take one ten-thousandth of the time: one of 15 ms runs every 150 s, one of
#: 0.3 s every 50 minutes.
TIMES_REST: Final = 10_000
REST_MIN_S: Final = 60.0

#: One that is due waits for a second in which the process used less than this share of the
#: processor, but only as long again as it has waited.
QUIET_SHARE: Final = 0.1

#: When memory that nothing accounts for has grown by this, or by half of what the process had, the
#: cause may be cycles.
GROWTH_MIN_BYTES: Final = 64 << 20
#: Memory that a counted byte takes at most (`tests/abuse/test_growth.py`).
BYTES_PER_COUNTED: Final = 1.5
#: However much it grows, full collections take at most a hundredth of the time.
TIMES_REST_MIN: Final = 100

#: One that takes longer is logged.
NOTABLE_S: Final = 0.05


class Collector:
    """Begins the full collections of this process.

    Args:
        clock: monotonic seconds; cpu: seconds of processor time that the process has used.
        resident: bytes of memory it has; 0: unknown, then only the time counts.
        collect: looks through everything. Returns: how many objects it found.
        give_back: returns free memory to the system.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = time.process_time,
        resident: Callable[[], int] | None = None,
        collect: Callable[[], int] = gc.collect,
        give_back: Callable[[], None] = trim,
    ) -> None:
        self._clock = clock
        self._cpu = cpu
        self._resident = resident_bytes if resident is None else resident
        self._collect = collect
        self._free = FreeMemory(clock, give_back)
        self._counted: Callable[[], int] = lambda: 0
        self._ended_at = self._looked_at = clock()
        self._used = cpu()
        self._took_s = 0.0
        self._had_bytes = 0  # of memory after the last one, and
        self._uncounted = 0.0  # how much of it nothing accounted for

    @staticmethod
    def take_over() -> None:
        """From now on no full collection begins by itself, and none visits what exists already:
        modules, classes and functions, which stay. Call once, when the code is imported and before
        there are threads."""
        one_heap()
        young, middle, _ = gc.get_threshold()
        gc.set_threshold(young, middle, NEVER)
        gc.freeze()  # with the little garbage that imports leave: looking for it takes a tenth of their time
        gc.enable()  # off since the process began: :func:`tidegate.cli.main`

    def begin(
        self, counted: Callable[[], int], call_later: Callable[[float, Callable[[], None]], object]
    ) -> None:
        """Collect now, and then when it is due.

        Args: counted: bytes accounted for; call_later: of the event loop.
        """
        self._counted = counted
        self.collect()
        self._free.settle(self._uncounted)

        def look() -> None:
            call_later(LOOK_EVERY_S, look)
            self.look()

        call_later(LOOK_EVERY_S, look)

    def look(self) -> None:
        """Collect if that is due."""
        now, used = self._clock(), self._cpu()
        is_quiet = used - self._used < QUIET_SHARE * (now - self._looked_at)
        self._looked_at, self._used = now, used
        has_bytes = self._resident()
        if self._free.look(self._uncounted_of(has_bytes), is_quiet=is_quiet):
            has_bytes = self._resident()
            self._free.settle(self._uncounted_of(has_bytes))
        # It takes longer in proportion to the growth since then.
        takes_s = self._took_s * max(1.0, has_bytes / self._had_bytes if self._had_bytes else 1.0)
        rest_s = max(REST_MIN_S, TIMES_REST * takes_s)
        rested_s = now - self._ended_at
        if rested_s >= (rest_s if is_quiet else 2 * rest_s) or (
            rested_s >= TIMES_REST_MIN * takes_s
            and self._uncounted_of(has_bytes) - self._uncounted
            > max(GROWTH_MIN_BYTES, self._had_bytes / 2)
        ):
            self.collect()

    def collect(self) -> None:
        """Look through everything now."""
        begun_at = self._clock()
        found = self._collect()
        self._ended_at = self._clock()
        self._took_s = self._ended_at - begun_at
        self._had_bytes = self._resident()
        self._uncounted = self._uncounted_of(self._had_bytes)
        _log.log(
            logging.INFO if self._took_s > NOTABLE_S else logging.DEBUG,
            "collection_ms=%d found=%d resident_bytes=%d",
            self._took_s * 1000,
            found,
            self._had_bytes,
        )

    def _uncounted_of(self, has_bytes: int) -> float:
        return has_bytes - BYTES_PER_COUNTED * self._counted()


def resident_bytes() -> int:
    """Memory of this process in RAM that it shares with no other; 0: not on Linux."""
    try:
        with open("/proc/self/statm", "rb") as statm:  # proc(5): resident, then shared, in pages
            _, resident, shared = map(int, statm.read().split()[:3])
    except OSError:
        return 0
    return (resident - shared) * resource.getpagesize()
