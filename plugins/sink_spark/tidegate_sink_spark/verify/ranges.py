"""Ranges of ack sequences: as text for operators, and as a set of millions of numbers."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Final

#: Ranges of ack sequences that a problem lists.
_RANGES_MAX: Final = 5


class Ranges:
    """Ranges of ack sequences, in order, as text: the first few and how many there are."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []
        self._count = 0

    def add(self, lo: int, hi: int) -> None:
        self._count += hi - lo + 1
        if self._ranges and self._ranges[-1][1] + 1 == lo:
            self._ranges[-1] = (self._ranges[-1][0], hi)
        elif len(self._ranges) <= _RANGES_MAX:
            self._ranges.append((lo, hi))

    def __len__(self) -> int:
        return self._count

    def __str__(self) -> str:
        shown = ", ".join(text_of(lo, hi) for lo, hi in self._ranges[:_RANGES_MAX])
        more = ", …" if len(self._ranges) > _RANGES_MAX else ""
        return f"{shown}{more} ({self._count} in all)" if more or self._count > 1 else shown


def text_of(lo: int, hi: int) -> str:
    return str(lo) if lo == hi else f"{lo} to {hi}"


class Numbers:
    """A set of numbers that come in order and are mostly consecutive."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []

    def add(self, numbers: Iterable[int]) -> None:
        """Add *numbers*, ascending; those already there count once."""
        for number in numbers:
            last = self._ranges[-1][1] if self._ranges else number - 2
            if number == last + 1:
                self._ranges[-1] = (self._ranges[-1][0], number)
            elif number > last:
                self._ranges.append((number, number))

    def union_count(self, other: Numbers) -> int:
        """How many numbers are in this set, in the *other*, or in both."""
        count, through = 0, 0
        for lo, hi in heapq.merge(self._ranges, other._ranges):
            count += max(0, hi - max(lo - 1, through))
            through = max(through, hi)
        return count
