"""Counting what is in one data file, without an index.

Nothing here trusts more than checksums; nothing is repaired, and everything blocks. What is read may
be written or put away by a gateway at the same time: the caller decides what a problem means.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from tidegate_store_journal.index.acklog import decode_block
from tidegate_store_journal.index.references import Held
from tidegate_store_journal.log import format as _format
from tidegate_store_journal.log import records as _records
from tidegate_store_journal.log.datafile import DataFile, using
from tidegate_store_journal.log.format import (
    DATA_OFFSET,
    MASK_32,
    RECORD_HEADER_BYTES,
    FormatError,
    Record,
    location_parts,
)
from tidegate_store_journal.log.walk import Gap, walk

#: The bit above them says where the body of a message is, not what the record is.
_KIND_BITS: Final = 0x7F
#: Records that hold a message.
_WITH_MESSAGE: Final = frozenset({_format.ADD, _format.COPY})


def _words(name: str) -> str:
    return re.sub(r"(?<=[a-z])([A-Z])", r" \1", name).lower().replace("inflight", "in-flight")


#: What the types of records are called where people read it: as the operation, where it is one.
RECORD_NAMES: Final = {
    **{kind.type: _words(kind.operation.__name__) for kind in _records.KINDS},
    _format.ADD: "add",
    _format.ACKNOWLEDGE: "acknowledge",
    _format.DELIVERY: "delivery",
    _format.COPY: "copy",
    _format.COPIED_ROWS: "copied rows",
    _format.REFERENCE: "reference",
    _format.COPY_REFERENCE: "copy reference",
    _format.VOID: "void",  # in place of damage that was taken out
}


@dataclass(slots=True)
class Census:
    """What one data file holds.

    Attributes:
        first_batch, last_batch: numbers; 0 for a file without batches.
        batches, records: how many; types: records by what they are called.
        end: offset behind the last whole batch.
        synced: the highest batch that a header calls synced.
        gaps: where no whole batch is, the number of the one that should be, and batches in front.
        problems: (offset in the file, what is wrong) with records of whole batches.
    """

    first_batch: int = 0
    last_batch: int = 0
    batches: int = 0
    records: int = 0
    types: dict[str, int] = field(default_factory=dict[str, int])
    end: int = DATA_OFFSET
    synced: int = 0
    gaps: list[tuple[Gap, int, int]] = field(default_factory=list[tuple[Gap, int, int]])
    problems: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])


def take_census(file: DataFile, *, checks: bool = False, held: Iterable[Held] = ()) -> Census:
    """Count what is in *file*. With *checks* every record's own checksum and value are read too.

    Args: held: what must be there, sorted by location.
    Raises: OSError.
    """
    census = Census()
    wanted, missed = deque(held), list[Held]()
    types: dict[int, int] = {}
    for item in walk(file):
        if isinstance(item, Gap):
            census.gaps.append((item, census.last_batch + 1, census.batches))
            census.synced = max(census.synced, item.synced)
            continue
        header = item.header
        census.first_batch = census.first_batch or header.batch
        census.last_batch = header.batch
        census.synced = max(census.synced, header.synced)
        census.batches += 1
        census.end = item.next
        try:
            for record in _format.iterate_records(item.payload, header.record_count):
                types[record.type] = types.get(record.type, 0) + 1
                census.records += 1
                problem = _problem(item.payload, record) if checks else ""
                if problem:
                    census.problems.append((item.at + record.offset, problem))
                if wanted:
                    missed += _meet(wanted, item.at + record.offset, record)
        except FormatError as error:
            census.problems.append((item.at, str(error)))
    missed += _meet(wanted, file.length, None)
    census.problems += _unreadable(file, missed)
    census.types = {_name_of(number): count for number, count in sorted(types.items())}
    return census


def _meet(wanted: deque[Held], offset: int, record: Record | None) -> Iterator[Held]:
    """Take what must be at *offset* or before it from *wanted*. Returns: what is not there."""
    while wanted and (place := location_parts(wanted[0].location))[1] <= offset:
        one = wanted.popleft()
        if (
            record is None
            or place[1] != offset
            or record.sequence != one.sequence
            or place[2] != RECORD_HEADER_BYTES + len(record.payload)
        ):
            yield one


def _unreadable(file: DataFile, missed: list[Held]) -> Iterator[tuple[int, str]]:
    """Of what is in no whole batch: a message counts when its own record is whole."""
    with using(file) as handle:
        for sequence, group in groupby(missed, key=lambda item: item.sequence):
            one = next(group)
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
