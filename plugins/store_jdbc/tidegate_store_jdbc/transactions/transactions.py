"""Transactions of one store: fenced, counted, repeated when the connection breaks.

The first statement of each checks the fencing token, counts the transaction and writes the store's
numbers, all in the lock row. When the connection breaks during a COMMIT, the count later tells
whether the transaction took effect: it is neither repeated nor lost.

A transaction that nobody waits for is not synced, and a server crash may lose it while the gateway
lives on. The same count tells which are missing; they are kept until the next synced one, and
repeated before anything else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from tidegate.spi import StoreClosedError, StoreError, StoreIOError, StoreLostError
from tidegate_store_jdbc.database.adapter import (
    Adapter,
    DatabaseError,
    DatabaseFullError,
    DatabaseUnavailableError,
    FenceError,
    Row,
    Step,
    StepResult,
)
from tidegate_store_jdbc.transactions import recovery
from tidegate_store_jdbc.transactions.lock import Lease, read_lock
from tidegate_store_jdbc.transactions.reachability import Reachability
from tidegate_store_jdbc.transactions.recovery import Counters

logger = logging.getLogger("tidegate.store.jdbc")

T = TypeVar("T")

#: Most unsynced transactions kept in case the server crashes; then one is synced.
_UNSYNCED_MAX: Final = 64


class Transactions:
    """Runs a store's transactions and queries.

    Args: on_lost: called once when another gateway has the store.

    Attributes:
        counters: the store's numbers; ``commit`` writes them as they are.
        is_open: queries and transactions are allowed.
        failure: why the store is read-only, if it is.
        has_unsynced: something committed could still be lost in a power cut.
    """

    def __init__(
        self,
        adapter: Adapter,
        lease: Lease,
        reachability: Reachability,
        on_lost: Callable[[str], None],
    ) -> None:
        self._adapter = adapter
        self._lease = lease
        self._reachability = reachability
        self._on_lost = on_lost
        self.counters = Counters()
        self.is_open = False
        self.failure: StoreError | None = None
        self.has_unsynced = False
        self._unsynced: list[tuple[int, list[Step]]] = []
        self._restoring = asyncio.Lock()

    async def commit(self, made: Sequence[Step], *, synced: bool) -> list[StepResult] | None:
        """Run steps in one transaction, as often as it takes; one call at a time.

        Returns: their results; None when a transaction whose answer was lost had succeeded.
        Raises: StoreFullError, StoreUnavailableError (nothing was written); StoreIOError,
            StoreClosedError.
        """
        counters = self.counters
        batch = counters.batch + 1
        synced = synced or len(self._unsynced) >= _UNSYNCED_MAX
        numbers = (batch, counters.last_sequence, counters.last_list, counters.ack_last)
        row = (*numbers, counters.ack_released, self._lease.token, counters.batch)
        steps = [Step("update_batch_statement", [row]), *made]
        in_doubt = False
        since: float | None = None
        while True:
            self.require_open()
            results: list[StepResult] | None = None
            try:
                await self._reachability.until(since=since, in_doubt=in_doubt)
                results = await self._adapter.transaction(steps, synced=synced)
            except DatabaseUnavailableError as error:
                in_doubt = in_doubt or error.in_doubt
                since = asyncio.get_running_loop().time() if since is None else since
                self._reachability.lost(str(error))
                continue
            except FenceError:
                if not in_doubt or not await self.ask(lambda: self._is_written(batch)):
                    if not await self.ask(self.restore):
                        raise self.lose("another gateway owns the store now") from None
                    continue
            except DatabaseFullError as error:
                raise error.store_error("the database has no room") from error
            except StoreError:
                self.require_open()  # failed for good during the wait: report that
                raise
            except Exception as error:
                raise self.fail(f"the database refused a batch: {error}") from error
            self._reachability.worked()
            counters.batch = batch
            self.has_unsynced = not synced
            if synced:
                counters.ack_synced = counters.ack_last
                self._unsynced.clear()
            elif not self._adapter.dialect.is_embedded:
                self._unsynced.append((batch, steps))
            return None if results is None else results[1:]

    async def _is_written(self, batch: int) -> bool:
        """Whether the transaction whose COMMIT got no answer took effect."""
        row = await read_lock(self._adapter)
        return row.fencing_token == self._lease.token and row.batch == batch

    async def restore(self) -> bool:
        """Repeat the transactions that the server lost when it crashed.

        Returns: whether everything up to now is there; False when another gateway has the store.
        Raises: DatabaseError.
        """
        async with self._restoring:
            while True:
                row = await read_lock(self._adapter)
                lost = [kept for kept in self._unsynced if kept[0] > row.batch]
                is_complete = row.batch + len(lost) == self.counters.batch
                if row.fencing_token != self._lease.token or not is_complete:
                    return False
                try:
                    for _, steps in lost:
                        await self._adapter.transaction(steps, synced=True)
                except FenceError:
                    continue  # an earlier one, whose answer was lost, has arrived after all
                if lost:
                    logger.warning("database=restored lost_transactions=%d", len(lost))
                return True

    async def recount(self) -> None:
        """Recount what a transaction changed when its results were lost. Raises: as ``ask``."""
        await self.ask(lambda: recovery.count(self._adapter, self.counters))

    async def fetch(self, statement: str, row: Row) -> Sequence[Row]:
        """Run a query; wait for the database as long as it takes.

        Raises: CorruptRecordError, StoreFullError (no room for its work), StoreIOError,
            StoreClosedError.
        """
        while True:
            self.require_open()
            await self._reachability.until(in_doubt=True)
            try:
                return await self._adapter.fetch(statement, row)
            except DatabaseUnavailableError as error:
                self.require_open()  # closed meanwhile: report that instead
                self._reachability.lost(str(error))
            except DatabaseError as error:
                raise error.store_error(f"reading with {statement}") from error

    async def ask(self, question: Callable[[], Awaitable[T]]) -> T:
        """Ask about a batch that may have been written, until the database answers.

        Such a batch must never be repeated by the caller, so this waits for a full database too,
        and one that refuses to answer makes the store read-only.
        Raises: StoreIOError, StoreClosedError.
        """
        while True:
            self.require_open()
            try:
                return await question()
            except (DatabaseUnavailableError, DatabaseFullError) as error:
                self._reachability.lost(str(error))
                await self._reachability.until(in_doubt=True)
            except DatabaseError as error:
                raise self.fail(f"the database does not answer about a batch: {error}") from error

    def fail(self, problem: str) -> StoreIOError:
        """The store is read-only from here on."""
        error = StoreIOError(f"{problem}; the store is read-only until the gateway is restarted")
        if self._end(error):
            logger.critical("store=read-only error=%r", problem)
        return error

    def lose(self, problem: str) -> StoreLostError:
        """Another gateway has the store: call ``on_lost``."""
        error = StoreLostError(problem)
        if self._end(error):
            self._on_lost(problem)
        return error

    def _end(self, error: StoreError) -> bool:
        if self.failure is not None:
            return False
        self.failure = error
        self._reachability.close()
        return True

    def require_open(self) -> None:
        """Raises: StoreClosedError; what made the store read-only."""
        if not self.is_open:
            raise StoreClosedError("the store is not open")
        if self.failure is not None:
            raise self.failure
