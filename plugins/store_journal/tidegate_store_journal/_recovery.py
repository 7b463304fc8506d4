"""Opening a journal: what is there, what is newer than the checkpoint, and how it ends.

The rules are in docs/journal-format.md section 4. Everything here blocks and runs in a thread of
its own while nothing else touches the store.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.spi import (
    Acknowledge,
    CorruptRecordError,
    Discard,
    Move,
    RecordDelivery,
)
from tidegate_store_journal import _format
from tidegate_store_journal._acklog import AckBlock
from tidegate_store_journal._encode import decode_batch
from tidegate_store_journal._files import DataFile
from tidegate_store_journal._format import (
    BATCH_HEADER_BYTES,
    BATCH_MAGIC,
    DATA_OFFSET,
    FILE_HEADER_BYTES,
    BatchHeader,
    FormatError,
)
from tidegate_store_journal._index import Effects, Index
from tidegate_store_journal._metadata import Loaded, Metadata, MetadataError
from tidegate_store_journal._sidefiles import (
    BINDINGS_NAME,
    Bindings,
    LiveList,
    read_bindings,
    read_live_list,
)
from tidegate_store_journal._storage import File, Storage

logger = logging.getLogger("tidegate.store.journal")

_DATA_NAME: Final = re.compile(r"journal-(\d{10})\.data")
_LIVE_NAME: Final = re.compile(r"(journal-\d{10})\.live")
_TEMPORARY_NAME: Final = re.compile(r"(journal-\d{10}\.(data|live)|bindings\.snapshot)\.tmp")
_READ_BYTES: Final = 4 << 20
_SCAN_BYTES: Final = 1 << 20
#: Operations that concern messages; the others are in the bindings snapshot already.
_MESSAGE_OPERATIONS: Final = (Acknowledge, Discard, Move, RecordDelivery)

Progress = Callable[[str, int, int], None]


@dataclass(slots=True)
class Recovered:
    """What :func:`recover` found.

    Attributes:
        files: with batches, in the journal's order; spares: without.
        tail_file, tail_offset: where the next batch goes; None for an empty journal.
        clean: the store had been closed properly (or did not exist).
        rebuilt: the metadata store was not used and holds nothing.
        replayed: operations; repaired_bytes, notes: see RecoveryReport.
    """

    store_id: str
    index: Index
    files: list[DataFile]
    spares: list[DataFile]
    next_file_id: int
    tail_file: DataFile | None
    tail_offset: int
    clean: bool
    rebuilt: bool
    replayed: int
    repaired_bytes: int
    notes: list[str]


def recover(
    storage: Storage, metadata: Metadata, *, keep_acknowledged: bool, progress: Progress
) -> Recovered:
    """Read a store and repair a torn tail. Raises: CorruptRecordError, OSError."""
    return _Recovery(storage, metadata, keep_acknowledged, progress).run()


class _Recovery:
    def __init__(
        self, storage: Storage, metadata: Metadata, keep_acknowledged: bool, progress: Progress
    ) -> None:
        self._storage = storage
        self._metadata = metadata
        self._progress = progress
        self._index = Index(keep_acknowledged=keep_acknowledged)
        self._files: list[DataFile] = []
        self._spares: list[DataFile] = []
        self._notes: list[str] = []
        self._expected: int = 1  # batch number that must come next
        self._tail: DataFile | None = None
        self._tail_offset = 0

    def run(self) -> Recovered:
        """See :func:`recover`."""
        try:
            return self._run()
        except BaseException:
            for file in (*self._files, *self._spares):
                if file.handle is not None:
                    file.handle.close()
            raise

    def _run(self) -> Recovered:
        names = self._storage.list()
        for name in names:
            if _TEMPORARY_NAME.fullmatch(name):
                self._storage.unlink(name)
            elif (match := _LIVE_NAME.fullmatch(name)) and f"{match[1]}.data" not in names:
                self._storage.unlink(name)  # its data file was deleted just before a crash
        store_id = self._open_files(names)
        loaded = self._load_metadata(store_id)
        if loaded is not None:
            store_id = store_id or loaded.state.store_id
            self._restore(loaded)
            replayed = self._replay()
            clean = loaded.state.clean and replayed == 0
        else:
            clean = not self._files and not self._spares
            replayed = self._rebuild(store_id)
        repaired = self._examine_tail(trusted=clean)
        if repaired:
            self._notes.append(
                f"A torn tail of {repaired} bytes was cut off; a copy is kept in *.torn. Nothing "
                "in it had been confirmed as synced."
            )
        known = [file.file_id for file in (*self._files, *self._spares)]
        return Recovered(
            store_id=store_id or uuid.uuid4().hex,
            index=self._index,
            files=self._files,
            spares=self._spares,
            next_file_id=max([0, *known, *self._index.files]) + 1,
            tail_file=self._tail,
            tail_offset=self._tail_offset,
            clean=clean and repaired == 0,
            rebuilt=loaded is None,
            replayed=replayed,
            repaired_bytes=repaired,
            notes=self._notes,
        )

    # ------------------------------------------------------------------------------- files

    def _open_files(self, names: Sequence[str]) -> str:
        """Read all headers; returns the store id they share, "" when there is no file."""
        store_id = ""
        for name in sorted(filter(_DATA_NAME.fullmatch, names)):
            handle = self._storage.open(name)
            try:
                header = _format.decode_file_header(handle.pread(FILE_HEADER_BYTES, 0))
            except FormatError as error:
                handle.close()
                raise self._corrupt(
                    name,
                    0,
                    f"{error}. Restore the file from a copy, or move it away together with "
                    "metadata/ to start without the messages in it",
                ) from error
            file = DataFile(header.file_id, header.length, header.seed, handle)
            first = _format.decode_batch_header(
                header.seed, handle.pread(BATCH_HEADER_BYTES, DATA_OFFSET)
            )
            file.first_batch = first.batch if first else 0
            (self._files if first else self._spares).append(file)
            store_id = store_id or header.store_id
            if file.name != name or header.store_id != store_id:
                raise self._corrupt(
                    name,
                    0,
                    f"it is file {header.file_id} of store {header.store_id} and does not belong "
                    "here; move it away",
                )
        self._files.sort(key=lambda file: file.first_batch)
        return store_id

    def _corrupt(self, name: str, offset: int, problem: str) -> CorruptRecordError:
        location = f"{self._storage.describe(name)} at offset {offset}"
        return CorruptRecordError(problem, location=location)

    # ---------------------------------------------------------------------------- metadata

    def _load_metadata(self, store_id: str) -> Loaded | None:
        try:
            loaded = self._metadata.load(self._progress)
            if loaded is not None:
                self._check(loaded, store_id)
                return loaded
        except MetadataError as error:
            self._notes.append(f"The metadata store was rebuilt from the journal: {error}.")
        else:
            if self._files and self._storage.metadata_directory is not None:
                self._notes.append("The metadata store was missing; it was rebuilt.")
        self._metadata.reset()
        return None

    def _check(self, loaded: Loaded, store_id: str) -> None:
        """Refuse a checkpoint that does not belong to these data files."""
        state = loaded.state
        if store_id and state.store_id != store_id:
            raise MetadataError(f"it belongs to another store ({state.store_id})")
        there = {file.file_id for file in (*self._files, *self._spares)}
        if state.batch and state.file_id not in there:
            raise self._missing(state.file_id, "the journal continues in it")
        named: set[int] = set()
        for _, locations in loaded.lists.values():
            named |= {high >> _format.FILE_SHIFT - 64 for high in locations[1::2]}
        for block in loaded.acknowledged:
            begin = max(0, state.ack_released + 1 - block.first)
            named |= {place >> _format.FILE_SHIFT for place in block.locations[begin:]}
        for file_id in named - there:
            raise self._missing(file_id, "messages in it are pending")

    def _missing(self, file_id: int, why: str) -> CorruptRecordError:
        return self._corrupt(
            _format.file_name(file_id),
            0,
            f"the data file is missing, and {why}. Restore it, or delete metadata/ to start "
            "without the messages in it",
        )

    def _restore(self, loaded: Loaded) -> None:
        """Fill the index with the checkpoint."""
        index, state = self._index, loaded.state
        for list_id, (sequences, locations) in loaded.lists.items():
            index.list_of(list_id).restore(sequences, locations)
        for (list_id, sequence), count in loaded.deliveries.items():
            index.list_of(list_id).deliveries[sequence] = count
        index.restore_small_state(
            loaded.destinations,
            loaded.subscriptions,
            loaded.sessions,
            loaded.inflight,
            loaded.retained,
        )
        for file_id, spoken in loaded.speaks_of.items():
            use = index.file_use(file_id)
            use.speaks_of.update(spoken)
            use.speaks_of_stored = len(use.speaks_of)
        for block in loaded.acknowledged:
            block.stored = True
        self._count(loaded.acknowledged, state.ack_last, state.ack_released)
        index.batch = state.batch
        index.last_sequence = index.watermark = state.last_sequence
        index.last_list = state.last_list
        self._expected = state.batch + 1
        self._tail_offset = state.offset
        self._tail = next((file for file in self._files if file.file_id == state.file_id), None)
        for file in self._spares:
            use = index.files.get(file.file_id)
            if (use is not None and use.references) or (
                state.batch and state.file_id == file.file_id
            ):
                raise self._corrupt(
                    file.name,
                    DATA_OFFSET,
                    "the header of the first batch is damaged. Restore the file from a copy",
                )

    def _count(self, blocks: list[AckBlock], last: int, released: int) -> None:
        missing = self._index.recount(blocks, last, released)
        if missing:
            self._notes.append(
                f"{missing} rows of the acknowledged log could not be found again; it goes on "
                f"behind row {self._index.log.released}."
            )

    # ------------------------------------------------------------------------------ replay

    def _replay(self) -> int:
        """Apply every batch behind the checkpoint; the tail is behind the last one then."""
        replayed = 0
        first = self._tail
        offset = self._tail_offset
        todo = self._files[self._files.index(first) :] if first else self._files
        total = sum(file.length for file in todo)
        done = 0
        for file in todo:
            before = replayed
            for header, payload, at in self._batches(
                file, offset if file is first else DATA_OFFSET
            ):
                self._index.apply(self._decode(file, header, payload, at))
                replayed += header.record_count
                self._progress("replaying the journal", done + at, total)
            if replayed != before:
                _make_durable(file)
            done += file.length
        return replayed

    def _batches(self, file: DataFile, offset: int) -> Iterator[tuple[BatchHeader, bytes, int]]:
        """Valid batches that continue the journal: header, records, where the records begin."""
        assert file.handle is not None
        window = _Window(file.handle)
        while True:
            header = _format.decode_batch_header(file.seed, window.read(offset, BATCH_HEADER_BYTES))
            if header is None or header.batch != self._expected:
                return
            at = offset + BATCH_HEADER_BYTES
            payload = window.read(at, header.payload_bytes)
            if not _format.payload_is_valid(file.seed, header, payload):
                return
            yield header, payload, at
            offset = at + header.payload_bytes
            self._expected = header.batch + 1
            self._tail = file
            self._tail_offset = offset

    def _decode(self, file: DataFile, header: BatchHeader, payload: bytes, at: int) -> Effects:
        try:
            return decode_batch(payload, header, file.file_id, at)
        except FormatError as error:
            raise self._corrupt(
                file.name, at, f"{error}. Open the store with the version that wrote it"
            ) from error

    # ----------------------------------------------------------------------------- rebuild

    def _rebuild(self, store_id: str) -> int:
        """Without metadata: everything from the data files, bindings and live lists."""
        index = self._index
        bindings = self._read_bindings(store_id)
        known_batch = ack_last = released = 0
        if bindings is not None:
            index.restore_small_state(
                dict(bindings.destinations),
                bindings.subscriptions,
                bindings.sessions,
                bindings.inflight,
                bindings.retained,
            )
            known_batch = index.batch = bindings.batch
            index.last_sequence = bindings.last_sequence
            index.last_list = bindings.last_list
            ack_last, released = bindings.ack_last, bindings.ack_released
        are_known_lists_applied = False
        blocks: list[AckBlock] = []
        index.loose_blocks = blocks
        replayed = 0
        total = sum(file.length for file in self._files)
        done = 0
        for file in self._files:
            # Dead files between two that are left were deleted, and their batches with them.
            self._expected = max(self._expected, file.first_batch)
            live = self._read_live_list(file)
            if live is not None:
                blocks.extend(live.blocks())
            for header, payload, at in self._batches(file, DATA_OFFSET):
                effects = self._decode(file, header, payload, at)
                if live is not None and header.batch <= live.batch:
                    _keep_living(effects, live)
                if header.batch <= known_batch:
                    _keep_message_operations(effects)
                elif bindings is not None and not are_known_lists_applied:
                    self._drop_lists_not_in(bindings)
                    are_known_lists_applied = True
                index.apply(effects)
                replayed += header.record_count
                self._progress("rebuilding from the journal", done + at, total)
            _make_durable(file)
            done += file.length
            if file is not self._files[-1]:
                self._require_end(file)
        index.loose_blocks = None
        if self._expected <= known_batch:
            self._refuse_early_end(known_batch)
        if bindings is not None and not are_known_lists_applied:
            self._drop_lists_not_in(bindings)
        last = max(ack_last, index.log.last)
        if not index.keep_acknowledged:
            released, blocks = last, []
        self._count(blocks, last, released)
        index.mark_everything_changed()
        return replayed

    def _drop_lists_not_in(self, bindings: Bindings) -> None:
        """Lists that were removed before the snapshot; their removal may be in a deleted file."""
        lists = self._index.lists
        for list_id in lists.keys() - set(bindings.lists):
            del lists[list_id]

    def _read_bindings(self, store_id: str) -> Bindings | None:
        try:
            bindings = read_bindings(self._storage)
        except FormatError as error:
            self._notes.append(f"bindings.snapshot is damaged and was not used: {error}.")
            return None
        if bindings is not None and bindings.store_id != store_id:
            self._notes.append("bindings.snapshot belongs to another store and was not used.")
            return None
        return bindings

    def _read_live_list(self, file: DataFile) -> LiveList | None:
        name = _format.live_name(file.file_id)
        try:
            live = read_live_list(self._storage, file.file_id)
            if live is not None:
                live.blocks()
            return live
        except FormatError as error:
            self._notes.append(
                f"{name} is damaged and was not used: messages of {file.name} that were "
                f"acknowledged may be delivered again: {error}."
            )
            return None

    def _require_end(self, file: DataFile) -> None:
        """A file that is not the last one was synced whole, so nothing may follow its batches."""
        if file is not self._tail:
            offset = DATA_OFFSET
        else:
            offset = self._tail_offset
        if not _scan(file, offset).is_empty:
            raise self._damaged(file, offset)

    def _refuse_early_end(self, known_batch: int) -> None:
        """The bindings snapshot was written after batch *known_batch* was synced."""
        if self._tail is not None:
            raise self._damaged(self._tail, self._tail_offset)
        raise self._corrupt(
            BINDINGS_NAME,
            0,
            f"the data files are missing that hold everything up to batch {known_batch}. Restore "
            "them, or remove this file as well to start with an empty store",
        )

    def _damaged(self, file: DataFile, offset: int) -> CorruptRecordError:
        return self._corrupt(
            file.name,
            offset,
            "a batch is damaged that was on disk whole once: later batches say so. Nothing was "
            "changed. Restore the file from a copy, or keep a copy of the directory and ask for "
            "help before anything is cut off",
        )

    # -------------------------------------------------------------------------- torn tail

    def _examine_tail(self, *, trusted: bool) -> int:
        """Cut off what was never confirmed; refuse damage. Returns bytes cut off.

        *trusted*: the store was closed properly, so only what could be mistaken is looked at.
        """
        tail, offset = self._tail, self._tail_offset
        behind = self._files[self._files.index(tail) + 1 :] if tail else self._files
        suspects: list[tuple[DataFile, int, _Scan]] = []
        if tail is not None and not trusted:
            suspects.append((tail, offset, _scan(tail, offset)))
        for file in (*behind, *self._spares):
            if trusted and file.first_batch == 0 and _begins_empty(file):
                continue
            suspects.append((file, DATA_OFFSET, _scan(file, DATA_OFFSET)))
        suspects = [item for item in suspects if not item[2].is_empty]
        for file, begin, scan in suspects:
            for header in scan.headers:
                if header.synced >= self._expected:
                    raise self._damaged(*suspects[0][:2])
                if header.batch < self._expected:
                    raise self._damaged(file, begin)
        return self._cut_off(suspects)

    def _cut_off(self, suspects: list[tuple[DataFile, int, _Scan]]) -> int:
        """Copy first, sync the copies, and only then overwrite: a crash in between repeats it."""
        for file, _, scan in suspects:
            assert file.handle is not None
            copy = self._storage.open(f"{file.name}.{scan.begin}.torn", create=True)
            try:
                for at in range(scan.begin, scan.end, _READ_BYTES):
                    data = file.handle.pread(min(_READ_BYTES, scan.end - at), at)
                    copy.pwritev([data], at - scan.begin)
                copy.datasync()
            finally:
                copy.close()
        if suspects:
            self._storage.sync_directory()
        for file, _, scan in suspects:
            assert file.handle is not None
            if file is self._tail:
                for at in range(scan.begin, scan.end, _READ_BYTES):
                    file.handle.pwritev([bytes(min(_READ_BYTES, scan.end - at))], at)
                file.handle.datasync()
                continue
            file.handle.close()
            file.handle = None
            self._storage.unlink(file.name)
            (self._files if file in self._files else self._spares).remove(file)
        if suspects:
            self._storage.sync_directory()
        tail = self._tail
        if tail is not None and tail.handle is not None and tail.handle.length < tail.length:
            tail.handle.preallocate(tail.length)
            tail.handle.datasync()
        return sum(scan.end - scan.begin for _, _, scan in suspects)


def _make_durable(file: DataFile) -> None:
    """What was just read may so far be only in the system's cache (the gateway alone was killed).

    From now on batch headers call it synced, and the checkpoint names it; both must be true in a
    power cut.
    """
    assert file.handle is not None
    file.handle.datasync()


def _keep_living(effects: Effects, live: LiveList) -> None:
    """Leave out messages that the live list of their file does not name any more."""
    pending = {list_id: set(sequences) for list_id, sequences in live.pending}
    for list_id, entries in list(effects.adds.items()):
        living = pending.get(list_id, set())
        kept = {sequence: place for sequence, place in entries.items() if sequence in living}
        if kept:
            effects.adds[list_id] = kept
        else:
            del effects.adds[list_id]


def _keep_message_operations(effects: Effects) -> None:
    """The bindings snapshot is newer than this batch: leave out what it says already."""
    effects.others = [item for item in effects.others if isinstance(item, _MESSAGE_OPERATIONS)]


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


@dataclass(slots=True)
class _Scan:
    """Bytes of a file that should be zero.

    Attributes: begin, end: the range outside of which they are; headers: valid batch headers.
    """

    begin: int
    end: int
    headers: list[BatchHeader]

    @property
    def is_empty(self) -> bool:
        return self.end <= self.begin


def _scan(file: DataFile, offset: int) -> _Scan:
    """Look at everything from *offset* on."""
    assert file.handle is not None
    begin = end = offset
    headers: list[BatchHeader] = []
    for at in range(offset, file.length, _SCAN_BYTES):
        # The overlap finds a header that lies across two pieces.
        data = file.handle.pread(_SCAN_BYTES + BATCH_HEADER_BYTES, at)
        if data.count(0) == len(data):
            continue
        end = max(end, at + len(data.rstrip(b"\0")))
        found = data.find(BATCH_MAGIC)
        while 0 <= found < _SCAN_BYTES:
            header = _format.decode_batch_header(
                file.seed, data[found : found + BATCH_HEADER_BYTES]
            )
            if header is not None:
                headers.append(header)
            found = data.find(BATCH_MAGIC, found + 1)
    return _Scan(begin, end, headers)


def _begins_empty(file: DataFile) -> bool:
    assert file.handle is not None
    return not file.handle.pread(BATCH_HEADER_BYTES, DATA_OFFSET).strip(b"\0")
