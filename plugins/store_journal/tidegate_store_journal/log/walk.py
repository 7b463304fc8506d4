"""One data file, front to back: the only loop over batches that there is.

Replay, the end of the journal, the search for damage and all tools read data files with :func:`walk`.
It trusts nothing but checksums, repairs nothing, and takes no more memory than a few MiB and the
batch that it hands out, whatever a length field says. Everything here blocks.
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

#: Read at once. Longer batches are verified in pieces of this size before they are read whole.
_WINDOW_BYTES: Final = 4 << 20
_SCAN_BYTES: Final = 1 << 20
#: No batch is shorter: its header, and a record without a payload.
BATCH_BYTES_MIN: Final = BATCH_HEADER_BYTES + RECORD_HEADER_BYTES
#: What a batch is taken to have had in a reused file when nothing is left that tells its length.
UNKNOWN_BYTES: Final = 64 << 10


class Batch(NamedTuple):
    """A whole batch.

    Attributes: begin: its offset; next: where the one behind it begins. is_void: it stands for damage
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
        """Behind its records."""
        return self.begin + BATCH_HEADER_BYTES + len(self.payload)


class Gap(NamedTuple):
    """Bytes where a batch should begin and no whole one does, up to the next one or the last of them.

    Attributes:
        header: of the batch at *begin*, when that is whole; newest: the last one that is.
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
    """What lies in *file* from *offset* on, without what its earlier lives left there.

    Args: number: of the first batch; 0: any. searches: False: end where no batch follows, without
        looking for what is behind.
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
    """What lies where the journal ends.

    Attributes: begin, end: the range outside of which nothing is. synced: the highest number that any
        header in it calls synced; first: of the first one that is whole, 0: none.
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
    of clean pages succeeds and proves nothing; (4) the power goes. So they are written once more, as
    they are, before anybody relies on them. A disk cannot be harmed by being told what it has.
    """

    def __init__(self, proven: int = 0) -> None:
        """*proven*: everything up to this batch is known to be on stable storage."""
        self.proven = proven
        self._batches: deque[tuple[int, DataFile, int, int]] = deque()
        self._records: list[tuple[DataFile, int, int]] = []

    def add(self, file: DataFile, batch: Batch) -> None:
        """*batch* of *file* was read; in the order of their numbers."""
        self.proven = max(self.proven, batch.header.synced)
        # Before the end of a batch of a reused file is on disk its mark may not be, either.
        end = batch.end + (len(END_MARK) if file.reused else 0)
        self._batches.append((batch.header.batch, file, batch.begin, end))
        while self._batches and self._batches[0][0] <= self.proven:
            self._batches.popleft()

    def add_record(self, file: DataFile, begin: int, end: int) -> None:
        """One that is read alone: in the directory of a destination."""
        self._records.append((file, begin, end))

    def rewrite(self) -> None:
        """Write them again and sync them: all that was added is proven then. Raises: OSError."""
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
        self.length = min(handle.length, length)  # it may be cut off, or anything may follow
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
            if data != bytes(len(data)):  # ten times as fast as to count the zeros
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
    """Verify a long batch in pieces: what is damaged is not taken into memory."""
    crc, end = file.seed, at + header.payload_bytes
    for begin in range(at, end, _WINDOW_BYTES):
        crc = _format.crc32c(crc, window.read(begin, min(_WINDOW_BYTES, end - begin)))
    return crc == header.payload_crc


def _search(
    file: DataFile, window: _Window, offset: int, number: int
) -> tuple[Gap, BatchHeader | None]:
    """No batch goes on at *offset*: what does, and the header of the next whole one behind."""
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
        # Lower numbers: a message may have the bytes of older batches of this very file.
        if header.batch <= lowest:
            continue
        if _batch_at(file, window, at) is not None:
            return Gap(offset, at, own, newest, True), header
        if newest is None or header.batch > newest.batch:
            newest = header
        end = max(end, at + BATCH_HEADER_BYTES + header.payload_bytes)
    if not file.reused:  # there is nothing but zeros behind
        end = offset
        for at, data in window.pieces(offset):
            end = at + len(data.rstrip(b"\0"))
    elif own is None and window.read(offset, len(END_MARK)).strip(b"\0"):
        end, is_end_known = max(end, offset + UNKNOWN_BYTES), False
    return Gap(offset, min(end, window.length), own, newest, is_end_known), None


def _headers(file: DataFile, window: _Window, begin: int) -> Iterator[tuple[int, BatchHeader]]:
    """Valid headers of batches anywhere behind *begin*."""
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
