"""Reading from the directories of destinations: neighbouring records in one call. Blocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from tidegate.spi import CorruptRecordError, Message, StoreIOError
from tidegate_store_journal.log.format import FormatError
from tidegate_store_journal.split import records as _records
from tidegate_store_journal.split.folders import (
    DAMAGE_ADVICE,
    MISSING_ADVICE,
    MissingRecordError,
    some_of,
)
from tidegate_store_journal.split.recordfolder import RECORD_FILE, Handle, RecordFolder, single_name
from tidegate_store_journal.split.records import Place

#: Records this close together are read in one piece: what lies between costs less than a call.
_GAP_BLOCKS_MAX: Final = 512
#: Longest piece read at once, unless a single record is longer.
_EXTENT_BLOCKS_MAX: Final = 1 << 15


class Piece:
    """Neighbouring records of one file that are read in one call."""

    __slots__ = ("begin", "end", "folder", "handle", "records", "seed", "single")

    def __init__(self, folder: RecordFolder, handle: Handle, seed: int, place: Place) -> None:
        self.folder = folder
        self.handle = handle
        self.seed = seed
        self.single = place.single
        self.begin = self.end = place.number
        self.records: list[tuple[int, int, Place]] = []

    def takes(self, place: Place) -> bool:
        return (
            not place.single
            and not self.single
            and place.folder == self.folder.number
            and self.end <= place.number <= self.end + _GAP_BLOCKS_MAX
            and place.number - self.begin <= _EXTENT_BLOCKS_MAX
        )

    def add(self, number: int, sequence: int, place: Place) -> None:
        self.records.append((number, sequence, place))
        self.end = place.number + _records.blocks_of(place.payload_bytes)


def read_pieces(pieces: Sequence[Piece], count: int) -> list[Message]:
    """In a thread. Raises: CorruptRecordError, StoreIOError."""
    messages: list[Message | None] = [None] * count
    for piece in pieces:
        for number, sequence, payload in read_piece(piece):
            messages[number] = _records.decode_message(payload, sequence)
    return [message for message in messages if message is not None]


def read_piece(piece: Piece) -> Iterable[tuple[int, int, bytes]]:
    """(number, sequence, payload) of every record, verified. Blocks."""
    folder = piece.folder
    name = single_name(piece.begin) if piece.single else RECORD_FILE
    offset = folder.header.data_offset + piece.begin * _records.BLOCK_BYTES
    try:
        if piece.single:
            size = _records.RECORD_HEADER_BYTES + piece.records[0][2].payload_bytes
            file = folder.files.open(name)
            try:
                data = file.pread(size, 0)
            finally:
                file.close()
        else:
            data = piece.handle.file.pread((piece.end - piece.begin) * _records.BLOCK_BYTES, offset)
    except FileNotFoundError as error:
        sequences = [sequence for _, sequence, _ in piece.records]
        raise MissingRecordError(
            f"the file that held message {some_of(sequences)} is missing. {MISSING_ADVICE}",
            location=folder.files.describe(name),
        ) from error
    except OSError as error:
        raise StoreIOError(f"{folder.files.describe(name)}: {error}") from error
    for number, sequence, place in piece.records:
        at = (place.number - piece.begin) * _records.BLOCK_BYTES
        size = _records.RECORD_HEADER_BYTES + place.payload_bytes
        try:
            yield number, sequence, _records.payload_of(piece.seed, data[at : at + size], sequence)
        except FormatError as error:
            where = f"{folder.files.describe(name)} at offset {0 if place.single else offset + at}"
            raise CorruptRecordError(
                f"{error} ({size} bytes are damaged). {DAMAGE_ADVICE}", location=where
            ) from error
