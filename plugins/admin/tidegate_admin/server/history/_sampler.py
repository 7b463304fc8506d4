"""Looks at the gateway every few seconds, whether anybody asks or not."""

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

#: Two in each of the shortest records, so that one which comes late leaves no gap.
EVERY_S: Final = 5.0
_UNTIL_IT_RUNS_S: Final = 1.0
#: A sample stands for so many seconds at most: what came before is a gap.
_STANDS_FOR_S: Final = 10.0


class Sampler:
    """Puts what it sees into *ring*.

    Args: look: the gateway as a whole; None: it does not run, or does not answer; now: seconds since the epoch.
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
        """Wait until what is being written is."""
        if self._keeping is not None:
            await self._keeping

    async def follow(self) -> None:
        """Until it is cancelled."""
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
        """Look once. Returns: whether the gateway runs."""
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
        if self._keeping is None or self._keeping.done():  # a disk that hangs ends no history
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
