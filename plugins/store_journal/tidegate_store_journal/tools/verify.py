"""Reads every byte of a journal that means something, and reports what is damaged.

Takes no lock and writes nothing, so it works beside a running gateway. What looks damaged there may
only be in progress: a batch being written, a file being put away. Anything found is
therefore checked again, and counts only if it stays while the file stays unchanged.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

from tidegate.spi import CorruptRecordError, LargeBody, Progress, StoreIOError
from tidegate_store_journal.bodies.folders import FOLDERS_NAME
from tidegate_store_journal.bodies.large import file_name_of, read_large
from tidegate_store_journal.checkpoint.metadata import LmdbMetadata, MetadataError, verify_pages
from tidegate_store_journal.index.index import Index
from tidegate_store_journal.log.datafile import read_data_file
from tidegate_store_journal.log.format import DATA_OFFSET, FormatError
from tidegate_store_journal.log.names import NAMINGS, NamedStorage, preset_of
from tidegate_store_journal.log.storage import LOCK_NAME, Folder
from tidegate_store_journal.start.bindings import read_bindings
from tidegate_store_journal.start.damage import survey
from tidegate_store_journal.tools.census import Census, Held, unreadable
from tidegate_store_journal.tools.located import data_names
from tidegate_store_journal.tools.lookon import Look, ReadOnlyStorage, look

#: How often something suspicious is checked before it is called damage, and the pause between.
_ATTEMPTS: Final = 5
_PAUSE_SECONDS: Final = 0.1
_RESTORE: Final = "Restore the file from a copy"
#: Differences to report; there can be millions.
_DIFFERENCES_MAX: Final = 20


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
            acknowledged log with a holder, each read at its place.
        bodies: those of them that have a large body, read too.
        damages: empty for a whole journal.
        notes: what could not be checked, or is unusual but no damage.
    """

    files: int = 0
    read_bytes: int = 0
    batches: int = 0
    records: int = 0
    references: int = 0
    bodies: int = 0
    damages: list[Damage] = field(default_factory=list[Damage])
    notes: list[str] = field(default_factory=list[str])


def verify(
    directory: Path,
    progress: Progress,
    *,
    large: Path | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> VerifyReport:
    """Check the journal in *directory*: files, batches, records, references, metadata. Blocks.

    Args: large: directory of the large bodies, None for the usual one below; sleep: how to wait
        before a second look, in seconds.
    Raises: ConfigError, StoreIOError when it cannot be read at all.
    """
    large = directory / "large-messages" if large is None else large
    first = _Pass(directory, large, progress)
    batch = first.check_metadata()
    first.run(batch)
    report, metadata = first.report, first.metadata_name
    for _ in range(_ATTEMPTS - 1):
        # What looks damaged beside a gateway may be in progress: it counts if it stays.
        if all(item.file == metadata for item in report.damages):
            break
        sleep(_PAUSE_SECONDS)
        again = _Pass(directory, large, progress)
        again.run(batch)
        still = {(item.file, item.offset): item for item in again.report.damages}
        report.damages = [
            still.get((item.file, item.offset), item)
            for item in report.damages
            if item.file == metadata or (item.file, item.offset) in still
        ]
    return report


class _Pass:
    """One look at everything."""

    def __init__(self, directory: Path, large: Path, progress: Progress) -> None:
        self._directory = directory
        self._large = large
        self._progress = progress
        there = NamedStorage(directory)
        data_names(there)  # raises when there is nothing
        self._storage = ReadOnlyStorage(directory, NAMINGS[preset_of(there)])
        self.metadata_name = str(there.metadata_directory.relative_to(directory) / "data.mdb")
        self.report = VerifyReport()

    def run(self, batch: int | None) -> None:
        """*batch*: number of one that a checkpoint had on disk before; None: unreadable."""
        seen = self._look(rebuilt=batch is None)
        self._data_files(batch or 0, seen)
        with suppress(FileNotFoundError):  # put away meanwhile
            index, names = Index(keep_acknowledged=False), self._storage.list()
            for problem in read_bindings(self._storage, names, index, mends=True).problems:
                self._add(*problem)
        if seen is not None:
            # Only the references say which of their batches count, but each is whole up to where
            # the next one would begin.
            for file in seen.replay.elsewhere.files.values():
                name = f"{FOLDERS_NAME}/{file.folder}/{file.name}"
                self._census(file.home, file.name, name, seen)
            self._bodies(seen.index.large.bodies)
            self._compare(seen)

    def _look(self, *, rebuilt: bool) -> Look | None:
        """What the checkpoint and the journal after it refer to; None: unknown.

        *rebuilt*: without the checkpoint; reading a damaged one could end the process.
        """
        try:
            return look(self._directory, rebuilt=rebuilt)
        except CorruptRecordError as error:
            place, _, offset = error.location.rpartition(" at offset ")
            name = Path(place or error.location).name
            self._add(name, int(offset) if offset.isdigit() else 0, error.problem, advice="")
        except StoreIOError as error:
            self.report.notes.append(f"references were not checked: {error}")
        return None

    # --------------------------------------------------------------------------- data files

    def _data_files(self, batch: int, seen: Look | None) -> None:
        """*batch*: number of one that was on disk before."""
        names = data_names(self._storage)
        walks: list[Census] = []
        for done, name in enumerate(names):
            self._progress("reading data files", done, len(names))
            census = self._census(self._storage, name, name, seen)
            if census is not None:
                walks.append(census)
        self._progress("reading data files", len(names), len(names))
        damages, empty = survey(walks, batch)
        for damage in damages:
            text = f"a batch is damaged, and was on disk once: {damage.extent}"
            self._add(damage.file.name, damage.begin, text)
        found = sorted((item for item in walks if item.first), key=lambda item: item.first)
        for before, after in pairwise(found):
            # Files may be gone in between, but none may overlap.
            if before.last is not None and after.first <= before.last.batch:
                text = (
                    f"its first batch is {after.first}, and another file goes to "
                    f"{before.last.batch} already; one of them does not belong here"
                )
                self._add(after.file.name, DATA_OFFSET, text, advice="")
        is_whole = len(walks) == len(names) and not self.report.damages
        if found and is_whole and (last := found[-1].last) is not None and last.batch < batch:
            text = (
                f"the journal ends with batch {last.batch}, and batch {batch} was on disk "
                "once: what follows is damaged or missing"
            )
            self._add(found[-1].file.name, found[-1].end, text)
        newest = max((item.file.file_id for item in walks), default=0)
        for item in (*found[-1:], *(item for item in walks if item.file in empty)):
            name, rest = item.file.name, [*item.damages, *filter(None, [item.gap])]
            if not rest or any(item.file is damage.file for damage in damages):
                continue
            begin, end = rest[0].begin, rest[-1].end
            if not item.first and item.file.file_id != newest:
                self._add(name, begin, "no batch in it is whole")
            elif not self._is_running():  # otherwise it may be in progress
                self.report.notes.append(
                    f"{self._shown(name)} at offset {begin}: a torn batch of {end - begin} bytes, "
                    "never confirmed; the next start cuts it off and keeps a copy"
                )

    def _census(self, home: Folder, file_name: str, name: str, seen: Look | None) -> Census | None:
        """Count what is in a data file and add what is wrong with it; None: it cannot be read."""
        held: list[Held] = []
        try:
            file = read_data_file(home, file_name)
            if seen is not None:
                if file.store_id != seen.replay.store_id:
                    raise FormatError(f"it belongs to another store ({file.store_id})")
                held += seen.index.held_in(file.file_id)
            census = Census(file, checks=True)
            census.problems += unreadable(file, held)
        except FileNotFoundError:
            return None  # put away meanwhile
        except (FormatError, OSError) as error:
            self._add(name, 0, str(error))
            return None
        if file.mended_page and home is self._storage:
            text = "one of the two file headers is damaged; the next start writes it again"
            self._add(name, 0, text, advice="")
        report = self.report
        report.files += 1
        report.read_bytes += census.end
        report.batches += census.batches
        report.records += census.records
        report.references += len(held)
        for at, problem in census.problems:
            self._add(name, at, problem)
        return census

    def _is_running(self) -> bool:
        """Whether a gateway seems to hold the lock; true where the system does not tell."""
        try:
            status = os.stat(self._directory / LOCK_NAME)
            locks = Path("/proc/locks").read_text()
        except OSError:
            return sys.platform != "linux"
        return any(line.split()[5].endswith(f":{status.st_ino}") for line in locks.splitlines())

    # --------------------------------------------------------------------------- elsewhere

    def check_metadata(self) -> int | None:
        """Check the checkpoint by itself. Returns: its last batch; None when it cannot be read."""
        directory = NamedStorage(self._directory).metadata_directory
        if not (directory / "data.mdb").exists():
            self.report.notes.append(
                "there is no metadata store; the next start rebuilds it from the data files"
            )
            return 0
        try:
            if not self._is_running():  # what is being written cannot be verified page by page
                verify_pages(directory / "data.mdb")
            with closing(LmdbMetadata(directory, read_only=True)) as metadata:
                loaded = metadata.load(self._progress)
        except MetadataError as error:
            text = (
                f"the metadata store is damaged: {error}; stop the gateway and run "
                "`tidegate journal rebuild-index`"
            )
            self._add(self.metadata_name, 0, text, advice="")
            return None
        return loaded.state.batch if loaded is not None else 0

    def _bodies(self, bodies: Mapping[int, LargeBody]) -> None:
        """Read the files of large bodies."""
        holders: dict[LargeBody, list[int]] = {}
        for sequence, body in sorted(bodies.items()):
            holders.setdefault(body, []).append(sequence)
        self.report.bodies = sum(map(len, holders.values()))
        for done, (body, sequences) in enumerate(holders.items()):
            self._progress("reading large bodies", done, len(holders))
            try:
                for _ in read_large(self._large, body):
                    pass
            except (CorruptRecordError, OSError) as error:
                is_read = isinstance(error, CorruptRecordError)
                problem = error.problem if is_read else f"it cannot be read: {error}"
                text = f"the body of message {', '.join(map(str, sequences))}: {problem}"
                self._add(f"{self._large.name}/{file_name_of(body.id)}", 0, text)
        self._progress("reading large bodies", len(holders), len(holders))

    def _compare(self, seen: Look) -> None:
        """Check that the checkpoint says what a rebuild from the data files would say."""
        if self.report.damages:
            return  # a rebuild would miss damaged parts
        try:
            other = look(self._directory, rebuilt=True)
        except StoreIOError:  # files are put away faster than all of them can be read
            other = None
        if other is None or other.index.batch != seen.index.batch:
            self.report.notes.append(
                "the journal was written meanwhile: its metadata was read, but not compared "
                "with a rebuild from the data files (stop the gateway for that)"
            )
            return
        for number, text in enumerate(differences(seen.index, other.index)):
            if number == _DIFFERENCES_MAX:
                self.report.notes.append("there are more differences in the metadata")
                break
            self.report.damages.append(Damage(self.metadata_name, 0, text))

    # --------------------------------------------------------------------------- names

    def _shown(self, name: str) -> str:
        """The name on disk of the file that the engine calls *name*."""
        return name if "/" in name else self._storage.path_of(name).name

    def _add(self, name: str, offset: int, problem: str, *, advice: str = _RESTORE) -> None:
        """Remember damage, unless that place is already known."""
        damages, file = self.report.damages, self._shown(name)
        if all((known.file, known.offset) != (file, offset) for known in damages):
            text = f"{problem}. {advice}" if advice else problem
            damages.append(Damage(file, offset, text))


def differences(index: Index, rebuilt: Index) -> Iterator[str]:
    """What the checkpoint says and a rebuild does not, and vice versa."""
    for list_id in sorted({*index.lists, *rebuilt.lists}):
        here, there = ({key for key, _ in i.list_of(list_id).entries()} for i in (index, rebuilt))
        for sequence in sorted(here ^ there):
            where = "it, not in the data files" if sequence in here else "the data files, not in it"
            yield f"message {sequence} of list {list_id} is pending in {where}"
    for what, name in _SMALL_STATE.items():
        here, there = ({str(key) for key in getattr(one, name)} for one in (index, rebuilt))
        for key in sorted(here ^ there):
            yield f"{what} {key} is only in {'it' if key in here else 'the data files'}"


#: Names for the report, and attributes of the index.
_SMALL_STATE: Final = {
    "destination": "destinations",
    "subscription list": "subscriptions",
    "session": "sessions",
    "retained message of": "retained",
}
