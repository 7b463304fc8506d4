"""One pending list in memory: sequence → location, in sequence order, compact, fast at both ends.

New entries go into a dict (*fresh*), where an acknowledgement finds them at once: a message that is
consumed soon after it was stored never leaves it. What stays is *sealed* into chunks of plain
arrays: 24 bytes an entry instead of about 130, and a position can be found by bisection, which a
dict cannot do. Sequences of one list only ever grow, so everything fresh is behind everything
sealed. A chunk that the metadata store has is *packed* to 5 to 12 bytes an entry until somebody needs it.

A chunk is also what the metadata store holds of a list, as one value: a checkpoint writes the chunks
that changed, and a backlog that is consumed in order costs it one deletion for each chunk.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Final

from tidegate_store_journal.index.pieces import (
    Piece,
    Usage,
    locations_in,
    unpack,
    usage_of,
    without_removed,
)
from tidegate_store_journal.log.format import FILE_SHIFT

#: Entries in a chunk: 24 KiB, which a checkpoint writes as a whole when one entry is removed from its
#: middle; bisection inside takes 10 steps.
CHUNK_ENTRIES: Final = 1024
#: A chunk of at least so many entries is made smaller when only a quarter of them is left, so that one
#: message that nobody acknowledges does not keep a whole chunk.
_SHRINK_ENTRIES: Final = 64
#: A list with more fresh entries than this is falling behind: they are sealed, about 1 ms at a time,
#: instead of all at once at the next checkpoint.
SEAL_ENTRIES: Final = 8192
#: Above this many fresh entries a page read seals first, to be able to bisect.
_FRESH_SCAN_MAX: Final = 256
_MASK_64: Final = (1 << 64) - 1
_MASK_32: Final = (1 << 32) - 1
_HIGH_FILE_SHIFT: Final = FILE_SHIFT - 64  # in the upper word of a location


class _Chunk:
    """Up to CHUNK_ENTRIES entries. A removed entry has two zero words as its location.

    Attributes:
        key: first sequence it ever had; the metadata store has it under this one.
        live: entries that are not removed; head: everything before it is removed.
        file_first, file_last: range of files of the locations; 0: not looked at.
        stored: the metadata store has it, in this or an older state (or is about to).
        changed: it has another state than the metadata store was told.
        usage: of all its entries, when nothing changed since it was loaded.
        packed: the arrays as fewer bytes, when nothing changed since; they need not be there then.
    """

    __slots__ = (
        "_locations",
        "_sequences",
        "changed",
        "file_first",
        "file_last",
        "head",
        "key",
        "live",
        "packed",
        "stored",
        "usage",
    )

    def __init__(self, key: int) -> None:
        self.key = key
        self._sequences: array[int] | None = array("Q")
        self._locations = array("Q")  # two words an entry: bits 0-63, bits 64-127
        self.packed = b""
        self.live = 0
        self.head = 0
        self.file_first = self.file_last = 0
        self.stored = self.changed = False
        self.usage: Usage | None = None

    @property
    def sequences(self) -> array[int]:
        """Of all entries, the removed ones too."""
        if self._sequences is None:
            self._sequences, self._locations = unpack(self.packed)
        return self._sequences

    @property
    def locations(self) -> array[int]:
        """Two words an entry: bits 0-63, bits 64-127."""
        if self._sequences is None:
            self._sequences, self._locations = unpack(self.packed)
        return self._locations

    def set(self, sequences: array[int], locations: array[int]) -> None:
        """Have these entries, which all live."""
        self._sequences, self._locations = sequences, locations
        self.head = 0
        self.live = len(sequences)

    def take(self, piece: Piece) -> None:
        """Be what the metadata store has, packed: these entries, which all live."""
        usage = piece.usage
        assert usage is not None
        self._sequences, self._locations = None, _NOTHING
        self.packed, self.usage, self.live, self.head = piece.packed, usage, piece.count, 0
        file_ids = [*usage.files, *[place >> FILE_SHIFT for _, place in usage.shared]]
        self.file_first, self.file_last = min(file_ids), max(file_ids)

    def forget_arrays(self) -> None:
        """The packed ones are enough."""
        if self.packed:
            self._sequences, self._locations = None, _NOTHING

    def pieces_in(self, file_id: int) -> list[tuple[int, int]]:
        """The entries whose message is in the data file."""
        if not self._may_have(file_id):
            return []
        sequences, locations = self.sequences, self.locations
        begin, end = file_id << _HIGH_FILE_SHIFT, (file_id + 1) << _HIGH_FILE_SHIFT
        return [
            (sequences[at], locations[2 * at] | high << 64)
            for at, high in enumerate(locations[1::2])
            if begin <= high < end
        ]

    def files(self) -> set[int]:
        """The data files of its messages, and perhaps others."""
        self._may_have(0)
        if self.file_last - self.file_first <= 1:
            return {self.file_first, self.file_last}
        return {high >> _HIGH_FILE_SHIFT for high in self.locations[1::2] if high}

    def sequences_in(self, file_id: int) -> list[int]:
        """As :meth:`pieces_in`, without the locations: a tenth of the time."""
        if not self._may_have(file_id):
            return []
        sequences, highs = self.sequences, self.locations[1::2]
        if self.file_first == self.file_last and len(sequences) == self.live:
            return sequences.tolist()
        begin, end = file_id << _HIGH_FILE_SHIFT, (file_id + 1) << _HIGH_FILE_SHIFT
        pairs = zip(sequences, highs, strict=True)
        return [sequence for sequence, high in pairs if begin <= high < end]

    def _may_have(self, file_id: int) -> bool:
        """Told without unpacking it, if it was packed."""
        if not self.file_first:
            living = [high for high in self.locations[1::2] if high]
            self.file_first = min(living) >> _HIGH_FILE_SHIFT
            self.file_last = max(living) >> _HIGH_FILE_SHIFT
        return self.file_first <= file_id <= self.file_last

    def shrink(self) -> None:
        """Leave the removed entries out. Whoever iterates over the old arrays keeps them."""
        self.set(*without_removed(self.sequences, self.locations))

    def location(self, index: int) -> int:
        """Of the entry *index*; 0: it was removed."""
        locations = self.locations
        return locations[2 * index] | locations[2 * index + 1] << 64

    def put(self, index: int, location: int) -> int:
        """Give the entry *index* another location (0: remove it); returns the old one."""
        old = self.location(index)
        self._locations[2 * index] = location & _MASK_64
        self._locations[2 * index + 1] = location >> 64
        return old


_NOTHING: Final = array("Q")


class PendingList:
    """See the module. Not thread-safe."""

    __slots__ = (
        "_changed",
        "_chunks",
        "_firsts",
        "_gone",
        "_saved",
        "_sealed_live",
        "deliveries",
        "fresh",
        "last_sealed",
    )

    def __init__(self) -> None:
        self.fresh: dict[int, int] = {}
        self.deliveries: dict[int, int] = {}  # only counts above 0
        self.last_sealed = 0
        self._sealed_live = 0
        self._firsts: list[int] = []  # key of each chunk
        self._chunks: list[_Chunk] = []
        self._changed: dict[int, _Chunk] = {}  # by key: what the next checkpoint writes
        #: Handed out by take_changes, by key: packed when the metadata store has it.
        self._saved: dict[int, tuple[_Chunk, Piece]] = {}
        self._gone: list[int] = []  # keys that it takes out of the metadata store

    def __len__(self) -> int:
        return len(self.fresh) + self._sealed_live

    def seal(self) -> None:
        """Move everything fresh into chunks."""
        fresh = self.fresh
        if not fresh:
            return
        sequences, words = array("Q", fresh), array("Q")
        words.frombytes(b"".join([value.to_bytes(16, "little") for value in fresh.values()]))
        assert sequences[0] > self.last_sealed, "sequences of a list must grow"
        self.fresh = {}
        self.last_sealed = sequences[-1]
        self._sealed_live += len(sequences)
        done = 0
        while done < len(sequences):
            chunk = self._chunks[-1] if self._chunks else None
            if chunk is None or len(chunk.sequences) >= CHUNK_ENTRIES:
                chunk = _Chunk(sequences[done])
                self._append(chunk)
            end = min(len(sequences), done + CHUNK_ENTRIES - len(chunk.sequences))
            chunk.sequences.extend(sequences[done:end])
            chunk.locations.extend(words[2 * done : 2 * end])
            chunk.live += end - done
            chunk.file_first = 0
            self._change(chunk)
            done = end

    def restore_piece(self, piece: Piece) -> None:
        """Append what the metadata store has (at start, in order)."""
        chunk = _Chunk(piece.key)
        chunk.take(piece)
        chunk.stored = True
        self._append(chunk)
        self._sealed_live += chunk.live
        self.last_sealed = piece.last

    def replace(self, old: PendingList) -> None:
        """The metadata store has chunks of *old*, which this list stands for from now on."""
        self._gone = [*old._gone, *[chunk.key for chunk in old._chunks if chunk.stored]]

    def _append(self, chunk: _Chunk) -> None:
        self._chunks.append(chunk)
        self._firsts.append(chunk.key)

    def _change(self, chunk: _Chunk) -> None:
        if not chunk.changed:
            assert chunk.sequences is not None  # unpacked, before that is forgotten
            chunk.changed = True
            chunk.usage = None
            chunk.packed = b""
            self._changed[chunk.key] = chunk

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
        value = chunk.put(index, 0)
        self._removed(number, chunk, index, index + 1, 1)
        return value

    def pop_all(self, sequences: Sequence[int]) -> list[int | None]:
        """As :meth:`pop_sealed` for each of *sequences*, at a fraction of the cost for runs."""
        result: list[int | None] = []
        at, count = 0, len(sequences)
        while at < count:
            found = self._find(sequences[at])
            if found is None:
                result.append(None)
                at += 1
                continue
            number, index = found
            chunk = self._chunks[number]
            run = _run_length(chunk.sequences, index, sequences, at)
            words = chunk.locations[2 * index : 2 * (index + run)]
            values = [value or None for value in locations_in(words)]
            chunk.locations[2 * index : 2 * (index + run)] = array("Q", bytes(16 * run))
            result += values
            self._removed(number, chunk, index, index + run, run - values.count(None))
            at += run
        return result

    def _removed(self, number: int, chunk: _Chunk, begin: int, end: int, count: int) -> None:
        """*count* entries of a chunk from *begin* to *end* were removed."""
        self._sealed_live -= count
        chunk.live -= count
        if chunk.live == 0:
            del self._chunks[number]
            del self._firsts[number]
            self._changed.pop(chunk.key, None)
            if chunk.stored:
                self._gone.append(chunk.key)
            return
        self._change(chunk)
        if begin == chunk.head:
            locations = chunk.locations
            while locations[2 * end + 1] == 0:
                end += 1
            chunk.head = end
        if chunk.live * 4 < len(chunk.sequences) >= _SHRINK_ENTRIES:
            chunk.shrink()

    def get(self, sequence: int) -> int | None:
        """The location of an entry; None when it is not there."""
        found = self._find(sequence)
        if found is None:
            return self.fresh.get(sequence)
        return self._chunks[found[0]].location(found[1])

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
        value = chunk.put(found[1], location)
        self._change(chunk)
        if chunk.file_first:
            file_id = location >> FILE_SHIFT
            chunk.file_first = min(chunk.file_first, file_id)
            chunk.file_last = max(chunk.file_last, file_id)
        return value

    def pieces_in(self, file_id: int) -> Iterator[list[tuple[int, int]]]:
        """(sequence, location) of the entries whose message is in the data file, chunk by chunk.

        The list may change between two pieces; nothing is missing that was there at the first and
        still is, but what was sealed meanwhile can come twice.
        """
        chunks = list(self._chunks)
        yield [entry for entry in self.fresh.items() if entry[1] >> FILE_SHIFT == file_id]
        for chunk in chunks:
            if chunk.live:
                yield chunk.pieces_in(file_id)

    def files(self) -> set[int]:
        """The data files that its messages are in, and perhaps others."""
        found = {place >> FILE_SHIFT for place in self.fresh.values()}
        return found.union(*[chunk.files() for chunk in self._chunks if chunk.live])

    def sequences_in(self, file_id: int) -> list[int]:
        """Those of the entries whose message is in the data file, in order."""
        found: list[int] = []
        for chunk in self._chunks:
            found += chunk.sequences_in(file_id)
        found += [key for key, place in self.fresh.items() if place >> FILE_SHIFT == file_id]
        return found

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
        for sequence, value in self.entries(after):
            total += value & _MASK_32
            if page and total > bytes_max:
                break
            page.append((sequence, value))
            if len(page) >= limit:
                break
        return page

    def entries(self, after: int = 0) -> Iterator[tuple[int, int]]:
        """(sequence, location) of everything behind *after*, in order."""
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

    def take_part(self) -> tuple[list[int], list[int]]:
        """Remove some entries, one chunk's: for a list that nobody sees any more. Empty: it is empty.

        Returns: sequences and locations.
        """
        if not self._chunks:
            self.seal()
        if not self._chunks:
            return [], []
        del self._firsts[-1]
        chunk = self._chunks.pop()
        self._sealed_live -= chunk.live
        sequences, words = without_removed(chunk.sequences, chunk.locations)
        return sequences.tolist(), locations_in(words)

    def take_changes(self) -> tuple[list[Piece], list[int]]:
        """What the metadata store is to be told: copies of pieces, and keys of those that are gone.

        Removed entries are still in them as zero locations.
        """
        changed, self._changed = self._changed, {}
        gone, self._gone = self._gone, []
        pieces: list[Piece] = []
        for chunk in changed.values():
            chunk.stored, chunk.changed = True, False
            head = chunk.head
            piece = Piece(chunk.key, chunk.sequences[head:], chunk.locations[2 * head :])
            self._saved[chunk.key] = chunk, piece
            pieces.append(piece)
        return pieces, gone

    def pack(self) -> None:
        """The metadata store has all that :meth:`take_changes` gave: keep it packed, but for the end."""
        for chunk, piece in self._saved.values():
            # One at the end that is not full is added to soon.
            if (chunk.live and piece.packed and not chunk.changed) and (
                piece.count >= CHUNK_ENTRIES or chunk is not self._chunks[-1]
            ):
                chunk.take(piece)
        self._saved.clear()
        for chunk in self._chunks[:-1]:
            chunk.forget_arrays()

    @property
    def has_changes(self) -> bool:
        """There is something sealed for :meth:`take_changes`."""
        return bool(self._changed or self._gone)

    def mark_everything_changed(self) -> None:
        """The metadata store is empty."""
        self._gone = []
        for chunk in self._chunks:
            chunk.stored = False
            self._change(chunk)

    def usages(self) -> Iterator[Usage]:
        """What all entries use, a part at a time; cheap for what was just loaded."""
        self.seal()
        for chunk in self._chunks:
            yield chunk.usage or usage_of(chunk.sequences, chunk.locations)

    def body_bytes(self) -> int:
        """Bytes of all bodies."""
        total = sum([value & _MASK_32 for value in self.fresh.values()])
        for chunk in self._chunks:
            usage = chunk.usage or usage_of(chunk.sequences, chunk.locations)
            total += usage.body_bytes
        return total


def _run_length(chunk: array[int], index: int, sequences: Sequence[int], at: int) -> int:
    """How many of *sequences* from *at* on stand in *chunk* from *index* on; the first does."""
    most = min(len(sequences) - at, len(chunk) - index)
    if chunk[index + most - 1] == sequences[at + most - 1] and chunk[
        index : index + most
    ].tolist() == list(sequences[at : at + most]):
        return most
    run = 1
    while run < most and chunk[index + run] == sequences[at + run]:
        run += 1
    return run
