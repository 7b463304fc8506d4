"""A piece of a pending list: up to 1024 entries, in memory and in the metadata store.

In memory it is two plain arrays, 24 bytes an entry. A piece that the metadata store has is *packed* to
5 to 12 bytes an entry until it is needed, and knows what it uses of which file: a start takes
pieces into memory as they are, so millions of entries cost no step of the interpreter each.
docs/journal-format.md section 7.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from collections.abc import Iterable
from typing import Final, Self

import msgspec

from tidegate_store_journal.log.format import FILE_SHIFT, MASK_32, SHARED_BIT, FormatError

#: Entries, files, shared entries; bytes of the bodies; last sequence.
_HEAD: Final = struct.Struct("<IIIQQ")
#: File id, references, bytes of the records.
_FILE: Final = struct.Struct("<IIQ")
_HIGH_FILE_SHIFT: Final = FILE_SHIFT - 64  # in the upper word of a location
_HIGH_SHARED_BIT: Final = SHARED_BIT >> 64
_LOCATION_BYTES: Final = 16
_ENTRY_BYTES: Final = 8 + _LOCATION_BYTES
#: The fastest: 0.2 ms for 1024 entries, a quarter of it to unpack.
_PACK_LEVEL: Final = 1

#: Sequences, and two words for each location: bits 0-63, bits 64-127.
Arrays = tuple["array[int]", "array[int]"]


class Usage(msgspec.Struct):
    """What the entries of a piece keep.

    Attributes:
        files: file id → (references, bytes of records) of messages that have no other reference.
        shared: (sequence, location) of those added to more than one list.
        body_bytes: bytes of all bodies, shared ones included. last: the last sequence.
    """

    files: dict[int, tuple[int, int]] = {}
    shared: list[tuple[int, int]] = []
    body_bytes: int = 0
    last: int = 0


class Piece(msgspec.Struct, eq=False):
    """See the module.

    Attributes:
        key: the metadata store has it under this sequence: the first it ever had.
        count: how many entries.
        packed: the entries in fewer bytes; b"" when they changed since the last checkpoint. Then the
            arrays are there; otherwise they may be missing.
        stored: entries that the metadata store has under the key (or is about to).
        is_changed: its entries differ from what the metadata store was told.
    """

    key: int
    _arrays: Arrays | None = None
    count: int = 0
    packed: bytes = b""
    stored: int = 0
    is_changed: bool = False
    _files: set[int] | None = None
    _told: Piece | None = None
    _usage: Usage | None = None

    def __post_init__(self) -> None:
        if self._arrays is not None:
            self.count = len(self._arrays[0])

    @property
    def arrays(self) -> Arrays:
        """All entries; callers must not change them."""
        if self._arrays is None:
            self._arrays = unpack(self.packed)
        return self._arrays

    @property
    def usage(self) -> Usage:
        """What the entries keep; cheap right after loading."""
        return usage_of(self.arrays) if self._usage is None else self._usage

    @property
    def body_bytes(self) -> int:
        """Bytes of all bodies; some microseconds even if the piece changed."""
        if self._usage is not None:
            return self._usage.body_bytes
        # The lowest 32 bits of each location; arrays are little-endian, as in the file.
        return sum(memoryview(self.arrays[1]).cast("B").cast("I")[::4])

    @property
    def files(self) -> set[int]:
        """The data files of its messages, and perhaps others."""
        if self._files is None:
            if self._usage is None:
                highs = self.arrays[1][1::2]
                ends = {min(highs) >> _HIGH_FILE_SHIFT, max(highs) >> _HIGH_FILE_SHIFT}
                is_one = len(ends) == 1
                self._files = ends if is_one else {high >> _HIGH_FILE_SHIFT for high in highs}
            else:
                shared = [place >> FILE_SHIFT for _, place in self._usage.shared]
                self._files = {*self._usage.files, *shared}
        return self._files

    def within(self, file_id: int) -> Arrays:
        """The entries whose message is in the data file."""
        if file_id not in self.files:
            return array("Q"), array("Q")
        if len(self.files) == 1:
            return self.arrays
        sequences, locations = self.arrays
        begin, end = file_id << _HIGH_FILE_SHIFT, (file_id + 1) << _HIGH_FILE_SHIFT
        here = [at for at, high in enumerate(locations[1::2]) if begin <= high < end]
        return (
            array("Q", [sequences[at] for at in here]),
            array("Q", [locations[word] for at in here for word in (2 * at, 2 * at + 1)]),
        )

    # ------------------------------------------------------------------------------- changes

    def change(self) -> Arrays:
        """The arrays, for a change now; the metadata store will be told."""
        arrays = self.arrays
        if self._usage is not None:
            self._files = self.files
        self.is_changed = True
        self.packed = b""
        self._usage = self._told = None
        return arrays

    def extend(self, sequences: array[int], locations: array[int]) -> None:
        """Add entries at the end."""
        for old, new in zip(self.change(), (sequences, locations), strict=True):
            old.extend(new)
        self.count += len(sequences)
        self._files = None

    def remove(self, begin: int, end: int) -> list[int]:
        """Remove the entries *begin* … *end* - 1 (indexes); returns their locations."""
        sequences, locations = self.change()
        places = places_in(locations[2 * begin : 2 * end])
        del sequences[begin:end]
        del locations[2 * begin : 2 * end]
        self.count -= end - begin
        return places

    def relocate(self, index: int, place: int) -> int:
        """Give an entry another location; returns the old one."""
        _, locations = self.change()
        old = locations[2 * index : 2 * index + 2]
        locations[2 * index : 2 * index + 2] = words_of([place])
        self._files = None
        return places_in(old)[0]

    # --------------------------------------------------------------------------- checkpoints

    def tell(self) -> Piece:
        """A copy for the metadata store, which is to have the current entries."""
        sequences, locations = self.arrays
        self._told = Piece(self.key, (sequences[:], locations[:]))
        self.is_changed = False
        self.stored = self.count
        return self._told

    def pack(self, *, keeps_arrays: bool) -> None:
        """The metadata store has what it was told: the packed entries are enough, if they are current."""
        told, self._told = self._told, None
        if keeps_arrays:
            return
        if told is not None and told.packed:
            self.packed, self._usage = told.packed, told.usage
        if self.packed:
            self._arrays = None

    def encode(self) -> bytes:
        """The value in the metadata store. The piece is packed afterwards."""
        usage = self._usage = usage_of(self.arrays)
        sequences, locations = self.arrays
        self.packed = zlib.compress(sequences.tobytes() + locations.tobytes(), _PACK_LEVEL)
        head = _HEAD.pack(
            self.count, len(usage.files), len(usage.shared), usage.body_bytes, usage.last
        )
        files = [_FILE.pack(file_id, *counts) for file_id, counts in usage.files.items()]
        return b"".join([head, *files, self.packed])

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """The inverse, packed and without its key. Raises: FormatError, struct.error."""
        count, files, shared, body_bytes, last = _HEAD.unpack_from(value)
        begin = _HEAD.size + files * _FILE.size
        usage = Usage(body_bytes=body_bytes, last=last)
        for file_id, references, record_bytes in _FILE.iter_unpack(value[_HEAD.size : begin]):
            usage.files[file_id] = (references, record_bytes)
        if shared:
            usage.shared = usage_of(unpack(value[begin:])).shared
        return cls(0, count=count, stored=count, packed=value[begin:], _usage=usage)


def places_in(words: array[int]) -> list[int]:
    """Locations as single numbers; each is two of *words*."""
    return [low | high << 64 for low, high in zip(words[::2], words[1::2], strict=True)]


def words_of(places: Iterable[int]) -> array[int]:
    """The inverse."""
    words = array("Q")
    words.frombytes(b"".join([place.to_bytes(_LOCATION_BYTES, "little") for place in places]))
    return words


def unpack(packed: bytes) -> Arrays:
    """The entries of a packed piece. Raises: FormatError."""
    try:
        data = zlib.decompress(packed)
    except zlib.error as error:
        raise FormatError(f"a piece of a pending list cannot be unpacked: {error}") from error
    middle = len(data) // _ENTRY_BYTES * 8
    sequences, locations = array("Q"), array("Q")
    sequences.frombytes(data[:middle])
    locations.frombytes(data[middle:])
    return sequences, locations


def usage_of(arrays: Arrays) -> Usage:
    """Count what the entries use."""
    sequences, locations = arrays
    lows, highs = locations[::2], locations[1::2]
    usage = Usage(last=sequences[-1])
    first = min(highs) >> _HIGH_FILE_SHIFT
    is_shared = any(high & _HIGH_SHARED_BIT for high in highs)
    if first == max(highs) >> _HIGH_FILE_SHIFT and not is_shared:
        # All in one file, so the sums of bodies and of records are below the file's length and
        # cannot carry into each other: one sum in C gives both.
        total = sum(lows)
        usage.files[first] = (len(highs), total >> 32)
        usage.body_bytes = total & MASK_32
        return usage
    files = usage.files
    for sequence, low, high in zip(sequences, lows, highs, strict=True):
        usage.body_bytes += low & MASK_32
        if high & _HIGH_SHARED_BIT:
            usage.shared.append((sequence, low | high << 64))
        else:
            file_id = high >> _HIGH_FILE_SHIFT
            references, record_bytes = files.get(file_id, (0, 0))
            files[file_id] = (references + 1, record_bytes + (low >> 32))
    return usage
