"""The limits of all lists: which are near theirs, what is published to them, and the clock of ages."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from tidegate.broker.limits.ledger import Bounds
from tidegate.broker.limits.list_limit import ListLimit
from tidegate.broker.limits.overflow import Overflows
from tidegate.broker.lists.pending_list import PendingList
from tidegate.broker.route.router import Route
from tidegate.broker.turn.flow import Flow
from tidegate.broker.turn.writer import TurnWriter
from tidegate.config import DestinationPolicy
from tidegate.spi import (
    Acknowledge,
    AddMessage,
    Discard,
    Message,
    Move,
    Operation,
    PendingCount,
    StoredMessage,
    body_bytes,
)

_log = logging.getLogger("tidegate.broker.limit")

#: Cached routes without the lists that take nothing more; beyond this the cache starts over.
_ROUTES_CACHED_MAX: Final = 1000


class ListLimits:
    """See the module.

    Args: detours: see :class:`tidegate.broker.publish.publisher.Publisher`.

    Attributes:
        overflows: which lists lose messages.
        bury, bury_new: see :class:`tidegate.broker.publish.publisher.Publisher`; set once it exists.
    """

    def __init__(self, flow: Flow, detours: set[object]) -> None:
        self.writer: TurnWriter = flow.writer
        self.overflows = Overflows()
        self.bury: Callable[
            [PendingList, Sequence[StoredMessage], str, Callable[[], None]],
            Sequence[StoredMessage],
        ]
        self.bury_new: Callable[[PendingList, Message, str], bool]
        self.mark_ready = flow.mark_ready
        self._flow = flow
        self._detours = detours
        self._by_id: dict[int, ListLimit] = {}
        self._near: dict[PendingList, ListLimit] = {}
        self._routes: dict[tuple[Route, tuple[PendingList, ...]], Route] = {}
        self._looks: list[tuple[int, int]] = []  # when, and the id of the list, which may be gone
        self._has_begun = False

    def set_limit(
        self, pending_list: PendingList, policy: DestinationPolicy, pending: PendingCount
    ) -> None:
        """Limit a stored list, which holds *pending*, as *policy* says."""
        bounds = Bounds.of(policy, is_queue=pending_list.is_queue)
        if bounds is not None:
            self._set(pending_list, bounds, pending)

    def _set(self, pending_list: PendingList, bounds: Bounds, pending: PendingCount) -> None:
        limit = ListLimit(self, pending_list, bounds, pending)
        pending_list.limit = limit
        self._by_id[pending_list.id] = limit
        self.writer.on_written = self._written
        if self._has_begun:
            limit.update()

    def change(
        self,
        pending_list: PendingList,
        policy: DestinationPolicy,
        content: Callable[[PendingList], int],
    ) -> str:
        """Limit a stored list from now on as *policy* says.

        Args: content: how many messages the store has for a list.
        Returns: an option that it cannot have before the next start; "": it has all of them. The bytes in a
            list are known only if all messages that came were weighed.
        """
        bounds = Bounds.of(policy, is_queue=pending_list.is_queue)
        limit, left = self._by_id.get(pending_list.id), ""
        if limit is not None and bounds == limit.bounds:
            return ""
        count = 0
        if bounds is not None and (limit is None or not limit.weighs):
            count = content(pending_list) if limit is None else limit.count
            if bounds.bytes_max and count:
                left = f"{bounds.prefix}bytes_max"
                bounds = bounds.without_bytes()
        if bounds is not None and limit is not None:
            limit.change(bounds)
        elif bounds is not None:
            self._set(pending_list, bounds, PendingCount(count, 0))
        elif limit is not None:
            limit.end()
            self.mark_ready(pending_list)
        return left

    def begin(self) -> None:
        """The start is over: branches and sessions have claimed what they hold, and the rest may go."""
        self._has_begun = True
        for limit in list(self._by_id.values()):
            limit.update()

    # --- what limits ask for -------------------------------------------------------------------

    def watch(self, limit: ListLimit) -> None:
        """Publishes to its list must be counted."""
        self._near[limit.pending_list] = limit
        self._detours.add(self)

    def ignore(self, limit: ListLimit) -> None:
        """They no longer need to be."""
        if self._near.pop(limit.pending_list, None) is not None and not self._near:
            self._detours.discard(self)
            self._routes.clear()

    def forget(self, limit: ListLimit) -> None:
        """The list is gone."""
        self.ignore(limit)
        self._by_id.pop(limit.pending_list.id, None)
        if not self._by_id:
            self.writer.on_written = None

    def look_at(self, limit: ListLimit, due: int) -> None:
        """Check the age of its messages at *due* or a little later."""
        heapq.heappush(self._looks, (due, limit.pending_list.id))

    def hold(self, pending_list: PendingList) -> None:
        """Producers of the list wait."""
        pending_list.changed()
        self._flow.full_lists.add(pending_list)

    def count_dropped(self, dropped: int) -> None:
        """A list lost *dropped* messages, which it reports itself."""
        self._flow.dropped += dropped

    # --- the clock, and the store --------------------------------------------------------------

    def look(self, now: int) -> None:
        """Remove messages that are too old. Call it every second."""
        looks = self._looks
        due: list[int] = []
        while looks and looks[0][0] <= now:
            due.append(heapq.heappop(looks)[1])
        for list_id in dict.fromkeys(due):  # one whose limit has changed may be there twice
            limit = self._by_id.get(list_id)
            if limit is not None and limit.bounds.age_us:
                limit.let_go_before(now - limit.bounds.age_us)

    def _written(self, operations: Sequence[Operation]) -> None:
        """*operations* are durable: what they took off lists is gone."""
        by_id = self._by_id
        for operation in operations:
            if type(operation) is AddMessage:  # most are
                continue
            if isinstance(operation, Acknowledge | Discard):
                limit = by_id.get(operation.pending_list)
                if limit is not None and operation.sequences:
                    limit.left(operation.sequences)
            elif isinstance(operation, Move):
                limit = by_id.get(operation.pending_list)
                if limit is not None:
                    limit.left((operation.sequence,))

    # --- publishing ----------------------------------------------------------------------------

    def admit(self, route: Route, message: Message) -> Route:
        """Count *message*, which is about to be published along *route*.

        Returns: the route without the lists it bypasses.
        Raises: FlowControlError when a list refuses it; then nothing is counted.
        """
        near = [self._near[item] for item in route.stored if item in self._near]
        if not near:
            return route
        size = body_bytes(message)
        for limit in near:
            if not limit.admits(1, size):
                raise limit.refusal()
        excluded: list[PendingList] = []
        for limit in near:
            if limit.excludes(size):
                limit.pass_by(message)
                excluded.append(limit.pending_list)
            else:
                limit.accept(size)
                limit.hold_if_full()
        return self._without(route, tuple(excluded)) if excluded else route

    def check(self, published: Iterable[tuple[Route, Message]]) -> None:
        """Check that all of these messages together would be admitted along their routes.

        Raises: FlowControlError.
        """
        sums: dict[PendingList, tuple[int, int]] = {}
        for route, message in published:
            for item in route.stored:
                if item in self._near:
                    number, size = sums.get(item, (0, 0))
                    sums[item] = number + 1, size + body_bytes(message)
        for item, (number, size) in sums.items():
            limit = self._near[item]
            if not limit.admits(number, size):
                raise limit.refusal()

    def _without(self, route: Route, gone: tuple[PendingList, ...]) -> Route:
        """The same object each time: messages of a turn are handed out by route."""
        found = self._routes.get((route, gone))
        if found is None:
            if len(self._routes) >= _ROUTES_CACHED_MAX:
                self._routes.clear()
            rest = [item for item in route.stored if item not in gone]
            found = self._routes[route, gone] = Route(rest, route.direct)
        return found
