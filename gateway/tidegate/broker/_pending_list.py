"""A pending list: the one structure behind queues and topic subscriptions (design, section 2.6)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tidegate.broker._selecting import Selecting
from tidegate.spi import (
    Discard,
    DiscardReason,
    PendingCursor,
    StoredMessage,
    StoreError,
    Subscription,
)

if TYPE_CHECKING:
    from tidegate.broker._connection import Connection
    from tidegate.broker._consumer import Consumer
    from tidegate.broker._core import BrokerCore
    from tidegate.broker._selector import Matcher

#: With several consumers on one list, how many messages one gets before the next one's turn.
SHARE_COUNT_MAX: Final = 64


#: How long after a page could not be read it is tried again: consumers wait for it.
PAGE_RETRY_S: Final = 5.0

_log = logging.getLogger("tidegate.broker.pending_list")


class PendingList:
    """Messages that wait for consumers, in sequence order.

    Attributes:
        id: the store's name for it; a negative number when it is not stored.
        destination: queue, or topic filter.
        subscription: what the store keeps of a stored topic subscription, else None.
        matches: what a topic subscription with a selector wants; None: everything.
        consumers: being served, in order of subscription.
        selecting: the consumers of a queue that have a selector, which are not among the others;
            None when there are none.
        blocked: producers whose sockets wait for room here.
    """

    __slots__ = (
        "_broker",
        "_dispatching",
        "_next_consumer",
        "_paging",
        "blocked",
        "client_id",
        "consumers",
        "cursor",
        "destination",
        "id",
        "is_queue",
        "is_removed",
        "is_stored",
        "matches",
        "no_local",
        "overlap_key",
        "qos",
        "selecting",
        "subscription",
    )

    def __init__(
        self,
        broker: BrokerCore,
        list_id: int,
        destination: str,
        cursor: PendingCursor,
        *,
        is_queue: bool,
        is_stored: bool,
        subscription: Subscription | None = None,
        qos: int = 2,
        no_local: bool = False,
        client_id: str = "",
        overlap_key: tuple[str, str] | None = None,
        is_removed: bool = False,
        matches: Matcher | None = None,
    ) -> None:
        self._broker = broker
        self.id = list_id
        self.destination = destination
        self.cursor = cursor
        self.is_queue = is_queue
        self.is_stored = is_stored
        self.subscription = subscription
        self.qos = qos
        self.no_local = no_local
        self.client_id = client_id
        self.overlap_key = overlap_key
        self.matches = matches
        self.selecting: Selecting | None = None
        self.consumers: list[Consumer] = []
        self.blocked: set[Connection] = set()
        self.is_removed = is_removed
        self._next_consumer = 0
        self._paging = False
        self._dispatching = False

    def attach(self, consumer: Consumer) -> None:
        if self.is_queue and consumer.matches is not None:
            if self.selecting is None:
                self.selecting = Selecting(self._broker, self)
            self.selecting.attach(consumer, consumer.matches)
        else:
            self.consumers.append(consumer)
        consumer.lists.append(self)

    def detach(self, consumer: Consumer) -> None:
        if consumer in self.consumers:
            self.consumers.remove(consumer)
            consumer.lists.remove(self)
        elif self.selecting is not None and self.selecting.detach(consumer):
            consumer.lists.remove(self)

    def offer(self, messages: Sequence[StoredMessage]) -> None:
        """New durable messages at the end."""
        if self.is_removed:
            return
        self.cursor.offer(messages)
        if self.selecting is not None:
            self.selecting.offer(messages)
        if self.consumers:
            self.dispatch()
        if self.cursor.is_full:
            self._broker.full_lists.add(self)

    def offer_direct(self, messages: Sequence[StoredMessage]) -> None:
        """Messages that are not stored for this list.

        An unstored list queues them in its cursor. A stored one (QoS 0 message, QoS 1
        subscription) hands them out now or never: they have no place in its stored order, and at
        most once is all that was asked (MQTT 3.1.1 section 4.3.1). A client that acknowledges all
        it is given has them in flight, of the list *nowhere*, which forgets what comes back.
        """
        if self.is_removed:
            return
        if not self.is_stored:
            dropped = self.cursor.offer(messages)
            if dropped:
                self._broker.count_dropped(self, len(dropped))
            if self.selecting is not None:
                self.selecting.offer(messages)
            if self.consumers:
                self.dispatch()
            if self.cursor.is_full:
                self._broker.full_lists.add(self)
            return
        for consumer in self.consumers[:1]:
            room = len(messages) if consumer.connection.is_writable else 0
            if room and consumer.acknowledges_all:
                room = max(0, min(room, consumer.room()))
                now = self._broker.now()
                for message in messages[:room]:
                    consumer.in_flight[message.sequence] = (message, self._broker.nowhere, now)
                    consumer.in_flight_bytes += len(message.message.body)
            if room:
                consumer.connection.deliver(consumer, messages[:room])
            if room < len(messages):
                self._broker.count_dropped(self, len(messages) - room)

    def put_back(self, messages: Sequence[StoredMessage]) -> None:
        """Messages that were out return to their place."""
        if messages and not self.is_removed:
            self.cursor.put_back(messages)
            if self.selecting is not None:
                self.selecting.returned(messages)
            self._broker.mark_ready(self)

    def dispatch(self) -> None:
        """Hand out messages while consumers have room."""
        if self._dispatching or self.is_removed:
            return  # a front-end that unsubscribed from within deliver()
        self._dispatching = True
        try:
            if self.selecting is not None:
                self.selecting.dispatch()
            self._dispatch()
        finally:
            self._dispatching = False
        if self in self._broker.full_lists and not self.cursor.is_full:
            self._unblock()

    def _dispatch(self) -> None:
        cursor = self.cursor
        share = index = 0
        while True:
            count = len(self.consumers)
            if count == 1:
                consumer = self.consumers[0]
                room = consumer.room()
                if room <= 0:
                    return
            else:
                index = self._index_with_room()
                if index < 0:
                    return
                consumer = self.consumers[index]
                # Once for all: with shares of what is left the first one would get most of it.
                share = share or min(-(-cursor.size // count), SHARE_COUNT_MAX) or 1
                room = min(consumer.room(), share)
            messages = cursor.take(room, consumer.room_bytes())
            if not messages:
                if cursor.needs_page and not self._paging:
                    self._paging = True
                    self._broker.spawn(self._page_in(), f"page-in {self.destination}")
                return
            if count > 1:  # only who was given something has had its turn
                self._next_consumer = (index + 1) % count
            now = self._broker.now()
            for message in messages:
                if message.message.expires_at:
                    messages = self.without_expired(messages, now)
                    break
            if messages:
                self.hand_over(consumer, messages, now)

    def _index_with_room(self) -> int:
        """The consumer whose turn it is, or the next one that has room; -1 when none has."""
        consumers = self.consumers
        count = len(consumers)
        start = self._next_consumer
        for step in range(count):
            index = (start + step) % count
            if consumers[index].room() > 0:
                return index
        return -1

    def hand_over(self, consumer: Consumer, messages: Sequence[StoredMessage], now: int) -> None:
        if consumer.acknowledge:
            in_flight = consumer.in_flight
            size = 0
            for message in messages:
                in_flight[message.sequence] = (message, self, now)
                size += len(message.message.body)
            consumer.in_flight_bytes += size
            if self._broker.full_lists:
                self._broker.release_consumer(consumer.connection)
        else:
            if self.is_stored:
                self._broker.acknowledge_automatically(consumer, self, messages, now)
            consumer.resting = True
        consumer.connection.deliver(consumer, messages)
        if consumer.resting:
            # The socket's flow control acts only when its buffer is written at the end of the
            # turn, which deliver() has scheduled: rest until behind that.
            self._broker.rest(consumer)

    def without_expired(
        self, messages: Sequence[StoredMessage], now: int
    ) -> Sequence[StoredMessage]:
        expired = [m.sequence for m in messages if 0 < m.message.expires_at <= now]
        if not expired:
            return messages
        if self.is_stored:
            self._broker.add_operation(Discard(self.id, tuple(expired), DiscardReason.EXPIRED))
        return [m for m in messages if not 0 < m.message.expires_at <= now]

    async def _page_in(self) -> None:
        try:
            while not self.is_removed:
                try:
                    await self.cursor.page_in()
                    break
                except StoreError as error:
                    _log.error("destination=%s page_in=failed: %s", self.destination, error)
                    await asyncio.sleep(PAGE_RETRY_S)
        finally:
            self._paging = False
        if not self.is_removed:
            self.dispatch()

    def _unblock(self) -> None:
        self._broker.full_lists.discard(self)
        blocked, self.blocked = self.blocked, set()
        for connection in blocked:
            connection.unthrottle(self)


class NoCursor(PendingCursor):
    """The cursor of a list that never holds anything."""

    @property
    def size(self) -> int:
        return 0

    @property
    def memory_bytes(self) -> int:
        return 0

    @property
    def is_full(self) -> bool:
        return False

    @property
    def needs_page(self) -> bool:
        return False

    def offer(self, messages: Sequence[StoredMessage]) -> Sequence[StoredMessage]:
        return messages

    def take(self, limit: int, bytes_max: int) -> Sequence[StoredMessage]:
        return ()

    async def page_in(self) -> None:
        pass

    def put_back(self, messages: Sequence[StoredMessage]) -> None:
        pass

    def claim(self, sequences: Sequence[int]) -> Sequence[int]:
        return ()

    def remove(self, sequences: Sequence[int]) -> int:
        return 0

    async def close(self) -> None:
        pass
