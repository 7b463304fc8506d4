"""What an operator sees of destinations: a page of them, and one of them closely."""

from __future__ import annotations

import asyncio
import dataclasses
from dataclasses import dataclass, field

from tidegate.broker.destinations import Destinations
from tidegate.broker.limits.ledger import DROP_OLDEST, SLOW
from tidegate.broker.lists.pending_list import PendingList
from tidegate.broker.operate.paging import STEP, Key, in_steps, page
from tidegate.broker.publish.publisher import Publisher
from tidegate.spi import MessageStore, RequestError, names
from tidegate.spi.operate import (
    FEEDS_MAX,
    Destination,
    DestinationDetails,
    DestinationKind,
    DestinationPage,
    DestinationSort,
    Feed,
    ListDestinations,
    Unstored,
)


@dataclass(slots=True)
class _Totals:
    """What the lists of one destination have together.

    Attributes: see Destination; body_bytes: None: not counted; paging, others: some lists that are fed
        from pages, and from memory.
    """

    lists: int = 0
    pending: int = 0
    in_flight: int = 0
    consumers: int = 0
    body_bytes: int | None = 0
    memory_bytes: int = 0
    is_full: bool = False
    overflow: set[str] = field(default_factory=set[str])
    dropped: int = 0
    paging: list[PendingList] = field(default_factory=list["PendingList"])
    others: list[PendingList] = field(default_factory=list["PendingList"])

    def shown(self) -> list[PendingList]:
        """Those that are shown one by one."""
        return [*self.paging, *self.others][:FEEDS_MAX]

    def add(self, pending_list: PendingList, overflow: str) -> None:
        """Args: overflow: what happens at its limit; "": it has none."""
        cursor, consumers = pending_list.cursor, pending_list.all_consumers()
        self.lists += 1
        if overflow:
            self.overflow.add(overflow)
        self.pending += cursor.size
        self.consumers += len(consumers)
        self.in_flight += sum(
            entry[1] is pending_list
            for consumer in consumers
            for entry in consumer.in_flight.values()
        )
        self.memory_bytes += cursor.memory_bytes
        self.is_full = self.is_full or pending_list.is_full
        self.dropped += pending_list.lost
        some = self.paging if cursor.feed.is_paging else self.others
        if len(some) < FEEDS_MAX:
            some.append(pending_list)
        limit = pending_list.limit
        if limit is None or not limit.weighs:
            self.body_bytes = None
        elif self.body_bytes is not None:
            self.body_bytes += limit.bytes


class Views:
    """See the module."""

    def __init__(
        self, store: MessageStore, destinations: Destinations, publisher: Publisher
    ) -> None:
        self._store = store
        self._destinations = destinations
        self._publisher = publisher

    async def page(self, request: ListDestinations) -> DestinationPage:
        """Raises: RequestError for an ``after`` that is none."""
        queues = self._destinations.queues
        totals = await self._totals(request.match, queues=request.sort is not DestinationSort.NAME)

        def key(destination: str) -> Key | None:
            if not _covers(request.match, destination):
                return None
            return -_number(request.sort, totals.get(destination)), destination

        everything = list({**dict.fromkeys(queues), **totals})
        shown, following = await page(everything, key, request.after, request.limit)
        rows = await in_steps(shown, lambda name: self._row(name, totals.get(name)))
        return DestinationPage(tuple(rows), following)

    async def details(self, destination: str) -> DestinationDetails:
        """Raises: RequestError when there is none; StoreError."""
        queue = self._destinations.queues.get(destination)
        totals, oldest = None, 0
        if queue is None:
            totals = (await self._totals(destination)).get(destination)
        elif queue.is_stored:
            page = await self._store.page_in(queue.id, 0, 1, 1)
            oldest = page[0].message.received_at if page else 0
        row = self._row(destination, totals)
        if row is None:
            raise no_such(destination)
        policy = dataclasses.asdict(self._destinations.policy(destination))
        shown = (queue,) if queue is not None else totals.shown() if totals is not None else ()
        feeds = tuple(map(feed_of, shown))
        return DestinationDetails(row, feeds, oldest, policy, unstored=_unstored(queue))

    async def _totals(self, match: str, *, queues: bool = False) -> dict[str, _Totals]:
        """What the subscriptions to each filter of topics have, and topics that are paused.

        Args: queues: and what each queue has.
        """
        found: dict[str, _Totals] = {}
        if names.is_queue(match) and not queues:
            return found
        for count, pending_list in enumerate(list(self._destinations.charged), 1):
            destination = pending_list.destination
            is_wanted = queues or not pending_list.is_queue
            if is_wanted and not pending_list.is_removed and _covers(match, destination):
                totals = found.setdefault(destination, _Totals())
                totals.add(pending_list, self._overflow(pending_list))
            if not count % STEP:
                await asyncio.sleep(0)
        for destination in self._publisher.paused:
            if names.is_topic(destination):
                found.setdefault(destination, _Totals())
        return found

    def _overflow(self, pending_list: PendingList) -> str:
        limit = pending_list.limit
        if limit is not None and limit.act:
            return limit.act
        is_stored = pending_list.is_stored
        if not self._destinations.pages(pending_list.destination, is_stored=is_stored):
            return SLOW
        return "" if is_stored else DROP_OLDEST

    def _row(self, destination: str, totals: _Totals | None) -> Destination | None:
        """Args: totals: of a topic. Returns: None when it is gone."""
        queue, kind = self._destinations.queues.get(destination), DestinationKind.TOPIC
        if names.is_queue(destination):
            if queue is None:
                return None
            totals = _Totals()
            totals.add(queue, self._overflow(queue))
            is_temporary = names.is_temporary(destination)
            kind = DestinationKind.TEMPORARY_QUEUE if is_temporary else DestinationKind.QUEUE
        if totals is None:
            return None
        return Destination(
            destination,
            kind,
            pending=totals.pending,
            in_flight=totals.in_flight,
            consumers=totals.consumers,
            subscriptions=totals.lists if queue is None else 0,
            body_bytes=totals.body_bytes,
            memory_bytes=totals.memory_bytes,
            is_full=totals.is_full,
            overflow=tuple(sorted(totals.overflow)),
            dropped=totals.dropped,
            producers_paused=destination in self._publisher.paused,
            consumers_paused=queue is not None and queue.is_paused,
        )


def _unstored(queue: PendingList | None) -> Unstored | None:
    spool = None if queue is None else queue.unstored
    if spool is None:
        return None
    return Unstored(spool.count, spool.memory_bytes, spool.file_bytes)


def feed_of(pending_list: PendingList) -> Feed:
    """Where its consumers are fed from."""
    feed, subscription = pending_list.cursor.feed, pending_list.subscription
    whose = ""
    if subscription is not None:
        whose = " ".join(filter(None, (subscription.client_id, subscription.name)))
    return Feed(
        whose,
        feed.is_paging,
        feed.since,
        feed.reason.value,
        feed.turns,
        feed.direct_count,
        feed.direct_bytes,
        feed.paged_count,
        feed.paged_bytes,
    )


def no_such(destination: str) -> RequestError:
    """What to raise when there is no *destination*."""
    kind = "queue" if names.is_queue(destination) else "topic that anybody subscribes to"
    return RequestError(f"there is no {kind} {destination!r}")


def _number(sort: DestinationSort, totals: _Totals | None) -> int:
    if totals is None or sort is DestinationSort.NAME:
        return 0
    return totals.pending if sort is DestinationSort.PENDING else totals.consumers


def _covers(match: str, destination: str) -> bool:
    if not match:
        return True
    pattern, name = match, names.name_of(destination)
    if names.is_queue(match) or names.is_topic(match):
        if names.is_queue(match) is not names.is_queue(destination):
            return False
        pattern = names.name_of(match)
    return pattern == name or names.matches(pattern, name)
