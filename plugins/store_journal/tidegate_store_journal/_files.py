"""The data files: which there are, which comes next, and getting new ones ready ahead of need.

Files are prepared (allocated, padded, synced) in a thread while the current one fills. One spare is
a reserve: only batches that do not grow the store may begin it while no other can be made, so that
acknowledgements still work when the disk is full and make room. All methods are for the event loop
unless they say otherwise.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import secrets
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from typing import Final

from tidegate.spi import StoreClosedError, StoreFullError, StoreIOError
from tidegate_store_journal import _format
from tidegate_store_journal._storage import File, Storage

logger = logging.getLogger("tidegate.store.journal")

#: Padding is written and synced in pieces, so that a batch's sync never queues behind a whole file.
_PAD_BYTES: Final = 1 << 20
#: Open data files besides the current one and the spares; far below the usual limit of 1024.
OPEN_FILES_MAX: Final = 128
#: errno values that mean "no room".
FULL_ERRNOS: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class DataFile:
    """One data file.

    Attributes:
        file_id, name, length, seed: from its header.
        first_batch: number of its first batch; 0 for a spare.
        handle: open, or None.
        readers: page reads under way; a handle with readers is not closed.
    """

    __slots__ = ("file_id", "first_batch", "handle", "length", "name", "readers", "seed")

    def __init__(self, file_id: int, length: int, seed: int, handle: File | None) -> None:
        self.file_id = file_id
        self.name = _format.file_name(file_id)
        self.length = length
        self.seed = seed
        self.first_batch = 0
        self.handle = handle
        self.readers = 0


def prepare(
    storage: Storage, store_id: str, file_id: int, length: int, *, pad: bool = True
) -> DataFile:
    """Make a data file that is ready for its first batch. Blocks; any thread. Raises: OSError.

    Crash story: until the rename at the end is durable there is at most a ``.tmp`` file, which the
    next start removes; afterwards there is a file with a valid header and nothing but zeros.
    """
    name = _format.file_name(file_id)
    temporary = name + ".tmp"
    file = storage.open(temporary, create=True)
    try:
        file.preallocate(length)
        if pad:
            zeros = bytes(_PAD_BYTES)
            for offset in range(0, length, _PAD_BYTES):
                file.pwritev([zeros[: min(_PAD_BYTES, length - offset)]], offset)
                if offset % (4 * _PAD_BYTES) == 0:
                    file.datasync()
        salt = secrets.randbits(64)
        header = _format.encode_file_header(store_id, file_id, salt, length)
        file.pwritev([header], 0)
        file.datasync()
        storage.rename(temporary, name)
        storage.sync_directory()
    except OSError:
        file.close()
        try:
            storage.unlink(temporary)
        except OSError:
            logger.info("could not remove an unfinished data file name=%s", temporary)
        raise
    return DataFile(file_id, length, _format.decode_file_header(header).seed, file)


class DataFiles:
    """All data files of the store; see the module."""

    def __init__(
        self,
        storage: Storage,
        executor: Executor,
        *,
        store_id: str,
        file_length: int,
        files_min: int,
        free_limit_bytes: int,
    ) -> None:
        self._storage = storage
        self._executor = executor
        self._store_id = store_id
        self._file_length = file_length
        self._files_min = files_min
        self._free_limit_bytes = free_limit_bytes
        self._files: dict[int, DataFile] = {}
        self._spares: deque[DataFile] = deque()
        self._open_old: OrderedDict[int, DataFile] = OrderedDict()
        self._next_id = 1
        self._preparing: asyncio.Task[None] | None = None
        self._prepare_error: OSError | None = None
        self._is_failing = False
        self._closed = False
        self.on_full: Callable[[], None] = lambda: None

    # --------------------------------------------------------------------------- contents

    def adopt(self, files: Iterable[DataFile], spares: Iterable[DataFile], next_id: int) -> None:
        """Begin with what recovery found."""
        for file in files:
            self._files[file.file_id] = file
        for file in spares:
            self._files[file.file_id] = file
            self._spares.append(file)
        self._next_id = next_id

    def __len__(self) -> int:
        return len(self._files)

    @property
    def spare_count(self) -> int:
        """Files that are ready and unused."""
        return len(self._spares)

    @property
    def disk_bytes(self) -> int:
        """Bytes of all data files."""
        return sum(file.length for file in self._files.values())

    def get(self, file_id: int) -> DataFile | None:
        """The file with this id."""
        return self._files.get(file_id)

    def used(self) -> list[DataFile]:
        """Files that hold batches, in the journal's order."""
        used = [file for file in self._files.values() if file.first_batch]
        return sorted(used, key=lambda file: file.first_batch)

    def forget(self, file: DataFile) -> None:
        """Close a file that is about to be deleted; it must have no readers."""
        assert file.readers == 0, "a page is being read from it"
        self._files.pop(file.file_id, None)
        self._open_old.pop(file.file_id, None)
        if file.handle is not None:
            file.handle.close()
            file.handle = None

    # ------------------------------------------------------------------------ next files

    async def take(self, length: int, *, grows: bool) -> DataFile:
        """A file for a batch that needs *length* bytes in all.

        *grows*: the batch makes the store larger, so it must leave the reserve alone.
        Raises: StoreFullError; StoreIOError.
        """
        if length > self._file_length:
            return await self._prepare_special(length)
        reserve = 1 if grows else 0
        while len(self._spares) <= reserve:
            self._prepare_error = None
            await self._refill(len(self._spares) + 1)
            if self._closed:
                raise StoreClosedError("the store was closed")
            if self._prepare_error is None:
                continue
            if self._prepare_error.errno not in FULL_ERRNOS:
                raise StoreIOError(
                    f"cannot create a data file: {self._prepare_error}"
                ) from self._prepare_error
            if len(self._spares) > reserve:
                break
            self.on_full()
            raise StoreFullError(
                f"no room for another data file of {self._file_length} bytes: {self._prepare_error}"
            ) from self._prepare_error
        return self._spares.popleft()

    def put_back(self, file: DataFile) -> None:
        """A taken file was not begun after all."""
        if file.length == self._file_length:
            self._spares.appendleft(file)
        else:
            # Made for one large batch that now does not come: it only takes room.
            self.forget(file)
            self._executor.submit(self._storage.unlink, file.name)

    def refill(self, *, half_used: bool) -> None:
        """Get spares ready in the background: the reserve, and one more when it is soon needed."""
        used = len(self._files) - len(self._spares)
        wanted = max(2 if half_used else 1, self._files_min - used)
        if self._preparing is None and not self._closed and len(self._spares) < wanted:
            self._prepare_error = None
            self._preparing = asyncio.get_running_loop().create_task(self._prepare_until(wanted))

    async def _refill(self, wanted: int) -> None:
        """Wait until there are *wanted* spares or one could not be made."""
        if self._preparing is not None:
            # shield: when the writer that waits is cancelled, the file is still wanted.
            await asyncio.shield(self._preparing)
            if len(self._spares) >= wanted:
                return
        if self._preparing is None and not self._closed:
            self._preparing = asyncio.get_running_loop().create_task(self._prepare_until(wanted))
        if self._preparing is not None:
            await asyncio.shield(self._preparing)

    async def _prepare_until(self, wanted: int) -> None:
        try:
            while len(self._spares) < wanted and not self._closed:
                if self._spares and not await self._has_room():
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                self._spares.append(await self._prepare(self._file_length))
                self._is_failing = False
        except OSError as error:
            self._prepare_error = error
            if not self._is_failing:
                self._is_failing = True  # say it once, not at every batch that is refused
                logger.warning("cannot prepare a data file error=%s", error)
        finally:
            self._preparing = None

    async def _has_room(self) -> bool:
        """Another file leaves at least the configured room free."""
        loop = asyncio.get_running_loop()
        free = await loop.run_in_executor(self._executor, self._storage.free_bytes)
        return free - self._file_length >= self._free_limit_bytes

    async def _prepare(self, length: int, *, pad: bool = True) -> DataFile:
        file_id = self._next_id
        if file_id > _format.FILE_ID_MAX:
            raise OSError(errno.ENOSPC, "all file ids are used up")
        self._next_id += 1
        loop = asyncio.get_running_loop()
        storage, store_id = self._storage, self._store_id
        pad = pad and storage.durable
        file = await loop.run_in_executor(
            self._executor, lambda: prepare(storage, store_id, file_id, length, pad=pad)
        )
        self._files[file.file_id] = file
        return file

    async def _prepare_special(self, length: int) -> DataFile:
        """A file for one large batch. Not padded: the batch fills it at once."""
        try:
            return await self._prepare(length, pad=False)
        except OSError as error:
            if error.errno in FULL_ERRNOS:
                self.on_full()
                raise StoreFullError(f"no room for a batch of {length} bytes: {error}") from error
            raise StoreIOError(f"cannot create a data file: {error}") from error

    async def close(self) -> None:
        """Wait for a file that is being prepared, and close all. Idempotent."""
        self._closed = True
        if self._preparing is not None:
            await self._preparing
        for file in self._files.values():
            if file.handle is not None:
                file.handle.close()
                file.handle = None

    # --------------------------------------------------------------------------- reading

    def borrow(self, file: DataFile) -> File:
        """An open handle that stays open until :meth:`give_back`. Raises: OSError."""
        file.readers += 1
        handle = file.handle
        if handle is None:
            try:
                handle = file.handle = self._storage.open(file.name)
            except OSError:
                file.readers -= 1
                raise
            self.retire(file)
        elif file.file_id in self._open_old:
            self._open_old.move_to_end(file.file_id)
        return handle

    def give_back(self, file: DataFile) -> None:
        """The handle is not used any more."""
        file.readers -= 1

    def retire(self, file: DataFile) -> None:
        """The file is full: from now on it is only read, and may be closed when many are open."""
        self._open_old[file.file_id] = file
        self.close_surplus()

    def close_surplus(self) -> None:
        """Close the files that were not read for longest, above OPEN_FILES_MAX."""
        while len(self._open_old) > OPEN_FILES_MAX:
            _, file = self._open_old.popitem(last=False)
            if file.readers:
                self._open_old[file.file_id] = file
                return
            if file.handle is not None:
                file.handle.close()
                file.handle = None
