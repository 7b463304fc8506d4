"""A store that obeys the test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tidegate.spi import (
    AcknowledgedPage,
    Durability,
    Operation,
    RecoveredState,
    StoreCapabilities,
    StoreContext,
    StoredMessage,
    StoreFullError,
    StoreStatistics,
    SyncedFor,
    WriteBatch,
)
from tidegate.testing.memory_store import MemoryContents, MemoryStore


class ScriptedStore:
    """A memory store whose writes the test holds back, lets fail, and reads.

    Attributes:
        batches: operations of each batch that became durable.
        attempts: how often ``write`` was called.
        is_full: asked for each batch; True refuses it with StoreFullError.
        error: raised by the next write (and by a read-only store ever after).
        waiting: a write stands at the gate.
    """

    def __init__(self, contents: MemoryContents, *, keep_acknowledged: bool = False) -> None:
        context = StoreContext(Path("/nowhere"), "test", keep_acknowledged=keep_acknowledged)
        self.inner = MemoryStore(context, contents)
        self.contents = contents
        self.batches: list[list[Operation]] = []
        self.durabilities: list[Durability] = []
        self.synced_for: list[SyncedFor] = []
        self.attempts = 0
        self.is_full: Callable[[WriteBatch], bool] = lambda _batch: False
        self.error: BaseException | None = None
        self.waiting = False
        self.is_closed = False
        self._gate = asyncio.Event()
        self._gate.set()
        self._writing = False

    @property
    def capabilities(self) -> StoreCapabilities:
        return self.inner.capabilities

    def hold(self) -> None:
        """From now on writes wait."""
        self._gate.clear()

    def release(self) -> None:
        """Let the waiting write, and all later ones, go on."""
        self._gate.set()

    def refuse(self, times: int, of: type[Operation] | None = None) -> None:
        """Be full for the next *times* writes (that have an operation *of* a kind)."""
        left = iter(range(times))

        def is_full(batch: WriteBatch) -> bool:
            is_meant = of is None or any(isinstance(each, of) for each in batch.operations)
            return is_meant and next(left, None) is not None

        self.is_full = is_full

    async def open(self) -> RecoveredState:
        return await self.inner.open()

    async def write(self, batch: WriteBatch) -> None:
        assert not self._writing, "write was called before the last one returned"
        self._writing = True
        self.attempts += 1
        try:
            self.waiting = not self._gate.is_set()
            await self._gate.wait()
            self.waiting = False
            await asyncio.sleep(0)
            if self.error is not None:
                raise self.error
            if self.is_full(batch):
                raise StoreFullError("no room")
            operations = list(batch.operations)
            await self.inner.write(batch)
            self.batches.append(operations)
            self.durabilities.append(batch.durability)
            self.synced_for.append(batch.synced_for)
        finally:
            self._writing = False

    async def page_in(
        self, pending_list: int, after: int, limit: int, bytes_max: int
    ) -> Sequence[StoredMessage]:
        page = await self.inner.page_in(pending_list, after, limit, bytes_max)
        await asyncio.sleep(0)
        return page

    async def acknowledged(self, after: int, limit: int, bytes_max: int) -> AcknowledgedPage:
        return await self.inner.acknowledged(after, limit, bytes_max)

    async def release_acknowledged(self, through: int) -> None:
        await self.inner.release_acknowledged(through)

    def statistics(self) -> StoreStatistics:
        return self.inner.statistics()

    async def close(self) -> None:
        self.is_closed = True
        await self.inner.close()

    def operations(self, *types: type) -> list[Any]:
        """Every operation of these types that became durable, in order."""
        return [op for batch in self.batches for op in batch if isinstance(op, types)]

    def pending(self, destination: str) -> list[bytes]:
        """Bodies that are durable and pending in a queue."""
        known = self.contents.destinations.get(destination)
        messages = self.contents.lists.get(known.pending_list, {}) if known is not None else {}
        return [stored.message.body for stored in messages.values()]
