"""The pending lists of queues: made on first use, found, given to consumers that watch for them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from tidegate.broker.limits.accounts import Counted
from tidegate.broker.list_making import Lists, list_bytes
from tidegate.broker.lists.pending_list import Consumer, PendingList
from tidegate.broker.route.router import Router
from tidegate.broker.route.topic_tree import LOOKED_AT_MAX, TopicTree
from tidegate.broker.turn.walks import STEP_LISTS, Walk
from tidegate.spi import (
    AddDestination,
    FlowControlError,
    Held,
    PendingCount,
    RecoveredDestination,
    RequestError,
    names,
)
from tidegate.spi.events import Event

_log = logging.getLogger("tidegate.broker")

#: What is in a new list.
NOTHING: Final = PendingCount(0, 0)

#: Queues that authorizers are asked about between looks at the clock: up to 200 microseconds each.
ASKED_AT_ONCE: Final = 8


class Queues(Lists):
    """See the module. Args: see :class:`Lists`.

    Attributes:
        queues: by destination.
        routes: those known, by destination.
        marks_use: somebody wants to know which queues are used.
        used: queues that were subscribed or routed to; the reader empties it.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.queues: dict[str, PendingList] = {}
        self._router = Router(self.queue_list)
        self.routes = self._router.routes
        self._queue_names = TopicTree()  # those a filter can cover
        self._queue_watchers: dict[Consumer, str] = {}  # and their filters
        self.marks_use = False
        self.used: set[PendingList] = set()

    def queue_list(self, destination: str, owner: str = "") -> PendingList:
        """The pending list of a queue, created (durably, with this turn) on first use.

        Args, raises: see :meth:`route`.
        """
        found = self.queues.get(destination)
        if found is not None:
            if self.marks_use:
                self.used.add(found)
            return found

        def take_id() -> int:
            list_id = self._writer.take_list_id()
            self._writer.add_operation(AddDestination(destination, list_id, owner))
            return list_id

        return self._add_queue(destination, owner, take_id)

    def check_creatable(self, destination: str) -> None:
        """Check that a client may use the queue, which exists or would be made.

        Raises: RequestError when only the operator makes it.
        """
        if (
            destination not in self.queues
            and not names.is_temporary(destination)
            and not self.policy(destination).auto_create
        ):
            raise RequestError(
                f"there is no queue {destination!r}, and clients must not create it "
                "(auto_create = false)"
            )

    def declare_queue(self, destination: str) -> None:
        """Make the queue if it is missing, whatever the limits for clients' queues are."""
        if destination not in self.queues:
            list_id = self._writer.take_list_id()
            self._writer.add_operation(AddDestination(destination, list_id, ""))
            made = self.make_queue(destination, list_id, NOTHING)
            self._tell_made(made)
            self._charge(made, self._accounts.gateway, Counted.QUEUES, list_bytes(destination))

    def add_temporary_queue(self, destination: str, owner: str) -> PendingList:
        """The pending list of a temporary queue: the store never hears of it. Raises: see `route`."""
        return self._add_queue(destination, owner, lambda: next(self._unstored_ids))

    def _add_queue(self, destination: str, owner: str, take_id: Callable[[], int]) -> PendingList:
        if 0 < self._config.queues_max <= len(self.queues):
            raise FlowControlError(
                f"there are {len(self.queues)} queues, which is the limit (broker.queues_max)"
            )
        account = self._accounts.of(owner)
        size = list_bytes(destination)
        account.check_count(Counted.QUEUES)
        account.check(Held.QUEUES, size)
        made = self.make_queue(destination, take_id(), NOTHING)
        made.owner = owner
        self._charge(made, account, Counted.QUEUES, size)
        if made.is_stored:
            self._tell_made(made)
        return made

    def _tell_made(self, made: PendingList) -> None:
        text = "destination=%s principal=%r made"
        self.tell(Event.DESTINATION_MADE, _log, text, made.destination, made.owner)

    def restore_queue(self, found: RecoveredDestination, pending: PendingCount) -> None:
        """Make the list of a queue from before the start, whatever its owner's limits."""
        made = self.make_queue(found.destination, found.pending_list, pending)
        made.owner, made.is_paused = found.owner, found.consumers_paused
        account = self._accounts.of(found.owner)
        self._charge(made, account, Counted.QUEUES, list_bytes(found.destination))

    def make_queue(self, destination: str, list_id: int, pending: PendingCount) -> PendingList:
        """The pending list of a queue for which the store has *pending*."""
        cursor = self._make_cursor(destination, list_id, pending.messages)
        made = self.queues[destination] = PendingList(self._flow, list_id, destination, cursor)
        if made.is_stored:
            self._limits.set_limit(made, self.policy(destination), pending)
            made.unstored = self._spool_of(destination, list_id)
        if not names.is_temporary(destination):
            self._queue_names.add(destination)
            name = names.name_of(destination)
            for consumer, filter_name in self._queue_watchers.items():
                if names.matches(filter_name, name) and _may_take(consumer, destination):
                    made.attach(consumer)
        return made

    def remove_temporary(self, destination: str) -> None:
        """Forget a temporary destination and everything in it."""
        self.routes.pop(destination, None)
        made = self.queues.pop(destination, None)
        if made is not None:
            self._remove_list(made)

    def remove_queue(self, destination: str, why: str) -> None:
        """A stored queue ends, with this turn, and all that is pending in it.

        Args: why: for the rows of what it held.
        What is in flight from it is then in no list: acknowledging it changes nothing.
        """
        gone = self.queues.pop(destination)
        self.routes.pop(destination, None)
        self._queue_names.discard(destination)
        for consumer in list(gone.all_consumers()):
            gone.detach(consumer)
        self._remove_list(gone)
        gone.is_stored = False
        self.tell(Event.DESTINATION_DELETED, _log, "destination=%s deleted: %s", destination, why)
        self._ended.end_queue(destination, gone.id, why)

    def watch_queues(self, filter_name: str, consumer: Consumer) -> None:
        """Attach *consumer* to every queue that the filter covers and it may consume from, now and later."""
        self._queue_watchers[consumer] = filter_name
        self._flow.walks.begin(self.rewatch_queues(filter_name, consumer))

    def rewatch_queues(self, filter_name: str, consumer: Consumer) -> Walk:
        """Attach *consumer* to those it may consume from now, and to no other."""
        found = self._queue_names.match_few(filter_name, LOOKED_AT_MAX)
        if found is not None:
            return self._attach(consumer, found)
        # Finding them takes long, so all queues are examined. Later ones take care of themselves.
        return self._attach(consumer, list(self.queues), filter_name)

    def _attach(
        self, consumer: Consumer, destinations: Sequence[str], filter_name: str = ""
    ) -> Walk:
        """In steps, for as long as it still watches. Args: filter_name: "": it covers all of
        *destinations*."""
        at_once = STEP_LISTS if consumer.allows is None else ASKED_AT_ONCE
        for number, destination in enumerate(destinations, 1):
            pending_list = self.queues.get(destination)
            if filter_name and not _is_covered(filter_name, destination):
                pending_list = None
            if pending_list is not None and consumer in self._queue_watchers:
                wanted = _may_take(consumer, destination)
                is_attached = pending_list in consumer.lists
                if wanted and not is_attached:
                    pending_list.attach(consumer)
                    self._flow.mark_if_pending(pending_list)
                elif is_attached and not wanted:
                    pending_list.detach(consumer)
            if not number % at_once:
                yield
                if consumer not in self._queue_watchers:
                    return  # or walks of ended ones would pile up

    def unwatch_queues(self, consumer: Consumer) -> None:
        """Nothing more is given to *consumer*; it leaves its queues one by one."""
        if self._queue_watchers.pop(consumer, None) is not None:
            consumer.is_over = True
            is_soon_done = len(consumer.lists) <= STEP_LISTS
            self._flow.walks.begin(self._detach(consumer), is_urgent=is_soon_done)

    def _detach(self, consumer: Consumer) -> Walk:
        for number, pending_list in enumerate(list(consumer.lists), 1):
            pending_list.detach(consumer)
            if not number % STEP_LISTS:
                yield


def _is_covered(filter_name: str, queue: str) -> bool:
    return names.matches(filter_name, names.name_of(queue)) and not names.is_temporary(queue)


def _may_take(consumer: Consumer, destination: str) -> bool:
    return consumer.allows is None or consumer.allows(destination)
