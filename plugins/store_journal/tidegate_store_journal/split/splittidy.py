"""What goes on beside the writing of the per-destination layout: room is given back to the disk."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Final

from tidegate.spi import CorruptRecordError, StoreError, StoreFullError, StoreIOError
from tidegate_store_journal.index.index import Index
from tidegate_store_journal.log.files import FULL_ERRNOS
from tidegate_store_journal.split.folders import Folders
from tidegate_store_journal.split.recordfolder import Handle, RecordFolder
from tidegate_store_journal.split.records import Place
from tidegate_store_journal.split.split import Split
from tidegate_store_journal.split.splitcompact import install_copy, write_copy

logger = logging.getLogger("tidegate.store.journal")

#: What writing a record file anew costs beside its live bytes (syncs, a rename), as if in bytes.
_COPY_COST_BYTES: Final = 64 << 10


class Tidy:
    """Compacts record files and removes directories. All methods are for the event loop."""

    def __init__(
        self,
        split: Split,
        folders: Folders,
        index: Index,
        workers: Executor,
        fail: Callable[[BaseException], None],
        *,
        checkpoint: Callable[[], Awaitable[object]],
        file_bytes: int,
        percentage: int,
    ) -> None:
        """A record file above *file_bytes* of which less than *percentage* lives is compacted, and
        the bound is kept (see :meth:`keep_bound`); 0: neither. *checkpoint*: what was released is
        released on disk. *fail*: nobody knows any more what is on disk."""
        self._split = split
        self._folders = folders
        self._index = index
        self._workers = workers
        self._fail = fail
        self._checkpoint = checkpoint
        self._file_bytes = file_bytes
        self._percentage = percentage
        if percentage:
            split.keep_bound = self.keep_bound
        self._bound_lock = asyncio.Lock()
        self._copy_lock = asyncio.Lock()  # one record file is written anew at a time
        self._stuck: set[int] = set()  # numbers of directories that could not be compacted
        self._task: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    def start(self, interval: float) -> None:
        """Tidy up every *interval* seconds."""
        if self._split.is_active:
            self._task = asyncio.get_running_loop().create_task(self._run(interval))

    async def close(self) -> None:
        """Stop after what is under way. Idempotent."""
        self._closing.set()
        async with self._copy_lock:
            pass  # a writer's compaction, too
        if self._task is not None:
            await self._task
            self._task = None

    async def _run(self, interval: float) -> None:
        while True:
            try:
                async with asyncio.timeout(interval):
                    await self._closing.wait()
                return
            except TimeoutError:
                pass
            try:
                await self.tidy()
            except (OSError, StoreError) as error:
                logger.warning("directories of destinations cannot be tidied error=%s", error)

    async def tidy(self) -> None:
        """Free what can be freed, compact, and remove directories of destinations that are gone.

        Raises: OSError, StoreError.
        """
        async with self._split.lock:
            self._split.collect()
        self._stuck.clear()
        percentage = self._percentage
        for folder in self._split.folders():
            if self._closing.is_set():
                return
            live = folder.live_bytes
            if not folder.messages and folder.header.destination not in self._index.destinations:
                await self._remove(folder)
            elif (
                percentage
                and folder.record_file_bytes > self._file_bytes
                and live * 100 < percentage * folder.record_file_bytes
            ):
                await self._try_to_compact(folder)
        if percentage:
            await self.keep_bound()

    async def keep_bound(self) -> None:
        """Compact until all record files together keep their bound: 3 times the live bytes and
        4 times *file_bytes*, the first page of each file counted as live.

        One part of each is left for the copy while a file is written anew, and for what files
        grow until somebody looks again. Raises: StoreIOError, OSError.
        """
        async with self._bound_lock:
            self._split.grown_bytes = 0
            split = self._split
            async with split.lock:
                split.collect()
            if not self._is_over(split.freeing_bytes):
                return
            await self._free()
            while self._is_over() and not self._closing.is_set():
                folder = self._sparsest()
                if folder is None:
                    return
                await self._try_to_compact(folder)

    def _is_over(self, freeing_bytes: int = 0) -> bool:
        """*freeing_bytes*: what counts as live although it is consumed."""
        total = live = 0
        for folder in self._split.folders():
            total += folder.record_file_bytes
            live += folder.live_bytes
        return total > 2 * (live - freeing_bytes) + 3 * self._file_bytes

    async def _free(self) -> None:
        """Give back the room of everything that is consumed."""
        if self._split.freeing_bytes:
            try:
                await self._checkpoint()
            except (OSError, StoreError) as error:
                logger.warning("room waits for a checkpoint that failed error=%s", error)
        async with self._split.lock:
            self._split.collect()

    def _sparsest(self) -> RecordFolder | None:
        """Where most room is got back for what has to be copied."""
        best, best_gain = None, 0.0
        for folder in self._split.folders():
            live = folder.live_bytes
            gain = (folder.record_file_bytes - live) / (live + _COPY_COST_BYTES)
            if gain > best_gain and folder.number not in self._stuck:
                best, best_gain = folder, gain
        return best

    async def _try_to_compact(self, folder: RecordFolder) -> None:
        """Raises: StoreIOError."""
        before = folder.record_file_bytes
        try:
            await self.compact(folder.header.destination)
        except (CorruptRecordError, StoreFullError) as error:
            logger.warning("a destination cannot be compacted error=%s", error)
        if folder.record_file_bytes >= before:
            self._stuck.add(folder.number)  # until the next cleanup

    async def _remove(self, folder: RecordFolder) -> None:
        split = self._split
        async with self._copy_lock, split.lock:
            await split.until_idle()
            if folder.messages or split.is_reading:
                return
            split.forget(folder)
            await asyncio.get_running_loop().run_in_executor(
                self._workers, self._folders.remove, folder.name
            )

    async def compact(self, destination: str) -> None:
        """Write the record file of *destination* again without the room in it.

        Batches go on meanwhile; they wait only while what came since is copied, too.
        Raises: CorruptRecordError; StoreFullError; StoreIOError, when the store is read-only.
        Cancellation: safe; it goes on.
        """
        task = asyncio.get_running_loop().create_task(self._compact(destination))
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_say)
            raise

    async def _compact(self, destination: str) -> None:
        split = self._split
        async with self._copy_lock:
            if self._closing.is_set():
                return
            async with split.lock:
                # No batch is under way: what is placed now is written.
                await split.until_idle()
                split.collect()
                folder = split.folder_of(destination)
                if folder is None:
                    return
                # Open until the end: under the name is the new file before the places are changed.
                handle = folder.borrow()
                entries = sorted(split.entries_of(folder), key=lambda item: item[1].number)
                split.hold(folder)
            try:
                await self._replace(folder, handle, entries)
            except OSError as error:
                if error.errno in FULL_ERRNOS:
                    raise StoreFullError(f"no room to compact {destination}: {error}") from error
                raise StoreIOError(f"{folder.files.describe('')}: {error}") from error
            finally:
                split.let_go()
                handle.give_back()

    async def _replace(
        self, folder: RecordFolder, handle: Handle, entries: list[tuple[int, Place]]
    ) -> None:
        """Copy *entries*, then what was written meanwhile, and put the copy in place."""
        loop = asyncio.get_running_loop()
        split, files, header = self._split, folder.files, folder.header
        places, blocks = await loop.run_in_executor(
            self._workers, write_copy, files, header, entries
        )
        async with split.lock:
            await split.until_idle()
            # Whatever is in the old file has to be in the new one: also what is freed, because
            # it gives its room back later. None is given back while the lock is held.
            later = split.later_of(folder)
            later_places, blocks = await loop.run_in_executor(
                self._workers, write_copy, files, header, later, blocks
            )
            try:
                await loop.run_in_executor(self._workers, install_copy, files)
            except OSError as error:
                self._fail(error)
                raise StoreIOError(f"{files.describe('')}: {error}") from error
            sequences = [sequence for sequence, _ in (*entries, *later)]
            split.moved(folder, sequences, [*places, *later_places], blocks)
            folder.handle = None
            handle.retire()


def _say(task: asyncio.Task[None]) -> None:
    """Nobody waits for the compaction any more."""
    error = None if task.cancelled() else task.exception()
    if error is not None:
        logger.warning("a destination cannot be compacted error=%s", error)
