"""The journal store: :class:`tidegate.spi.MessageStore` over data files, an index and checkpoints.

This is the contract's surface and the wiring; the work is in ``_append`` (writing), ``_reader``,
``_checkpoint``, ``_maintenance`` and ``_recovery``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from tidegate.spi import (
    AcknowledgedMessage,
    AcknowledgedPage,
    Branch,
    ClearRetained,
    CorruptRecordError,
    DuplicateId,
    Durability,
    LogStatistics,
    Message,
    Operation,
    Progress,
    RecoveredState,
    RemoveSubscription,
    RequestError,
    StoreCapabilities,
    StoreClosedError,
    StoreContext,
    StoredMessage,
    StoreError,
    StoreFullError,
    StoreIOError,
    StoreStatistics,
    SyncedFor,
    WriteBatch,
)
from tidegate_store_journal.bodies.folders import FOLDERS_NAME
from tidegate_store_journal.bodies.large import (
    LARGE_THREADS,
    NO_NEW_BODIES,
    READING_THREADS,
    LargeFiles,
)
from tidegate_store_journal.bodies.series import Series, SeriesPolicy
from tidegate_store_journal.checkpoint.bindings import Bindings
from tidegate_store_journal.checkpoint.checkpoint import Checkpointer
from tidegate_store_journal.checkpoint.marker import seal_marker
from tidegate_store_journal.checkpoint.metadata import (
    LmdbMetadata,
    Metadata,
    MetadataCounters,
)
from tidegate_store_journal.index.acklog import PAGE_ROWS, ROW_BYTES
from tidegate_store_journal.index.effects import AddReference
from tidegate_store_journal.index.index import Index
from tidegate_store_journal.index.reader import Reader
from tidegate_store_journal.log.files import FULL_ERRNOS, DataFiles, FilePolicy
from tidegate_store_journal.log.format import DATA_OFFSET, FILE_SHIFT
from tidegate_store_journal.log.memory import MemoryStorage
from tidegate_store_journal.log.names import NamedStorage
from tidegate_store_journal.log.storage import DirectoryStorage, Storage
from tidegate_store_journal.options import (
    ALWAYS,
    NEVER,
    PERIODIC,
    QUARANTINE,
    JournalOptions,
    check,
)
from tidegate_store_journal.presets import (
    directory_of,
    refuse_other_journal,
    require_directory,
)
from tidegate_store_journal.space.compact import compact_files
from tidegate_store_journal.space.maintenance import Maintenance, RoomWatch
from tidegate_store_journal.space.reclaim import Reclaim
from tidegate_store_journal.space.tidy import DestinationCompaction, Tidy
from tidegate_store_journal.start import recovery as _recovery
from tidegate_store_journal.start.losses import Losses, Lost, check_messages, lost_in_power_cut
from tidegate_store_journal.start.opening import recovered_state, usable_pool, usable_spares
from tidegate_store_journal.start.recovery import ADVICE, Recovered
from tidegate_store_journal.write.append import Appender, Tail
from tidegate_store_journal.write.buffer import TimedBuffer
from tidegate_store_journal.write.encode import encode_batch
from tidegate_store_journal.write.journaltypes import make_writer, open_directory
from tidegate_store_journal.write.writer import BatchWriter

logger = logging.getLogger("tidegate.store.journal")

#: Threads that read pages: reads are short; two keep one slow read from blocking all lists.
_READER_THREADS: Final = 2
#: Between two parts of what a dropped list held.
_DROP_PAUSE_SECONDS: Final = 0.001
#: Threads that prepare files and write checkpoints: one must not wait for the other.
_WORKER_THREADS: Final = 2


class JournalStore:
    """See the module and the contract. One instance is opened once."""

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
        directory = directory_of(context, options.directory)
        if storage is None and context.persistent and large_storage is None:
            large_directory = directory / Path(options.large_messages_directory)
            # Switched off, those that are there still have to be delivered.
            if options.large_message_min_size or large_directory.is_dir():
                large_storage = DirectoryStorage(large_directory)
        self._large: LargeFiles | None = None
        if large_storage is not None:
            self._large = LargeFiles(
                large_storage,
                size_min=options.large_message_min_size or NO_NEW_BODIES,
                free_limit_bytes=options.disk_free_limit,
                syncs=options.sync_strategy != NEVER,
            )
        if storage is None:
            if context.persistent:
                storage = open_directory(options, directory)
            else:
                storage = MemoryStorage(options.memory_limit)
                self._warning = (
                    "persistent=false: nothing survives the end of this gateway memory_limit="
                    + storage.limit
                )
                if ignored:
                    self._warning += f" options_without_effect={','.join(ignored)}"
        self._storage = storage
        metadata_directory = storage.metadata_directory
        self._metadata: Metadata = Metadata()
        if metadata_directory is not None:
            self._metadata = LmdbMetadata(metadata_directory)
            if not options.persistent_index:
                self._metadata = Metadata(self._metadata)
        self._synced_for = _synced_for(options)
        self._buffer: TimedBuffer | None = None
        self._bindings: Bindings | None = None
        self._resources = AsyncExitStack()
        self._is_open = False
        self._is_opened_once = False
        self._is_clean = False

    # ------------------------------------------------------------------------------ contract

    @property
    def capabilities(self) -> StoreCapabilities:
        """See MessageStore."""
        always = self._synced_for == SyncedFor.SINGLE | SyncedFor.TRANSACTION
        return StoreCapabilities(
            durable=self._storage.durable and always,
            acknowledged_log=self,
            large_bodies=self._large,
            branches=self,
            duplicate_ids=self,
        )

    @property
    def metadata_counters(self) -> MetadataCounters:
        """What checkpoints wrote so far: proves what never reached the metadata store."""
        return self._metadata.counters

    @property
    def live_bytes(self) -> int:
        """Bytes of the records that a list or the acknowledged log refers to."""
        return sum(use.live_bytes for use in self._index.files.values())

    async def compact(self, *, percentage: int, progress: Progress) -> int:
        """Empty the data files of which less than *percentage* is alive, at once (offline tools).

        Returns: data files put away. Raises: StoreError.
        """
        self._require_open()
        await self._maintenance.close()  # nothing else puts files away meanwhile
        try:
            return await compact_files(
                self._index,
                self._files,
                self._reader,
                self._appender,
                self._checkpointer,
                percentage=percentage,
                progress=progress,
            )
        except OSError as error:
            raise StoreIOError(f"{self._storage.describe('')}: {error}") from error

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
        except (OSError, StoreFullError) as error:
            await self._give_up_opening()
            where = self._storage.describe("")
            raise StoreIOError(f"cannot open the journal in {where}: {error}") from error
        except BaseException:
            await self._give_up_opening()
            raise

    async def _give_up_opening(self) -> None:
        # A close that comes nevertheless would wait for a writer that is gone.
        self._is_open = False
        await self._resources.aclose()

    async def write(self, batch: WriteBatch) -> None:
        """See MessageStore."""
        if not self._is_open:
            raise StoreClosedError("the journal store is not open")
        operations = batch.operations
        synced = batch.durability is Durability.SYNCED and bool(batch.synced_for & self._synced_for)
        if self._buffer is None:
            await self._write(operations, synced)
        else:
            await self._buffer.write(operations, synced)

    async def _write(self, operations: list[Operation], synced: bool) -> None:
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
            lambda file_id, offset: encode_batch(operations, file_id, offset, index),
            synced=synced,
        )

    async def page_in(
        self, pending_list: int, after: int, limit: int, bytes_max: int
    ) -> Sequence[StoredMessage]:
        """See MessageStore."""
        self._require_open()
        pending = self._index.lists.get(pending_list)
        if pending is None:
            return ()
        messages: list[Message] = []
        page: Sequence[tuple[int, int]] = ()
        counts: list[int] = []
        while not messages:
            page = pending.page(after, limit, bytes_max)
            if not page:
                return ()
            count_of = pending.deliveries.get
            counts = [count_of(sequence, 0) for sequence, _ in page]
            asked = page
            page, messages = await self._losses.read(pending_list, page)
            if page is not asked:  # damaged ones were dropped
                counts = [count_of(sequence, 0) for sequence, _ in page]
        self._hold_large(messages)
        return [
            StoredMessage(sequence, message, count)
            for (sequence, _), message, count in zip(page, messages, counts, strict=True)
        ]

    async def recovered_branches(self) -> Sequence[Branch]:
        """See Branches."""
        self._require_open()
        return list(self._index.branches.values())

    async def recovered_duplicate_ids(self) -> Sequence[DuplicateId]:
        """See DuplicateIds."""
        self._require_open()
        return list(self._index.all_duplicate_ids())

    async def acknowledged(self, after: int, limit: int, bytes_max: int) -> AcknowledgedPage:
        """See AcknowledgedLog."""
        self._require_open()
        log = self._index.log
        last = log.last
        if self._writer.synced_batch < self._index.batch:
            # Rows of WRITTEN batches exist but could still be lost, and their numbers given to
            # others: nobody may see them before they are on disk.
            await self._appender.sync()
        await self._checkpointer.rows.at(after + 1)
        if after < log.released:
            raise RequestError(
                f"acknowledged rows up to {log.released} were released; asked for those behind "
                f"{after}"
            )
        page = [row for row in log.page(after, limit, bytes_max) if row.ack_sequence <= last]
        messages = await self._reader.read([(row.sequence, row.location) for row in page])
        self._hold_large(messages)
        rows = [
            AcknowledgedMessage(
                row.ack_sequence,
                row.sequence,
                message,
                row.block.pending_list,
                row.delivered_at,
                row.block.acked_at,
                row.block.client_id,
                row.block.subscription,
                row.block.protocol,
            )
            for row, message in zip(page, messages, strict=True)
        ]
        return AcknowledgedPage(rows, last)

    async def release_acknowledged(self, through: int) -> None:
        """See AcknowledgedLog. Becomes durable with the next checkpoint."""
        self._require_open()
        # Rows that are not synced were never read, so nobody can be done with them.
        log = self._index.log
        through = min(through, log.last)
        while log.released < through:
            await self._checkpointer.rows.at(log.released + 1)
            self._index.release(min(through, log.released + PAGE_ROWS))
            if log.released < through:
                await asyncio.sleep(0)

    def log_statistics(self) -> LogStatistics:
        """See AcknowledgedLog."""
        self._require_open()
        log = self._index.log
        held = self._index.acknowledged_bytes + (log.last - log.released) * ROW_BYTES
        return LogStatistics(log.released + 1, log.last, held, log.oldest_at)

    def statistics(self) -> StoreStatistics:
        """See MessageStore."""
        self._require_open()
        index = self._index
        return StoreStatistics(
            pending_messages=index.pending_messages,
            disk_bytes=self._disk_bytes(),
            writable=self._appender.failure is None,
        )

    async def close(self) -> None:
        """See MessageStore."""
        if not self._is_open:
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
        logger.info("closed; in the metadata store so far: %s", self._metadata.counters)
        await self._resources.aclose()

    # ------------------------------------------------------------------------------- opening

    async def _open(self) -> RecoveredState:
        loop = self._loop
        options, context = self._options, self._context
        if isinstance(self._storage, NamedStorage):
            await loop.run_in_executor(
                self._workers, refuse_other_journal, context, options.directory
            )
            if not options.create_journal_dir:
                await loop.run_in_executor(
                    self._workers, require_directory, context, options.directory
                )
        await loop.run_in_executor(
            self._workers, self._storage.lock, f"gateway={context.gateway_name}"
        )
        self._resources.callback(self._storage.unlock)
        self._resources.callback(self._seal)  # when LMDB is closed, while the lock is held
        self._resources.callback(self._metadata.close)

        policy = _recovery.RecoveryPolicy(
            quarantines=options.damaged_journal_policy == QUARANTINE,
            ignores_missing=options.ignore_missing_journalfiles,
            checks_files=options.check_for_corrupt_journal_files,
            archives_index=options.archive_corrupted_index,
        )
        found = await loop.run_in_executor(
            self._workers,
            lambda: _recovery.recover(
                self._storage,
                self._metadata,
                keep_acknowledged=context.keep_acknowledged,
                progress=self._progress,
                policy=policy,
            ),
        )
        self._index: Index = found.index
        if self._large is not None:
            # Without an index on disk every start rebuilds; that says nothing of losses.
            lost = found.rebuilt and options.persistent_index
            # Which files are missing cannot always be told; nothing that may be missed goes.
            lost = lost or options.ignore_missing_journalfiles
            # Something was taken out or cut off. (A policy that stays set is no sign of it, and each
            # kill would leave its files for good.)
            lost = lost or (policy.quarantines and bool(found.report.name or found.repaired_bytes))
            found.notes += await self._open_large(self._large, keeps_orphans=lost)
        # In memory there is nobody else to leave room for; its limit is hard enough.
        free_limit = options.disk_free_limit if self._storage.durable else 0
        room = RoomWatch(self._storage, self._workers, free_limit)
        files = self._files = DataFiles(
            self._storage,
            self._workers,
            FilePolicy(
                length=options.file_length,
                files_min=options.journal_min_files,
                pool_files=options.journal_pool_files,
                archive=options.directory_archive if options.archive_data_logs else "",
                free_limit_bytes=free_limit,
            ),
            store_id=found.store_id,
        )
        spares = usable_spares(self._storage, found.spares, options.file_length)
        pool = await loop.run_in_executor(
            self._workers,
            usable_pool,
            self._storage,
            found.pool,
            options,
            len(found.files) + len(spares),
        )
        files.adopt(found.files, spares, pool, found.next_file_id)
        self._resources.push_async_callback(files.close)
        files.on_full = room.hurry
        self._reader = Reader(files, self._readers)
        if not context.keep_acknowledged:
            self._index.release(self._index.log.last)
        tail = Tail(found.tail_file, found.tail_offset)
        bindings = await self._open_bindings(found) if self._storage.durable else None
        self._appender = Appender(
            self._index, files, self._start_writer(), room, tail, bindings, self._workers
        )
        series = self._series = self._make_series(found, room)
        files.elsewhere = series
        self._losses = Losses(
            self._index,
            self._reader,
            found.report,
            lambda operations: self.write(WriteBatch(operations)),
            self._workers,
            quarantines=policy.quarantines,
            ignores_missing=policy.ignores_missing,
            keep=self._keep_damaged,
        )
        self._checkpointer = Checkpointer(
            self._storage,
            self._metadata,
            self._index,
            files,
            tail,
            self._workers,
            store_id=found.store_id,
            sync=self._sync_all,
            bindings=bindings,
            large=self._large,
        )
        self._tidy = Tidy(
            series,
            self._index,
            files,
            self._reader,
            self._appender,
            self._checkpointer,
            # Either option at 0 turns all of it off, as for the journal's own files.
            percentage=options.journal_compact_percentage
            if options.journal_compact_min_files
            else 0,
        )
        self._resources.push_async_callback(self._tidy.close)
        if policy.checks_files:
            found.lost.append(await self._check_directories(policy))
        if tail.file is None:
            await files.make_ready(grows=False, waits=False)
            tail.file = await files.take(DATA_OFFSET, grows=False)
            files.begun()
            tail.offset = DATA_OFFSET
            if self._index.batch:
                # It goes on behind files that are missing: without a batch in this one, the next
                # start would look for the last batch in a file that says nothing of it.
                await self._append([ClearRetained("")], synced=True)
        files.refill(half_used=False)
        if not found.is_settled:
            # From here on the checkpoint must not say *clean* any more (format document, section 7).
            await self._checkpointer.run(force=True)
        reclaim = Reclaim(
            self._index,
            files,
            self._reader,
            self._appender,
            self._checkpointer,
            min_files=options.journal_compact_min_files,
            percentage=options.journal_compact_percentage,
            wake=room.event.set,
        )
        self._maintenance = Maintenance(options, room, self._checkpointer, reclaim, self._workers)
        self._index.watch_growth(
            options.max_checkpoint_message_add_size,
            self._maintenance.want_checkpoint,
            already=found.replayed if found.is_settled else 0,
        )
        self._index.large.watch_loose(self._maintenance.want_checkpoint)
        if options.journal_buffer_timeout:
            self._buffer = TimedBuffer(
                self._write,
                timeout_seconds=options.journal_buffer_timeout,
                # What has gathered must not need a file of its own size.
                bytes_max=min(options.journal_buffer_size, options.file_length // 4),
            )
        self._index.on_dropped = self._give_up_dropped
        self._is_open = True
        if self._warning:
            logger.warning(self._warning)
        if found.unsynced:
            found.lost.append(await lost_in_power_cut(self._index, self._reader, found.unsynced))
        await self._losses.drop(found.lost)
        if found.report.name or (found.rebuilt and options.ignore_missing_journalfiles):
            await self._losses.adopt()
        if found.report.name and not found.rebuilt:
            await self._checkpointer.write_down_all_that_lives()
        self._say_what_was_found(found)
        await self._remove_temporary_subscriptions()
        await room.look()
        if not room.is_short:
            await self._maintenance.make_reserve()
        self._index.log.pins -= 1
        await self._checkpointer.rows.page_out()
        self._maintenance.start()
        files.reclaimer = reclaim
        self._tidy.start(options.cleanup_interval)
        return recovered_state(found)

    async def _open_bindings(self, found: Recovered) -> Bindings:
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
        """A part of what dropped lists held, with pauses in which the loop does other things."""
        if self._is_open and self._index.give_up_dropped():
            self._loop.call_later(_DROP_PAUSE_SECONDS, self._give_up_dropped)

    def _seal(self) -> None:
        directory = self._storage.metadata_directory
        if self._is_clean and directory is not None:
            try:
                seal_marker(self._storage, directory)
            except OSError as error:
                logger.warning("cannot seal the metadata store error=%s", error)

    @staticmethod
    def _say_what_was_found(found: _recovery.Recovered) -> None:
        for note in found.notes:
            logger.warning("recovery: %s", note)
        found.report.log()
        found.notes += found.report.notes
        found.report.notes = []

    def _make_series(self, found: Recovered, room: RoomWatch) -> Series:
        """The directories of destinations; without any this only passes everything on."""
        options = self._options

        async def require_room() -> None:
            if room.is_short:
                await room.require()

        series = Series(
            self._storage,
            found.elsewhere,
            self._files,
            self._index,
            SeriesPolicy(
                filters=options.per_destination if self._storage.durable else (),
                file_length=options.file_length,
                record_bytes_max=options.max_record_size,
                pool_limit=options.filepool_limit,
                clean_percent=options.filepool_cleanratio,
                cleans_up=options.message_cleanup,
                sync=options.sync_strategy == ALWAYS,
                sync_seconds=(
                    options.journal_disk_sync_interval if options.sync_strategy == PERIODIC else 0.0
                ),
            ),
            store_id=found.store_id,
            require_room=require_room,
            checkpoint=lambda: self._checkpointer.run(cleanup=True),
            report_full=room.report_full,
            fail=self._appender.fail,
        )
        series.mark_unsynced({place >> FILE_SHIFT for _, place in found.unsynced})
        return series

    async def _check_directories(self, policy: _recovery.RecoveryPolicy) -> Lost:
        """Raises: CorruptRecordError when something is damaged and the policy is *refuse*."""
        lost, where = await check_messages(self._index, self._reader, self._series.staying())
        if lost and not policy.quarantines:
            raise CorruptRecordError(
                f"damaged: {where}. Nothing was changed. {ADVICE}",
                location=self._storage.describe(FOLDERS_NAME),
            )
        return lost

    async def compact_destination(self, destination: str) -> DestinationCompaction:
        """Give back all room in the directory of one destination (offline tools).

        Raises: StoreError.
        """
        self._require_open()
        await self._maintenance.close()
        try:
            return await self._tidy.compact(destination)
        except OSError as error:
            raise StoreIOError(f"{self._storage.describe('')}: {error}") from error

    async def _sync_all(self) -> None:
        """Bodies first: the journal must not be ahead of what it refers to."""
        await self._series.sync()
        await self._appender.sync()

    def _progress(self, what: str, done: int, total: int) -> None:
        """From any thread."""
        self._loop.call_soon_threadsafe(self._context.progress, what, done, total)

    async def _open_large(self, large: LargeFiles, *, keeps_orphans: bool) -> list[str]:
        """Returns: what recovery has to tell. Raises: StoreLockedError, OSError."""
        executor = ThreadPoolExecutor(LARGE_THREADS, "tidegate-journal-large")
        self._resources.callback(executor.shutdown)
        reading = ThreadPoolExecutor(READING_THREADS, "tidegate-journal-large-reader")
        self._resources.callback(reading.shutdown)
        await self._loop.run_in_executor(
            executor, large.prepare, f"gateway={self._context.gateway_name}"
        )
        self._resources.callback(large.release)
        notes = await self._loop.run_in_executor(
            executor, lambda: large.recover(self._index.large, keeps_orphans=keeps_orphans)
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

    def _hold_large(self, messages: Sequence[Message]) -> None:
        """Large bodies of messages that were read stay while somebody has the message."""
        if self._large is not None and self._index.large:
            for message in messages:
                if message.large is not None:
                    self._large.hold(message.large)

    def _start_writer(self) -> BatchWriter:
        self._writer = make_writer(
            self._options, self._storage, self._loop, lambda error: self._appender.fail(error)
        )
        self._writer.start(self._index.batch)
        self._resources.push_async_callback(self._writer.close)
        return self._writer

    async def _remove_temporary_subscriptions(self) -> None:
        """A killed gateway could not remove those of its connections: they end here."""
        gone: list[Operation] = [
            RemoveSubscription(subscription.pending_list)
            for subscription in self._index.subscriptions.values()
            if not subscription.durable
        ]
        if gone:
            await self.write(WriteBatch(gone))

    def _require_open(self) -> None:
        if not self._is_open:
            raise StoreClosedError("the journal store is not open")

    def _disk_bytes(self) -> int:
        large = 0 if self._large is None else self._large.disk_bytes
        large += 0 if self._bindings is None else self._bindings.capacity
        return self._files.disk_bytes + self._metadata.disk_bytes + self._series.disk_bytes + large


def _synced_for(options: JournalOptions) -> SyncedFor:
    """What is confirmed only when it is on stable storage."""
    waiting = SyncedFor(0)
    if options.sync_strategy == ALWAYS:
        if options.journal_sync_non_transactional:
            waiting |= SyncedFor.SINGLE
        if options.journal_sync_transactional:
            waiting |= SyncedFor.TRANSACTION
    return waiting
