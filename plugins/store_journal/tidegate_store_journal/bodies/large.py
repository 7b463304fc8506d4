"""Large bodies in files of their own: docs/store-journal.md, "Large messages".

A body has one file, written once, front to back, and named before its first byte: the record of a
message that refers to it is written only when file and directory are synced, so a file without such
a record (an upload that was cut off by a crash, or given up) is an *orphan* and removed at the next
start, whatever is in it. A file is given up after a checkpoint in which no message refers to it any
more, and not while a handle of it is alive in memory: it is removed, or kept as a *free* file, which
the next body of about its size takes over and writes over. So a file may be longer than its body.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import threading
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from pathlib import Path
from typing import Final, TypeVar

from tidegate.spi import (
    CorruptRecordError,
    LargeBody,
    StoreClosedError,
    StoreError,
    StoreFullError,
    StoreIOError,
    format_size,
    store_error,
)
from tidegate_store_journal.bodies.free import FREE_BYTES_MAX, FreeFiles
from tidegate_store_journal.bodies.recent import RECENT_BYTES_MAX, RecentBodies
from tidegate_store_journal.index.largereferences import LargeReferences
from tidegate_store_journal.log.files import FULL_ERRNOS, NO_HANDLE_ERRNOS
from tidegate_store_journal.log.format import crc32c
from tidegate_store_journal.log.storage import File, Storage, open_regular

logger = logging.getLogger("tidegate.store.journal")

T = TypeVar("T")

#: Threads that write and sync large bodies: apart from the others, because one sync of a large body
#: can take seconds. More would only make the disk seek.
LARGE_THREADS: Final = 4
#: Threads that read them: who is read to does not wait for the syncs of who writes.
READING_THREADS: Final = 2
#: ``size_min`` of a store whose bodies are only read: no body is so large.
NO_NEW_BODIES: Final = 1 << 62
_SUFFIX: Final = ".body"
_LOST_SUFFIX: Final = ".lost"
_FREE_SUFFIX: Final = ".free"
#: What was written is forced to disk in such pieces, so that the sync at the end, for which the
#: client waits, is short and the kernel's cache is not full of what it must write first.
_SYNC_BYTES: Final = 32 << 20
_DAMAGED: Final = "the bytes are damaged (checksum); restore it from a copy"
#: Read at a time of what only has to be checked.
_CHECK_BYTES: Final = 1 << 20
#: A body that came in more pieces than that is not kept in memory: tiny ones cost more than they are.
_KEPT_PIECES_MAX: Final = 64


def file_name_of(body_id: str) -> str:
    """The name of the file of a body."""
    return body_id + _SUFFIX


class LargeFiles:
    """The :class:`~tidegate.spi.LargeBodies` of a journal; one directory of files.

    Args:
        storage: the directory.
        size_min: see ``large_message_min_size``.
        free_limit_bytes: room that a body has to leave on the file system.
        syncs: False: files are not forced to disk (strategy ``never``).
    """

    def __init__(
        self, storage: Storage, *, size_min: int, free_limit_bytes: int, syncs: bool
    ) -> None:
        self._storage = storage
        self._size_min = size_min
        self._free_limit_bytes = free_limit_bytes
        self._syncs = syncs
        self._executor: Executor | None = None
        self._reading: Executor | None = None
        self._references = LargeReferences()
        self._free = FreeFiles()
        self._recent = RecentBodies(RECENT_BYTES_MAX)
        self._sizes: dict[str, int] = {}
        self._holders: dict[str, dict[int, weakref.ref[LargeBody]]] = {}
        self._uploads: set[_Upload] = set()
        #: Ids of bodies that were damaged when they were last read: they are read whole, in a
        #: thread, before any of their bytes is given out.
        self.suspects: set[str] = set()

    # ------------------------------------------------------------------- tidegate.spi.LargeBodies

    @property
    def size_min(self) -> int:
        """See LargeBodies."""
        return self._size_min

    def create(self, size: int | None) -> _Upload:
        """See LargeBodies. Raises: StoreClosedError."""
        free = self._free.take(size) if size is not None else None
        upload = _Upload(self, self.require_open(), size, free)
        self._uploads.add(upload)
        return upload

    def open(self, body: LargeBody) -> _Download:
        """See LargeBodies. Raises: StoreClosedError."""
        self.require_open()
        return _Download(self, body)

    # ---------------------------------------------------------------------------- the store's side

    def prepare(self, owner: str) -> None:
        """Make the directory and take it. Blocks. Raises: StoreLockedError, OSError."""
        self._storage.lock(owner)

    def release(self) -> None:
        """Give the directory back, without free files. Idempotent. Blocks."""
        for name in self._free.give_up():
            self.remove_file(name)
        self._storage.unlock()

    def recover(self, references: LargeReferences, *, keeps_orphans: bool = False) -> list[str]:
        """Remove orphans and look for what is missing. Blocks.

        Args: keeps_orphans: the journal may have lost records, so a file that no message names may
            be all that is left of one: it is kept under another name, which nothing reads.
        Returns: a sentence for each thing found. Raises: OSError.
        """
        notes: list[str] = []
        found: dict[str, int] = {}
        orphans = 0
        orphan_bytes = 0
        for name in self._storage.list():
            if name.endswith(_FREE_SUFFIX):
                self._storage.unlink(name)
            if not name.endswith(_SUFFIX):
                continue
            body_id = name.removesuffix(_SUFFIX)
            file = self._storage.open(name)
            length = file.length
            file.close()
            if body_id in references:
                found[body_id] = length
            else:
                if keeps_orphans:
                    self._storage.rename(name, name + _LOST_SUFFIX)
                else:
                    self._storage.unlink(name)
                orphans += 1
                orphan_bytes += length
        if orphans:
            notes.append(
                f"{orphans} files of large messages that no message names "
                f"({format_size(orphan_bytes)}) were "
                + (f"renamed to *{_SUFFIX}{_LOST_SUFFIX}." if keeps_orphans else "removed.")
            )
        for sequence, body in references.bodies.items():
            if found.get(body.id, 0) < body.size:
                where = self._storage.describe(file_name_of(body.id))
                what = "is missing" if body.id not in found else "is cut off"
                notes.append(
                    f"The body of message {sequence} {what}: {where}. Restore the file from a "
                    "copy; until then the message cannot be delivered."
                )
        self._sizes = found
        self._references = references
        references.watch_gone(self._recent.drop)
        return notes

    def start(self, executor: Executor, reading: Executor) -> None:
        """Take bodies from now on; they are read in the threads of *reading*."""
        self._executor = executor
        self._reading = reading

    def stop(self) -> None:
        """Take nothing more; uploads that are under way end with StoreClosedError."""
        for upload in list(self._uploads):
            upload.abandon()
        self._executor = self._reading = None

    @property
    def disk_bytes(self) -> int:
        """Bytes of all files, uploads and free ones included."""
        uploads = sum(upload.disk_bytes for upload in self._uploads)
        return sum(self._sizes.values()) + uploads + self._free.bytes

    def hold(self, body: LargeBody) -> None:
        """The file of *body* stays while this very object is alive."""
        key = id(body)
        holders = self._holders.setdefault(body.id, {})
        # The callback may run in any thread; removing one key of a dict is atomic.
        holders[key] = weakref.ref(body, lambda _: holders.pop(key, None))

    async def keep_lost(self, body: LargeBody) -> str:
        """Put the file of *body* aside: the record of its only message is damaged and dropped.

        Returns: how to name it to the operator; "" when others need it, or it is not there.
        Raises: OSError.
        """
        if self._references.is_shared(body.id) or self._executor is None:
            return ""
        name = file_name_of(body.id)

        def work() -> str:
            try:
                self._storage.rename(name, name + _LOST_SUFFIX)
            except FileNotFoundError:
                return ""
            self._storage.sync_directory()
            return self._storage.describe(name + _LOST_SUFFIX)

        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    async def sweep(self, loose: Iterable[str]) -> int:
        """Give up the files of bodies that nobody needs.

        Args: loose: ids of those that no message in the checkpoint needs.
        Returns: how many. Raises: OSError; the rest is given up next time.
        """
        references, holders = self._references, self._holders
        self._recent.drop_if_idle()
        gone: list[str] = []
        for body_id in loose:
            if body_id in references or holders.get(body_id):
                continue
            gone.append(body_id)
        idle = self._free.give_up_if_idle()
        if not (gone or idle) or self._executor is None:
            return 0
        files = [(body_id, self._sizes.get(body_id, 0)) for body_id in gone]
        await asyncio.get_running_loop().run_in_executor(self._executor, self._give_up, files, idle)
        for body_id in gone:
            holders.pop(body_id, None)
            self._sizes.pop(body_id, None)
            self.suspects.discard(body_id)
            references.loose.discard(body_id)
        return len(gone)

    # ------------------------------------------------------------------------- uploads, downloads

    def run(self, work: Callable[[], T], what: str) -> asyncio.Future[T]:
        """Do *work* in a thread. Raises: StoreClosedError; awaiting it: StoreError."""
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(self.require_open(), _translated, work, what)

    def read(self, work: Callable[[], T], what: str) -> asyncio.Future[T]:
        """As :meth:`run`, in a thread that reads."""
        self.require_open()
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(self._reading, _translated, work, what)

    def finished(self, upload: _Upload, body: LargeBody) -> None:
        """A body is complete; it stays while *body* is alive or a message refers to it."""
        if upload.kept is not None:
            self._recent.keep(body.id, tuple(upload.kept))
        self._uploads.discard(upload)
        self._sizes[body.id] = upload.disk_bytes
        self.hold(body)
        self._references.add_loose(body)

    def ended(self, upload: _Upload) -> None:
        """An upload was given up."""
        self._uploads.discard(upload)
        self._recent.drop(upload.body_id)

    def place(self, body_id: str, size: int) -> bool:
        """A place in memory for a body of *size* bytes that is going to be written."""
        return self._recent.reserve(body_id, size)

    def give_up_place(self, body_id: str) -> None:
        """It is not kept after all."""
        self._recent.drop(body_id)

    def pieces_of(self, body: LargeBody) -> tuple[bytes, ...]:
        """All of a body that was just written, from memory; () when it has to be read."""
        return self._recent.get(body.id) or ()

    def create_file(self, name: str, size: int) -> File:
        """Blocks. Raises: StoreFullError, OSError."""
        self.require_room(size, f"a body of {size} bytes")
        return self._storage.open(name, create=True)

    def require_room(self, size: int, what: str) -> None:
        """*what* takes *size* bytes more. Blocks. Raises: StoreFullError, OSError."""
        if self._lacks(size):
            for unused in self._free.give_up():
                self._storage.unlink(unused)
            if self._lacks(size):
                raise StoreFullError(
                    f"{what} has no room: "
                    f"{format_size(self._storage.free_bytes())} are free, and disk_free_limit "
                    f"keeps {format_size(self._free_limit_bytes)} of them"
                )

    def reuse_file(self, free: str, name: str) -> File | None:
        """Blocks. Returns: None when somebody removed it. Raises: OSError."""
        try:
            self._storage.rename(free, name)
        except FileNotFoundError:
            return None
        return self._storage.open(name)

    def _lacks(self, size: int) -> bool:
        return self._storage.free_bytes() - size < self._free_limit_bytes

    def open_file(self, name: str) -> File:
        """Blocks. Raises: OSError."""
        return self._storage.open(name)

    def remove_file(self, name: str) -> None:
        """Blocks. Logs what goes wrong: the next start removes the file."""
        try:
            self._storage.unlink(name)
        except OSError as error:
            logger.warning("a file of a large body stays until the next start error=%s", error)

    def sync_file(self, file: File) -> None:
        """Blocks. Raises: OSError."""
        if self._syncs:
            file.datasync()

    def sync_directory(self) -> None:
        """Blocks. Raises: OSError."""
        if self._syncs:
            self._storage.sync_directory()

    def describe(self, name: str) -> str:
        """How to name the file to the operator."""
        return self._storage.describe(name)

    def _give_up(self, files: list[tuple[str, int]], idle: list[str]) -> None:
        for name in idle:
            self._storage.unlink(name)
        keeps = bool(files) and not self._lacks(FREE_BYTES_MAX)
        for body_id, length in files:
            name, free = file_name_of(body_id), body_id + _FREE_SUFFIX
            if keeps and length:
                try:
                    self._storage.rename(name, free)
                except FileNotFoundError:
                    continue
                if self._free.give(free, length):
                    continue
                name = free
            self._storage.unlink(name)

    def require_open(self) -> Executor:
        """Raises: StoreClosedError."""
        if self._executor is None:
            raise StoreClosedError("the journal store is not open")
        return self._executor


def read_large(directory: Path, body: LargeBody, piece_bytes: int = 1 << 20) -> Iterator[bytes]:
    """The bytes of a large body in pieces, for tools; works beside a running gateway. Blocks.

    Args: directory: of the large bodies (``large_messages_directory``).
    Raises: CorruptRecordError when the file is missing, cut off, or (behind the last piece) has
        another checksum; OSError.
    """
    path = directory / file_name_of(body.id)
    left, checksum = body.size, 0
    try:
        with os.fdopen(open_regular(path, os.O_RDONLY), "rb") as file:
            while left:
                data = file.read(min(left, piece_bytes))
                if not data:
                    raise CorruptRecordError(
                        f"the file ends before byte {body.size}", location=str(path)
                    )
                left -= len(data)
                checksum = crc32c(checksum, data)
                yield data
    except FileNotFoundError:
        raise CorruptRecordError("the file is missing", location=str(path)) from None
    if checksum != body.checksum:
        raise CorruptRecordError("the bytes are damaged (checksum)", location=str(path))


class _Upload:
    """See :class:`tidegate.spi.LargeWriter`."""

    def __init__(
        self,
        files: LargeFiles,
        executor: Executor,
        size: int | None,
        free: tuple[str, int] | None,
    ) -> None:
        self._files = files
        self._executor = executor
        self._size = size
        self._free, self._length = free or ("", 0)
        self.body_id = uuid.uuid4().hex
        self._name = file_name_of(self.body_id)
        self._file: File | None = None
        self._checksum = 0
        self._synced = 0
        self._is_over = False
        # Work in threads may still go on when the awaiting task was cancelled.
        self._lock = threading.Lock()
        self.written = 0
        #: Pieces for who reads the body at once; None: too much for that.
        has_place = size is not None and files.place(self.body_id, size)
        self.kept: list[bytes] | None = [] if has_place else None

    @property
    def disk_bytes(self) -> int:
        """Length of the file."""
        return max(self._length, self.written)

    async def write(self, *pieces: bytes) -> None:
        """See LargeWriter."""
        self._keep(pieces)
        await self._run(lambda: self._write(pieces))

    async def finish(self, *pieces: bytes) -> LargeBody:
        """See LargeWriter."""
        self._keep(pieces)
        await self._run(lambda: self._finish(pieces))
        body = LargeBody(self.body_id, self.written, self._checksum)
        self._is_over = True
        self._files.finished(self, body)
        return body

    def abandon(self) -> None:
        """See LargeWriter."""
        if not self._is_over:
            self._is_over = True
            self._files.ended(self)
            self._executor.submit(self._remove)

    def _keep(self, pieces: tuple[bytes, ...]) -> None:
        kept = self.kept
        if kept is not None:
            kept += filter(None, pieces)
            if len(kept) > _KEPT_PIECES_MAX:
                self.kept = None
                self._files.give_up_place(self.body_id)

    async def _run(self, work: Callable[[], None]) -> None:
        if self._is_over:
            raise StoreClosedError("the upload of this large body has ended")
        try:
            await self._files.run(work, self._files.describe(self._name))
        except BaseException:
            self.abandon()
            raise

    def _write(self, pieces: tuple[bytes, ...]) -> None:
        with self._lock:
            if self._is_over:
                return
            file = self._append(pieces)
            if self.written - self._synced >= _SYNC_BYTES:
                self._files.sync_file(file)
                self._synced = self.written

    def _append(self, pieces: tuple[bytes, ...]) -> File:
        if self._size is None:
            more = sum(map(len, pieces))
            self._files.require_room(more, f"a body of {self.written + more} bytes or more")
        if self._file is None:
            self._file = self._make_file()
        self._file.pwritev(pieces, self.written)
        for piece in pieces:
            self._checksum = crc32c(self._checksum, piece)
            self.written += len(piece)
        return self._file

    def _make_file(self) -> File:
        file = self._files.reuse_file(self._free, self._name) if self._free else None
        if file is None:
            self._length = 0
            file = self._files.create_file(self._name, self._size or 0)
        self._free = ""
        return file

    def _finish(self, pieces: tuple[bytes, ...]) -> None:
        with self._lock:
            if self._is_over:
                return
            if pieces:
                self._append(pieces)
            size = self.written if self._size is None else self._size
            if self._file is None or self.written != size:
                raise ValueError(f"{self.written} bytes of a body of {self._size} were written")
            self._files.sync_file(self._file)
            self._file.close()
            self._files.sync_directory()

    def _remove(self) -> None:
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._files.remove_file(self._name)
            elif self._free:
                self._files.remove_file(self._free)


class _Download:
    """See :class:`tidegate.spi.LargeReader`. Holds the handle, and by it the file."""

    def __init__(self, files: LargeFiles, body: LargeBody) -> None:
        self._files = files
        self._body = body
        self._name = file_name_of(body.id)
        self._file: File | None = None
        self._at = 0
        self._checksum = 0
        self._is_closed = False
        self._lock = threading.Lock()
        self._piece: int = 0  # where it goes on in the pieces in memory
        self._offset = 0
        files.hold(body)

    async def read(self, limit: int) -> bytes:
        """See LargeReader."""
        if self._is_closed:
            raise StoreClosedError("the large body is not open")
        if self._file is None and self._at < self._body.size:
            # Looked up each time: who holds them would hold memory for each reader that waits.
            pieces = self._files.pieces_of(self._body)
            if pieces:
                self._files.require_open()
                return self._next_kept(pieces, limit)
        return await self._files.read(lambda: self._read(limit), self._files.describe(self._name))

    def _next_kept(self, pieces: tuple[bytes, ...], limit: int) -> bytes:
        piece, offset = pieces[self._piece], self._offset
        data = piece if not offset and len(piece) <= limit else piece[offset : offset + limit]
        self._offset += len(data)
        if self._offset == len(piece):
            self._piece, self._offset = self._piece + 1, 0
        self._at += len(data)
        return data

    def close(self) -> None:
        """See LargeReader."""
        self._is_closed = True
        if self._lock.acquire(blocking=False):  # else the reading thread does it
            try:
                self._close_file()
            finally:
                self._lock.release()

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _read(self, limit: int) -> bytes:
        try:
            with self._lock:
                return self._read_next(limit)
        finally:
            if self._is_closed:  # asked behind the lock: who closed it may have found it taken
                self.close()

    def _read_next(self, limit: int) -> bytes:
        size = self._body.size
        if self._at >= size:
            return b""
        if self._file is None:
            try:
                self._file = self._files.open_file(self._name)
            except FileNotFoundError:
                raise self._corrupt("the file is missing; restore it from a copy") from None
            self._checksum = _checksum_of(self._file, 0, self._at, 0)  # of what came from memory
            if self._body.id in self._files.suspects:
                # Its last reader got all but its end, and lost the connection by that.
                if _checksum_of(self._file, self._at, size, self._checksum) != self._body.checksum:
                    raise self._corrupt(_DAMAGED)
                self._files.suspects.discard(self._body.id)
        wanted = min(limit, size - self._at)
        data = self._file.pread(wanted, self._at)
        if len(data) != wanted:
            raise self._corrupt(f"the file ends before byte {size}; restore it from a copy")
        self._checksum = crc32c(self._checksum, data)
        self._at += wanted
        if self._at == size and self._checksum != self._body.checksum:
            self._files.suspects.add(self._body.id)
            raise self._corrupt(_DAMAGED)
        return data

    def _corrupt(self, problem: str) -> CorruptRecordError:
        return CorruptRecordError(problem, location=self._files.describe(self._name))


def _checksum_of(file: File, begin: int, end: int, checksum: int) -> int:
    """*checksum* continued by the bytes from *begin* to *end*, as far as they are there."""
    for at in range(begin, end, _CHECK_BYTES):
        checksum = crc32c(checksum, file.pread(min(_CHECK_BYTES, end - at), at))
    return checksum


def _translated(work: Callable[[], T], what: str) -> T:
    """*work*, with the errors of the system as those of the contract."""
    try:
        return work()
    except StoreError:
        raise
    except OSError as error:
        if error.errno in FULL_ERRNOS:
            raise StoreFullError(f"{what}: {error.strerror}; make room, or consume") from error
        if error.errno in NO_HANDLE_ERRNOS:
            raise store_error(what, error) from error
        code = errno.errorcode.get(error.errno or 0, "")
        raise StoreIOError(f"{what}: {error} {code}".rstrip()) from error
