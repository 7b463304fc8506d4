"""When Python's collector of cycles looks through everything: rarely, and not when a client makes it.

Reference counts free what the gateway lets go of; only cycles are left to the collector, and the
gateway makes none for each message or connection. What plugins and libraries make is mostly found
while it is young. To look for the rest holds the loop for as long as it takes to visit every object
there is, and CPython does so whenever a quarter more have come: an attacker's doing. So full
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

#: Of CPython's counters: full collections never begin by themselves.
NEVER: Final = 2**31 - 1

#: How often it is looked whether one is due.
LOOK_EVERY_S: Final = 1.0

#: Full collections take one ten-thousandth of the time: one of 15 ms comes every 150 s, one of
#: 0.3 s every 50 minutes.
TIMES_REST: Final = 10_000
REST_MIN_S: Final = 60.0

#: One that is due waits for a second in which the process has had so little to do, but only as long
#: again as it has waited.
QUIET_SHARE: Final = 0.1

#: Memory that nothing accounts for: when it has grown by so much, or by half of what the process
#: had, cycles may be what it is.
GROWTH_MIN_BYTES: Final = 64 << 20
#: Memory that a counted byte takes at most (`tests/abuse/test_growth.py`).
BYTES_PER_COUNTED: Final = 1.5
#: However much it grows, full collections take no more than a hundredth of the time.
TIMES_REST_MIN: Final = 100

#: The log tells of one that took longer.
NOTABLE_S: Final = 0.05


class Collector:
    """Begins the full collections of this process.

    Args:
        clock: monotonic seconds; cpu: seconds of processor time that the process has had.
        resident: bytes of memory that it has; 0: unknown, then only the time counts.
        collect: looks through everything. Returns: how many objects it found.
        give_back: returns memory that is free to the system.
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
        """From now on no full collection begins by itself, and none looks at what there is already:
        modules, classes and functions, which stay. To be called once, when the code is imported
        and before there are threads."""
        one_heap()
        young, middle, _ = gc.get_threshold()
        gc.set_threshold(young, middle, NEVER)
        gc.freeze()  # with what little garbage imports leave: to look for it takes as long as a tenth of them
        gc.enable()  # off since the process began: :func:`tidegate.cli.main`

    def begin(
        self, counted: Callable[[], int], call_later: Callable[[float, Callable[[], None]], object]
    ) -> None:
        """Collect now, and then when it is due.

        Args: counted: bytes that are accounted for; call_later: of the event loop.
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
        # What there is more by now makes it take longer.
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
    """Memory of this process that no other one shares, as far as it is in RAM; 0: not on Linux."""
    try:
        with open("/proc/self/statm", "rb") as statm:  # proc(5): resident, then shared, in pages
            _, resident, shared = map(int, statm.read().split()[:3])
    except OSError:
        return 0
    return (resident - shared) * resource.getpagesize()
