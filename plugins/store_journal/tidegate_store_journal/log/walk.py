"""One data file, front to back: the only loop over batches.

Replay, the end of the journal, the search for damage and all tools read data files with :func:`walk`.
It trusts nothing but checksums, repairs nothing, and takes no more memory than a few MiB and the
batch it returns, whatever a length field says. Everything here blocks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from tidegate_store_journal.log import format as _format
from tidegate_store_journal.log.datafile import DataFile, using
from tidegate_store_journal.log.format import (
    BATCH_HEADER_BYTES,
    BATCH_MAGIC,
    DATA_OFFSET,
    END_MARK,
    RECORD_HEADER_BYTES,
    BatchHeader,
)
from tidegate_store_journal.log.storage import File

#: Bytes read at once. Longer batches are verified in pieces of this size before they are read whole.
_WINDOW_BYTES: Final = 4 << 20
_SCAN_BYTES: Final = 1 << 20
#: No batch is shorter: its header, and a record without a payload.
BATCH_BYTES_MIN: Final = BATCH_HEADER_BYTES + RECORD_HEADER_BYTES
#: The assumed length of a batch in a reused file when nothing left shows it.
UNKNOWN_BYTES: Final = 64 << 10


class Batch(NamedTuple):
    """A whole batch.

    Attributes: begin: its offset; next: where the next one begins. is_void: it stands for damage
        that was taken out, and so for all batches up to its number.
    """

    header: BatchHeader
    payload: bytes
    begin: int
    next: int
    is_void: bool

    @property
    def at(self) -> int:
        """Where its records begin."""
        return self.begin + BATCH_HEADER_BYTES

    @property
    def end(self) -> int:
        """The end of its records."""
        return self.begin + BATCH_HEADER_BYTES + len(self.payload)


class Gap(NamedTuple):
    """Bytes where a batch should begin but no whole one does, up to the next one or the end of them.

    Attributes:
        header: of the batch at *begin*, if it is whole; newest: the last whole one.
        is_end_known: *end* is exact.
    """

    begin: int
    end: int
    header: BatchHeader | None
    newest: BatchHeader | None
    is_end_known: bool

    @property
    def synced(self) -> int:
        """The highest number that a header in here calls synced."""
        return self.newest.synced if self.newest is not None else 0


def walk(
    file: DataFile,
    offset: int = DATA_OFFSET,
    *,
    number: int = 0,
    searches: bool = True,
) -> Iterator[Batch | Gap]:
    """What is in *file* from *offset* on, without leftovers of its earlier lives.

    Args: number: of the first batch; 0: any. searches: False: end where no batch follows, without
        searching further.
    Raises: OSError.
    """
    with using(file) as handle:
        window = _Window(handle, file.length)
        while True:
            batch = _batch_at(file, window, offset)
            if batch is not None and _continues(batch, number):
                yield batch
                offset, number = batch.next, batch.header.batch + 1
            elif searches:
                gap, found = _search(file, window, offset, number)
                if gap.end > gap.begin:
                    yield gap
                if found is None:
                    return
                offset, number = gap.end, found.batch
            else:
                return


class Remains(NamedTuple):
    """What is left where the journal ends.

    Attributes: begin, end: nothing is outside this range. synced: the highest number that any
        header in it calls synced; first: of the first whole one, 0: none.
    """

    file: DataFile
    begin: int
    end: int
    synced: int
    first: int


def remains(file: DataFile, offset: int, number: int) -> Remains:
    """Look at everything from *offset* on, where batch *number* could be. Raises: OSError."""
    end, synced, first = offset, 0, 0
    for item in walk(file, offset, number=number):
        end = max(end, item.end)
        newest = item.header if isinstance(item, Batch) else item.newest
        if newest is not None:
            synced, first = max(synced, newest.synced), first or newest.batch
    return Remains(file, offset, end, synced, first)


class Unproven:
    """Batches that were read back and that no later one calls synced.

    Crash story: (1) a sync fails, the log says *restart*; (2) the new process reads the batches from
    the system's cache, where they are called clean although the disk never got them; (3) its own sync
    of clean pages succeeds and proves nothing; (4) the power goes. So they are written again
    unchanged before anybody relies on them. That cannot harm the disk.
    """

    def __init__(self, proven: int = 0) -> None:
        """*proven*: everything up to this batch is known to be on stable storage."""
        self.proven = proven
        self._batches: deque[tuple[int, DataFile, int, int]] = deque()
        self._records: list[tuple[DataFile, int, int]] = []

    def add(self, file: DataFile, batch: Batch) -> None:
        """*batch* of *file* was read; call this in batch order."""
        self.proven = max(self.proven, batch.header.synced)
        # Until the end of a batch in a reused file is on disk, its mark may not be, either.
        end = batch.end + (len(END_MARK) if file.reused else 0)
        self._batches.append((batch.header.batch, file, batch.begin, end))
        while self._batches and self._batches[0][0] <= self.proven:
            self._batches.popleft()

    def add_record(self, file: DataFile, begin: int, end: int) -> None:
        """A record that is read alone: in the directory of a destination."""
        self._records.append((file, begin, end))

    def rewrite(self) -> None:
        """Write them again and sync them: this proves everything added. Raises: OSError."""
        stretches: dict[DataFile, list[tuple[int, int]]] = {}
        for file, begin, end in (*(batch[1:] for batch in self._batches), *self._records):
            stretches.setdefault(file, []).append((begin, min(end, file.length)))
        for file, parts in stretches.items():
            with using(file) as handle:
                for begin, end in parts:
                    for at in range(begin, end, _WINDOW_BYTES):
                        data = handle.pread(min(_WINDOW_BYTES, end - at), at)
                        handle.pwritev([data], at)
                handle.datasync()
        self._batches.clear()
        self._records.clear()


# ---------------------------------------------------------------------------------------- reading


class _Window:
    """Reads a file front to back in large pieces."""

    def __init__(self, handle: File, length: int) -> None:
        self._handle = handle
        self.length = min(handle.length, length)  # it may be cut off, or something may follow
        self._begin = 0
        self._data = b""

    def read(self, offset: int, length: int) -> bytes:
        """Up to *length* bytes at *offset*; fewer at the end of the file."""
        begin = offset - self._begin
        if begin < 0 or begin + length > len(self._data):
            wanted = min(max(_WINDOW_BYTES, length), max(0, self.length - offset))
            self._data = self._handle.pread(wanted, offset)
            self._begin = offset
            begin = 0
        return self._data[begin : begin + length]

    def pieces(self, offset: int, overlap: int = 0) -> Iterator[tuple[int, bytes]]:
        """Everything from *offset* on that is not zero, in pieces: offset, bytes."""
        for at in range(offset, self.length, _SCAN_BYTES):
            data = self.read(at, _SCAN_BYTES + overlap)
            if data != bytes(len(data)):  # ten times as fast as counting the zeros
                yield at, data


def _continues(batch: Batch, number: int) -> bool:
    found = batch.header.batch
    return not number or found == number or (found > number and batch.is_void)


def _batch_at(file: DataFile, window: _Window, offset: int) -> Batch | None:
    header = _format.decode_batch_header(file.seed, window.read(offset, BATCH_HEADER_BYTES))
    at = offset + BATCH_HEADER_BYTES
    if header is None or at + header.payload_bytes > window.length:
        return None
    if header.payload_bytes > _WINDOW_BYTES and not _is_whole(file, window, header, at):
        return None
    payload = window.read(at, header.payload_bytes)
    if not _format.payload_is_valid(file.seed, header, payload):
        return None
    behind = _format.void_until(payload) if header.record_count == 1 else 0
    end = at + header.payload_bytes
    return Batch(header, payload, offset, max(end, behind), behind > 0)


def _is_whole(file: DataFile, window: _Window, header: BatchHeader, at: int) -> bool:
    """Verify a long batch in pieces, so that damaged ones are not taken into memory."""
    crc, end = file.seed, at + header.payload_bytes
    for begin in range(at, end, _WINDOW_BYTES):
        crc = _format.crc32c(crc, window.read(begin, min(_WINDOW_BYTES, end - begin)))
    return crc == header.payload_crc


def _search(
    file: DataFile, window: _Window, offset: int, number: int
) -> tuple[Gap, BatchHeader | None]:
    """No batch continues at *offset*: what does, and the header of the next whole one after it."""
    own = _format.decode_batch_header(file.seed, window.read(offset, BATCH_HEADER_BYTES))
    if own is not None and own.batch < number:
        own = None
    end, newest, is_end_known = offset, own, True
    begin = offset + BATCH_BYTES_MIN
    if own is not None:
        begin = offset + BATCH_HEADER_BYTES + own.payload_bytes  # not inside its own payload
        end = begin
    lowest = own.batch if own is not None else number
    for at, header in _headers(file, window, begin):
        # Lower numbers: a message may contain older batches of this very file.
        if header.batch <= lowest:
            continue
        if _batch_at(file, window, at) is not None:
            return Gap(offset, at, own, newest, True), header
        if newest is None or header.batch > newest.batch:
            newest = header
        end = max(end, at + BATCH_HEADER_BYTES + header.payload_bytes)
    if not file.reused:  # only zeros follow
        end = offset
        for at, data in window.pieces(offset):
            end = at + len(data.rstrip(b"\0"))
    elif own is None and window.read(offset, len(END_MARK)).strip(b"\0"):
        end, is_end_known = max(end, offset + UNKNOWN_BYTES), False
    return Gap(offset, min(end, window.length), own, newest, is_end_known), None


def _headers(file: DataFile, window: _Window, begin: int) -> Iterator[tuple[int, BatchHeader]]:
    """Valid headers of batches anywhere after *begin*."""
    # The overlap finds a header that lies across two pieces.
    for at, data in window.pieces(begin, BATCH_HEADER_BYTES):
        found = data.find(BATCH_MAGIC)
        while 0 <= found < _SCAN_BYTES:
            header = _format.decode_batch_header(
                file.seed, data[found : found + BATCH_HEADER_BYTES]
            )
            if header is not None:
                yield at + found, header
            found = data.find(BATCH_MAGIC, found + 1)
