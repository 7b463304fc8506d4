"""The batch that compaction writes: messages copied from one data file, with all their references.

docs/journal-format.md section 6. Only messages that are still where they were found are copied, and
only when *every* reference to them is known: a message is never in two places.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidegate_store_journal.index.acklog import AckBlock
from tidegate_store_journal.index.effects import Effects
from tidegate_store_journal.index.index import Index
from tidegate_store_journal.log import format as _format
from tidegate_store_journal.log.format import (
    MASK_32,
    RECORD_HEADER_BYTES,
    encode_record,
    location,
    pack_integers,
)
from tidegate_store_journal.log.records import encode_reference
from tidegate_store_journal.write.encode import EncodedBatch, mark_shared

#: What a record takes besides the message: its header and two or three further lists.
RECORD_OVERHEAD_BYTES: Final = RECORD_HEADER_BYTES + 24


@dataclass(slots=True)
class Found:
    """A message in the file that is compacted: its place, and who refers to it.

    Attributes: lists: pending lists; rows: ack sequences of the acknowledged log.
    """

    sequence: int
    location: int
    lists: list[int] = field(default_factory=list[int])
    rows: list[int] = field(default_factory=list[int])


def encode_copies(
    messages: Iterable[tuple[Found, bytes]],
    file_id: int,
    offset: int,
    index: Index,
    places: Mapping[int, int] | None = None,
) -> EncodedBatch | None:
    """Copy *messages* (with their encoded values) to *offset* of the file.

    *places*: by sequence, where the copies are already: in the directory of their destination.

    Returns: None when there is nothing left to copy.
    """
    effects = Effects(file_id)
    base = location(file_id, offset, 0, 0)
    parts: list[bytes] = []
    rows: list[int] = []
    at = 0
    for found, value in messages:
        sequence, old = found.sequence, found.location
        lists, held_rows = holders(index, found)
        if not lists and not held_rows:
            continue
        if len(lists) + len(held_rows) != index.held(sequence):
            continue  # somebody acknowledged it meanwhile: found again in the next round
        body = index.large.bodies.get(sequence)
        if body is not None:
            effects.large.append((sequence, body))
        if places is not None:
            place = places[sequence]
            record = encode_reference(_format.COPY_REFERENCE, sequence, place, lists, synced=True)
        else:
            prefix = pack_integers(lists[1:])
            record = encode_record(
                _format.COPY if body is None else _format.COPY | _format.LARGE_BIT,
                prefix + value,
                sequence=sequence,
                pending_list=lists[0] if lists else 0,
                prefix_bytes=len(prefix),
                body_bytes=old & MASK_32,
            )
            place = base + (at << 64 | len(record) << 32 | old & MASK_32)
        effects.copies.append((sequence, place, tuple(lists)))
        rows += held_rows
        parts.append(record)
        at += len(record)
    if not parts:
        return None
    for block in _blocks_of(sorted(rows), index):
        effects.copied_rows.append(block)
        parts.append(
            encode_record(_format.COPIED_ROWS, block.encode(), pending_list=block.pending_list)
        )
    mark_shared(effects)
    effects.last_sequence = index.last_sequence
    effects.last_ack = index.log.last
    effects.last_list = index.last_list
    return EncodedBatch(b"".join(parts), len(parts), effects)


def holders(index: Index, found: Found) -> tuple[list[int], list[int]]:
    """Which of the lists and rows that referred to a message where it was found still do."""

    def is_in(list_id: int) -> bool:
        pending = index.lists.get(list_id)
        return pending is not None and pending.get(found.sequence) == found.location

    rows = [row for row in found.rows if index.log.location_of(row) == found.location]
    return list(filter(is_in, found.lists)), rows


def _blocks_of(rows: Sequence[int], index: Index) -> list[AckBlock]:
    """*rows* as blocks without locations, neighbours of one block together."""
    blocks: list[AckBlock] = []
    begin = 0
    while begin < len(rows):
        owner = index.log.block_of(rows[begin])
        end = begin + 1
        while end < len(rows) and rows[end] == rows[end - 1] + 1 and rows[end] <= owner.last:
            end += 1
        first = rows[begin] - owner.first
        blocks.append(owner.part(first, first + end - begin).located(()))
        begin = end
    return blocks
