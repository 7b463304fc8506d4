"""Where a journal is damaged: every data file read front to back, nothing changed.

A *damage* is a stretch of a data file that is not what was written there, although later batches say
that it had been on stable storage. (What was never confirmed is a torn tail, which is ``_tail``'s
business.) Everything here blocks. docs/journal-format.md section 9.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from tidegate_store_journal.log import format as _format
from tidegate_store_journal.log.datafile import DataFile
from tidegate_store_journal.log.format import (
    BATCH_HEADER_BYTES,
    BATCH_MAGIC,
    DATA_OFFSET,
    RECORD_HEADER_BYTES,
    BatchHeader,
    FormatError,
)

_SCAN_BYTES: Final = 1 << 20
#: No batch is shorter: its header, and a record without a payload.
BATCH_BYTES_MIN: Final = BATCH_HEADER_BYTES + RECORD_HEADER_BYTES
#: A batch of unknown length in a reused file, see ``_tail``.
UNKNOWN_BYTES: Final = 64 << 10
_NAMED_MAX: Final = 1000


@dataclass(slots=True)
class Damage:
    """One damaged stretch of a data file.

    Attributes:
        file: where; begin, end: offsets.
        first_batch, last_batch: numbers of the batches that were there.
        last_sequence, last_ack, last_list: counters behind the last of them, as far as known.
        sequence_from, sequence_to: messages that were added there have sequences between these two.
        readable: (sequence, list) of messages in it whose own CRC is right.
        is_end_known: *end* is exact.
    """

    file: DataFile
    begin: int
    end: int
    first_batch: int
    last_batch: int
    last_sequence: int
    last_ack: int
    last_list: int
    sequence_from: int = 0
    sequence_to: int = 0
    readable: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    is_end_known: bool = True

    @property
    def length(self) -> int:
        """Bytes."""
        return self.end - self.begin


@dataclass(slots=True)
class Survey:
    """What a walk over all data files found.

    Attributes:
        damages: in the journal's order; empty: files without any batch that can be read although
            bytes are where one should be.
    """

    damages: list[Damage]
    empty: list[DataFile]


@dataclass(slots=True)
class _Walk:
    """One file, walked."""

    file: DataFile
    first: int = 0
    last: BatchHeader | None = None
    end: int = DATA_OFFSET
    synced: int = 0
    damages: list[Damage] = field(default_factory=list[Damage])


def survey(files: Sequence[DataFile], known_batch: int) -> Survey:
    """Walk *files* (with open handles, in any order).

    Args: known_batch: the highest batch that a checkpoint or the bindings call synced; 0: none.
    Raises: OSError.
    """
    walks: list[_Walk] = []
    empty: list[DataFile] = []
    for file in files:
        walk = _walk(file)
        if walk.first:
            walks.append(walk)
        elif not _begins_empty(file):
            empty.append(file)
    walks.sort(key=lambda walk: walk.first)
    synced = max([known_batch, *(walk.synced for walk in walks)])
    damages: list[Damage] = []
    last_batch = 0
    for number, walk in enumerate(walks):
        is_last = number == len(walks) - 1
        if walk.damages and walk.damages[0].first_batch == 0:
            _number_the_first(walk.damages[0], last_batch)
        following = 0 if is_last else walks[number + 1].first
        found = [*walk.damages, *_end_of(walk, following, known_batch if is_last else 0)]
        damages += [item for item in found if not is_last or item.first_batch <= synced]
        last_batch = max(walk.last.batch if walk.last else 0, *(d.last_batch for d in found), 0)
    for damage in damages:
        _describe(damage)
    return Survey(damages, empty)


def _walk(file: DataFile) -> _Walk:
    """All batches of a file, and what lies between two of them that is none."""
    walk = _Walk(file)
    offset = DATA_OFFSET
    while True:
        header, end = _batch_at(file, offset)
        if header is not None and (walk.last is None or header.batch == walk.last.batch + 1):
            walk.first = walk.first or header.batch
            walk.synced = max(walk.synced, header.synced)
            walk.last = header
            walk.end = offset = end
            continue
        found = _next_batch(file, offset, walk.last.batch + 1 if walk.last else 0)
        if found is None:
            return walk
        at, following = found
        last = walk.last
        own = _header_at(file, offset)
        first = last.batch + 1 if last is not None else (own.batch if own is not None else 0)
        walk.damages.append(
            Damage(
                file,
                offset,
                at,
                first,
                following.batch - 1,
                last_sequence=last.last_sequence if last else 0,
                last_ack=_acks_before(file, at, following),
                last_list=last.last_list if last else 0,
                sequence_from=last.last_sequence + 1 if last else 0,
                sequence_to=following.last_sequence,
            )
        )
        # The batch that was found is looked at next; the file begins with the first damage.
        walk.first = walk.first or first or following.batch
        walk.last = following._replace(batch=following.batch - 1)
        offset = at


def _number_the_first(damage: Damage, last_batch: int) -> None:
    """A file begins with a damage: its first batch is the one behind the file before, if it fits."""
    first = last_batch + 1
    fits = (damage.last_batch - first + 1) * BATCH_BYTES_MIN <= damage.length
    damage.first_batch = first if first <= damage.last_batch and fits else damage.last_batch


def _end_of(walk: _Walk, following: int, known_batch: int) -> list[Damage]:
    """A damage behind the last valid batch of a file, which is there when more must have been.

    *following*: the first batch of the next file, 0 when there is none.
    """
    file, begin, last = walk.file, walk.end, walk.last
    assert last is not None
    assert file.handle is not None
    until = following - 1 if following else known_batch
    damages: list[Damage] = []
    while last.batch < until:
        own = _header_at(file, begin)
        is_known = True
        if own is not None and own.batch == last.batch + 1:
            end = begin + BATCH_HEADER_BYTES + own.payload_bytes
        elif file.reused:
            if not file.handle.pread(len(_format.END_MARK), begin).strip(b"\0"):
                break  # it ends here in order; what is missing was in another file
            own, end, is_known = None, begin + UNKNOWN_BYTES, False
        else:
            own, end = None, _end_of_bytes(file, begin)
        if end <= begin:
            break
        end = min(file.length, max(end, begin + BATCH_BYTES_MIN))
        # How many batches were lost here is not known when files are missing behind.
        most = last.batch + max(1, (end - begin) // BATCH_BYTES_MIN)
        counters = own or last
        damages.append(
            Damage(
                file,
                begin,
                end,
                last.batch + 1,
                min(until, most) if own is None else own.batch,
                last_sequence=counters.last_sequence,
                last_ack=counters.last_ack,
                last_list=counters.last_list,
                sequence_from=last.last_sequence + 1,
                sequence_to=own.last_sequence if own else 0,
                is_end_known=is_known,
            )
        )
        if own is None:
            break
        begin, last = end, own
    return damages


# ---------------------------------------------------------------------------------------- reading


def _header_at(file: DataFile, offset: int) -> BatchHeader | None:
    assert file.handle is not None
    return _format.decode_batch_header(file.seed, file.handle.pread(BATCH_HEADER_BYTES, offset))


def _batch_at(file: DataFile, offset: int) -> tuple[BatchHeader | None, int]:
    """The header of a batch that is whole, and where it ends."""
    header = _header_at(file, offset)
    if header is None:
        return None, offset
    at = offset + BATCH_HEADER_BYTES
    assert file.handle is not None
    payload = file.handle.pread(header.payload_bytes, at)
    if not _format.payload_is_valid(file.seed, header, payload):
        return None, offset
    return header, at + header.payload_bytes


def _next_batch(file: DataFile, offset: int, number: int) -> tuple[int, BatchHeader] | None:
    """The first whole batch behind *offset* with a number above *number*."""
    assert file.handle is not None
    begin = offset + BATCH_BYTES_MIN
    own = _header_at(file, offset)
    if own is not None and own.batch >= number:
        begin = offset + BATCH_HEADER_BYTES + own.payload_bytes  # not inside its own payload
    for at in range(begin, file.length, _SCAN_BYTES):
        data = file.handle.pread(_SCAN_BYTES + BATCH_HEADER_BYTES, at)
        found = data.find(BATCH_MAGIC)
        while 0 <= found < _SCAN_BYTES:
            header = _format.decode_batch_header(
                file.seed, data[found : found + BATCH_HEADER_BYTES]
            )
            if header is not None and header.batch > number and _batch_at(file, at + found)[0]:
                return at + found, header
            found = data.find(BATCH_MAGIC, found + 1)
    return None


def _acks_before(file: DataFile, at: int, header: BatchHeader) -> int:
    """The last row of the acknowledged log before the batch at *at*."""
    assert file.handle is not None
    payload = file.handle.pread(header.payload_bytes, at + BATCH_HEADER_BYTES)
    try:
        for record in _format.iterate_records(payload, header.record_count):
            if record.type == _format.ACKNOWLEDGE:
                first = _format.decode_acknowledge(record)[1]
                if first:
                    return first - 1
    except FormatError:
        pass  # written by a newer version: recovery says so
    return header.last_ack


def _end_of_bytes(file: DataFile, begin: int) -> int:
    assert file.handle is not None
    end = begin
    for at in range(begin, file.length, _SCAN_BYTES):
        data = file.handle.pread(_SCAN_BYTES, at).rstrip(b"\0")
        if data:
            end = at + len(data)
    return end


def _begins_empty(file: DataFile) -> bool:
    """Nothing was ever written to it in this life."""
    assert file.handle is not None
    if file.reused:
        return not file.handle.pread(len(_format.END_MARK), DATA_OFFSET).strip(b"\0")
    return _end_of_bytes(file, DATA_OFFSET) == DATA_OFFSET


def readable_in(file: DataFile) -> list[tuple[int, int]]:
    """(sequence, list) of messages in *file*, which has no whole batch, whose own CRC is right.

    Raises: OSError.
    """
    whole = Damage(file, DATA_OFFSET, file.length, 0, 0, 0, 0, 0)
    _describe(whole)
    return whole.readable


def _describe(damage: Damage) -> None:
    """Name the messages that can still be read in it, for the report."""
    assert damage.file.handle is not None
    length = min(damage.length, 64 << 20)
    data = damage.file.handle.pread(length, damage.begin)
    at = BATCH_HEADER_BYTES
    while at + RECORD_HEADER_BYTES <= len(data) and len(damage.readable) < _NAMED_MAX:
        size, _, sequence, pending_list, _, _, kind = _format.RECORD_HEADER.unpack_from(data, at)
        end = at + RECORD_HEADER_BYTES + size
        if kind == 0 or end > len(data):
            return
        if kind & ~_format.LARGE_BIT in (_format.ADD, _format.MOVE):
            try:
                _format.read_value(data[at:end], sequence)
                damage.readable.append((sequence, pending_list))
            except FormatError:
                pass
        at = end
        if data[at : at + 4] == BATCH_MAGIC:
            at += BATCH_HEADER_BYTES
