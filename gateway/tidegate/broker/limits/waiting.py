"""Messages that wait in memory, by destination: the leaves of the tree that no client is charged for.

A destination's cursor knows what it holds, so its limit (``memory_limit``) is the cursor's, too. The
tree asks now and then instead of counting each message once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol, final

from tidegate.broker.turn.walks import STEP_LISTS, Walk, Walks
from tidegate.spi import CursorMemory, PendingCursor

#: All destinations are asked once per this many calls: a hundred thousand take some 20 ms, in slices.
LOOK_EVERY: Final = 10


class Leaf(Protocol):
    """A queue or subscription."""

    destination: str
    cursor: PendingCursor


@final
class Waiting:
    """Call :meth:`sample` every second.

    Args: leaves: all of them; memories: what their cursors hold together.

    Attributes:
        maximum: the most that all were seen to hold together.
        largest_bytes, largest: what the largest destination held at the last look, and which it was.
    """

    def __init__(
        self,
        leaves: Callable[[], Iterable[Leaf]],
        memories: Sequence[CursorMemory],
        walks: Walks,
    ) -> None:
        self._leaves = leaves
        self._memories = memories
        self._walks = walks
        self._calls = 0
        self.maximum = self.largest_bytes = 0
        self.largest = "none"

    def sample(self) -> None:
        """Look at the sum, and now and then at each."""
        self.maximum = max(self.maximum, sum(memory.used for memory in self._memories))
        if not self._calls % LOOK_EVERY:
            self._walks.begin(self._look())
        self._calls += 1

    def _look(self) -> Walk:
        most, name = 0, "none"
        for number, leaf in enumerate(list(self._leaves()), 1):
            size = leaf.cursor.memory_bytes
            if size > most:
                most, name = size, leaf.destination
            if not number % STEP_LISTS:
                yield
        self.largest_bytes, self.largest = most, name

    def snapshot(self) -> dict[str, int | str]:
        """By metric."""
        return {
            "waiting.maximum": self.maximum,
            "waiting.largest.bytes": self.largest_bytes,
            "waiting.largest.destination": self.largest,
        }
