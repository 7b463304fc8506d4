"""Reading batches back in the journal's order, and saying what is wrong where they end.

Everything here blocks; nothing else touches the store meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from tidegate.spi import CorruptRecordError
from tidegate_store_journal import _format
from tidegate_store_journal._acklog import AckBlock
from tidegate_store_journal._datafile import DataFile
from tidegate_store_journal._effects import Effects
from tidegate_store_journal._encode import decode_batch
from tidegate_store_journal._format import (
    BATCH_HEADER_BYTES,
    DATA_OFFSET,
    BatchHeader,
    FormatError,
)
from tidegate_store_journal._index import Index
from tidegate_store_journal._storage import File, Storage

_READ_BYTES: Final = 4 << 20

Progress = Callable[[str, int, int], None]


class Replay:
    """A journal that is being read, and how far.

    Attributes:
        index: gets the effects of every batch that was read.
        files: with batches, in the journal's order; spares: without.
        expected: number of the batch that must come next.
        tail, tail_offset: where it must be; None for an empty journal.
        notes: one sentence for everything unusual.
    """

    def __init__(self, storage: Storage, progress: Progress, *, keep_acknowledged: bool) -> None:
        self.storage = storage
        self.progress = progress
        self.index = Index(keep_acknowledged=keep_acknowledged)
        self.files: list[DataFile] = []
        self.spares: list[DataFile] = []
        self.notes: list[str] = []
        self.expected = 1
        self.tail: DataFile | None = None
        self.tail_offset = 0

    def close(self) -> None:
        """Close all files."""
        for file in (*self.files, *self.spares):
            if file.handle is not None:
                file.handle.close()

    def replay(self) -> int:
        """Apply every batch behind the tail, which is behind the last one then.

        Returns: operations. Raises: CorruptRecordError, OSError.
        """
        replayed = 0
        first = self.tail
        offset = self.tail_offset
        todo = self.files[self.files.index(first) :] if first else self.files
        total = sum(file.length for file in todo)
        done = 0
        for file in todo:
            before = replayed
            for header, payload, at in self.batches(file, offset if file is first else DATA_OFFSET):
                self.index.apply(self.decode(file, header, payload, at))
                replayed += header.record_count
                self.progress("replaying the journal", done + at, total)
            if replayed != before:
                self.make_durable(file)
            done += file.length
        return replayed

    def batches(self, file: DataFile, offset: int) -> Iterator[tuple[BatchHeader, bytes, int]]:
        """Valid batches that continue the journal: header, records, where the records begin."""
        assert file.handle is not None
        window = _Window(file.handle)
        while True:
            header = _format.decode_batch_header(file.seed, window.read(offset, BATCH_HEADER_BYTES))
            if header is None or header.batch != self.expected:
                return
            at = offset + BATCH_HEADER_BYTES
            payload = window.read(at, header.payload_bytes)
            if not _format.payload_is_valid(file.seed, header, payload):
                return
            yield header, payload, at
            offset = at + header.payload_bytes
            self.expected = header.batch + 1
            self.tail = file
            self.tail_offset = offset

    def decode(self, file: DataFile, header: BatchHeader, payload: bytes, at: int) -> Effects:
        """The effects of a batch. Raises: CorruptRecordError when a newer version wrote it."""
        try:
            return decode_batch(payload, header, file.file_id, at)
        except FormatError as error:
            raise self.corrupt(
                file.name, at, f"{error}. Open the store with the version that wrote it"
            ) from error

    def count(self, blocks: list[AckBlock], last: int, released: int) -> None:
        """Count references anew, and begin the acknowledged log with *blocks*."""
        missing = self.index.recount(blocks, last, released)
        if missing:
            self.notes.append(
                f"{missing} rows of the acknowledged log could not be found again; it goes on "
                f"behind row {self.index.log.released}."
            )

    def make_durable(self, file: DataFile) -> None:
        """Sync what was just read: it may so far be only in the system's cache (after a kill).

        From now on batch headers call it synced, and the checkpoint names it; both must be true in
        a power cut.
        """
        assert file.handle is not None
        file.handle.datasync()

    def corrupt(self, name: str, offset: int, problem: str) -> CorruptRecordError:
        """The error for *problem*, naming the place."""
        location = f"{self.storage.describe(name)} at offset {offset}"
        return CorruptRecordError(problem, location=location)

    def damaged(self, file: DataFile, offset: int) -> CorruptRecordError:
        """The error for a batch that was on stable storage once."""
        return self.corrupt(
            file.name,
            offset,
            "a batch is damaged that was on disk whole once: later batches say so. Nothing was "
            "changed. Restore the file from a copy, or keep a copy of the directory and ask for "
            "help before anything is cut off",
        )


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
