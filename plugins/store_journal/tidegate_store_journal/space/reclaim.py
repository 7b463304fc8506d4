"""Reclaims data files of the journal: removes or pools dead ones, after emptying sparse ones.

The maintenance task runs the rounds. Anyone who needs a data file asks :meth:`Reclaim.reclaim`
before a new one is made, so the disk grows only when there is nothing to reclaim.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Container
from dataclasses import dataclass
from typing import Final

from tidegate.spi import Progress
from tidegate_store_journal.checkpoint.checkpoint import Checkpointer
from tidegate_store_journal.index.index import Index
from tidegate_store_journal.log.datafile import DataFile
from tidegate_store_journal.log.files import DataFiles, Reclaimer
from tidegate_store_journal.log.room import RoomWatch
from tidegate_store_journal.options import JournalOptions
from tidegate_store_journal.space.compact import Compactor
from tidegate_store_journal.write.append import Appender

logger = logging.getLogger("tidegate.store.journal")

#: Share of the current data file. Once this much is written, compaction makes no more pauses.
_URGENT_SHARE: Final = 0.7
#: While less than this is alive in all files together, even less is in the emptiest one.
_ALWAYS_GAINS_PERCENT: Final = 33
#: While room is wanted: less than this is alive in all files together, of which there are at least this many. Above it
#: six copies get one file back.
_CROWDED_PERCENT: Final = 85
_CROWDED_FILES_MIN: Final = 2


def choose(
    files: DataFiles,
    index: Index,
    tail: DataFile | None,
    *,
    min_files: int,
    percentage: int,
    unfit: Container[int] = (),
) -> DataFile | None:
    """The file to compact next, the one with the lowest share of live bytes; None: not now.

    Two rules; either is enough, and *min_files* or *percentage* 0 turns both off:

    - Artemis: at least *min_files* files are used, and less than *percentage* of them is alive.
    - The bound: all data files together are more than 3 times the live bytes and 4 files. (The
      four: the current one, two spares, and one that is being emptied.)
    """
    if not min_files or not percentage:
        return None
    used = files.used()
    live = sum(index.live_bytes(file.file_id) for file in used)
    used_bytes = sum(file.length for file in used)
    old_bytes = sum(file.length for file in used if file is not tail)
    is_sparse = len(used) >= min_files and live * 100 < used_bytes * percentage
    if not is_sparse and old_bytes <= 3 * live + files.file_length:
        return None
    fit = (file for file in emptiest_first(files, index, tail) if file.file_id not in unfit)
    return next(fit, None)


def emptiest_first(files: DataFiles, index: Index, tail: DataFile | None) -> list[DataFile]:
    """The data files with live records, without *tail*."""

    def share(file: DataFile) -> tuple[float, int]:
        return index.live_bytes(file.file_id) / file.length, file.first_batch

    living = [f for f in files.used() if f is not tail and index.references_to(f.file_id)]
    return sorted(living, key=share)


@dataclass(eq=False)
class Reclaim(Reclaimer):
    """See the module, and ``files.Reclaimer``. All methods are for the event loop.

    While room is crowded, publishes are refused, or soon will be: anything that can be got back is worth
    its copies.
    """

    index: Index
    files: DataFiles
    appender: Appender
    checkpointer: Checkpointer
    compactor: Compactor
    options: JournalOptions
    room: RoomWatch

    def __post_init__(self) -> None:
        self._lock = asyncio.Lock()  # one file is emptied at a time
        self._waiting: list[asyncio.Future[None]] = []
        self._unfit: set[int] = set()  # files that could not be emptied
        self._packed: dict[int, int] = {}  # live bytes of files with copies, when first seen
        self._is_closed = self._has_failed = False
        self.is_wanted = False
        self.victim: DataFile | None = None  # the file being emptied

    def reclaim(self) -> bool:
        """See ``files.Reclaimer``."""
        if self._is_closed or self._has_failed or self.appender.failure is not None:
            return False
        if not self.is_wanted:
            if not self.checkpointer.has_dead() and self._choose() is None:
                return False
            self.is_wanted = True
            self.room.event.set()  # the maintenance task runs a round soon
        return True

    def holds(self, room_left: int) -> bool:
        """See ``files.Reclaimer``."""
        # Only while a round is running: otherwise nothing would wake the waiters.
        if not self.is_wanted or self.victim is None:
            return False
        return room_left < self.compactor.room_needed(self.victim)

    async def until_reclaimed(self) -> None:
        """See ``files.Reclaimer``."""
        if self._is_closed or not self.is_wanted:
            return
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        await waiting

    def retry(self) -> None:
        """Allow what failed to be tried again: something may have changed."""
        self._unfit.clear()
        self._has_failed = False

    async def run(self) -> None:
        """One round: remove or pool dead files, empty at most one, and remove or pool that too.

        Raises: OSError, StoreError.
        """
        try:
            async with self._lock:
                await self._put_away()
                victim = self._choose()
                if victim is not None:
                    await self._empty(victim)
                    await self._put_away()
        except BaseException:
            self._has_failed = True  # until the next cleanup: new files are made meanwhile
            raise
        finally:
            self._finish()
        # There may be more to do; the maintenance task looks at its clock in between.
        self.reclaim()

    async def _empty(self, victim: DataFile) -> None:
        self.victim = victim
        try:
            if not await self.compactor.compact(
                victim, is_urgent=self._is_urgent, is_stopped=lambda: self._is_closed
            ):
                self._unfit.add(victim.file_id)
        finally:
            self.victim = None

    async def _put_away(self) -> None:
        if self.checkpointer.has_dead():
            await self.checkpointer.run(cleanup=True)

    async def empty_all(self, percentage: int, progress: Progress) -> int:
        """Empty every data file of which less than *percentage* is alive, the emptiest first.

        For a store that nobody else works with. Returns: data files put away.
        Raises: OSError, StoreError.
        """
        async with self._lock:
            put_away = await self.checkpointer.run(cleanup=True, force=True)
            victims = [
                file
                for file in emptiest_first(self.files, self.index, self.appender.tail.file)
                if self.index.live_bytes(file.file_id) * 100 < percentage * file.length
            ]
            for done, file in enumerate(victims):
                progress("compacting data files", done, len(victims))
                if not await self.compactor.compact(file):
                    logger.warning("a data file could not be emptied name=%s", file.name)
                put_away += await self.checkpointer.run(cleanup=True)
            progress("compacting data files", len(victims), len(victims))
            return put_away

    def _is_urgent(self) -> bool:
        """Whether somebody waits for a file, or soon will, or the copies may need one themselves."""
        if not self.files.spare_count:
            return True  # at the end of the current file the copies would make the disk grow
        tail = self.appender.tail
        is_nearly_full = tail.file is not None and tail.offset > _URGENT_SHARE * tail.file.length
        return bool(self._waiting) or (is_nearly_full and self.files.spare_count < 2)

    def _choose(self) -> DataFile | None:
        return choose(
            self.files,
            self.index,
            self.appender.tail.file,
            min_files=min(self.options.journal_compact_min_files, _CROWDED_FILES_MIN)
            if self.room.is_crowded
            else self.options.journal_compact_min_files,
            percentage=self._percentage(),
            unfit=self._unfit | self._settled(),
        )

    def _percentage(self) -> int:
        percentage = self.options.journal_compact_percentage
        is_more = percentage and self.room.is_crowded
        return max(percentage, _CROWDED_PERCENT) if is_more else percentage

    def _settled(self) -> set[int]:
        """Files with copies in which nothing has died since: copying again gains nothing.

        Two files that are alive to less than a third always fit into one. Above that, with large
        messages, they may not, and rounds of copies would never end while writers wait for them.
        """
        if self._percentage() <= _ALWAYS_GAINS_PERCENT:
            return set()
        settled: set[int] = set()
        packed: dict[int, int] = {}
        for file in self.files.used():
            use = self.index.files.get(file.file_id)
            if use is None or not use.copied_from or file is self.appender.tail.file:
                continue
            before = packed[file.file_id] = self._packed.get(file.file_id, use.live_bytes)
            if use.live_bytes >= before and 3 * use.live_bytes >= file.length:
                settled.add(file.file_id)
        self._packed = packed
        return settled

    def _finish(self) -> None:
        self.is_wanted = False
        self.files.reclaimed(for_good=self._is_closed)
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()

    def close(self) -> None:
        """Release all waiters."""
        self._is_closed = True
        self._finish()
