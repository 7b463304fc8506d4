"""What goes on beside the writing of the per-destination layout: room is given back to the disk."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor

from tidegate.spi import StoreError, StoreFullError, StoreIOError
from tidegate_store_journal import _records
from tidegate_store_journal._files import FULL_ERRNOS
from tidegate_store_journal._folders import Folders
from tidegate_store_journal._index import Index
from tidegate_store_journal._recordfolder import RecordFolder
from tidegate_store_journal._split import Split
from tidegate_store_journal._splitcompact import install_copy, write_copy

logger = logging.getLogger("tidegate.store.journal")


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
        bytes_min: int,
        percentage: int,
    ) -> None:
        """A record file above *bytes_min* of which less than *percentage* lives is compacted;
        0: none is. *fail*: nobody knows any more what is on disk."""
        self._split = split
        self._folders = folders
        self._index = index
        self._workers = workers
        self._fail = fail
        self._bytes_min = bytes_min
        self._percentage = percentage
        self._task: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    def start(self, interval: float) -> None:
        """Tidy up every *interval* seconds."""
        if self._split.is_active:
            self._task = asyncio.get_running_loop().create_task(self._run(interval))

    async def close(self) -> None:
        """Stop after what is under way. Idempotent."""
        self._closing.set()
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
                logger.warning("a destination cannot be compacted error=%s", error)

    async def tidy(self) -> None:
        """Free what can be freed, compact, and remove directories of destinations that are gone.

        Raises: OSError, StoreError.
        """
        async with self._split.lock:
            self._split.collect()
        percentage = self._percentage
        for folder in self._split.folders():
            if self._closing.is_set():
                return
            live = folder.live_blocks * _records.BLOCK_BYTES
            if not folder.messages and folder.header.destination not in self._index.destinations:
                await self._remove(folder)
            elif (
                percentage
                and folder.record_file_bytes > self._bytes_min
                and live * 100 < percentage * folder.record_file_bytes
            ):
                await self.compact(folder.header.destination)

    async def _remove(self, folder: RecordFolder) -> None:
        split = self._split
        async with split.lock:
            await split.until_idle()
            if folder.messages or split.is_reading:
                return
            split.forget(folder)
            await asyncio.get_running_loop().run_in_executor(
                self._workers, self._folders.remove, folder.name
            )

    async def compact(self, destination: str) -> None:
        """Write the record file of *destination* again without the room in it.

        Writes to all destinations wait meanwhile, reads do not.
        Raises: CorruptRecordError; StoreFullError; StoreIOError, when the store is read-only.
        Cancellation: safe; it goes on.
        """
        task = asyncio.get_running_loop().create_task(self._compact(destination))
        await asyncio.shield(task)

    async def _compact(self, destination: str) -> None:
        loop = asyncio.get_running_loop()
        split = self._split
        async with split.lock:
            await split.until_idle()
            split.collect()
            folder = split.folder_of(destination)
            if folder is None:
                return
            # Open until the end: under the name is the new file before the places are changed.
            handle = folder.borrow()
            try:
                entries = sorted(split.entries_of(folder), key=lambda item: item[1].number)
                places, blocks = await loop.run_in_executor(
                    self._workers, write_copy, folder.files, folder.header, entries
                )
                try:
                    await loop.run_in_executor(self._workers, install_copy, folder.files)
                except OSError as error:
                    self._fail(error)
                    raise StoreIOError(f"{folder.files.describe('')}: {error}") from error
                split.moved(folder, [sequence for sequence, _ in entries], places, blocks)
                folder.handle = None
                handle.retire()
            except OSError as error:
                if error.errno in FULL_ERRNOS:
                    raise StoreFullError(f"no room to compact {destination}: {error}") from error
                raise StoreIOError(f"{folder.files.describe('')}: {error}") from error
            finally:
                handle.give_back()
