"""Opening a journal: what is there, what is newer than the checkpoint, and how it ends.

The rules are in docs/journal-format.md section 4. Everything here blocks and runs in a thread of
its own while nothing else touches the store.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.spi import CorruptRecordError
from tidegate_store_journal import _format
from tidegate_store_journal._datafile import DataFile
from tidegate_store_journal._format import (
    BATCH_HEADER_BYTES,
    DATA_OFFSET,
    FILE_HEADER_BYTES,
    FormatError,
)
from tidegate_store_journal._index import Index
from tidegate_store_journal._metadata import Loaded, Metadata, MetadataError, NoMetadata
from tidegate_store_journal._pieces import files_of
from tidegate_store_journal._rebuild import rebuild
from tidegate_store_journal._replay import Progress, Replay
from tidegate_store_journal._storage import Storage
from tidegate_store_journal._tail import examine_tail

_DATA_NAME: Final = re.compile(r"journal-(\d{10})\.data")
FREE_NAME: Final = re.compile(r"journal-\d{10}\.free")
_LIVE_NAME: Final = re.compile(r"(journal-\d{10})\.live")
_TEMPORARY_NAME: Final = re.compile(r"(journal-\d{10}\.(data|live)|bindings\.snapshot)\.tmp")


@dataclass(slots=True)
class Recovered:
    """What :func:`recover` found.

    Attributes:
        files: with batches, in the journal's order; spares: without; pool: names of dead files.
        tail_file, tail_offset: where the next batch goes; None for an empty journal.
        clean: the store had been closed properly (or did not exist).
        rebuilt: the metadata store was not used and holds nothing.
        replayed: operations; repaired_bytes, notes: see RecoveryReport.
    """

    store_id: str
    index: Index
    files: list[DataFile]
    spares: list[DataFile]
    pool: list[str]
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
    replay = Replay(storage, progress, keep_acknowledged=keep_acknowledged)
    try:
        return _recover(replay, metadata)
    except BaseException:
        replay.close()
        raise


def _recover(replay: Replay, metadata: Metadata) -> Recovered:
    names = replay.storage.list()
    for name in names:
        if _TEMPORARY_NAME.fullmatch(name):
            replay.storage.unlink(name)
        elif (match := _LIVE_NAME.fullmatch(name)) and f"{match[1]}.data" not in names:
            replay.storage.unlink(name)  # its data file was deleted just before a crash
    store_id = open_files(replay, names)
    loaded = _load_metadata(replay, metadata, store_id)
    if loaded is not None:
        store_id = store_id or loaded.state.store_id
        restore(replay, loaded)
        replayed = replay.replay()
        replay.index.settle()
        clean = loaded.state.clean and replayed == 0
    else:
        clean = not replay.files and not replay.spares
        replayed = rebuild(replay, store_id)
    repaired = examine_tail(replay, trusted=clean)
    if repaired:
        replay.notes.append(
            f"A torn tail of {repaired} bytes was cut off; a copy is kept in *.torn. Nothing "
            "in it had been confirmed as synced."
        )
    pool = sorted(filter(FREE_NAME.fullmatch, names))
    known = [file.file_id for file in (*replay.files, *replay.spares)]
    known += [int(name[8:18]) for name in pool]
    return Recovered(
        store_id=store_id or uuid.uuid4().hex,
        index=replay.index,
        files=replay.files,
        spares=replay.spares,
        pool=pool,
        next_file_id=max([0, *known, *replay.index.files]) + 1,
        tail_file=replay.tail,
        tail_offset=replay.tail_offset,
        clean=clean and repaired == 0,
        rebuilt=loaded is None,
        replayed=replayed,
        repaired_bytes=repaired,
        notes=replay.notes,
    )


def open_files(replay: Replay, names: Sequence[str]) -> str:
    """Read all headers; returns the store id they share, "" when there is no file."""
    store_id = ""
    for name in sorted(filter(_DATA_NAME.fullmatch, names)):
        handle = replay.storage.open(name)
        try:
            header = _format.decode_file_header(handle.pread(FILE_HEADER_BYTES, 0))
        except FormatError as error:
            handle.close()
            raise replay.corrupt(
                name,
                0,
                f"{error}. Restore the file from a copy, or move it away together with "
                "metadata/ to start without the messages in it",
            ) from error
        file = DataFile(header.file_id, header.length, header.seed, handle, reused=header.reused)
        first = _format.decode_batch_header(
            header.seed, handle.pread(BATCH_HEADER_BYTES, DATA_OFFSET)
        )
        file.first_batch = first.batch if first else 0
        (replay.files if first else replay.spares).append(file)
        store_id = store_id or header.store_id
        if file.name != name or header.store_id != store_id:
            raise replay.corrupt(
                name,
                0,
                f"it is file {header.file_id} of store {header.store_id} and does not belong "
                "here; move it away",
            )
    replay.files.sort(key=lambda file: file.first_batch)
    return store_id


def _load_metadata(replay: Replay, metadata: Metadata, store_id: str) -> Loaded | None:
    try:
        loaded = metadata.load(replay.progress)
        if loaded is not None:
            check(replay, loaded, store_id)
            return loaded
    except MetadataError as error:
        replay.notes.append(f"The metadata store was rebuilt from the journal: {error}.")
    else:
        if replay.files and not isinstance(metadata, NoMetadata):
            replay.notes.append("The metadata store was missing; it was rebuilt.")
    metadata.reset()
    return None


def check(replay: Replay, loaded: Loaded, store_id: str) -> None:
    """Refuse a checkpoint that does not belong to these data files."""
    state = loaded.state
    if store_id and state.store_id != store_id:
        raise MetadataError(f"it belongs to another store ({state.store_id})")
    there = {file.file_id for file in (*replay.files, *replay.spares)}
    if state.batch and state.file_id not in there:
        raise _missing(replay, state.file_id, "the journal continues in it")
    named: set[int] = set()
    for pieces in loaded.lists.values():
        for piece in pieces:
            named |= files_of(piece)
    for block in loaded.acknowledged:
        begin = max(0, state.ack_released + 1 - block.first)
        named |= {place >> _format.FILE_SHIFT for place in block.locations[begin:]}
    for file_id in named - there:
        raise _missing(replay, file_id, "messages in it are pending")


def _missing(replay: Replay, file_id: int, why: str) -> CorruptRecordError:
    return replay.corrupt(
        _format.file_name(file_id),
        0,
        f"the data file is missing, and {why}. Restore it, or delete metadata/ to start "
        "without the messages in it",
    )


def restore(replay: Replay, loaded: Loaded) -> None:
    """Fill the index with the checkpoint."""
    index, state = replay.index, loaded.state
    for list_id, pieces in loaded.lists.items():
        pending = index.list_of(list_id)
        for piece in pieces:
            pending.restore_piece(piece)
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
        # Which of them are origins of copies is not stored; all of them is on the safe side.
        use.copied_from.update(spoken)
    for block in loaded.acknowledged:
        block.stored = True
    replay.count(loaded.acknowledged, state.ack_last, state.ack_released)
    index.batch = state.batch
    index.last_sequence = index.watermark = state.last_sequence
    index.last_list = state.last_list
    replay.expected = state.batch + 1
    replay.tail_offset = state.offset
    replay.tail = next((file for file in replay.files if file.file_id == state.file_id), None)
    for file in replay.spares:
        use = index.files.get(file.file_id)
        if (use is not None and use.references) or (state.batch and state.file_id == file.file_id):
            raise replay.corrupt(
                file.name,
                DATA_OFFSET,
                "the header of the first batch is damaged. Restore the file from a copy",
            )
