"""Handing many retained messages to one new subscription, a chunk at a time.

A filter may cover 100,000 of them; all in one turn, they would stop every other client for a second
and fill the memory of a slow one. So a subscription gets a chunk in the turn in which it is made
(most need no more) and the others one by one: for a stored subscription, when the previous one is
durable; for the others, when the previous one is handed out and the socket takes more.

Meanwhile live messages come, and a client must not take an old value for the newest. The rule is
that the retained message of a topic goes out before any message published to it after the
subscription was made: while a delivery is under way, a publish to a topic whose turn has not come
yet hands over the retained message first, in the same turn and before it. So each topic's messages
arrive in the order in which they were published, and none is left out (MQTT 3.1.1
[MQTT-3.3.1-6], [MQTT-4.6.0-6]).

A delivery remembers the numbers of its topics or, where finding those would take long, how far it
has examined all topics (``retained_topics.py``), and which of those to come must be left out. A
durable subscription has a note in the store while more than the first chunk is on its way: after a
kill of the gateway it gets all of them again.

A subscription that acknowledges and ends with its connection has a list in the store, but what is
retained is in the store already, and nobody will ask for this copy of it after a crash. So it is
*lent*: in flight until the client acknowledges it, and in no list. That is done only when nothing
older is on its way to the subscription, because it bypasses what waits in the list.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from tidegate.broker.limits.acknowledged import AcknowledgedLog
from tidegate.broker.lists.handing_out import may_be_for
from tidegate.broker.lists.pending_list import PendingList
from tidegate.broker.owner import key_of
from tidegate.broker.publish.retained_topics import FewTopics, ManyTopics, Topics
from tidegate.broker.route.retained import RetainedMessages
from tidegate.broker.route.router import Route
from tidegate.broker.route.topic_tree import LOOKED_AT_MAX
from tidegate.broker.turn.flow import Flow
from tidegate.spi import (
    GatewayError,
    Message,
    PutSubscription,
    StoredMessage,
    StoreError,
    names,
)

_log = logging.getLogger("tidegate.broker.retained")

#: Messages of one chunk: as many as a consumer without acknowledgement gets in one turn.
CHUNK_COUNT_MAX: Final = 1000

#: Bytes of bodies after which a chunk is closed: a write that takes some milliseconds.
CHUNK_BYTES_MAX: Final = 1 << 20

#: Topics examined for one chunk: those expired or not wanted cost time, too.
CHUNK_LOOKED_AT_MAX: Final = LOOKED_AT_MAX

#: How long a delivery waits after it found no room in the store.
RETRY_S: Final = 1.0


#: Option of a stored subscription: retained messages are on their way to it.
_NOTE: Final = "retained"


@dataclass(slots=True)
class _Chunk:
    """What was added to one turn.

    Attributes:
        added: numbers of topics whose message is on its way through the list.
        direct: (number, message) handed out when the turn is durable, at most once.
        is_next: it is the delivery's next chunk; False: one topic whose turn came early.
    """

    is_next: bool
    added: list[int] = field(default_factory=list[int])
    direct: list[tuple[int, StoredMessage]] = field(default_factory=list[tuple[int, StoredMessage]])


class RetainedDelivery:
    """The retained messages on their way to one subscription."""

    def __init__(
        self, deliveries: RetainedDeliveries, pending_list: PendingList, topics: Topics
    ) -> None:
        self._deliveries = deliveries
        self._flow = deliveries.flow
        self._writer = deliveries.flow.writer
        self._retained = deliveries.retained
        self._list = pending_list
        self._topics = topics
        self._again: dict[int, None] = {}  # had their turn, but what was added was dropped
        self._unconfirmed = 0
        self._is_waiting = False  # for the writer or for time
        self._is_over = False
        self._lends = self._can_lend()
        only = (pending_list,)
        self._route = Route(only, ()) if pending_list.is_stored else Route((), only)

    # --- called by the pending list, the writer and the publishes ------------------------------

    def step(self) -> None:
        """Hand over the next chunk if there is room for it."""
        if self._is_waiting or self._is_over:
            return
        if self._list.is_stored:
            try:
                self._writer.check_writable()
            except StoreError as error:
                if error.retryable:
                    self._retry_later(RETRY_S)
                else:
                    self._give_up(error)
                return
        chunk = _Chunk(is_next=True)
        room = min(CHUNK_COUNT_MAX, self._room())
        if room > 0 and self._fill(chunk, room) and self.has_more():
            self._retry_later(0)  # nothing wanted among many: examine more in the next turn
        self._end_if_done()

    def publish_early(self, number: int) -> None:
        """A message is being published to the topic: what is retained so far goes out first."""
        if self._topics.is_to_come(number):
            self._topics.leave_out(number)
        elif number in self._again:
            del self._again[number]
        else:
            return
        message = self._retained.at(number)
        if message is not None and self._is_wanted(message, self._writer.now()):
            chunk = _Chunk(is_next=False)
            first = len(self._writer.turn.operations)
            self._add(chunk, number, message)
            self._close(chunk, first)

    def leave_out(self, number: int) -> None:
        """The number belongs to another topic from now on, one that had no retained message when
        the subscription was made."""
        self._topics.leave_out(number)
        self._again.pop(number, None)

    def _confirmed(self, chunk: _Chunk) -> None:
        """It is durable: what is not stored can be handed out.

        That happens before what was published in the same turn is handed out.
        """
        consumers = self._list.consumers
        if chunk.direct and consumers and consumers[0].client.is_undecided:
            consumers[0].client.hold_back(lambda: self._confirmed(chunk))
            return
        self._unconfirmed -= 1
        if chunk.is_next:
            self._is_waiting = False
        if chunk.direct and self._lends:
            self._lend([message for _, message in chunk.direct])
        elif chunk.direct and not self._is_over:
            room = self._direct_room()
            if room is not None:  # otherwise the client is gone: at most once was all it asked for
                if room:
                    self._list.offer_direct([message for _, message in chunk.direct[:room]])
                self._again.update((number, None) for number, _ in chunk.direct[room:])
        self._end_if_done()
        if self._list.is_stored and not self._is_over:
            self._retry_later(0)  # when this turn is in the list
        # otherwise the dispatch that follows takes the next step, if the client takes this one

    def _failed(self, chunk: _Chunk, error: GatewayError) -> None:
        """There was no room for it, or the store is broken."""
        self._unconfirmed -= 1
        if chunk.is_next:
            self._is_waiting = False
        if not error.retryable:
            self._give_up(error)
            return
        self._again.update((number, None) for number in chunk.added)
        self._again.update((number, None) for number, _ in chunk.direct)
        self._retry_later(RETRY_S)

    def end(self) -> None:
        """It is complete, or the subscription is over."""
        self._is_over = True

    # --- how much more -------------------------------------------------------------------------

    def _room(self) -> int:
        """How many more the list takes now."""
        pending_list = self._list
        cursor = pending_list.cursor
        if pending_list.is_stored:
            if cursor.is_full:
                return 0
            limit = pending_list.limit
            return CHUNK_COUNT_MAX if limit is None else limit.room()
        consumers = pending_list.consumers
        has_room = not cursor.size and consumers and consumers[0].client.is_writable
        return CHUNK_COUNT_MAX if has_room else 0

    def _can_lend(self) -> bool:
        """Tell whether what the client has not acknowledged may be forgotten with its connection,
        and no message accepted before would come after what is handed out now."""
        pending_list = self._list
        subscription = pending_list.subscription
        return (
            subscription is not None
            and not subscription.durable
            and not subscription.share_group
            and pending_list.succession is None
            and bool(pending_list.consumers)
            and not pending_list.consumers[0].acknowledges_all  # otherwise it may send them back
            and not pending_list.cursor.size
            and not self._writer.unwritten_bytes
            # What a client acknowledges is a row of the sinks' log, and needs a place in the store.
            and not self._deliveries.log.is_read
        )

    def _direct_room(self) -> int | None:
        """How many unstored messages a stored subscription can be handed; None when nobody
        consumes."""
        consumers = self._list.consumers
        if not consumers:
            return None
        consumer = consumers[0]
        if self._lends and consumer.acknowledge:
            return max(0, consumer.room())
        if not consumer.client.is_writable:
            return 0
        return max(0, consumer.room()) if consumer.acknowledges_all else CHUNK_COUNT_MAX

    def has_more(self) -> bool:
        """Tell whether anything has not been added to a turn yet."""
        return self._topics.has_more() or bool(self._again)

    # --- adding --------------------------------------------------------------------------------

    def _fill(self, chunk: _Chunk, count_max: int) -> bool:
        """Add the next chunk, *count_max* messages at most, to the filling turn.

        Returns: True when there was nothing to add in what it examined.
        """
        retained, now = self._retained, self._writer.now()
        first = len(self._writer.turn.operations)
        room = self._direct_room()
        count = size = 0
        is_held_up = False
        for _ in range(CHUNK_LOOKED_AT_MAX):
            number = self._peek()
            if number is None or count >= count_max or size >= CHUNK_BYTES_MAX:
                break
            message = retained.at(number)
            if message is not None and self._is_wanted(message, now):
                if self._lends or self._is_direct(message):
                    if room is not None and len(chunk.direct) >= room:
                        is_held_up = True
                        break
                    if room is None:
                        message = None
                if message is not None:
                    self._add(chunk, number, message, lends=self._lends)
                    count += 1
                    size += len(message.body)
            self._advance(number)
        self._close(chunk, first)
        return count == 0 and not is_held_up

    def _peek(self) -> int | None:
        for number in self._again:
            return number
        return self._topics.next()

    def _advance(self, number: int) -> None:
        if self._again:
            del self._again[number]
        else:
            self._topics.advance()

    def _is_wanted(self, message: Message, now: int) -> bool:
        if not self._topics.covers(message.destination) or 0 < message.expires_at <= now:
            return False
        pending_list = self._list
        if pending_list.no_local and key_of(message) == pending_list.client_key:
            return False  # [MQTT-3.8.3-3] of 5.0
        if not self._is_permitted(message):
            return False
        return pending_list.matches is None or pending_list.matches(message)

    def _is_permitted(self, message: Message) -> bool:
        """Some consumer present may have it; checked again when it is handed out."""
        consumers = self._list.consumers
        return not consumers or any(may_be_for(item, message.destination) for item in consumers)

    def _is_direct(self, message: Message) -> bool:
        """A stored subscription gets it at most once, without storing it."""
        pending_list = self._list
        return pending_list.is_stored and (message.qos == 0 or pending_list.qos == 0)

    def _add(self, chunk: _Chunk, number: int, message: Message, *, lends: bool = False) -> None:
        writer = self._writer
        writer.own_sequences += 1
        copy = msgspec.structs.replace(message, retained=True)
        if lends or self._is_direct(message):
            chunk.direct.append((number, StoredMessage.of(writer.take_sequence(), copy)))
        else:
            chunk.added.append(number)
            writer.add_message(copy, self._route)

    def _close(self, chunk: _Chunk, first: int) -> None:
        """Close the chunk: a unit of the turn, which confirms it or reports that it was dropped."""
        if chunk.added or chunk.direct:
            self._writer.turn.when_durable(
                lambda: self._confirmed(chunk),
                lambda error: self._failed(chunk, error),
                first=first,
            )
            self._unconfirmed += 1
            self._is_waiting = self._is_waiting or chunk.is_next
        self._writer.schedule()

    def _lend(self, messages: list[StoredMessage]) -> None:
        """Hand out what is not in the list, all of it: what is published to its topics from now on
        must not overtake it. There was room for it when its turn was filled.

        Nothing of a chunk comes back: by then the client and its subscription are gone.
        """
        consumers = self._list.consumers
        if self._is_over or self._list.is_removed or not consumers:
            return
        consumer = consumers[0]
        messages = [item for item in messages if self._is_permitted(item.message)]
        if consumer.acknowledge:
            expected = [item for item in messages if item.message.qos]  # no others are acknowledged
            consumer.hold(expected, self._flow.nowhere, self._writer.now())
            self._list.changed()
        self._flow.sent += len(messages)
        consumer.client.deliver(consumer, messages)

    # --- ending --------------------------------------------------------------------------------

    def _retry_later(self, delay_s: float) -> None:
        if not self._is_waiting:
            self._is_waiting = True
            asyncio.get_running_loop().call_later(delay_s, self._retry)

    def _retry(self) -> None:
        self._is_waiting = False
        self.step()

    def _give_up(self, error: GatewayError) -> None:
        if not self._is_over:
            _log.error("destination=%s retained=incomplete: %s", self._list.destination, error)
            self._deliveries.end(self._list)

    def _end_if_done(self) -> None:
        if not (self._is_over or self._unconfirmed or self.has_more()):
            self._deliveries.end(self._list)


@dataclass(eq=False, repr=False)
class RetainedDeliveries:
    """The deliveries under way.

    Attributes:
        active: by the subscription's list.
    """

    flow: Flow
    retained: RetainedMessages
    log: AcknowledgedLog
    _detours: set[object]  # see tidegate.broker.publish.publisher.Publisher
    active: dict[PendingList, RetainedDelivery] = field(
        default_factory=dict[PendingList, RetainedDelivery]
    )

    def begin(self, pending_list: PendingList) -> None:
        """Begin to give a subscription the retained messages that its filter covers.

        A delivery already under way starts over (MQTT 5.0 [MQTT-3.8.4-4]).
        """
        self.end(pending_list)
        retained = self.retained
        filter_name = names.name_of(pending_list.destination)
        numbers = retained.numbers_matching(filter_name)
        if numbers is not None and not numbers:
            return
        topics = ManyTopics(retained, filter_name) if numbers is None else FewTopics(numbers)
        delivery = RetainedDelivery(self, pending_list, topics)
        self.active[pending_list] = delivery
        pending_list.retained = delivery.step
        self._detours.add(self)
        retained.on_new_number = self._leave_out
        delivery.step()
        subscription = pending_list.subscription
        if subscription is not None and subscription.durable and delivery.has_more():
            self._note(pending_list, is_complete=False)

    def recover(self, durable: Iterable[PendingList]) -> None:
        """After a start: begin again what the gateway had not finished when it was killed."""
        for pending_list in list(durable):
            subscription = pending_list.subscription
            if subscription is not None and _NOTE in subscription.options:
                self._note(pending_list, is_complete=True)
                self.begin(pending_list)

    def end(self, pending_list: PendingList) -> None:
        """The subscription is over, or has everything."""
        delivery = self.active.pop(pending_list, None)
        if delivery is None:
            return
        delivery.end()
        pending_list.retained = None
        if not pending_list.is_removed:
            self._note(pending_list, is_complete=True)
        if not self.active:
            self._detours.discard(self)
            self.retained.on_new_number = None

    def before_publish(self, destination: str) -> None:
        """Call before a message is published to topic *destination*, and before it is retained."""
        number = self.retained.number_of(destination)
        if number is not None:
            for delivery in list(self.active.values()):
                delivery.publish_early(number)

    def _note(self, pending_list: PendingList, *, is_complete: bool) -> None:
        """Note in the store what :meth:`recover` must know."""
        subscription = pending_list.subscription
        if subscription is None or is_complete != (_NOTE in subscription.options):
            return
        options = {key: text for key, text in subscription.options.items() if key != _NOTE}
        if not is_complete:
            options[_NOTE] = "on their way"
        noted = msgspec.structs.replace(subscription, options=options)
        pending_list.subscription = noted
        self.flow.writer.add_operation(PutSubscription(noted))

    def _leave_out(self, number: int) -> None:
        for delivery in self.active.values():
            delivery.leave_out(number)
