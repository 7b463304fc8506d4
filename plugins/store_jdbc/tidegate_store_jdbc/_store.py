"""The SQL store: :class:`tidegate.spi.MessageStore` over a database adapter.

One batch is one transaction. ``rows.batch`` turns batches into rows, ``transactions`` survives
broken connections and lost locks, and ``_writer`` writes the plans. Here are the contract,
opening, and the methods that a journal in front uses.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import AsyncGenerator, Callable, Sequence

from tidegate.spi import (
    AcknowledgedPage,
    Branch,
    CorruptRecordError,
    DuplicateId,
    LogStatistics,
    Operation,
    RecoveredState,
    RecoveryReport,
    RequestError,
    StoreCapabilities,
    StoreClosedError,
    StoreContext,
    StoredMessage,
    StoreError,
    StorePart,
    StoreStatistics,
    StoreUnavailableError,
    WriteBatch,
)
from tidegate.spi.machine.lease import AUTO, WAIT
from tidegate.spi.machine.owners import make_owner
from tidegate_store_jdbc._options import JdbcOptions
from tidegate_store_jdbc._room import Room
from tidegate_store_jdbc._tables import Tables
from tidegate_store_jdbc._writer import Work, Writer
from tidegate_store_jdbc.database.adapter import (
    DatabaseError,
    DatabaseUnavailableError,
    Row,
    Step,
)
from tidegate_store_jdbc.rows import codec
from tidegate_store_jdbc.rows.batch import Plan
from tidegate_store_jdbc.rows.codec import Columns
from tidegate_store_jdbc.transactions import recovery
from tidegate_store_jdbc.transactions.lock import Lease, read_lock
from tidegate_store_jdbc.transactions.reachability import Reachability
from tidegate_store_jdbc.transactions.recovery import Counters, Mark
from tidegate_store_jdbc.transactions.transactions import Transactions

logger = logging.getLogger("tidegate.store.jdbc")


class JdbcStore:
    """See the module and the contract. One instance is opened once."""

    def __init__(self, context: StoreContext, options: JdbcOptions) -> None:
        """Touches no disk and no network. Raises: ConfigError."""
        self._context = context
        self._options = options
        self._tables = Tables(options, context.data_directory, in_memory=not context.persistent)
        self._adapter = self._tables.adapter
        self._is_opened_once = False
        self._is_closing = False
        self._work = Work()
        self._maintenance: asyncio.Task[None] | None = None
        self._reachability = Reachability(self._probe, options.reconnect_wait)
        self._lease = self._make_lease()
        self._transactions = Transactions(
            self._adapter, self._lease, self._reachability, context.lost
        )
        self._writer = Writer(
            self._transactions,
            Columns(self._tables.words),
            keeps_log=context.keep_acknowledged,
            cleanup_limit=options.cleanup_limit,
        )
        self._room = Room(context, self._tables)
        self._was_clean = True
        self._store_id = ""

    def _make_lease(self) -> Lease:
        options, adapter, context = self._options, self._adapter, self._context
        is_leased = options.use_database_lock and context.persistent
        return Lease(
            adapter,
            make_owner(context.gateway_name),
            waits=self.is_standby,
            duration=options.lock_expiration if is_leased else 0.0,
            renew_period=options.lock_renew_period,
            on_lost=self._lost,
            on_unreachable=self._reachability.lost,
        )

    @property
    def is_standby(self) -> bool:
        """It waits while another gateway has the lock."""
        policy, is_embedded = self._options.lock_policy, self._adapter.dialect.is_embedded
        waits = policy == WAIT or (policy == AUTO and not is_embedded)
        return waits and self._context.may_stand_by

    @property
    def _counters(self) -> Counters:
        return self._transactions.counters

    # ------------------------------------------------------------------------------- contract

    @property
    def capabilities(self) -> StoreCapabilities:
        """See MessageStore."""
        return StoreCapabilities(
            durable=self._context.persistent,
            acknowledged_log=self,
            branches=self,
            duplicate_ids=self,
            directories=self._tables.directories,
            measures_room=self._context.persistent,
            parts=self,
        )

    async def open(self) -> RecoveredState:
        """See MessageStore. As a standby it returns when this gateway is the master.

        Raises: ConfigError for a statement that the database does not accept; StoreIOError also
            when a journal holds confirmed messages that are not in the database yet.
        """
        mark = await self.acquire()
        if mark is not None and mark.is_open:
            await self._let_go()
            raise recovery.lost_journal(mark)
        return await self.recover()

    async def acquire(self) -> Mark | None:
        """The first half of :meth:`open`: connect, create what is missing, take the lock.

        For a store with a journal in front: :meth:`carry_out` may be called after it.
        Returns: which journal stood in front when the store was last used. Raises: as ``open``.
        """
        if self._is_opened_once:
            raise StoreClosedError("an SQL store is opened only once; make a new one")
        self._is_opened_once = True
        async with self._undone_unless_opened():
            await self._acquire()
            return await recovery.read_mark(self._adapter)

    async def recover(self) -> RecoveredState:
        """The second half of :meth:`open`: report what is there. Raises: as ``open``."""
        async with self._undone_unless_opened():
            return await self._start()

    @contextlib.asynccontextmanager
    async def _undone_unless_opened(self) -> AsyncGenerator[None]:
        try:
            yield
        except DatabaseError as error:
            await self._let_go()
            raise self._tables.open_error(error) from error
        except BaseException:
            await self._let_go()
            raise

    async def write(self, batch: WriteBatch) -> None:
        """See MessageStore."""
        self._require_open()
        await self._work.whole(self._writer.write(batch))

    async def page_in(
        self, pending_list: int, after: int, limit: int, bytes_max: int
    ) -> Sequence[StoredMessage]:
        """See MessageStore. While the database is away it waits."""
        self._require_open()
        if pending_list in self._writer.removed:
            return ()
        rows = await self._fetch(
            "find_next_message_statement", (pending_list, after, limit, bytes_max)
        )
        return [codec.stored_message(row) for row in rows]

    async def recovered_branches(self) -> Sequence[Branch]:
        """See Branches."""
        rows = await self._fetch("find_all_branches_statement", ())
        return [codec.decoded(Branch, row[0], "branch table") for row in rows]

    async def recovered_duplicate_ids(self) -> Sequence[DuplicateId]:
        """See DuplicateIds."""
        rows = await self._fetch("find_all_duplicate_ids_statement", ())
        return [codec.decoded(DuplicateId, row[0], "duplicate id table") for row in rows]

    async def acknowledged(self, after: int, limit: int, bytes_max: int) -> AcknowledgedPage:
        """See AcknowledgedLog."""
        self._require_open()
        counters = self._counters
        if counters.ack_synced < counters.ack_last:
            # Show no row whose number could be given to another row after a power cut.
            await self._work.whole(self._writer.write(WriteBatch()))
        last = counters.ack_synced
        self._require_kept(after)
        rows = await self._fetch("find_acknowledged_statement", (after, limit, bytes_max))
        self._require_kept(after)
        kept = [row for row in rows if row[0] <= last]
        try:
            return AcknowledgedPage([codec.acknowledged_message(row) for row in kept], last)
        except CorruptRecordError as error:
            if len(kept) == 1:
                codec.damaged_row(kept[0], error)
            raise

    async def release_acknowledged(self, through: int) -> None:
        """See AcknowledgedLog. Deletes in bounded transactions; durable with the next synced batch."""
        self._require_open()
        through = min(through, self._counters.ack_synced)
        if through > self._counters.ack_released:
            self._counters.ack_released = through
            await self._work.whole(self._writer.delete_released())

    def log_statistics(self) -> LogStatistics:
        """See AcknowledgedLog."""
        counters = self._counters
        return LogStatistics(
            counters.ack_released + 1,
            counters.ack_last,
            counters.acknowledged_bytes,
            counters.acknowledged_oldest_at,
        )

    def statistics(self) -> StoreStatistics:
        """See MessageStore. Also not writable while the database is away."""
        counters, sizes = self._counters, self._room.sizes
        return StoreStatistics(
            pending_messages=counters.pending_messages,
            disk_bytes=sizes.disk,
            writable=self._transactions.is_open
            and self._transactions.failure is None
            and self._reachability.is_reachable,
            reusable_bytes=sizes.reusable,
            claimed_bytes=sizes.claimed,
        )

    async def store_parts(self) -> Sequence[StorePart]:
        """See StoreParts. Does not wait for a database that is away."""
        self._require_open()
        if not self._reachability.is_reachable:
            raise StoreUnavailableError("the database is not reachable")
        try:
            return await self._room.parts()
        except DatabaseError as error:
            raise error.store_error("looking at what the store is made of") from error

    async def close(self) -> None:
        """See MessageStore."""
        if not self._transactions.is_open:
            return
        self._is_closing = True
        self._reachability.close()
        await self._work.ended()
        if self._transactions.has_unsynced and self._transactions.failure is None:
            try:
                await self._transactions.commit([], synced=True)
            except StoreError as error:
                logger.warning("closing: the last batches were not synced: %s", error)
        await self._let_go()

    # -------------------------------------------------------------------------------- opening

    async def _acquire(self) -> None:
        adapter = self._adapter
        await self._tables.open()
        lock = await self._lease.acquire(self._context.stands_by)
        self._store_id = await self._tables.identity()
        # Everything written before the lock was taken is counted in this row.
        self._transactions.counters = await recovery.numbers(adapter, await read_lock(adapter))
        self._transactions.is_open = True
        self._was_clean = not lock.expires_at

    async def _probe(self) -> None:
        """A small write that shows whether the database is back. Raises: DatabaseError."""
        if await self._lease.renew() and self._transactions.is_open:
            # Readers wait for this too: they must not see the state before a server crash.
            await self._transactions.restore()

    async def _start(self) -> RecoveredState:
        adapter, writer, counters = self._adapter, self._writer, self._counters
        state = await recovery.recover(adapter, counters, self._store_id)
        gone = {int(row[0]) for row in await adapter.fetch("find_all_removed_statement", ())}
        writer.removed |= gone
        await writer.clean(chunks=1)
        if not self._context.keep_acknowledged and counters.ack_last:
            counters.ack_released = counters.ack_last
            await writer.delete_released()
        await self._room.begin()
        self._maintenance = asyncio.get_running_loop().create_task(
            self._maintain(), name="jdbc-maintenance"
        )
        return dataclasses.replace(
            state,
            pending={
                number: pending for number, pending in state.pending.items() if number not in gone
            },
            report=RecoveryReport(clean=self._was_clean),
        )

    # -------------------------------------------------------------------------------- writing

    def _lost(self, problem: str) -> None:
        self._transactions.lose(problem)

    # ---------------------------------------------------------------------- a journal in front

    @property
    def failure(self) -> StoreError | None:
        """Why nothing can be written any more, if that is so."""
        return self._transactions.failure

    @property
    def is_reachable(self) -> bool:
        """False from a failed exchange until the database takes a write again."""
        return self._reachability.is_reachable

    @property
    def is_owner_for_sure(self) -> bool:
        """Whether no other gateway can have taken the store yet, by this machine's clock."""
        return self._lease.is_sure

    async def confirm_ownership(self) -> None:
        """Renew the lease now. Raises: StoreIOError when another gateway has taken the store."""
        self._require_open()
        while not await self._transactions.ask(self._lease.renew):
            self._transactions.require_open()

    @property
    def ack_last(self) -> int:
        """The highest number of the acknowledged log that is in the database."""
        return self._counters.ack_last

    @property
    def ack_released(self) -> int:
        """The highest number that was released."""
        return self._counters.ack_released

    def tell_dead(self, told: Callable[[list[int]], object]) -> None:
        """Call *told* with the places of bodies that no message needs any more."""
        self._writer.on_dead = told

    def extend(self, made: Plan, operations: Sequence[Operation]) -> None:
        """Carry *operations* out on *made*. Raises: PluginContractError for an unknown one."""
        self._writer.extend(made, operations)

    async def carry_out(self, made: Plan, mark: Mark, *, released: int = 0) -> None:
        """Write a plan and the mark of the journal that it came from, in one synced transaction.

        Args: released: the acknowledged log is released up to here (rows of *made* are not written).
        Raises: as ``write``; after one that is ``retryable`` the same plan may be carried out again.
        """
        async with self._writer.turn:
            counters = self._counters
            before = counters.ack_released
            counters.ack_released = max(
                before, min(released, max(counters.ack_last, made.ack_last))
            )
            row = (mark.journal, mark.place, mark.position, int(mark.is_open))
            try:
                await self._writer.carry_out(
                    made, synced=True, also=[Step("put_journal_statement", [row])]
                )
            except BaseException:
                counters.ack_released = before
                raise
            self._writer.removed.update(made.removed_lists)
        if counters.ack_released > before:
            await self._writer.or_later(self._writer.delete_released())
        if made.removed_lists:
            await self._writer.or_later(self._writer.clean(chunks=1))

    async def kept(self, sequences: Sequence[int]) -> set[int]:
        """Those of *sequences* whose messages the database holds. Raises: as ``write``."""
        return await self._writer.kept(sequences)

    async def shared(self) -> dict[int, int]:
        """Messages of several lists, and how many of these hold them still. Raises: as ``page_in``."""
        rows = await self._fetch("find_shared_messages_statement", ())
        return {int(sequence): int(count) for sequence, count in rows}

    # --------------------------------------------------------------------------------- reading

    async def _fetch(self, statement: str, row: Row) -> Sequence[Row]:
        """A query of a caller, who is told when the store is being closed."""
        try:
            return await self._transactions.fetch(statement, row)
        except StoreError:
            self._require_open()  # closed meanwhile: report that instead
            raise

    def _require_open(self) -> None:
        if self._is_closing:
            raise StoreClosedError("the store is not open")
        self._transactions.require_open()

    def _require_kept(self, after: int) -> None:
        released = self._counters.ack_released
        if after < released:
            raise RequestError(
                f"acknowledged rows up to {released} were released; asked for those behind {after}"
            )

    # ---------------------------------------------------------------------------- cleaning up

    async def _maintain(self) -> None:
        loop = asyncio.get_running_loop()
        period = self._options.cleanup_period
        next_cleanup = loop.time() + period
        while True:
            await asyncio.sleep(min(period, self._room.period))
            try:
                await self._room.measure()
                if loop.time() >= next_cleanup:
                    next_cleanup = loop.time() + period
                    await self._work.whole(self._writer.clean())
            except (StoreError, DatabaseError) as error:
                logger.warning("clean-up goes on later: %s", error)
                if isinstance(error, DatabaseUnavailableError):
                    self._reachability.lost(str(error))

    # --------------------------------------------------------------------------------- closing

    async def _let_go(self) -> None:
        if self._maintenance is not None:
            self._maintenance.cancel()
            await asyncio.wait([self._maintenance])
        await self._work.ended()
        self._transactions.is_open = False
        # While the database is away, the lease simply expires.
        await self._lease.release(is_reachable=self._reachability.is_reachable)
        await self._adapter.close()
