"""Where each message of the per-destination layout lies: sequence → place, 24 bytes an entry.

New entries are in a dict, where they usually end. What stays is sealed into chunks of arrays, which
bisection finds. Places are those of ``_records.pack_place``.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final

_CHUNK_ENTRIES: Final = 4096
_FRESH_MAX: Final = 8192


class _Chunk:
    __slots__ = ("live", "places", "sequences")

    def __init__(self, sequences: array[int], places: array[int]) -> None:
        self.sequences = sequences
        self.places = places  # two words an entry; a removed one has zeros
        self.live = len(sequences)


class Places:
    """See the module. Not thread-safe."""

    __slots__ = ("_chunks", "_firsts", "_fresh", "_last_sealed", "_live")

    def __init__(self) -> None:
        self._fresh: dict[int, int] = {}
        self._last_sealed = 0
        self._live = 0
        self._firsts: list[int] = []
        self._chunks: list[_Chunk] = []

    def __len__(self) -> int:
        return len(self._fresh) + self._live

    def restore(self, sequences: array[int], places: array[int]) -> None:
        """Begin with these entries, in order; *places* has two words each, the low one first."""
        for begin in range(0, len(sequences), _CHUNK_ENTRIES):
            end = begin + _CHUNK_ENTRIES
            chunk = _Chunk(sequences[begin:end], places[2 * begin : 2 * end])
            self._chunks.append(chunk)
            self._firsts.append(chunk.sequences[0])
            self._live += chunk.live
            self._last_sealed = chunk.sequences[-1]

    def put(self, sequence: int, place: int) -> None:
        """Add an entry, or change one that is fresh."""
        self._fresh[sequence] = place

    def seal(self) -> None:
        """Make room when many entries stay. Only for entries that are there for good.

        Sequences below what was sealed before stay in the dict: that costs memory, not truth.
        """
        fresh = self._fresh
        if len(fresh) <= _FRESH_MAX:
            return
        last = self._last_sealed
        pairs = sorted(item for item in fresh.items() if item[0] > last)
        if not pairs:
            return
        sequences = array("Q", [sequence for sequence, _ in pairs])
        places = array("Q")
        places.frombytes(b"".join([place.to_bytes(16, "little") for _, place in pairs]))
        self.restore(sequences, places)
        self._fresh = {key: place for key, place in fresh.items() if key <= last}

    def get(self, sequence: int) -> int | None:
        """The place; None when there is none."""
        place = self._fresh.get(sequence)
        if place is not None:
            return place
        found = self._find(sequence)
        if found is None:
            return None
        chunk, at = found
        return chunk.places[2 * at] | chunk.places[2 * at + 1] << 64

    def pop(self, sequence: int) -> int | None:
        """Remove and return the place; None when there is none."""
        place = self._fresh.pop(sequence, None)
        if place is not None:
            return place
        found = self._find(sequence)
        if found is None:
            return None
        chunk, at = found
        place = chunk.places[2 * at] | chunk.places[2 * at + 1] << 64
        chunk.places[2 * at] = chunk.places[2 * at + 1] = 0
        chunk.live -= 1
        self._live -= 1
        if not chunk.live:
            number = bisect_right(self._firsts, sequence) - 1
            del self._firsts[number], self._chunks[number]
        return place

    def move(self, sequence: int, place: int) -> bool:
        """Change an entry. Returns: it was there."""
        if sequence in self._fresh:
            self._fresh[sequence] = place
            return True
        found = self._find(sequence)
        if found is None:
            return False
        chunk, at = found
        chunk.places[2 * at] = place & ((1 << 64) - 1)
        chunk.places[2 * at + 1] = place >> 64
        return True

    def pieces(self) -> Iterator[list[tuple[int, int]]]:
        """All entries (sequence, place), a few thousand at a time.

        Entries may be removed between two pieces; they are left out when not yet passed.
        """
        for chunk in list(self._chunks):
            places = chunk.places
            yield [
                (sequence, places[2 * at] | places[2 * at + 1] << 64)
                for at, sequence in enumerate(chunk.sequences)
                if places[2 * at] or places[2 * at + 1]
            ]
        yield list(self._fresh.items())

    def _find(self, sequence: int) -> tuple[_Chunk, int] | None:
        number = bisect_right(self._firsts, sequence) - 1
        if number < 0:
            return None
        chunk = self._chunks[number]
        at = bisect_left(chunk.sequences, sequence)
        if at == len(chunk.sequences) or chunk.sequences[at] != sequence:
            return None
        if not (chunk.places[2 * at] or chunk.places[2 * at + 1]):
            return None
        return chunk, at
