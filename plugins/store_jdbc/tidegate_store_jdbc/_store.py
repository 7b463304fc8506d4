"""The SQL store: :class:`tidegate.spi.MessageStore` over a database adapter.

One batch is one transaction. What a batch becomes is in ``_batch``, how transactions survive broken
connections and lost locks in ``_transactions``; here are the contract, opening, and cleaning up.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

from tidegate.spi import (
    AcknowledgedPage,
    Branch,
    ConfigError,
    DuplicateId,
    Durability,
    LogStatistics,
    Operation,
    RecoveredState,
    RecoveryReport,
    RemoveSubscription,
    RequestError,
    StoreCapabilities,
    StoreClosedError,
    StoreContext,
    StoredMessage,
    StoreError,
    StoreIOError,
    StoreStatistics,
    WriteBatch,
)
from tidegate_store_jdbc import _codec, _recovery
from tidegate_store_jdbc._adapter import (
    Adapter,
    AdapterContext,
    DatabaseCorruptError,
    DatabaseError,
    DatabaseUnavailableError,
    Row,
    Step,
    adapter_factory,
    register_adapter,
)
from tidegate_store_jdbc._batch import Plan, plan, steps
from tidegate_store_jdbc._codec import Columns
from tidegate_store_jdbc._connection import Reachability
from tidegate_store_jdbc._front import Mark, read_mark, refuse_open_mark
from tidegate_store_jdbc._lock import FAIL_SECONDS, Lease, make_owner, read_lock
from tidegate_store_jdbc._options import AUTO, WAIT, JdbcOptions, check
from tidegate_store_jdbc._recovery import Counters, Found
from tidegate_store_jdbc._schema import SCHEMA_VERSION, create_statements, migrate, words
from tidegate_store_jdbc._secrets import Credentials, ask, credentials
from tidegate_store_jdbc._sqlite import SqliteAdapter
from tidegate_store_jdbc._statements import resolve
from tidegate_store_jdbc._transactions import Transactions
from tidegate_store_jdbc._url import parse_url

logger = logging.getLogger("tidegate.store.jdbc")

T = TypeVar("T")

#: Time between looks at how much room the tables take, in seconds.
_MEASURE_SECONDS: Final = 10.0
#: Statements that must work before the schema's version is known to be right.
_FIRST: Final = (
    "find_lock_statement",
    "add_lock_statement",
    "lock_create_statement",
    "lock_update_statement",
    "lock_release_statement",
    "find_version_statement",
    "add_version_statement",
)


def _postgres(context: AdapterContext) -> Adapter:
    from tidegate_store_jdbc._postgres import PostgresAdapter  # its driver is not small

    return PostgresAdapter(context)


register_adapter("sqlite", SqliteAdapter, ("sqlite", "sqlite3"))
register_adapter("postgresql", _postgres, ("postgresql", "postgres"))


class JdbcStore:
    """See the module and the contract. One instance is opened once."""

    def __init__(self, context: StoreContext, options: JdbcOptions) -> None:
        """Touches no disk and no network. Raises: ConfigError."""
        check(options)
        self._context = context
        self._options = options
        self._credentials = Credentials()
        self._adapter = self._make_adapter()
        known = words(options, self._adapter.dialect)
        self._words = known
        self._statements = resolve(self._adapter.dialect.statements, options.statements, known)
        self._columns = Columns(known)
        self._is_opened_once = False
        self._is_closing = False
        self._writing = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._maintenance: asyncio.Task[None] | None = None
        self._reachability = Reachability(self._probe, options.reconnect_wait)
        self._lease = self._make_lease()
        self._transactions = Transactions(self._adapter, self._lease, self._reachability)
        self._removed: set[int] = set()
        self._disk_bytes = 0
        self._was_clean = True
        #: Called with the places of bodies (:attr:`Plan.references`) that no message needs any more.
        self.on_dead: Callable[[list[int]], object] | None = None
        self._store_id = ""

    def _make_adapter(self) -> Adapter:
        options, context = self._options, self._context
        url = parse_url(options.url)
        self._credentials = credentials(options, url, context.data_directory, os.environ)
        made = AdapterContext(
            url=url,
            credentials=self._credentials,
            directory=context.data_directory,
            network_timeout=options.network_timeout,
            connections_max=options.connections_max,
        )
        if not context.persistent:
            return SqliteAdapter(made, in_memory=True)
        return adapter_factory(options.adapter, url.scheme)(made)

    def _make_lease(self) -> Lease:
        options, adapter, context = self._options, self._adapter, self._context
        waits = context.may_stand_by and (
            options.lock_policy == WAIT
            or (options.lock_policy == AUTO and not adapter.dialect.is_embedded)
        )
        is_leased = options.use_database_lock and context.persistent
        return Lease(
            adapter,
            make_owner(context.gateway_name),
            waits=waits,
            duration=options.lock_expiration if is_leased else 0.0,
            renew_period=options.lock_renew_period,
            on_lost=self._lost,
            on_unreachable=self._reachability.lost,
        )

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
        )

    async def open(self) -> RecoveredState:
        """See MessageStore. As a standby it returns when this gateway is the master.

        Raises: ConfigError for a statement that the database does not accept; StoreIOError also
            when a journal holds confirmed messages that are not in the database yet.
        """
        mark = await self.acquire()
        try:
            refuse_open_mark(mark)
        except StoreIOError:
            await self._let_go()
            raise
        return await self.recover()

    async def acquire(self) -> Mark | None:
        """The first half of :meth:`open`: connect, create what is missing, own the store.

        For whoever has a journal in front: :meth:`carry_out` may be called after it.
        Returns: which journal stood in front when the store was last used. Raises: as ``open``.
        """
        if self._is_opened_once:
            raise StoreClosedError("an SQL store is opened only once; make a new one")
        self._is_opened_once = True
        async with self._undone_unless_opened():
            await self._acquire()
            return await read_mark(self._adapter)

    async def recover(self) -> RecoveredState:
        """The second half of :meth:`open`: tell what is there. Raises: as ``open``."""
        async with self._undone_unless_opened():
            lock = await read_lock(self._adapter)
            found = await _recovery.recover(self._adapter, lock, self._store_id)
            return await self._start(found, clean=self._was_clean)

    @contextlib.asynccontextmanager
    async def _undone_unless_opened(self) -> AsyncGenerator[None]:
        try:
            yield
        except DatabaseError as error:
            await self._let_go()
            raise self._open_error(error) from error
        except BaseException:
            await self._let_go()
            raise

    async def write(self, batch: WriteBatch) -> None:
        """See MessageStore."""
        self._require_open()
        await self._in_task(self._write(batch))

    async def page_in(
        self, pending_list: int, after: int, limit: int, bytes_max: int
    ) -> Sequence[StoredMessage]:
        """See MessageStore. While the database is away it waits."""
        self._require_open()
        if pending_list in self._removed:
            return ()
        rows = await self._fetch(
            "find_next_message_statement", (pending_list, after, limit, bytes_max)
        )
        return [_codec.stored_message(row) for row in rows]

    async def recovered_branches(self) -> Sequence[Branch]:
        """See Branches."""
        rows = await self._fetch("find_all_branches_statement", ())
        return [_codec.decoded(Branch, row[0], "branch table") for row in rows]

    async def recovered_duplicate_ids(self) -> Sequence[DuplicateId]:
        """See DuplicateIds."""
        rows = await self._fetch("find_all_duplicate_ids_statement", ())
        return [_codec.decoded(DuplicateId, row[0], "duplicate id table") for row in rows]

    async def acknowledged(self, after: int, limit: int, bytes_max: int) -> AcknowledgedPage:
        """See AcknowledgedLog."""
        self._require_open()
        counters = self._counters
        if counters.ack_synced < counters.ack_last:
            # Nobody may see a row whose number could be given to another after a power cut.
            await self._in_task(self._write(WriteBatch()))
        last = counters.ack_synced
        self._require_kept(after)
        rows = await self._fetch("find_acknowledged_statement", (after, limit, bytes_max))
        self._require_kept(after)
        page = [_codec.acknowledged_message(row) for row in rows if row[0] <= last]
        return AcknowledgedPage(page, last)

    async def release_acknowledged(self, through: int) -> None:
        """See AcknowledgedLog. Deletes in bounded transactions; durable with the next synced batch."""
        self._require_open()
        through = min(through, self._counters.ack_synced)
        if through > self._counters.ack_released:
            self._counters.ack_released = through
            await self._in_task(self._delete_released())

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
        """See MessageStore. Not writable also while the database is away."""
        counters = self._counters
        return StoreStatistics(
            pending_messages=counters.pending_messages,
            disk_bytes=self._disk_bytes,
            writable=self._transactions.is_open
            and self._transactions.failure is None
            and self._reachability.is_reachable,
        )

    async def close(self) -> None:
        """See MessageStore."""
        if not self._transactions.is_open:
            return
        self._is_closing = True
        self._reachability.close()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._transactions.has_unsynced and self._transactions.failure is None:
            try:
                await self._transactions.commit([], synced=True)
            except StoreError as error:
                logger.warning("closing: the last batches were not synced: %s", error)
        await self._let_go()

    # -------------------------------------------------------------------------------- opening

    async def _acquire(self) -> None:
        adapter, options, context = self._adapter, self._options, self._context
        if context.persistent:
            await ask(self._credentials)
        await self._connect()
        is_ready = await self._are_tables_there()
        if not is_ready:
            if options.create_tables_on_startup or not context.persistent:
                await adapter.create(create_statements(options, adapter.dialect, self._words))
            await adapter.prepare({name: self._statements[name] for name in _FIRST})
        identity = secrets.token_hex(16)
        await adapter.control("add_version_statement", (SCHEMA_VERSION, identity), fetch=False)
        await adapter.control("add_lock_statement", (), fetch=False)
        await self._version()
        lock = await self._lease.acquire(
            lambda owner: context.progress(f"waiting for the lock of {owner}", 0, 0)
        )
        version, self._store_id = await self._version()
        if await migrate(adapter, self._words, version) or not is_ready:
            await adapter.prepare(self._statements)
        # Everything that was written before the lock was taken is in this row now.
        self._transactions.counters = await _recovery.numbers(adapter, await read_lock(adapter))
        self._transactions.is_open = True
        self._was_clean = not lock.expires_at

    async def _are_tables_there(self) -> bool:
        """Whether nothing needs to be created: that would wait for a master that is writing."""
        try:
            await self._adapter.prepare(self._statements)
        except (DatabaseUnavailableError, DatabaseCorruptError):
            raise
        except DatabaseError:
            return False
        return True

    async def _connect(self) -> None:
        """Connect; wait a while for a database that is being started at the same time."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._options.network_timeout
        while True:
            try:
                await self._adapter.connect()
            except DatabaseUnavailableError as error:
                if loop.time() + FAIL_SECONDS > end:
                    raise
                logger.warning("waiting for the database: %s", error)
                await asyncio.sleep(FAIL_SECONDS)
            else:
                return

    async def _probe(self) -> None:
        """A small write that shows whether the database is back. Raises: DatabaseError."""
        if await self._lease.renew() and self._transactions.is_open:
            # Readers wait for this, too: they must not see what was before a crash of the server.
            await self._transactions.restore()

    async def _version(self) -> tuple[int, str]:
        rows = await self._adapter.control("find_version_statement", (), fetch=True)
        if not rows:
            raise StoreIOError("the version table has no row; was it emptied by hand?")
        version = int(rows[0][0])
        if version > SCHEMA_VERSION:
            await migrate(self._adapter, self._words, version)  # refuses
        return version, str(rows[0][1])

    async def _start(self, found: Found, *, clean: bool) -> RecoveredState:
        self._transactions.counters = found.counters
        temporary = [known for known in found.subscriptions if not known.durable]
        if temporary:
            # A killed gateway could not remove those of its connections: they end here.
            gone = [RemoveSubscription(known.pending_list) for known in temporary]
            await self._write(WriteBatch([*gone]))
            found.subscriptions = [known for known in found.subscriptions if known.durable]
            for known in temporary:
                found.pending.pop(known.pending_list, None)
        self._removed |= set(found.removed)
        await self._clean(chunks=1)
        if not self._context.keep_acknowledged and found.counters.ack_last:
            found.counters.ack_released = found.counters.ack_last
            await self._delete_released()
        await self._measure()
        self._maintenance = asyncio.get_running_loop().create_task(
            self._maintain(), name="jdbc-maintenance"
        )
        return await found.state(self._adapter, RecoveryReport(clean=clean))

    def _open_error(self, error: DatabaseError) -> Exception:
        where = str(parse_url(self._options.url))
        if isinstance(error, DatabaseCorruptError):
            return error.store_error(where)
        told = error.store_error(f"cannot open the store in {where}")
        if error.statement and not told.retryable:
            name = error.statement
            is_create = name.startswith("create_statements.")
            hint = "" if is_create else "; is a table missing (create_tables_on_startup)?"
            key = name if "." in name else f"statements.{name}"
            return ConfigError(f"the database refuses it: {error.problem}{hint}", key=key)
        return told

    # -------------------------------------------------------------------------------- writing

    async def _in_task(self, work: Coroutine[Any, Any, T]) -> T:
        """Run *work* to its end even when the caller is cancelled: numbers were given out in it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return await asyncio.shield(task)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # a caller that was cancelled does not ask for it

    async def _write(self, batch: WriteBatch) -> None:
        synced = batch.durability is Durability.SYNCED
        async with self._writing:
            if not batch.operations:
                if synced and self._transactions.has_unsynced:
                    await self._transactions.commit([], synced=True)
                return
            counters = self._counters
            keep = self._context.keep_acknowledged
            made = plan(
                batch.operations, self._columns, Plan(counters.ack_last), keep_acknowledged=keep
            )
            await self._carry_out(made, synced=synced)
            if not made.removed_lists:
                return
            self._removed.update(made.removed_lists)
        await self._or_later(self._clean(chunks=1))

    async def _or_later(self, cleaning: Coroutine[Any, Any, None]) -> None:
        try:
            await cleaning
        except StoreError as error:  # the batch itself is written, and must not be repeated
            logger.warning("clean-up goes on later: %s", error)

    async def _carry_out(self, made: Plan, *, synced: bool, also: Sequence[Step] = ()) -> None:
        """Write a plan and count what it changed. The caller holds ``_writing``."""
        counters = self._counters
        written = steps(
            made,
            self._columns,
            keep_acknowledged=self._context.keep_acknowledged,
            tell_dead=self.on_dead is not None,
        )
        before = (counters.last_sequence, counters.last_list, counters.ack_last)
        counters.last_sequence = max(counters.last_sequence, made.last_sequence)
        counters.last_list = max(counters.last_list, made.last_list)
        counters.ack_last = max(counters.ack_last, made.ack_last)
        try:
            results = await self._transactions.commit([*written.steps, *also], synced=synced)
        except BaseException:
            counters.last_sequence, counters.last_list, counters.ack_last = before
            raise
        if results is None:
            await self._transactions.recount()
            return
        if written.dead_at >= 0:
            self._tell_dead(results[written.dead_at])
        counters.pending_messages += written.added
        counters.acknowledged_bytes += written.log_bytes
        if written.removed_at >= 0:
            counters.pending_messages -= results[written.removed_at]
        elif written.counted_at >= 0:
            for messages, body_bytes in results[written.counted_at]:
                counters.pending_messages -= int(messages)
                counters.acknowledged_bytes += int(body_bytes)
        if made.log and before[2] == counters.ack_released:
            counters.acknowledged_oldest_at = made.log[0][4]

    def _lost(self, problem: str) -> None:
        self._transactions.fail(problem)

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

    def extend(self, made: Plan, operations: Sequence[Operation]) -> None:
        """Carry *operations* out on *made*. Raises: PluginContractError for an unknown one."""
        plan(operations, self._columns, made, keep_acknowledged=self._context.keep_acknowledged)

    async def carry_out(self, made: Plan, mark: Mark, *, released: int = 0) -> None:
        """Write a plan and the mark of the journal that it came from, in one synced transaction.

        Args: released: the acknowledged log is released up to here (rows of *made* are not written).
        Raises: as ``write``; after one that is ``retryable`` the same plan may be carried out again.
        """
        async with self._writing:
            counters = self._counters
            before = counters.ack_released
            counters.ack_released = max(
                before, min(released, max(counters.ack_last, made.ack_last))
            )
            row = (mark.journal, mark.place, mark.position, int(mark.is_open))
            try:
                await self._carry_out(
                    made, synced=True, also=[Step("put_journal_statement", [row])]
                )
            except BaseException:
                counters.ack_released = before
                raise
            self._removed.update(made.removed_lists)
        if counters.ack_released > before:
            await self._or_later(self._delete_released())
        if made.removed_lists:
            await self._or_later(self._clean(chunks=1))

    async def kept(self, sequences: Sequence[int]) -> set[int]:
        """Those of *sequences* whose messages the database holds. Raises: as ``write``."""
        rows = [(sequence,) for sequence in sequences]
        async with self._writing:
            while True:
                results = await self._transactions.commit(
                    [Step("find_kept_messages_statement", rows, fetch=True)], synced=False
                )
                if results is not None:
                    return {int(row[0]) for row in results[0]}

    def _asks_for_dead(self, rows: Sequence[Row]) -> list[Step]:
        if self.on_dead is None:
            return []
        return [Step("find_dead_messages_statement", rows, fetch=True)]

    def _tell_dead(self, rows: Sequence[Row]) -> None:
        places = [_codec.place_of_body(bytes(row[0])) for row in rows]
        if self.on_dead is not None:
            self.on_dead([place for place in places if place is not None])

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
            self._require_open()  # closed under the caller's feet: say that
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

    async def _delete_released(self) -> None:
        """Delete released rows of the log, and messages that nobody else holds."""
        counters, limit = self._counters, self._options.cleanup_limit
        while True:
            async with self._writing:
                through = counters.ack_released
                rows = await self._transactions.fetch("find_released_statement", (through, limit))
                if rows:
                    left = [(sequence,) for sequence in sorted({row[1] for row in rows})]
                    results = await self._transactions.commit(
                        [
                            Step("delete_acknowledged_statement", [(rows[-1][0],)]),
                            *self._asks_for_dead(left),
                            Step("count_released_messages_statement", left, fetch=True),
                            Step("delete_old_messages_statement", left),
                        ],
                        synced=False,
                    )
                    if results is None:
                        await self._transactions.recount()
                    else:
                        counters.acknowledged_bytes -= sum(int(row[1]) for row in results[-2])
                        if len(results) > 3:
                            self._tell_dead(results[1])
                if len(rows) < limit:
                    counters.acknowledged_oldest_at = 0
                    if counters.ack_released < counters.ack_last:
                        rows = await self._transactions.fetch(
                            "find_oldest_acknowledged_statement", (through,)
                        )
                        counters.acknowledged_oldest_at = rows[0][0] if rows else 0
                    return

    async def _clean(self, *, chunks: int | None = None) -> None:
        """Delete what is left of removed lists; *chunks*: at most so many transactions a list."""
        limit = self._options.cleanup_limit
        for pending_list in sorted(self._removed):
            done = 0
            while chunks is None or done < chunks:
                done += 1
                async with self._writing:
                    rows = await self._transactions.fetch(
                        "find_removed_messages_statement", (pending_list, limit)
                    )
                    made = Plan()
                    made.removed = {(pending_list, row[0]): None for row in rows}
                    made.left = made.discarded = {row[0] for row in rows}
                    is_last = len(rows) < limit
                    also = [Step("delete_removed_statement", [(pending_list,)])] if is_last else []
                    await self._carry_out(made, synced=False, also=also)
                    if is_last:
                        self._removed.discard(pending_list)
                        break

    async def _maintain(self) -> None:
        loop = asyncio.get_running_loop()
        period = self._options.cleanup_period
        next_cleanup = loop.time() + period
        while True:
            await asyncio.sleep(min(period, _MEASURE_SECONDS))
            try:
                await self._measure()
                if loop.time() >= next_cleanup:
                    next_cleanup = loop.time() + period
                    await self._in_task(self._clean())
            except (StoreError, DatabaseError) as error:
                logger.warning("clean-up goes on later: %s", error)
                if isinstance(error, DatabaseUnavailableError):
                    self._reachability.lost(str(error))

    async def _measure(self) -> None:
        rows = await self._adapter.fetch("database_size_statement", ())
        self._disk_bytes = int(rows[0][0])

    # --------------------------------------------------------------------------------- closing

    async def _let_go(self) -> None:
        if self._maintenance is not None:
            self._maintenance.cancel()
            await asyncio.wait([self._maintenance])
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._transactions.is_open = False
        # When the database is away the lease ends by itself.
        await self._lease.release(is_reachable=self._reachability.is_reachable)
        await self._adapter.close()
