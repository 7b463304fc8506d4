"""What happened, as operators see it."""

from __future__ import annotations

from tidegate.broker.operate.authorized import Authorized
from tidegate.spi import Identity
from tidegate.spi.operate import EventPage, ListEvents


class EventsSeen(Authorized):
    """The part of :class:`tidegate.spi.operate.Operator` about events."""

    async def list_events(self, who: Identity, request: ListEvents) -> EventPage:
        """See Operator. A caller that lost the right while it waited is told nothing."""
        self._authorize(who)
        found = await self._core.events.wanted(request)
        if request.wait_s:
            self._authorize(who)
        return found
