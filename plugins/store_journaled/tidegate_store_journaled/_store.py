"""The journaled store: :class:`tidegate.spi.MessageStore` over a journal and a database.

1. A batch is one record in the journal; once that is durable the batch is confirmed.
2. The records since the last checkpoint are merged in memory (:class:`Overlay`).
3. A checkpoint writes the outcome to the database in one transaction, which also records up to
   which record it has everything; only then are those records discarded from the journal.
4. After a crash the records after that mark are merged and written before anything else. The
   moment of the crash does not matter: before the transaction they are all there, after it they
   are skipped.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Sequence
from typing import Final

from tidegate.spi import (
    AcknowledgedMessage,
    AcknowledgedPage,
    AddMessage,
    Durability,
    LogStatistics,
    Message,
    Move,
    Operation,
    RecoveredState,
    RecoveryReport,
    RequestError,
    StoreCapabilities,
    StoreClosedError,
    StoreContext,
    StoredMessage,
    StoreError,
    StoreFullError,
    StoreIOError,
    StoreLostError,
    StorePart,
    StoreStatistics,
    WriteBatch,
)
from tidegate_store_jdbc import JdbcStore, Work, logged_message
from tidegate_store_journal import JournalStore
from tidegate_store_journaled._counts import Counts
from tidegate_store_journaled._front import Front
from tidegate_store_journaled._options import (
    IGNORE,
    JournaledOptions,
    check_journal,
    journal_options,
)
from tidegate_store_journaled._overlay import Overlay
from tidegate_store_journaled._pages import Bodies, Pages
from tidegate_store_journaled._replay import Replay, check_mark

logger = logging.getLogger("tidegate.store.journaled")

#: Pause after a failed checkpoint before the next attempt, seconds.
_RETRY_SECONDS: Final = 1.0


class JournaledStore:
    """See the module and the contract. One instance is opened once."""

    def __init__(self, context: StoreContext, options: JournaledOptions) -> None:
        """Touches no disk and no network. Raises: ConfigError."""
        check_journal(options)
        self._context = context
        self._options = options
        self._database = JdbcStore(context, options)
        # What the broker keeps free is for acknowledgements, which are messages of the journal.
        own = dataclasses.replace(context, keep_acknowledged=False, disk_free_limit=0)
        directory = context.data_directory / options.journal_directory
        journal = journal_options(options, is_standby=self._database.is_standby)
        self._front = Front(JournalStore(own, journal), directory)
        self._current = Overlay(0, keeps_log=context.keep_acknowledged)
        self._frozen: Overlay | None = None
        self._counts = Counts()
        self._bodies = Bodies(self._front, self._database)
        self._gives_up = options.journal_lost_policy == IGNORE
        self._pages = Pages(self._database, self._counts, self._front)
        self._writing = asyncio.Lock()
        self._checkpointing = asyncio.Lock()
        self._wake = asyncio.Event()
        self._freed = asyncio.Event()
        self._stuck: StoreError | None = None
        self._failure: StoreError | None = None
        self._ack_synced = 0
        self._released = 0
        self._position = 0
        self._has_unsynced = False
        self._needs_sweep = False
        self._work = Work()
        self._worker: asyncio.Task[None] | None = None
        self._is_open = False

    # ------------------------------------------------------------------------------- contract

    @property
    def capabilities(self) -> StoreCapabilities:
        """See MessageStore."""
        offered = self._database.capabilities
        directories = {*offered.directories, *self._front.directories}
        return dataclasses.replace(
            offered, acknowledged_log=self, directories=tuple(sorted(directories)), parts=self
        )

    async def open(self) -> RecoveredState:
        """See MessageStore. As a standby it returns when database and journal are its own.

        Raises: StoreIOError also when confirmed messages are in another journal.
        """
        mark = await self._database.acquire()
        try:
            await self._front.open()
            position = await check_mark(mark, self._front, gives_up=self._gives_up)
            return await self._recover(position, was_open=mark is not None and mark.is_open)
        except BaseException:
            await self._front.close()
            await self._database.close()
            raise

    async def write(self, batch: WriteBatch) -> None:
        """See MessageStore. Durable in the journal on return; in the database later."""
        self._require_open()
        await self._work.whole(self._write(batch.operations, batch.durability))

    async def page_in(
        self, pending_list: int, after: int, limit: int, bytes_max: int
    ) -> Sequence[StoredMessage]:
        """See MessageStore. Waits for the database only when part of the list is there."""
        self._require_open()
        return await self._pages.read(pending_list, after, limit, bytes_max, self._overlays)

    async def acknowledged(self, after: int, limit: int, bytes_max: int) -> AcknowledgedPage:
        """See AcknowledgedLog."""
        self._require_open()
        if self._ack_synced < self._current.plan.ack_last:
            # Show no row whose number could be given to another row after a power cut.
            await self._work.whole(self._write([], Durability.SYNCED))
        last = self._ack_synced
        found: list[AcknowledgedMessage] = []
        size = 0
        while len(found) < limit and after < last:
            self._require_kept(after)
            rows: Sequence[AcknowledgedMessage] | None
            if after < self._database.ack_last:
                page = await self._database.acknowledged(
                    after, limit - len(found), max(bytes_max - size, 0)
                )
                self._require_kept(after)
                rows = await self._pages.rows(page.rows)
            else:
                rows = self._logged(after, limit - len(found), bytes_max - size, last)
            if rows is None:
                # Rows of messages that came from the database are first written there, at once.
                await self._checkpoint_at_last()
                continue
            if not rows or (found and size + len(rows[0].message.body) > bytes_max):
                break  # no rows: the database does not have what it should
            found += rows
            size += sum(len(row.message.body) for row in rows)
            after = found[-1].ack_sequence
            if size >= bytes_max:
                break
        return AcknowledgedPage(found, last)

    async def release_acknowledged(self, through: int) -> None:
        """See AcknowledgedLog. Rows that no checkpoint has seen yet never reach the database."""
        self._require_open()
        through = min(through, self._ack_synced)
        if through > self._released:
            await self._work.whole(self._release(through))

    def log_statistics(self) -> LogStatistics:
        """See AcknowledgedLog."""
        log = [row for overlay in self._overlays() for row in overlay.plan.log[:1]]
        held = sum(overlay.log_bytes for overlay in self._overlays())
        oldest = log[0][4] if log else 0
        if self._released < self._database.ack_last:
            database = self._database.log_statistics()
            # The database learns of released rows only at the next checkpoint. Whoever discards rows until few
            # enough are left must see the difference at once: until then they count as rows of average size.
            in_database = database.last - database.first + 1
            held += database.held_bytes * (database.last - self._released) // in_database
            oldest = database.oldest_at
        return LogStatistics(self._released + 1, self._current.plan.ack_last, held, oldest)

    def statistics(self) -> StoreStatistics:
        """See MessageStore."""
        database, front = self._database.statistics(), self._front.disk_bytes
        options = self._options
        # The journal's contents go into the database too: first into its log, with a quarter more
        # for whole pages, then into its file. And the journal may grow to all its files.
        claimed = database.claimed_bytes + max(0, options.files_bytes - front)
        if self._database.capabilities.directories and not options.use_quick_journal:
            claimed += self._used * 9 // 4
        return StoreStatistics(
            pending_messages=self._counts.messages,
            disk_bytes=database.disk_bytes + front,
            writable=self._is_open and self._failure is None and self._stuck is None,
            reusable_bytes=database.reusable_bytes,
            claimed_bytes=claimed,
        )

    async def store_parts(self) -> Sequence[StorePart]:
        """See StoreParts: the journal's, and the database's."""
        return [*self._front.parts, *await self._database.store_parts()]

    async def close(self) -> None:
        """See MessageStore. Writes what is left to the database, if that is reachable."""
        if not self._is_open:
            return
        self._is_open = False
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.wait([self._worker])
        await self._work.ended()
        if self._failure is None and self._database.failure is None:
            await self._last_checkpoint()
        await self._front.close()
        await self._database.close()

    # -------------------------------------------------------------------------------- opening

    async def _recover(self, position: int, *, was_open: bool) -> RecoveredState:
        front, database = self._front, self._database
        overlay = self._new_overlay()
        replay = Replay(front, database, overlay, position)
        await replay.run(self._context.progress)
        position = max(position, overlay.position)
        front.skip_to(position)
        await database.carry_out(
            overlay.plan, front.mark(position, is_open=True), released=replay.released
        )
        state = await database.recover()
        self._bodies.settle(overlay)
        await front.discard(replay.done, self._bodies.take_dead())
        self._released = database.ack_released
        self._ack_synced = database.ack_last
        self._position = position
        self._current = self._new_overlay()
        self._counts.start(state.pending, await database.shared())
        self._needs_sweep = was_open and front.bodies_found > 0
        self._is_open = True
        self._worker = asyncio.get_running_loop().create_task(self._check_often(), name="journaled")
        report = RecoveryReport(
            clean=state.report.clean and not replay.count,
            notes=state.report.notes,
            counts={"replayed": replay.count},
        )
        return dataclasses.replace(state, report=report)

    def _new_overlay(self) -> Overlay:
        last = self._database.ack_last if self._frozen is None else self._frozen.plan.ack_last
        return Overlay(last, keeps_log=self._context.keep_acknowledged)

    # -------------------------------------------------------------------------------- writing

    async def _write(self, operations: Sequence[Operation], durability: Durability) -> None:
        if operations:
            await self._wait_for_room(operations)  # outside the lock: making room needs it
        async with self._writing:
            self._require_writable()
            try:
                await self._append(operations, durability)
            except StoreIOError as error:
                self._failure = error
                raise
            if not self._database.is_owner_for_sure and self._gives_up:
                # Another gateway may have gone on without this journal: confirm nothing until the
                # database says that none has.
                await self._database.confirm_ownership()
        if self._counts.is_stale and self._database.is_reachable:
            await self._refresh()

    async def _append(self, operations: Sequence[Operation], durability: Durability) -> None:
        front, overlay = self._front, self._current
        if operations:
            number, size, references = await front.append(
                operations, durability, apart=self._options.use_quick_journal
            )
            plan = overlay.plan
            self._database.extend(plan, operations)
            if references:
                plan.references.update(references)
            overlay.note(operations)
            overlay.add_record(number, size)
            self._counts.apply(operations)
            self._has_unsynced = True
        elif self._has_unsynced and durability is Durability.SYNCED:
            await front.sync()
        if durability is Durability.SYNCED:
            self._has_unsynced = False
            self._ack_synced = overlay.plan.ack_last

    @property
    def _used(self) -> int:
        return sum(overlay.size_bytes for overlay in self._overlays())

    async def _wait_for_room(self, operations: Sequence[Operation]) -> None:
        """Raises: StoreFullError when the database has accepted nothing for too long."""
        capacity = self._options.capacity_bytes
        size = 0
        grows = False
        for operation in operations:
            if isinstance(operation, AddMessage | Move):
                grows = True
                size += len(operation.message.body)
        if 2 * (self._used + size) > capacity:
            self._wake.set()
        # Acknowledgements make room; they may take one file more.
        limit = capacity if grows else capacity + self._options.journal_log_file_size
        while self._used and self._used + size > limit:
            self._require_writable()
            if self._stuck is not None:
                raise StoreFullError(f"the journal is full: {self._stuck}")
            self._freed.clear()
            self._wake.set()
            await self._freed.wait()

    async def _release(self, through: int) -> None:
        async with self._writing:
            if through <= self._released:
                return
            self._require_writable()
            number = await self._front.append_release(through)
            self._has_unsynced = True
            self._released = through
            self._current.add_record(number, 0)
            self._current.release(through)

    # ----------------------------------------------------------------------------- checkpoints

    async def _check_often(self) -> None:
        """Checkpoints by time and by size; notices when another gateway has the database."""
        loop = asyncio.get_running_loop()
        interval = self._options.checkpoint_interval
        look = min(interval, self._options.lock_renew_period)
        due = loop.time() + interval
        while self._failure is None:
            try:
                async with asyncio.timeout(look):
                    await self._wake.wait()
            except TimeoutError:
                pass
            if self._database.failure is not None:
                await self._give_way(self._database.failure)
                return
            if not self._wake.is_set() and loop.time() < due and not self._needs_sweep:
                continue
            self._wake.clear()
            due = loop.time() + interval
            try:
                await self._work.whole(self._checkpoint())
                if self._needs_sweep:
                    self._needs_sweep = False
                    await self._work.whole(self._sweep())
            except StoreError as error:
                if not error.retryable:
                    await self._give_way(error)
                    return
                logger.warning("checkpoint=postponed problem=%s", error)
                self._stuck = error
                self._freed.set()
                await asyncio.sleep(min(interval, _RETRY_SECONDS))
                self._wake.set()

    async def _sweep(self) -> None:
        await self._bodies.find_dead(self._position)
        async with self._writing:
            self._require_writable()
            await self._front.discard([], self._bodies.take_dead())

    async def _give_way(self, error: StoreError) -> None:
        """Become read-only; a standby takes over the journal and writes what is in it."""
        self._failure = self._failure or error
        if not isinstance(error, StoreLostError):  # the on_lost callback logs that case
            logger.critical("store=read-only error=%s", error)
        self._freed.set()
        async with self._writing:
            await self._front.close()

    async def _checkpoint(self) -> None:
        """Write the overlay to the database. Raises: StoreError; try again if ``retryable``."""
        async with self._checkpointing:
            async with self._writing:
                self._require_writable()
                if self._frozen is None:
                    if not self._current.records:
                        return
                    # The database must not be ahead of the journal: after a power cut the numbers
                    # of lost records would be reused, and skipped as already written.
                    await self._front.sync()
                    self._has_unsynced = False
                    self._ack_synced = self._current.plan.ack_last
                    self._frozen = self._current
                    self._current = self._new_overlay()
            frozen = self._frozen
            mark = self._front.mark(frozen.position, is_open=True)
            await self._database.carry_out(frozen.plan, mark, released=self._released)
            self._position = frozen.position
            self._counts.carried_over(frozen.plan)
            self._bodies.settle(frozen)
            self._frozen = None
            self._stuck = None
            async with self._writing:
                self._require_writable()
                await self._front.discard(frozen.records, self._bodies.take_dead())
            self._freed.set()

    async def _checkpoint_at_last(self) -> None:
        """Make a checkpoint, however long the database is away. Raises: as ``page_in``."""
        while True:
            self._require_open()
            try:
                await self._work.whole(self._checkpoint())
            except StoreError as error:
                if not error.retryable:
                    raise
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                return

    async def _refresh(self) -> None:
        """Ask the database which messages several lists hold, when nothing else is pending."""
        try:
            await self._checkpoint()
            async with self._writing:
                if not any(overlay.records for overlay in self._overlays()):
                    self._counts.know_shared(await self._database.shared())
        except StoreError as error:
            if not error.retryable:
                raise
            logger.warning("counts are approximate until the next checkpoint: %s", error)

    async def _last_checkpoint(self) -> None:
        if not self._database.is_reachable:
            logger.warning("closing: the database is away; the next start carries the journal over")
            return
        try:
            await self._checkpoint()
            closed = self._front.mark(self._position, is_open=False)
            await self._database.carry_out(
                self._new_overlay().plan, closed, released=self._released
            )
        except StoreError as error:
            logger.warning("closing: the next start carries the journal over: %s", error)

    # --------------------------------------------------------------------------------- reading

    def _overlays(self) -> Sequence[Overlay]:
        frozen = self._frozen
        return (self._current,) if frozen is None else (frozen, self._current)

    def _logged(
        self, after: int, limit: int, bytes_max: int, last: int
    ) -> list[AcknowledgedMessage] | None:
        """Rows that are not in the database; None when only the database has the first message."""
        rows: list[AcknowledgedMessage] = []
        size = 0
        messages: dict[int, tuple[Message, int]] = {}
        for overlay in self._overlays():
            messages = {**messages, **overlay.plan.messages} if messages else overlay.plan.messages
            log = overlay.plan.log
            start = max(0, after - log[0][0] + 1) if log else 0
            for row in log[start : start + limit]:
                if row[0] > last or len(rows) == limit:
                    return rows
                found = messages.get(row[1])
                if found is None:
                    return rows or None  # from the database
                size += len(found[0].body)
                if rows and size > bytes_max:
                    return rows
                rows.append(logged_message(row, found[0]))
        return rows or None

    def _require_open(self) -> None:
        if not self._is_open:
            raise StoreClosedError("the store is not open")
        self._require_writable()

    def _require_writable(self) -> None:
        failure = self._failure or self._database.failure
        if failure is not None:
            raise failure

    def _require_kept(self, after: int) -> None:
        if after < self._released:
            raise RequestError(
                f"acknowledged rows up to {self._released} were released; asked for those behind "
                f"{after}"
            )
