"""A gateway that drains lets nobody in, and its clients go when their work is done.

They get nothing more, and can acknowledge what they have, end their transactions and publish. A client with nothing
in flight and no open transaction is disconnected as soon as all that it sent is confirmed, and told where to go.
When the time is over, so are all others; what they have in flight stays in its queues.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final, final

from tidegate.broker.connection.connection import Connection
from tidegate.broker.turn.flow import Tasks
from tidegate.spi import ConnectionEndedError, DrainStage, GatewayError
from tidegate.spi.events import Event, Tell, log_only

_log = logging.getLogger("tidegate.broker")

#: How often clients are checked for being done, in seconds.
LOOK_EVERY_S: Final = 0.1
#: Clients checked, or disconnected, before others get their turn.
_AT_ONCE: Final = 50

#: Reasons of :class:`tidegate.spi.ConnectionEndedError`: for now, and for good.
USE_ANOTHER: Final = "use-another-server"
MOVED: Final = "server-moved"


async def _nobody(stage: DrainStage) -> None:
    """There are no residents."""


@final
class Draining:
    """See the module.

    Args: connections: all that must go; until_durable: waits for all requests so far; now: microseconds since
        the epoch.

    Attributes: is_on: nobody is let in; since, ends_at: when that began, and when the time of clients is over, 0 while
        it is not on; server_reference: where clients are sent, "" for nowhere; is_moved: for good; tell: of events;
        stage: what residents are told by heed.
    """

    def __init__(
        self,
        connections: Callable[[], Collection[Connection]],
        until_durable: Callable[[], Awaitable[None]],
        tasks: Tasks,
        now: Callable[[], int],
    ) -> None:
        self._connections = connections
        self._until_durable = until_durable
        self._tasks = tasks
        self._now = now
        self.tell: Tell = log_only
        self.stage = DrainStage.OPEN
        self.heed: Callable[[DrainStage], Awaitable[None]] = _nobody
        self._telling = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._finishing: set[Connection] = set()
        self.is_on = False
        self.since = self.ends_at = 0
        self.server_reference = ""
        self.is_moved = False

    def begin(self, server_reference: str, *, is_moved: bool, timeout_s: float) -> None:
        """Begin, or go on with other settings."""
        now = self._now()
        if not self.is_on:
            self.since = now
        self.ends_at = now + round(timeout_s * 1_000_000)
        self.is_on, self.is_moved = True, is_moved
        self.server_reference = server_reference
        self._cancel()
        self.tell(
            Event.DRAIN_BEGUN,
            _log,
            "draining=1 connections=%d timeout_s=%g server_reference=%s",
            len(self._connections()),
            timeout_s,
            server_reference or "none",
        )
        if self.stage is DrainStage.OPEN:
            self._enter(DrainStage.DRAINING)
        self._task = self._tasks.spawn(self._run(timeout_s), "drain")

    def end(self) -> None:
        """Let clients in again, and serve those that have not gone."""
        if not self.is_on:
            return
        self.is_on, self.since, self.ends_at = False, 0, 0
        self.server_reference, self.is_moved = "", False
        self._cancel()
        self._enter(DrainStage.OPEN)
        for connection in self._finishing:
            connection.go_on()
        self._finishing.clear()
        self.tell(Event.DRAIN_ENDED, _log, "draining=0 connections=%d", len(self._connections()))

    async def reach(self, stage: DrainStage) -> None:
        """Return when all residents heed *stage*. Cancellation: safe; they are told all the same."""
        await asyncio.shield(self._enter(stage))

    def _enter(self, stage: DrainStage) -> asyncio.Task[None]:
        self.stage = stage
        return self._tasks.spawn(self._tell_stage(), "drain's stage")

    async def _tell_stage(self) -> None:
        async with self._telling:
            await self.heed(self.stage)  # the last one, even if several were requested

    def check(self) -> None:
        """Check whether a client is let in. Raises: ConnectionEndedError."""
        if self.is_on:
            raise self.error()

    def error(self) -> ConnectionEndedError:
        """What clients are told."""
        reference = self.server_reference
        return ConnectionEndedError(
            MOVED if self.is_moved else USE_ANOTHER,
            "the gateway accepts no more clients" + (f"; use {reference}" if reference else ""),
            reference,
        )

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + timeout_s
        while self._connections():
            is_over = loop.time() >= ends_at
            done: list[Connection] = []
            for count, connection in enumerate(list(self._connections()), 1):
                if connection.finish():
                    self._finishing.add(connection)
                if is_over or connection.is_idle:
                    done.append(connection)
                if not count % _AT_ONCE:
                    await asyncio.sleep(0)
            await self._end(done)
            self._finishing.intersection_update(self._connections())
            await asyncio.sleep(LOOK_EVERY_S)
        self.tell(Event.DRAIN_DONE, _log, "draining=done: no client is connected any more")

    async def _end(self, connections: Sequence[Connection]) -> None:
        for connection in connections:
            connection.hold()
        with contextlib.suppress(GatewayError):
            await self._until_durable()
        for count, connection in enumerate(connections, 1):
            connection.end(self.error())
            if not count % _AT_ONCE:
                await asyncio.sleep(0)
