"""Keys in order, of which some come and go: what a sorted page is read from."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from typing import Final, TypeAlias

#: What a row comes by: minus the number that is sorted by, then a name that no other one has.
Key: TypeAlias = tuple[int, str]

#: A block is halved when it is longer: to insert a key moves as many at most, which takes less than to find its block.
BLOCK_MAX: Final = 512


class Order:
    """Keys in ascending order, each once."""

    __slots__ = ("_blocks", "_lasts")

    def __init__(self) -> None:
        self._blocks: list[list[Key]] = []  # none is empty
        self._lasts: list[Key] = []  # the last key of each

    def add(self, key: Key) -> None:
        """One more."""
        blocks, lasts = self._blocks, self._lasts
        if not blocks:
            blocks.append([key])
            lasts.append(key)
            return
        index = min(bisect_left(lasts, key), len(blocks) - 1)
        block = blocks[index]
        insort(block, key)
        if len(block) > BLOCK_MAX:
            half = len(block) // 2
            blocks.insert(index, block[:half])
            lasts.insert(index, block[half - 1])
            del block[:half]
            index += 1
        lasts[index] = block[-1]

    def remove(self, key: Key) -> None:
        """One that is there goes."""
        index = bisect_left(self._lasts, key)
        block = self._blocks[index]
        found = bisect_left(block, key)
        assert block[found] == key
        del block[found]
        if block:
            self._lasts[index] = block[-1]
        else:
            del self._blocks[index]
            del self._lasts[index]

    def behind(self, key: Key | None) -> Iterator[Key]:
        """Those after *key*; None: all. None may come or go meanwhile."""
        first = 0 if key is None else bisect_right(self._lasts, key)
        for index in range(first, len(self._blocks)):
            block = self._blocks[index]
            if key is not None and index == first:
                block = block[bisect_right(block, key) :]
            yield from block
