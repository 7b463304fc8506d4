"""Walking through one data file without an index: its batches, its records, and where they end.

Nothing here trusts more than checksums; nothing is repaired, and everything blocks. What is read may
be written or put away by a gateway at the same time: the caller decides what a problem means.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from tidegate_store_journal.index.acklog import decode_block
from tidegate_store_journal.log import format as _format
from tidegate_store_journal.log.datafile import DataFile
from tidegate_store_journal.log.format import (
    BATCH_HEADER_BYTES,
    DATA_OFFSET,
    FILE_HEADER_BYTES,
    MASK_32,
    RECORD_HEADER_BYTES,
    BatchHeader,
    FormatError,
    Record,
)
from tidegate_store_journal.log.storage import File, Folder

_READ_BYTES: Final = 4 << 20
#: The bit above them says where the body of a message is, not what the record is.
_KIND_BITS: Final = 0x7F
#: Records that hold a message.
_WITH_MESSAGE: Final = frozenset({_format.ADD, _format.MOVE, _format.COPY})

#: What the types of records are called where people read it.
RECORD_NAMES: Final = {
    _format.ADD: "add",
    _format.ACKNOWLEDGE: "acknowledge",
    _format.DISCARD: "discard",
    _format.MOVE: "move",
    _format.DELIVERY: "delivery",
    _format.ADD_DESTINATION: "add destination",
    _format.REMOVE_DESTINATION: "remove destination",
    _format.PUT_SUBSCRIPTION: "put subscription",
    _format.REMOVE_SUBSCRIPTION: "remove subscription",
    _format.SET_RETAINED: "set retained",
    _format.CLEAR_RETAINED: "clear retained",
    _format.PUT_SESSION: "put session",
    _format.REMOVE_SESSION: "remove session",
    _format.PUT_INFLIGHT: "put in-flight",
    _format.REMOVE_INFLIGHT: "remove in-flight",
    _format.COPY: "copy",
    _format.COPIED_ROWS: "copied rows",
    _format.REFERENCE: "reference",
    _format.COPY_REFERENCE: "copy reference",
    _format.PUT_BRANCH: "put branch",
    _format.REMOVE_BRANCH: "remove branch",
    _format.ADD_DUPLICATE_ID: "add duplicate id",
    _format.FORGET_DUPLICATE_IDS: "forget duplicate ids",
    _format.VOID: "void",  # in place of damage that was taken out
}


@dataclass(slots=True)
class Census:
    """What one data file holds.

    Attributes:
        first_batch, last_batch: numbers; 0 for a file without batches.
        batches, records: how many; types: records by what they are called.
        end: offset behind the last whole batch.
        problems: (offset in the file, what is wrong) with records of whole batches.
    """

    first_batch: int = 0
    last_batch: int = 0
    batches: int = 0
    records: int = 0
    types: dict[str, int] = field(default_factory=dict[str, int])
    end: int = DATA_OFFSET
    problems: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])


def open_file(storage: Folder, name: str) -> DataFile:
    """The data file *name*, open. Raises: FormatError (its header), OSError."""
    handle = storage.open(name)
    try:
        header = _format.decode_file_header(handle.pread(FILE_HEADER_BYTES, 0))
    except BaseException:
        handle.close()
        raise
    return DataFile(
        header.file_id, header.length, header.seed, handle, home=storage, reused=header.reused
    )


def batches(file: DataFile) -> Iterator[tuple[BatchHeader, bytes, int]]:
    """Whole batches from the beginning, one behind the other: header, records, where these begin."""
    assert file.handle is not None
    window = _Window(file.handle)
    offset = DATA_OFFSET
    expected = 0
    while True:
        header = _format.decode_batch_header(file.seed, window.read(offset, BATCH_HEADER_BYTES))
        if header is None or (expected and header.batch != expected):
            return
        at = offset + BATCH_HEADER_BYTES
        payload = window.read(at, header.payload_bytes)
        if not _format.payload_is_valid(file.seed, header, payload):
            return
        yield header, payload, at
        offset = at + header.payload_bytes
        expected = header.batch + 1


def take_census(file: DataFile, *, checks: bool = False) -> Census:
    """Count what is in *file*. With *checks* every record's own checksum and value are read too."""
    census = Census()
    types: dict[int, int] = {}
    for header, payload, at in batches(file):
        census.first_batch = census.first_batch or header.batch
        census.last_batch = header.batch
        census.batches += 1
        census.end = at + header.payload_bytes
        try:
            for record in _format.iterate_records(payload, header.record_count):
                types[record.type] = types.get(record.type, 0) + 1
                census.records += 1
                if checks:
                    problem = _problem(payload, record)
                    if problem:
                        census.problems.append((at + record.offset, problem))
        except FormatError as error:
            census.problems.append((at, str(error)))
    census.types = {_name_of(number): count for number, count in sorted(types.items())}
    return census


def _name_of(number: int) -> str:
    if number in RECORD_NAMES:
        return RECORD_NAMES[number]
    name = RECORD_NAMES.get(number & _KIND_BITS, f"type {number}")
    return name if number <= _KIND_BITS else f"large {name}"


def _problem(payload: bytes, record: Record) -> str:
    """What is wrong with a record inside a whole batch; "" when nothing is."""
    begin = record.offset
    header = payload[begin : begin + RECORD_HEADER_BYTES]
    stored = _format.RECORD_HEADER.unpack(header)[1]
    if _format.crc32c(record.sequence & MASK_32, record.payload) != stored:
        return f"the CRC of a record ({_name_of(record.type)}) does not match"
    try:
        if record.type & _KIND_BITS in _WITH_MESSAGE:
            _format.read_message(header + record.payload, record.sequence)
        elif record.type == _format.ACKNOWLEDGE:
            _format.decode_acknowledge(record)
        elif record.type == _format.COPIED_ROWS:
            decode_block(record.payload)
        elif record.type in (_format.REFERENCE, _format.COPY_REFERENCE):
            _format.decode_reference(record)
        elif record.type != _format.VOID:
            _format.decode_operation(record)
    except FormatError as error:
        return str(error)
    return ""


class _Window:
    """Reads a file front to back in large pieces."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._begin = 0
        self._data = b""

    def read(self, offset: int, length: int) -> bytes:
        """Up to *length* bytes at *offset*; fewer at the end of the file."""
        begin = offset - self._begin
        if begin < 0 or begin + length > len(self._data):
            self._data = self._file.pread(max(_READ_BYTES, length), offset)
            self._begin = offset
            begin = 0
        return self._data[begin : begin + length]
