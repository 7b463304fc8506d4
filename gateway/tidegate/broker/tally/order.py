"""Sorted keys that come and go: what a sorted page is read from."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from typing import Final, TypeAlias

#: What a row is sorted by: its number, negated, then its name, which is unique.
Key: TypeAlias = tuple[int, str]

#: Longer blocks are halved: an insert moves at most this many keys, which takes less than finding the block.
BLOCK_MAX: Final = 512


class Order:
    """Keys in ascending order, each once."""

    __slots__ = ("_blocks", "_lasts")

    def __init__(self) -> None:
        self._blocks: list[list[Key]] = []  # none is empty
        self._lasts: list[Key] = []  # the last key of each

    def add(self, key: Key) -> None:
        """Insert a key."""
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
        """Remove a key that is present."""
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
        """Keys after *key*; None: all. No key may come or go meanwhile."""
        first = 0 if key is None else bisect_right(self._lasts, key)
        for index in range(first, len(self._blocks)):
            block = self._blocks[index]
            if key is not None and index == first:
                block = block[bisect_right(block, key) :]
            yield from block
