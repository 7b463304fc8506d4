"""One batch per turn: collects what a turn of the event loop asked for and makes it durable.

The heart of the gateway (design, section 2). Everything that arrives in one turn lands in the
*filling* :class:`Turn`. At the end of the turn, if no write is under way, the turn becomes one
:class:`WriteBatch`; while the store makes it durable the next turn fills. When the store answers,
confirmations leave and messages go to their lists, in that order, once for the whole turn.

When there is no room for now (a retryable error: nothing was written):

1. Every unit that adds a message is taken out of the turn and its client is told.
2. The rest is retried until it succeeds, in two batches: delivery counts and acknowledgements,
   including those that come in meanwhile, because they free room; then operations whose failure
   nobody could be told (new destinations, subscriptions …), which may need room.
3. For a while publishes are refused at once (:class:`tidegate.broker.turn.shortage.Shortage`);
   after that one is let through to try.

After any other store error the store is read-only: nothing more is confirmed, everyone waiting is
told, and publishes are refused until the operator has acted. The same happens when there is still
no room while the gateway stops: it must not wait for ever.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import Final

from tidegate.broker.lists.pending_list import Consumer, InFlight, PendingList
from tidegate.broker.route.router import Route, hand_out, hand_out_in_steps
from tidegate.broker.turn.answers import tell_durable, tell_failed
from tidegate.broker.turn.following import Following
from tidegate.broker.turn.latencies import Latencies
from tidegate.broker.turn.shortage import Shortage
from tidegate.broker.turn.turn import Turn, Unit, Waiting, returned
from tidegate.broker.turn.walks import in_slices
from tidegate.plugin_exit import FAILURES, failure_of
from tidegate.spi import (
    Acknowledge,
    AddMessage,
    Durability,
    GatewayError,
    Message,
    MessageStore,
    Move,
    Operation,
    Outcome,
    StoredMessage,
    StoreError,
    StoreIOError,
    StoreLostError,
    Token,
    WriteBatch,
)
from tidegate.spi.events import Event, Tell, log_only

_log = logging.getLogger("tidegate.broker.writer")

#: Turns of up to this much work are handed out in one go. Only a transaction goes far beyond
#: :data:`tidegate.broker.turn.flow.TURN_WORK_MAX`.
HANDED_OUT_AT_ONCE: Final = 20_000

#: Clients that send more than this in one turn have more to read: read at once, it joins the same
#: batch. Fewer, larger batches take a sixth less CPU per message.
GATHER_BYTES_MIN: Final = 4096


class TurnWriter:
    """Drives the store with one turn after another, and gives out numbers and the time.

    Args:
        clock: microseconds since the epoch; may jump when the operator sets it.
        end_of_turn: called at the end of each turn before it is sealed: hands out messages for
            which consumers have room again.
        on_write: called when a turn is done, durable or not, or waits for room, with the bytes not
            yet durable.

    Attributes:
        turn: the one that is being filled.
        now: *clock*.
        shortage: whether the store has room.
        next_sequence: of the next message.
        tell: of events.
        on_written: told of the operations that are durable, in order; None: nobody wants to know.
        following: tells observers of messages; None: there are none.
        keeps_log: there is a sink for the acknowledged log: messages say who sent them, and when.
        logged: outcomes other than an acknowledgement that have a row there.
        own_sequences: how many numbers went to messages that no client published now.
        batches: turns that are durable; turns: turns that have begun to be written, which is the
            number of the filling one.
        confirmed: what clients were told is durable; latencies: how long they waited for that.
        acknowledged: stored messages whose acknowledgement by a consumer is durable.
    """

    def __init__(
        self,
        store: MessageStore,
        clock: Callable[[], int],
        end_of_turn: Callable[[], None],
        on_write: Callable[[int], None],
    ) -> None:
        self.turn = Turn()
        self.now = clock
        self.next_sequence = 1
        self.own_sequences = 0
        self.keeps_log = False
        self.logged: frozenset[Outcome] = frozenset()
        self.next_list = 1
        self.scheduled = False
        self.error: StoreError | None = None
        self.shortage = Shortage()
        self.on_written: Callable[[Sequence[Operation]], None] | None = None
        self.tell: Tell = log_only
        self.following: Following | None = None
        self.batches = 0
        self.turns = 0
        self.confirmed = 0
        self.acknowledged = 0
        self.latencies = Latencies()
        self._store = store
        self._end_of_turn = end_of_turn
        self._on_write = on_write
        self._loop = asyncio.get_running_loop()
        self._in_flight: Turn | None = None
        self._begun_at = 0.0
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._closing = False
        self._has_unsynced = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """The store is open: begin."""
        self._task = self._loop.create_task(self._run(), name="tidegate-writer")

    def elapsed(self) -> int:
        """Microseconds of a monotonic clock, to measure durations."""
        return int(self._loop.time() * 1_000_000)

    @property
    def unwritten_bytes(self) -> int:
        """Bodies accepted and not yet durable."""
        in_flight = self._in_flight
        return self.turn.body_bytes + (in_flight.body_bytes if in_flight else 0)

    @property
    def waits_s(self) -> float:
        """How long the current write has taken so far, in seconds; 0: there is none."""
        return 0.0 if self._in_flight is None else self._loop.time() - self._begun_at

    def schedule(self) -> None:
        """Make sure that the filling turn ends."""
        if self.scheduled:
            return
        self.scheduled = True
        if not self.turn.begun_at:
            self.turn.begun_at = perf_counter()
        if self._in_flight is None:
            self._wake.set()  # the task ends the turn itself: one step of the loop less
        else:
            self._loop.call_soon(self._end)

    # --- filling the turn ----------------------------------------------------------------------

    def take_sequence(self) -> int:
        """The number of a new message."""
        sequence = self.next_sequence
        self.next_sequence = sequence + 1
        return sequence

    def take_list_id(self) -> int:
        """The id of a new stored list."""
        list_id = self.next_list
        self.next_list = list_id + 1
        return list_id

    def add_operation(self, operation: Operation, *, synced: bool = True) -> None:
        """Put an operation that belongs to no unit into the filling turn."""
        turn = self.turn
        turn.operations.append(operation)
        turn.synced = turn.synced or synced
        self.schedule()

    def add_message(self, message: Message, route: Route) -> None:
        """Number *message* and put it into the filling turn; the caller makes the unit."""
        sequence = self.take_sequence()
        turn = self.turn
        stored = StoredMessage.of(sequence, message)
        if route.ids:
            turn.operations.append(AddMessage(sequence, message, route.ids))
            turn.synced = True
            turn.body_bytes += stored.size
        turn.added.setdefault(route, []).append(stored)

    def add_move(
        self,
        pending_list: PendingList,
        sequence: int,
        target: Route,
        message: Message,
        row: Acknowledge | None = None,
    ) -> None:
        """Move one to the end of the queue with route *target*, as *message*; the caller makes the unit.

        Args: row: see :class:`tidegate.spi.Move`.
        """
        stored = StoredMessage.of(self.take_sequence(), message)
        self.own_sequences += 1
        turn, (target_list,) = self.turn, target.ids
        turn.operations.append(
            Move(pending_list.id, sequence, target_list, stored.sequence, message, row)
        )
        turn.synced = True
        turn.body_bytes += stored.size
        turn.added.setdefault(target, []).append(stored)

    def when_durable(
        self,
        done: Callable[[], object],
        failed: Callable[[GatewayError], None] | None = None,
        *,
        synced: bool = True,
    ) -> None:
        """See :meth:`Turn.when_durable`, for everything asked for so far."""
        turn = self.turn
        turn.when_durable(done, failed)
        turn.synced = turn.synced or synced
        self.schedule()

    def confirm(self, who: Waiting, token: Token) -> None:
        """Confirm *token* when everything asked for so far is durable."""
        turn = self.turn
        turn.units.append(Unit(0, 0, who, token))
        turn.synced = True
        self.schedule()

    def owes(self, who: Waiting) -> bool:
        """Tell whether *who* waits for a confirmation. Looks at all that wait."""
        turns = (self.turn,) if self._in_flight is None else (self._in_flight, self.turn)
        return any(
            unit.who is who and unit.token is not None for turn in turns for unit in turn.units
        )

    def acknowledge_automatically(
        self,
        consumer: Consumer,
        pending_list: PendingList,
        messages: Sequence[StoredMessage],
        now: int,
    ) -> None:
        """For this consumer, handing out is acknowledging."""
        group = self.turn.acknowledged.setdefault((consumer, pending_list), ([], [], {}))
        group[0].extend([message.sequence for message in messages])
        group[1].extend([now] * len(messages))
        for message in messages:
            if message.delivery_count:
                group[2][message.sequence] = message.delivery_count + 1
        self.schedule()

    def record_delivery(self, pending_list: PendingList, messages: Sequence[StoredMessage]) -> None:
        """Messages that were delivered came back: their counts go into the filling turn."""
        counts = self.turn.returned.setdefault(pending_list, {})
        counts.update([(message.sequence, message.delivery_count) for message in messages])
        self.schedule()

    def come_back(self, entries: Iterable[InFlight]) -> dict[PendingList, list[StoredMessage]]:
        """Prepare delivered messages to go back to their lists, marked as redelivered.

        Returns: the messages by list; their delivery counts are in the filling turn.
        """
        by_list: dict[PendingList, list[StoredMessage]] = {}
        for message, pending_list, _ in entries:
            if not pending_list.is_removed:
                by_list.setdefault(pending_list, []).append(returned(message))
        for pending_list, messages in by_list.items():
            if pending_list.is_stored:
                self.record_delivery(pending_list, messages)
        return by_list

    def give_back(self, entries: Iterable[InFlight]) -> None:
        """Delivered messages go back to their lists now."""
        for pending_list, messages in self.come_back(entries).items():
            pending_list.put_back(messages)

    def is_adding(self, pending_list: PendingList) -> bool:
        """Messages were accepted that the list has not been offered yet. Looks at all routes."""
        turns = self.turns_under_way()
        return any(pending_list in route.stored for turn in turns for route in turn.added)

    def turns_under_way(self) -> tuple[Turn, ...]:
        """Those that are not durable yet, the oldest first."""
        return (self.turn,) if self._in_flight is None else (self._in_flight, self.turn)

    # --- writing -------------------------------------------------------------------------------

    def check_writable(self, *, adds: bool = True) -> None:
        """Raises: StoreError when a publish cannot become durable now.

        Args: adds: False for what adds no message: it is not refused when room is short.
        """
        if isinstance(self.error, StoreLostError):
            raise self.error
        if self.error is not None:
            raise StoreIOError(f"the message store is read-only after an error: {self.error}")
        if adds:
            self.shortage.check()

    async def drained(self) -> None:
        """Wait until everything asked for so far is durable (or has failed)."""
        while not (self.turn.is_empty() and self._in_flight is None):
            self.schedule()
            self._idle.clear()
            await self._idle.wait()

    async def close(self) -> None:
        """Drain, then end the task. Idempotent."""
        if self._task is not None and not self._task.done():
            await self.drained()
            self._closing = True
            self._wake.set()
            await self._task

    def _end(self) -> None:
        try:
            self._end_of_turn()
        finally:  # or no later turn would ever end
            self.scheduled = False
        if self.turn.is_empty():
            self.turn.begun_at = 0.0
        if self._in_flight is None:
            self._wake.set()

    def _end_if_scheduled(self) -> None:
        if self.scheduled:
            try:
                self._end()
            except FAILURES:  # a bug must not end the only task that confirms
                _log.exception("handing out messages at the end of a turn failed")

    async def _run(self) -> None:
        wake = self._wake
        while True:
            await wake.wait()
            self._end_if_scheduled()
            if self.turn.body_bytes > GATHER_BYTES_MIN:
                await asyncio.sleep(0)
                self._end_if_scheduled()
            wake.clear()
            while not self.turn.is_empty():
                turn = self._in_flight = self.turn
                self.turn = Turn()
                if self.scheduled:
                    self.turn.begun_at = perf_counter()
                self.turns += 1
                self._begun_at = self._loop.time()
                try:
                    await self._write(turn)
                except FAILURES:  # as above
                    _log.exception("handing out a durable batch failed")
                finally:
                    self._in_flight = None
                    turn.units = []  # the undo steps of a commit hold the turn: a cycle
                    del turn  # it may be the last for a long time, and holds every body
                if not (self.turn.synced or self.turn.is_empty()):
                    # Handing out left this behind, and nobody waits for it. Deliveries leave first,
                    # and what clients send in reply joins the same batch: half as many batches for
                    # a QoS 1 session or an auto-acknowledging consumer with one message at a time.
                    await asyncio.sleep(0)
                    self._end_if_scheduled()
            self._idle.set()
            if self._closing:
                return

    async def _write(self, turn: Turn) -> None:
        now = self.now()
        if self.keeps_log:
            turn.stamp(now)
        if self.following is not None:
            self.following.publishing(turn)
        acknowledged = turn.acknowledged_count()
        batch = turn.seal(now)
        if self.error is not None:
            self._fail(turn, self.error)
            return
        # An empty batch makes the acknowledgements before it SYNCED: clients that wait for this
        # turn wait for all that came before.
        is_synced = batch.durability is Durability.SYNCED
        if batch.operations or (is_synced and self._has_unsynced):
            try:
                await self._make_durable(turn, batch)
            except FAILURES as raised:  # whatever a store raises: never confirm, never guess
                error = failure_of(raised)
                failure = error if isinstance(error, StoreError) else StoreIOError(str(error))
                if failure is not error:
                    failure.__cause__ = error
                self.error = failure
                if not isinstance(failure, StoreLostError):  # already told, and the gateway ends
                    text = "store=read-only error=%r"
                    self.tell(Event.STORE_READ_ONLY, _log, text, str(error), error=error)
                self._fail(turn, failure)
                return
        self.batches += 1
        self.acknowledged += acknowledged + turn.settled
        self._complete(turn)
        if self.following is not None:
            self.following.published(turn)
        if turn.work <= HANDED_OUT_AT_ONCE:
            hand_out(turn.added)
        else:
            # A transaction to so many subscriptions that it would take seconds. The next turn is
            # not written before it is done: nothing overtakes it.
            await in_slices(hand_out_in_steps(turn.added))
        self._on_write(self.turn.body_bytes)

    async def _make_durable(self, turn: Turn, batch: WriteBatch) -> None:
        try:
            await self._store.write(batch)
        except StoreError as error:
            if not error.retryable:
                raise
            full = error
        else:
            self._has_unsynced = batch.durability is not Durability.SYNCED
            self._tell_written(batch.operations)
            self.shortage.is_over(self.tell)
            return
        await self._write_without_additions(turn, full)

    async def _write_without_additions(self, turn: Turn, error: StoreError) -> None:
        told = self.shortage.found(error, self.tell)
        dropped, front, rest = turn.drop_additions()
        tell_failed(dropped, told)
        # With nothing left an empty batch syncs what was only WRITTEN: clients that still wait in
        # this turn wait for that.
        while front or rest or self._has_unsynced:
            front += self.turn.take_front(self.now())
            try:
                if front or not rest:
                    await self._store.write(WriteBatch(front))
                    self._has_unsynced = False
                    self._tell_written(front)
                    front = []
                if rest:
                    await self._store.write(WriteBatch(rest))
                    self._has_unsynced = False
                    self._tell_written(rest)
                    rest = []
            except StoreError as still:
                if not still.retryable or self.shortage.is_given_up:
                    raise
                # A client that waits for this turn may be the one whose acknowledgements free room.
                self._on_write(self.turn.body_bytes)
                await self.shortage.wait()

    def _tell_written(self, operations: Sequence[Operation]) -> None:
        if self.following is not None:
            self.following.written(operations)
        if self.on_written is not None:
            try:
                self.on_written(operations)
            except FAILURES:  # a bug must not be taken for a failure of the store
                _log.exception("counting what is durable failed")

    def _complete(self, turn: Turn) -> None:
        count = tell_durable(turn.units)
        if count:
            self.confirmed += count
            self.latencies.add(perf_counter() - turn.begun_at, count)

    def _fail(self, turn: Turn, error: StoreError) -> None:
        tell_failed(turn.units, error)
        if self.following is not None:
            self.following.failed(error)
        self._on_write(self.turn.body_bytes)  # waiting producers must learn of it, too
