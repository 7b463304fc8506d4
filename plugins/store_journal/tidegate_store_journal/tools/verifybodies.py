"""What ``verify`` reads outside of the data files: record files of destinations, and large bodies.

Takes no lock and writes nothing. What looks damaged beside a running gateway may only be under way
(a record is consumed and its room written again, a body is removed): the caller looks again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from tidegate.spi import CorruptRecordError, LargeBody, Progress
from tidegate_store_journal.bodies.large import file_name_of, read_large
from tidegate_store_journal.log.format import FormatError
from tidegate_store_journal.log.names import NamedStorage
from tidegate_store_journal.split import records as _records
from tidegate_store_journal.split.folders import FOLDERS_NAME, Folder, folder_name, folders_of
from tidegate_store_journal.split.recordfolder import RECORD_FILE, SINGLE_NAME, read_header, scan
from tidegate_store_journal.split.records import BLOCK_BYTES, FileHeader, Header
from tidegate_store_journal.split.reference import Reference
from tidegate_store_journal.split.splitopen import living
from tidegate_store_journal.tools.lookon import look

#: How often something suspicious is looked at again before it is called damage.
_ATTEMPTS: Final = 5
#: Sequences that one sentence names; there can be millions.
_SEQUENCES_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the journal refers to outside of its data files.

    Attributes: store_id: of the journal; references: by sequence; bodies: large ones by sequence.
    """

    store_id: str
    references: Mapping[int, Reference]
    bodies: Mapping[int, LargeBody]

    def only(self, sequences: frozenset[int]) -> Wanted:
        """The part of it that is about *sequences*."""
        return Wanted(
            self.store_id,
            {key: value for key, value in self.references.items() if key in sequences},
            {key: value for key, value in self.bodies.items() if key in sequences},
        )


class Broken(NamedTuple):
    """One place. Attributes: file (below the journal's directory), offset (bytes), sequences of the
    messages that cannot be read, problem.

    is_lost: a record that a power cut may take (it was not synced); the next start drops the message.
    """

    file: str
    offset: int
    sequences: frozenset[int]
    problem: str
    is_lost: bool = False


class _At(NamedTuple):
    """Where a record was found: the write that made it, its file, offset and size."""

    write: int
    folder: str
    seed: int
    name: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Places:
    """Where things are. Attributes: directory: of the journal; large: of the large bodies."""

    directory: Path
    large: Path


def check_bodies(places: Places, wanted: Wanted, progress: Progress) -> list[Broken]:
    """Read everything in *wanted*. Blocks. Returns: what cannot be read, one for each place."""
    found = list(_check_records(places.directory, wanted, progress))
    found += _check_large(places.large, wanted.bodies, progress)
    return found


def confirmed(
    places: Places, wanted: Wanted, broken: list[Broken], batch: int, pause: Callable[[], None]
) -> list[Broken]:
    """What of *broken* is still needed and still cannot be read a moment later. Blocks.

    Args: batch: the journal's last one when *wanted* was read; pause: what to do before each look.
    Raises: StoreIOError, CorruptRecordError: the journal cannot be read.
    """
    for _ in range(_ATTEMPTS):
        if not broken:
            break
        pause()
        with look(places.directory) as seen:
            index = seen.replay.index
            suspects = frozenset[int]().union(*(one.sequences for one in broken))
            wanted = wanted.only(suspects & set(living(index)))
            is_quiet = index.batch == batch
            batch = index.batch
        broken = check_bodies(places, wanted, _ignore)
        if is_quiet:
            break  # nothing is being written: it stays as it is
    return broken


def _ignore(_what: str, _done: int, _total: int) -> None:
    """It was told before."""


# ------------------------------------------------------------------------------------ record files


def _check_records(directory: Path, wanted: Wanted, progress: Progress) -> Iterator[Broken]:
    folders = folders_of(NamedStorage(directory))
    newest: dict[int, _At] = {}
    unreadable: dict[str, Broken] = {}
    try:
        names = folders.names()
    except OSError as error:
        yield Broken(FOLDERS_NAME, 0, frozenset(wanted.references), f"cannot be read: {error}")
        return
    for done, name in enumerate(names):
        progress("reading the directories of destinations", done, len(names))
        try:
            _find(name, folders.get(name), wanted, newest)
        except FileNotFoundError:
            continue  # it is being made or removed; if not, its records are missed below
        except (FormatError, OSError) as error:
            file = f"{FOLDERS_NAME}/{name}/{RECORD_FILE}"
            unreadable[name] = Broken(file, 0, frozenset(), str(error))
    progress("reading the directories of destinations", len(names), len(names))
    missing: dict[tuple[str, bool], list[int]] = {}
    here: dict[str, list[tuple[int, _At]]] = {}
    for sequence, reference in sorted(wanted.references.items()):
        at = newest.get(sequence)
        if at is None or at.write < reference.write:
            missing.setdefault((reference.destination, reference.synced), []).append(sequence)
        else:
            here.setdefault(at.folder, []).append((sequence, at))
    for (destination, synced), sequences in missing.items():
        name = folder_name(destination)
        header = unreadable.pop(name, None)
        yield _missing(destination, name, synced, sequences, header)
    yield from unreadable.values()
    for folder, records in here.items():
        yield from _read(folders.get(folder), records)


def _find(name: str, files: Folder, wanted: Wanted, newest: dict[int, _At]) -> None:
    """Put the newest record of every wanted message in this directory into *newest*.

    Raises: FormatError: the header of the record file; FileNotFoundError, OSError.
    """
    file = files.open(RECORD_FILE)
    try:
        header = read_header(file)
        if header.store_id != wanted.store_id:
            raise FormatError(f"it belongs to another store ({header.store_id})")
        if not wanted.references:
            return
        for block, record in scan(file, header):
            offset = header.data_offset + block * BLOCK_BYTES
            _offer(wanted, newest, record, name, header, RECORD_FILE, offset)
    finally:
        file.close()
    for single in filter(SINGLE_NAME.fullmatch, files.list()):
        try:
            handle = files.open(single)
        except FileNotFoundError:
            continue
        try:
            data = handle.pread(_records.RECORD_HEADER_BYTES, 0)
        finally:
            handle.close()
        found = _records.decode_header(header.seed, data)
        if found is not None:
            _offer(wanted, newest, found, name, header, single, 0)


def _offer(
    wanted: Wanted,
    newest: dict[int, _At],
    record: Header,
    folder: str,
    header: FileHeader,
    name: str,
    offset: int,
) -> None:
    if record.sequence not in wanted.references:
        return
    known = newest.get(record.sequence)
    if known is None or known.write <= record.write:
        size = _records.RECORD_HEADER_BYTES + record.payload_bytes
        newest[record.sequence] = _At(record.write, folder, header.seed, name, offset, size)


def _missing(
    destination: str, name: str, synced: bool, sequences: list[int], header: Broken | None
) -> Broken:
    shown = ", ".join(map(str, sequences[:_SEQUENCES_MAX]))
    more = ", …" if len(sequences) > _SEQUENCES_MAX else ""
    what = (
        f"{len(sequences)} messages of {destination} are pending or not yet released, but their "
        f"records are missing (sequences {shown}{more})"
    )
    if header is not None:
        what = f"{header.problem}; {what}"
    file = f"{FOLDERS_NAME}/{name}/{RECORD_FILE}"
    return Broken(file, 0, frozenset(sequences), what, is_lost=not synced and header is None)


def _read(files: Folder, records: Iterable[tuple[int, _At]]) -> Iterator[Broken]:
    """Read the payloads of one directory, in the order in which they lie."""
    handle, opened = None, ""
    try:
        for sequence, at in sorted(records, key=lambda item: (item[1].name, item[1].offset)):
            try:
                if handle is None or at.name != opened:
                    if handle is not None:
                        handle.close()
                    handle, opened = None, at.name
                    handle = files.open(at.name)
                record = handle.pread(at.size, at.offset)
                _records.decode_message(_records.payload_of(at.seed, record, sequence), sequence)
            except (FormatError, OSError) as error:
                file = f"{FOLDERS_NAME}/{at.folder}/{at.name}"
                yield Broken(file, at.offset, frozenset((sequence,)), str(error))
    finally:
        if handle is not None:
            handle.close()


# ------------------------------------------------------------------------------------ large bodies


def _check_large(
    directory: Path, bodies: Mapping[int, LargeBody], progress: Progress
) -> Iterator[Broken]:
    holders: dict[str, list[int]] = {}
    unique: dict[str, LargeBody] = {}
    for sequence, body in sorted(bodies.items()):
        holders.setdefault(body.id, []).append(sequence)
        unique[body.id] = body
    for done, (body_id, body) in enumerate(unique.items()):
        progress("reading large bodies", done, len(unique))
        try:
            for _ in read_large(directory, body):
                pass
            continue
        except CorruptRecordError as error:
            problem = error.problem
        except OSError as error:
            problem = f"it cannot be read: {error}"
        who = ", ".join(map(str, holders[body_id]))
        text = f"the body of message {who}: {problem}"
        file = f"{directory.name}/{file_name_of(body_id)}"
        yield Broken(file, 0, frozenset(holders[body_id]), text)
    progress("reading large bodies", len(unique), len(unique))
