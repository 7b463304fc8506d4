"""The contents of a disk, twice: as running programs see them, and as on the platters. For ``faulty_storage``."""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Self

from tidegate.testing._unsynced import Inode, Write

#: In a name: the part before the last one is the folder whose names are synced together.
FOLDER_SEPARATOR: Final = "|"


class Change(NamedTuple):
    """One thing that happened to the disk, for :attr:`FaultyDisk.observer`.

    Attributes:
        kind: ``create``, ``folder`` (*name* is new), ``rename`` (from *name* to *other*), ``unlink``,
            ``names`` (folder *name* was synced, "" the directory itself), ``write`` (*data* at
            *offset*; data None: only *length*), ``store`` (the same through a mapping), ``sync``
            (of *length* writes and stores, oldest first), ``sync without stores`` (by a disk that
            lies) or ``lose`` (a sync failed).
        file: number of the file concerned; 0 for the directory.
    """

    kind: str
    file: int = 0
    name: str = ""
    other: str = ""
    offset: int = 0
    data: bytes | None = None
    length: int = 0


@dataclass(frozen=True, slots=True)
class _NameChange:
    """One unsynced change of the directory: *name* is now *inode*, or (None) gone."""

    changes: tuple[tuple[str, Inode | None], ...]

    @property
    def folder(self) -> str:
        """The folder whose sync makes it durable: that of the newest name."""
        return folder_of(self.changes[-1][0])


def folder_of(name: str) -> str:
    """The folder that a name belongs to, "" for the directory itself."""
    return name.rpartition(FOLDER_SEPARATOR)[0]


class _FolderInode(Inode):
    """Stands for a folder among the names of its parent."""


def _files(names: Mapping[str, Inode]) -> dict[str, Inode]:
    return {name: inode for name, inode in names.items() if not isinstance(inode, _FolderInode)}


class Disk:
    """What is on a disk, and what of that survives a power cut. ``FaultyDisk`` is the one for programs.

    Args:
        seed: decides what becomes of unsynced writes.
        capacity_bytes: room for all files, by their lengths; may be changed at any time, and so may
            ``is_quota``: the limit is a quota, which has its own errno, and free room is not reported.
        metadata_directory: a real directory that is passed through to the program: nothing in it
            is subject to faults.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        capacity_bytes: int = 1 << 40,
        metadata_directory: Path | None = None,
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.is_quota = False
        self.metadata_directory = metadata_directory
        self.mutex = threading.RLock()
        self._choose = random.Random(seed)  # repeatable on purpose
        self._seen: dict[str, Inode] = {}
        self._durable: dict[str, Inode] = {}
        self._unsynced: list[_NameChange] = []
        self._last_number = 0
        #: Called with every change, while the disk is locked.
        self.observer: Callable[[Change], None] | None = None

    def drop_caches(self) -> None:
        """Memory is reclaimed: reads of what a failed sync lost now return the disk's contents."""
        with self.mutex:
            assert self.observer is None, "a recording cannot repeat this"
            for inode in self._inodes():
                inode.drop_clean(self._choose)

    def cut_power(self) -> None:
        """The power fails, or has failed: decide what is left."""
        with self.mutex:
            inodes = self._inodes()
            folders: dict[str, list[_NameChange]] = {}
            for change in self._unsynced:
                folders.setdefault(change.folder, []).append(change)
            for changes in folders.values():
                for change in changes[: self._choose.randint(0, len(changes))]:
                    self._rename(self._durable, change)
            self._unsynced.clear()
            self._durable = {
                name: inode for name, inode in self._durable.items() if self._is_reachable(name)
            }
            self._seen = dict(self._durable)
            for inode in inodes:
                inode.cut_power(self._choose)

    def _inodes(self) -> Sequence[Inode]:
        """All that have a name, or had one that may come back."""
        changed = [inode for change in self._unsynced for _, inode in change.changes if inode]
        every = (*self._seen.values(), *self._durable.values(), *changed)
        return list({id(inode): inode for inode in every}.values())

    def _is_reachable(self, name: str) -> bool:
        folder = folder_of(name)
        return not folder or (folder in self._durable and self._is_reachable(folder))

    def used_bytes(self) -> int:
        """Bytes of all files by their lengths."""
        return sum(inode.seen.length for inode in self._seen.values())

    def fork(self, seed: int, *, metadata_directory: Path | None = None) -> Self:
        """A copy of this disk in its current state; its *seed* decides what its next power cut leaves."""
        with self.mutex:
            other = type(self)(
                seed,
                capacity_bytes=self.capacity_bytes,
                metadata_directory=metadata_directory,
            )
            other.is_quota = self.is_quota
            copies = {id(inode): inode.copy() for inode in self._inodes()}
            other._seen = {name: copies[id(inode)] for name, inode in self._seen.items()}
            other._durable = {name: copies[id(inode)] for name, inode in self._durable.items()}
            other._unsynced = [
                _NameChange(
                    tuple(
                        (name, None if inode is None else copies[id(inode)])
                        for name, inode in change.changes
                    )
                )
                for change in self._unsynced
            ]
            other._last_number = self._last_number
            return other

    def read_all(self) -> dict[str, bytes]:
        """Every file by name, as running programs see it."""
        with self.mutex:
            return {
                name: inode.seen.read(inode.seen.length, 0)
                for name, inode in _files(self._seen).items()
            }

    # For FaultyStorage, which holds the mutex.

    def lookup(self, name: str) -> Inode:
        """The file called *name*. Raises: FileNotFoundError."""
        inode = self._seen.get(name)
        if inode is None or isinstance(inode, _FolderInode):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return inode

    def create(self, name: str) -> Inode:
        """An empty file called *name*, in place of any old one."""
        self.make_folder(folder_of(name))
        self._last_number += 1
        inode = Inode(self._last_number)
        self._change(_NameChange(((name, inode),)))
        self.observe(Change("create", inode.number, name))
        return inode

    def make_folder(self, name: str) -> None:
        """Make the folder and its missing parents; unsynced like other names."""
        if name and name not in self._seen:
            self.make_folder(folder_of(name))
            self._change(_NameChange(((name, _FolderInode()),)))
            self.observe(Change("folder", name=name))

    def rename(self, old: str, new: str) -> None:
        """Atomic: after a power cut both names are as before, or both as after."""
        inode = self.lookup(old)
        self._change(_NameChange(((old, None), (new, inode))))
        self.observe(Change("rename", inode.number, old, new))

    def unlink(self, name: str) -> None:
        """Remove the name; open files live on."""
        if name in self._seen:
            number = self._seen[name].number
            self._change(_NameChange(((name, None),)))
            self.observe(Change("unlink", number, name))

    def names(self) -> list[str]:
        """The names of all files."""
        return list(_files(self._seen))

    def sync_names(self, folder: str = "") -> None:
        """Make the current names in the folder durable."""
        rest: list[_NameChange] = []
        for change in self._unsynced:
            if change.folder == folder:
                self._rename(self._durable, change)
            else:
                rest.append(change)
        self._unsynced = rest
        self.observe(Change("names", name=folder))

    def observe(self, change: Change) -> None:
        """Call the observer, if there is one."""
        if self.observer is not None:
            self.observer(change)

    def write(self, inode: Inode, write: Write) -> None:
        """Add unsynced bytes, or an unsynced length."""
        inode.write(write)
        kind = "store" if write.mapped else "write"
        self.observe(Change(kind, inode.number, "", "", write.offset, write.data, write.length))

    def sync(self, inode: Inode, count: int, *, stores: bool = True) -> None:
        """Make the oldest *count* unsynced writes of the file durable, except mapped ones if not *stores*."""
        inode.sync(count, stores=stores)
        kind = "sync" if stores else "sync without stores"
        self.observe(Change(kind, inode.number, length=count))

    def fail_sync(self, inode: Inode) -> None:
        """The file's unsynced writes will never be durable."""
        inode.fail_sync()
        self.observe(Change("lose", inode.number))

    def repeat(self, change: Change, inodes: dict[int, Inode]) -> None:
        """Apply a change reported by another disk's observer.

        Args: inodes: the files so far by number; updated by this method.
        """
        match change.kind:
            case "create":
                inodes[change.file] = self.create(change.name)
            case "folder":
                self.make_folder(change.name)
            case "rename":
                self.rename(change.name, change.other)
            case "unlink":
                self.unlink(change.name)
            case "names":
                self.sync_names(change.name)
            case "write" | "store":
                is_mapped = change.kind == "store"
                write = Write(change.offset, change.data, change.length, is_mapped)
                self.write(inodes[change.file], write)
            case "sync" | "sync without stores":
                self.sync(inodes[change.file], change.length, stores=change.kind == "sync")
            case "lose":
                self.fail_sync(inodes[change.file])
            case _:
                raise ValueError(f"no change of a disk: {change.kind}")

    def _change(self, change: _NameChange) -> None:
        self._rename(self._seen, change)
        self._unsynced.append(change)

    @staticmethod
    def _rename(names: dict[str, Inode], change: _NameChange) -> None:
        for name, inode in change.changes:
            if inode is None:
                names.pop(name, None)
            else:
                names[name] = inode
