"""Reading a journal that another process may be writing: no lock, no repair, not a byte written.

The gateway goes on meanwhile. A data file is only put away after a newer checkpoint, so what
was read is whole if every file is still there under its name at the end. If not, everything
is read again.
"""

from __future__ import annotations

import os
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from tidegate.spi import CorruptRecordError, StoreIOError
from tidegate.spi.private_files import open_regular
from tidegate_store_journal.bodies.folders import Folders, find_files
from tidegate_store_journal.checkpoint.metadata import (
    LmdbMetadata,
    Loaded,
    MetadataCounters,
    MetadataError,
)
from tidegate_store_journal.index.index import Index
from tidegate_store_journal.log.format import FREE_NAME
from tidegate_store_journal.log.names import NamedStorage
from tidegate_store_journal.log.storage import DirectoryFile, length_of
from tidegate_store_journal.options import JournalOptions
from tidegate_store_journal.start.bindings import read_bindings
from tidegate_store_journal.start.losses import LossReport
from tidegate_store_journal.start.recovery import (
    check_bindings,
    check_owner,
    fill_index,
    open_files,
)
from tidegate_store_journal.start.replay import Replay

#: How often a changing journal is read, how much longer the pause gets each time, and how often one
#: that looks damaged although nothing changes: it may be as large as the disk.
_ATTEMPTS: Final = 20
_PAUSE_SECONDS: Final = 0.01
_DAMAGED_ATTEMPTS: Final = 5
_STRICT: Final = JournalOptions()  # damaged or missing files are reported


def _refuse(*_args: object, **_options: object) -> NoReturn:
    raise PermissionError("the journal is only looked at")


class _ReadOnlyFile(DirectoryFile):
    """Refuses to change anything."""

    pwritev = preallocate = _refuse


class ReadOnlyStorage(NamedStorage):
    """A directory in which nothing can be changed."""

    rename = unlink = _refuse

    def open(self, name: str, *, create: bool = False) -> DirectoryFile:
        """See :class:`Storage`."""
        if create:
            _refuse()
        return _ReadOnlyFile(open_regular(self.path_of(name), os.O_RDONLY))


@dataclass(frozen=True, slots=True)
class Look:
    """A journal as it was at one moment.

    Attributes: replay: with the index and the data files, none of them open; free: names and lengths
        of dead files; counters: everything ever written into the metadata store, None if it cannot be
        read.
    """

    replay: Replay
    free: list[tuple[str, int]]
    counters: MetadataCounters | None

    @property
    def index(self) -> Index:
        """What is pending where."""
        return self.replay.index

    def shown(self, name: str) -> str:
        """The name on disk of the file that the engine calls *name*."""
        return Path(self.replay.storage.describe(name)).name


def _silent(_what: str, _done: int, _total: int) -> None: ...


def look(directory: Path, *, rebuilt: bool = False) -> Look:
    """Read the journal in *directory*.

    *rebuilt*: leave the metadata alone and read what the data files themselves say.
    Raises: StoreIOError when there is none or it changes too fast; CorruptRecordError.
    """
    storage = ReadOnlyStorage(directory)
    reason: object = "it changes faster than it can be read; try again"
    damaged = 0
    for attempt in range(1, _ATTEMPTS + 1):
        before = _state_of(directory)
        try:
            elsewhere = find_files(Folders(storage), removes=False)
            index, report = Index(keep_acknowledged=True), LossReport(storage)
            replay = Replay(storage, _STRICT, elsewhere, _silent, index, report)
            seen = _read(replay, storage, rebuilt=rebuilt)
            if {file.name for file in (*replay.files, *replay.spares)} <= set(storage.list()):
                return seen
        except CorruptRecordError as error:
            # A gateway that creates files and puts them away meanwhile looks like this, too.
            damaged += _state_of(directory) == before
            if damaged == _DAMAGED_ATTEMPTS or attempt == _ATTEMPTS:
                raise
            reason = error
        except FileNotFoundError as error:
            reason = error
        except OSError as error:
            raise StoreIOError(f"cannot read the journal in {directory}: {error}") from error
        if not damaged:
            time.sleep(attempt * _PAUSE_SECONDS)
    raise StoreIOError(f"cannot read the journal in {directory}: {reason}")


def _state_of(directory: Path) -> dict[str, int]:
    """Changes when somebody writes: names, and the last write time of each.

    Without LMDB's table of readers: that is ours, too.
    """
    found: dict[str, int] = {}
    for folder, _, names in os.walk(directory):
        for name in set(names) - {"lock.mdb"}:
            path = f"{folder}/{name}"
            with suppress(FileNotFoundError):
                found[path] = os.stat(path).st_mtime_ns
    return found


def _read(replay: Replay, storage: ReadOnlyStorage, *, rebuilt: bool) -> Look:
    names = storage.list()
    open_files(replay, names)
    if not replay.store_id:
        raise StoreIOError(f"there is no journal in {storage.describe('')}")
    # At once: the longer the time in between, the more often the checkpoint names newer files.
    loaded: Loaded | None = None
    counters: MetadataCounters | None = None
    with (
        suppress(MetadataError),  # the data files have everything
        closing(LmdbMetadata(storage.metadata_directory, read_only=True)) as metadata,
    ):
        found = None if rebuilt else metadata.load(replay.progress)
        if found is not None:
            check_owner(found, replay.store_id)
        loaded, counters = found, metadata.counters
    replay.bindings = read_bindings(storage, names, replay.index, mends=False)
    fill_index(replay, loaded)  # names the destinations of what is missing
    check_bindings(replay, loaded)
    free: list[tuple[str, int]] = []
    for name in sorted(filter(FREE_NAME.fullmatch, names)):
        with suppress(FileNotFoundError):  # it is in use again
            free.append((name, length_of(storage, name)))
    return Look(replay, free, counters)
