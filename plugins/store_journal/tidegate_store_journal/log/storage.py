"""Where the journal's bytes go: a small interface, and the real directory.

The engine touches files only through :class:`Storage` and :class:`File` (the LMDB metadata store is
the one exception, see :attr:`Storage.metadata_directory`), so that a fault-injecting storage can
take the place of the real one. Names are flat: no name contains a slash. Every method may be called
from any thread and may block; none is called for the same file from two threads at once except
``pread``.
"""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import resource
import shutil
import threading
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Final, Protocol, TypeVar

from tidegate.spi.machine.lock_file import LockFile
from tidegate.spi.private_files import DIRECTORY_MODE, open_regular, private_opener

LOCK_NAME: Final = "lock"
#: errno values that mean "no room".
FULL_ERRNOS: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
#: errno values that mean "no descriptor left", in this process or in the system.
NO_HANDLE_ERRNOS: Final = frozenset({errno.EMFILE, errno.ENFILE})
#: Linux takes at most 1024 buffers in one call (IOV_MAX in <limits.h>).
_BUFFERS_MAX: Final = os.sysconf("SC_IOV_MAX") if "SC_IOV_MAX" in os.sysconf_names else 1024
#: The unit of ``stat.st_blocks``, whatever the file system's own blocks are.
_STAT_BLOCK_BYTES: Final = 512
_COPY_BYTES: Final = 4 << 20
#: The current data file and the next, a page being read, and what a checkpoint writes.
_RESERVED_DESCRIPTORS: Final = 16
#: Where there are very few, at most one in this many.
_RESERVED_SHARE: Final = 16

T = TypeVar("T")


class File(Protocol):
    """An open file. All methods but ``length`` raise OSError."""

    def pwritev(self, buffers: Sequence[bytes], offset: int) -> None:
        """Write all of *buffers*, one after the other, at *offset*; all or an error.

        After an error any part of the range may have been written.
        """
        ...

    def pread(self, length: int, offset: int) -> bytes:
        """Read up to *length* bytes; fewer only at the end of the file."""
        ...

    def datasync(self) -> None:
        """Return when everything written is on stable storage (``fdatasync``)."""
        ...

    def preallocate(self, length: int) -> None:
        """Make the file *length* bytes long with room on the device; new bytes read as zeros.

        Raises: OSError with ENOSPC or EDQUOT when there is no room; the file may then have any
            length.
        """
        ...

    @property
    def length(self) -> int:
        """Length in bytes."""
        ...

    def close(self) -> None:
        """Release it; does not sync. Idempotent."""
        ...


class Mapping(Protocol):
    """A part of a file as memory (``mmap.mmap``).

    Writes are visible to ``pread`` at once. They are on stable storage after the file's
    ``datasync``; until then any page may be there as of any moment, or not.
    """

    def __len__(self) -> int: ...

    def __setitem__(self, where: slice[int, int, None], data: bytes, /) -> None: ...

    def close(self) -> None:
        """Release it; does not sync, and what was written stays. Idempotent."""
        ...


class MappableFile(File, Protocol):
    """A file that can be mapped in parts."""

    def map(self, offset: int, length: int) -> Mapping | None:
        """Map *length* bytes from *offset*, a multiple of ``mmap.ALLOCATIONGRANULARITY``; fewer at
        the end of the file.

        Returns: None when a store could fail, because the file has no block there yet: then it can
            only be written with system calls. Raises: OSError.
        """
        ...


class Folder(Protocol):
    """A flat directory of files: the storage itself, or one in it. All methods raise OSError."""

    def open(self, name: str, *, create: bool = False) -> File:
        """Open for reading and writing; *create* makes an empty one in place of any old one."""
        ...

    def list(self) -> Sequence[str]:
        """All names, in no order."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Rename, replacing *new* atomically. Durable after ``sync_directory``.

        *new* may be ``DIRECTORY/NAME``: the file leaves the storage for good (archiving). Then a
        power cut leaves it in one of the two places or in both.
        """
        ...

    def unlink(self, name: str) -> None:
        """Remove; no error when it does not exist. Durable after ``sync_directory``."""
        ...

    def sync_directory(self) -> None:
        """Return when all creations, renames and removals are on stable storage."""
        ...

    def describe(self, name: str) -> str:
        """How to name the file to the operator: its path."""
        ...


class Storage(Folder, Protocol):
    """The place of a journal."""

    @property
    def metadata_directory(self) -> Path | None:
        """Where the metadata store may live; None: there is none, every start replays it all."""
        ...

    @property
    def durable(self) -> bool:
        """Whether synced data survives a power cut."""
        ...

    def lock(self, owner: str) -> None:
        """Take exclusive ownership, creating the directory. Raises: StoreLockedError, OSError."""
        ...

    def unlock(self) -> None:
        """Release ownership. Idempotent."""
        ...

    def free_bytes(self) -> int:
        """Free room on the file system for us. Raises: OSError."""
        ...


class DirectoryFile:
    """A :class:`File` of :class:`DirectoryStorage`."""

    __slots__ = ("_fd", "_is_allocated", "_lock", "_synced_fd")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._synced_fd = -1
        self._is_allocated = False  # as far as is known
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """The descriptor, open until :meth:`close`."""
        return self._fd

    def synced_fileno(self) -> int:
        """A descriptor of the same file whose writes are on stable storage when they return.

        Opened on first use. Linux with /proc only. Raises: OSError.
        """
        if self._synced_fd < 0:
            # By descriptor: the file may have been renamed since it was opened.
            path = f"/proc/self/fd/{self._fd}"
            self._synced_fd = os.open(path, os.O_WRONLY | os.O_DSYNC | os.O_CLOEXEC)
        return self._synced_fd

    def pwritev(self, buffers: Sequence[bytes], offset: int) -> None:
        if len(buffers) > _BUFFERS_MAX:
            buffers = [b"".join(buffers)]
        written = os.pwritev(self._fd, buffers, offset)
        if written == sum(map(len, buffers)):
            return
        # A short write (a signal, a nearly full disk) is rare: finish it the simple way, so that
        # the error that ends it, ENOSPC usually, is raised by the call that cannot make progress.
        rest = memoryview(b"".join(buffers))
        while written < len(rest):
            more = os.pwrite(self._fd, rest[written:], offset + written)
            if more == 0:
                raise OSError(errno.EIO, "the file system wrote nothing and reported no error")
            written += more

    def pread(self, length: int, offset: int) -> bytes:
        if length > _COPY_BYTES:  # a length field may say anything, and memory is taken first
            length = max(0, min(length, self.length - offset))
        data = os.pread(self._fd, length, offset)
        while 0 < len(data) < length:
            more = os.pread(self._fd, length - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def datasync(self) -> None:
        os.fdatasync(self._fd)

    def preallocate(self, length: int) -> None:
        try:
            os.posix_fallocate(self._fd, 0, length)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
            # The file system cannot reserve; the padding that follows takes the room instead.
            os.ftruncate(self._fd, length)

    def map(self, offset: int, length: int) -> mmap.mmap | None:
        """See :class:`MappableFile`. On Linux, ext4, XFS and tmpfs: others may move blocks."""
        status = os.fstat(self._fd)
        size = status.st_size
        if not self._is_allocated:
            self._is_allocated = status.st_blocks * _STAT_BLOCK_BYTES >= size > 0
        if not self._is_allocated or offset >= size:
            return None
        # The copy would read pages that are not in memory, under the interpreter's lock.
        os.posix_fadvise(self._fd, offset, 2 * length, os.POSIX_FADV_WILLNEED)
        return mmap.mmap(self._fd, min(length, size - offset), offset=offset)

    @property
    def length(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        with self._lock:
            for fd in (self._fd, self._synced_fd):
                if fd >= 0:
                    os.close(fd)
            self._fd = self._synced_fd = -1


class _Descriptors:
    """Descriptors reserved for the store: clients can take all others before they log in."""

    def __init__(self) -> None:
        self._kept: list[int] = []
        self._is_open = False
        self._lock = threading.Lock()

    def fill(self) -> None:
        """Reserve them, as far as there are any."""
        self._is_open = True
        with suppress(OSError):  # the next time
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _RESERVED_SHARE
            while len(self._kept) < min(_RESERVED_DESCRIPTORS, limit):
                self._kept.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def close(self) -> None:
        """Give all of them back."""
        self._is_open = False
        with self._lock:
            while self._kept:
                os.close(self._kept.pop())

    def use(self, call: Callable[[], T]) -> T:
        """*call*, with one of them if there is no other. Raises: OSError."""
        with self._lock:
            if self._is_open:
                self.fill()
        while True:
            try:
                return call()
            except OSError as error:
                if error.errno not in NO_HANDLE_ERRNOS:
                    raise
                with self._lock:
                    if not self._kept:
                        raise
                    os.close(self._kept.pop())


class DirectoryStorage:
    """A :class:`Storage` in a directory of the real file system. Attributes: lock_file."""

    def __init__(
        self,
        directory: Path,
        *,
        wrap: Callable[[str, DirectoryFile], File] | None = None,
        lease_seconds: float = 0.0,
    ) -> None:
        """*wrap*: turns each file, by name, into what :meth:`open` returns. *lease_seconds*: of the lock."""
        self._directory = directory
        self._wrap = wrap
        self._reserve = _Descriptors()
        self.lock_file = LockFile(
            directory / LOCK_NAME, lease_seconds=lease_seconds, opened=self._reserve.use
        )

    @property
    def metadata_directory(self) -> Path | None:
        return self._directory / "metadata"

    @property
    def durable(self) -> bool:
        return True

    def lock(self, owner: str) -> None:
        """See :class:`Storage`. The lock dies with the process, so it is never left behind."""
        make_directory(self._directory)
        self.lock_file.take(owner)
        self._reserve.fill()

    def unlock(self) -> None:
        self._reserve.close()
        self.lock_file.release()

    def open(self, name: str, *, create: bool = False) -> File:
        file = DirectoryFile(self.open_fd(name, create=create))
        return file if self._wrap is None else self._wrap(name, file)

    def open_fd(self, name: str, *, create: bool = False) -> int:
        """As :meth:`open`, but only the descriptor. Raises: OSError."""
        path = self.path_of(name)
        if not create:
            return self._reserve.use(lambda: open_regular(path, os.O_RDWR))
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        try:
            return self._reserve.use(lambda: open_regular(path, flags))
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            path.unlink()  # its target belongs to somebody else
            return open_regular(path, flags | os.O_EXCL)

    def list(self) -> Sequence[str]:
        return self._reserve.use(lambda: os.listdir(self._directory))

    def rename(self, old: str, new: str) -> None:
        if "/" in new:
            _move_out(self.path_of(old), self._directory / new)
        else:
            os.replace(self.path_of(old), self.path_of(new))

    def unlink(self, name: str) -> None:
        self.path_of(name).unlink(missing_ok=True)

    def sync_directory(self) -> None:
        self._reserve.use(lambda: sync_path(self._directory))

    def free_bytes(self) -> int:
        status = os.statvfs(self._directory)
        return status.f_bavail * status.f_frsize

    def describe(self, name: str) -> str:
        return str(self.path_of(name))

    def path_of(self, name: str) -> Path:
        """Where the file called *name* here is; "": the directory."""
        return self._directory / name


def make_directory(path: Path) -> None:
    """Create *path*, with missing parents, so that it survives a power cut.

    Its parent is synced even when *path* exists: its creator may have been killed before that.
    Raises: OSError.
    """
    if not path.parent.is_dir():
        make_directory(path.parent)
    path.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
    sync_path(path.parent)


def _move_out(source: Path, target: Path) -> None:
    """Move a file into another directory, which may be on another file system.

    Crash story: the file's new name is durable before the old one can vanish, so it is never lost.
    """
    make_directory(target.parent)
    try:
        os.replace(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        temporary = target.with_name(target.name + ".tmp")
        temporary.unlink(missing_ok=True)
        with source.open("rb") as old, open(temporary, "xb", opener=private_opener) as new:
            shutil.copyfileobj(old, new)
        sync_path(temporary, os.O_RDONLY)
        os.replace(temporary, target)
        sync_path(target.parent)
        source.unlink()
    else:
        sync_path(target.parent)


def sync_path(path: Path, flags: int = os.O_RDONLY | os.O_DIRECTORY) -> None:
    """``fsync`` of a directory, or of what *flags* open. Raises: OSError."""
    fd = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def fresh_name(storage: Storage, name: str) -> str:
    """*name*, or *name* with a number after it when that is taken. Raises: OSError."""
    names = set(storage.list())
    numbered = (f"{name}.{number}" for number in itertools.count(2))
    return next(item for item in itertools.chain([name], numbered) if item not in names)


def length_of(folder: Folder, name: str) -> int:
    """Length of a file in bytes. Raises: OSError."""
    with closing(folder.open(name)) as file:
        return file.length


def copy_range(storage: Storage, name: str, begin: int, end: int, target: str) -> None:
    """Copy a part of file *name* to *target*, and sync that. Raises: OSError."""
    with (
        closing(storage.open(name)) as source,
        closing(storage.open(target, create=True)) as copy,
    ):
        for at in range(begin, end, _COPY_BYTES):
            copy.pwritev([source.pread(min(_COPY_BYTES, end - at), at)], at - begin)
        copy.datasync()


def write_atomically(storage: Storage, name: str, data: bytes) -> None:
    """Replace file *name* with *data*: written aside, synced, renamed, directory synced.

    Crash story: before the rename is durable the old file is there whole; after it the new one is,
    because its bytes were synced first. The leftover ``.tmp`` is removed at the next start.
    """
    temporary = name + ".tmp"
    with closing(storage.open(temporary, create=True)) as file:
        file.pwritev([data], 0)
        file.datasync()
    storage.rename(temporary, name)
    storage.sync_directory()
