"""What an operator sees of destinations: a page of them, and one in detail."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from tidegate.broker.destinations import Destinations
from tidegate.broker.limits.ledger import DROP_OLDEST, SLOW
from tidegate.broker.lists.pending_list import PendingList
from tidegate.broker.operate import paging
from tidegate.broker.operate.paging import in_steps
from tidegate.broker.operate.totals import Chosen, Totals
from tidegate.broker.publish.publisher import Publisher
from tidegate.broker.tally.counting import InFlight
from tidegate.broker.tally.tally import Tally
from tidegate.spi import MessageStore, RequestError, names
from tidegate.spi.operate import (
    Destination,
    DestinationDetails,
    DestinationKind,
    DestinationPage,
    Feed,
    ListDestinations,
    Unstored,
)


class Views:
    """See the module."""

    def __init__(
        self, store: MessageStore, destinations: Destinations, publisher: Publisher, tally: Tally
    ) -> None:
        self._store = store
        self._destinations = destinations
        self._publisher = publisher
        self._tally = tally

    async def page(self, request: ListDestinations) -> DestinationPage:
        """Raises: RequestError for an invalid ``after``."""
        destinations, tally = self._destinations, self._tally
        chosen = Chosen(tally, request, self._publisher.paused)
        async with tally.lock:
            await paging.look_through(tally.catch_up(destinations.policies))
            await paging.look_through(chosen.steps())
        rows: list[Destination] = []
        await paging.look_through(self._rows(chosen.shown, rows))
        return DestinationPage(tuple(rows), chosen.after, chosen.totals)

    async def details(self, destination: str) -> DestinationDetails:
        """Raises: RequestError when it does not exist; StoreError."""
        queue = self._destinations.queues.get(destination)
        totals, oldest = Totals(), 0
        if queue is not None and queue.is_stored:
            page = await self._store.page_in(queue.id, 0, 1, 1)
            oldest = page[0].message.received_at if page else 0
        of_it = [] if queue is None else [queue]
        if names.is_topic(destination):
            of_it = await in_steps(
                list(self._destinations.charged),
                lambda item: item if item.destination == destination else None,
            )
        await paging.look_through(self._adding(totals, of_it, InFlight()))
        row = self._row(destination, totals)
        if row is None:
            raise no_such(destination)
        policy = dataclasses.asdict(self._destinations.policy(destination))
        feeds = tuple(map(feed_of, totals.shown()))
        return DestinationDetails(row, feeds, oldest, policy, unstored=_unstored(queue))

    def _rows(self, shown: Iterable[str], rows: list[Destination]) -> Iterator[None]:
        """Put those of *shown* that still exist into *rows*, in steps."""
        in_flight = InFlight()
        for destination in shown:
            queue, totals = self._destinations.queues.get(destination), Totals()
            lists = self._tally.lists_of(destination) if queue is None else (queue,)
            yield from self._adding(totals, lists, in_flight)
            row = self._row(destination, totals)
            if row is not None:
                rows.append(row)

    def _adding(
        self, totals: Totals, lists: Iterable[PendingList], in_flight: InFlight
    ) -> Iterator[None]:
        for pending_list in lists:
            if not pending_list.is_removed:
                totals.add(pending_list, self._overflow(pending_list), in_flight)
                yield

    def _overflow(self, pending_list: PendingList) -> str:
        limit = pending_list.limit
        if limit is not None and limit.act:
            return limit.act
        is_stored = pending_list.is_stored
        if not self._destinations.pages(pending_list.destination, is_stored=is_stored):
            return SLOW
        return "" if is_stored else DROP_OLDEST

    def _row(self, destination: str, totals: Totals) -> Destination | None:
        """Args: totals: of its lists. Returns: None when it is gone."""
        queue = self._destinations.queues.get(destination)
        kind, is_paused = DestinationKind.TOPIC, destination in self._publisher.paused
        if names.is_queue(destination):
            is_temporary = names.is_temporary(destination)
            kind = DestinationKind.TEMPORARY_QUEUE if is_temporary else DestinationKind.QUEUE
            if queue is None:
                return None
        elif not (totals.lists or is_paused):
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
            producers_paused=is_paused,
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
    """The error for a *destination* that does not exist."""
    kind = "queue" if names.is_queue(destination) else "topic with subscribers"
    return RequestError(f"there is no {kind} {destination!r}")
