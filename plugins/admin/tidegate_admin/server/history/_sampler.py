"""Samples the gateway every few seconds, whether or not anybody asks."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

from tidegate.spi.operate import Overview
from tidegate_admin.server.history._columns import gauges, rates
from tidegate_admin.server.history._ring import Ring

_log = logging.getLogger("tidegate.admin")

#: Two samples per shortest record, so that a late one leaves no gap.
EVERY_S: Final = 5.0
_UNTIL_IT_RUNS_S: Final = 1.0
#: Most seconds that a sample covers: anything before is a gap.
_STANDS_FOR_S: Final = 10.0


class Sampler:
    """Adds samples to *ring*.

    Args: look: returns the gateway's overview, None while it does not run or answer; now: seconds
        since the epoch.
    """

    def __init__(
        self,
        ring: Ring,
        look: Callable[[], Awaitable[Overview | None]],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._ring = ring
        self._look = look
        self._now = now
        self._before: Overview | None = None
        self._is_kept = True
        self._keeping: asyncio.Task[None] | None = None

    async def kept(self) -> None:
        """Wait for a write in progress."""
        if self._keeping is not None:
            await self._keeping

    async def follow(self) -> None:
        """Sample until cancelled."""
        try:
            await asyncio.to_thread(self._ring.load)
        except FileNotFoundError:
            pass
        except OSError as error:
            _log.warning("the history of samples cannot be read, and begins anew: %s", error)
        while True:
            is_running = await self.sample()
            await asyncio.sleep(EVERY_S if is_running else _UNTIL_IT_RUNS_S)

    async def sample(self) -> bool:
        """Take one sample. Returns: whether the gateway runs."""
        found = await self._look()
        if found is None:
            return False
        before, self._before = self._before, found
        if before is not None and before.started_at != found.started_at:
            before = None
        seconds = EVERY_S if before is None else found.uptime_s - before.uptime_s
        if seconds <= 0:
            return True
        values = (*rates(found, before), *gauges(found))
        self._ring.add(self._now(), min(seconds, _STANDS_FOR_S), values)
        if self._keeping is None or self._keeping.done():  # a hung disk does not end the history
            self._keeping = asyncio.create_task(self._keep())
        return True

    async def _keep(self) -> None:
        changes = self._ring.changes()
        try:
            found = await asyncio.to_thread(self._ring.keep, changes)
        except OSError as error:
            self._ring.not_kept(changes)
            if self._is_kept:
                _log.warning("the history of samples is kept in memory only: %s", error)
            self._is_kept = False
        else:
            self._is_kept = True
            if found is not None:
                self._ring.adopt(found)
