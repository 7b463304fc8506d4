"""How many messages may wait for one durable subscription, and what happens above that.

Counted is what is pending: not yet handed out, in flight, and accepted but not yet durable. The
count is exact near the limit and costs nothing far from it: only a list that is within
``MARGIN`` of its limit has publishes make the detour in which they are counted. A list that is
filled from far below its margin to the limit within the one or two turns that are not yet durable
(``broker.pending_write_limit``) can therefore end up that much above it.

With ``drop_oldest`` the new message is stored first, in one batch with all others, and then the
oldest ones leave; those that are only in the store are read first, page by page. A list is
therefore above its limit by what came meanwhile; past the margin the new ones are dropped. What
is in flight, or was and came back, is not dropped: the client may have received it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from tidegate.broker.lists.pending_list import PendingList
from tidegate.broker.route.router import Route
from tidegate.broker.turn.flow import Flow
from tidegate.broker.turn.writer import TurnWriter
from tidegate.spi import Discard, DiscardReason, FlowControlError, StoredMessage

_log = logging.getLogger("tidegate.broker.limit")

REFUSE: Final = "refuse"
DROP_OLDEST: Final = "drop_oldest"
DROP_NEWEST: Final = "drop_newest"

#: How near a list must be to its limit for its publishes to be counted; a tenth of the limit if
#: that is more. About what one client sends in one turn.
MARGIN: Final = 1000

#: Bytes of bodies that leave a list at once.
_DROP_BYTES: Final = 16 << 20

#: Routes without the lists that take nothing more; past it the cache begins anew.
_ROUTES_CACHED_MAX: Final = 1000


@dataclass(slots=True, eq=False)
class SubscriptionLimit:
    """The limit of one pending list.

    Args: count_max: messages, 1 or more; overflow: one of the three constants above.
    """

    _limits: SubscriptionLimits
    _list: PendingList
    count_max: int
    overflow: str
    dropped: int = 0
    is_near: bool = False
    margin: int = field(init=False)
    # How many were accepted, and the turn they are in: the last one and the one before.
    _accepted: tuple[int, int] = (0, 0)
    _before: tuple[int, int] = (0, 0)
    _is_reached: bool = False
    _is_dropping: bool = False
    _kept_count: int = -1

    def __post_init__(self) -> None:
        self.margin = max(MARGIN, self.count_max // 10)

    def room(self) -> int:
        """How many messages more it may take; negative above the limit."""
        unwritten = 0
        for count, turn in (self._accepted, self._before):
            if turn >= self._limits.writer.batches:  # not written yet
                unwritten += count
        return self.count_max - self._pending() - unwritten

    def excludes(self) -> bool:
        """Tell whether a new message passes this list by."""
        room = self.room()
        if room > 0 or self.overflow == REFUSE:
            return False
        return self.overflow == DROP_NEWEST or room <= -self.margin

    def accept(self) -> None:
        """A message for it is being published."""
        count, turn = self._accepted
        filling = self._limits.writer.turns
        if turn != filling:
            self._before = self._accepted
            count = 0
        self._accepted = (count + 1, filling)

    def update(self) -> None:
        """Messages came or went."""
        pending = self._pending()
        if pending >= self.count_max - self.margin:
            if not self.is_near:
                self.is_near = True
                self._limits.watch(self._list, self)
            if pending > self.count_max and self.overflow == DROP_OLDEST:
                self._drop_oldest(pending - self.count_max)
        elif self.is_near:
            self.end()
        if self._is_reached and pending < self.count_max - max(1, self.count_max // 10):
            self._is_reached = False

    def end(self) -> None:
        """Publishes need not be watched any more."""
        self.is_near = False
        self._limits.ignore(self._list)

    def refusal(self) -> FlowControlError:
        """Log, and make the error for a publish that does not go through."""
        self._tell("refused")
        return FlowControlError(  # whose it is, is not the publisher's to know
            f"a subscription to this destination has {self.count_max} messages pending, which is its"
            " limit (subscription_limit; the log says which); send again when its client has"
            " received some"
        )

    def drop(self, count: int) -> None:
        """Count messages that this list does not get, and log the first."""
        self._tell("dropped")
        self.dropped += count
        self._limits.flow.dropped += count

    def _pending(self) -> int:
        pending_list = self._list
        count = pending_list.cursor.size
        for consumer in pending_list.consumers:
            count += len(consumer.in_flight)
        return count

    def _tell(self, what: str) -> None:
        """Once while it stays full, not once a message."""
        if not self._is_reached:
            self._is_reached = True
            _log.warning(
                "%s limit=%d overflow=%s: messages are %s until its client takes some",
                self._name(),
                self.count_max,
                self.overflow,
                what,
            )

    def _name(self) -> str:
        subscription = self._list.subscription
        if subscription is None:
            return f"subscription={self._list.destination!r}"
        if subscription.share_group:
            who = f"subscription={subscription.share_group!r} filter={subscription.filter!r}"
        else:
            who = f"subscription={subscription.name!r} client={subscription.client_id!r}"
        return f"{who} principal={subscription.owner!r}"

    def _drop_oldest(self, excess: int) -> None:
        if self._is_dropping:
            return
        pending_list = self._list
        cursor = pending_list.cursor
        kept: list[StoredMessage] = []
        before = excess
        self._is_dropping = True
        try:
            while excess > 0:
                messages = cursor.take(excess, _DROP_BYTES)
                if not messages:
                    break
                # What was sent already has its packet id, and the client may have received it.
                kept += [message for message in messages if message.delivery_count]
                gone = [message.sequence for message in messages if not message.delivery_count]
                if gone:
                    excess -= len(gone)
                    self.drop(len(gone))
                    discard = Discard(pending_list.id, tuple(gone), DiscardReason.DROPPED)
                    self._limits.writer.add_operation(discard, synced=False)
        finally:
            self._is_dropping = False
            if kept:
                cursor.put_back(kept)
        has_more = cursor.size > len(kept)
        is_hopeful = excess < before or not kept or len(kept) > self._kept_count
        if excess > 0 and has_more and is_hopeful:
            # The page brings a dispatch and that an update, which goes on here. What is kept may
            # be all that memory has room for; then the page brings nothing and that is the end.
            # With nothing kept it was a consumer that took what the last page brought.
            self._kept_count = len(kept)
            pending_list.request_page(anyway=True)
        else:
            self._kept_count = -1


class SubscriptionLimits:
    """The lists that are near their limits."""

    def __init__(self, flow: Flow, detours: set[object]) -> None:
        """*detours*: see :class:`tidegate.broker.publish.publisher.Publisher`."""
        self.flow = flow
        self.writer: TurnWriter = flow.writer
        self._detours = detours
        self._near: dict[PendingList, SubscriptionLimit] = {}
        self._routes: dict[tuple[Route, tuple[PendingList, ...]], Route] = {}

    def set_limit(self, pending_list: PendingList, count_max: int, overflow: str) -> None:
        """Let at most *count_max* messages (0: any number) wait in the list."""
        if count_max:
            pending_list.limit = SubscriptionLimit(self, pending_list, count_max, overflow)
            pending_list.limit.update()

    def watch(self, pending_list: PendingList, limit: SubscriptionLimit) -> None:
        self._near[pending_list] = limit
        self._detours.add(self)

    def ignore(self, pending_list: PendingList) -> None:
        if self._near.pop(pending_list, None) is not None and not self._near:
            self._detours.discard(self)
            self._routes.clear()

    def admit(self, route: Route) -> Route:
        """Count a message that is about to be published along *route*.

        Returns: the route without the lists that it passes by.
        Raises: FlowControlError when a list refuses it; then nothing is counted.
        """
        near = [(item, self._near[item]) for item in route.stored if item in self._near]
        for _, limit in near:
            if limit.overflow == REFUSE and limit.room() <= 0:
                raise limit.refusal()
        excluded: list[PendingList] = []
        for item, limit in near:
            if limit.excludes():
                limit.drop(1)
                excluded.append(item)
            else:
                limit.accept()
        return self._without(route, tuple(excluded)) if excluded else route

    def check(self, routes: Iterable[Route]) -> None:
        """Check that one message along each of *routes* would be admitted, all of them together.

        Raises: FlowControlError.
        """
        counts = Counter(item for route in routes for item in route.stored if item in self._near)
        for item, count in counts.items():
            limit = self._near[item]
            if limit.overflow == REFUSE and limit.room() < count:
                raise limit.refusal()

    def _without(self, route: Route, gone: tuple[PendingList, ...]) -> Route:
        """One and the same object each time: messages of a turn are handed out by route."""
        found = self._routes.get((route, gone))
        if found is None:
            if len(self._routes) >= _ROUTES_CACHED_MAX:
                self._routes.clear()
            rest = [item for item in route.stored if item not in gone]
            found = self._routes[route, gone] = Route(rest, route.direct)
        return found
