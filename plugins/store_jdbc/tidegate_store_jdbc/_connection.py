"""Whether the database can be reached, and who waits until it can."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from tidegate.spi import StoreClosedError, StoreFullError, StoreIOError
from tidegate_store_jdbc._adapter import DatabaseError

logger = logging.getLogger("tidegate.store.jdbc")

#: First and longest pause between attempts to reach the database, in seconds.
BACK_OFF_FIRST: Final = 0.05
BACK_OFF_MAX: Final = 5.0


class Reachability:
    """One task asks a lost database again and again; everyone else waits for its answer.

    Args:
        probe: one exchange with the database; raises DatabaseError.
        wait_seconds: how long :meth:`until` waits before it refuses.
    """

    def __init__(self, probe: Callable[[], Awaitable[object]], wait_seconds: float) -> None:
        self._probe = probe
        self._wait_seconds = wait_seconds
        self._event = asyncio.Event()
        self._event.set()
        self._task: asyncio.Task[None] | None = None
        self._lost_at: float | None = None
        self._pause = BACK_OFF_FIRST
        self._is_closed = False
        self._problem = ""

    @property
    def is_reachable(self) -> bool:
        """False from a failure until a transaction succeeded again."""
        return self._lost_at is None

    def lost(self, problem: str) -> None:
        """An exchange failed."""
        self._problem = problem
        loop = asyncio.get_running_loop()
        if self._lost_at is None:
            self._lost_at = loop.time()
            logger.error("database=unreachable error=%r", problem)
        if self._is_closed:
            return
        self._event.clear()
        if self._task is None:
            self._task = loop.create_task(self._ask(), name="jdbc-reconnect")

    def worked(self) -> None:
        """A transaction succeeded."""
        if self._lost_at is not None:
            seconds = asyncio.get_running_loop().time() - self._lost_at
            logger.warning("database=reachable again after_s=%.1f", seconds)
            self._lost_at = None
            self._pause = BACK_OFF_FIRST

    async def _ask(self) -> None:
        try:
            while True:
                # Grows until a transaction succeeds: a server that answers and refuses to write is
                # not asked in a tight circle.
                await asyncio.sleep(self._pause)
                self._pause = min(2 * self._pause, BACK_OFF_MAX)
                try:
                    await self._probe()
                except (DatabaseError, StoreIOError) as error:
                    self._problem = str(error)
                else:
                    return
        finally:
            self._task = None
            self._event.set()  # those who wait try for themselves, or see that it was closed

    async def until(self, *, in_doubt: bool) -> None:
        """Wait until the database answers.

        Args: in_doubt: wait as long as it takes (a batch may have been written, or a reader asks).
        Raises: StoreFullError after ``wait_seconds`` of being lost; StoreClosedError.
        """
        if self._event.is_set():
            self._require_open()
            return
        if in_doubt:
            await self._event.wait()
        else:
            assert self._lost_at is not None
            left = self._lost_at + self._wait_seconds - asyncio.get_running_loop().time()
            try:
                async with asyncio.timeout(max(left, 0)):
                    await self._event.wait()
            except TimeoutError:
                raise StoreFullError(
                    f"the database cannot be reached, nothing was written: {self._problem}"
                ) from None
        self._require_open()

    def _require_open(self) -> None:
        if self._is_closed and self._lost_at is not None:
            raise StoreClosedError(f"closed while the database was away: {self._problem}")

    def close(self) -> None:
        """Everyone who waits is told that the store is closed; nobody waits any more."""
        self._is_closed = True
        self._event.set()
        if self._task is not None:
            self._task.cancel()
