"""Durable subscriptions whose clients do not come back end after a while, where a policy says so.

An MQTT session has its own expiry, and its subscriptions end with it: they are left alone here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, final

from tidegate.broker.destinations import Destinations
from tidegate.broker.lists.pending_list import PendingList
from tidegate.broker.turn.flow import STATE_WORK, Flow
from tidegate.broker.turn.walks import STEP_LISTS, Walk

_log = logging.getLogger("tidegate.broker.limit")

#: All durable subscriptions are checked once per this many calls: one ends late by that much at most.
LOOK_EVERY: Final = 10


@final
class Abandoned:
    """Call :meth:`look` every second.

    Args: has_session: tells whether a client, by its key, has a session; is_on: some policy wants this.

    Attributes: expired: subscriptions ended since the start.
    """

    def __init__(
        self,
        flow: Flow,
        destinations: Destinations,
        has_session: Callable[[str], bool],
        *,
        is_on: bool,
    ) -> None:
        self._flow = flow
        self._destinations = destinations
        self._has_session = has_session
        self.is_on = is_on
        # Since when it was seen unattended, and how often somebody had been attached by then.
        self._away: dict[PendingList, tuple[int, int]] = {}
        self._calls = 0
        self.expired = 0

    def look(self, elapsed: int) -> None:
        """Check them now and then. Args: elapsed: see :meth:`TurnWriter.elapsed`."""
        if self.is_on and not self._calls % LOOK_EVERY:
            self._flow.walks.begin(self._look(elapsed))
        self._calls += 1

    def _look(self, elapsed: int) -> Walk:
        before, self._away = self._away, {}
        for number, ((key, name), item) in enumerate(list(self._destinations.durable.items()), 1):
            if not (item.consumers or item.is_removed or self._has_session(key)):
                since, times = before.get(item, (elapsed, item.times_attached))
                if times != item.times_attached:  # somebody was attached meanwhile
                    since = elapsed
                expiry = self._destinations.policy(item.destination).subscription_expiry
                if expiry and elapsed - since >= expiry * 1_000_000:
                    self._end(item, name, expiry)
                    yield self._flow.add_own_work(STATE_WORK)
                    continue
                self._away[item] = since, item.times_attached
            if not number % STEP_LISTS:
                yield

    def _end(self, item: PendingList, name: str, expiry: float) -> None:
        subscription = item.subscription
        self.expired += 1
        _log.warning(
            "subscription=%r client=%r principal=%r ended with %d messages: its client "
            "was disconnected for %gs (subscription_expiry)",
            name,
            subscription.client_id if subscription else "",
            subscription.owner if subscription else "",
            item.cursor.size,
            expiry,
        )
        self._destinations.remove_subscription(item, "its client was disconnected for too long")
