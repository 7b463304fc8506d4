"""Compaction of one destination: its record file is written again without the room in it.

Records are copied as they are, each verified, to a new file that takes the old one's place: before
the rename is durable the old file is there whole, after it the new one. :func:`compact` does this
while no gateway runs; a gateway does it by itself at a cleanup, to a record file that is longer than a
data file and of which little lives.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidegate.spi import CorruptRecordError, StoreIOError
from tidegate_store_journal.log.format import FormatError
from tidegate_store_journal.log.names import NamedStorage
from tidegate_store_journal.log.storage import File
from tidegate_store_journal.split import records as _records
from tidegate_store_journal.split.folders import DAMAGE_ADVICE, Folder, folder_name, folders_of
from tidegate_store_journal.split.recordfolder import RECORD_FILE, TEMPORARY, PoolPolicy
from tidegate_store_journal.split.records import BLOCK_BYTES, FileHeader, Place, blocks_of
from tidegate_store_journal.split.splitopen import living, open_folders
from tidegate_store_journal.tools.lookon import look

_COPY_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class DestinationCompaction:
    """What compacting one destination did: messages kept, bytes of its directory."""

    destination: str
    messages: int
    bytes_before: int
    bytes_after: int


def write_copy(
    files: Folder,
    header: FileHeader,
    records: Sequence[tuple[int, Place]],
    extends: int | None = None,
) -> tuple[list[Place], int]:
    """Write the living *records* (sequence, place) to a new file beside the old one. Blocks.

    Args: extends: go on behind so many blocks of a copy that was begun.
    Returns: their new places in the same order, and the blocks of the new file, which is synced.
    Raises: CorruptRecordError when one is damaged; OSError. The old file is untouched.
    """
    old = files.open(RECORD_FILE)
    places: list[Place] = []
    try:
        new = files.open(TEMPORARY, create=extends is None)
        try:
            if extends is None:
                head = _records.encode_file_header(header.store_id, header.salt, header.destination)
                new.pwritev([head], 0)
            parts: list[bytes] = []
            size, at = 0, extends or 0
            begin = header.data_offset + at * BLOCK_BYTES
            for sequence, place in records:
                blocks = blocks_of(place.payload_bytes)
                record = _read(files, old, header, sequence, place)
                parts.append(record.ljust(blocks * BLOCK_BYTES, b"\0"))
                places.append(place._replace(number=at))
                at += blocks
                size += blocks * BLOCK_BYTES
                if size >= _COPY_BYTES:
                    new.pwritev([b"".join(parts)], begin)
                    begin += size
                    parts.clear()
                    size = 0
            if parts:
                new.pwritev([b"".join(parts)], begin)
            new.datasync()
        finally:
            new.close()
    except BaseException:
        files.unlink(TEMPORARY)
        raise
    finally:
        old.close()
    return places, at


def _read(files: Folder, old: File, header: FileHeader, sequence: int, place: Place) -> bytes:
    offset = header.data_offset + place.number * BLOCK_BYTES
    record = old.pread(_records.RECORD_HEADER_BYTES + place.payload_bytes, offset)
    try:
        _records.payload_of(header.seed, record, sequence)
    except FormatError as error:
        raise CorruptRecordError(
            f"{error} ({len(record)} bytes are damaged). {DAMAGE_ADVICE}",
            location=f"{files.describe(RECORD_FILE)} at offset {offset}",
        ) from error
    return record


def install_copy(files: Folder) -> None:
    """Put the new file in the old one's place. Blocks. Raises: OSError; then nobody knows which."""
    files.rename(TEMPORARY, RECORD_FILE)
    files.sync_directory()


def compact(directory: Path, destination: str) -> DestinationCompaction:
    """Compact *destination* of the journal in *directory*, which no gateway may be using. Blocks.

    Files of single messages that wait to be used again are deleted.
    Raises: StoreLockedError; StoreIOError when there is no such journal or directory;
        CorruptRecordError when a message is damaged: then nothing was changed.
    """
    storage = NamedStorage(directory)
    if not directory.is_dir():
        raise StoreIOError(f"there is no journal in {directory}")
    storage.lock("tidegate journal compact")
    try:
        # What is only in the system's cache may be gone after a power cut, and with it the word
        # that a message is consumed; so that word is made durable before its record goes.
        os.sync()
        return _compact(storage, directory, destination)
    except OSError as error:
        raise StoreIOError(f"cannot compact {destination} in {directory}: {error}") from error
    finally:
        storage.unlock()


def _compact(storage: NamedStorage, directory: Path, destination: str) -> DestinationCompaction:
    with look(directory) as seen:
        sequences = living(seen.replay.index)
    folders = folders_of(storage)
    name = folder_name(destination)
    if name not in folders.names():
        known = ", ".join(folders.names()) or "none"
        raise StoreIOError(f"{destination} has no directory in {directory}; there are: {known}")
    found = open_folders(folders, "", sequences, PoolPolicy(0, 0, False), _ignore)
    folder = next((item for item in found.folders if item.name == name), None)
    if folder is None:
        raise StoreIOError(f"the directory of {destination} in {directory} has no {RECORD_FILE}")
    before = folder.disk_bytes
    records: list[tuple[int, Place]] = []
    for piece in found.places.pieces():
        for sequence, value in piece:
            place = _records.unpack_place(value)
            if place.folder == folder.number and not place.single:
                records.append((sequence, place))
    records.sort(key=lambda item: item[1].number)
    write_copy(folder.files, folder.header, records)
    install_copy(folder.files)
    folder.delete_pool()
    return DestinationCompaction(destination, folder.messages, before, _bytes_of(folder.files))


def _ignore(_what: str, _done: int, _total: int) -> None:
    """Nobody watches."""


def _bytes_of(files: Folder) -> int:
    total = 0
    for name in files.list():
        file = files.open(name)
        try:
            total += file.length
        finally:
            file.close()
    return total
