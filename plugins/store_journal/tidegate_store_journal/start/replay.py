"""Reading batches back in the journal's order, and saying what is wrong where they end.

Everything here blocks; nothing else touches the store meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from tidegate.spi import CorruptRecordError
from tidegate_store_journal.bodies.folders import Found
from tidegate_store_journal.index.acklog import AckBlock
from tidegate_store_journal.index.effects import Effects
from tidegate_store_journal.index.index import Index
from tidegate_store_journal.log import format as _format
from tidegate_store_journal.log.datafile import DataFile
from tidegate_store_journal.log.encode import decode_batch
from tidegate_store_journal.log.format import (
    BATCH_HEADER_BYTES,
    DATA_OFFSET,
    BatchHeader,
    FormatError,
)
from tidegate_store_journal.log.storage import File, Storage

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
        elsewhere: what is in the directories of destinations.
        unsynced: (sequence, location) of replayed messages there that were not synced before the
            batch that refers to them.
        may_skip: data files may be missing: the journal goes on with the next one there is.
    """

    def __init__(self, storage: Storage, progress: Progress, *, keep_acknowledged: bool) -> None:
        self.storage = storage
        self.progress = progress
        self.index = Index(keep_acknowledged=keep_acknowledged)
        self.files: list[DataFile] = []
        self.spares: list[DataFile] = []
        self.elsewhere = Found()
        self.unsynced: list[tuple[int, int]] = []
        self.notes: list[str] = []
        self.may_skip = False
        self.known_batch = 0  # the journal must not go on with a smaller number
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
            if self.may_skip and file.first_batch > self.expected:
                self.notes.append(
                    f"Batches {self.expected} to {file.first_batch - 1} are missing; the journal "
                    f"goes on in {file.name}."
                )
                self.expected = file.first_batch
            for header, payload, at in self.batches(file, offset if file is first else DATA_OFFSET):
                effects = self.decode(file, header, payload, at)
                self._close_gap_in_log(effects)
                self.index.apply(effects)
                self.unsynced += effects.unsynced
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

    def go_on_behind_the_missing(self) -> None:
        """The newest files are missing: go on in a new one, with numbers that were never used."""
        if self.may_skip and self.known_batch >= self.expected:
            self.notes.append(
                f"Batches {self.expected} to {self.known_batch} are missing at the end of "
                "the journal."
            )
            self.index.batch = self.known_batch
            self.tail = None

    def _close_gap_in_log(self, effects: Effects) -> None:
        """Rows were in batches that are lost: no reader may see the gap, so it begins behind it."""
        log = self.index.log
        first = next((number for number in effects.ack_firsts if number), 0)
        end = first - 1 if first else effects.last_ack
        if not self.index.keep_acknowledged or end <= log.last:
            return
        self.notes.append(
            f"Rows {log.released + 1} to {end} of the acknowledged log are lost to sinks that had "
            f"not taken them: {log.last + 1} to {end} were in a part of the journal that is lost."
        )
        self.index.release(log.last)
        log.last = log.released = end

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

    @staticmethod
    def _length_of(file: DataFile, offset: int) -> str:
        """How much is damaged, as far as the batch itself says so."""
        assert file.handle is not None
        header = _format.decode_batch_header(
            file.seed, file.handle.pread(BATCH_HEADER_BYTES, offset)
        )
        if header is None:
            return "from here on, length unknown,"
        return f"of {BATCH_HEADER_BYTES + header.payload_bytes} bytes"

    def damaged(self, file: DataFile, offset: int) -> CorruptRecordError:
        """The error for a batch that was on stable storage once."""
        return self.corrupt(
            file.name,
            offset,
            f"a batch {self._length_of(file, offset)} is damaged that was on disk whole once: later "
            "batches say so. Nothing was changed. Restore the file from a copy; or set "
            "damaged_journal_policy = 'quarantine' in [store] to keep a copy of the damaged part, "
            "take it out, and serve the rest",
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
