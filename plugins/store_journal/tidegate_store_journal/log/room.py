"""The watch on the free room of the file system. For the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor

from tidegate.spi import (
    StoreFullError,
    format_size,
    is_room_again,
    is_store_low_again,
    room_for,
)
from tidegate_store_journal.log.storage import Storage

logger = logging.getLogger("tidegate.store.journal")


class RoomWatch:
    """Whether the file system has less room than ``broker.disk_free_limit``.

    Attributes:
        is_short: batches that make the store grow must be refused.
        limit_bytes: ``broker.disk_free_limit``; 0: none.
        reusable, used: bytes of our own files that can be reused, and of those that cannot.
        is_crowded: near that limit or ``broker.store_limit``: using less lets the broker go on.
        is_wanting: below the limit, or not yet far enough above it again for the broker to go on.
    """

    def __init__(
        self, storage: Storage, executor: Executor, limit_bytes: int, store_limit: int = 0
    ) -> None:
        self._storage = storage
        self._executor = executor
        self.limit_bytes = limit_bytes
        self._store_limit = store_limit
        self.reusable: Callable[[], int] = lambda: 0
        self.used: Callable[[], int] = lambda: 0
        self.is_short = self.is_crowded = self.is_wanting = False
        self.is_urgent = False  # a write ran out of room
        self.event = asyncio.Event()  # wakes the maintenance task

    def report_full(self) -> None:
        """The file system itself reported that it is full."""
        self.is_short = True
        self.hurry()

    def hurry(self) -> None:
        """Make room now."""
        self.is_urgent = True
        self.event.set()

    async def require(self) -> None:
        """Raises: StoreFullError while the file system has less room than the limit."""
        await self.look()
        if self.is_short:
            raise StoreFullError(
                f"the file system of {self._storage.describe('')} has less than broker.disk_free_limit "
                f"= {format_size(self.limit_bytes)} free; make room, or consume messages"
            )

    async def look(self) -> None:
        """Ask the file system."""
        loop = asyncio.get_running_loop()
        try:
            free = await loop.run_in_executor(self._executor, self._storage.free_bytes)
        except OSError as error:
            logger.warning("cannot tell how much room is left error=%s", error)
            return
        limit = self.limit_bytes
        room = room_for(free, self.reusable(), limit)
        is_tight = limit > 0 and not is_room_again(room, limit)
        self.is_crowded = is_tight or (
            self._store_limit > 0 and not is_store_low_again(self.used(), self._store_limit)
        )
        is_short = room < limit
        if is_short != self.is_short:
            logger.warning("room is %s free_bytes=%d", "short" if is_short else "back", free)
        self.is_short = is_short
        self.is_wanting = is_tight and (is_short or self.is_wanting)
