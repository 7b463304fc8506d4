"""The broker's own tasks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine

_log = logging.getLogger("tidegate.broker")


class Tasks:
    """Runs them, logs those that fail, and ends them.

    Attributes: closers: those that are never cancelled.
    """

    def __init__(self) -> None:
        self.running: set[asyncio.Task[None]] = set()
        self.closers: set[asyncio.Task[None]] = set()

    def spawn(
        self, work: Coroutine[object, object, None], name: str, *, is_closer: bool = False
    ) -> asyncio.Task[None]:
        """Run *work*; its failure is logged. Args: is_closer: what it does must be done."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        (self.closers if is_closer else self.running).add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self.running.discard(task)
        self.closers.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("task=%r failed", task.get_name(), exc_info=task.exception())

    async def stop(self) -> None:
        """End them all."""
        for task in list(self.running):
            task.cancel()
        await asyncio.gather(*self.running, *self.closers, return_exceptions=True)
