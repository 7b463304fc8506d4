"""A disk that loses power, fills up and fails on purpose, for crash tests of file-based stores.

A :class:`FaultyDisk` holds a flat directory of files in memory, twice: as running programs see
them, and as they are on the platters. Writes are unsynced until ``datasync``; names are unsynced
until ``sync_directory``. :meth:`FaultyDisk.cut_power` decides by seed what becomes of everything
unsynced, as a real disk may (and some do). Each write is kept, lost, torn at sector borders,
garbled, or kept except for one bit, whatever became of those before it; of the changes to the
directory the first few are kept. A file can be mapped (:meth:`FaultyFile.map`); each page stored
to through the mapping has such a fate of its own. ``crash_schedules`` beside this module cuts the
power at every change of a recorded run.

*Folders.* The disk is flat, but a name ``FOLDER|NAME`` belongs to a folder whose names are synced
separately, see :meth:`FaultyStorage.folder`. The folder itself is such a name in its parent: until
the names there are synced, a power cut may take a new folder with all its files.

*A failed sync.* What it should have made durable is still read, and counts as clean: a later
``datasync`` succeeds and does nothing for it, even after the program was restarted
(:meth:`FaultyDisk.kill`, then ``start``). Only what is written again is durable with the next sync.
:meth:`drop_caches` shows what a program reads after the system has reclaimed the memory.

*Limits.* :attr:`Faults.open_max` bounds the files that are open at a time (EMFILE, ENFILE).

:class:`FaultyStorage` is what one running program sees. Whatever is written against its methods can
be tested with it::

    disk = FaultyDisk(seed=7)
    storage = disk.start(Faults(cut_at_sync=12))
    ...                                  # every call after the twelfth sync began fails with EIO
    disk.cut_power()                     # what was not synced is now kept, lost, torn or garbled
    storage = disk.start()               # the next start
"""

from __future__ import annotations

import enum
import errno
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidegate.spi import StoreLockedError
from tidegate.testing._faulty_disk import FOLDER_SEPARATOR, Change, Disk, folder_of
from tidegate.testing._unsynced import PAGE_BYTES, Inode, Write

__all__ = [
    "Call",
    "Change",
    "Faults",
    "FaultyDisk",
    "FaultyFile",
    "FaultyFolder",
    "FaultyMapping",
    "FaultyStorage",
]


class Call(enum.Enum):
    """Calls that :attr:`Faults.errors` can make fail; what each counts."""

    WRITE = "pwritev"
    READ = "pread"
    SYNC = "datasync"
    PREALLOCATE = "preallocate"
    CREATE = "open(create=True)"
    RENAME = "rename"
    SYNC_DIRECTORY = "sync_directory"


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong during one start.

    Attributes:
        cut_at_sync: the power fails at this ``datasync`` or ``sync_directory``, counted from 1,
            before it has done anything; 0: never.
        errors: (call, which one of its kind, counted from 1) → errno that it fails with. A failed
            write may have written a part; a failed sync leaves what it should have synced visible
            but never durable, as Linux does.
        slow_syncs: which ``datasync``, counted from 1 → additional seconds it takes. Meanwhile other
            calls continue; what is written during the sync is not covered by it.
        open_max: files that may be open at a time, 0: any number. Listing and syncing a directory
            briefly need one, as on a real system. :attr:`FaultyStorage.open_max` can be
            changed at any time. open_error: the errno with which further opens fail.
    """

    cut_at_sync: int = 0
    errors: Mapping[tuple[Call, int], int] = field(default_factory=dict[tuple[Call, int], int])
    slow_syncs: Mapping[int, float] = field(default_factory=dict[int, float])
    open_max: int = 0
    open_error: int = errno.EMFILE


class FaultyDisk(Disk):
    """The disk of a machine that is started repeatedly; its arguments are those of ``Disk``."""

    _running: FaultyStorage | None = None

    def start(self, faults: Faults | None = None) -> FaultyStorage:
        """The disk as seen by a program started now; one started earlier gets EIO."""
        with self.mutex:
            self.kill()
            self._running = FaultyStorage(self, faults or Faults())
            return self._running

    @property
    def is_on(self) -> bool:
        """A program is running, and the power has not failed."""
        return self._running is not None and not self._running.is_off

    def kill(self) -> None:
        """The program dies, the machine does not: the next program reads what it wrote."""
        with self.mutex:
            if self._running is not None:
                self._running.is_off = True
                self._running = None

    def cut_power(self) -> None:
        """The power fails, or has failed: decide what is left, and stop the program."""
        with self.mutex:
            self.kill()
            super().cut_power()


class FaultyStorage:
    """The disk as one running program sees it; thread-safe. Made by :meth:`FaultyDisk.start`.

    Attributes:
        is_off: the power has failed; every call raises OSError (EIO).
        sync_count: ``datasync`` and ``sync_directory`` calls so far.
        open_count: files open now; open_peak: most at a time so far; open_max: see Faults.
        wrap: called with the name of every opened file and the file; the program gets its result (for
            example a file that writes through mappings).
    """

    wrap: Callable[[str, FaultyFile], Any]

    def __init__(self, disk: FaultyDisk, faults: Faults) -> None:
        self.wrap = lambda _name, file: file
        self.disk = disk
        self.is_off = False
        self.sync_count = 0
        self.open_count = 0
        self.open_peak = 0
        self.open_max = faults.open_max
        self._faults = faults
        self._counts = dict.fromkeys(Call, 0)
        self._is_locked = False

    @property
    def metadata_directory(self) -> Path | None:
        """As given when the disk was made."""
        return self.disk.metadata_directory

    @property
    def durable(self) -> bool:
        """Whether what was synced survives :meth:`FaultyDisk.cut_power`."""
        return True

    def lock(self, owner: str) -> None:
        """Take ownership. Raises: StoreLockedError when it is taken."""
        with self.disk.mutex:
            self.check_power()
            if self._is_locked:
                raise StoreLockedError(f"the disk is in use, {owner} cannot have it", owner=owner)
            self._is_locked = True

    def unlock(self) -> None:
        """Give ownership back. Idempotent."""
        self._is_locked = False

    def open(self, name: str, *, create: bool = False) -> FaultyFile:
        """Open a file, or create an empty one. Raises: OSError."""
        with self.disk.mutex:
            self.check_power()
            self.check_handles()
            if not create:
                return self.wrap(name, FaultyFile(self, self.disk.lookup(name)))
            self.check(Call.CREATE)
            return self.wrap(name, FaultyFile(self, self.disk.create(name)))

    def list(self) -> Sequence[str]:
        """All names. Raises: OSError."""
        with self.disk.mutex:
            self.check_power()
            self.check_handles()
            return self.disk.names()

    def rename(self, old: str, new: str) -> None:
        """Rename, replacing *new*. Raises: OSError."""
        with self.disk.mutex:
            self.check(Call.RENAME)
            self.disk.rename(old, new)

    def unlink(self, name: str) -> None:
        """Remove the name, if it exists. Raises: OSError."""
        with self.disk.mutex:
            self.check_power()
            self.disk.unlink(name)

    def sync_directory(self) -> None:
        """Make all names outside folders durable. Raises: OSError."""
        self.sync_folder("")

    def sync_folder(self, name: str) -> None:
        """Make all names of a folder durable. Raises: OSError."""
        with self.disk.mutex:
            self.count_sync()
            self.check_handles()
            self.check(Call.SYNC_DIRECTORY)
            self.disk.sync_names(name)

    def make_folder(self, name: str) -> None:
        """Make a folder with a durable name. Raises: OSError."""
        with self.disk.mutex:
            self.check_power()
            self.disk.make_folder(name)
            while name:
                name = folder_of(name)
                self.sync_folder(name)

    def folder(self, name: str) -> FaultyFolder:
        """The files whose names begin with *name* and the separator, as a separate directory."""
        return FaultyFolder(self, name)

    def free_bytes(self) -> int:
        """Room left, as far as the file system reports it."""
        if self.disk.is_quota:
            return 1 << 40
        with self.disk.mutex:
            return max(0, self.disk.capacity_bytes - self.disk.used_bytes())

    def describe(self, name: str) -> str:
        """How errors name the file."""
        return f"faulty:{name}"

    # For FaultyFile, which holds the mutex.

    def check_power(self) -> None:
        """Raises: OSError (EIO) when the power has failed."""
        if self.is_off:
            raise OSError(errno.EIO, "the power is off")

    def check(self, call: Call) -> float:
        """Count the call. Returns: seconds that it takes. Raises: OSError when it is to fail."""
        self.check_power()
        self._counts[call] += 1
        number = self._faults.errors.get((call, self._counts[call]))
        if number is not None:
            raise OSError(number, os.strerror(number), call.value)
        return self._faults.slow_syncs.get(self._counts[call], 0.0) if call is Call.SYNC else 0.0

    def count_of(self, call: Call) -> int:
        """How many calls of this kind there were."""
        return self._counts[call]

    def count_sync(self) -> None:
        """Count a sync. Raises: OSError when the power fails at this one."""
        self.check_power()
        self.sync_count += 1
        if self.sync_count == self._faults.cut_at_sync:
            self.is_off = True
            self.check_power()

    def check_handles(self) -> None:
        """Raises: OSError (EMFILE or as configured) when no more files may be open."""
        if self.open_max and self.open_count >= self.open_max:
            raise OSError(self._faults.open_error, os.strerror(self._faults.open_error))

    def count_open(self, change: int) -> None:
        """Count one more open file, or (-1) one less."""
        self.open_count += change
        self.open_peak = max(self.open_peak, self.open_count)

    def check_room(self, growth: int) -> None:
        """Raises: OSError (ENOSPC, EDQUOT) when the disk is too full for *growth* more bytes."""
        if growth > max(0, self.disk.capacity_bytes - self.disk.used_bytes()):
            error = errno.EDQUOT if self.disk.is_quota else errno.ENOSPC
            raise OSError(error, os.strerror(error))


class FaultyFile:
    """An open file of a :class:`FaultyStorage`; thread-safe."""

    __slots__ = ("_inode", "_is_closed", "_storage")

    def __init__(self, storage: FaultyStorage, inode: Inode) -> None:
        self._storage = storage
        self._inode = inode
        self._is_closed = False
        storage.count_open(1)

    def pwritev(self, buffers: Sequence[bytes], offset: int) -> None:
        """Write all of *buffers* at *offset*. Raises: OSError, after writing the first half."""
        data = b"".join(buffers)
        with self._storage.disk.mutex:
            self._check_open()
            try:
                self._storage.check(Call.WRITE)
                self._storage.check_room(offset + len(data) - self._inode.seen.length)
            except OSError:
                if not self._storage.is_off:
                    room = max(0, self._inode.seen.length - offset)  # needs no new room
                    half = data[: min(len(data) // 2, room)]
                    end = offset + len(half) if half else 0
                    self._storage.disk.write(self._inode, Write(offset, half, end))
                raise
            self._storage.disk.write(self._inode, Write(offset, data, offset + len(data)))

    def pread(self, length: int, offset: int) -> bytes:
        """Read up to *length* bytes. Raises: OSError."""
        with self._storage.disk.mutex:
            self._check_open()
            self._storage.check(Call.READ)
            return self._inode.seen.read(length, offset)

    def datasync(self) -> None:
        """Make everything written durable. Raises: OSError."""
        storage = self._storage
        with storage.disk.mutex:
            self._check_open()
            storage.count_sync()
            try:
                slow_s = storage.check(Call.SYNC)
            except OSError:
                storage.disk.fail_sync(self._inode)
                raise
            covered = list(self._inode.unsynced)
            if not slow_s:
                storage.disk.sync(self._inode, len(covered))
                return
        time.sleep(slow_s)
        with storage.disk.mutex:
            storage.check_power()  # if the power failed meanwhile, nothing of this is durable
            # Another sync may have covered some of them first.
            known = set(map(id, covered))
            still = sum(id(write) in known for write in self._inode.unsynced)
            storage.disk.sync(self._inode, still)

    def preallocate(self, length: int) -> None:
        """Make the file *length* bytes long. Raises: OSError (ENOSPC when there is no room)."""
        with self._storage.disk.mutex:
            self._check_open()
            self._storage.check(Call.PREALLOCATE)
            self._storage.check_room(length - self._inode.seen.length)
            self._storage.disk.write(self._inode, Write(0, None, length))

    def map(self, offset: int, length: int) -> FaultyMapping | None:
        """Map up to *length* bytes from *offset*, a multiple of a page; fewer at the file's end.

        None when there is nothing to map after the end. Raises: OSError.
        """
        if offset % PAGE_BYTES:
            raise ValueError("a mapping begins with a page")
        with self._storage.disk.mutex:
            self._check_open()
            self._storage.check_power()
            there = self._inode.seen.length - offset
        if there <= 0:
            return None
        return FaultyMapping(self._storage, self._inode, offset, min(length, there))

    @property
    def length(self) -> int:
        """Length in bytes."""
        return self._inode.seen.length

    def close(self) -> None:
        """Release it; does not sync, and leaves mappings as they are. Idempotent."""
        with self._storage.disk.mutex:
            if not self._is_closed:
                self._is_closed = True
                self._storage.count_open(-1)

    def _check_open(self) -> None:
        if self._is_closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))


class FaultyMapping:
    """A part of a :class:`FaultyFile` as memory. Stored bytes become durable with the file's datasync."""

    __slots__ = ("_inode", "_is_closed", "_length", "_offset", "_storage")

    def __init__(self, storage: FaultyStorage, inode: Inode, offset: int, length: int) -> None:
        self._storage = storage
        self._inode = inode
        self._offset = offset
        self._length = length
        self._is_closed = False

    def __len__(self) -> int:
        return self._length

    def __setitem__(self, where: slice[int, int, None], data: bytes) -> None:
        """Store *data*. Raises: IndexError when it does not fit exactly, like a real mapping."""
        if self._is_closed:
            raise ValueError("the mapping is closed")
        start, stop, step = where.indices(self._length)
        if step != 1 or stop - start != len(data):
            raise IndexError("a mapping cannot change its size")
        if not data:
            return
        begin = self._offset + start
        with self._storage.disk.mutex:
            self._storage.check_power()  # the program would no longer run
            write = Write(begin, bytes(data), begin + len(data), mapped=True)
            self._storage.disk.write(self._inode, write)

    def close(self) -> None:
        """Release it; does not sync. Idempotent."""
        self._is_closed = True


class FaultyFolder:
    """A subdirectory of a :class:`FaultyStorage`, with the same methods."""

    def __init__(self, storage: FaultyStorage, name: str) -> None:
        self._storage = storage
        self._name = name
        self._prefix = name + FOLDER_SEPARATOR

    @property
    def metadata_directory(self) -> Path | None:
        """None: the storage has it."""
        return None

    @property
    def durable(self) -> bool:
        """As for the storage."""
        return self._storage.durable

    def lock(self, owner: str) -> None:
        """Make it, with a durable name; whoever has the storage has its folders."""
        self._storage.make_folder(self._name)

    def unlock(self) -> None:
        """Does nothing."""

    def open(self, name: str, *, create: bool = False) -> FaultyFile:
        """Open a file, or create an empty one. Raises: OSError."""
        return self._storage.open(self._prefix + name, create=create)

    def list(self) -> Sequence[str]:
        """Names in this folder, not in folders below it. Raises: OSError."""
        return [
            name.removeprefix(self._prefix)
            for name in self._storage.list()
            if folder_of(name) == self._name
        ]

    def rename(self, old: str, new: str) -> None:
        """Rename, replacing *new*. Raises: OSError."""
        self._storage.rename(self._prefix + old, self._prefix + new)

    def unlink(self, name: str) -> None:
        """Remove the name, if it exists. Raises: OSError."""
        self._storage.unlink(self._prefix + name)

    def sync_directory(self) -> None:
        """Make the names in it durable. Raises: OSError."""
        self._storage.sync_folder(self._name)

    def free_bytes(self) -> int:
        """Room on the disk."""
        return self._storage.free_bytes()

    def describe(self, name: str) -> str:
        """How errors name the file."""
        return self._storage.describe(self._prefix + name)
