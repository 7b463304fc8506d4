"""Writes plans to the database, counts them, and cleans up after them in small steps."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from tidegate.spi import Durability, Operation, StoreError, WriteBatch
from tidegate_store_jdbc.database.adapter import Row, Step
from tidegate_store_jdbc.rows import codec
from tidegate_store_jdbc.rows.batch import Plan, plan, steps
from tidegate_store_jdbc.rows.codec import Columns
from tidegate_store_jdbc.transactions.transactions import Transactions

logger = logging.getLogger("tidegate.store.jdbc")

T = TypeVar("T")


class Work:
    """Work that must finish even if its caller is cancelled: it has given out numbers."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    async def whole(self, work: Coroutine[Any, Any, T]) -> T:
        """Run *work*. Raises: what it does."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return await asyncio.shield(task)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # a cancelled caller does not retrieve it

    async def ended(self) -> None:
        """Wait for everything still running."""
        if self._tasks:
            await asyncio.wait(self._tasks)


class Writer:
    """Writes one plan at a time.

    Attributes:
        turn: the lock that a write holds.
        removed: lists that are gone and not cleaned up yet.
        on_dead: called with the places of bodies (:attr:`Plan.references`) that no message needs any
            more.
    """

    def __init__(
        self, transactions: Transactions, columns: Columns, *, keeps_log: bool, cleanup_limit: int
    ) -> None:
        self._transactions = transactions
        self._columns = columns
        self._keeps_log = keeps_log
        self._cleanup_limit = cleanup_limit
        self.turn = asyncio.Lock()
        self.removed: set[int] = set()
        self.on_dead: Callable[[list[int]], object] | None = None

    def extend(self, made: Plan, operations: Sequence[Operation]) -> None:
        """Carry *operations* out on *made*. Raises: PluginContractError for an unknown one."""
        plan(operations, self._columns, made, keep_acknowledged=self._keeps_log)

    async def write(self, batch: WriteBatch) -> None:
        """See MessageStore."""
        synced = batch.durability is Durability.SYNCED
        async with self.turn:
            if not batch.operations:
                if synced and self._transactions.has_unsynced:
                    await self._transactions.commit([], synced=True)
                return
            counters = self._transactions.counters
            made = Plan(counters.ack_last)
            self.extend(made, batch.operations)
            await self.carry_out(made, synced=synced)
            if not made.removed_lists:
                return
            self.removed.update(made.removed_lists)
        await self.or_later(self.clean(chunks=1))

    async def delete_released(self) -> None:
        """Delete released rows of the log, and messages that nothing else holds."""
        counters, limit = self._transactions.counters, self._cleanup_limit
        while True:
            async with self.turn:
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

    async def clean(self, *, chunks: int | None = None) -> None:
        """Delete what is left of removed lists; *chunks*: most transactions per list."""
        limit = self._cleanup_limit
        for pending_list in sorted(self.removed):
            done = 0
            while chunks is None or done < chunks:
                done += 1
                async with self.turn:
                    rows = await self._transactions.fetch(
                        "find_removed_messages_statement", (pending_list, limit)
                    )
                    made = Plan()
                    made.removed = {(pending_list, row[0]): None for row in rows}
                    made.left = made.discarded = {row[0] for row in rows}
                    is_last = len(rows) < limit
                    also = [Step("delete_removed_statement", [(pending_list,)])] if is_last else []
                    await self.carry_out(made, synced=False, also=also)
                    if is_last:
                        self.removed.discard(pending_list)
                        break

    async def or_later(self, cleaning: Coroutine[Any, Any, None]) -> None:
        """Clean up now; if that fails, leave it to a later clean-up."""
        try:
            await cleaning
        except StoreError as error:  # the batch itself is written, and must not be repeated
            logger.warning("clean-up goes on later: %s", error)

    async def carry_out(self, made: Plan, *, synced: bool, also: Sequence[Step] = ()) -> None:
        """Write a plan and count what it changed. The caller holds ``turn``."""
        counters = self._transactions.counters
        written = steps(
            made,
            self._columns,
            keep_acknowledged=self._keeps_log,
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

    def _asks_for_dead(self, rows: Sequence[Row]) -> list[Step]:
        if self.on_dead is None:
            return []
        return [Step("find_dead_messages_statement", rows, fetch=True)]

    def _tell_dead(self, rows: Sequence[Row]) -> None:
        places = [codec.place_of_body(bytes(row[0])) for row in rows]
        if self.on_dead is not None:
            self.on_dead([place for place in places if place is not None])

    async def kept(self, sequences: Sequence[int]) -> set[int]:
        """Those of *sequences* whose messages the database holds. Raises: as ``write``."""
        rows = [(sequence,) for sequence in sequences]
        async with self.turn:
            while True:
                results = await self._transactions.commit(
                    [Step("find_kept_messages_statement", rows, fetch=True)], synced=False
                )
                if results is not None:
                    return {int(row[0]) for row in results[0]}
