"""The end of the journal: batches, one after the other, are encoded, written, and taken into the index.

Order of one append, all on the event loop but step 3:

1. The batch is encoded; its place is known before it is written, because only one batch is in
   progress at a time.
2. If it does not fit into the current data file, the next one is taken (usually ready already).
3. The writer thread writes it with one call and syncs it with another.
4. Back on the loop the index takes the effects, and the caller goes on.

Steps 1 and 4 of a large batch are done in slices, leaving the loop to others in between, but the next batch
and a checkpoint wait for the end.

So the index never holds what is not written, and a write that failed for lack of room has
changed nothing: the next batch goes to the same place.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from tidegate.spi import (
    StoreClosedError,
    StoreError,
    StoreFullError,
    StoreIOError,
    StoreLockedError,
    StoreLostError,
    store_error,
)
from tidegate_store_journal.checkpoint.bindings import Bindings
from tidegate_store_journal.index.index import Index
from tidegate_store_journal.index.slices import finished, has_more
from tidegate_store_journal.log.datafile import DataFile, Tail
from tidegate_store_journal.log.files import FULL_ERRNOS, DataFiles
from tidegate_store_journal.log.format import (
    BATCH_BYTES_MAX,
    BATCH_HEADER_BYTES,
    DATA_OFFSET,
    END_MARK,
    encode_batch_header,
)
from tidegate_store_journal.log.room import RoomWatch
from tidegate_store_journal.write.encode import EncodedBatch, Encoding
from tidegate_store_journal.write.writer import BatchWriter, Request

logger = logging.getLogger("tidegate.store.journal")

#: Average size from which new files are not padded, see ``DataFiles.has_large_batches``.
LARGE_BATCH_BYTES: Final = 256 << 10

#: Room for the small state of this many batches like the last one is made in advance.
GROW_AHEAD: Final = 16
#: And at most this much: room that may never be needed is lost to messages.
GROW_AHEAD_BYTES_MAX: Final = 512 << 10

#: Encodes a batch as if its first record were at (file id, offset).
Encode = Callable[[int, int], EncodedBatch | Encoding]


class _NotYetError(Exception):
    """The batch has to wait. *until*: waits; other batches pass meanwhile."""

    def __init__(self, until: Callable[[], Awaitable[None]]) -> None:
        super().__init__()
        self.until = until


class _Flight(msgspec.Struct, eq=False):
    """The batch being written."""

    encoded: EncodedBatch
    file: DataFile
    end: int
    future: asyncio.Future[None]
    is_new_file: bool


@dataclass(eq=False)
class Appender:
    """See the module. All methods are for the event loop.

    Attributes:
        bindings: None in memory.
        failure: what made the journal read-only, or None.
    """

    index: Index
    files: DataFiles
    writer: BatchWriter
    room: RoomWatch
    tail: Tail
    bindings: Bindings | None
    executor: Executor

    def __post_init__(self) -> None:
        self.failure: BaseException | None = None
        self._loop = asyncio.get_running_loop()
        self._next_batch = self.index.batch + 1
        self._is_busy = False  # a batch is being encoded, waits for its file, or is in progress
        self._is_landing = False  # that one is written, but only a part is in the index
        self._waiting: list[asyncio.Future[None]] = []
        self._growing: asyncio.Future[None] | None = None  # room for small state
        self._capacity_full = 0  # of the bindings when there was no room for more

    async def append(self, encode: Encode, *, synced: bool, waits: bool = True) -> None:
        """Write what *encode* makes, after everything before; see MessageStore.write.

        *encode* may be called several times. *waits*: see ``DataFiles.make_ready``.
        Returns when it is written, and with *synced* when it is on stable storage.
        Raises: StoreFullError, StoreIOError, and whatever *encode* raises: nothing was written.
        Cancellation: the batch may or may not be written; its place is kept either way.
        """
        while True:
            while self._is_busy:
                await self._until_free()
            if self.failure is not None:
                raise self.failure_error()
            try:
                future = await self._begin(encode, synced=synced, waits=waits)
                break
            except _NotYetError as error:
                await error.until()
        await future

    async def _begin(self, encode: Encode, *, synced: bool, waits: bool) -> asyncio.Future[None]:
        """Submit the batch. Raises: _NotYetError; StoreFullError, StoreIOError."""
        self._is_busy = True
        try:
            tail = self.tail
            file = tail.file
            offset = tail.offset
            file_id = file.file_id if file else 0
            encoded = encode(file_id, offset + BATCH_HEADER_BYTES)
            if not isinstance(encoded, EncodedBatch):
                encoded = await finished(encoded)
            if self.room.is_short and encoded.grows:
                await self.room.require()
            if encoded.effects.small_bytes and self.bindings is not None:
                more = self.index.changed_bytes + encoded.effects.small_bytes
                if not self.bindings.fits(more):
                    raise _NotYetError(partial(self._make_small_state_room, more))
                # Batches like this one should not each have to wait for room.
                ahead = more + min(GROW_AHEAD * encoded.effects.small_bytes, GROW_AHEAD_BYTES_MAX)
                if self._growing is None and not self.bindings.fits(ahead):
                    self._grow_ahead(self.bindings, ahead)
            size = BATCH_HEADER_BYTES + encoded.size
            is_new_file = file is None or offset + size > file.length
            if (
                waits
                and file is not None
                and not is_new_file
                and self.files.holds(file.length - offset - size)
            ):
                # The rest of the file is for the remaining copies of compaction.
                raise _NotYetError(self.files.reclaimer.until_reclaimed)
            if is_new_file:
                if size > BATCH_BYTES_MAX:
                    raise StoreFullError(
                        f"a batch of {size} bytes is above the limit of {BATCH_BYTES_MAX}"
                    )
                file = await self.files.take(size + DATA_OFFSET, grows=encoded.grows, waits=waits)
                if file is None:
                    raise _NotYetError(
                        partial(self.files.make_ready, grows=encoded.grows, waits=waits)
                    )
                offset = DATA_OFFSET
                try:
                    encoded = encode(file.file_id, offset + BATCH_HEADER_BYTES)
                    if not isinstance(encoded, EncodedBatch):
                        encoded = await finished(encoded)
                except BaseException:
                    self.files.put_back(file)
                    raise
            assert file is not None
            return self._submit(encoded, file, offset, synced=synced, is_new_file=is_new_file)
        except BaseException:
            self._set_free()
            raise

    def _grow_ahead(self, bindings: Bindings, more: int) -> None:
        """Make room in advance; if there is none, the batch that needs it will be told."""
        if self.room.is_short or bindings.capacity == self._capacity_full:
            return  # or it was tried, and nothing has changed

        def done(growing: asyncio.Future[None]) -> None:
            self._growing = None
            if not growing.cancelled() and growing.exception() is not None:
                self._capacity_full = bindings.capacity

        self._growing = self._loop.run_in_executor(self.executor, bindings.grow, more)
        self._growing.add_done_callback(done)

    async def _make_small_state_room(self, more: int) -> None:
        """Raises: StoreFullError, StoreUnavailableError, StoreIOError."""
        assert self.bindings is not None
        try:
            await self._loop.run_in_executor(self.executor, self.bindings.grow, more)
        except OSError as error:
            if error.errno not in FULL_ERRNOS:
                raise store_error("cannot make a file of the bindings", error) from error
            self.files.on_full()
            raise StoreFullError(
                "no room for more subscriptions, sessions, retained messages or packet ids: "
                f"{error}"
            ) from error

    def _submit(
        self, encoded: EncodedBatch, file: DataFile, offset: int, *, synced: bool, is_new_file: bool
    ) -> asyncio.Future[None]:
        """Hand the batch to the writer thread; the future is done once it took effect."""
        assert file.handle is not None
        parts = encoded.parts
        effects = encoded.effects
        number = effects.batch = self._next_batch
        header = encode_batch_header(
            file.seed,
            parts,
            number,
            self.writer.synced_batch,
            effects.last_sequence,
            effects.last_ack,
            effects.last_list,
            encoded.record_count,
        )
        future: asyncio.Future[None] = self._loop.create_future()
        end = offset + BATCH_HEADER_BYTES + encoded.size
        buffers = (header, *parts)
        if file.reused:
            buffers = (header, *parts, END_MARK[: file.length - end])
        done = partial(self._written, _Flight(encoded, file, end, future, is_new_file))
        sync_first = is_new_file
        self.writer.submit(
            Request(done, file.handle, offset, buffers, number, sync=synced, sync_first=sync_first)
        )
        return future

    async def sync(self) -> None:
        """Return when everything written so far is on stable storage. Raises: StoreIOError."""
        if self.failure is not None:
            raise self.failure_error()
        future: asyncio.Future[None] = self._loop.create_future()

        def done(request: Request) -> None:
            if request.error is not None:
                self.fail(request.error)
            if future.done():
                return
            if self.failure is not None:
                future.set_exception(self.failure_error())
            else:
                future.set_result(None)

        self.writer.submit(Request(done))
        await future

    async def until_landed(self) -> None:
        """Wait until no batch is in progress (its own future may have been cancelled)."""
        while self._is_busy:
            await self._until_free()

    async def until_whole(self) -> None:
        """Wait until the index is as of one batch; it stays so until the caller yields the loop."""
        while self._is_landing:
            await self._until_free()

    async def _until_free(self) -> None:
        waiting: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(waiting)
        await waiting

    def _set_free(self) -> None:
        self._is_busy = False
        if self._waiting:
            for waiting in self._waiting:
                if not waiting.done():
                    waiting.set_result(None)
            self._waiting.clear()

    # ------------------------------------------------------------------------------- landing

    def _written(self, flight: _Flight, request: Request) -> None:
        """The writer thread is done with the batch in progress."""
        if request.error is None:
            self._land(flight, self._take_effect(flight))
        else:
            try:
                error = self._write_error(request, request.error, flight)
            except Exception as problem:
                error = self._failed(problem)
            self._landed(flight, error)

    def _land(self, flight: _Flight, steps: Iterator[None]) -> None:
        """Take *steps*, in slices."""
        try:
            self._is_landing = has_more(steps)
        except Exception as problem:
            self._is_landing = False
            self._landed(flight, self._failed(problem))
            return
        if self._is_landing:
            self._loop.call_soon(self._land, flight, steps)
        else:
            self._landed(flight, None)

    def _failed(self, problem: Exception) -> StoreError:
        """A bug of ours: the batch may be on disk but not in the index, so go no further."""
        self.fail(problem)
        return self.failure_error()

    def _landed(self, flight: _Flight, error: StoreError | None) -> None:
        self._set_free()
        future = flight.future
        if future.done():
            return  # the caller was cancelled
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    def _take_effect(self, flight: _Flight) -> Iterator[None]:
        tail = self.tail
        file = flight.file
        if flight.is_new_file:
            if tail.file is not None:
                self.files.retire(tail.file)
            file.first_batch = self._next_batch
            tail.file = file
            self.files.begun()
            self.files.refill(half_used=False)
        elif file.first_batch == 0:
            file.first_batch = self._next_batch
        tail.offset = flight.end
        self._next_batch += 1
        yield from self.index.apply_in_steps(flight.encoded.effects)
        if tail.offset * 2 > file.length:
            batches = self._next_batch - file.first_batch
            self.files.has_large_batches = tail.offset > LARGE_BATCH_BYTES * batches
            self.files.refill(half_used=True)

    def _write_error(self, request: Request, error: Exception, flight: _Flight) -> StoreError:
        if isinstance(error, OSError) and not request.sync_failed:
            answer = store_error("the journal cannot be written", error)
            if answer.retryable:
                # Nothing took effect, and the next batch goes to the same place.
                if flight.is_new_file:
                    self.files.put_back(flight.file)
                if error.errno in FULL_ERRNOS:
                    self.room.report_full()
                return answer
        self.fail(error)
        return self.failure_error()

    def fail(self, error: BaseException) -> None:
        """The journal is read-only from here on."""
        if self.failure is None:
            self.failure = error
            if isinstance(error, StoreLockedError):
                return  # its handler reports the lost lock
            trace = None if isinstance(error, OSError | StoreError) else error
            logger.error("the journal is read-only now error=%r", error, exc_info=trace)

    def failure_error(self) -> StoreError:
        """What callers are told after :attr:`failure`."""
        if self.failure is None:
            return StoreClosedError("the journal store is not open")
        if isinstance(self.failure, StoreLockedError):
            return StoreLostError(str(self.failure))
        return StoreIOError(
            f"the journal is read-only after an error: {str(self.failure) or repr(self.failure)}. "
            "Restart the gateway once the disk works again"
        )
