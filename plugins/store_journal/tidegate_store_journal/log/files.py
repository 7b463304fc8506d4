"""The journal's data files: which exist, which comes next, and preparing new ones in advance.

A thread prepares files while the current one fills: from the *pool* of dead files, which takes one
small write, or else from scratch (allocated, padded, synced). A prepared file is a *spare*. The
last spare is a reserve: while no other can be made, only batches that do not grow the store may
start it, so that acknowledgements still work on a full disk and make room. All methods are for the
event loop unless they say otherwise.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from functools import partial

from tidegate.spi import StoreClosedError, StoreError, store_error
from tidegate_store_journal.log import format as _format
from tidegate_store_journal.log.datafile import DataFile, prepare
from tidegate_store_journal.log.homes import SPARES_MAX, Homes
from tidegate_store_journal.log.storage import FULL_ERRNOS, Storage
from tidegate_store_journal.options import JournalOptions

logger = logging.getLogger("tidegate.store.journal")


class Reclaimer:
    """Turns used files into dead ones; this base class never does."""

    def reclaim(self) -> bool:
        """Start, unless already running. Returns: False when there is nothing to reclaim."""
        return False

    def holds(self, room_left: int) -> bool:
        """Whether the copies need more than *room_left* bytes of the current file."""
        return False

    async def until_reclaimed(self) -> None:
        """Wait until it is no longer running."""


class DataFiles(Homes):
    """See the module."""

    def __init__(
        self,
        storage: Storage,
        executor: Executor,
        options: JournalOptions,
        *,
        store_id: str,
        free_limit: int = 0,
    ) -> None:
        """*free_limit*: bytes that a new file must leave free on the disk."""
        super().__init__(storage, executor, options)
        self._store_id = store_id
        self._free_limit = free_limit
        self._next_id = 1
        self._taken: DataFile | None = None  # its first batch is being written
        self._preparing: asyncio.Task[None] | None = None
        self._prepare_error: OSError | None = None
        self._is_failing = False
        self._is_half_used = False
        self._is_waiting_for_dead = False
        self._closed = False
        #: The current file has large batches, so new files are not padded: that would double the
        #: bytes to write. Padding only saves the metadata update when a sync covers newly used
        #: blocks, which is little beside a large batch.
        self.has_large_batches = False
        self.reclaimer = Reclaimer()
        self.on_full: Callable[[], None] = lambda: None

    # --------------------------------------------------------------------------- contents

    def adopt(
        self,
        files: Iterable[DataFile],
        spares: Iterable[DataFile],
        pool: Iterable[str],
        next_id: int,
    ) -> None:
        """Start from the journal's files that recovery found; spares and pool have usual length."""
        self._spares.extend(spares)
        for file in (*files, *self._spares):
            self.add(file)
        self.own.pool.extend((name, self.file_length) for name in pool)
        self._next_id = next_id

    def __len__(self) -> int:
        return len(self.own.files)

    @property
    def spare_count(self) -> int:
        """Spares: prepared and unused files."""
        return len(self._spares)

    @property
    def pool_bytes(self) -> int:
        """Bytes of dead files to be reused."""
        return sum(length for _, length in self.own.pool)

    @property
    def has_room(self) -> bool:
        """Whether another file is available without the reserve, as far as we know."""
        return len(self._spares) > 1 or bool(self.own.pool) or not self._is_failing

    @property
    def file_length(self) -> int:
        """Bytes of an ordinary file."""
        return self._options.file_length

    # ------------------------------------------------------------------------ next files

    async def take(self, length: int, *, grows: bool, waits: bool = True) -> DataFile | None:
        """A file for a batch that needs *length* bytes in all.

        *grows*: the batch grows the store, so it must not use the reserve.
        One at a time: follow it by :meth:`begun` or :meth:`put_back`.
        Returns: None when none is ready: see :meth:`make_ready`.
        Raises: StoreFullError; StoreIOError.
        """
        if length > self.file_length:
            self._taken = await self._prepare_special(length)
            return self._taken
        if self._spares and len(self._spares) > self._reserve(grows=grows, waits=waits):
            file = self._spares[0]
            if file.handle is None:
                try:
                    file.handle = self.open(file)
                except OSError as error:
                    raise store_error("cannot open a data file", error) from error
            self._taken = self._spares.popleft()
            return file
        return None

    def _reserve(self, *, grows: bool, waits: bool) -> int:
        """Spares not to use. During reclaiming the last one is for the reclaimer."""
        is_kept = grows or (waits and len(self._spares) == 1 and self.reclaimer.reclaim())
        return 1 if is_kept else 0

    def holds(self, room_left: int) -> bool:
        """Whether a batch that leaves *room_left* bytes of the file must wait for the reclaimer.

        With no other file available the rest of this one is for the copies: if writers filled it,
        compaction would need one more file.
        """
        return not self._spares and not self.own.pool and self.reclaimer.holds(room_left)

    async def make_ready(self, *, grows: bool, waits: bool) -> None:
        """Return when :meth:`take` may have a file, or another batch has started one.

        The caller must let other batches pass in the meantime, because the reclaimer may have to write.
        *waits*: False when the reclaimer itself asks. Raises: StoreFullError; StoreIOError.
        """
        self._prepare_error = None
        while True:
            if self._preparing is not None:
                # shield: the file is still wanted if the waiting writer is cancelled.
                await asyncio.shield(self._preparing)
            if self._closed:
                raise StoreClosedError("the store was closed")
            if self._taken is not None:
                return  # it has room for this batch too: one more would be one too many
            if len(self._spares) > self._reserve(grows=grows, waits=waits):
                return
            error = self._prepare_error
            if error is not None and grows:
                raise self._unprepared(error, self.file_length)
            if waits and not self.own.pool and self.reclaimer.reclaim():
                # Files that are dead, or soon will be, are ready sooner than one that must be
                # padded, and the disk does not grow. A full disk has no other room: a batch that
                # makes some is not refused because a file wanted in advance could not be made.
                self._prepare_error = None
                await self.reclaimer.until_reclaimed()
            elif error is not None:
                raise self._unprepared(error, self.file_length)
            elif self._preparing is None:
                self._prepare_in_background(is_needed=True, waits=waits)

    def _unprepared(self, error: OSError, length: int) -> StoreError:
        """The error for a batch that cannot get a file."""
        if error.errno not in FULL_ERRNOS:
            return store_error("cannot make a data file", error)
        self.on_full()
        return store_error(f"no room for another data file of {length} bytes", error)

    def put_back(self, file: DataFile) -> None:
        """Return a taken file that was not started after all."""
        self._taken = None
        if file.length == self.file_length:
            self._spares.appendleft(file)
        else:
            # Made for one large batch that was cancelled: it would only take room.
            self.forget(file)
            self._executor.submit(self._storage.unlink, file.name)

    def begun(self) -> None:
        """The taken file is the current one now."""
        self._taken = None

    def _wanted(self) -> int:
        """How many spares to keep: the reserve, and one more when it is soon needed.

        Every decision to make a file asks here, when it is made. A taken file counts as the one
        soon needed until it is started, because until then the file before it does not count as
        reclaimable.
        """
        used = len(self) - len(self._spares)
        is_soon_needed = self._is_half_used and self._taken is None
        return max(SPARES_MAX if is_soon_needed else 1, self._options.journal_min_files - used)

    def refill(self, *, half_used: bool) -> None:
        """Prepare as many spares as are wanted, in the background."""
        self._is_half_used = half_used
        if self._preparing is not None or self._closed:
            return
        if not half_used and not self.own.pool and len(self._spares) < SPARES_MAX:
            self.reclaimer.reclaim()  # a whole file ahead of need, so there is no hurry
        if len(self._spares) >= self._wanted() or self._can_wait_for_dead():
            return
        self._prepare_error = None
        self._prepare_in_background(is_needed=False, waits=True)

    def _can_wait_for_dead(self) -> bool:
        """Whether to wait: the next file would need padding, and one will be reclaimed in time."""
        if self.own.pool:
            return False
        if not self._is_waiting_for_dead:
            self._is_waiting_for_dead = self.reclaimer.reclaim()
        return self._is_waiting_for_dead

    def reclaimed(self, *, for_good: bool) -> None:
        """The reclaimer has paused, or is done *for_good*: prepare what was put off."""
        self._is_waiting_for_dead = False
        if not for_good:
            self.refill(half_used=self._is_half_used)

    def _prepare_in_background(self, *, is_needed: bool, waits: bool) -> None:
        self._preparing = asyncio.get_running_loop().create_task(
            self._prepare_wanted(is_needed=is_needed, waits=waits)
        )

    async def _prepare_wanted(self, *, is_needed: bool, waits: bool) -> None:
        """*is_needed*: the first one is, whatever is wanted.

        *waits*: no new file while one can be got back. False: the first in any case.
        """
        try:
            while (is_needed or len(self._spares) < self._wanted()) and not self._closed:
                if waits and self._can_wait_for_dead():
                    break
                is_needed, waits = False, True
                if self._spares and not self.own.pool and not await self._has_room():
                    where = self._storage.describe("")
                    raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: {where}")
                self._spares.append(await self._prepare(self.file_length))
                self._is_failing = False
        except OSError as error:
            self._prepare_error = error
            if not self._is_failing:
                self._is_failing = True  # log it once, not at every refused batch
                logger.warning("cannot prepare a data file error=%s", error)
        finally:
            self._preparing = None

    async def _has_room(self) -> bool:
        """Whether another file leaves at least the configured room free."""
        loop = asyncio.get_running_loop()
        free = await loop.run_in_executor(self._executor, self._storage.free_bytes)
        return free - self.file_length >= self._free_limit

    def new_id(self) -> int:
        """An id for a new data file, wherever. Raises: OSError."""
        file_id = self._next_id
        if file_id > _format.FILE_ID_MAX:
            raise OSError(errno.ENOSPC, "all file ids are used up")
        self._next_id += 1
        return file_id

    async def _prepare(self, length: int, *, pad: bool = True) -> DataFile:
        loop = asyncio.get_running_loop()
        pad = pad and self._storage.durable and not self.has_large_batches
        while True:
            file_id = self.new_id()
            make = partial(prepare, pad=pad)
            if length == self.file_length and self.own.pool:
                make = partial(prepare, free=self.own.pool.popleft()[0])
            self._making.append(length)
            try:
                file = await loop.run_in_executor(
                    self._executor, make, self._storage, self._store_id, file_id, length
                )
            except OSError as error:
                if not self.gives_up_handles(error):
                    raise
            else:
                self.add(file)
                return file
            finally:
                self._making.remove(length)

    async def _prepare_special(self, length: int) -> DataFile:
        """A file for one large batch. Not padded: the batch fills it at once."""
        try:
            return await self._prepare(length, pad=False)
        except OSError as error:
            raise self._unprepared(error, length) from error

    async def part_with_one(self) -> bool:
        """Delete a file that would be reused, but not the last one, which is the reserve.

        Returns: False when there is no such file. Raises: OSError.
        """
        if self.own.pool and len(self._spares) + len(self.own.pool) > 1:
            name, _ = self.own.pool.pop()
        elif len(self._spares) > 1:
            file = self._spares.pop()
            self.forget(file)
            name = file.name
        else:
            return False
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._executor, self._storage.unlink, name)
        return True

    async def close(self) -> None:
        """Wait for a file that is being prepared, and close all. Idempotent."""
        self._closed = True
        if self._preparing is not None:
            await self._preparing
        for file in self._files.values():
            file.close()
