"""Queues that nobody has used for the ``idle_delete`` of their policy are deleted.

All queues are checked now and then, in steps. These count as use: a message in it, wherever that is; a
consumer, even one whose filter covers the queue; a subscription or a new route to it between two looks; a
pause. In the end the store decides: a message that a transaction or a branch holds is pending there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Final

from tidegate.broker.destinations import Destinations
from tidegate.broker.lists.pending_list import PendingList
from tidegate.broker.turn.flow import STATE_WORK, Flow, Tasks
from tidegate.broker.turn.walks import STEP_LISTS, Walk
from tidegate.config import DestinationPolicy
from tidegate.spi import GatewayError

_log = logging.getLogger("tidegate.broker")

#: How often all queues are checked, in microseconds: a queue may live this much longer.
LOOK_EVERY_US: Final = 5_000_000


class IdleQueues:
    """Call :meth:`look` every second or so.

    Args: paused: destinations whose producers are paused.
    """

    def __init__(
        self,
        flow: Flow,
        tasks: Tasks,
        destinations: Destinations,
        policies: Iterable[DestinationPolicy],
        paused: set[str],
    ) -> None:
        self._flow = flow
        self._tasks = tasks
        self._destinations = destinations
        self._paused = paused
        self._since: dict[PendingList, int] = {}
        self._next = 0
        self._is_busy = False
        self.is_on = any(policy.idle_delete for policy in policies)
        destinations.marks_use = self.is_on

    def look(self, elapsed: int) -> None:
        """Args: elapsed: microseconds of a monotonic clock."""
        if self.is_on and not self._is_busy and elapsed >= self._next:
            self._next = elapsed + LOOK_EVERY_US
            self._is_busy = True
            self._flow.walks.begin(self._look(elapsed))

    def _look(self, elapsed: int) -> Walk:
        since: dict[PendingList, int] = {}
        due: list[PendingList] = []
        used, self._destinations.used = self._destinations.used, set()
        for count, pending_list in enumerate(list(self._destinations.queues.values()), 1):
            if pending_list not in used and self._is_idle(pending_list):
                limit = self._destinations.policy(pending_list.destination).idle_delete
                start = since[pending_list] = self._since.get(pending_list, elapsed)
                if limit and elapsed - start >= limit * 1_000_000:
                    due.append(pending_list)
            if not count % STEP_LISTS:
                yield
        self._since = since
        if due:
            self._tasks.spawn(self._delete(due), "delete idle queues")
        else:
            self._is_busy = False

    def _is_idle(self, pending_list: PendingList) -> bool:
        return not (
            pending_list.cursor.size
            or pending_list.all_consumers()
            or pending_list.is_paused
            or not pending_list.is_stored
            or pending_list.destination in self._paused
        )

    async def _delete(self, due: Sequence[PendingList]) -> None:
        destinations = self._destinations
        try:
            for pending_list in due:
                held = await self._flow.store.page_in(pending_list.id, 0, 1, 1)
                if (
                    held
                    or pending_list.is_removed
                    or pending_list in destinations.used
                    or not self._is_idle(pending_list)
                    or self._flow.writer.is_adding(pending_list)
                ):
                    continue
                destinations.remove_queue(pending_list.destination, "idle")
                self._since.pop(pending_list, None)
                self._flow.add_own_work(STATE_WORK)
        except GatewayError as error:
            _log.error("idle queues cannot be deleted at the moment: %s", error)
        finally:
            self._is_busy = False
