"""One pending list in memory: sequence → location, in sequence order, compact, fast at both ends.

New entries go into a dict (*fresh*), where an acknowledgement finds them at once: a message that is
consumed soon after it was stored never leaves it. What stays is *sealed* into chunks of plain
arrays: 24 bytes an entry instead of about 130, and a position can be found by bisection, which a
dict cannot do. Sequences of one list only ever grow, so everything fresh is behind everything
sealed.
"""

from __future__ import annotations

import itertools
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Final

from tidegate_store_journal._format import FILE_SHIFT

#: Entries in a chunk. One live entry keeps its chunk (96 KiB); bisection inside takes 12 steps.
CHUNK_ENTRIES: Final = 4096
#: A list with more fresh entries than this is falling behind: they are sealed, about 1 ms at a time,
#: instead of all at once at the next checkpoint.
SEAL_ENTRIES: Final = 8192
#: Above this many fresh entries a page read seals first, to be able to bisect.
_FRESH_SCAN_MAX: Final = 256
_MASK_64: Final = (1 << 64) - 1
_MASK_32: Final = (1 << 32) - 1
_HIGH_FILE_SHIFT: Final = FILE_SHIFT - 64  # in the upper word of a location


class _Chunk:
    """Up to CHUNK_ENTRIES entries. A removed entry has two zero words as its location."""

    __slots__ = ("file_first", "file_last", "head", "live", "locations", "sequences")

    def __init__(self) -> None:
        self.sequences = array("Q")
        self.locations = array("Q")  # two words an entry: bits 0-63, bits 64-127
        self.live = 0
        self.head = 0  # everything before it is removed
        self.file_first = self.file_last = 0  # of the locations; 0: not looked at

    def pieces_in(self, file_id: int) -> list[tuple[int, int]]:
        """The entries whose message is in the data file."""
        locations = self.locations
        highs = locations[1::2]
        if not self.file_first:
            living = [high for high in highs if high]
            self.file_first = min(living) >> _HIGH_FILE_SHIFT
            self.file_last = max(living) >> _HIGH_FILE_SHIFT
        if not self.file_first <= file_id <= self.file_last:
            return []
        begin, end = file_id << _HIGH_FILE_SHIFT, (file_id + 1) << _HIGH_FILE_SHIFT
        return [
            (self.sequences[at], locations[2 * at] | high << 64)
            for at, high in enumerate(highs)
            if begin <= high < end
        ]


class PendingList:
    """See the module. Not thread-safe."""

    __slots__ = ("_chunks", "_firsts", "_sealed_live", "deliveries", "fresh", "last_sealed")

    def __init__(self) -> None:
        self.fresh: dict[int, int] = {}
        self.deliveries: dict[int, int] = {}  # only counts above 0
        self.last_sealed = 0
        self._sealed_live = 0
        self._firsts: list[int] = []  # first sequence of each chunk
        self._chunks: list[_Chunk] = []

    def __len__(self) -> int:
        return len(self.fresh) + self._sealed_live

    def seal(self) -> None:
        """Move everything fresh into chunks."""
        fresh = self.fresh
        if not fresh:
            return
        sequences = list(fresh)
        locations = list(fresh.values())
        assert sequences[0] > self.last_sealed, "sequences of a list must grow"
        self.fresh = {}
        self.last_sealed = sequences[-1]
        self._sealed_live += len(sequences)
        done = 0
        while done < len(sequences):
            chunk = self._chunks[-1] if self._chunks else None
            if chunk is None or len(chunk.sequences) >= CHUNK_ENTRIES:
                chunk = _Chunk()
                self._chunks.append(chunk)
                self._firsts.append(sequences[done])
            step = min(CHUNK_ENTRIES - len(chunk.sequences), len(sequences) - done)
            chunk.sequences.extend(sequences[done : done + step])
            chunk.locations.frombytes(
                b"".join([value.to_bytes(16, "little") for value in locations[done : done + step]])
            )
            chunk.live += step
            chunk.file_first = 0
            done += step

    def restore(self, sequences: array[int], locations: array[int]) -> None:
        """Append sealed entries, arrays like those of :meth:`since` (at start, in order)."""
        for begin in range(0, len(sequences), CHUNK_ENTRIES):
            chunk = _Chunk()
            chunk.sequences = sequences[begin : begin + CHUNK_ENTRIES]
            chunk.locations = locations[2 * begin : 2 * (begin + CHUNK_ENTRIES)]
            chunk.live = len(chunk.sequences)
            self._chunks.append(chunk)
            self._firsts.append(chunk.sequences[0])
            self._sealed_live += chunk.live
            self.last_sealed = chunk.sequences[-1]

    def __contains__(self, sequence: int) -> bool:
        return sequence in self.fresh or self._find(sequence) is not None

    def pop(self, sequence: int) -> int | None:
        """Remove an entry and return its location; None when it is not there."""
        value = self.fresh.pop(sequence, None)
        return self.pop_sealed(sequence) if value is None else value

    def pop_sealed(self, sequence: int) -> int | None:
        """As :meth:`pop` for an entry that is not fresh."""
        found = self._find(sequence)
        if found is None:
            return None
        number, index = found
        chunk = self._chunks[number]
        locations = chunk.locations
        at = 2 * index
        value = locations[at] | locations[at + 1] << 64
        locations[at] = locations[at + 1] = 0
        self._sealed_live -= 1
        chunk.live -= 1
        if chunk.live == 0:
            del self._chunks[number]
            del self._firsts[number]
        elif index == chunk.head:
            head = index + 1
            while locations[2 * head + 1] == 0:
                head += 1
            chunk.head = head
        return value

    def get(self, sequence: int) -> int | None:
        """The location of an entry; None when it is not there."""
        value = self.fresh.get(sequence)
        if value is None:
            found = self._find(sequence)
            if found is not None:
                locations = self._chunks[found[0]].locations
                at = 2 * found[1]
                value = locations[at] | locations[at + 1] << 64
        return value

    def relocate(self, sequence: int, location: int) -> int | None:
        """Give an entry another location; returns the old one, None when it is not there."""
        value = self.fresh.get(sequence)
        if value is not None:
            self.fresh[sequence] = location
            return value
        found = self._find(sequence)
        if found is None:
            return None
        chunk = self._chunks[found[0]]
        locations = chunk.locations
        at = 2 * found[1]
        value = locations[at] | locations[at + 1] << 64
        locations[at] = location & _MASK_64
        locations[at + 1] = location >> 64
        if chunk.file_first:
            file_id = location >> FILE_SHIFT
            chunk.file_first = min(chunk.file_first, file_id)
            chunk.file_last = max(chunk.file_last, file_id)
        return value

    def pieces_in(self, file_id: int) -> Iterator[list[tuple[int, int]]]:
        """(sequence, location) of the entries whose message is in the data file, piece by piece.

        The list may change between two pieces; nothing is missing that was there at the first and
        still is, but what was sealed meanwhile can come twice.
        """
        chunks = list(self._chunks)
        yield [entry for entry in self.fresh.items() if entry[1] >> FILE_SHIFT == file_id]
        for chunk in chunks:
            if chunk.live:
                yield chunk.pieces_in(file_id)

    def _find(self, sequence: int) -> tuple[int, int] | None:
        """Chunk number and index of a live sealed entry."""
        if sequence > self.last_sealed:
            return None
        number = bisect_right(self._firsts, sequence) - 1
        if number < 0:
            return None
        chunk = self._chunks[number]
        sequences = chunk.sequences
        index = bisect_left(sequences, sequence, chunk.head)
        # The high word holds file id and offset; an offset is never 0, so 0 means removed.
        if (
            index == len(sequences)
            or sequences[index] != sequence
            or chunk.locations[2 * index + 1] == 0
        ):
            return None
        return number, index

    def page(self, after: int, limit: int, bytes_max: int) -> list[tuple[int, int]]:
        """Sequences and locations behind *after*: see MessageStore.page_in for the limits."""
        if len(self.fresh) > _FRESH_SCAN_MAX and not (after < self.last_sealed):
            self.seal()
        page: list[tuple[int, int]] = []
        total = 0
        for sequence, value in self._entries_after(after):
            total += value & _MASK_32
            if page and total > bytes_max:
                break
            page.append((sequence, value))
            if len(page) >= limit:
                break
        return page

    def _entries_after(self, after: int) -> Iterator[tuple[int, int]]:
        if after < self.last_sealed:
            number = max(0, bisect_right(self._firsts, after) - 1)
            while number < len(self._chunks):
                chunk = self._chunks[number]
                sequences = chunk.sequences
                locations = chunk.locations
                index = bisect_right(sequences, after, chunk.head)
                for at in range(index, len(sequences)):
                    high = locations[2 * at + 1]
                    if high:
                        yield sequences[at], locations[2 * at] | high << 64
                number += 1
        for sequence, value in self.fresh.items():
            if sequence > after:
                yield sequence, value

    def entries(self, first: int = 0, last: int = _MASK_64) -> Iterator[tuple[int, int]]:
        """(sequence, location) of everything from *first* to *last*, in order."""
        if first == 0 and last == _MASK_64:
            return self._entries_after(0)
        return itertools.takewhile(
            lambda entry: entry[0] <= last, self._entries_after(max(0, first - 1))
        )

    def since(self, watermark: int) -> list[tuple[array[int], array[int]]]:
        """Copies of what is sealed behind *watermark*, a chunk each.

        Removed entries are still in them as zero locations.
        """
        number = max(0, bisect_right(self._firsts, watermark) - 1)
        copies: list[tuple[array[int], array[int]]] = []
        for chunk in self._chunks[number:]:
            index = bisect_right(chunk.sequences, watermark)
            if index < len(chunk.sequences):
                copies.append((chunk.sequences[index:], chunk.locations[2 * index :]))
        return copies

    def body_bytes(self) -> int:
        """Bytes of all bodies."""
        total = sum(value & _MASK_32 for value in self.fresh.values())
        for chunk in self._chunks:
            total += sum([word & _MASK_32 for word in chunk.locations[::2]])
        return total


def iterate_arrays(
    sequences: Sequence[int], locations: Sequence[int]
) -> Iterator[tuple[int, int, int]]:
    """(sequence, low word, high word) of the live entries in arrays from :meth:`since`."""
    return (
        (sequence, low, high)
        for sequence, low, high in zip(sequences, locations[::2], locations[1::2], strict=True)
        if high
    )
