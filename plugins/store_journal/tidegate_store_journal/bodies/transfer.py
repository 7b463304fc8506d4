"""Uploads and downloads of large bodies, and what they share.

The system's calls are made in threads, one at a time for each body.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final, TypeVar

from tidegate.spi import (
    CorruptRecordError,
    LargeBody,
    LargeBodyError,
    StoreClosedError,
    StoreError,
    StoreFullError,
    format_size,
    store_error,
)
from tidegate_store_journal.bodies.kept import FreeFiles, RecentBodies
from tidegate_store_journal.log.format import crc32c
from tidegate_store_journal.log.storage import File, Storage
from tidegate_store_journal.options import NEVER, JournalOptions

logger = logging.getLogger("tidegate.store.journal")

T = TypeVar("T")

BODY_SUFFIX: Final = ".body"
#: Written bytes are flushed to disk in pieces of this size, so that the final sync, for which the
#: client waits, is short, and the kernel's cache does not fill up with dirty pages.
_SYNC_BYTES: Final = 32 << 20
_DAMAGED: Final = "the bytes are damaged (checksum); restore it from a copy"
#: Bytes to read at a time when only checking.
_CHECK_BYTES: Final = 1 << 20
#: A body in more pieces is not kept in memory: tiny pieces cost more than they hold.
_KEPT_PIECES_MAX: Final = 64


def file_name_of(body_id: str) -> str:
    """The name of the file of a body."""
    return body_id + BODY_SUFFIX


class BodyFiles:
    """The directory, its threads, and the bodies cached in memory.

    Attributes: free: files to reuse. suspects: ids of bodies found damaged at their last read: they
        are read whole, in a thread, before any of their bytes is handed out.
    """

    def __init__(
        self, storage: Storage, recent: RecentBodies, options: JournalOptions, free_limit: int
    ) -> None:
        self.storage = storage
        self.recent = recent
        self.free = FreeFiles()
        self.suspects: set[str] = set()
        self._free_limit_bytes = free_limit
        self._syncs = options.sync_strategy != NEVER
        self._executor: Executor | None = None
        self._reading: Executor | None = None

    def start(self, executor: Executor, reading: Executor) -> None:
        """Accept bodies from now on; they are read in the threads of *reading*."""
        self._executor, self._reading = executor, reading

    def require_open(self) -> Executor:
        """Raises: StoreClosedError."""
        if self._executor is None:
            raise StoreClosedError("the journal store is not open")
        return self._executor

    def run(self, work: Callable[[], T], name: str, *, reads: bool = False) -> asyncio.Future[T]:
        """Do *work* on the file in a thread. Raises: StoreClosedError; awaiting it: StoreError."""
        executor = self.require_open()
        what = self.storage.describe(name)
        return asyncio.get_running_loop().run_in_executor(
            self._reading if reads else executor, _translated, work, what
        )

    # ------------------------------------------------------------------ in threads: they block

    def lacks(self, size: int) -> bool:
        """Whether *size* more bytes would leave too little room. Raises: OSError."""
        return self.storage.free_bytes() - size < self._free_limit_bytes

    def require_room(self, size: int, what: str) -> None:
        """Make room for *size* more bytes of *what*. Raises: StoreFullError, OSError."""
        if self.lacks(size):
            for unused in self.free.give_up():
                self.storage.unlink(unused)
            if self.lacks(size):
                raise StoreFullError(
                    f"{what} has no room: "
                    f"{format_size(self.storage.free_bytes())} are free, and broker.disk_free_limit "
                    f"keeps {format_size(self._free_limit_bytes)} of them"
                )

    def remove_file(self, name: str) -> None:
        """Logs what goes wrong: the next start removes the file."""
        try:
            self.storage.unlink(name)
        except OSError as error:
            logger.warning("a file of a large body stays until the next start error=%s", error)

    def sync(self, call: Callable[[], None]) -> None:
        """*call*, which syncs, unless nothing is to be synced. Raises: OSError."""
        if self._syncs:
            call()


class Upload:
    """See :class:`tidegate.spi.LargeWriter`. *on_end* gets the body, or None if abandoned."""

    def __init__(
        self,
        files: BodyFiles,
        size: int | None,
        on_end: Callable[[Upload, LargeBody | None], None],
    ) -> None:
        self._files = files
        self._executor = files.require_open()
        self._size = size
        self._on_end = on_end
        free = files.free.take(size) if size is not None else None
        self._free, self._length = free or ("", 0)
        self.body_id = uuid.uuid4().hex
        self._name = file_name_of(self.body_id)
        self._file: File | None = None
        self._checksum = 0
        self._synced = 0
        self._is_over = False
        # Work in threads may go on after the awaiting task was cancelled.
        self._lock = threading.Lock()
        self.written = 0
        #: Pieces for an immediate reader; None: too many to keep.
        has_place = size is not None and files.recent.reserve(self.body_id, size)
        self._kept: list[bytes] | None = [] if has_place else None

    @property
    def disk_bytes(self) -> int:
        """Length of the file."""
        return max(self._length, self.written)

    async def write(self, *pieces: bytes) -> None:
        """See LargeWriter."""
        await self._run(pieces, is_last=False)

    async def finish(self, *pieces: bytes) -> LargeBody:
        """See LargeWriter."""
        await self._run(pieces, is_last=True)
        body = LargeBody(self.body_id, self.written, self._checksum)
        self._is_over = True
        if self._kept is not None:
            self._files.recent.keep(body.id, tuple(self._kept))
        self._on_end(self, body)
        return body

    def abandon(self) -> None:
        """See LargeWriter."""
        if not self._is_over:
            self._is_over = True
            self._files.recent.drop(self.body_id)
            self._on_end(self, None)
            self._executor.submit(self._remove)

    async def _run(self, pieces: tuple[bytes, ...], *, is_last: bool) -> None:
        if self._kept is not None:
            self._kept += filter(None, pieces)
            if len(self._kept) > _KEPT_PIECES_MAX:
                self._kept = None
                self._files.recent.drop(self.body_id)
        if self._is_over:
            raise StoreClosedError("the upload of this large body has ended")
        try:
            await self._files.run(lambda: self._write(pieces, is_last=is_last), self._name)
        except BaseException as error:
            self._give_up(error)
            raise

    def _give_up(self, error: BaseException) -> None:
        self.abandon()
        if isinstance(error, LargeBodyError):  # the client must not see a file name
            logger.error("a large message is refused, others are accepted: %s", error)

    # ------------------------------------------------------------------------- in a thread

    def _write(self, pieces: tuple[bytes, ...], *, is_last: bool) -> None:
        with self._lock:
            if self._is_over:
                return
            if pieces or not is_last:
                self._append(pieces)
            if is_last:
                self._close()
            elif self._file is not None and self.written - self._synced >= _SYNC_BYTES:
                self._files.sync(self._file.datasync)
                self._synced = self.written

    def _append(self, pieces: tuple[bytes, ...]) -> None:
        if self._size is None:
            more = sum(map(len, pieces))
            self._files.require_room(more, f"a body of {self.written + more} bytes or more")
        if self._file is None:
            self._file = self._make_file()
        self._file.pwritev(pieces, self.written)
        for piece in pieces:
            self._checksum = crc32c(self._checksum, piece)
            self.written += len(piece)

    def _make_file(self) -> File:
        storage, free, self._free = self._files.storage, self._free, ""
        if free:
            try:
                storage.rename(free, self._name)
                return storage.open(self._name)
            except FileNotFoundError:
                pass  # already removed
        self._length = 0
        size = self._size or 0
        self._files.require_room(size, f"a body of {size} bytes")
        return storage.open(self._name, create=True)

    def _close(self) -> None:
        size = self.written if self._size is None else self._size
        if self._file is None or self.written != size:
            raise ValueError(f"{self.written} bytes of a body of {self._size} were written")
        self._files.sync(self._file.datasync)
        self._file.close()
        self._files.sync(self._files.storage.sync_directory)

    def _remove(self) -> None:
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._files.remove_file(self._name)
            elif self._free:
                self._files.remove_file(self._free)


class Download:
    """See :class:`tidegate.spi.LargeReader`. Holds the handle, and by it the file."""

    def __init__(self, files: BodyFiles, body: LargeBody) -> None:
        files.require_open()
        self._files = files
        self._body = body
        self._name = file_name_of(body.id)
        self._file: File | None = None
        self._at = 0
        self._checksum = 0
        self._is_closed = False
        self._lock = threading.Lock()
        self._piece: int = 0  # position in the pieces in memory
        self._offset = 0

    async def read(self, limit: int) -> bytes:
        """See LargeReader."""
        if self._is_closed:
            raise StoreClosedError("the large body is not open")
        if self._file is None and self._at < self._body.size:
            # Looked up each time: holding them would keep memory for each waiting reader.
            pieces = self._files.recent.get(self._body.id)
            if pieces:
                self._files.require_open()
                return self._next_kept(pieces, limit)
        return await self._files.run(lambda: self._read(limit), self._name, reads=True)

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
                file, self._file = self._file, None
                if file is not None:
                    file.close()
            finally:
                self._lock.release()

    def _read(self, limit: int) -> bytes:
        try:
            with self._lock:
                return self._read_next(limit)
        finally:
            if self._is_closed:  # checked under the lock: close may have found it taken
                self.close()

    def _read_next(self, limit: int) -> bytes:
        size = self._body.size
        if self._at >= size:
            return b""
        if self._file is None:
            self._file = self._open()
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

    def _open(self) -> File:
        body, suspects = self._body, self._files.suspects
        try:
            # Set at once, for close: what follows may fail.
            file = self._file = self._files.storage.open(self._name)
        except FileNotFoundError:
            raise self._corrupt("the file is missing; restore it from a copy") from None
        self._checksum = _checksum_of(file, 0, self._at, 0)  # of what came from memory
        if body.id in suspects:
            # Its last reader got all but its end, and so lost the connection.
            if _checksum_of(file, self._at, body.size, self._checksum) != body.checksum:
                raise self._corrupt(_DAMAGED)
            suspects.discard(body.id)
        return file

    def _corrupt(self, problem: str) -> CorruptRecordError:
        return CorruptRecordError(problem, location=self._files.storage.describe(self._name))


def _checksum_of(file: File, begin: int, end: int, checksum: int) -> int:
    """*checksum* continued over the bytes from *begin* to *end*, as far as they exist."""
    for at in range(begin, end, _CHECK_BYTES):
        checksum = crc32c(checksum, file.pread(min(_CHECK_BYTES, end - at), at))
    return checksum


def _translated(work: Callable[[], T], what: str) -> T:
    """Do *work*, turning system errors into the contract's."""
    try:
        return work()
    except StoreError:
        raise
    except OSError as error:
        raise store_error(what, error, LargeBodyError) from error
