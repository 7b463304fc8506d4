"""Queues in which purged messages are kept until it is too late to take them back.

Such a queue is like any other, but its name says what was purged and until when: nothing else need be remembered, so
a restart changes nothing. Its name begins with ``$``, which no policy covers, and no client's filter that does not
begin with it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from tidegate.broker.destinations import Destinations
from tidegate.broker.lists.pending_list import PendingList
from tidegate.broker.turn.flow import STATE_WORK, Flow
from tidegate.broker.turn.walks import STEP_LISTS, Walk
from tidegate.spi import GatewayError, names

_log = logging.getLogger("tidegate.broker")

_PREFIX: Final = names.queue("$purged.")
#: How often all queues are checked, in microseconds: one may be kept this much longer.
LOOK_EVERY_US: Final = 5_000_000


def kept_name(destination: str, until: int) -> str:
    """The queue for what is purged from *destination*. Args: until: microseconds since the epoch."""
    return f"{_PREFIX}{until}.{names.name_of(destination)}"


def origin_of(destination: str) -> tuple[str, int] | None:
    """The queue purged into this one, and until when it is kept; None: it is no such queue."""
    if not destination.startswith(_PREFIX):
        return None
    until, _, name = destination.removeprefix(_PREFIX).partition(".")
    return (names.queue(name), int(until)) if until.isdecimal() and name else None


def purged(destinations: Destinations) -> Iterator[tuple[PendingList, str, int]]:
    """All such queues, with what was purged and until when they are kept."""
    for pending_list in list(destinations.queues.values()):
        found = origin_of(pending_list.destination)
        if found is not None and pending_list.is_stored:
            yield pending_list, *found


class PurgedQueues:
    """Call :meth:`look` every second or so."""

    def __init__(self, flow: Flow, destinations: Destinations) -> None:
        self._flow = flow
        self._destinations = destinations
        self._next = 0

    def look(self, elapsed: int) -> None:
        """Args: elapsed: microseconds of a monotonic clock."""
        if elapsed >= self._next:
            self._next = elapsed + LOOK_EVERY_US
            self._flow.walks.begin(self._look())

    def _look(self) -> Walk:
        now = self._flow.writer.now()
        try:
            self._flow.writer.check_writable(adds=False)
        except GatewayError:
            return  # later
        for count, pending_list in enumerate(list(self._destinations.queues.values()), 1):
            found = origin_of(pending_list.destination)
            if found is not None and found[1] <= now and not pending_list.is_removed:
                _log.info("queue=%s deleted: kept until now", pending_list.destination)
                self._destinations.remove_queue(pending_list.destination, "purged, and not undone")
                self._flow.add_own_work(STATE_WORK)
            if not count % STEP_LISTS:
                yield
