"""The parts of a journal store and its life cycle: opened once, closed once.

:class:`tidegate_store_journal.store.JournalStore` is the contract on top of it. The work is in the
folders: ``start`` reads what is there, ``write`` appends, ``index`` tracks what is pending where,
``checkpoint`` saves that, ``space`` frees room, ``bodies`` has directories of destinations and
large bodies, all on top of the files of ``log``.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from operator import itemgetter
from pathlib import Path
from typing import Final

from tidegate.spi import (
    ClearRetained,
    CorruptRecordError,
    Operation,
    RecoveredState,
    StoreClosedError,
    StoreContext,
    StoreError,
    StoreFullError,
    StoreIOError,
    StoreLockedError,
    SyncedFor,
    format_size,
)
from tidegate.spi.machine.lock_file import LockFile
from tidegate_store_journal.assembly import (
    claim,
    keeps_orphans,
    large_storage_of,
    make_metadata,
    make_storage,
)
from tidegate_store_journal.bodies.folders import FOLDERS_NAME
from tidegate_store_journal.bodies.large import LARGE_THREADS, READING_THREADS, LargeFiles
from tidegate_store_journal.bodies.series import Series
from tidegate_store_journal.checkpoint.bindings import Bindings
from tidegate_store_journal.checkpoint.checkpoint import Checkpointer
from tidegate_store_journal.checkpoint.marker import seal_marker
from tidegate_store_journal.checks import check
from tidegate_store_journal.index.effects import AddReference
from tidegate_store_journal.index.index import Index
from tidegate_store_journal.index.reader import Reader
from tidegate_store_journal.log.datafile import Tail
from tidegate_store_journal.log.files import FULL_ERRNOS, DataFiles
from tidegate_store_journal.log.format import DATA_OFFSET, FILE_SHIFT
from tidegate_store_journal.log.room import RoomWatch
from tidegate_store_journal.log.storage import DirectoryStorage, Storage
from tidegate_store_journal.options import JournalOptions
from tidegate_store_journal.space.compact import Compactor
from tidegate_store_journal.space.maintenance import Maintenance
from tidegate_store_journal.space.reclaim import Reclaim
from tidegate_store_journal.space.tidy import Tidy
from tidegate_store_journal.start.losses import Losses, Lost, find_unreadable
from tidegate_store_journal.start.recovery import recover, recovered_state
from tidegate_store_journal.start.replay import ADVICE, Replay
from tidegate_store_journal.start.takeover import copy_metadata, leave_behind
from tidegate_store_journal.write.append import Appender
from tidegate_store_journal.write.buffer import TimedBuffer
from tidegate_store_journal.write.encode import encoding
from tidegate_store_journal.write.ring import make_writer

logger = logging.getLogger("tidegate.store.journal")

#: Threads that read pages: reads are short; two keep one slow read from blocking all lists.
_READER_THREADS: Final = 2
#: How often a standby checks the lock.
_LOOK_SECONDS: Final = 0.25
#: Pause between two parts of a dropped list's contents.
_DROP_PAUSE_SECONDS: Final = 0.001
#: Threads that prepare files and write checkpoints: one must not wait for the other.
_WORKER_THREADS: Final = 2


class Engine:
    """See the module. All methods are for the event loop."""

    def __init__(
        self,
        context: StoreContext,
        options: JournalOptions,
        storage: Storage | None = None,
        large_storage: Storage | None = None,
        *,
        ignored: Sequence[str] = (),
    ) -> None:
        """*storage* replaces the directory that the options name (tests, fault injection), and
        *large_storage* the one of large bodies; a journal that is not on disk has none of those.
        *ignored* are options that have no effect without files, for the warning at the start.

        Raises: ConfigError.
        """
        check(options, persistent=context.persistent)
        self._context = context
        self._options = options
        self._warning = ""  # for the operator, at the start
        if storage is None:
            storage = make_storage(context, options)
            if large_storage is None:
                large_storage = large_storage_of(context, options)
            if not context.persistent:
                self._warning = (
                    "persistent=false: nothing survives the end of this gateway memory_limit="
                    + format_size(options.memory_limit)
                )
                if ignored:
                    self._warning += f" options_without_effect={','.join(ignored)}"
        self._storage = storage
        self._directories = tuple(
            Path(found.describe(""))
            for found in (storage, large_storage)
            if isinstance(found, DirectoryStorage)
        )
        self._large = None
        if large_storage is not None:
            self._large = LargeFiles(large_storage, options, free_limit=context.disk_free_limit)
        self._metadata = make_metadata(options, storage)
        self._synced_for = options.synced_for
        self._syncs_all = self._synced_for == SyncedFor.SINGLE | SyncedFor.TRANSACTION
        self._buffer: TimedBuffer | None = None
        self._bindings: Bindings | None = None
        self._resources = AsyncExitStack()
        self._is_open = False
        self._is_opened_once = False
        self._is_clean = False
        self._giving_way: asyncio.Task[None] | None = None

    async def open(self) -> RecoveredState:
        """See MessageStore."""
        if self._is_opened_once:
            raise StoreClosedError("a journal store is opened only once; make a new one")
        self._is_opened_once = True
        self._loop = asyncio.get_running_loop()
        self._readers = ThreadPoolExecutor(_READER_THREADS, "tidegate-journal-reader")
        self._workers = ThreadPoolExecutor(_WORKER_THREADS, "tidegate-journal-worker")
        self._resources.callback(self._readers.shutdown)
        self._resources.callback(self._workers.shutdown)
        try:
            return await self._open()
        except BaseException as error:
            # Otherwise a later close would wait for a writer that is gone.
            self._is_open = False
            await self._resources.aclose()
            if isinstance(error, OSError | StoreFullError):
                where = self._storage.describe("")
                raise StoreIOError(f"cannot open the journal in {where}: {error}") from error
            raise

    async def close(self) -> None:
        """See MessageStore."""
        if not self._is_open:
            if self._giving_way is not None:
                await asyncio.shield(self._giving_way)
            return
        self._is_open = False
        if self._buffer is not None:
            await self._buffer.close()
        await self._series.until_idle()
        await self._maintenance.close()
        await self._appender.until_landed()
        if self._appender.failure is None:
            try:
                await self._checkpointer.run(cleanup=True, clean=True)
                self._is_clean = True
            except (OSError, StoreError) as error:
                logger.warning("the last checkpoint failed; the next start replays error=%s", error)
        logger.info("closed checkpoints=%d", self._metadata.counters.checkpoints)
        await self._resources.aclose()

    async def _open(self) -> RecoveredState:
        loop, context, options = self._loop, self._context, self._options
        await self._claim()
        self._resources.callback(self._storage.unlock)
        lock = self._lock_file
        if lock is not None:
            lock.keep(options.lock_renew_period, self._lost)
        self._resources.callback(self._seal)  # when LMDB is closed, while the lock is held
        self._resources.callback(self._metadata.close)
        found = await loop.run_in_executor(self._workers, self._recover)
        self._index: Index = found.index
        if self._large is not None:
            found.notes += await self._open_large(self._large, keeps_orphans(options, found))
        # In memory there is no one else to leave room for; its limit is hard enough.
        limits = (context.disk_free_limit, context.store_limit) if self._storage.durable else (0, 0)
        room = RoomWatch(self._storage, self._workers, *limits)
        self._open_files(found, room)
        await self._compose(found, room)
        self._is_open = True
        if self._warning:
            logger.warning(self._warning)
        await self._drop_losses(found)
        await room.look()
        if not room.is_short:
            await self._maintenance.make_reserve()
        self._index.log.pins -= 1
        await self._index.log.page_out()
        self._maintenance.start()
        self._files.reclaimer = self._reclaim
        if lock is not None:
            lock.check()
        return recovered_state(found)

    def _recover(self) -> Replay:
        """Blocks."""
        storage = self._storage
        is_unseen = isinstance(storage, DirectoryStorage) and storage.lock_file.has_followed_unseen
        if is_unseen:
            copy_metadata(storage.metadata_directory)
        found = recover(
            storage,
            self._metadata,
            self._options,
            keep_acknowledged=self._context.keep_acknowledged,
            progress=self._progress,
        )
        if is_unseen:
            leave_behind(found)
        return found

    @property
    def _lock_file(self) -> LockFile | None:
        """The lock of a directory that others wait for, or may be waiting for."""
        storage = self._storage
        is_shared = self._options.stands_by and self._context.may_stand_by
        return storage.lock_file if is_shared and isinstance(storage, DirectoryStorage) else None

    async def _claim(self) -> None:
        """Lock the directory; as a standby, once its owner is gone. Raises: as ``claim``."""
        context, told = self._context, ""
        while True:
            try:
                await self._loop.run_in_executor(
                    self._workers, claim, context, self._options, self._storage
                )
                break
            except StoreLockedError as error:
                if self._lock_file is None:
                    raise
                if error.owner != told:
                    told = error.owner
                    logger.info("standby: waiting for the lock of %s", told)
                    context.stands_by(told)
            await asyncio.sleep(_LOOK_SECONDS)
        if told:
            logger.info("standby: taking over from %s", told)
            context.stands_by("")

    def _lost(self, problem: str) -> None:
        """Another gateway may have taken the directory. From any thread."""

        def give_way() -> None:
            if self._is_open:
                self._maintenance.give_way()
                self._appender.fail(StoreLockedError(problem))
                self._giving_way = self._loop.create_task(self.close())
            self._context.lost(problem)

        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(give_way)

    def _open_files(self, found: Replay, room: RoomWatch) -> None:
        own = (self._storage, self._workers, self._options)
        files = self._files = DataFiles(*own, store_id=found.store_id, free_limit=room.limit_bytes)
        room.reusable = lambda: files.pool_bytes
        files.adopt(found.files, found.spares, found.pool, found.next_file_id)
        self._resources.push_async_callback(files.close)
        files.on_full = room.hurry
        self._reader = Reader(files, self._readers)
        if not self._context.keep_acknowledged:
            self._index.release(self._index.log.last)

    async def _compose(self, found: Replay, room: RoomWatch) -> None:
        """Assemble the parts and start."""
        options, index, files = self._options, self._index, self._files
        tail = Tail(found.tail, found.tail_offset)
        bindings = await self._open_bindings(found) if self._storage.durable else None
        writer = self._writer = make_writer(
            options, self._storage, self._loop, lambda error: self._appender.fail(error)
        )
        writer.start(index.batch)
        self._resources.push_async_callback(writer.close)
        writer.fence = None if self._lock_file is None else self._lock_file.check
        self._appender = Appender(index, files, writer, room, tail, bindings, self._workers)
        self._series = self._make_series(found, room)
        self._resources.push_async_callback(self._series.close)
        self._losses = Losses(
            index,
            self._reader,
            found.report,
            lambda operations: self._write(operations, synced=True),
            self._workers,
            options,
            self._keep_damaged,
        )
        self._checkpointer = Checkpointer(
            self._storage,
            self._metadata,
            index,
            files,
            tail,
            self._workers,
            found.store_id,
            self._sync_all,
            self._appender.until_whole,
            bindings,
            self._large,
        )
        self._make_maintenance(room)
        if options.check_for_corrupt_journal_files:
            found.lost.append(await self._check_directories())
        if tail.file is None:
            await files.make_ready(grows=False, waits=False)
            tail.file = await files.take(DATA_OFFSET, grows=False)
            files.begun()
            tail.offset = DATA_OFFSET
            if index.batch:
                # Writing goes on after missing files: without a batch in this one, the next
                # start would look for the last batch in a file that does not mention it.
                await self._append([ClearRetained("")], synced=True)
        files.refill(half_used=False)
        if not found.is_settled:
            # From here on the checkpoint must not say *clean* any more (format document, section 7).
            await self._checkpointer.run(force=True)
        index.watch_growth(
            options.max_checkpoint_message_add_size,
            self._maintenance.want_checkpoint,
            already=found.replayed if found.is_settled else 0,
        )
        index.large.on_loose = self._maintenance.want_checkpoint
        index.on_dropped = self._give_up_dropped
        if options.journal_buffer_timeout:
            self._buffer = TimedBuffer(
                self._write,
                timeout_seconds=options.journal_buffer_timeout,
                # What has gathered must not need a file of its own size.
                bytes_max=min(options.journal_buffer_size, options.file_length // 4),
            )

    def _disk_bytes(self) -> int:
        large = 0 if self._large is None else self._large.disk_bytes
        large += 0 if self._bindings is None else self._bindings.capacity
        return self._files.disk_bytes + self._metadata.disk_bytes + large

    def _make_maintenance(self, room: RoomWatch) -> None:
        """The parts that free room."""
        options, checkpointer = self._options, self._checkpointer
        index, files, appender, series = self._index, self._files, self._appender, self._series
        compactor = self._compactor = Compactor(index, files, self._reader, appender, series)
        self._reclaim = Reclaim(index, files, appender, checkpointer, compactor, options, room)
        # Either option at 0 turns all of it off, as for the journal's own files.
        percentage = options.journal_compact_min_files and options.journal_compact_percentage
        self._tidy = Tidy(series, index, checkpointer, compactor, percentage)
        room.used = lambda: self._disk_bytes() - self._files.pool_bytes
        self._maintenance = Maintenance(
            options,
            room,
            files,
            checkpointer,
            self._reclaim,
            self._tidy,
            self._workers,
            self._context.tell,
        )

    async def _drop_losses(self, found: Replay) -> None:
        """Handle and report everything that was found to be lost."""
        if found.unsynced:
            why = (
                "a power cut took them before they were synced "
                "(journal_disk_sync_strategy is not 'always')"
            )
            lost, _ = await find_unreadable(self._index, self._reader, found.unsynced, why)
            found.lost.append(lost)
        await self._losses.drop(found.lost)
        if found.report.name or (found.rebuilt and self._options.ignore_missing_journalfiles):
            await self._losses.adopt()
        if found.report.name and not found.rebuilt:
            await self._checkpointer.run(force=True, all_lives=True)
        for note in found.notes:
            logger.warning("recovery: %s", note)
        found.notes += found.report.log()

    async def _open_bindings(self, found: Replay) -> Bindings:
        bindings = self._bindings = Bindings(
            self._storage, found.store_id, self._options.file_length, found.bindings
        )
        self._resources.callback(bindings.close)
        try:
            await self._loop.run_in_executor(self._workers, bindings.prepare)
        except OSError as error:
            if error.errno not in FULL_ERRNOS:
                raise
            logger.warning("no room for the usual files of the bindings error=%s", error)
        return bindings

    def _give_up_dropped(self) -> None:
        """Remove the contents of dropped lists in parts, yielding the loop in between."""
        if self._is_open and self._index.give_up_dropped():
            self._loop.call_later(_DROP_PAUSE_SECONDS, self._give_up_dropped)

    def _seal(self) -> None:
        directory = self._storage.metadata_directory
        if self._is_clean and directory is not None:
            try:
                if self._lock_file is not None:
                    self._lock_file.check()
                seal_marker(self._storage, directory)
            except (OSError, StoreLockedError) as error:
                logger.warning("cannot seal the metadata store error=%s", error)

    def _make_series(self, found: Replay, room: RoomWatch) -> Series:
        """The directories of destinations; with none, a mere pass-through."""
        series = Series(
            self._storage,
            found.elsewhere,
            self._files,
            self._index,
            self._options,
            found.store_id,
            room,
            lambda: self._checkpointer.run(cleanup=True),
            self._appender.fail,
        )
        series.mark_unsynced({place >> FILE_SHIFT for _, place in found.unsynced})
        return series

    async def _check_directories(self) -> Lost:
        """Raises: CorruptRecordError when something is damaged and the policy is *refuse*."""
        index, files = self._index, self._files.elsewhere()
        held = itertools.chain.from_iterable(map(index.held_in, files))
        wanted = sorted({(one.sequence, one.location) for one in held}, key=itemgetter(1))
        why = "their records are damaged"
        lost, where = await find_unreadable(index, self._reader, wanted, why)
        if lost and not self._options.quarantines:
            raise CorruptRecordError(
                f"damaged: {where}. Nothing was changed. {ADVICE}",
                location=self._storage.describe(FOLDERS_NAME),
            )
        return lost

    async def _sync_all(self) -> None:
        """Bodies first: the journal must not be ahead of what it refers to."""
        await self._series.sync()
        await self._appender.sync()

    def _progress(self, what: str, done: int, total: int) -> None:
        """From any thread."""
        self._loop.call_soon_threadsafe(self._context.progress, what, done, total)

    async def _open_large(self, large: LargeFiles, keeps: bool) -> list[str]:
        """Returns: what recovery has to report. Raises: StoreLockedError, OSError."""
        executor = ThreadPoolExecutor(LARGE_THREADS, "tidegate-journal-large")
        self._resources.callback(executor.shutdown)
        reading = ThreadPoolExecutor(READING_THREADS, "tidegate-journal-large-reader")
        self._resources.callback(reading.shutdown)
        self._resources.callback(large.release)
        owner = f"gateway={self._context.gateway_name}"
        notes = await self._loop.run_in_executor(
            executor, large.prepare, owner, self._index.large, keeps
        )
        large.start(executor, reading)
        self._resources.callback(large.stop)
        return notes

    async def _keep_damaged(self, sequence: int) -> str:
        """Keep what is left of a message whose record is damaged; see Losses. Raises: OSError."""
        body = self._index.large.bodies.get(sequence)
        if body is None or self._large is None:
            return ""
        return await self._large.keep_lost(body)

    # ------------------------------------------------------------------------------- writing

    async def _write(self, operations: Sequence[Operation], synced: bool) -> None:
        if operations:
            if self._series.is_active:
                await self._series.write(operations, lambda changed: self._append(changed, synced))
            else:
                await self._append(operations, synced)
        elif synced:
            await self._appender.sync()

    async def _append(self, operations: Sequence[Operation | AddReference], synced: bool) -> None:
        index = self._index
        await self._appender.append(
            lambda file_id, offset: encoding(operations, file_id, offset, index),
            synced=synced,
        )

    def _require_open(self) -> None:
        """Raises: StoreClosedError; StoreIOError after the lock was lost, which closes it, too."""
        if not self._is_open:
            if self._giving_way is not None:
                raise self._appender.failure_error()
            raise StoreClosedError("the journal store is not open")
