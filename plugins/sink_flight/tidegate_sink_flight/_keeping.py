"""Which rows have been kept for long enough (`keep`)."""

from __future__ import annotations

from collections import deque
from typing import Final

#: Steps that `keep` is divided into: a row stays at most a hundredth longer.
STEPS: Final = 100


class Keeping:
    """Uses a monotonic clock; after a restart rows are kept for `keep` once more.

    Args: keep_s: 0: rows are not kept.
    """

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self._seen: deque[tuple[float, int]] = deque()

    def look(self, now: float, last: int) -> None:
        """Note that *last* is the newest row now."""
        if not self._keep_s:
            return
        if not self._seen or now - self._seen[-1][0] >= self._keep_s / STEPS:
            self._seen.append((now, last))
        while len(self._seen) > 1 and self._seen[1][0] <= now - self._keep_s:
            self._seen.popleft()

    def through(self, now: float, last: int) -> int:
        """The last row that may be released; *last* when none must stay."""
        if not self._keep_s:
            return last
        at, seen = self._seen[0]
        return seen if now - at >= self._keep_s else 0
