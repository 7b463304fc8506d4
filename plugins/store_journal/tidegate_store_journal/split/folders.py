"""Directories of destinations, on the real disk and on storages that have only flat names."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol, runtime_checkable
from urllib.parse import quote

from tidegate.spi import CorruptRecordError, names
from tidegate_store_journal.log.storage import DirectoryStorage, File, Storage

#: Below the store's directory: one directory a destination.
FOLDERS_NAME: Final = "message"
#: Longest name of a directory that every file system takes is 255 bytes.
_NAME_BYTES_MAX: Final = 200
_COPY_BYTES: Final = 4 << 20
#: What recovery took out and kept.
_KEPT_NAME: Final = re.compile(r".+\.damaged(\.\d+)?")

#: What an operator can do, for every error that names damage, or files that are missing.
DAMAGE_ADVICE: Final = (
    "Restore the file from a copy; or set damaged_journal_policy = 'quarantine' in [store] to keep "
    "a copy of the damaged part, take it out, and serve the rest"
)
MISSING_ADVICE: Final = (
    "Restore the directory from a copy; or set ignore_missing_journalfiles = true in [store] to "
    "start without what was in it"
)


class MissingRecordError(CorruptRecordError):
    """The file that held a message is not there."""


class Folder(Protocol):
    """The files of one destination: the part of ``Storage`` that is needed for them."""

    def open(self, name: str, *, create: bool = False) -> File: ...

    def list(self) -> Sequence[str]: ...

    def rename(self, old: str, new: str) -> None: ...

    def unlink(self, name: str) -> None: ...

    def sync_directory(self) -> None: ...

    def describe(self, name: str) -> str: ...


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
        """Remove it with everything in it, except what recovery kept of damaged files."""
        ...


def folder_name(destination: str) -> str:
    """The name of a destination's folder: ``queue://orders.eu`` is ``queue#orders.eu``.

    Unsafe characters are written as in a URL; a long name ends with a hash of the whole.
    """
    kind, _, name = destination.partition("://")
    text = f"{kind}#{quote(name, safe=' $+,=@#')}"
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
        directory = self._root / name
        items = sorted(directory.iterdir())
        if any(_KEPT_NAME.fullmatch(item.name) for item in items):
            for item in items:
                if not _KEPT_NAME.fullmatch(item.name):
                    item.unlink()
            _sync(directory)
            return
        shutil.rmtree(directory)
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
        folder = self.get(name)
        for item in folder.list():
            if not _KEPT_NAME.fullmatch(item):
                folder.unlink(item)
        folder.sync_directory()


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


def lost_error(folders: Folders, destination: str, sequences: Sequence[int]) -> CorruptRecordError:
    """The error for references without a record."""
    return MissingRecordError(
        f"{len(sequences)} messages of {destination} are pending or not yet released, but their "
        f"records are missing (sequences {some_of(sequences)}). {MISSING_ADVICE}",
        location=folders.get(folder_name(destination)).describe(""),
    )


def some_of(sequences: Sequence[int]) -> str:
    """The first ten."""
    return ", ".join(map(str, sequences[:10])) + (", …" if len(sequences) > 10 else "")


def keep_copy(files: Folder, name: str, offset: int, length: int) -> str:
    """Copy bytes of a file aside, as ``NAME.OFFSET.damaged``. Blocks. Raises: OSError.

    Returns: how to name the copy to the operator. It is durable, and nothing is ever written over.
    """
    there = set(files.list())
    base = target = f"{name}.{offset}.damaged"
    number = 1
    while target in there:
        number += 1
        target = f"{base}.{number}"
    temporary = f"{target}.tmp"
    source = files.open(name)
    copy = files.open(temporary, create=True)
    try:
        for at in range(offset, offset + length, _COPY_BYTES):
            data = source.pread(min(_COPY_BYTES, offset + length - at), at)
            copy.pwritev([data], at - offset)
        copy.datasync()
    finally:
        copy.close()
        source.close()
    files.rename(temporary, target)
    files.sync_directory()
    return files.describe(target)
