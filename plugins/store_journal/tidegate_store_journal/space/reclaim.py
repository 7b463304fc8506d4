"""Getting data files back: dead ones are put away, sparse ones are compacted first.

Rounds are run by the maintenance task. Who needs a data file asks :meth:`Reclaim.reclaim` before a
new one is made, so the disk grows only when there is nothing to get back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from tidegate_store_journal.checkpoint.checkpoint import Checkpointer
from tidegate_store_journal.index.index import Index
from tidegate_store_journal.index.reader import Reader
from tidegate_store_journal.log.datafile import DataFile
from tidegate_store_journal.log.files import DataFiles, Reclaimer
from tidegate_store_journal.space.compact import Compactor, choose
from tidegate_store_journal.write.append import Appender

#: Of the current data file. When this much is written, compaction makes no pauses any more.
_URGENT_SHARE: Final = 0.7
#: While less than this is alive in all files together, less is in the emptiest one.
_ALWAYS_GAINS_PERCENT: Final = 33


class Reclaim(Reclaimer):
    """See the module, and ``_files.Reclaimer``. All methods are for the event loop."""

    def __init__(
        self,
        index: Index,
        files: DataFiles,
        reader: Reader,
        appender: Appender,
        checkpointer: Checkpointer,
        *,
        min_files: int,
        percentage: int,
        wake: Callable[[], None],
    ) -> None:
        """*wake* makes the maintenance task call :meth:`run` soon."""
        self._index = index
        self._files = files
        self._appender = appender
        self._checkpointer = checkpointer
        self._min_files = min_files
        self._percentage = percentage
        self._wake = wake
        self._waiting: list[asyncio.Future[None]] = []
        self._unfit: set[int] = set()  # files that could not be emptied
        self._packed: dict[int, int] = {}  # live bytes of files with copies, when first seen
        self._is_closed = False
        self._has_failed = False
        self.is_wanted = False
        self.compactor = Compactor(
            index,
            files,
            reader,
            appender,
            checkpointer.rows,
            is_urgent=self._is_urgent,
            is_stopped=lambda: self._is_closed,
        )

    def reclaim(self) -> bool:
        """See ``_files.Reclaimer``."""
        if self._is_closed or self._has_failed or self._appender.failure is not None:
            return False
        if not self.is_wanted:
            if not self._checkpointer.has_dead() and self._choose() is None:
                return False
            self.is_wanted = True
            self._wake()
        return True

    def holds(self, room_left: int) -> bool:
        """See ``_files.Reclaimer``."""
        # Only while a round is under way: else nobody would wake those who wait.
        is_compacting = self.is_wanted and self.compactor.victim is not None
        return is_compacting and room_left < self.compactor.room_needed()

    async def until_reclaimed(self) -> None:
        """See ``_files.Reclaimer``."""
        if self._is_closed or not self.is_wanted:
            return
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        await waiting

    def retry(self) -> None:
        """What could not be done may be tried again: something may have changed."""
        self._unfit.clear()
        self._has_failed = False

    async def run(self) -> None:
        """One round: put dead files away, empty at most one, and put that away too.

        Raises: OSError, StoreError.
        """
        try:
            if self._checkpointer.has_dead():
                await self._checkpointer.run(cleanup=True)
            victim = self._choose()
            if victim is not None:
                if not await self.compactor.compact(victim):
                    self._unfit.add(victim.file_id)
                if self._checkpointer.has_dead():
                    await self._checkpointer.run(cleanup=True)
        except BaseException:
            self._has_failed = True  # until the next cleanup: new files are made meanwhile
            raise
        finally:
            self._finish()
        # There may be more to do; the maintenance task looks at its clock in between.
        self.reclaim()

    def _is_urgent(self) -> bool:
        """Somebody waits for a file, or soon will, or what is copied may need one itself."""
        if not self._files.spare_count:
            return True  # at the end of the current file the copies would make the disk grow
        tail = self._appender.tail
        is_nearly_full = tail.file is not None and tail.offset > _URGENT_SHARE * tail.file.length
        return bool(self._waiting) or (is_nearly_full and self._files.spare_count < 2)

    def _choose(self) -> DataFile | None:
        return choose(
            self._files,
            self._index,
            self._appender.tail.file,
            min_files=self._min_files,
            percentage=self._percentage,
            unfit=frozenset(self._unfit | self._settled()),
        )

    def _settled(self) -> set[int]:
        """Files with copies in which nothing has died since: copying once more gains nothing.

        Two files that are alive to less than a third always fit into one. Above that, with large
        messages, they may not, and rounds of copies would never end while writers wait for them.
        """
        if self._percentage <= _ALWAYS_GAINS_PERCENT:
            return set()
        settled: set[int] = set()
        packed: dict[int, int] = {}
        for file in self._files.used():
            use = self._index.files.get(file.file_id)
            if use is None or not use.copied_from or file is self._appender.tail.file:
                continue
            before = packed[file.file_id] = self._packed.get(file.file_id, use.live_bytes)
            if use.live_bytes >= before and 3 * use.live_bytes >= file.length:
                settled.add(file.file_id)
        self._packed = packed
        return settled

    def _finish(self) -> None:
        self.is_wanted = False
        self._files.reclaimed(for_good=self._is_closed)
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()

    def close(self) -> None:
        """Nobody needs to wait any more."""
        self._is_closed = True
        self._finish()
