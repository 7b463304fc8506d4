"""Reading the bindings journal back: docs/journal-format.md section 6. Everything here blocks."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import msgspec

from tidegate.spi import CorruptRecordError
from tidegate_store_journal.checkpoint.bindings import BindingsFile, BindingsFound, Mark
from tidegate_store_journal.checkpoint.live import LiveList
from tidegate_store_journal.index.index import Index
from tidegate_store_journal.log import format as _format
from tidegate_store_journal.log.datafile import DataFile, read_data_file
from tidegate_store_journal.log.format import (
    DATA_OFFSET,
    RECORD_HEADER_BYTES,
    BatchHeader,
    FormatError,
)
from tidegate_store_journal.log.records import decode_operation
from tidegate_store_journal.log.storage import Storage, copy_range, fresh_name, length_of
from tidegate_store_journal.log.walk import Batch, walk
from tidegate_store_journal.start.losses import LossReport

_DAMAGED: Final = "a batch is damaged that was on disk whole once"


def read_bindings(
    storage: Storage, names: Sequence[str], index: Index, *, mends: bool
) -> BindingsFound:
    """Read the small state into *index*, up to the last mark.

    Args: mends: go on after damage, and have everything rewritten.
    Raises: CorruptRecordError; OSError.
    """
    return _Reader(storage, index, mends).read(names)


def keep_damaged(storage: Storage, found: BindingsFound, report: LossReport) -> None:
    """Copy damaged files aside, before they are rewritten. Raises: OSError."""
    for name, offset, problem in found.problems:
        copy_name = fresh_name(storage, f"{name}.damaged")
        copy_range(storage, name, 0, length_of(storage, name), copy_name)
        report.add(
            f"{storage.describe(name)} at offset {offset}: {problem}. Destinations, subscriptions, "
            "sessions, packet ids and retained messages that it held are lost, or are as they were "
            "before; when the metadata is lost, too, messages that were acknowledged may be delivered "
            f"again. A copy is kept in {storage.describe(copy_name)}."
        )
    if found.problems:
        storage.sync_directory()
        report.write()


@dataclass
class _Reader:
    storage: Storage
    index: Index
    mends: bool

    def __post_init__(self) -> None:
        self.found = BindingsFound()
        self._rest = b""  # of a record that continues in the next batch
        self._rest_at = 0  # its position
        self._segment: list[tuple[_format.Record, int]] = []

    def read(self, names: Sequence[str]) -> BindingsFound:
        found = self.found
        files: list[DataFile] = []
        for name in sorted(names):
            if _format.BINDINGS_NAME.fullmatch(name):
                found.next_file_id = max(found.next_file_id, _format.file_id_of(name) + 1)
                if name.endswith(".free"):
                    found.free.append((name, length_of(self.storage, name)))
                elif (file := self._open(name)) is not None:
                    files.append(file)
        files.sort(key=lambda file: file.first_batch)
        expected = files[0].first_batch if files else 1
        for number, file in enumerate(files):
            behind = files[number + 1 :]
            until = behind[0].first_batch if behind else 1 << 62
            synced = max((other.first_synced for other in behind), default=0)
            expected = self._read_file(file, expected, until, synced)
        self.index.forget_small_changes()
        if files and found.batch and files[0].first_batch > found.mark.oldest:
            self._damaged(files[0].name, 0, "older files of the bindings journal are missing")
        for item in list(found.files):
            item.batches = [batch for batch in item.batches if batch[0] < found.position]
            if not item.batches:
                found.files.remove(item)
                found.leftovers.append((item.file.name, item.file.length))
        if found.is_damaged:
            self.index.mark_small_state_changed()
        return found

    def _open(self, name: str) -> DataFile | None:
        """A file with batches. Raises: CorruptRecordError, OSError."""
        try:
            file = read_data_file(self.storage, name)
            if file.name != name:
                raise FormatError("it is another file; move it away")
            if self.found.store_id not in ("", file.store_id):
                raise FormatError(f"it belongs to store {file.store_id}; move it away")
        except FormatError as error:
            self._damaged(name, 0, str(error))
            self.found.leftovers.append((name, length_of(self.storage, name)))
            return None
        self.found.store_id = file.store_id
        if not file.first_batch:
            self.found.leftovers.append((name, file.length))
            return None
        return file

    def _read_file(self, file: DataFile, expected: int, until: int, synced: int) -> int:
        """Args: until: first batch of the next file; synced: the last one that any later one calls so.

        Returns: the number of the batch that must come next. Raises: CorruptRecordError, OSError.
        """
        item = BindingsFile(file)
        self.found.files.append(item)
        offset = DATA_OFFSET
        for found in walk(file, number=expected):
            if isinstance(found, Batch):
                if found.header.batch >= until:
                    return until
                position, length = found.header.last_sequence, len(found.payload)
                item.batches.append((position, found.at, length))
                self.found.unproven.add(file, found)
                self._take(found.header, found.payload, file)
                expected, offset = found.header.batch + 1, found.next
            elif expected < until and max(synced, found.synced) >= expected:
                self._damaged(file.name, found.begin, _DAMAGED)
                self._rest = b""
            else:
                return expected  # what follows was never confirmed
        if expected < until and synced >= expected:
            self._damaged(file.name, offset, _DAMAGED)
            self._rest = b""
            return until
        return expected

    def _take(self, header: BatchHeader, payload: bytes, file: DataFile) -> None:
        """The records of a batch, which may begin and end within a record."""
        position, continued = header.last_sequence, header.last_ack
        if self._rest and self._rest_at + len(self._rest) == position:
            stream, at = self._rest + payload, self._rest_at
        else:
            stream, at = payload[continued:], position + continued
        offset = 0
        with suppress(FormatError):  # the last one is not whole
            for record in _format.iterate_records(stream, len(stream)):
                if record.type == _format.MARK:
                    self._apply(record, header, file)
                else:
                    self._segment.append((record, at + record.offset))
                offset = record.offset + RECORD_HEADER_BYTES + len(record.payload)
        self._rest, self._rest_at = stream[offset:], at + offset

    def _apply(self, mark: _format.Record, header: BatchHeader, file: DataFile) -> None:
        """Everything up to a mark counts. Raises: CorruptRecordError when a newer version wrote it."""
        index, places = self.index, self.found.places
        try:
            for record, at in self._segment:
                size = RECORD_HEADER_BYTES + len(record.payload)
                if record.type == _format.LIVE:
                    file_id = record.sequence
                    self.found.lives[file_id] = record.pending_list, record.payload
                    places.pop((LiveList, file_id), None)
                    places[LiveList, file_id] = at << 32 | size
                    continue
                operation = decode_operation(record)
                index.apply_small[type(operation)](operation, size)
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
        """Go on after it, or raise CorruptRecordError."""
        if not self.mends:
            raise self._corrupt(name, offset, problem)
        self.found.is_damaged = True
        self.found.problems.append((name, offset, problem))

    def _corrupt(self, name: str, offset: int, problem: str) -> CorruptRecordError:
        return CorruptRecordError(
            f"{problem}. Nothing was changed. Restore the file from a copy; or set "
            "damaged_journal_policy = 'quarantine' in [store] to go on with the destinations, "
            "subscriptions, sessions and retained messages that can be read",
            location=f"{self.storage.describe(name)} at offset {offset}",
        )
