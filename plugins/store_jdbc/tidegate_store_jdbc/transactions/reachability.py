"""Tracks whether the database is reachable, and lets callers wait until it is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from tidegate.spi import StoreClosedError, StoreUnavailableError
from tidegate_store_jdbc.database.adapter import DatabaseError

logger = logging.getLogger("tidegate.store.jdbc")

#: First and longest pause between attempts to reach the database, in seconds.
BACK_OFF_FIRST: Final = 0.05
BACK_OFF_MAX: Final = 5.0


class Reachability:
    """One task keeps probing a lost database; everyone else waits for its answer.

    Args:
        probe: one small write; raises DatabaseError.
        wait_seconds: how long a batch waits before it is refused.
    """

    def __init__(self, probe: Callable[[], Awaitable[object]], wait_seconds: float) -> None:
        self._probe = probe
        self._wait_seconds = wait_seconds
        self._answers = asyncio.Event()
        self._answers.set()
        self._task: asyncio.Task[None] | None = None
        self._lost_at = 0.0
        self._answered_at = 0.0
        self._pause = BACK_OFF_FIRST
        self._is_closed = False
        self._is_closed_for_good = False
        self._problem = ""

    @property
    def is_reachable(self) -> bool:
        """False from a failure until the database takes a write again."""
        return self._answers.is_set() and not self._is_closed_for_good

    def lost(self, problem: str) -> None:
        """An exchange failed."""
        self._problem = problem
        if self._is_closed:
            self._is_closed_for_good = True
            return
        loop = asyncio.get_running_loop()
        if self._answers.is_set():
            self._lost_at = loop.time()
            if self._lost_at - self._answered_at > 2 * BACK_OFF_MAX:
                self._pause = BACK_OFF_FIRST
            logger.error("database=unreachable error=%r", problem)
        self._answers.clear()
        if self._task is None:
            self._task = loop.create_task(self._ask(loop), name="jdbc-reconnect")

    def worked(self) -> None:
        """A batch was written: the next failure begins with the shortest pause."""
        self._pause = BACK_OFF_FIRST

    async def _ask(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            while True:
                # Grows until a batch succeeds, not just a probe: a server that refuses batches is
                # not retried in a tight loop.
                await asyncio.sleep(self._pause)
                self._pause = min(2 * self._pause, BACK_OFF_MAX)
                try:
                    await self._probe()
                except DatabaseError as error:
                    self._problem = str(error)
                else:
                    self._answered_at = loop.time()
                    seconds = self._answered_at - self._lost_at
                    logger.warning("database=reachable again after_s=%.1f", seconds)
                    return
        finally:
            self._task = None
            self._answers.set()  # waiters try for themselves, or see that it was closed

    async def until(self, *, since: float | None = None, in_doubt: bool = False) -> None:
        """Wait until the database answers.

        Args:
            since: when the batch first failed; None for a new one.
            in_doubt: wait as long as it takes (the batch may have been written, or a reader asks).
        Raises: StoreUnavailableError after ``wait_seconds`` of failing; StoreClosedError.
        """
        if in_doubt:
            await self._answers.wait()
        elif since is not None or not self._answers.is_set():
            await self._bounded(self._lost_at if since is None else since)
        if self._is_closed_for_good:
            raise StoreClosedError(f"closed while the database was away: {self._problem}")

    async def _bounded(self, since: float) -> None:
        left = since + self._wait_seconds - asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(left):
                await self._answers.wait()
                await asyncio.sleep(0)  # lets a time limit that has already passed take effect
        except TimeoutError:
            raise StoreUnavailableError(
                f"the database cannot be reached, nothing was written: {self._problem}"
            ) from None

    def close(self) -> None:
        """Wake all waiters with StoreClosedError, and let nobody wait from now on."""
        if not self._is_closed:
            self._is_closed = True
            self._is_closed_for_good = not self._answers.is_set()
            self._answers.set()
        if self._task is not None:
            self._task.cancel()
