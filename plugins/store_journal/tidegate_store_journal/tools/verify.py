"""Reading every byte of a journal that means something, and naming what is damaged.

Takes no lock and writes nothing, so it works beside a running gateway. What looks damaged there may
only be under way: a batch that is being written, a file that is being put away. Whatever is found is
therefore looked at again, and counts only when it stays while the file stays what it was.
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, cast

from lmdb import verify as lmdb_verify

from tidegate.spi import CorruptRecordError, LargeBody, Progress, StoreIOError
from tidegate_store_journal.bodies.folders import FOLDERS_NAME
from tidegate_store_journal.checkpoint.live import read_live_list
from tidegate_store_journal.checkpoint.metadata import LmdbMetadata, MetadataError
from tidegate_store_journal.index.index import Index
from tidegate_store_journal.log import format as _format
from tidegate_store_journal.log.datafile import DataFile, read_data_file, using
from tidegate_store_journal.log.format import (
    DATA_OFFSET,
    FILE_SHIFT,
    FormatError,
    location_parts,
    read_message,
)
from tidegate_store_journal.log.names import NAMINGS, NamedStorage, preset_of
from tidegate_store_journal.log.storage import LOCK_NAME
from tidegate_store_journal.start.bindings import read_bindings
from tidegate_store_journal.tools.census import Census, take_census
from tidegate_store_journal.tools.located import data_names
from tidegate_store_journal.tools.lookon import Look, ReadOnlyStorage, look
from tidegate_store_journal.tools.verifybodies import Places, check_bodies, confirmed

#: How often something suspicious is looked at before it is called damage, and the pause between.
_ATTEMPTS: Final = 5
_PAUSE_SECONDS: Final = 0.1
#: Differences that are named; there can be millions.
_DIFFERENCES_MAX: Final = 20
_READ_GAP_BYTES: Final = 64 << 10
_READ_BYTES_MAX: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class Damage:
    """One place. Attributes: file (name), offset (bytes), problem (what, and what to do)."""

    file: str
    offset: int
    problem: str


@dataclass(slots=True)
class VerifyReport:
    """What was read, and what was wrong with it.

    Attributes:
        files, read_bytes, batches, records: of data files; references: messages and rows of the
            acknowledged log that something holds, each read where it lies.
        bodies: of them, those that have a large body, read too.
        damages: empty for a whole journal.
        notes: what could not be checked, or is unusual and no damage.
    """

    files: int = 0
    read_bytes: int = 0
    batches: int = 0
    records: int = 0
    references: int = 0
    bodies: int = 0
    damages: list[Damage] = field(default_factory=list[Damage])
    notes: list[str] = field(default_factory=list[str])

    def add(self, damage: Damage) -> None:
        """Remember *damage*, unless that place is known already."""
        if all(
            (known.file, known.offset) != (damage.file, damage.offset) for known in self.damages
        ):
            self.damages.append(damage)


def verify(
    directory: Path,
    progress: Progress,
    *,
    large: Path | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> VerifyReport:
    """Check the journal in *directory*: files, batches, records, references, metadata. Blocks.

    Args: large: directory of the large bodies, None for the usual one below; sleep: how to wait before a second look, in seconds.
    Raises: ConfigError, StoreIOError when it cannot be read at all.
    """
    places = Places(directory, directory / "large-messages" if large is None else large)
    return _Verifier(places, progress, sleep).run()


class _Verifier:
    def __init__(self, places: Places, progress: Progress, sleep: Callable[[float], None]) -> None:
        self._places = places
        self._directory = directory = places.directory
        self._progress = progress
        self._sleep = sleep
        there = NamedStorage(directory)
        data_names(there)  # says it when there is nothing
        self._storage = ReadOnlyStorage(directory, NAMINGS[preset_of(there)])
        self._metadata_name = str(there.metadata_directory.relative_to(directory) / "data.mdb")
        self._report = VerifyReport()
        self._elsewhere: dict[int, str] = {}  # names of files in directories of destinations

    def run(self) -> VerifyReport:
        # The checkpoint first: what it speaks of must be in the files that are read afterwards.
        batch = self._metadata()
        self._data_files(batch or 0)
        self._side_files()
        if batch is not None:
            self._references()
        return self._report

    # --------------------------------------------------------------------------- data files

    def _data_files(self, batch: int) -> None:
        """*batch*: number of one that was on disk before."""
        names = data_names(self._storage)
        is_whole = True
        newest = max((self._first_batch(name) for name in names), default=0)
        found: list[tuple[str, Census]] = []
        for done, name in enumerate(names):
            self._progress("reading data files", done, len(names))
            census = self._data_file(name, newest)
            if census is not None and census.batches:
                found.append((name, census))
            is_whole = is_whole and census is not None
        self._progress("reading data files", len(names), len(names))
        self._order(found)
        if found and is_whole and found[-1][1].last_batch < batch:
            name, census = found[-1]
            text = (
                f"the journal ends with batch {census.last_batch}, and batch {batch} was on disk "
                "once: what follows is damaged or missing. Restore the file from a copy"
            )
            self._add(Damage(name, census.end, text))

    def _first_batch(self, name: str) -> int:
        """0 for a file that has none, cannot be read or is gone: the census says why."""
        try:
            return read_data_file(self._storage, name).first_batch
        except (FormatError, OSError):
            return 0

    def _data_file(self, name: str, newest: int) -> Census | None:
        """Read one file whole; None when it is damaged, or was put away meanwhile.

        A file that is being written ends elsewhere each time; damage stays where it is.
        """
        problems: list[Damage] = []
        last: tuple[Census, int] | None = None
        is_moving = False
        for attempt in range(_ATTEMPTS):
            if attempt:
                self._sleep(_PAUSE_SECONDS)
            end = last[0].end if last else 0
            last = None
            try:
                file = read_data_file(self._storage, name)
                census = take_census(file, checks=True)
            except FileNotFoundError:
                return None
            except FormatError as error:
                problems = [Damage(name, 0, f"{error}. Restore the file from a copy")]
                continue
            except OSError as error:
                problems = [Damage(name, 0, f"cannot be read: {error}")]
                continue
            problems, torn = _problems(file, census, newest)
            last = census, torn
            if not problems and not torn:
                break
            if not self._is_still(name, file.seed):
                return None
            is_moving = census.end != end
        if last is not None and (not problems or (is_moving and not last[0].problems)):
            self._count(name, last[0], 0 if is_moving else last[1])
            return last[0]
        for damage in problems:
            self._add(damage)
        return None

    def _count(self, name: str, census: Census, torn: int) -> None:
        report = self._report
        report.files += 1
        report.read_bytes += census.end
        report.batches += census.batches
        report.records += census.records
        if torn and not self._is_running():
            report.notes.append(
                f"{self._shown(name)} at offset {census.end}: a torn batch of {torn} bytes, never confirmed; the "
                "next start cuts it off and keeps a copy"
            )

    def _is_still(self, name: str, seed: int) -> bool:
        """The name means the same life of the same file: nobody puts it away or uses it again."""
        try:
            return read_data_file(self._storage, name).seed == seed
        except FormatError:
            return True  # damaged rather than used again: those headers are written before the name
        except OSError:
            return False

    def _order(self, files: list[tuple[str, Census]]) -> None:
        """Batches are numbered through; files may be gone in between, but none may overlap."""
        files.sort(key=lambda item: item[1].first_batch)
        for (_, before), (name, after) in itertools.pairwise(files):
            if after.first_batch <= before.last_batch:
                text = (
                    f"its first batch is {after.first_batch}, and another file goes to "
                    f"{before.last_batch} already; one of them does not belong here"
                )
                self._add(Damage(name, DATA_OFFSET, text))

    def _is_running(self) -> bool:
        """A gateway seems to hold the lock; where the system does not tell, one may."""
        try:
            status = os.stat(self._directory / LOCK_NAME)
            locks = Path("/proc/locks").read_text()
        except OSError:
            return sys.platform != "linux"
        return any(line.split()[5].endswith(f":{status.st_ino}") for line in locks.splitlines())

    # --------------------------------------------------------------------------- side files

    def _side_files(self) -> None:
        problems = self._bindings_problems()
        for _ in range(_ATTEMPTS):
            if not problems or not self._is_running():
                break
            time.sleep(_PAUSE_SECONDS)
            problems = [item for item in self._bindings_problems() if item in problems]
        for name, offset, problem in problems:
            self._add(Damage(name, offset, f"{problem}. Restore the file from a copy"))
        for name in data_names(self._storage):
            file_id = int(name[8:18])
            try:
                live = read_live_list(self._storage, file_id)
                if live is not None:
                    live.blocks()
            except FormatError as error:
                text = f"{error}. Only a rebuild of the metadata would need it"
                self._add(Damage(_format.live_name(file_id), 0, text))

    def _bindings_problems(self) -> list[tuple[str, int, str]]:
        names = self._storage.list()
        index = Index(keep_acknowledged=False)
        try:
            return read_bindings(self._storage, names, index, mends=True).problems
        except FileNotFoundError:
            return []  # put away meanwhile

    def _metadata(self) -> int | None:
        """Check the checkpoint by itself. Returns: its last batch; None when it cannot be read."""
        directory = NamedStorage(self._directory).metadata_directory
        if not (directory / "data.mdb").exists():
            self._report.notes.append(
                "there is no metadata store; the next start rebuilds it from the data files"
            )
            return 0
        advice = "stop the gateway and run `tidegate journal rebuild-index`"
        try:
            if not self._is_running():  # what is being written cannot be verified page by page
                problems = cast(
                    "list[str]",
                    lmdb_verify.verify(  # pyright: ignore[reportUnknownMemberType]  # untyped
                        str(directory / "data.mdb")
                    ),
                )
                if problems:
                    raise MetadataError(problems[0])
            metadata = LmdbMetadata(directory, read_only=True)
            try:
                loaded = metadata.load(self._progress)
            finally:
                metadata.close()
        except (MetadataError, lmdb_verify.VerifyError) as error:
            text = f"the metadata store is damaged: {error}; {advice}"
            self._add(Damage(self._metadata_name, 0, text))
            return None
        return loaded.state.batch if loaded is not None else 0

    # --------------------------------------------------------------------------- references

    def _references(self) -> None:
        """Everything that the checkpoint and the journal behind it refer to can be read."""
        try:
            with look(self._directory) as seen:
                self._directories(seen)
                suspects = self._unreadable(seen)
                large = dict(seen.replay.index.large.bodies)
                before = seen.replay.index.batch
                self._compare(seen)
            if suspects:
                suspects = self._confirmed(suspects, before)
            self._bodies(large, before)
        except CorruptRecordError as error:
            self._add_error(error)
        except StoreIOError as error:
            self._report.notes.append(f"references were not checked: {error}")
        else:
            for list_id, sequence, place, problem in suspects:
                file_id, offset, _, _ = location_parts(place)
                who = f"list {list_id}" if list_id else "the acknowledged log"
                text = f"message {sequence}, which {who} holds: {problem}. Restore it from a copy"
                name = self._elsewhere.get(file_id, _format.file_name(file_id))
                self._add(Damage(name, offset, text))

    def _directories(self, seen: Look) -> None:
        """Data files of destinations: which batches count only the references say, but each is
        whole up to where the next one would begin."""
        for file_id, file in seen.replay.elsewhere.files.items():
            name = self._elsewhere[file_id] = f"{FOLDERS_NAME}/{file.folder}/{file.name}"
            try:
                census = self._census_of(file, seen.store_id)
            except FileNotFoundError:
                continue
            except (FormatError, OSError) as error:
                self._add(Damage(name, 0, f"{error}. Restore the file from a copy"))
                continue
            self._count(name, census, 0)
            for at, problem in census.problems:
                self._add(Damage(name, at, f"{problem}. Restore the file from a copy"))

    def _census_of(self, file: DataFile, store_id: str) -> Census:
        """Raises: FormatError, OSError."""
        found = read_data_file(file.home, file.name)
        if found.store_id != store_id:
            raise FormatError(f"it belongs to another store ({found.store_id})")
        return take_census(found, checks=True)

    def _bodies(self, bodies: Mapping[int, LargeBody], batch: int) -> None:
        self._report.bodies = len(bodies)
        broken = check_bodies(self._places, bodies, self._progress)
        pause = functools.partial(self._sleep, _PAUSE_SECONDS)
        for one in confirmed(self._places, bodies, broken, batch, pause):
            text = f"{one.problem}. Restore the file from a copy"
            self._add(Damage(one.file, one.offset, text))

    def _unreadable(self, seen: Look) -> list[tuple[int, int, int, str]]:
        """(list, or 0 for the log, sequence, location, problem) of what cannot be read."""
        files = _files_of(seen)
        found: list[tuple[int, int, int, str]] = []
        wanted = sorted({*files, *seen.replay.index.files})
        for done, file_id in enumerate(wanted):
            self._progress("reading references", done, len(wanted))
            held = sorted(_held_in(seen, file_id), key=lambda item: item[2])
            self._report.references += len(held)
            file = files.get(file_id)
            if file is None:
                found += [(*item, "its data file is missing") for item in held]
            else:
                found += _read_held(file, held)
        self._progress("reading references", len(wanted), len(wanted))
        return found

    def _confirmed(
        self, suspects: list[tuple[int, int, int, str]], before: int
    ) -> list[tuple[int, int, int, str]]:
        """Those that are still held at the same place, and still cannot be read."""
        for _ in range(_ATTEMPTS):
            self._sleep(_PAUSE_SECONDS)
            with look(self._directory) as seen:
                known = {
                    (list_id, sequence, place)
                    for file_id in {location_parts(one[2])[0] for one in suspects}
                    for list_id, sequence, place in _held_in(seen, file_id)
                }
                files = _files_of(seen)
                still = [one for one in suspects if one[:3] in known]
                suspects = []
                for one in still:
                    file = files.get(location_parts(one[2])[0])
                    suspects += [one] if file is None else _read_held(file, [one[:3]])
                if not suspects or seen.replay.index.batch == before:
                    break  # nothing is being written: it stays as it is
                before = seen.replay.index.batch
        return suspects

    def _compare(self, seen: Look) -> None:
        """The checkpoint says what a rebuild from the data files would say."""
        if self._report.damages:
            return  # a rebuild would miss what is damaged
        with look(self._directory, rebuilt=True) as other:
            if other.replay.index.batch != seen.replay.index.batch:
                self._report.notes.append(
                    "the journal was written meanwhile: its metadata was read, but not compared "
                    "with a rebuild from the data files (stop the gateway for that)"
                )
                return
            for number, text in enumerate(differences(seen, other)):
                if number == _DIFFERENCES_MAX:
                    self._report.notes.append("there are more differences in the metadata")
                    break
                self._report.damages.append(Damage(self._metadata_name, 0, text))

    def _shown(self, name: str) -> str:
        """What the file that the engine calls *name* is called on the disk."""
        return name if "/" in name else Path(self._storage.describe(name)).name

    def _add(self, damage: Damage) -> None:
        self._report.add(Damage(self._shown(damage.file), damage.offset, damage.problem))

    def _add_error(self, error: CorruptRecordError) -> None:
        place, _, offset = error.location.rpartition(" at offset ")
        name = Path(place or error.location).name
        self._add(Damage(name, int(offset) if offset.isdigit() else 0, error.problem))


def _problems(file: DataFile, census: Census, newest: int) -> tuple[list[Damage], int]:
    """What is wrong with a file, and how many bytes may be a batch under way."""
    found = [Damage(file.name, at, problem) for at, problem in census.problems]
    if file.mended_page:
        text = "one of the two file headers is damaged; the next start writes it again"
        found.append(Damage(file.name, 0, text))
    is_last = census.first_batch >= newest or not census.batches
    for gap, number, before in census.gaps:
        if is_last and census.synced < number:
            return found, max(gap.end, census.end) - gap.begin
        what = "a batch is damaged that was on disk whole once: other files continue behind it"
        if census.batches > before:
            what = f"a batch is damaged, and {census.batches - before} whole ones come behind it"
        found.append(Damage(file.name, gap.begin, f"{what}. Restore the file from a copy"))
    return found, 0


def _held_in(seen: Look, file_id: int) -> Iterator[tuple[int, int, int]]:
    """(list, sequence, location) of everything in a file that something holds; list 0: the log."""
    index = seen.replay.index
    for list_id, pending in index.lists.items():
        for piece in pending.pieces_in(file_id):
            for sequence, place in piece:
                yield list_id, sequence, place
    log = index.log
    for block in log.blocks():
        if block.may_speak_of(file_id):
            for number, place in enumerate(block.locations):
                if place >> FILE_SHIFT == file_id and block.first + number > log.released:
                    yield 0, block.sequences[number], place


def _files_of(seen: Look) -> dict[int, DataFile]:
    """All data files that messages are in, also in directories of destinations."""
    return {file.file_id: file for file in seen.replay.files} | seen.replay.elsewhere.files


def _read_held(file: DataFile, held: list[tuple[int, int, int]]) -> list[tuple[int, int, int, str]]:
    """Read messages of one file, sorted by location. Returns those that cannot be read, with why."""
    found: list[tuple[int, int, int, str]] = []
    data, begin = b"", 0
    known = -1
    problem = ""
    with using(file) as handle:
        for number, (list_id, sequence, place) in enumerate(held):
            _, offset, size, _ = location_parts(place)
            if offset != known:
                if not begin <= offset <= offset + size <= begin + len(data):
                    begin = offset
                    data = handle.pread(_extent(held, number), begin)
                at = offset - begin
                known, problem = offset, ""
                try:
                    read_message(data[at : at + size], sequence)
                except FormatError as error:
                    problem = str(error)
            if problem:
                found.append((list_id, sequence, place, problem))
    return found


def _extent(held: list[tuple[int, int, int]], number: int) -> int:
    """Bytes to read at once for the record at *number* and those that lie close behind it."""
    _, begin, size, _ = location_parts(held[number][2])
    end = begin + size
    for _, _, place in held[number + 1 :]:
        _, offset, size, _ = location_parts(place)
        if offset > end + _READ_GAP_BYTES or offset + size - begin > _READ_BYTES_MAX:
            break
        end = max(end, offset + size)
    return end - begin


def differences(seen: Look, other: Look) -> Iterator[str]:
    """What the checkpoint says and a rebuild does not, and the other way round."""
    index, rebuilt = seen.replay.index, other.replay.index
    for list_id in sorted({*index.lists, *rebuilt.lists}):
        one, two = index.lists.get(list_id), rebuilt.lists.get(list_id)
        here = {sequence for sequence, _ in one.entries()} if one is not None else set[int]()
        there = {sequence for sequence, _ in two.entries()} if two is not None else set[int]()
        for sequence in sorted(here - there):
            yield f"message {sequence} of list {list_id} is pending in it, not in the data files"
        for sequence in sorted(there - here):
            yield f"message {sequence} of list {list_id} is pending in the data files, not in it"
    for what, here, there in (
        ("destination", set(index.destinations), set(rebuilt.destinations)),
        ("subscription list", set(index.subscriptions), set(rebuilt.subscriptions)),
        ("session", set(index.sessions), set(rebuilt.sessions)),
        ("retained message of", set(index.retained), set(rebuilt.retained)),
    ):
        for name in sorted(map(str, here ^ there)):
            where = "in it" if name in set(map(str, here)) else "in the data files"
            yield f"{what} {name} is only {where}"
