"""Rows of the acknowledged log that are not in memory: fetched for whoever needs them, and sent back.

For the event loop; the metadata store is read in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Generator
from concurrent.futures import Executor
from contextlib import contextmanager

from tidegate.spi import StoreIOError
from tidegate_store_journal.checkpoint.metadata import Metadata, MetadataError
from tidegate_store_journal.index.acklog import AckLog, AckPage


class Rows:
    """See the module. All raise StoreIOError, OSError; cancellation is safe."""

    def __init__(self, log: AckLog, metadata: Metadata, executor: Executor) -> None:
        self._log = log
        self._metadata = metadata
        self._executor = executor
        self._has_store = metadata.is_kept

    async def at(self, row: int) -> None:
        """Return when the row (and those of its page) is in memory, if it is there at all."""
        while (page := self._log.page_with(row)) is not None:
            await self._page_in(page)

    async def of_files(self, file_ids: Callable[[], Collection[int]]) -> None:
        """Return when all rows are in memory whose messages are in any of these files by then."""
        while (page := self._log.page_of_files(file_ids())) is not None:
            await self._page_in(page)

    async def _page_in(self, page: AckPage) -> None:
        loop = asyncio.get_running_loop()
        try:
            blocks = await loop.run_in_executor(self._executor, self._metadata.acknowledged, page)
        except MetadataError as error:
            raise StoreIOError(
                f"rows of the acknowledged log cannot be read: {error}. Restart the gateway: the "
                "metadata store is rebuilt then"
            ) from error
        self._log.page_in(page, blocks)

    async def page_out(self) -> None:
        """A checkpoint was written: forget what need not be in memory, a bit at a time."""
        if self._has_store:
            for _ in iter(self._log.page_out, False):
                await asyncio.sleep(0)

    @contextmanager
    def pinned(self) -> Generator[None]:
        """What is in memory or comes there stays for the length of a ``with`` block."""
        self._log.pins += 1
        try:
            yield
        finally:
            self._log.pins -= 1
