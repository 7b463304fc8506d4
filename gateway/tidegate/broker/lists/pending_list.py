"""A pending list: the one structure behind queues and topic subscriptions (design, section 2.6)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tidegate.broker.limits.subscription_limit import SubscriptionLimit
from tidegate.broker.lists.selecting import Selecting
from tidegate.broker.sessions.succession import Succession, as_granted
from tidegate.spi import (
    Discard,
    DiscardReason,
    PendingCursor,
    StoredMessage,
    StoreError,
    Subscription,
)

if TYPE_CHECKING:
    from tidegate.broker.connection import Connection
    from tidegate.broker.core import BrokerCore
    from tidegate.broker.lists.consumer import Consumer
    from tidegate.broker.route.retained_delivery import RetainedDelivery
    from tidegate.broker.route.selector import Matcher

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
        limit: of a durable subscription that has one.
        is_lowered: its QoS became 0 while messages could wait in it; see :attr:`stores`.
        succession: when this list replaces another one, or is replaced.
        retained: the retained messages that are on their way to this subscription.
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
        "is_lowered",
        "is_queue",
        "is_removed",
        "is_stored",
        "limit",
        "matches",
        "no_local",
        "overlap_key",
        "qos",
        "retained",
        "selecting",
        "subscription",
        "succession",
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
        self.limit: SubscriptionLimit | None = None
        self.is_lowered = False
        self.succession: Succession | None = None
        self.retained: RetainedDelivery | None = None
        self.is_removed = is_removed
        self._next_consumer = 0
        self._paging = False
        self._dispatching = False

    @property
    def stores(self) -> bool:
        """Messages of QoS 1 and 2 are stored for it.

        Not for a subscription of QoS 0, unless it is lowered: what is handed out directly would
        overtake what waits in its stored list [MQTT-4.6.0-6], so that it goes on storing until its
        client leaves.
        """
        return self.is_stored and (self.qos > 0 or self.is_lowered)

    def attach(self, consumer: Consumer) -> None:
        if self.is_queue and consumer.matches is not None:
            if self.selecting is None:
                self.selecting = Selecting(self._broker, self)
            self.selecting.attach(consumer, consumer.matches)
        else:
            self.consumers.append(consumer)
            if not self.qos and self.is_stored and self.cursor.size:
                self._broker.lower(self, True)
        consumer.lists.append(self)

    def detach(self, consumer: Consumer) -> None:
        if consumer in self.consumers:
            self.consumers.remove(consumer)
            consumer.lists.remove(self)
            if self.is_lowered and not self.consumers:
                self._broker.lower(self, False)
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
        if self.limit is not None:
            self.limit.update()
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
        succession = self.succession
        if succession is not None and succession.new is self:
            succession.old.offer_direct(messages)  # behind what waits there
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
        consumers = self.consumers
        if len(consumers) > 1:  # a shared subscription: each turn another member
            first = self._next_consumer % len(consumers)
            self._next_consumer = first + 1
            consumers = consumers[first:]
        for consumer in consumers[:1]:
            room = len(messages) if consumer.connection.is_writable else 0
            if room and consumer.acknowledges_all:
                room = max(0, min(room, consumer.room()))
                now = self._broker.now()
                for message in messages[:room]:
                    consumer.in_flight[message.sequence] = (message, self._broker.nowhere, now)
                    consumer.in_flight_bytes += len(message.message.body)
            if room:
                self._broker.sent += room
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
        succession = self.succession
        if succession is not None and succession.new is self and not succession.is_over():
            return
        self._dispatching = True
        try:
            if self.selecting is not None:
                self.selecting.dispatch()
            self._dispatch()
        finally:
            self._dispatching = False
        if self in self._broker.full_lists and not self.cursor.is_full:
            self._unblock()
        if self.limit is not None:
            self.limit.update()
        if self.retained is not None:
            self.retained.step()
        if self.succession is not None:
            self.succession.old_dispatched()

    def set_limit(self, count_max: int, overflow: str) -> None:
        """Let at most *count_max* messages (0: any number) wait here; see SubscriptionLimit."""
        if count_max:
            self.limit = SubscriptionLimit(self._broker, self, count_max, overflow)
            self.limit.update()

    def end(self) -> None:
        """The list takes and hands out nothing any more."""
        self.is_removed = True
        if self.succession is not None and self.succession.new is self:
            self.succession.end()
        self._broker.retained_deliveries.end(self)
        if self.limit is not None:
            self.limit.end()

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
                self.request_page()
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

    def request_page(self, *, anyway: bool = False) -> None:
        """Have messages read that are only in the store, if there are any; then dispatch.

        Args: anyway: also when some are in memory.
        """
        if (anyway or self.cursor.needs_page) and not self._paging:
            self._paging = True
            self._broker.spawn(self._page_in(), f"page-in {self.destination}")

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
        """Give *consumer* messages that are not in the cursor, whatever its room."""
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
        self._broker.sent += len(messages)
        if self.succession is not None and self.succession.old is self:
            messages = as_granted(messages)
        consumer.connection.deliver(consumer, messages)
        if consumer.resting:
            # The socket's flow control acts only when its buffer is written at the end of the
            # turn, which deliver() has scheduled: rest until behind that.
            self._broker.rest(consumer)

    def without_expired(
        self, messages: Sequence[StoredMessage], now: int
    ) -> Sequence[StoredMessage]:
        expired = {m.sequence for m in messages if 0 < m.message.expires_at <= now}
        if expired and self.subscription is not None:
            expired -= self._broker.sessions.half_sent(self.subscription, messages)
        if not expired:
            return messages
        if self.is_stored:
            sequences = tuple(sorted(expired))
            self._broker.add_operation(Discard(self.id, sequences, DiscardReason.EXPIRED))
        return [m for m in messages if m.sequence not in expired]

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
