"""Reading the bindings journal back: docs/journal-format.md section 6. Everything here blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from tidegate.spi import CorruptRecordError
from tidegate_store_journal.checkpoint.bindings import BindingsFile, Found, Mark
from tidegate_store_journal.index.index import Index
from tidegate_store_journal.log import format as _format
from tidegate_store_journal.log.datafile import DataFile
from tidegate_store_journal.log.format import (
    BATCH_HEADER_BYTES,
    BATCH_MAGIC,
    BINDINGS,
    DATA_OFFSET,
    FILE_HEADER_BYTES,
    RECORD_HEADER_BYTES,
    BatchHeader,
    FormatError,
)
from tidegate_store_journal.log.storage import Storage, fresh_name
from tidegate_store_journal.start.lossreport import LossReport


def read_bindings(storage: Storage, names: Sequence[str], index: Index, *, mends: bool) -> Found:
    """Read the small state into *index*, up to the last mark.

    Args: mends: go on behind what is damaged, and have everything written anew.
    Raises: CorruptRecordError; OSError.
    """
    return _Reader(storage, index, mends=mends).read(names)


def keep_damaged(storage: Storage, found: Found, report: LossReport) -> None:
    """Copy damaged files aside, before they are written anew. Raises: OSError."""
    for name, offset, problem in found.problems:
        copy_name = fresh_name(storage, f"{name}.damaged")
        source, copy = storage.open(name), storage.open(copy_name, create=True)
        try:
            copy.pwritev([source.pread(source.length, 0)], 0)
            copy.datasync()
        finally:
            source.close()
            copy.close()
        report.add_note(
            f"{storage.describe(name)} at offset {offset}: {problem}. Destinations, subscriptions, "
            "sessions, packet ids and retained messages that it held are lost, or are as they were "
            f"before. A copy is kept in {storage.describe(copy_name)}."
        )
    if found.problems:
        storage.sync_directory()
        report.write()


class _Reader:
    def __init__(self, storage: Storage, index: Index, *, mends: bool) -> None:
        self._storage = storage
        self._index = index
        self._mends = mends
        self.found = Found()
        self._rest = b""  # of a record that goes on in the next batch
        self._rest_at = 0  # its position
        self._segment: list[tuple[_format.Record, int]] = []

    def read(self, names: Sequence[str]) -> Found:
        found = self.found
        files: list[DataFile] = []
        for name in sorted(names):
            if _format.BINDINGS_NAME.fullmatch(name):
                found.next_file_id = max(found.next_file_id, _format.file_id_of(name) + 1)
                if name.endswith(".free"):
                    found.free.append((name, self._length_of(name)))
                elif (file := self._open(name)) is not None:
                    files.append(file)
        files.sort(key=lambda file: file.first_batch)
        expected = files[0].first_batch if files else 1
        try:
            for number, file in enumerate(files):
                following = files[number + 1 :]
                until = following[0].first_batch if following else 1 << 62
                expected = self._read_file(file, expected, until, following)
        finally:
            for file in files:
                if file.handle is not None:
                    file.handle.close()
                    file.handle = None
        self._index.forget_small_changes()
        if files and found.batch and files[0].first_batch > found.mark.oldest:
            self._damaged(files[0].name, 0, "older files of the bindings journal are missing")
        for item in list(found.files):
            item.batches = [batch for batch in item.batches if batch[0] < found.position]
            if not item.batches:
                found.files.remove(item)
                found.leftovers.append((item.file.name, item.file.length))
        if found.is_damaged:
            self._index.mark_small_state_changed()
        return found

    def _length_of(self, name: str) -> int:
        file = self._storage.open(name)
        try:
            return file.length
        finally:
            file.close()

    def _open(self, name: str) -> DataFile | None:
        """A file with batches. Raises: CorruptRecordError, OSError."""
        handle = self._storage.open(name)
        try:
            header = _format.decode_file_header(handle.pread(FILE_HEADER_BYTES, 0))
            if header.series != BINDINGS or _format.file_name(header.file_id, BINDINGS) != name:
                raise FormatError("it is another file; move it away")
            if self.found.store_id not in ("", header.store_id):
                raise FormatError(f"it belongs to store {header.store_id}; move it away")
        except FormatError as error:
            length = handle.length
            handle.close()
            self._damaged(name, 0, str(error))
            self.found.leftovers.append((name, length))
            return None
        self.found.store_id = header.store_id
        file = DataFile(
            header.file_id, header.length, header.seed, handle, reused=True, series=BINDINGS
        )
        first = _format.decode_batch_header(
            header.seed, handle.pread(BATCH_HEADER_BYTES, DATA_OFFSET)
        )
        if first is None:
            handle.close()
            self.found.leftovers.append((name, header.length))
            return None
        file.first_batch = first.batch
        return file

    def _read_file(
        self, file: DataFile, expected: int, until: int, following: Sequence[DataFile]
    ) -> int:
        """Returns: the number of the batch that must come next. Raises: CorruptRecordError."""
        assert file.handle is not None
        item = BindingsFile(file)
        self.found.files.append(item)
        data = file.handle.pread(file.length, 0)
        offset = DATA_OFFSET
        while True:
            header = _batch_at(file, data, offset)
            if header is None or header.batch != expected or expected >= until:
                # Behind it: of this file first, then the first ones of the others.
                later = list(_headers_behind(file, data, offset + 1, expected, until))
                heads = [_first_header(other) for other in following]
                synced = max((head.synced for head in (*(h for _, h in later), *heads)), default=0)
                if expected == until or synced < expected:
                    return expected
                self._damaged(file.name, offset, "a batch is damaged that was on disk whole once")
                self._rest = b""
                if not later:
                    return until
                offset, header = later[0]
            begin = offset + BATCH_HEADER_BYTES
            offset = begin + header.payload_bytes
            item.batches.append((header.last_sequence, begin, header.payload_bytes))
            self._take(header, data[begin:offset], file)
            expected = header.batch + 1

    def _take(self, header: BatchHeader, payload: bytes, file: DataFile) -> None:
        """The records of a batch, which may begin and end amid one."""
        position, continued = header.last_sequence, header.last_ack
        if self._rest and self._rest_at + len(self._rest) == position:
            stream, at = self._rest + payload, self._rest_at
        else:
            stream, at = payload[continued:], position + continued
        offset = 0
        while (record := _record_at(stream, offset)) is not None:
            size = RECORD_HEADER_BYTES + len(record.payload)
            if record.type == _format.MARK:
                self._apply(record, header, file)
            else:
                self._segment.append((record, at + offset))
            offset += size
        self._rest, self._rest_at = stream[offset:], at + offset

    def _apply(self, mark: _format.Record, header: BatchHeader, file: DataFile) -> None:
        """Everything up to a mark counts. Raises: CorruptRecordError when a newer version wrote it."""
        index, places = self._index, self.found.places
        try:
            for record, at in self._segment:
                size = RECORD_HEADER_BYTES + len(record.payload)
                index.apply_small(_format.decode_operation(record), size)
                for key, count in index.changed.items():
                    places.pop(key, None)
                    if count:
                        places[key] = at << 32 | count
                index.forget_small_changes()
            self.found.mark = msgspec.msgpack.decode(mark.payload, type=Mark)
        except (FormatError, msgspec.DecodeError, KeyError) as error:
            raise self._corrupt(file.name, 0, f"{error}; a newer version wrote it") from error
        self._segment.clear()
        self.found.batch = header.batch
        self.found.position = header.last_sequence + header.payload_bytes

    def _damaged(self, name: str, offset: int, problem: str) -> None:
        """Go on behind it, or raise CorruptRecordError."""
        if not self._mends:
            raise self._corrupt(name, offset, problem)
        self.found.is_damaged = True
        self.found.problems.append((name, offset, problem))

    def _corrupt(self, name: str, offset: int, problem: str) -> CorruptRecordError:
        return CorruptRecordError(
            f"{problem}. Nothing was changed. Restore the file from a copy; or set "
            "damaged_journal_policy = 'quarantine' in [store] to go on with the destinations, "
            "subscriptions, sessions and retained messages that can be read",
            location=f"{self._storage.describe(name)} at offset {offset}",
        )


def _first_header(file: DataFile) -> BatchHeader:
    assert file.handle is not None
    header = _format.decode_batch_header(
        file.seed, file.handle.pread(BATCH_HEADER_BYTES, DATA_OFFSET)
    )
    assert header is not None
    return header


def _batch_at(file: DataFile, data: bytes, offset: int) -> BatchHeader | None:
    """The header of a whole batch."""
    header = _format.decode_batch_header(file.seed, data[offset : offset + BATCH_HEADER_BYTES])
    if header is None:
        return None
    begin = offset + BATCH_HEADER_BYTES
    payload = data[begin : begin + header.payload_bytes]
    return header if _format.payload_is_valid(file.seed, header, payload) else None


def _headers_behind(
    file: DataFile, data: bytes, offset: int, expected: int, until: int
) -> Iterator[tuple[int, BatchHeader]]:
    """Whole batches of this life behind *offset*, from *expected* to *until*."""
    at = data.find(BATCH_MAGIC, offset)
    while at >= 0:
        header = _batch_at(file, data, at)
        if header is not None and expected <= header.batch < until:
            yield at, header
        at = data.find(BATCH_MAGIC, at + 1)


def _record_at(stream: bytes, offset: int) -> _format.Record | None:
    """The record at *offset*; None when it is not whole."""
    begin = offset + RECORD_HEADER_BYTES
    if begin > len(stream):
        return None
    size, _, sequence, pending_list, prefix, body, kind = _format.RECORD_HEADER.unpack_from(
        stream, offset
    )
    if begin + size > len(stream):
        return None
    payload = stream[begin : begin + size]
    return _format.Record(offset, sequence, pending_list, prefix, body, kind, payload)
