"""Counting what is in one data file, without an index.

Nothing here trusts more than checksums; nothing is repaired, and everything blocks. A gateway may
write or put away what is read at the same time: the caller decides what a problem means.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from tidegate_store_journal.index.acklog import decode_block
from tidegate_store_journal.index.references import Held
from tidegate_store_journal.log import format as _format
from tidegate_store_journal.log import records as _records
from tidegate_store_journal.log.datafile import DataFile, using
from tidegate_store_journal.log.format import (
    MASK_32,
    RECORD_HEADER_BYTES,
    FormatError,
    Record,
    location_parts,
)
from tidegate_store_journal.log.walk import Batch
from tidegate_store_journal.start.damage import Walked

#: The bit above these says where a message's body is, not what the record is.
_KIND_BITS: Final = 0x7F
#: Records that hold a message.
_WITH_MESSAGE: Final = frozenset({_format.ADD, _format.COPY})


def _words(name: str) -> str:
    return re.sub(r"(?<=[a-z])([A-Z])", r" \1", name).lower().replace("inflight", "in-flight")


#: Names of record types for operators: the operation's, where there is one.
RECORD_NAMES: Final = {
    **{kind.type: _words(kind.operation.__name__) for kind in _records.KINDS},
    _format.ADD: "add",
    _format.ACKNOWLEDGE: "acknowledge",
    _format.DELIVERY: "delivery",
    _format.COPY: "copy",
    _format.COPIED_ROWS: "copied rows",
    _format.REFERENCE: "reference",
    _format.COPY_REFERENCE: "copy reference",
    _format.VOID: "void",  # in place of damage taken out
}


class Census(Walked):
    """What one data file holds.

    Attributes: batches, records: how many; types: records by name of their type.
        problems: (offset in the file, what is wrong) with records of whole batches.
    """

    def __init__(self, file: DataFile, *, checks: bool = False) -> None:
        """With *checks* every record's own checksum and value are read too. Raises: OSError."""
        self.batches = self.records = 0
        self.problems: list[tuple[int, str]] = []
        self._checks = checks
        self._types: Counter[int] = Counter()
        super().__init__(file)
        self.types = {_name_of(number): count for number, count in sorted(self._types.items())}

    def visit(self, batch: Batch) -> None:
        """See Walked."""
        self.batches += 1
        try:
            for record in _format.iterate_records(batch.payload, batch.header.record_count):
                self._types[record.type] += 1
                self.records += 1
                problem = _problem(batch.payload, record) if self._checks else ""
                if problem:
                    self.problems.append((batch.at + record.offset, problem))
        except FormatError as error:
            self.problems.append((batch.at, str(error)))


def unreadable(file: DataFile, held: Sequence[Held]) -> Iterator[tuple[int, str]]:
    """Which of the messages *held* in a file are not in any batch of it. Raises: OSError."""
    with using(file) as handle:
        for sequence, one in {item.sequence: item for item in reversed(held)}.items():
            _, offset, size, _ = location_parts(one.location)
            try:
                _records.read_message(handle.pread(size, offset), sequence)
            except FormatError as error:
                who = f"list {one.pending_list}" if one.pending_list else "the acknowledged log"
                yield offset, f"message {sequence}, which {who} holds: {error}"


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
            _records.read_message(header + record.payload, record.sequence)
        elif record.type == _format.ACKNOWLEDGE:
            _records.decode_acknowledge(record)
        elif record.type == _format.COPIED_ROWS:
            decode_block(record.payload)
        elif record.type in (_format.REFERENCE, _format.COPY_REFERENCE):
            _records.decode_reference(record)
        elif record.type != _format.VOID:
            _records.decode_operation(record)
    except FormatError as error:
        return str(error)
    return ""
