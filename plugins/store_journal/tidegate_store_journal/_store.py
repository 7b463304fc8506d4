"""The journal store: :class:`tidegate.spi.MessageStore` over data files, an index and checkpoints.

Order of one write, all on the event loop but step 3:

1. The batch is encoded; its place is known before it is written, because one writer appends.
2. When it does not fit into the current data file, the next one is taken (usually ready already).
3. The writer thread writes it with one call and syncs it with another.
4. Back on the loop the index takes the effects, and the caller goes on.

The index therefore never holds what is not written, and a write that failed for want of room has
changed nothing: the next batch goes to the same place.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidegate.spi import (
    AcknowledgedMessage,
    AcknowledgedPage,
    Durability,
    Operation,
    RecoveredDestination,
    RecoveredState,
    RecoveryReport,
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
    WriteBatch,
    format_size,
)
from tidegate_store_journal import _recovery
from tidegate_store_journal._checkpoint import Checkpointer
from tidegate_store_journal._encode import EncodedBatch, encode_batch
from tidegate_store_journal._files import FULL_ERRNOS, DataFile, DataFiles
from tidegate_store_journal._format import (
    BATCH_BYTES_MAX,
    BATCH_HEADER_BYTES,
    DATA_OFFSET,
    encode_batch_header,
)
from tidegate_store_journal._index import Index
from tidegate_store_journal._metadata import (
    LmdbMetadata,
    Metadata,
    MetadataCounters,
    NoMetadata,
)
from tidegate_store_journal._options import ALWAYS, NEVER, PERIODIC, JournalOptions, check
from tidegate_store_journal._reader import Reader
from tidegate_store_journal._storage import DirectoryStorage, MemoryStorage, Storage
from tidegate_store_journal._writer import BACKGROUND_SYNC_SECONDS, Request, Writer

logger = logging.getLogger("tidegate.store.journal")

#: How often the room on the file system is looked at.
ROOM_CHECK_SECONDS: Final = 1.0
#: Threads that read pages: reads are short; two keep one slow read from blocking all lists.
_READER_THREADS: Final = 2
#: Threads that prepare files and write checkpoints: one must not wait for the other.
_WORKER_THREADS: Final = 2
_URGENT_PAUSE_SECONDS: Final = 0.1


@dataclass(slots=True)
class _Tail:
    """Where the next batch goes."""

    file: DataFile | None
    offset: int


class _Flight:
    """The batch that is being written."""

    __slots__ = ("encoded", "end", "file", "future", "is_new_file")

    def __init__(
        self,
        encoded: EncodedBatch,
        file: DataFile,
        end: int,
        future: asyncio.Future[None],
        *,
        is_new_file: bool,
    ) -> None:
        self.encoded = encoded
        self.file = file
        self.end = end
        self.future = future
        self.is_new_file = is_new_file


class JournalStore:
    """See the module and the contract. One instance is opened once."""

    def __init__(
        self, context: StoreContext, options: JournalOptions, storage: Storage | None = None
    ) -> None:
        """*storage* replaces the directory that the options name (tests, fault injection).

        Raises: ConfigError.
        """
        check(options)
        self._context = context
        self._options = options
        directory = context.data_directory / Path(options.directory)
        if storage is None:
            storage = DirectoryStorage(directory) if context.persistent else MemoryStorage()
        self._storage = storage
        metadata_directory = storage.metadata_directory
        self._metadata: Metadata = (
            NoMetadata() if metadata_directory is None else LmdbMetadata(metadata_directory)
        )
        self._resources = AsyncExitStack()
        self._is_open = False
        self._is_opened_once = False
        self._failure: BaseException | None = None
        self._flight: _Flight | None = None
        self._landed: list[asyncio.Future[None]] = []
        self._room_is_short = False
        self._room_event = asyncio.Event()
        self._maintenance: asyncio.Task[None] | None = None
        self._next_batch = 1

    # ------------------------------------------------------------------------------ contract

    @property
    def capabilities(self) -> StoreCapabilities:
        """See MessageStore."""
        always = self._options.journal_disk_sync_strategy == ALWAYS
        return StoreCapabilities(durable=self._storage.durable and always, acknowledged_log=True)

    @property
    def metadata_counters(self) -> MetadataCounters:
        """What checkpoints wrote so far: proves what never reached the metadata store."""
        return self._metadata.counters

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
            await self._resources.aclose()
            where = self._storage.describe("")
            raise StoreIOError(f"cannot open the journal in {where}: {error}") from error
        except BaseException:
            await self._resources.aclose()
            raise

    async def write(self, batch: WriteBatch) -> None:
        """See MessageStore."""
        if self._flight is not None:
            # Only after a cancelled write: its batch is still under way and keeps its place.
            await self._until_landed()
        if not self._is_open or self._failure is not None:
            raise self._closed_error()
        operations = batch.operations
        synced = batch.durability is Durability.SYNCED and self._syncs_always
        if not operations:
            if synced:
                await self._sync()
            return
        tail = self._tail
        file = tail.file
        offset = tail.offset
        encoded = encode_batch(
            operations, file.file_id if file else 0, offset + BATCH_HEADER_BYTES, self._index
        )
        if self._room_is_short and encoded.grows:
            await self._require_room()
        size = BATCH_HEADER_BYTES + len(encoded.payload)
        is_new_file = file is None or offset + size > file.length
        if is_new_file:
            if size > BATCH_BYTES_MAX:
                raise StoreFullError(
                    f"a batch of {size} bytes is above the limit of {BATCH_BYTES_MAX}"
                )
            file = await self._files.take(size + DATA_OFFSET, grows=encoded.grows)
            offset = DATA_OFFSET
            encoded.move_to(file.file_id, offset + BATCH_HEADER_BYTES)
        assert file is not None
        assert file.handle is not None
        effects = encoded.effects
        number = effects.batch = self._next_batch
        header = encode_batch_header(
            file.seed,
            encoded.payload,
            number,
            self._writer.synced_batch,
            effects.last_sequence,
            effects.last_ack,
            effects.last_list,
            encoded.record_count,
        )
        future: asyncio.Future[None] = self._loop.create_future()
        self._flight = _Flight(encoded, file, offset + size, future, is_new_file=is_new_file)
        self._writer.submit(
            Request(
                self._written,
                file.handle,
                offset,
                (header, encoded.payload),
                number,
                sync=synced,
                sync_first=is_new_file,
            )
        )
        await future

    async def page_in(
        self, pending_list: int, after: int, limit: int, bytes_max: int
    ) -> Sequence[StoredMessage]:
        """See MessageStore."""
        self._require_open()
        pending = self._index.lists.get(pending_list)
        if pending is None:
            return ()
        page = pending.page(after, limit, bytes_max)
        if not page:
            return ()
        count_of = pending.deliveries.get
        counts = [count_of(sequence, 0) for sequence, _ in page]
        messages = await self._reader.read(page)
        return [
            StoredMessage(sequence, message, count)
            for (sequence, _), message, count in zip(page, messages, counts, strict=True)
        ]

    async def acknowledged(self, after: int, limit: int, bytes_max: int) -> AcknowledgedPage:
        """See MessageStore."""
        self._require_open()
        log = self._index.log
        last = log.last
        if self._writer.synced_batch < self._index.batch:
            # Rows of WRITTEN batches exist but could still be lost, and their numbers given to
            # others: nobody may see them before they are on disk.
            await self._sync()
        if after < log.released:
            raise RequestError(
                f"acknowledged rows up to {log.released} were released; asked for those behind "
                f"{after}"
            )
        page = [row for row in log.page(after, limit, bytes_max) if row.ack_sequence <= last]
        messages = await self._reader.read([(row.sequence, row.location) for row in page])
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
        """See MessageStore. Becomes durable with the next checkpoint."""
        self._require_open()
        # Rows that are not synced were never read, so nobody can be done with them.
        self._index.release(min(through, self._index.log.last))

    def statistics(self) -> StoreStatistics:
        """See MessageStore."""
        self._require_open()
        index = self._index
        return StoreStatistics(
            pending_messages=index.pending_messages,
            disk_bytes=self._disk_bytes(),
            acknowledged_first=index.log.released + 1,
            acknowledged_last=index.log.last,
            acknowledged_bytes=index.acknowledged_bytes,
            acknowledged_oldest_at=index.log.oldest_at,
            writable=self._failure is None,
        )

    async def close(self) -> None:
        """See MessageStore."""
        if not self._is_open:
            return
        self._is_open = False
        if self._maintenance is not None:
            self._maintenance.cancel()
            await asyncio.wait([self._maintenance])
        await self._until_landed()
        if self._failure is None:
            try:
                await self._checkpointer.run(cleanup=True, clean=True)
            except (OSError, StoreError) as error:
                logger.warning("the last checkpoint failed; the next start replays error=%s", error)
        await self._resources.aclose()

    # ------------------------------------------------------------------------------- opening

    async def _open(self) -> RecoveredState:
        loop = self._loop
        options, context = self._options, self._context
        await loop.run_in_executor(
            self._workers, self._storage.lock, f"gateway={context.gateway_name}"
        )
        self._resources.callback(self._storage.unlock)
        self._resources.callback(self._metadata.close)

        def progress(what: str, done: int, total: int) -> None:
            loop.call_soon_threadsafe(context.progress, what, done, total)

        found = await loop.run_in_executor(
            self._workers,
            lambda: _recovery.recover(
                self._storage,
                self._metadata,
                keep_acknowledged=context.keep_acknowledged,
                progress=progress,
            ),
        )
        self._index: Index = found.index
        self._syncs_always = options.journal_disk_sync_strategy == ALWAYS
        self._tail = _Tail(found.tail_file, found.tail_offset)
        self._next_batch = self._index.batch + 1
        files = self._files = DataFiles(
            self._storage,
            self._workers,
            store_id=found.store_id,
            file_length=options.journal_max_file_length,
            files_min=options.journal_min_files,
            free_limit_bytes=options.disk_free_limit,
        )
        spares = self._usable_spares(found.spares)
        files.adopt(found.files, spares, found.next_file_id)
        self._resources.push_async_callback(files.close)
        files.on_full = self._room_event.set
        for file in found.files[:-1]:
            files.retire(file)
        self._reader = Reader(self._storage, files, self._readers)
        if not context.keep_acknowledged:
            self._index.release(self._index.log.last)
        self._start_writer()
        self._checkpointer = Checkpointer(
            self._storage,
            self._metadata,
            self._index,
            files,
            self._tail,
            self._workers,
            store_id=found.store_id,
            sync=self._sync,
            bindings_stale=found.rebuilt or found.replayed > 0,
        )
        if self._tail.file is None:
            self._tail.file = await files.take(DATA_OFFSET, grows=False)
            self._tail.offset = DATA_OFFSET
        files.refill(half_used=False)
        # From here on the checkpoint must not say *clean* any more (format document, section 7).
        await self._checkpointer.run(force=True)
        self._is_open = True
        await self._remove_temporary_subscriptions()
        await self._look_at_room()
        if not self._room_is_short:
            await loop.run_in_executor(self._workers, self._checkpointer.make_reserve)
        self._maintenance = loop.create_task(self._maintain())
        return self._recovered_state(found)

    def _usable_spares(self, spares: Sequence[DataFile]) -> list[DataFile]:
        """Spares of the configured length; others (it was changed) are deleted."""
        usable: list[DataFile] = []
        for file in spares:
            if file.length == self._options.journal_max_file_length:
                usable.append(file)
            else:
                if file.handle is not None:
                    file.handle.close()
                self._storage.unlink(file.name)
        return usable

    def _start_writer(self) -> None:
        background = {
            ALWAYS: BACKGROUND_SYNC_SECONDS,
            PERIODIC: self._options.journal_disk_sync_interval,
            NEVER: None,
        }[self._options.journal_disk_sync_strategy]
        self._writer = Writer(
            self._loop,
            background_sync_seconds=background,
            slow_sync_seconds=self._options.slow_sync_threshold,
            on_failure=self._fail,
        )
        self._writer.start(self._index.batch)
        self._resources.push_async_callback(self._stop_writer)

    async def _stop_writer(self) -> None:
        await self._loop.run_in_executor(self._workers, self._writer.stop)

    async def _remove_temporary_subscriptions(self) -> None:
        """A killed gateway could not remove those of its connections: they end here."""
        gone: list[Operation] = [
            RemoveSubscription(subscription.pending_list)
            for subscription in self._index.subscriptions.values()
            if not subscription.durable
        ]
        if gone:
            await self.write(WriteBatch(gone))

    def _recovered_state(self, found: _recovery.Recovered) -> RecoveredState:
        index = self._index
        lists = [*index.lists, *index.destinations.values(), *index.subscriptions]
        return RecoveredState(
            store_id=found.store_id,
            last_sequence=index.last_sequence,
            last_pending_list=max([index.last_list, *lists]),
            destinations=[
                RecoveredDestination(name, list_id) for name, list_id in index.destinations.items()
            ],
            subscriptions=list(index.subscriptions.values()),
            sessions=list(index.sessions.values()),
            inflight=list(index.inflight_records()),
            retained=list(index.retained.values()),
            pending=index.counts(),
            report=RecoveryReport(
                clean=found.clean,
                replayed=found.replayed,
                repaired_bytes=found.repaired_bytes,
                notes=tuple(found.notes),
            ),
        )

    # ------------------------------------------------------------------------------- writing

    async def _until_landed(self) -> None:
        """Wait until no batch is under way (its own future may have been cancelled)."""
        while self._flight is not None:
            landed = self._loop.create_future()
            self._landed.append(landed)
            await landed

    def _written(self, request: Request) -> None:
        """The writer thread is done with the batch under way."""
        flight = self._flight
        assert flight is not None
        self._flight = None
        for landed in self._landed:
            if not landed.done():
                landed.set_result(None)
        self._landed.clear()
        future = flight.future
        error: StoreError | None = None
        if request.error is not None:
            error = self._write_error(request, request.error, flight)
        else:
            try:
                self._take_effect(flight)
            except Exception as problem:
                # A bug of ours: the batch is on disk but not in the index, so go no further.
                self._fail(problem)
                error = self._closed_error()
        if future.done():
            return  # the caller was cancelled
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    def _take_effect(self, flight: _Flight) -> None:
        tail = self._tail
        file = flight.file
        if flight.is_new_file:
            if tail.file is not None:
                self._files.retire(tail.file)
            file.first_batch = self._next_batch
            tail.file = file
            self._files.refill(half_used=False)
        elif file.first_batch == 0:
            file.first_batch = self._next_batch
        tail.offset = flight.end
        self._next_batch += 1
        self._index.apply(flight.encoded.effects)
        if tail.offset * 2 > file.length:
            self._files.refill(half_used=True)

    def _write_error(self, request: Request, error: OSError, flight: _Flight) -> StoreError:
        if error.errno in FULL_ERRNOS and not request.sync_failed:
            # Nothing took effect, and the next batch goes to the same place.
            if flight.is_new_file:
                self._files.put_back(flight.file)
            self._room_is_short = True
            self._room_event.set()
            return StoreFullError(f"the journal cannot be written: {error}")
        self._fail(error)
        return self._closed_error()

    def _fail(self, error: BaseException) -> None:
        """The store is read-only from here on."""
        if self._failure is None:
            self._failure = error
            logger.error("the journal is read-only now error=%s", error)

    def _closed_error(self) -> StoreError:
        if self._failure is not None:
            return StoreIOError(
                f"the journal is read-only after an error: {self._failure}. Restart the gateway "
                "once the disk works again"
            )
        return StoreClosedError("the journal store is not open")

    def _require_open(self) -> None:
        if not self._is_open:
            raise StoreClosedError("the journal store is not open")

    async def _sync(self) -> None:
        """Return when everything written so far is on stable storage. Raises: StoreIOError."""
        if self._failure is not None:
            raise self._closed_error()
        future: asyncio.Future[None] = self._loop.create_future()

        def done(request: Request) -> None:
            if request.error is not None:
                self._fail(request.error)
            if future.done():
                return
            if self._failure is not None:
                future.set_exception(self._closed_error())
            else:
                future.set_result(None)

        self._writer.submit(Request(done))
        await future

    # --------------------------------------------------------------------------- maintenance

    async def _require_room(self) -> None:
        """Raises: StoreFullError while the file system has less room than disk_free_limit."""
        await self._look_at_room()
        if self._room_is_short:
            raise StoreFullError(
                f"the file system of {self._storage.describe('')} has less than disk_free_limit "
                f"= {format_size(self._options.disk_free_limit)} free; make room, or consume "
                "messages"
            )

    async def _look_at_room(self) -> None:
        try:
            free = await self._loop.run_in_executor(self._workers, self._storage.free_bytes)
        except OSError as error:
            logger.warning("cannot tell how much room is left error=%s", error)
            return
        is_short = free < self._options.disk_free_limit
        if is_short != self._room_is_short:
            logger.warning("room is %s free_bytes=%d", "short" if is_short else "back", free)
        self._room_is_short = is_short

    async def _maintain(self) -> None:
        """Checkpoints, cleanups and the watch on free room, each at its interval."""
        options = self._options
        now = self._loop.time
        checkpoint_at = now() + options.checkpoint_interval
        cleanup_at = now() + options.cleanup_interval
        room_at = now() + ROOM_CHECK_SECONDS
        while True:
            try:
                async with asyncio.timeout(min(checkpoint_at, cleanup_at, room_at) - now()):
                    await self._room_event.wait()
            except TimeoutError:
                pass
            is_urgent = self._room_event.is_set()
            self._room_event.clear()
            if is_urgent or now() >= room_at:
                await self._look_at_room()
                room_at = now() + ROOM_CHECK_SECONDS
            if is_urgent or self._room_is_short or now() >= cleanup_at:
                await self._checkpoint(cleanup=True)
                cleanup_at = now() + options.cleanup_interval
                checkpoint_at = now() + options.checkpoint_interval
            elif now() >= checkpoint_at:
                await self._checkpoint(cleanup=False)
                checkpoint_at = now() + options.checkpoint_interval
            if is_urgent:
                # Refused batches must not turn into a checkpoint each.
                await asyncio.sleep(_URGENT_PAUSE_SECONDS)

    async def _checkpoint(self, *, cleanup: bool) -> None:
        if self._failure is not None:
            return
        try:
            await self._checkpointer.run(cleanup=cleanup)
            if not self._room_is_short:
                await self._loop.run_in_executor(self._workers, self._checkpointer.make_reserve)
        except (OSError, StoreError) as error:
            # The journal itself is not affected: the next start replays more.
            logger.warning("a checkpoint failed and will be tried again error=%s", error)

    def _disk_bytes(self) -> int:
        return self._files.disk_bytes + self._metadata.disk_bytes
