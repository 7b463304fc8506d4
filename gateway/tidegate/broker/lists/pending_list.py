"""A pending list, the one structure behind queues and topic subscriptions, and its consumers."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Final, Protocol, TypeAlias

from tidegate.broker.lists.limit import Limit, Unstored
from tidegate.broker.lists.selector import Matcher
from tidegate.spi import (
    MESSAGE_OVERHEAD_BYTES,
    GatewayError,
    MessageStore,
    Operation,
    Outcome,
    PendingCursor,
    StoredMessage,
    Subscription,
    names,
)
from tidegate.spi.events import Tell

#: With several consumers on one list, how many messages one gets before the next one's turn.
SHARE_COUNT_MAX: Final = 64

#: Messages a list hands out before it yields the loop, some 3 milliseconds: a consumer may take
#: 65,535. Equals the default prefetch_count, so that most consumers are filled at once.
HANDED_OUT_MAX: Final = 1000

#: (message, its list, microseconds since the epoch when it was handed out)
InFlight: TypeAlias = "tuple[StoredMessage, PendingList, int]"

#: What operators are shown of a list: pending, in flight, consumers, bytes in memory, dropped, is full, is paused.
Figures: TypeAlias = tuple[int, int, int, int, int, bool, bool]


class Client(Protocol):
    """What lists need of a connection."""

    client_id: str
    principal: str
    protocol: str
    is_writable: bool
    is_undecided: bool

    def hold_back(self, act: Callable[[], None], size: int = 0, /) -> bool: ...
    def deliver(self, consumer: Consumer, messages: Sequence[StoredMessage]) -> None: ...
    def add_in_flight(self, size: int, /) -> None: ...
    def throttle(self, reason: object, *, at_once: bool = False) -> None: ...
    def unthrottle(self, reason: object) -> None: ...
    def end(self, error: GatewayError, /) -> None: ...


class Choosing(Protocol):
    """The consumers of a list that have a selector (:mod:`tidegate.broker.lists.selecting`)."""

    def attach(self, consumer: Consumer, matches: Matcher) -> None: ...
    def detach(self, consumer: Consumer) -> bool: ...
    def consumers(self) -> list[Consumer]: ...
    def has_more_for(self, consumer: Consumer) -> bool: ...
    def offer(self, messages: Sequence[StoredMessage]) -> None: ...
    def returned(self, messages: Sequence[StoredMessage]) -> None: ...
    def leaving(self, sequences: list[int]) -> None: ...
    def forget(self, sequences: Sequence[int]) -> None: ...
    def dispatch(self) -> None: ...


class Replacing(Protocol):
    """One list takes the place of another (:mod:`tidegate.broker.lists.succession`)."""

    old: PendingList
    new: PendingList

    def as_granted(self, messages: Sequence[StoredMessage], /) -> Sequence[StoredMessage]: ...
    def is_over(self) -> bool: ...
    def old_dispatched(self) -> None: ...
    def end(self) -> None: ...


class Turns(Protocol):
    """The turn that is being filled (:class:`tidegate.broker.turn.writer.TurnWriter`)."""

    next_sequence: int
    logged: frozenset[Outcome]

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
    """What a list needs of its surroundings.

    Attributes:
        full_lists: lists that take no more; their producers wait.
        sent: messages handed to front-ends.
        nowhere: stands in for the list of in-flight messages that no list holds.
        unreadable: lists whose next page cannot be read, and why.
        unseen: lists that may have changed since operators last looked.
    """

    unseen: set[PendingList]
    tell: Tell
    unreadable: dict[PendingList, str]
    full_lists: set[PendingList]
    sent: int
    nowhere: PendingList
    store: MessageStore

    @property
    def writer(self) -> Turns: ...
    def mark_ready(self, pending_list: PendingList) -> None: ...
    def spawn(self, work: Coroutine[object, object, None], name: str, /) -> object: ...
    async def page_in(self, pending_list: PendingList, /) -> None: ...
    def rest(self, consumer: Consumer) -> None: ...
    def release_consumer(self, client: Client) -> None: ...
    def release_producers(self, pending_list: PendingList) -> None: ...
    def left(self, pending_list: PendingList, sequences: Sequence[int], /) -> None: ...
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
    def without_expired(
        self, pending_list: PendingList, messages: Sequence[StoredMessage], now: int, /
    ) -> Sequence[StoredMessage]: ...
    def returned(self, pending_list: PendingList, messages: Sequence[StoredMessage], /) -> None: ...
    def now_or_never(
        self, pending_list: PendingList, consumer: Consumer, messages: Sequence[StoredMessage], /
    ) -> None: ...
    def ended(self, pending_list: PendingList, /) -> None: ...


@dataclass(slots=True, eq=False, repr=False)
class Consumer:
    """A subscription that is being served.

    Attributes:
        destination: what was subscribed to; may be a filter.
        matches: its selector on a queue; None: everything. The selector of a topic subscription
            is the list's, which holds only matches.
        allows: which destinations' messages it may be given; None: all that it subscribed to.
        acknowledges_all: it also acknowledges what is not stored for it.
        in_flight: by sequence, what was delivered and not yet acknowledged, in delivery order.
        in_flight_bytes: bytes of their bodies.
        handed: messages put in flight so far; all but those still in flight are settled.
        lists: what it consumes from, in order; several for a queue filter.
        is_over: it is given nothing more.
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
    handed: int = 0
    lists: dict[PendingList, None] = field(default_factory=lambda: dict[PendingList, None]())
    resting: bool = False
    is_over: bool = False

    @property
    def first_list(self) -> PendingList:
        """The list of a consumer that has only one."""
        return next(iter(self.lists))

    def is_full(self) -> bool:
        """As much is in flight as allowed."""
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
        """Put *messages* of *pending_list* in flight."""
        in_flight = self.in_flight
        size = 0
        for message in messages:
            in_flight[message.sequence] = (message, pending_list, now)
            size += message.size
        self.handed += len(messages)
        self.count(len(messages), size)

    def count(self, messages: int, size: int) -> None:
        """*messages* more, of *size* bytes, are in flight; negative: fewer."""
        self.in_flight_bytes += size
        self.client.add_in_flight(size + messages * MESSAGE_OVERHEAD_BYTES)


@dataclass(slots=True, eq=False, repr=False)
class PendingList:
    """Messages that wait for consumers, in sequence order.

    Attributes:
        id: the store's name for it; 0 or less when it is not stored.
        destination: queue, or topic filter.
        subscription: what the store keeps of a stored topic subscription, else None.
        matches: what a topic subscription with a selector wants; None: everything.
        consumers: being served, in order of subscription; times_attached: how often one was attached.
        selecting: a queue's consumers with a selector, which are not in *consumers*; None: there
            are none.
        blocked: producers whose sockets wait for room here.
        limit: of a queue or durable subscription that has one.
        unstored: holds a queue's messages that are not stored, where configured.
        lost: messages dropped from it, or kept out for lack of room.
        owner: of a queue, the principal that made it; "": the gateway itself.
        is_paused: an operator paused it: it hands nothing out until resumed.
        returning: how many departed consumers' messages are not all back: it hands nothing out.
        is_lowered: its QoS became 0 while messages could wait in it; see :attr:`stores`.
        succession: set while this list replaces another, or is being replaced.
        retained: hands over more of the retained messages on their way to this subscription.
        is_dispatching: it is handing out; has_returned: something came back meanwhile, so the
            rest waits for the next turn.
        is_put_off: a timer is set to hand it out again.
        figures: as operators last saw them; None: never. is_seen: they have not changed since.
        can_fill: what others hold may make its cursor full.
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
    owner: str = ""
    is_paused: bool = False
    returning: int = 0
    selecting: Choosing | None = None
    consumers: list[Consumer] = field(default_factory=list[Consumer])
    times_attached: int = 0
    lost: int = 0
    blocked: set[Client] = field(default_factory=set[Client])
    limit: Limit | None = None
    unstored: Unstored | None = None
    succession: Replacing | None = None
    retained: Callable[[], None] | None = None
    has_returned: bool = False
    is_put_off: bool = False
    is_dispatching: bool = False
    figures: Figures | None = None
    is_seen: bool = False
    can_fill: bool = False
    _next_consumer: int = 0
    _share: int = 0  # kept when handing out was interrupted
    _paging: bool = False

    def __post_init__(self) -> None:
        self.is_queue = names.is_queue(self.destination)
        self.is_stored = self.id > 0

    @property
    def stores(self) -> bool:
        """Messages of QoS 1 and 2 are stored for it.

        Not for a QoS 0 subscription, unless it was lowered: what is handed out directly would
        overtake what waits in its stored list [MQTT-4.6.0-6], so it keeps storing until its
        client leaves.
        """
        return self.is_stored and (self.qos > 0 or self.is_lowered)

    @property
    def is_full(self) -> bool:
        """Its producers must wait."""
        return self.lacks_room or (self.limit is not None and self.limit.is_full)

    @property
    def lacks_room(self) -> bool:
        """Neither memory nor temporary files have room for more."""
        return self.cursor.is_full or (self.unstored is not None and self.unstored.is_full)

    def changed(self) -> None:
        """Its figures may no longer be what operators last saw."""
        if self.is_seen:
            self.is_seen = False
            self._around.unseen.add(self)

    def attach(self, consumer: Consumer) -> None:
        self.changed()
        if self.is_queue and consumer.matches is not None:
            if self.selecting is None:
                self.selecting = self._around.choosing(self)
            self.selecting.attach(consumer, consumer.matches)
        else:
            self.consumers.append(consumer)
            self.times_attached += 1
            if not self.qos and self.is_stored and self.cursor.size:
                self._around.lower(self, True)
        consumer.lists[self] = None

    def detach(self, consumer: Consumer) -> None:
        self.changed()
        if consumer in self.consumers:
            self.consumers.remove(consumer)
            del consumer.lists[self]
            if self.is_lowered and not self.consumers:
                self._around.lower(self, False)
        elif self.selecting is not None and self.selecting.detach(consumer):
            del consumer.lists[self]

    def all_consumers(self) -> list[Consumer]:
        """With a selector or without."""
        selecting = self.selecting
        return self.consumers if selecting is None else [*self.consumers, *selecting.consumers()]

    def offer(self, messages: Sequence[StoredMessage]) -> None:
        """Append new durable messages."""
        if self.is_seen:
            self.changed()
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
            self.limit.offered(messages)
        if self.lacks_room:
            self._around.full_lists.add(self)

    def offer_direct(self, messages: Sequence[StoredMessage]) -> None:
        """Messages that are not stored for this list.

        An unstored list queues them in its cursor; a stored one hands them out `now_or_never`.
        """
        if self.is_removed:
            return
        succession = self.succession
        if succession is not None and succession.new is self:
            succession.old.offer_direct(messages)  # after what waits there
        elif not self.is_stored:
            if self.is_seen:
                self.changed()
            dropped = self.cursor.offer(messages)
            if dropped:
                self._around.count_dropped(self, len(dropped))
            self._offered(messages)
        elif self.consumers:
            # Members of a shared subscription take turns.
            consumer = self.consumers[self._next_consumer % len(self.consumers)]
            self._next_consumer += 1
            self._around.now_or_never(self, consumer, messages)

    def put_back(self, messages: Sequence[StoredMessage]) -> None:
        """Messages that were handed out return to their place."""
        if messages and not self.is_removed:
            self.changed()
            self.cursor.put_back(messages)
            if self.selecting is not None:
                self.selecting.returned(messages)
            if self.is_dispatching:
                self.has_returned = True
                self._around.returned(self, messages)
            else:
                self._around.mark_ready(self)

    def dispatch(self) -> None:
        """Hand out messages while consumers have room."""
        if self.is_dispatching or self.is_removed:
            return  # a front-end unsubscribed from within deliver()
        if self.is_seen:
            self.changed()
        succession = self.succession
        if succession is not None and succession.new is self and not succession.is_over():
            self._release_producers()
            return
        self.is_dispatching = True
        self.has_returned = False
        try:
            if not (self.is_paused or self.returning):
                if self.selecting is not None:
                    self.selecting.dispatch()
                self._dispatch()
        finally:
            self.is_dispatching = False
        self._release_producers()
        if self.limit is not None:
            self.limit.update(is_dispatched=True)
        if self.retained is not None:
            self.retained()
        if self.succession is not None:
            self.succession.old_dispatched()

    def _release_producers(self) -> None:
        if self in self._around.full_lists and not self.is_full:
            self._around.release_producers(self)

    def leaving(self, messages: Sequence[StoredMessage]) -> None:
        """Call before an operation takes messages off the list without handing them out."""
        if self.limit is not None and self.limit.weighs:
            self.limit.weigh(messages)

    def end(self) -> None:
        """The list takes and hands out nothing more."""
        self.is_removed = True
        if self.succession is not None and self.succession.new is self:
            self.succession.end()
        self._around.ended(self)
        if self.limit is not None:
            self.limit.end()

    def _dispatch(self) -> None:
        cursor = self.cursor
        share, self._share = self._share, 0
        index = 0
        left = HANDED_OUT_MAX
        while True:
            count = len(self.consumers)
            if count == 1:
                consumer = self.consumers[0]
                room = consumer.room()
                if room <= 0:
                    return
                room = min(room, HANDED_OUT_MAX)
            else:
                index = self._index_with_room()
                if index < 0:
                    return
                consumer = self.consumers[index]
                # Computed once: with shares of what is left, the first would get most of it.
                share = share or min(-(-cursor.size // count), SHARE_COUNT_MAX) or 1
                room = min(consumer.room(), share)
            if left <= 0:
                self._share = share
                self._around.mark_ready(self)
                return
            messages = cursor.take(room, consumer.room_bytes())
            if not messages:
                self.request_page()
                return
            left -= len(messages)
            if count > 1:  # only one that got something has had its turn
                self._next_consumer = (index + 1) % count
            now = self._around.writer.now()
            for message in messages:
                if message.message.expires_at:
                    messages = self._around.without_expired(self, messages, now)
                    break
            if consumer.allows is not None and not self.is_queue:
                messages = self._around.permitted(self, consumer, messages, now)
                if messages is None:
                    return
            if messages:
                self.hand_over(consumer, messages, now)
            if self.has_returned:
                return

    def request_page(self, *, anyway: bool = False) -> None:
        """Page in messages that are only in the store, if any; then dispatch.

        Args: anyway: even when some are in memory.
        """
        if (anyway or self.cursor.needs_page) and not self._paging:
            self._paging = True
            self._around.spawn(self._around.page_in(self), f"page-in {self.destination}")

    def _index_with_room(self) -> int:
        """The consumer whose turn it is, or the next one that has room; -1 when none has."""
        consumers, count = self.consumers, len(self.consumers)
        turns = range(self._next_consumer, self._next_consumer + count)
        return next((turn % count for turn in turns if consumers[turn % count].room() > 0), -1)

    def hand_over(self, consumer: Consumer, messages: Sequence[StoredMessage], now: int) -> None:
        """Give *consumer* messages that are not in the cursor, whatever its room."""
        if self.is_seen:
            self.changed()
        self.leaving(messages)
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
            messages = self.succession.as_granted(messages)
        consumer.client.deliver(consumer, messages)
        if consumer.resting:
            # The socket's flow control acts only when its buffer is written at the end of the
            # turn, which deliver() has scheduled: rest until after that.
            self._around.rest(consumer)

    def paged_in(self) -> None:
        """What :meth:`request_page` asked for is in memory."""
        self._paging = False
        if not self.is_removed:
            self.dispatch()
