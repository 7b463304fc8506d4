"""A pending list: the one structure behind queues and topic subscriptions (design, section 2.6).

Its consumers are here, too. What both need of those around them is said by the protocols.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Final, Protocol, TypeAlias

import msgspec

from tidegate.broker.lists.selector import Matcher
from tidegate.plugin_exit import FAILURES, failure_of
from tidegate.spi import (
    MESSAGE_OVERHEAD_BYTES,
    Discard,
    DiscardReason,
    GatewayError,
    MessageStore,
    Operation,
    PendingCursor,
    StoredMessage,
    Subscription,
    names,
)

_log = logging.getLogger("tidegate.broker.pending_list")

#: With several consumers on one list, how many messages one gets before the next one's turn.
SHARE_COUNT_MAX: Final = 64

#: How long after a page could not be read it is tried again: consumers wait for it.
PAGE_RETRY_S: Final = 5.0

#: (message, its list, microseconds since the epoch when it was handed out)
InFlight: TypeAlias = "tuple[StoredMessage, PendingList, int]"


class Client(Protocol):
    """A connection, as far as lists need it."""

    client_id: str
    protocol: str
    is_writable: bool

    def deliver(self, consumer: Consumer, messages: Sequence[StoredMessage]) -> None: ...
    def add_in_flight(self, size: int, /) -> None: ...
    def throttle(self, reason: object, *, at_once: bool = False) -> None: ...
    def unthrottle(self, reason: object) -> None: ...


class Choosing(Protocol):
    """The consumers of a list that have a selector (:mod:`tidegate.broker.lists.selecting`)."""

    def attach(self, consumer: Consumer, matches: Matcher) -> None: ...
    def detach(self, consumer: Consumer) -> bool: ...
    def offer(self, messages: Sequence[StoredMessage]) -> None: ...
    def returned(self, messages: Sequence[StoredMessage]) -> None: ...
    def leaving(self, sequences: list[int]) -> None: ...
    def dispatch(self) -> None: ...


class Replacing(Protocol):
    """One list takes the place of another (:mod:`tidegate.broker.lists.succession`)."""

    @property
    def old(self) -> PendingList: ...
    @property
    def new(self) -> PendingList: ...
    def is_over(self) -> bool: ...
    def old_dispatched(self) -> None: ...
    def end(self) -> None: ...


class Limit(Protocol):
    """How many messages may wait (:mod:`tidegate.broker.limits.subscription_limit`)."""

    count_max: int

    def update(self) -> None: ...
    def end(self) -> None: ...


class Turns(Protocol):
    """The turn that is being filled (:class:`tidegate.broker.turn.writer.TurnWriter`)."""

    next_sequence: int

    def now(self) -> int: ...
    def add_operation(self, operation: Operation, /) -> None: ...
    def acknowledge_automatically(
        self,
        consumer: Consumer,
        pending_list: PendingList,
        messages: Sequence[StoredMessage],
        now: int,
        /,
    ) -> None: ...
    def when_durable(
        self,
        done: Callable[[], object],
        failed: Callable[[GatewayError], None] | None = None,
        *,
        synced: bool = True,
    ) -> None: ...


class Surroundings(Protocol):
    """What a list asks of those around it.

    Attributes:
        full_lists: those that take no more; their producers wait.
        sent: messages handed to front-ends.
        nowhere: the list of what is in flight and in no list.
    """

    full_lists: set[PendingList]
    sent: int

    @property
    def nowhere(self) -> PendingList: ...
    @property
    def store(self) -> MessageStore: ...
    @property
    def writer(self) -> Turns: ...
    def mark_ready(self, pending_list: PendingList) -> None: ...
    def spawn(self, work: Coroutine[object, object, None], name: str, /) -> object: ...
    def rest(self, consumer: Consumer) -> None: ...
    def release_consumer(self, client: Client) -> None: ...
    def count_dropped(self, pending_list: PendingList, count: int) -> None: ...
    def lower(self, pending_list: PendingList, is_lowered: bool, /) -> None: ...
    def half_sent(
        self, subscription: Subscription, messages: Sequence[StoredMessage], /
    ) -> set[int]: ...
    def choosing(self, pending_list: PendingList) -> Choosing: ...
    def permitted(
        self,
        pending_list: PendingList,
        consumer: Consumer,
        messages: Sequence[StoredMessage],
        now: int,
        /,
    ) -> Sequence[StoredMessage] | None: ...
    def ended(self, pending_list: PendingList, /) -> None: ...


@dataclass(slots=True, eq=False, repr=False)
class Consumer:
    """A subscription that is being served.

    Attributes:
        destination: what was subscribed to; may be a filter.
        matches: what its selector wants of a queue; None: everything. The selector of a topic
            subscription is the list's, which holds nothing else.
        allows: which destinations' messages it may be given; None: all that it subscribed to.
        acknowledges_all: it acknowledges also what is not stored for it.
        in_flight: by sequence, what was delivered and not yet acknowledged, in delivery order.
        in_flight_bytes: bytes of their bodies.
        lists: what it consumes from, in order; several for a queue filter.
        is_over: it is given nothing any more.
        resting: it was handed messages without acknowledgement and waits for the next turn.
    """

    client: Client
    key: str
    destination: str
    _: KW_ONLY
    subscription_name: str
    acknowledge: bool
    prefetch_count: int
    prefetch_bytes: int
    matches: Matcher | None = None
    allows: Callable[[str], bool] | None = None
    acknowledges_all: bool = False
    in_flight: dict[int, InFlight] = field(default_factory=dict[int, InFlight])
    in_flight_bytes: int = 0
    lists: dict[PendingList, None] = field(default_factory=lambda: dict[PendingList, None]())
    resting: bool = False
    is_over: bool = False

    @property
    def first_list(self) -> PendingList:
        """The list of a consumer that has but one."""
        return next(iter(self.lists))

    def is_full(self) -> bool:
        """As much is in flight as may be."""
        return (
            len(self.in_flight) >= self.prefetch_count
            or self.in_flight_bytes >= self.prefetch_bytes
        )

    def room(self) -> int:
        """How many messages may be handed out now; 0 when none."""
        if not self.client.is_writable or self.resting or self.is_over:
            return 0
        if not self.acknowledge:
            return self.prefetch_count
        if self.in_flight_bytes >= self.prefetch_bytes:
            return 0
        return self.prefetch_count - len(self.in_flight)

    def room_bytes(self) -> int:
        """How many bytes of bodies may be handed out now; meaningful when ``room()`` is not 0."""
        return max(1, self.prefetch_bytes - self.in_flight_bytes)

    def hold(self, messages: Sequence[StoredMessage], pending_list: PendingList, now: int) -> None:
        """*messages* are in flight, of *pending_list*, from now on."""
        in_flight = self.in_flight
        size = 0
        for message in messages:
            in_flight[message.sequence] = (message, pending_list, now)
            size += message.size
        self.count(len(messages), size)

    def count(self, messages: int, size: int) -> None:
        """So many more, or fewer, are in flight, and so many bytes."""
        self.in_flight_bytes += size
        self.client.add_in_flight(size + messages * MESSAGE_OVERHEAD_BYTES)


@dataclass(slots=True, eq=False, repr=False)
class PendingList:
    """Messages that wait for consumers, in sequence order.

    Attributes:
        id: the store's name for it; not above 0 when it is not stored.
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
        retained: hands over more of the retained messages on their way to this subscription.
    """

    _around: Surroundings
    id: int
    destination: str
    cursor: PendingCursor
    subscription: Subscription | None = None
    _: KW_ONLY
    qos: int = 2
    no_local: bool = False
    client_key: str = ""
    overlap_key: tuple[str, str] | None = None
    matches: Matcher | None = None
    is_removed: bool = False
    is_queue: bool = field(init=False)
    is_stored: bool = field(init=False)
    is_lowered: bool = False
    selecting: Choosing | None = None
    consumers: list[Consumer] = field(default_factory=list[Consumer])
    blocked: set[Client] = field(default_factory=set[Client])
    limit: Limit | None = None
    succession: Replacing | None = None
    retained: Callable[[], None] | None = None
    _next_consumer: int = 0
    _paging: bool = False
    _dispatching: bool = False

    def __post_init__(self) -> None:
        self.is_queue = names.is_queue(self.destination)
        self.is_stored = self.id > 0

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
                self.selecting = self._around.choosing(self)
            self.selecting.attach(consumer, consumer.matches)
        else:
            self.consumers.append(consumer)
            if not self.qos and self.is_stored and self.cursor.size:
                self._around.lower(self, True)
        consumer.lists[self] = None

    def detach(self, consumer: Consumer) -> None:
        if consumer in self.consumers:
            self.consumers.remove(consumer)
            del consumer.lists[self]
            if self.is_lowered and not self.consumers:
                self._around.lower(self, False)
        elif self.selecting is not None and self.selecting.detach(consumer):
            del consumer.lists[self]

    def offer(self, messages: Sequence[StoredMessage]) -> None:
        """New durable messages at the end."""
        if not self.is_removed:
            self.cursor.offer(messages)
            self._offered(messages)

    def _offered(self, messages: Sequence[StoredMessage]) -> None:
        """The cursor has new messages."""
        if self.selecting is not None:
            self.selecting.offer(messages)
        if self.consumers:
            self.dispatch()
        if self.limit is not None:
            self.limit.update()
        if self.cursor.is_full:
            self._around.full_lists.add(self)

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
                self._around.count_dropped(self, len(dropped))
            self._offered(messages)
            return
        if not self.consumers:
            return
        # Of a shared subscription, each turn another member.
        consumer = self.consumers[self._next_consumer % len(self.consumers)]
        self._next_consumer += 1
        if consumer.allows is not None:
            allows = consumer.allows
            messages = [item for item in messages if allows(item.message.destination)]
        room = len(messages) if consumer.client.is_writable else 0
        if room and consumer.acknowledges_all:
            room = max(0, min(room, consumer.room()))
            consumer.hold(messages[:room], self._around.nowhere, self._around.writer.now())
        if room:
            self._around.sent += room
            consumer.client.deliver(consumer, messages[:room])
        if room < len(messages):
            self._around.count_dropped(self, len(messages) - room)

    def put_back(self, messages: Sequence[StoredMessage]) -> None:
        """Messages that were out return to their place."""
        if messages and not self.is_removed:
            self.cursor.put_back(messages)
            if self.selecting is not None:
                self.selecting.returned(messages)
            self._around.mark_ready(self)

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
        if self in self._around.full_lists and not self.cursor.is_full:
            self._around.full_lists.discard(self)
            blocked, self.blocked = self.blocked, set()
            for connection in blocked:
                connection.unthrottle(self)
        if self.limit is not None:
            self.limit.update()
        if self.retained is not None:
            self.retained()
        if self.succession is not None:
            self.succession.old_dispatched()

    def end(self) -> None:
        """The list takes and hands out nothing any more."""
        self.is_removed = True
        if self.succession is not None and self.succession.new is self:
            self.succession.end()
        self._around.ended(self)
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
            now = self._around.writer.now()
            for message in messages:
                if message.message.expires_at:
                    messages = self.without_expired(messages, now)
                    break
            if consumer.allows is not None and not self.is_queue:
                messages = self._around.permitted(self, consumer, messages, now)
                if messages is None:
                    return
            if messages:
                self.hand_over(consumer, messages, now)

    def request_page(self, *, anyway: bool = False) -> None:
        """Have messages read that are only in the store, if there are any; then dispatch.

        Args: anyway: also when some are in memory.
        """
        if (anyway or self.cursor.needs_page) and not self._paging:
            self._paging = True
            self._around.spawn(self._page_in(), f"page-in {self.destination}")

    def _index_with_room(self) -> int:
        """The consumer whose turn it is, or the next one that has room; -1 when none has."""
        consumers, count = self.consumers, len(self.consumers)
        turns = range(self._next_consumer, self._next_consumer + count)
        return next((turn % count for turn in turns if consumers[turn % count].room() > 0), -1)

    def hand_over(self, consumer: Consumer, messages: Sequence[StoredMessage], now: int) -> None:
        """Give *consumer* messages that are not in the cursor, whatever its room."""
        if consumer.acknowledge:
            consumer.hold(messages, self, now)
            if self._around.full_lists:
                self._around.release_consumer(consumer.client)
        else:
            if self.is_stored:
                self._around.writer.acknowledge_automatically(consumer, self, messages, now)
            consumer.resting = True
        self._around.sent += len(messages)
        if self.succession is not None and self.succession.old is self:
            messages = [  # at most once, whatever is granted now
                StoredMessage(
                    m.sequence, msgspec.structs.replace(m.message, qos=0), m.size, m.delivery_count
                )
                for m in messages
            ]
        consumer.client.deliver(consumer, messages)
        if consumer.resting:
            # The socket's flow control acts only when its buffer is written at the end of the
            # turn, which deliver() has scheduled: rest until behind that.
            self._around.rest(consumer)

    def without_expired(
        self, messages: Sequence[StoredMessage], now: int
    ) -> Sequence[StoredMessage]:
        expired = {m.sequence for m in messages if 0 < m.message.expires_at <= now}
        if expired and self.subscription is not None:
            expired -= self._around.half_sent(self.subscription, messages)
        if not expired:
            return messages
        if self.is_stored:
            sequences = tuple(sorted(expired))
            self._around.writer.add_operation(Discard(self.id, sequences, DiscardReason.EXPIRED))
        return [m for m in messages if m.sequence not in expired]

    async def _page_in(self) -> None:
        while not self.is_removed:
            try:
                await self.cursor.page_in()
                break
            except FAILURES as error:  # whatever a store raises: consumers wait for it
                _log.error("destination=%s page_in=failed: %s", self.destination, failure_of(error))
                await asyncio.sleep(PAGE_RETRY_S)
        self._paging = False
        if not self.is_removed:
            self.dispatch()
