"""Directories of destinations: their names and their contents."""

from __future__ import annotations

import errno
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol, runtime_checkable
from urllib.parse import quote

from tidegate.spi import names
from tidegate_store_journal.log import format as _format
from tidegate_store_journal.log.datafile import DataFile
from tidegate_store_journal.log.storage import (
    DirectoryStorage,
    Folder,
    Storage,
    length_of,
    make_directory,
    sync_path,
)

#: Below the store's directory: one directory per destination.
FOLDERS_NAME: Final = "message"
#: Longest name of a directory that every file system takes is 255 bytes.
_NAME_BYTES_MAX: Final = 200


def folder_name(destination: str) -> str:
    """The name of a destination's folder: ``queue://orders.eu`` is ``queue#orders.eu``.

    Unsafe characters are written as in a URL; a long name ends with a hash of the whole. No two
    destinations share a name: ``#`` in a name is escaped, so only we write it.
    """
    kind, _, name = destination.partition("://")
    text = f"{kind}#{quote(name, safe=' $+,=@')}"
    if len(text) > _NAME_BYTES_MAX:
        digest = hashlib.sha256(destination.encode()).hexdigest()[:32]
        text = f"{text[: _NAME_BYTES_MAX - len(digest) - 1]}#{digest}"
    return text


@runtime_checkable
class FolderStorage(Protocol):
    """A storage with flat names that syncs those of each folder apart (fault injection)."""

    def folder(self, name: str) -> Folder:
        """The files whose names begin with *name* and a bar, under the rest of their names."""
        ...

    def make_folder(self, name: str) -> None:
        """Create it if missing, and make its name durable."""
        ...


class Folders:
    """All directories of *storage*. Methods block and raise OSError."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._root = Path(storage.describe("")) / FOLDERS_NAME

    def names(self) -> Sequence[str]:
        """All folders, sorted."""
        if isinstance(self._storage, FolderStorage):
            begin = f"{FOLDERS_NAME}|"
            names = [name for name in self._storage.list() if name.startswith(begin)]
            return sorted({name.split("|")[1] for name in names})
        if not self._root.is_dir():
            return ()
        return sorted(item.name for item in self._root.iterdir() if item.is_dir())

    def get(self, name: str) -> Folder:
        """An existing folder."""
        if isinstance(self._storage, FolderStorage):
            return self._storage.folder(f"{FOLDERS_NAME}|{name}")
        return DirectoryStorage(self._root / name)

    def make(self, name: str) -> Folder:
        """A new one; durable when this returns. No error when it exists."""
        if isinstance(self._storage, FolderStorage):
            self._storage.make_folder(f"{FOLDERS_NAME}|{name}")
        else:
            make_directory(self._root / name)
        return self.get(name)

    def remove(self, name: str) -> None:
        """Remove it when it is empty; those of a flat storage end with their last file."""
        if isinstance(self._storage, FolderStorage):
            return
        try:
            (self._root / name).rmdir()
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                raise
        else:
            sync_path(self._root)


def covers(filters: Sequence[str], destination: str) -> bool:
    """Whether a filter covers the destination; wildcards never cover temporary ones."""
    kind, _, name = destination.partition("://")
    for item in filters:
        filter_kind, _, filter_name = item.partition("://")
        if filter_kind == kind and names.matches(filter_name, name):
            return True
    return False


#: Names of temporary files, which a crash may leave behind.
_TEMPORARY_NAME: Final = re.compile(r"journal-\d{10}\.data\.tmp")


@dataclass(slots=True)
class Found:
    """The contents of the directories.

    Attributes: files: data files by id; pools: by directory, names and lengths of dead files.
    """

    files: dict[int, DataFile] = field(default_factory=dict[int, DataFile])
    pools: dict[str, list[tuple[str, int]]] = field(
        default_factory=dict[str, list[tuple[str, int]]]
    )

    @property
    def last_id(self) -> int:
        """The highest file id there is."""
        free = [_format.file_id_of(name) for pool in self.pools.values() for name, _ in pool]
        return max([0, *self.files, *free])


def find_files(folders: Folders, *, removes: bool) -> Found:
    """All data files in the directories of destinations, closed; their bytes are not read.

    The journal's references say which of them count, and up to where. *removes*: delete files left
    half-made by a crash. Blocks. Raises: OSError.
    """
    found = Found()
    for folder in folders.names():
        home = folders.get(folder)
        pool = found.pools[folder] = []
        for name in sorted(home.list()):
            if _TEMPORARY_NAME.fullmatch(name) and removes:
                home.unlink(name)
                continue
            is_data = bool(_format.DATA_NAME.fullmatch(name))
            if not is_data and not _format.FREE_NAME.fullmatch(name):
                continue
            length = length_of(home, name)
            if not is_data:
                pool.append((name, length))
                continue
            file = DataFile(_format.file_id_of(name), length, 0, None, home=home, folder=folder)
            other = found.files.setdefault(file.file_id, file)
            if other is not file:
                raise OSError(
                    errno.EEXIST,
                    f"{home.describe(name)} and {other.home.describe(name)} are the same data file; "
                    "move the one away that does not belong here",
                )
    return found
