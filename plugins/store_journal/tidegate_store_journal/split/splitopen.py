"""Opening the per-destination layout: which records live, where there is room, what is missing.

The journal was recovered before, so the index knows what lives; the record files say where it is.
A record that nothing refers to is room: it was written for a batch that never came, or its message is
consumed. Everything here blocks.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.spi import CorruptRecordError
from tidegate_store_journal.index.index import Index
from tidegate_store_journal.log.format import FormatError
from tidegate_store_journal.split import records as _records
from tidegate_store_journal.split.folders import DAMAGE_ADVICE, Folder, Folders
from tidegate_store_journal.split.places import Places
from tidegate_store_journal.split.recordfolder import (
    HEADER_BYTES,
    RECORD_FILE,
    SINGLE_NAME,
    TEMPORARY,
    PoolPolicy,
    RecordFolder,
    read_header,
    scan,
    single_name,
)
from tidegate_store_journal.split.records import BLOCK_BYTES, Header, VersionError, blocks_of
from tidegate_store_journal.start.replay import Progress

#: Of a copy of damaged bytes that a crash cut off.
_COPY_TEMPORARY: Final = re.compile(r".+\.damaged(\.\d+)?\.tmp")
#: No message has a higher sequence.
_SEQUENCE_MAX: Final = (1 << 64) - 1

#: Told of a directory (its files, its name) whose record file is missing ("") or has a damaged header
#: (what is wrong). Returns: there is a whole one now. Raises: CorruptRecordError, OSError.
Mend = Callable[[Folder, str, str], bool]


@dataclass(slots=True)
class Found:
    """What :func:`open_folders` found.

    Attributes:
        folders: by number, from 1. places: of every message that lives in one of them.
        last_write: highest write number there is.
        missing: sequences that live and are in none of them: in the journal itself, or lost.
        unborn: records (folder, number, single) of batches that never came, see :func:`wipe_out`.
    """

    folders: list[RecordFolder]
    places: Places
    last_write: int
    missing: Sequence[int]
    unborn: Sequence[tuple[int, int, bool]] = ()


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

    def __init__(self, sequences: array[int], last_sequence: int) -> None:
        self.sequences = sequences
        self._last_sequence = last_sequence
        self.unborn: list[tuple[int, int, bool]] = []
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
                if sequence > self._last_sequence:
                    self.unborn.append((folder, number, single))
                return
        self._next = at + 1
        if write < self._writes[at]:
            return
        self._writes[at] = write
        self.lows[at] = payload_bytes << 32 | body_bytes
        self.highs[at] = _records.high_word(folder, number, single=single)


def open_folders(
    folders: Folders,
    store_id: str,
    sequences: array[int],
    policy: PoolPolicy,
    progress: Progress,
    *,
    last_sequence: int = _SEQUENCE_MAX,
    mend: Mend | None = None,
) -> Found:
    """Read every directory.

    Args:
        sequences: what lives, see :func:`living`.
        last_sequence: the highest of the journal. Records above it are of batches that never came.
        mend: what to do about record files that are not whole; None: raise, or pass them over.
    Raises: CorruptRecordError when a record file is not ours or its header is damaged; OSError.
    """
    newest = _Newest(sequences, last_sequence)
    opened: list[RecordFolder] = []
    lengths: dict[int, int] = {}
    singles: dict[int, dict[int, int]] = {}
    names = folders.names()
    for done, name in enumerate(names):
        progress("reading the directories of destinations", done, len(names))
        files = folders.get(name)
        there = files.list()
        for item in there:
            if item == TEMPORARY or _COPY_TEMPORARY.fullmatch(item):
                files.unlink(item)
        if RECORD_FILE not in there and not (
            mend is not None and any(map(SINGLE_NAME.fullmatch, there)) and mend(files, name, "")
        ):
            # It was being made or removed. If not, its messages are missed by whoever calls.
            continue
        number = len(opened) + 1
        folder = _open(number, name, files, store_id, policy, mend)
        if folder is None:
            continue
        opened.append(folder)
        lengths[number], singles[number] = _scan(folder, there, newest)
    return _finish(newest, opened, lengths, singles)


def _open(
    number: int, name: str, files: Folder, store_id: str, policy: PoolPolicy, mend: Mend | None
) -> RecordFolder | None:
    """None when the record file cannot be read and is moved away."""
    file = files.open(RECORD_FILE)
    try:
        header = read_header(file)
    except VersionError as error:
        raise CorruptRecordError(
            f"{error}. Use the newer program", location=files.describe(RECORD_FILE)
        ) from error
    except FormatError as error:
        if mend is None:
            raise damaged_header(files, str(error)) from error
        if not mend(files, name, str(error)):
            return None
        return _open(number, name, files, store_id, policy, None)
    finally:
        file.close()
    if store_id and header.store_id != store_id:
        raise CorruptRecordError(
            f"it belongs to another store ({header.store_id}). Move its directory away, or restore "
            "the file from a copy",
            location=files.describe(RECORD_FILE),
        )
    return RecordFolder(number, name, files, header, policy)


def damaged_header(files: Folder, problem: str) -> CorruptRecordError:
    """The error for a record file without a whole header."""
    return CorruptRecordError(
        f"the header, {HEADER_BYTES} bytes at offset 0, is damaged: {problem}. {DAMAGE_ADVICE}",
        location=files.describe(RECORD_FILE),
    )


def wipe_out(found: Found) -> None:
    """Records of batches that never came must not be taken for those that get their sequences.

    Of two whole records the newer one counts; but were that one damaged, the other would be left.
    Blocks. Raises: OSError.
    """
    by_file: dict[tuple[int, str], list[int]] = {}
    for number, at, single in found.unborn:
        folder = found.folders[number - 1]
        name = single_name(at) if single else RECORD_FILE
        offset = 0 if single else folder.header.data_offset + at * BLOCK_BYTES
        by_file.setdefault((number, name), []).append(offset)
    for (number, name), offsets in by_file.items():
        file = found.folders[number - 1].files.open(name)
        try:
            for offset in offsets:
                file.pwritev([bytes(_records.RECORD_HEADER_BYTES)], offset)
            file.datasync()
        finally:
            file.close()


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
    return Found(opened, found, newest.last_write, missing, newest.unborn)
