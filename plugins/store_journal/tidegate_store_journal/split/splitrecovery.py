"""What is damaged or missing in the directories of destinations at a start, and what is done about it.

The policies are those of data files: ``damaged_journal_policy`` for damage,
``ignore_missing_journalfiles`` for files that are not there. Without them nothing is changed, and the
error names files, offsets and lengths. With them damaged bytes are copied aside, headers are put right
where what they said is known elsewhere, and the rest is served; what is lost is for the caller to drop.

Crash story: copies are durable and the report is written before anything is changed; whatever was not
carried out is found again by the next start. Everything here blocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from tidegate.spi import CorruptRecordError
from tidegate_store_journal.log.format import FormatError
from tidegate_store_journal.log.storage import File
from tidegate_store_journal.split import records as _records
from tidegate_store_journal.split.folders import (
    DAMAGE_ADVICE,
    MISSING_ADVICE,
    Folder,
    Folders,
    MissingRecordError,
    folder_name,
    keep_copy,
    some_of,
)
from tidegate_store_journal.split.recordfolder import (
    HEADER_BYTES,
    RECORD_FILE,
    SINGLE_NAME,
    TEMPORARY,
    RecordFolder,
    single_name,
)
from tidegate_store_journal.split.recordmend import (
    Known,
    destination_in,
    find_damaged,
    header_with_seed,
    mended_record_header,
    seed_of_record,
)
from tidegate_store_journal.split.records import (
    BLOCK_BYTES,
    RECORD_HEADER,
    RECORD_HEADER_BYTES,
    RECORD_MAGIC,
    Place,
)
from tidegate_store_journal.split.reference import Reference
from tidegate_store_journal.split.splitopen import Found, damaged_header
from tidegate_store_journal.start.lossreport import LossReport
from tidegate_store_journal.start.recovery import RecoveryPolicy
from tidegate_store_journal.start.replay import Progress

_SCAN_BYTES: Final = 4 << 20
#: Whole records that are asked for the seed of their file: bytes in a body may look like a record,
#: but not most of them.
_WITNESSES: Final = 100
#: Places that an error names.
_NAMED_MAX: Final = 10


class Wanted(NamedTuple):
    """A message without a record: what its reference and its location say."""

    reference: Reference
    body_bytes: int


class Problem(NamedTuple):
    """One message that cannot be read.

    Attributes: file: its name in *files*, "" when nobody knows which; offset, length: of the damaged
        bytes; is_missing: the file is not there. is_located: exactly these bytes are damaged, and not
        some among them. header: what puts the record right; None: nothing does.
    """

    sequence: int
    destination: str
    files: Folder
    file: str
    offset: int = 0
    length: int = 0
    is_missing: bool = False
    is_located: bool = False
    header: bytes | None = None


class SplitRecovery:
    """See the module. One instance a start."""

    def __init__(
        self,
        folders: Folders,
        store_id: str,
        policy: RecoveryPolicy,
        report: LossReport,
        *,
        record_bytes_max: int,
    ) -> None:
        """*record_bytes_max*: larger messages have files of their own."""
        self._folders = folders
        self._store_id = store_id
        self._policy = policy
        self._report = report
        self._record_bytes_max = record_bytes_max
        self._moved: set[str] = set()
        self._has_changed = False

    # -------------------------------------------------------------------------- record files

    def mend(self, files: Folder, name: str, problem: str) -> bool:
        """A record file is missing beside other files (no *problem*), or its header is damaged.

        See ``_splitopen.Mend``. Raises: CorruptRecordError, OSError.
        """
        if not problem:
            return self._policy.ignores_missing and self._make_missing(files, name)
        if not self._policy.quarantines:
            raise damaged_header(files, problem)
        self._has_changed = True
        where = files.describe(RECORD_FILE)
        found = _witnessed(files, name)
        if found is not None:
            header = header_with_seed(self._store_id, found[1], found[0])
            copy = keep_copy(files, RECORD_FILE, 0, len(header))
            self._report.add_note(
                f"{where}: the header ({len(header)} bytes at offset 0) was damaged ({problem}). It "
                f"was made anew from what the records say, and nothing is lost by that. The damaged "
                f"bytes are kept in {copy}."
            )
            self._report.write()
            _write(files, RECORD_FILE, header, 0)
            return True
        # Without the seed nothing in the directory can be told from noise.
        self._report.add_note(
            f"{where}: the header ({HEADER_BYTES} bytes at offset 0) is damaged ({problem}), and no "
            f"record is whole that says what it was. The files are kept as *.damaged beside it."
        )
        self._report.write()
        self._moved.add(name)
        there = set(files.list())
        for item in sorted(there):
            if item == RECORD_FILE or SINGLE_NAME.fullmatch(item):
                number, target = 1, f"{item}.damaged"
                while target in there:
                    number += 1
                    target = f"{item}.damaged.{number}"
                files.rename(item, target)
        files.sync_directory()
        return False

    def _make_missing(self, files: Folder, name: str) -> bool:
        """The record file is gone, but without its seed the other files cannot be read."""
        found = _witnessed(files, name)
        if found is None:
            return False
        self._has_changed = True
        header = header_with_seed(self._store_id, found[1], found[0])
        self._report.add_note(
            f"{files.describe(RECORD_FILE)} is missing. It was made anew without records, so that "
            "the files of single messages beside it can be read."
        )
        self._report.write()
        files.open(TEMPORARY, create=True).close()
        _write(files, TEMPORARY, header, 0)
        files.rename(TEMPORARY, RECORD_FILE)
        files.sync_directory()
        return True

    # ------------------------------------------------------------------------------- messages

    def examine(self, found: Found, wanted: Mapping[int, Wanted]) -> list[Problem]:
        """Why the messages *wanted* were not found. Raises: OSError."""
        by_destination: dict[str, dict[int, Wanted]] = {}
        for sequence, item in wanted.items():
            by_destination.setdefault(item.reference.destination, {})[sequence] = item
        there = {folder.header.destination: folder for folder in found.folders}
        problems: list[Problem] = []
        for destination, items in by_destination.items():
            folder = there.get(destination)
            if folder is not None:
                problems += self._examine_folder(folder, destination, items)
                continue
            name = folder_name(destination)
            files = self._folders.get(name)
            is_missing = name not in self._moved
            problems += [
                Problem(sequence, destination, files, RECORD_FILE, is_missing=is_missing)
                for sequence in items
            ]
        return problems

    def _examine_folder(
        self, folder: RecordFolder, destination: str, items: Mapping[int, Wanted]
    ) -> Iterator[Problem]:
        files, data_offset = folder.files, folder.header.data_offset
        located = _locate(folder, items)
        size = _length(files, RECORD_FILE) - data_offset
        for sequence, item in items.items():
            problem = located.get(sequence)
            if problem is not None:
                yield problem
            elif item.reference.single or item.body_bytes > self._record_bytes_max:
                yield Problem(sequence, destination, files, "", is_missing=True)
            else:
                # Without a single block it was made anew after it had been missing.
                yield Problem(
                    sequence, destination, files, RECORD_FILE, data_offset, size, size <= 0
                )

    def check(self, found: Found, progress: Progress) -> list[Problem]:
        """Read every record that lives. Raises: OSError."""
        problems: list[Problem] = []
        by_number = {folder.number: folder for folder in found.folders}
        total, done = len(found.places), 0
        for piece in found.places.pieces():
            progress("checking the records of destinations", done, total)
            done += len(piece)
            by_folder: dict[int, list[tuple[int, Place]]] = {}
            for sequence, value in piece:
                place = _records.unpack_place(value)
                by_folder.setdefault(place.folder, []).append((sequence, place))
            for number, records in by_folder.items():
                problems += _check_folder(by_number[number], records)
        return problems

    # --------------------------------------------------------------------------------- acting

    def refusal(self, problems: Sequence[Problem]) -> CorruptRecordError | None:
        """The error when a policy forbids to go on."""
        policy = self._policy
        damaged = [item for item in problems if not item.is_missing and not policy.quarantines]
        missing = [item for item in problems if item.is_missing and not policy.ignores_missing]
        if not damaged and not missing:
            return None
        sentences: list[str] = []
        for items, advice in ((missing, MISSING_ADVICE), (damaged, DAMAGE_ADVICE)):
            by_destination: dict[str, list[Problem]] = {}
            for item in items:
                by_destination.setdefault(item.destination, []).append(item)
            sentences += [
                _sentence(destination, group) for destination, group in by_destination.items()
            ]
            if items:
                sentences.append(advice)
        first = (damaged or missing)[0]
        kind = CorruptRecordError if damaged else MissingRecordError
        return kind(
            ". ".join(sentences) + ("" if self._has_changed else ". Nothing was changed"),
            location=first.files.describe(first.file),
        )

    def carry_out(self, problems: Sequence[Problem]) -> bool:
        """Keep copies of what is damaged, and put right what can be. Raises: OSError.

        Returns: something was put right, so everything has to be read again.
        """
        mended = [item for item in problems if item.header is not None]
        # One after the other: what is lost is said when nothing is left that can be put right.
        for item in mended or problems:
            if item.is_located:
                self._keep(item)
        groups: dict[tuple[str, bool], list[Problem]] = {}
        for item in problems if not mended else ():
            # Of files that were moved away everything is said already.
            if not item.is_located and (item.is_missing or item.length):
                groups.setdefault((item.destination, item.is_missing), []).append(item)
        for (destination, is_missing), group in groups.items():
            sentence, one = f"{_sentence(destination, group)}. They are lost", group[0]
            if not is_missing:
                # Their blocks are room from now on, and nobody knows which they were.
                copy = keep_copy(one.files, one.file, one.offset, one.length)
                sentence += f"; what may be left of them is in {copy}, a copy of these bytes"
            self._report.add_note(f"{sentence}.")
        self._report.write()
        for item in mended:
            assert item.header is not None
            _write(item.files, item.file, item.header, item.offset)
            self._has_changed = True
        return bool(mended)

    def _keep(self, item: Problem) -> None:
        copy = keep_copy(item.files, item.file, item.offset, item.length)
        what = (
            "and is lost" if item.header is None else "and was put right, so that nothing is lost"
        )
        self._report.add_note(
            f"{item.files.describe(item.file)}: the record of message {item.sequence} of "
            f"{item.destination} ({item.length} bytes at offset {item.offset}) was damaged {what}. "
            f"The damaged bytes are kept in {copy}."
        )


def _sentence(destination: str, group: Sequence[Problem]) -> str:
    """What is wrong with some messages of one destination, all damaged or all missing."""
    sequences = sorted(item.sequence for item in group)
    lead = f"{len(group)} messages of {destination}"
    if group[0].is_missing:
        where = {item.files.describe(item.file) for item in group if item.file}
        what = f"{', '.join(sorted(where))} is not there or has no records"
        what = what if where else "files N.msg are not there"
        return (
            f"{lead} are pending or not yet released, but their records are missing (sequences "
            f"{some_of(sequences)}): {what}"
        )
    located = [item for item in group if item.is_located]
    places = [
        f"{item.file}, {item.length} bytes at offset {item.offset} (message {item.sequence})"
        for item in located[:_NAMED_MAX]
    ]
    if len(located) > _NAMED_MAX:
        places.append(f"{len(located) - _NAMED_MAX} more")
    others = [item for item in group if not item.is_located]
    if others:
        one = others[0]
        some = some_of(sorted(item.sequence for item in others))
        places.append(
            f"{one.file}, somewhere in the {one.length} bytes at offset {one.offset} (sequences {some})"
        )
    return f"{lead} are damaged: {'; '.join(places)}"


# --------------------------------------------------------------------------------------- reading


def _check_folder(folder: RecordFolder, records: Sequence[tuple[int, Place]]) -> Iterator[Problem]:
    files, header = folder.files, folder.header
    file: File | None = None
    try:
        for sequence, place in sorted(records, key=lambda item: item[1].number):
            size = RECORD_HEADER_BYTES + place.payload_bytes
            name, offset = RECORD_FILE, header.data_offset + place.number * BLOCK_BYTES
            if place.single:
                name, offset = single_name(place.number), 0
                data = _read(files, name, size)
            else:
                file = file or files.open(RECORD_FILE)
                data = file.pread(size, offset)
            try:
                _records.decode_message(_records.payload_of(header.seed, data, sequence), sequence)
            except FormatError:
                yield Problem(
                    sequence, header.destination, files, name, offset, size, is_located=True
                )
    finally:
        if file is not None:
            file.close()


def _locate(folder: RecordFolder, items: Mapping[int, Wanted]) -> dict[int, Problem]:
    """Records whose header is damaged, found by what is left of it."""
    known = {
        sequence: Known(item.reference.write, item.body_bytes) for sequence, item in items.items()
    }
    files, header = folder.files, folder.header
    names = [RECORD_FILE, *sorted(filter(SINGLE_NAME.fullmatch, files.list()))]
    problems: dict[int, Problem] = {}
    for name in names:
        file = files.open(name)
        try:
            begin, end = (header.data_offset, file.length) if name == RECORD_FILE else (0, 1)
            for base in range(begin, end, _SCAN_BYTES):
                data = file.pread(_SCAN_BYTES if name == RECORD_FILE else BLOCK_BYTES, base)
                data = data.ljust(-(-len(data) // BLOCK_BYTES) * BLOCK_BYTES, b"\0")
                for sequence, offset in find_damaged(header.seed, data, base, known):
                    problems[sequence] = _problem_at(
                        file, folder, name, offset, sequence, known[sequence]
                    )
        finally:
            file.close()
    return problems


def _problem_at(
    file: File, folder: RecordFolder, name: str, offset: int, sequence: int, known: Known
) -> Problem:
    first = file.pread(RECORD_HEADER_BYTES, offset)
    payload_bytes = RECORD_HEADER.unpack_from(first)[1] if len(first) == RECORD_HEADER_BYTES else 0
    if payload_bytes < known.body_bytes or payload_bytes > file.length - offset:
        payload_bytes = known.body_bytes  # the length itself is damaged
    record = file.pread(RECORD_HEADER_BYTES + payload_bytes, offset)
    header = mended_record_header(folder.header.seed, record, sequence, known)
    return Problem(
        sequence,
        folder.header.destination,
        folder.files,
        name,
        offset,
        RECORD_HEADER_BYTES if header is not None else len(record),
        is_located=True,
        header=header,
    )


def _witnessed(files: Folder, name: str) -> tuple[int, str] | None:
    """The seed of a directory and its destination, by what most of its whole records say."""
    votes: Counter[tuple[int, str]] = Counter()
    for item in sorted(files.list(), key=lambda item: item != RECORD_FILE):
        if item != RECORD_FILE and not SINGLE_NAME.fullmatch(item):
            continue
        file = files.open(item)
        try:
            for seed, destination in _witnesses(file, is_single=item != RECORD_FILE):
                if folder_name(destination) == name:
                    votes[seed, destination] += 1
                if votes.total() >= _WITNESSES:
                    break
        finally:
            file.close()
    return votes.most_common(1)[0][0] if votes else None


def _witnesses(file: File, *, is_single: bool) -> Iterator[tuple[int, str]]:
    """(seed, destination) of whole records, none inside of another."""
    length = BLOCK_BYTES if is_single else file.length
    behind = 0  # the record that was found last
    for base in range(0, length, _SCAN_BYTES):
        data = file.pread(min(_SCAN_BYTES, length - base), base)
        at = data.find(RECORD_MAGIC)
        while at >= 0:
            offset = base + at
            if offset % BLOCK_BYTES == 0 and offset >= behind:
                first = file.pread(RECORD_HEADER_BYTES, offset)
                if len(first) == RECORD_HEADER_BYTES:
                    size = RECORD_HEADER.unpack_from(first)[1]
                    if size <= file.length - offset:
                        record = file.pread(RECORD_HEADER_BYTES + size, offset)
                        seed = seed_of_record(record)
                        destination = None if seed is None else destination_in(record, 0, seed)
                        if seed is not None and destination is not None:
                            behind = offset + len(record)
                            yield seed, destination
            at = data.find(RECORD_MAGIC, at + 1)


def _read(files: Folder, name: str, size: int) -> bytes:
    file = files.open(name)
    try:
        return file.pread(size, 0)
    finally:
        file.close()


def _length(files: Folder, name: str) -> int:
    file = files.open(name)
    try:
        return file.length
    finally:
        file.close()


def _write(files: Folder, name: str, data: bytes, offset: int) -> None:
    file = files.open(name)
    try:
        file.pwritev([data], offset)
        file.datasync()
    finally:
        file.close()
