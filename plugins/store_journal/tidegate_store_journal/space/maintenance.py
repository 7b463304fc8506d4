"""Background work: checkpoints, cleanups, and the watch on free room."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Final

from tidegate.spi import StoreError, StoreLockedError
from tidegate.spi.events import Event, Tell, log_only
from tidegate_store_journal.checkpoint.checkpoint import Checkpointer
from tidegate_store_journal.log.files import DataFiles
from tidegate_store_journal.log.room import RoomWatch
from tidegate_store_journal.options import JournalOptions
from tidegate_store_journal.space.reclaim import Reclaim
from tidegate_store_journal.space.tidy import Tidy

logger = logging.getLogger("tidegate.store.journal")

#: How often the file system's free room is checked.
ROOM_CHECK_SECONDS: Final = 1.0
_URGENT_PAUSE_SECONDS: Final = 0.1


@dataclass(eq=False)
class Maintenance:
    """Runs until closed; one instance per store. All methods are for the event loop."""

    options: JournalOptions
    room: RoomWatch
    files: DataFiles
    checkpointer: Checkpointer
    reclaim: Reclaim
    tidy: Tidy
    executor: Executor
    tell: Tell = log_only

    def __post_init__(self) -> None:
        self._is_failing = False
        self._task: asyncio.Task[None] | None = None
        self._beside: dict[str, asyncio.Task[bool]] = {}
        self._is_closing = self._is_wanted = self._is_lost = False

    def want_checkpoint(self) -> None:
        """Write a checkpoint soon: replaying what was added would take long."""
        self._is_wanted = True
        self.room.event.set()

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    def give_way(self) -> None:
        """The lock was lost: errors from now on are no failures."""
        self._is_lost = True

    async def close(self) -> None:
        """Stop after the current step. Idempotent."""
        if self._task is not None:
            # Not cancelled: what its thread began would go on, and nobody would know how far it got.
            self._is_closing = True
            self.reclaim.close()
            self.tidy.close()
            self.room.event.set()
            await self._task
            self._task = None
            await asyncio.gather(*self._beside.values())

    async def _run(self) -> None:
        """Do each at its interval."""
        options = self.options
        event = self.room.event
        reclaim = self.reclaim
        now = asyncio.get_running_loop().time
        checkpoint_at = now() + options.checkpoint_interval
        cleanup_at = now() + options.cleanup_interval
        tidy_at = cleanup_at
        room_at = now() + ROOM_CHECK_SECONDS
        while not self._is_closing:
            try:
                wake_at = min(checkpoint_at, cleanup_at, tidy_at, room_at)
                async with asyncio.timeout(wake_at - now()):
                    await event.wait()
            except TimeoutError:
                pass
            is_urgent = self.room.is_urgent
            self.room.is_urgent = False
            event.clear()
            if is_urgent or now() >= room_at:
                await self.room.look()
                room_at = now() + ROOM_CHECK_SECONDS
                if self.room.is_wanting:
                    await self._guard(self._part_with_files)
                if self.room.is_crowded:
                    cleanup_at = now()
            if is_urgent or self.room.is_short or now() >= cleanup_at:
                await self._checkpoint(cleanup=True)
                reclaim.retry()
                reclaim.reclaim()
                cleanup_at = now() + options.cleanup_interval
                checkpoint_at = now() + options.checkpoint_interval
            elif self._is_wanted or now() >= checkpoint_at:
                await self._checkpoint(cleanup=False)
                checkpoint_at = now() + options.checkpoint_interval
            if reclaim.is_wanted:
                self._begin("journal", reclaim.run)
            if now() >= tidy_at:
                self._begin("directories", self.tidy.tidy)
                tidy_at = now() + options.cleanup_interval
            if is_urgent:
                # Refused batches must not turn into a checkpoint each.
                await asyncio.sleep(_URGENT_PAUSE_SECONDS)

    async def _part_with_files(self) -> None:
        """Delete reusable files until the broker goes on: of them, at most half of the limit counts as room,
        and what acknowledgements needed may have come from the rest."""
        while self.room.is_wanting and await self.files.part_with_one():
            await self.room.look()

    def _begin(self, what: str, work: Callable[[], Coroutine[object, object, None]]) -> None:
        """Run *work* beside the rest, unless it is still running: emptying files takes time."""

        def ended(_task: object) -> None:
            del self._beside[what]
            if self.reclaim.is_wanted:
                self.room.event.set()

        if what not in self._beside:
            task = self._beside[what] = asyncio.create_task(self._guard(work))
            task.add_done_callback(ended)

    async def _checkpoint(self, *, cleanup: bool) -> None:
        self._is_wanted = False
        run = partial(self.checkpointer.run, cleanup=cleanup)
        if await self._guard(run) and self._is_failing:
            self._is_failing = False
            self.tell(Event.CHECKPOINT_RECOVERED, logger, "checkpoints are written again")
        if not self.room.is_short:
            await self._guard(self.make_reserve)

    async def _guard(self, work: Callable[[], Coroutine[object, object, object]]) -> bool:
        """Start *work* only here: a task ended before its first step leaves nothing begun. Returns: success."""
        try:
            await work()
        except (OSError, StoreError) as error:
            if self._is_lost or isinstance(error, StoreLockedError):
                return False  # a lost lock is reported once, and nothing is retried
            # The journal itself is not affected: the next start replays more.
            text = "a checkpoint or cleanup failed and is tried again error=%s"
            if self._is_failing:
                logger.warning(text, error)
            else:
                self._is_failing = True
                self.tell(Event.CHECKPOINT_FAILED, logger, text, error)
        except Exception as error:
            # A bug of ours. Writers may be waiting for the next round, so there must be one.
            self._is_failing = True
            text = "a checkpoint or cleanup failed in an unexpected way"
            self.tell(Event.CHECKPOINT_FAILED, logger, text, error=error)
        else:
            return True
        return False

    async def make_reserve(self) -> None:
        """Set the checkpoint's reserve aside. Raises: OSError."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self.executor, self.checkpointer.make_reserve)
