"""A piece of a pending list as the metadata store has it: arrays, and what they use of which file.

docs/journal-format.md section 7. A checkpoint writes whole pieces, and only those that changed; a
start copies them into memory as they are and takes what the files hold from their heads, so that
millions of entries cost no step of the interpreter each. Pure functions, no I/O.
"""

from __future__ import annotations

import struct
from array import array
from dataclasses import dataclass, field
from typing import Final

from tidegate_store_journal.log.format import FILE_SHIFT, MASK_32, SHARED_BIT, FormatError, crc32c

#: CRC-32C of key and rest; entries, files, shared entries; bytes of the bodies.
_HEAD: Final = struct.Struct("<IIIIQ")
_CRC_BYTES: Final = 4
#: File id, references, bytes of the records.
_FILE: Final = struct.Struct("<IIQ")
_HIGH_FILE_SHIFT: Final = FILE_SHIFT - 64  # in the upper word of a location
_HIGH_SHARED_BIT: Final = SHARED_BIT >> 64
_ENTRY_BYTES: Final = 24


@dataclass(slots=True)
class Usage:
    """What the entries of a piece keep.

    Attributes:
        files: file id → (references, bytes of records) of messages that have no other reference.
        shared: (sequence, location) of those that were added to more than one list.
        body_bytes: bytes of all bodies, shared ones included.
    """

    files: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    shared: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    body_bytes: int = 0


@dataclass(slots=True)
class Piece:
    """Entries of one list, in order.

    Attributes:
        key: sequence that the piece is stored under: at most its first one, above all of the piece
            before it.
        sequences, locations: as in :class:`~tidegate_store_journal.index.pending.PendingList`: two words
            a location, both zero where the entry was removed.
        usage: of what was loaded.
    """

    key: int
    sequences: array[int]
    locations: array[int]
    usage: Usage | None = None


def usage_of(sequences: array[int], locations: array[int]) -> Usage:
    """Count what the entries use; removed ones do not count."""
    usage = Usage()
    highs = locations[1::2]
    if any(high & _HIGH_SHARED_BIT for high in highs):
        _count_one_by_one(usage, sequences, locations)
        return usage
    if not highs:
        return usage
    first = min(highs) >> _HIGH_FILE_SHIFT
    if first and first == max(highs) >> _HIGH_FILE_SHIFT:
        # All in one file, so the sums of bodies and of records are below the file's length and
        # cannot carry into each other: one sum in C gives both.
        total = sum(locations[::2])
        usage.files[first] = (len(highs), total >> 32)
        usage.body_bytes = total & MASK_32
        return usage
    _count_one_by_one(usage, sequences, locations)
    return usage


def _count_one_by_one(usage: Usage, sequences: array[int], locations: array[int]) -> None:
    files = usage.files
    lows, highs = locations[::2], locations[1::2]
    for sequence, low, high in zip(sequences, lows, highs, strict=True):
        if not high:
            continue
        usage.body_bytes += low & MASK_32
        if high & _HIGH_SHARED_BIT:
            usage.shared.append((sequence, low | high << 64))
        else:
            file_id = high >> _HIGH_FILE_SHIFT
            references, record_bytes = files.get(file_id, (0, 0))
            files[file_id] = (references + 1, record_bytes + (low >> 32))


def files_of(piece: Piece) -> set[int]:
    """The data files that its messages are in; cheap for what was just loaded."""
    usage = piece.usage or usage_of(piece.sequences, piece.locations)
    return {*usage.files, *[place >> FILE_SHIFT for _, place in usage.shared]}


def without_removed(piece: Piece) -> Piece:
    """The same piece without removed entries."""
    highs = piece.locations[1::2]
    if 0 not in highs:
        return piece
    lows = piece.locations[::2]
    sequences, locations = array("Q"), array("Q")
    for sequence, low, high in zip(piece.sequences, lows, highs, strict=True):
        if high:
            sequences.append(sequence)
            locations.append(low)
            locations.append(high)
    return Piece(piece.key, sequences, locations)


def encode_piece(key: bytes, piece: Piece) -> bytes:
    """The value under *key*. *piece* has no removed entries."""
    usage = usage_of(piece.sequences, piece.locations)
    head = _HEAD.pack(
        0, len(piece.sequences), len(usage.files), len(usage.shared), usage.body_bytes
    )
    rest = b"".join(
        [
            head[_CRC_BYTES:],
            *[_FILE.pack(file_id, *counts) for file_id, counts in usage.files.items()],
            piece.sequences.tobytes(),
            piece.locations.tobytes(),
        ]
    )
    return crc32c(crc32c(0, key), rest).to_bytes(_CRC_BYTES, "little") + rest


def decode_piece(key: bytes, sequence: int, value: bytes) -> Piece:
    """Read a value back; *sequence* is the one in *key*. Raises: FormatError."""
    if len(value) < _HEAD.size:
        raise FormatError("a piece of a pending list is too short")
    crc, count, files, shared, body_bytes = _HEAD.unpack_from(value)
    begin = _HEAD.size + files * _FILE.size
    if count == 0 or len(value) != begin + count * _ENTRY_BYTES:
        raise FormatError("a piece of a pending list has another length than it says")
    if crc32c(crc32c(0, key), value[_CRC_BYTES:]) != crc:
        raise FormatError("a piece of a pending list is damaged")
    sequences, locations = array("Q"), array("Q")
    middle = begin + 8 * count
    sequences.frombytes(value[begin:middle])
    locations.frombytes(value[middle:])
    usage = Usage(body_bytes=body_bytes)
    for file_id, references, record_bytes in _FILE.iter_unpack(value[_HEAD.size : begin]):
        usage.files[file_id] = (references, record_bytes)
    if shared:
        highs = locations[1::2]
        usage.shared = [
            (sequences[at], locations[2 * at] | high << 64)
            for at, high in enumerate(highs)
            if high & _HIGH_SHARED_BIT
        ]
    return Piece(sequence, sequences, locations, usage)
