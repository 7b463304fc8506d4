"""Destinations whose producers are refused, or whose consumers get nothing, until they are resumed.

The pause is an attribute of the destination in the store: a restart changes nothing. The store knows a topic only
while it is paused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Final

from tidegate.broker.core import BrokerCore
from tidegate.broker.lists.pending_list import PendingList
from tidegate.broker.operate.messages.over_messages import durable
from tidegate.spi import AddDestination, RemoveDestination
from tidegate.spi.events import Event
from tidegate.spi.operate import WORK_S, Side

_log = logging.getLogger("tidegate.broker")

#: What an operator is told when the store could not take it yet.
NOT_STORED: Final = (
    "The store has no room to record this now; it is recorded as soon as there is room, "
    "and until then a restart forgets it."
)


class Pausing:
    """See the module. On the event loop."""

    def __init__(self, core: BrokerCore) -> None:
        self._core = core

    async def change(
        self,
        destination: str,
        queue: PendingList | None,
        sides: Collection[Side],
        *,
        is_paused: bool,
    ) -> bool:
        """Pause or resume *sides*, at once. Args: queue: None for a topic.

        Returns: True: it is durable; False: the store has no room, and takes it later.
        Raises: StoreError; nothing has changed if it was already read-only.
        """
        core = self._core
        core.writer.check_writable(adds=False)
        if Side.PRODUCERS in sides:
            core.publisher.pause(destination, is_paused=is_paused)
        if Side.CONSUMERS in sides and queue is not None:
            queue.is_paused = is_paused
            queue.changed()
            core.slow_consumers.begin_anew(queue)
            core.flow.mark_ready(queue)
        whom = " and ".join(side.value for side in sides)
        event = Event.DESTINATION_PAUSED if is_paused else Event.DESTINATION_RESUMED
        what = "paused" if is_paused else "resumed"
        core.events.tell(event, _log, "destination=%s %s %s", destination, whom, what)
        self._store(destination, queue)
        future = durable(core.flow)
        await asyncio.wait((future,), timeout=WORK_S)
        if future.cancel():
            return False
        future.result()
        return True

    def _store(self, destination: str, queue: PendingList | None) -> None:
        writer, is_refused = self._core.writer, destination in self._core.publisher.paused
        if queue is not None:
            writer.add_operation(
                AddDestination(destination, queue.id, queue.owner, is_refused, queue.is_paused)
            )
        elif is_refused:
            writer.add_operation(AddDestination(destination, 0, producers_paused=True))
        else:
            writer.add_operation(RemoveDestination(destination, 0))
