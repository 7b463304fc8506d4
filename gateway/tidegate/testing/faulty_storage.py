"""A disk that loses power, fills up and fails on purpose, for crash tests of file-based stores.

A :class:`FaultyDisk` holds a flat directory of files in memory, twice: as running programs see
them, and as they are on the platters. Writes are unsynced until ``datasync``; names are unsynced
until ``sync_directory``. :meth:`FaultyDisk.cut_power` decides by seed what becomes of everything
unsynced, which is what a real disk may do (and some do): each write is kept, lost, torn at sector
borders or garbled, whatever became of those before it; of the changes to the directory the first few
are kept.

:class:`FaultyStorage` is what one running program sees. It has the methods of the journal's
``Storage`` protocol (``tidegate_store_journal``), and anything else that can be written against the
same methods can be tested with it::

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
import random
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tidegate.spi import StoreLockedError

#: The unit that a disk writes whole or not at all, in bytes.
SECTOR_BYTES: Final = 512


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
        cut_at_sync: the power goes at this ``datasync`` or ``sync_directory``, counted from 1,
            before it has done anything; 0: it stays.
        errors: (call, which one of its kind, counted from 1) → errno that it fails with. A failed
            write may have written a part; a failed sync leaves what it should have synced visible
            but never durable, as Linux does.
    """

    cut_at_sync: int = 0
    errors: Mapping[tuple[Call, int], int] = field(default_factory=dict[tuple[Call, int], int])


@dataclass(slots=True)
class _Write:
    """One unsynced change of a file: bytes at an offset, or (data None) the file's length."""

    offset: int
    data: bytes | None
    length: int

    def overlaps(self, other: _Write) -> bool:
        if self.data is None or other.data is None:
            return self.data is other.data
        return self.offset < other.offset + len(other.data) and (
            other.offset < self.offset + len(self.data)
        )


class _Image:
    """Bytes and length of a file; bytes that were never written take no memory."""

    __slots__ = ("data", "length")

    def __init__(self) -> None:
        self.data = bytearray()
        self.length = 0

    def apply(self, write: _Write) -> None:
        self.length = max(self.length, write.length)
        if write.data is not None:
            if write.offset > len(self.data):
                self.data.extend(bytes(write.offset - len(self.data)))
            self.data[write.offset : write.offset + len(write.data)] = write.data

    def read(self, length: int, offset: int) -> bytes:
        wanted = max(0, min(length, self.length - offset))
        data = bytes(self.data[offset : offset + wanted])
        return data + bytes(wanted - len(data))

    def copy(self) -> _Image:
        image = _Image()
        image.data = self.data.copy()
        image.length = self.length
        return image


class _Inode:
    """A file on the disk: as it is seen, as it is durable, and what lies between."""

    __slots__ = ("durable", "lost", "seen", "unsynced")

    def __init__(self) -> None:
        self.seen = _Image()
        self.durable = _Image()
        self.unsynced: list[_Write] = []
        self.lost: list[_Write] = []  # a sync of these failed: no later one makes them durable

    def write(self, write: _Write) -> None:
        self.seen.apply(write)
        self.unsynced.append(write)

    def sync(self) -> None:
        for write in self.unsynced:
            self.durable.apply(write)
            # What is newer took its place, so a write that was lost here cannot come back.
            self.lost = [old for old in self.lost if not old.overlaps(write)]
        self.unsynced.clear()

    def fail_sync(self) -> None:
        self.lost += self.unsynced
        self.unsynced.clear()

    def cut_power(self, choose: random.Random) -> None:
        for write in self.lost + self.unsynced:
            for part in _fate(write, choose):
                self.durable.apply(part)
        self.unsynced.clear()
        self.lost.clear()
        self.seen = self.durable.copy()


def _fate(write: _Write, choose: random.Random) -> Sequence[_Write]:
    """What of *write* reaches the platters when the power goes."""
    fate = choose.choice(("lost", "kept", "prefix", "sectors", "garbled"))
    if fate == "lost":
        return ()
    if fate == "kept" or write.data is None:
        return (write,)
    sectors = list(_sectors(write))
    if fate == "prefix":
        return sectors[: choose.randint(0, len(sectors))]
    if fate == "sectors":
        return [sector for sector in sectors if choose.random() < 0.5]
    victim = choose.randrange(len(sectors)) if sectors else 0
    garbled: list[_Write] = []
    for index, sector in enumerate(sectors):
        data = sector.data or b""
        if index == victim:
            data = choose.randbytes(len(data))
        garbled.append(_Write(sector.offset, data, sector.length))
    return garbled


def _sectors(write: _Write) -> Sequence[_Write]:
    """The same write in pieces that end at sector borders of the disk."""
    data = write.data or b""
    pieces: list[_Write] = []
    start = 0
    while start < len(data):
        offset = write.offset + start
        size = min(len(data) - start, SECTOR_BYTES - offset % SECTOR_BYTES)
        pieces.append(_Write(offset, data[start : start + size], offset + size))
        start += size
    return pieces


@dataclass(frozen=True, slots=True)
class _NameChange:
    """One unsynced change of the directory: *name* is now *inode*, or (None) gone."""

    changes: tuple[tuple[str, _Inode | None], ...]


class FaultyDisk:
    """The disk of a machine that is started again and again.

    Args:
        seed: decides what becomes of unsynced writes.
        capacity_bytes: room for all files, by their lengths; may be changed at any time.
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
        self.metadata_directory = metadata_directory
        self.mutex = threading.RLock()
        self._choose = random.Random(seed)  # repeatable on purpose
        self._seen: dict[str, _Inode] = {}
        self._durable: dict[str, _Inode] = {}
        self._unsynced: list[_NameChange] = []
        self._running: FaultyStorage | None = None

    def start(self, faults: Faults | None = None) -> FaultyStorage:
        """The disk as a program sees it that is started now; one started before sees EIO."""
        with self.mutex:
            if self._running is not None:
                self._running.is_off = True
            self._running = FaultyStorage(self, faults or Faults())
            return self._running

    def cut_power(self) -> None:
        """The power goes, or has gone: decide what is left, and turn the program off."""
        with self.mutex:
            if self._running is not None:
                self._running.is_off = True
                self._running = None
            inodes = {id(inode): inode for inode in (*self._seen.values(), *self._durable.values())}
            for change in self._unsynced[: self._choose.randint(0, len(self._unsynced))]:
                self._rename(self._durable, change)
            self._unsynced.clear()
            self._seen = dict(self._durable)
            for inode in inodes.values():
                inode.cut_power(self._choose)

    def used_bytes(self) -> int:
        """Bytes of all files by their lengths."""
        return sum(inode.seen.length for inode in self._seen.values())

    # What follows is for FaultyStorage, which holds the mutex.

    def lookup(self, name: str) -> _Inode:
        """The file called *name*. Raises: FileNotFoundError."""
        inode = self._seen.get(name)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return inode

    def create(self, name: str) -> _Inode:
        """An empty file called *name*, in place of any old one."""
        inode = _Inode()
        self._change(_NameChange(((name, inode),)))
        return inode

    def rename(self, old: str, new: str) -> None:
        """Atomic: after a power cut both names are as before, or both as after."""
        self._change(_NameChange(((old, None), (new, self.lookup(old)))))

    def unlink(self, name: str) -> None:
        """The name is gone; open files live on."""
        if name in self._seen:
            self._change(_NameChange(((name, None),)))

    def names(self) -> list[str]:
        """All names."""
        return list(self._seen)

    def sync_directory(self) -> None:
        """Names are durable as they are."""
        self._durable = dict(self._seen)
        self._unsynced.clear()

    def _change(self, change: _NameChange) -> None:
        self._rename(self._seen, change)
        self._unsynced.append(change)

    @staticmethod
    def _rename(names: dict[str, _Inode], change: _NameChange) -> None:
        for name, inode in change.changes:
            if inode is None:
                names.pop(name, None)
            else:
                names[name] = inode


class FaultyStorage:
    """The disk as one running program sees it; thread-safe. Made by :meth:`FaultyDisk.start`.

    Attributes:
        is_off: the power is gone; every call raises OSError (EIO).
        sync_count: ``datasync`` and ``sync_directory`` calls so far.
    """

    def __init__(self, disk: FaultyDisk, faults: Faults) -> None:
        self.disk = disk
        self.is_off = False
        self.sync_count = 0
        self._faults = faults
        self._counts = dict.fromkeys(Call, 0)
        self._is_locked = False

    @property
    def metadata_directory(self) -> Path | None:
        """As the disk was made."""
        return self.disk.metadata_directory

    @property
    def durable(self) -> bool:
        """What was synced survives :meth:`FaultyDisk.cut_power`."""
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
            if not create:
                return FaultyFile(self, self.disk.lookup(name))
            self.check(Call.CREATE)
            return FaultyFile(self, self.disk.create(name))

    def list(self) -> Sequence[str]:
        """All names. Raises: OSError."""
        with self.disk.mutex:
            self.check_power()
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
        """Make all names durable. Raises: OSError."""
        with self.disk.mutex:
            self.count_sync()
            self.check(Call.SYNC_DIRECTORY)
            self.disk.sync_directory()

    def free_bytes(self) -> int:
        """Room that is left."""
        with self.disk.mutex:
            return max(0, self.disk.capacity_bytes - self.disk.used_bytes())

    def describe(self, name: str) -> str:
        """How errors name the file."""
        return f"faulty:{name}"

    # What follows is for FaultyFile, which holds the mutex.

    def check_power(self) -> None:
        """Raises: OSError (EIO) when the power is gone."""
        if self.is_off:
            raise OSError(errno.EIO, "the power is off")

    def check(self, call: Call) -> None:
        """Count the call. Raises: OSError when it is to fail."""
        self.check_power()
        self._counts[call] += 1
        number = self._faults.errors.get((call, self._counts[call]))
        if number is not None:
            raise OSError(number, os.strerror(number), call.value)

    def count_sync(self) -> None:
        """Count a sync. Raises: OSError when the power goes at this one."""
        self.check_power()
        self.sync_count += 1
        if self.sync_count == self._faults.cut_at_sync:
            self.is_off = True
            self.check_power()

    def check_room(self, growth: int) -> None:
        """Raises: OSError (ENOSPC) when the disk is too full for *growth* more bytes."""
        if growth > max(0, self.disk.capacity_bytes - self.disk.used_bytes()):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class FaultyFile:
    """An open file of a :class:`FaultyStorage`; thread-safe."""

    __slots__ = ("_inode", "_is_closed", "_storage")

    def __init__(self, storage: FaultyStorage, inode: _Inode) -> None:
        self._storage = storage
        self._inode = inode
        self._is_closed = False

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
                    self._inode.write(_Write(offset, half, offset + len(half) if half else 0))
                raise
            self._inode.write(_Write(offset, data, offset + len(data)))

    def pread(self, length: int, offset: int) -> bytes:
        """Read up to *length* bytes. Raises: OSError."""
        with self._storage.disk.mutex:
            self._check_open()
            self._storage.check(Call.READ)
            return self._inode.seen.read(length, offset)

    def datasync(self) -> None:
        """Make everything written durable. Raises: OSError."""
        with self._storage.disk.mutex:
            self._check_open()
            self._storage.count_sync()
            try:
                self._storage.check(Call.SYNC)
            except OSError:
                self._inode.fail_sync()
                raise
            self._inode.sync()

    def preallocate(self, length: int) -> None:
        """Make the file *length* bytes long. Raises: OSError (ENOSPC when there is no room)."""
        with self._storage.disk.mutex:
            self._check_open()
            self._storage.check(Call.PREALLOCATE)
            self._storage.check_room(length - self._inode.seen.length)
            self._inode.write(_Write(0, None, length))

    @property
    def length(self) -> int:
        """Length in bytes."""
        return self._inode.seen.length

    def close(self) -> None:
        """Release it; does not sync. Idempotent."""
        self._is_closed = True

    def _check_open(self) -> None:
        if self._is_closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
