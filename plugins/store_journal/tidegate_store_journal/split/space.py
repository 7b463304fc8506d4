"""The free room of one record file: extents of blocks, given out and taken back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

#: Extents of a size class that may be too small are looked at before a larger one is cut.
_TRIES: Final = 8


class Space:
    """Extents of free blocks, neighbours always joined. Not thread-safe.

    Attributes: length: blocks in all; free: free ones.
    """

    __slots__ = ("_bins", "_ends", "_starts", "free", "length")

    def __init__(self, length: int = 0, used: Iterable[tuple[int, int]] = ()) -> None:
        """*used*: extents (start, blocks) in order."""
        self.length = length
        self.free = 0
        self._starts: dict[int, int] = {}  # start → blocks
        self._ends: dict[int, int] = {}  # end → start
        self._bins: dict[int, dict[int, None]] = {}  # bit length of the size → starts
        at = 0
        for start, blocks in used:
            if start > at:
                self.give_back(at, start - at)
            at = max(at, start + blocks)
        if at < length:
            self.give_back(at, length - at)

    def take(self, blocks: int) -> int | None:
        """Room for so many blocks; None when no extent has it. The beginning of an extent."""
        assert blocks > 0
        size_class = blocks.bit_length()
        for number, start in enumerate(self._bins.get(size_class, ())):
            if self._starts[start] >= blocks:
                return self._cut(start, blocks)
            if number >= _TRIES:
                break
        larger = [item for item, starts in self._bins.items() if item > size_class and starts]
        if not larger:
            return None
        return self._cut(next(iter(self._bins[min(larger)])), blocks)

    def grow(self, blocks: int) -> None:
        """The file is so many blocks longer."""
        self.length += blocks
        self.give_back(self.length - blocks, blocks)

    @property
    def tail(self) -> int:
        """Free blocks at the end of the file."""
        start = self._ends.get(self.length)
        return 0 if start is None else self.length - start

    def give_back(self, start: int, blocks: int) -> None:
        """The extent is free again."""
        assert blocks > 0
        self.free += blocks
        before = self._ends.get(start)
        if before is not None:
            size = self._remove(before)
            start, blocks = before, size + blocks
        behind = self._starts.get(start + blocks)
        if behind is not None:
            blocks += self._remove(start + blocks)
        self._add(start, blocks)

    def _cut(self, start: int, blocks: int) -> int:
        size = self._remove(start)
        if size > blocks:
            self._add(start + blocks, size - blocks)
        self.free -= blocks
        return start

    def _add(self, start: int, blocks: int) -> None:
        self._starts[start] = blocks
        self._ends[start + blocks] = start
        self._bins.setdefault(blocks.bit_length(), {})[start] = None

    def _remove(self, start: int) -> int:
        blocks = self._starts.pop(start)
        del self._ends[start + blocks]
        del self._bins[blocks.bit_length()][start]
        return blocks
