"""How a journal ends: a torn tail is cut off after a copy is kept, damage is refused.

docs/journal-format.md section 4. Everything here blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidegate_store_journal.log import format as _format
from tidegate_store_journal.log.datafile import DataFile
from tidegate_store_journal.log.format import (
    BATCH_HEADER_BYTES,
    BATCH_MAGIC,
    DATA_OFFSET,
    END_MARK,
    BatchHeader,
)
from tidegate_store_journal.log.storage import fresh_name
from tidegate_store_journal.start.replay import Replay

_READ_BYTES: Final = 4 << 20
_SCAN_BYTES: Final = 1 << 20
#: Kept and cut off where a batch was torn so badly in a reused file that its length is not known.
_TORN_BYTES: Final = 64 << 10


def examine_tail(replay: Replay, *, trusted: bool) -> int:
    """Cut off what was never confirmed; refuse damage. Returns bytes cut off.

    *trusted*: the store was closed properly, so only what could be mistaken is looked at.
    """
    tail, offset = replay.tail, replay.tail_offset
    if tail is not None:
        behind = replay.files[replay.files.index(tail) + 1 :]
    else:
        # Older ones are there when the file that the journal went on in is missing.
        behind = [file for file in replay.files if file.first_batch >= replay.expected]
    suspects: list[tuple[DataFile, int, Scan]] = []
    if tail is not None and not trusted:
        suspects.append((tail, offset, scan(tail, offset, replay.expected)))
    for file in (*behind, *replay.spares):
        if trusted and file.first_batch == 0 and _begins_empty(file):
            continue
        suspects.append((file, DATA_OFFSET, scan(file, DATA_OFFSET, replay.expected)))
    suspects = [item for item in suspects if not item[2].is_empty]
    for file, begin, found in suspects:
        for header in found.headers:
            if header.synced >= replay.expected:
                raise replay.damaged(*suspects[0][:2])
            if header.batch < replay.expected:
                raise replay.damaged(file, begin)
    return _cut_off(replay, suspects)


def _cut_off(replay: Replay, suspects: list[tuple[DataFile, int, Scan]]) -> int:
    """Copy first, sync the copies, and only then overwrite: a crash in between repeats it."""
    for file, _, found in suspects:
        assert file.handle is not None
        name = fresh_name(replay.storage, f"{file.name}.{found.begin}.torn")
        replay.notes.append(
            f"A torn tail of {found.end - found.begin} bytes at offset {found.begin} of "
            f"{replay.storage.describe(file.name)} was cut off; nothing in it had been confirmed "
            f"as synced. A copy is kept in {replay.storage.describe(name)}."
        )
        copy = replay.storage.open(name, create=True)
        try:
            for at in range(found.begin, found.end, _READ_BYTES):
                data = file.handle.pread(min(_READ_BYTES, found.end - at), at)
                copy.pwritev([data], at - found.begin)
            copy.datasync()
        finally:
            copy.close()
    if suspects:
        replay.storage.sync_directory()
    for file, _, found in suspects:
        assert file.handle is not None
        if file is replay.tail:
            for at in range(found.begin, found.end, _READ_BYTES):
                file.handle.pwritev([bytes(min(_READ_BYTES, found.end - at))], at)
            file.handle.datasync()
            continue
        file.handle.close()
        file.handle = None
        replay.storage.unlink(file.name)
        (replay.files if file in replay.files else replay.spares).remove(file)
    if suspects:
        replay.storage.sync_directory()
    tail = replay.tail
    if tail is not None and tail.handle is not None and tail.handle.length < tail.length:
        tail.handle.preallocate(tail.length)
        tail.handle.datasync()
    return sum(found.end - found.begin for _, _, found in suspects)


@dataclass(slots=True)
class Scan:
    """Bytes of a file that should not be there.

    Attributes: begin, end: the range outside of which they are; headers: valid batch headers.
    """

    begin: int
    end: int
    headers: list[BatchHeader]

    @property
    def is_empty(self) -> bool:
        return self.end <= self.begin


def scan(file: DataFile, offset: int, expected: int) -> Scan:
    """Look at everything from *offset* on, where batch *expected* could be.

    In a file that was never used before, nothing but zeros may be there. In a reused one bytes of
    earlier lives are everywhere; what counts there are the end mark and headers of this life.
    """
    oldest = file.first_batch or expected
    assert file.handle is not None
    begin = end = offset
    headers: list[BatchHeader] = []
    if file.reused and file.handle.pread(len(END_MARK), offset).strip(b"\0"):
        end = min(file.length, offset + _TORN_BYTES)
    for at in range(offset, file.length, _SCAN_BYTES):
        # The overlap finds a header that lies across two pieces.
        data = file.handle.pread(_SCAN_BYTES + BATCH_HEADER_BYTES, at)
        if data.count(0) == len(data):
            continue
        if not file.reused:
            end = max(end, at + len(data.rstrip(b"\0")))
        found = data.find(BATCH_MAGIC)
        while 0 <= found < _SCAN_BYTES:
            header = _format.decode_batch_header(
                file.seed, data[found : found + BATCH_HEADER_BYTES]
            )
            # In a reused file an earlier life is told by the seed, and by the number besides.
            if header is not None and not (file.reused and header.batch < oldest):
                headers.append(header)
                if file.reused:
                    batch_end = at + found + BATCH_HEADER_BYTES + header.payload_bytes
                    end = max(end, min(file.length, batch_end))
            found = data.find(BATCH_MAGIC, found + 1)
    return Scan(begin, end, headers)


def _begins_empty(file: DataFile) -> bool:
    assert file.handle is not None
    return not file.handle.pread(BATCH_HEADER_BYTES, DATA_OFFSET).strip(b"\0")
