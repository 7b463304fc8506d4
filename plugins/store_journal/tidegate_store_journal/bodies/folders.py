"""Directories of destinations, on the real disk and on storages that have only flat names."""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol, runtime_checkable
from urllib.parse import quote

from tidegate.spi import names
from tidegate_store_journal.log import format as _format
from tidegate_store_journal.log.datafile import DataFile
from tidegate_store_journal.log.storage import DirectoryStorage, File, Folder, Storage

#: Below the store's directory: one directory a destination.
FOLDERS_NAME: Final = "message"
#: Longest name of a directory that every file system takes is 255 bytes.
_NAME_BYTES_MAX: Final = 200


class Folders(Protocol):
    """All of them. Methods block and raise OSError."""

    def names(self) -> Sequence[str]:
        """The folders that are there, sorted."""
        ...

    def get(self, name: str) -> Folder:
        """One that is there."""
        ...

    def make(self, name: str) -> Folder:
        """A new one; durable when this returns. No error when it is there."""
        ...

    def remove(self, name: str) -> None:
        """Remove it when nothing is in it."""
        ...


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


def folders_of(storage: Storage) -> Folders:
    """Where *storage* keeps them."""
    if isinstance(storage, DirectoryStorage):
        return DirectoryFolders(Path(storage.describe("")) / FOLDERS_NAME)
    return FlatFolders(storage)


class DirectoryFolders:
    """Real directories."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def names(self) -> Sequence[str]:
        """See :class:`Folders`."""
        if not self._root.is_dir():
            return ()
        return sorted(item.name for item in self._root.iterdir() if item.is_dir())

    def get(self, name: str) -> Folder:
        """See :class:`Folders`."""
        return DirectoryStorage(self._root / name)

    def make(self, name: str) -> Folder:
        """See :class:`Folders`."""
        (self._root / name).mkdir(parents=True, exist_ok=True)
        _sync(self._root.parent)
        _sync(self._root)
        return self.get(name)

    def remove(self, name: str) -> None:
        """See :class:`Folders`."""
        try:
            (self._root / name).rmdir()
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                raise
        else:
            _sync(self._root)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@runtime_checkable
class FolderStorage(Protocol):
    """A storage with flat names that syncs those of each folder apart (fault injection)."""

    def folder(self, name: str) -> Folder:
        """The files whose names begin with *name* and a bar, under the rest of their names."""
        ...

    def make_folder(self, name: str) -> None:
        """Make it, if it is not there, and its name durable."""
        ...


class FlatFolders:
    """Folders as prefixes of names in a storage that has no directories."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def names(self) -> Sequence[str]:
        """See :class:`Folders`."""
        begin = f"{FOLDERS_NAME}|"
        found = {name.split("|")[1] for name in self._storage.list() if name.startswith(begin)}
        return sorted(found)

    def get(self, name: str) -> Folder:
        """See :class:`Folders`."""
        if isinstance(self._storage, FolderStorage):
            return self._storage.folder(f"{FOLDERS_NAME}|{name}")
        return _FlatFolder(self._storage, f"{FOLDERS_NAME}|{name}|")

    def make(self, name: str) -> Folder:
        """See :class:`Folders`."""
        if isinstance(self._storage, FolderStorage):
            self._storage.make_folder(f"{FOLDERS_NAME}|{name}")
        return self.get(name)

    def remove(self, name: str) -> None:
        """See :class:`Folders`."""


class _FlatFolder:
    def __init__(self, storage: Storage, prefix: str) -> None:
        self._storage = storage
        self._prefix = prefix

    def open(self, name: str, *, create: bool = False) -> File:
        return self._storage.open(self._prefix + name, create=create)

    def list(self) -> Sequence[str]:
        length = len(self._prefix)
        return [name[length:] for name in self._storage.list() if name.startswith(self._prefix)]

    def rename(self, old: str, new: str) -> None:
        self._storage.rename(self._prefix + old, self._prefix + new)

    def unlink(self, name: str) -> None:
        self._storage.unlink(self._prefix + name)

    def sync_directory(self) -> None:
        self._storage.sync_directory()

    def describe(self, name: str) -> str:
        return self._storage.describe(self._prefix + name)


def covers(filters: Sequence[str], destination: str) -> bool:
    """One of the filters covers the destination; no wildcard covers temporary ones."""
    kind, _, name = destination.partition("://")
    for item in filters:
        filter_kind, _, filter_name = item.partition("://")
        if filter_kind == kind and names.matches(filter_name, name):
            return True
    return False


#: What was written aside by a run that a crash cut off.
_TEMPORARY_NAME: Final = re.compile(r"journal-\d{10}\.data\.tmp")
_FREE_NAME: Final = re.compile(r"journal-\d{10}\.free")


@dataclass(slots=True)
class Found:
    """What is in the directories.

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

    Which of them count, and up to where, the journal's references say. *removes*: what a crash left
    of files that were being made. Blocks. Raises: OSError.
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
            if not is_data and not _FREE_NAME.fullmatch(name):
                continue
            handle = home.open(name)
            length = handle.length
            handle.close()
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
