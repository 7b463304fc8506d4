"""The parts of a broker; each knows only those made before it."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

from tidegate.broker.destinations import Destinations
from tidegate.broker.ended_lists import EndedLists
from tidegate.broker.events import Events
from tidegate.broker.limits.accounts import Accounts, HeldByObservers
from tidegate.broker.limits.acknowledged import AcknowledgedLog
from tidegate.broker.limits.list_limits import ListLimits
from tidegate.broker.publish.access import Access
from tidegate.broker.publish.publisher import Publisher
from tidegate.broker.publish.retained_delivery import RetainedDeliveries
from tidegate.broker.publish.temporary import TemporaryDestinations
from tidegate.broker.route.retained import RetainedMessages
from tidegate.broker.sessions.sessions import Sessions
from tidegate.broker.sessions.wills import Wills
from tidegate.broker.tally.tally import Tally
from tidegate.broker.transactions.branches import Branches
from tidegate.broker.transactions.duplicates import DuplicateIds
from tidegate.broker.turn.flow import Flow, Tasks
from tidegate.broker.turn.following import Following
from tidegate.broker.unstored.store import SpoolingStore
from tidegate.config import SPOOLED, BrokerConfig, DestinationPolicy, Quota
from tidegate.plugin_exit import FAILURES
from tidegate.spi import (
    CursorFactory,
    Extension,
    MessageStore,
    Observer,
    Outcome,
)

_log = logging.getLogger("tidegate.broker")


@dataclass(eq=False, repr=False)
class Parts:
    """Makes them all.

    Args:
        config: the ``[broker]`` table.
        store: not yet open; behind the unstored store where non-persistent messages are not stored.
        cursors: cursor factories by the name that policies use.
        policies: of destinations; the most specific match wins.
        temporary_directory: for cursors that spool; exists and is empty.
        extensions: authenticators, authorizers, interceptors in configured order.
        sequence_floor: no sequence below this is given out, whatever the store remembers.
        quotas: in file order; the first that matches a principal wins.
        events: kept for operators.
        keeps_log: there are sinks, and the store keeps the acknowledged log for them.
    """

    config: BrokerConfig
    store: MessageStore
    _: KW_ONLY
    cursors: Mapping[str, CursorFactory]
    policies: Sequence[DestinationPolicy]
    temporary_directory: Path
    version: str
    extensions: Sequence[Extension] = ()
    sequence_floor: int = 1
    quotas: Sequence[Quota] = ()
    keeps_log: bool = False
    events: Events = field(default_factory=Events)

    def __post_init__(self) -> None:
        config = self.config
        self.served = 0  # subscriptions of all connections
        self.tasks = Tasks()
        tell = self.events.tell
        self.accounts = Accounts(config, self.quotas)
        spooling = None
        if any(policy.non_persistent == SPOOLED for policy in self.policies):
            spooling = SpoolingStore(self.store, self.temporary_directory, self.accounts.temporary)
        store = self.store = spooling or self.store
        self.acknowledged_log = AcknowledgedLog(store, config)
        self.retained = RetainedMessages(
            limit_bytes=config.retained_limit, account_of=self.accounts.of
        )
        self.flow = Flow(
            store,
            self.tasks,
            config.pending_write_limit,
            clock=self.now,
            on_write=self.acknowledged_log.notify,
        )
        self.writer = self.flow.writer
        self.writer.tell = self.acknowledged_log.tell = tell
        if self.keeps_log:
            self.writer.keeps_log = True
            self.writer.logged = frozenset(map(Outcome.of, config.acknowledged_outcomes))
        observers = self._started_observers()
        if observers:
            following = Following(
                observers, lambda: self.writer.turn, self.acknowledged_log.last_committed
            )
            self.writer.following = following
            self.acknowledged_log.announce_progress = following.carried
        detours: set[object] = set()
        self.limits = ListLimits(self.flow, detours)
        self.limits.overflows.tell = tell
        self.ended_lists = EndedLists(
            store, self.writer, self.tasks, lambda: not self.acknowledged_log.has_room
        )
        self.destinations = Destinations(
            config,
            self.flow,
            self.limits,
            self.accounts,
            self.ended_lists,
            cursors=self.cursors,
            policies=self.policies,
            temporary_directory=self.temporary_directory,
            spooling=spooling,
        )
        self.destinations.tell = tell
        self.tally = Tally(self.flow.unseen)
        self.deliveries = RetainedDeliveries(
            self.flow, self.retained, self.acknowledged_log, detours
        )
        self.temporary = TemporaryDestinations(self.destinations)
        self.publisher = Publisher(
            self.writer,
            self.destinations,
            self.retained,
            self.deliveries,
            self.limits,
            self.temporary,
            detours,
        )
        self.publisher.dead_lettered = self.events.dead_lettered
        self.limits.bury, self.limits.bury_new = self.publisher.bury, self.publisher.bury_new
        self.access = Access(self.extensions, self.acknowledged_log, self.destinations.queues)
        self.access.tell = tell
        has_ids = store.capabilities.duplicate_ids is not None
        self.duplicates = DuplicateIds(self.writer, config, self.accounts.gateway, is_kept=has_ids)
        self.branches = Branches(
            store,
            self.flow,
            self.tasks,
            self.destinations,
            self.publisher,
            self.duplicates,
            config.prepared_branches_max,
        )
        self.wills = Wills(self.writer, self.publisher, self.access)
        self.sessions = Sessions(self.flow, self.destinations, self.wills, self.accounts)
        # What lists need from parts made after them.
        self.flow.lower = self.destinations.lower
        self.flow.half_sent = self.sessions.half_sent
        self.flow.ended = self.deliveries.end

    def _started_observers(self) -> list[Observer]:
        """The observers, in configured order; one that fails is left out, now as later."""
        held = HeldByObservers(self.accounts.of)
        started: list[Observer] = []
        for item in self.extensions:
            if isinstance(item, Observer):
                try:
                    item.observer_starts(held.hold)
                except FAILURES:
                    _log.exception("observer=%s failed and is not called again", item)
                else:
                    started.append(item)
        return started

    def now(self) -> int:
        """Microseconds since the Unix epoch; may jump when the operator sets the clock."""
        return time.time_ns() // 1000
