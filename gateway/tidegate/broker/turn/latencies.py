"""How long clients waited for confirmations: a histogram of the last minute, added to once per turn."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

#: Upper ends of the buckets, in seconds: 50 microseconds to some 80 s, each a quarter above the one before.
BOUNDS: Final = tuple(50e-6 * 1.25**step for step in range(64))

#: How many seconds one half is filled for.
HALF_S: Final = 30


class Latencies:
    """Two halves: one is being filled, the other is the previous one."""

    def __init__(self) -> None:
        self._filling = [0] * (len(BOUNDS) + 1)
        self._before = [0] * (len(BOUNDS) + 1)
        self._seconds = 0

    def add(self, seconds: float, count: int) -> None:
        """*count* confirmations took *seconds*."""
        self._filling[bisect_left(BOUNDS, seconds)] += count

    def tick(self) -> None:
        """A second has passed."""
        self._seconds += 1
        if self._seconds >= HALF_S:
            self._seconds = 0
            self._before, self._filling = self._filling, [0] * len(self._before)

    def quantiles(self, *wanted: float) -> tuple[int, list[float]]:
        """How many confirmations there were, and for each share *wanted* (0 to 1) the wait in seconds that
        this share of them did not exceed; 0 when there were none."""
        counts = [a + b for a, b in zip(self._before, self._filling, strict=True)]
        total = sum(counts)
        return total, [_reached(counts, share * total) if total else 0.0 for share in wanted]


def _reached(counts: list[int], target: float) -> float:
    seen = 0
    for bound, count in zip(BOUNDS, counts, strict=False):
        seen += count
        if seen >= target:
            return bound
    return BOUNDS[-1]
