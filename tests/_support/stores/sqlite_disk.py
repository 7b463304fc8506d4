"""What SQLite writes and syncs, repeated on a disk that can lose power.

SQLite does all its work on files through a table of C functions. While :func:`recorded` is on, those of
the default one that write, cut, sync and remove files also tell a :class:`FaultyStorage`. Nothing
of SQLite or of the store is replaced, and the shared memory, which recovery makes anew, is left out.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from ctypes import CFUNCTYPE, c_int, c_int64, c_void_p
from pathlib import Path
from typing import Any

from tidegate.testing.faulty_storage import FaultyFile, FaultyStorage

#: Names are pointers, which SQLite keeps: a copy of the text would be gone.
_OPEN = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_int, c_void_p)
_DELETE = CFUNCTYPE(c_int, c_void_p, c_void_p, c_int)
_WRITE = CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_int64)
_TRUNCATE = CFUNCTYPE(c_int, c_void_p, c_int64)
_SYNC = CFUNCTYPE(c_int, c_void_p, c_int)
#: Where they are among the pointers of ``sqlite3_vfs`` and ``sqlite3_io_methods``.
_VFS_OPEN, _VFS_DELETE = 5, 6
_IO_WRITE, _IO_TRUNCATE, _IO_SYNC, _IO_COUNT = 3, 4, 5, 19
#: SQLite's flags of a rollback journal and a write-ahead log: a connection's first sync of either
#: syncs the directory, too (``UNIXFILE_DIRSYNC``).
_JOURNAL_FLAGS = 0x800 | 0x80000
#: C holds no references, and a test that fails may leave a file open.
_KEPT: list[Any] = []


def library() -> ctypes.CDLL | None:
    """The SQLite that Python uses; None when it is hidden inside the interpreter."""
    import _sqlite3

    found = ctypes.CDLL(getattr(_sqlite3, "__file__", None))
    return found if hasattr(found, "sqlite3_vfs_find") else None


@contextmanager
def recorded(directory: Path, storage: FaultyStorage) -> Generator[None]:
    """Tell *storage* of every change that SQLite makes to the files in *directory*."""
    sqlite = library()
    assert sqlite is not None
    sqlite.sqlite3_vfs_find.restype = c_void_p
    vfs = ctypes.cast(sqlite.sqlite3_vfs_find(None), ctypes.POINTER(c_void_p))
    files: dict[str, FaultyFile] = {}
    open_files: dict[int, str] = {}
    unsynced_names: set[int] = set()
    tables: dict[int, Any] = {}

    def opened(this: int, name: int | None, file: int, flags: int, out: int) -> int:
        code: int = original_open(this, name, file, flags, out)
        path = Path(os.fsdecode(ctypes.string_at(name))) if name else Path()
        if code == 0 and path.parent == directory:
            if path.name not in files:
                files[path.name] = storage.open(path.name, create=True)
            open_files[file] = path.name
            if flags & _JOURNAL_FLAGS:
                unsynced_names.add(file)
            methods = ctypes.cast(file, ctypes.POINTER(c_void_p))
            address = methods[0] or 0
            if address not in tables:
                tables[address] = table(address)
            methods[0] = ctypes.addressof(tables[address])
        return code

    def deleted(this: int, name: int, sync: int) -> int:
        code: int = original_delete(this, name, sync)
        path = Path(os.fsdecode(ctypes.string_at(name)))
        if code == 0 and files.pop(path.name, None) is not None:
            storage.unlink(path.name)
            if sync:
                storage.sync_directory()
        return code

    def table(address: int) -> Any:
        """The functions of a file, and what they do to the disk."""

        def and_then(place: int, kind: Any, tell: Callable[..., None]) -> None:
            original = kind(made[place])

            def call(file: int, *arguments: int) -> int:
                code: int = original(file, *arguments)
                if code == 0:
                    tell(file, *arguments)
                return code

            _KEPT.append(kind(call))
            made[place] = ctypes.cast(_KEPT[-1], c_void_p).value

        def wrote(file: int, data: int, size: int, offset: int) -> None:
            files[open_files[file]].pwritev([ctypes.string_at(data, size)], offset)

        def cut(file: int, size: int) -> None:
            if size != files[open_files[file]].length:
                files[open_files[file]].preallocate(size)

        def synced(file: int, _flags: int) -> None:
            files[open_files[file]].datasync()
            if file in unsynced_names:
                unsynced_names.remove(file)
                storage.sync_directory()

        made = (c_void_p * _IO_COUNT).from_buffer_copy((c_void_p * _IO_COUNT).from_address(address))
        _KEPT.append(made)
        and_then(_IO_WRITE, _WRITE, wrote)
        and_then(_IO_TRUNCATE, _TRUNCATE, cut)
        and_then(_IO_SYNC, _SYNC, synced)
        return made

    original_open, original_delete = _OPEN(vfs[_VFS_OPEN]), _DELETE(vfs[_VFS_DELETE])
    before = vfs[_VFS_OPEN], vfs[_VFS_DELETE]
    mine = _OPEN(opened), _DELETE(deleted)
    vfs[_VFS_OPEN], vfs[_VFS_DELETE] = (ctypes.cast(call, c_void_p).value for call in mine)
    try:
        yield
    finally:
        vfs[_VFS_OPEN], vfs[_VFS_DELETE] = before
