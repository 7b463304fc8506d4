"""Opening the per-destination layout: which records live, where there is room, what is missing.

The journal was recovered before, so the index knows what lives; the record files say where it is.
A record that nothing refers to is room: it was written for a batch that never came, or its message is
consumed. Everything here blocks.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.spi import CorruptRecordError
from tidegate_store_journal import _records
from tidegate_store_journal._folders import Folder, Folders
from tidegate_store_journal._format import FormatError
from tidegate_store_journal._index import Index
from tidegate_store_journal._places import Places
from tidegate_store_journal._recordfolder import (
    RECORD_FILE,
    SINGLE_NAME,
    TEMPORARY,
    PoolPolicy,
    RecordFolder,
    read_header,
    scan,
)
from tidegate_store_journal._records import Header, blocks_of
from tidegate_store_journal._replay import Progress


@dataclass(slots=True)
class Found:
    """What :func:`open_folders` found.

    Attributes:
        folders: by number, from 1. places: of every message that lives in one of them.
        last_write: highest write number there is.
        missing: sequences that live and are in none of them: in the journal itself, or lost.
    """

    folders: list[RecordFolder]
    places: Places
    last_write: int
    missing: Sequence[int]


def living(index: Index) -> array[int]:
    """The sequence of every message that something refers to, in order, each once."""
    sequences: set[int] = set()
    for pending in index.lists.values():
        sequences.update(sequence for sequence, _ in pending.entries())
    for block in index.log.blocks():
        begin = max(0, index.log.released + 1 - block.first)
        sequences.update(block.sequences[begin:])
    return array("Q", sorted(sequences))


class _Newest:
    """For each living message the place that was written last."""

    def __init__(self, sequences: array[int]) -> None:
        self.sequences = sequences
        count = len(sequences)
        self.lows = array("Q", bytes(8 * count))
        self.highs = array("Q", bytes(8 * count))
        self._writes = array("Q", bytes(8 * count))
        self.last_write = 0
        self._next = 0

    def offer(self, folder: int, number: int, header: Header, *, single: bool) -> None:
        """A record was found."""
        payload_bytes, sequence, write, body_bytes, _ = header
        if write > self.last_write:
            self.last_write = write
        sequences, at = self.sequences, self._next
        if at >= len(sequences) or sequences[at] != sequence:
            # Not the next one: records mostly lie in the order of their sequences.
            at = bisect_left(sequences, sequence)
            if at == len(sequences) or sequences[at] != sequence:
                return
        self._next = at + 1
        if write < self._writes[at]:
            return
        self._writes[at] = write
        self.lows[at] = payload_bytes << 32 | body_bytes
        self.highs[at] = _records.high_word(folder, number, single=single)


def open_folders(
    folders: Folders, store_id: str, sequences: array[int], policy: PoolPolicy, progress: Progress
) -> Found:
    """Read every directory. *sequences*: what lives, see :func:`living`.

    Raises: CorruptRecordError when a record file is not ours or its header is damaged; OSError.
    """
    newest = _Newest(sequences)
    opened: list[RecordFolder] = []
    lengths: dict[int, int] = {}
    singles: dict[int, dict[int, int]] = {}
    names = folders.names()
    for done, name in enumerate(names):
        progress("reading the directories of destinations", done, len(names))
        files = folders.get(name)
        there = files.list()
        if TEMPORARY in there:
            files.unlink(TEMPORARY)
        if RECORD_FILE not in there:
            # It was being made or removed. If not, its messages are missed by whoever calls.
            continue
        number = len(opened) + 1
        folder = _open(number, name, files, store_id, policy)
        opened.append(folder)
        lengths[number], singles[number] = _scan(folder, there, newest)
    return _finish(newest, opened, lengths, singles)


def _corrupt(files: Folder, name: str, problem: str) -> CorruptRecordError:
    return CorruptRecordError(
        f"{problem}. Restore the file from a copy, or move its directory away to start without "
        "the messages in it",
        location=files.describe(name),
    )


def _open(number: int, name: str, files: Folder, store_id: str, policy: PoolPolicy) -> RecordFolder:
    file = files.open(RECORD_FILE)
    try:
        header = read_header(file)
    except FormatError as error:
        raise _corrupt(files, RECORD_FILE, str(error)) from error
    finally:
        file.close()
    if store_id and header.store_id != store_id:
        raise _corrupt(files, RECORD_FILE, f"it belongs to another store ({header.store_id})")
    return RecordFolder(number, name, files, header, policy)


def _scan(
    folder: RecordFolder, names: Sequence[str], newest: _Newest
) -> tuple[int, dict[int, int]]:
    """Returns: length of the record file, and of each file of a single message."""
    file = folder.files.open(RECORD_FILE)
    try:
        length = file.length
        for block, header in scan(file, folder.header):
            newest.offer(folder.number, block, header, single=False)
    finally:
        file.close()
    singles: dict[int, int] = {}
    for name in names:
        match = SINGLE_NAME.fullmatch(name)
        if match is None:
            continue
        single = folder.files.open(name)
        try:
            singles[int(match[1])] = single.length
            data = single.pread(_records.RECORD_HEADER_BYTES, 0)
        finally:
            single.close()
        header = _records.decode_header(folder.header.seed, data)
        if header is not None:
            newest.offer(folder.number, int(match[1]), header, single=True)
    return length, singles


def _finish(
    newest: _Newest,
    opened: list[RecordFolder],
    lengths: dict[int, int],
    singles: dict[int, dict[int, int]],
) -> Found:
    used: dict[int, list[tuple[int, int]]] = {folder.number: [] for folder in opened}
    used_singles: dict[int, set[int]] = {folder.number: set() for folder in opened}
    missing: list[int] = []
    sequences, places = array("Q"), array("Q")
    for at, sequence in enumerate(newest.sequences):
        low, high = newest.lows[at], newest.highs[at]
        if not (low or high):
            missing.append(sequence)
            continue
        sequences.append(sequence)
        places.append(low)
        places.append(high)
        folder, number, single = _records.parts_of_high_word(high)
        if single:
            used_singles[folder].add(number)
        else:
            used[folder].append((number, blocks_of(low >> 32)))
    for folder in opened:
        number = folder.number
        folder.adopt(
            lengths[number],
            sorted(used[number]),
            singles[number],
            used_singles[number],
            len(used[number]) + len(used_singles[number]),
        )
    found = Places()
    found.restore(sequences, places)
    return Found(opened, found, newest.last_write, missing)
