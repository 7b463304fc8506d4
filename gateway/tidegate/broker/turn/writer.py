"""One batch a turn: collects what a turn of the event loop asked for and makes it durable.

The heart of the gateway (design, section 2). Everything that arrives in one turn lands in the
*filling* :class:`Turn`. At the end of the turn, if no write is under way, the turn becomes one
:class:`WriteBatch`; while the store makes it durable the next turn fills. When the store answers,
confirmations leave and messages go to their lists, in that order, once for the whole turn.

What happens when there is no room (StoreFullError, nothing was written):

1. Every unit that adds a message is taken out of the turn and its client is told.
2. The rest is written again until it succeeds, in two batches: delivery counts and
   acknowledgements, also those that come in meanwhile, because they free room; then what has
   nobody to be told (new destinations, subscriptions …), which may need some.
3. For ``FULL_BACK_OFF_S`` publishes are refused at once; after that one is let through to try.

After any other store error the store is read-only: nothing is confirmed any more, everyone waiting
is told, and publishes are refused until the operator has acted. The same happens when there is
still no room while the gateway stops: it must not wait for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from tidegate.broker.route.router import hand_out
from tidegate.spi import (
    Acknowledge,
    AddDuplicateId,
    AddMessage,
    Durability,
    GatewayError,
    MessageStore,
    Move,
    Operation,
    Origin,
    PutBranch,
    RecordDelivery,
    SetRetained,
    StoredMessage,
    StoreError,
    StoreFullError,
    StoreIOError,
    Token,
    WriteBatch,
)

if TYPE_CHECKING:
    from tidegate.broker.lists.consumer import Consumer
    from tidegate.broker.lists.pending_list import PendingList
    from tidegate.broker.route.router import Route

_log = logging.getLogger("tidegate.broker.writer")

#: After the store said it is full, publishes are refused this long before one may try again.
FULL_BACK_OFF_S: Final = 1.0

_ADDING: Final = (AddMessage, Move, SetRetained, AddDuplicateId, PutBranch)


class Waiting(Protocol):
    """A connection, as far as confirmations need it."""

    def confirmed(self, tokens: list[Token]) -> None: ...
    def failed(self, token: Token, error: GatewayError) -> None: ...


#: (index of its first operation, number of operations, connection, token, undo). Units with no
#: operations only carry a token. *undo* is called when the unit is dropped.
Unit = tuple[int, int, Waiting, Token, Callable[[], None] | None]


class Turn:
    """What one turn of the loop asked for.

    Attributes:
        operations: in order; delivery counts and acknowledgements are added in front when the
            turn is sealed.
        units: what can fail on its own, and who waits for it.
        added: by route, the messages to hand out when the turn is durable.
        acknowledged: by (consumer, list), sequences and delivery times.
        returned: by list, sequences that came back and their delivery counts.
        synced: somebody waits, or a message is added: the batch must be synced.
        commits: the same for the end of a transaction, which leaves ``synced`` as it is.
        body_bytes: bodies of the added messages.
    """

    __slots__ = (
        "_front",
        "acknowledged",
        "added",
        "body_bytes",
        "commits",
        "operations",
        "returned",
        "synced",
        "units",
    )

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.units: list[Unit] = []
        self.added: dict[Route, list[StoredMessage]] = {}
        self.acknowledged: dict[
            tuple[Consumer | None, PendingList], tuple[list[int], list[int]]
        ] = {}
        self.returned: dict[PendingList, tuple[list[int], list[int]]] = {}
        self.synced = False
        self.commits = False
        self.body_bytes = 0
        self._front = 0  # operations that sealing put in front of those that units point to

    def is_empty(self) -> bool:
        return not (
            self.operations or self.units or self.added or self.acknowledged or self.returned
        )

    def seal(self, now: int) -> WriteBatch:
        """Make the batch.

        Acknowledgements go before the other operations: they concern messages and lists of earlier
        turns, while an operation of this turn may remove the list.
        """
        front = self.take_front(now)
        if front:
            self._front = len(front)
            front += self.operations
            self.operations = front
        if not self.commits:
            durability = Durability.SYNCED if self.synced else Durability.WRITTEN
            return WriteBatch(self.operations, durability)
        origin = Origin.TRANSACTION | Origin.PLAIN if self.synced else Origin.TRANSACTION
        return WriteBatch(self.operations, Durability.SYNCED, origin)

    def take_front(self, now: int) -> list[Operation]:
        """Remove delivery counts and acknowledgements and return them as operations.

        Delivery counts first: a message that came back may have been delivered again and
        acknowledged within this turn, and its count must not be set after it is gone.
        """
        front: list[Operation] = []
        if self.returned:
            front += [
                RecordDelivery(pending_list.id, tuple(sequences), tuple(counts))
                for pending_list, (sequences, counts) in self.returned.items()
            ]
            self.returned = {}
        if self.acknowledged:
            front += [
                _acknowledge(consumer, pending_list, sequences, times, now)
                for (consumer, pending_list), (sequences, times) in self.acknowledged.items()
            ]
            self.acknowledged = {}
        return front

    def drop_additions(self) -> tuple[list[Unit], list[Operation], list[Operation]]:
        """Take the units that add messages out of a sealed turn.

        Returns: these units; the front of what is left (see :meth:`take_front`); the rest of it.
        """
        operations, front = self.operations, self._front
        dropped: list[Unit] = []
        kept: list[Unit] = []
        gone: set[int] = set()
        for unit in self.units:
            indexes = range(front + unit[0], front + unit[0] + unit[1])
            if any(isinstance(operations[index], _ADDING) for index in indexes):
                dropped.append(unit)
                gone.update(indexes)
            else:
                kept.append(unit)
        self.units[:] = kept  # who remembers the list sees what is left
        self.operations = []
        self.added = {route: held for route, held in self.added.items() if not route.ids}
        self.body_bytes = 0
        rest = [op for index, op in enumerate(operations) if index >= front and index not in gone]
        return dropped, operations[:front], rest

    def drop_added(self, first: int, end: int) -> None:
        """Do not hand out the messages numbered *first* (inclusive) to *end* (exclusive)."""
        for route, held in list(self.added.items()):
            kept = [message for message in held if not first <= message.sequence < end]
            if kept:
                self.added[route] = kept
            else:
                del self.added[route]


def _acknowledge(
    consumer: Consumer | None,
    pending_list: PendingList,
    sequences: list[int],
    times: list[int],
    now: int,
) -> Acknowledge:
    if consumer is None:
        return Acknowledge(pending_list.id, tuple(sequences), tuple(times), now)
    return Acknowledge(
        pending_list.id,
        tuple(sequences),
        tuple(times),
        now,
        consumer.connection.client_id,
        consumer.subscription_name,
        consumer.connection.protocol,
    )


class TurnWriter:
    """Drives the store with one turn after the other.

    Args:
        store: open.
        clock: microseconds since the epoch.
        end_of_turn: called at the end of each turn before it is sealed: hands out messages for
            which consumers have room again.
        on_write: called when a turn is done, durable or not, with the bytes not yet durable.
    """

    def __init__(
        self,
        store: MessageStore,
        clock: Callable[[], int],
        end_of_turn: Callable[[], None],
        on_write: Callable[[int], None],
    ) -> None:
        self.turn = Turn()
        self.scheduled = False
        self.error: StoreError | None = None
        self.full_until = 0.0
        self.batches = 0  # turns that are durable
        self.turns = 0  # turns that have begun to be written: the number of the filling one
        self._store = store
        self._clock = clock
        self._end_of_turn = end_of_turn
        self._on_write = on_write
        self._loop = asyncio.get_running_loop()
        self._in_flight: Turn | None = None
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._closing = False
        self._gives_up = asyncio.Event()
        self._has_unsynced = False
        self._task = self._loop.create_task(self._run(), name="tidegate-writer")

    @property
    def unwritten_bytes(self) -> int:
        """Bodies accepted and not yet durable."""
        in_flight = self._in_flight
        return self.turn.body_bytes + (in_flight.body_bytes if in_flight else 0)

    def schedule(self) -> None:
        """See to it that the filling turn ends; call when ``scheduled`` is False."""
        self.scheduled = True
        if self._in_flight is None:
            self._wake.set()  # the task ends the turn itself: one step of the loop less
        else:
            self._loop.call_soon(self._end)

    def check_writable(self) -> None:
        """Raises: StoreError when a publish cannot become durable now."""
        if self.error is not None:
            raise StoreIOError(f"the message store is read-only after an error: {self.error}")
        if self.full_until:
            if self._loop.time() < self.full_until:
                raise StoreFullError("the message store is full; free disk space, then send again")
            self.full_until = 0.0

    async def drained(self) -> None:
        """Wait until everything asked for so far is durable (or has failed)."""
        while not (self.turn.is_empty() and self._in_flight is None):
            if not self.scheduled:
                self.schedule()
            self._idle.clear()
            await self._idle.wait()

    def give_up_when_full(self) -> None:
        """From now on do not wait for room in the store: the gateway stops."""
        self._gives_up.set()

    async def close(self) -> None:
        """Drain, then end the task. Idempotent."""
        if not self._task.done():
            await self.drained()
            self._closing = True
            self._wake.set()
            await self._task

    def _end(self) -> None:
        try:
            self._end_of_turn()
        finally:  # or no later turn would ever end
            self.scheduled = False
        if self._in_flight is None:
            self._wake.set()

    async def _run(self) -> None:
        wake = self._wake
        while True:
            await wake.wait()
            if self.scheduled:
                try:
                    self._end()
                except Exception:  # as below
                    _log.exception("handing out messages at the end of a turn failed")
            wake.clear()
            while not self.turn.is_empty():
                turn = self._in_flight = self.turn
                self.turn = Turn()
                self.turns += 1
                try:
                    await self._write(turn)
                except Exception:  # a bug must not end the only task that confirms
                    _log.exception("handing out a durable batch failed")
                finally:
                    self._in_flight = None
                    turn.units = []  # what would take back a commit holds the turn: a cycle
                    del turn  # it may be the last one for long, and holds every body
            self._idle.set()
            if self._closing:
                return

    async def _write(self, turn: Turn) -> None:
        batch = turn.seal(self._clock())
        if self.error is not None:
            self._fail(turn, self.error)
            return
        # A batch without operations makes the acknowledgements before it SYNCED: whoever waits
        # for this turn waits for all that came before.
        is_synced = batch.durability is Durability.SYNCED
        if batch.operations or (is_synced and self._has_unsynced):
            try:
                await self._make_durable(turn, batch)
            except Exception as error:  # whatever a store raises: never confirm, never guess
                failure = error if isinstance(error, StoreError) else StoreIOError(str(error))
                if failure is not error:
                    failure.__cause__ = error
                self.error = failure
                _log.critical("store=read-only error=%r", str(error), exc_info=error)
                self._fail(turn, failure)
                return
        self.batches += 1
        self._complete(turn)
        self._on_write(self.turn.body_bytes)

    async def _make_durable(self, turn: Turn, batch: WriteBatch) -> None:
        try:
            await self._store.write(batch)
        except StoreFullError as error:
            full = error
        else:
            self._has_unsynced = batch.durability is not Durability.SYNCED
            return
        await self._write_without_additions(turn, full)

    async def _write_without_additions(self, turn: Turn, error: StoreFullError) -> None:
        _log.error("store=full error=%r publishes_refused_for_s=%g", str(error), FULL_BACK_OFF_S)
        self.full_until = self._loop.time() + FULL_BACK_OFF_S
        dropped, front, rest = turn.drop_additions()
        told = StoreFullError(f"the message store is full, send again later ({error})")
        self._tell_failed(dropped, told)
        # With nothing left an empty batch syncs what was only WRITTEN: whoever still waits in this
        # turn waits for that.
        while front or rest or self._has_unsynced:
            front += self.turn.take_front(self._clock())
            try:
                if front or not rest:
                    await self._store.write(WriteBatch(front))
                    self._has_unsynced = False
                    front = []
                if rest:
                    await self._store.write(WriteBatch(rest))
                    self._has_unsynced = False
                    rest = []
            except StoreFullError:
                if self._gives_up.is_set():
                    raise
                self.full_until = self._loop.time() + FULL_BACK_OFF_S
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(FULL_BACK_OFF_S):
                        await self._gives_up.wait()

    def _complete(self, turn: Turn) -> None:
        waiting: dict[Waiting, list[Token]] = {}
        for unit in turn.units:
            token = unit[3]
            if token is not None:
                who = unit[2]
                tokens = waiting.get(who)
                if tokens is None:
                    waiting[who] = [token]
                else:
                    tokens.append(token)
        for who, tokens in waiting.items():
            try:
                who.confirmed(tokens)
            except Exception:  # the others are to be told all the same, and the messages handed out
                _log.exception("confirming a durable batch failed")
        hand_out(turn.added)

    def _fail(self, turn: Turn, error: StoreError) -> None:
        self._tell_failed(turn.units, error)
        self._on_write(self.turn.body_bytes)  # producers that wait must learn it, too

    @staticmethod
    def _tell_failed(units: Sequence[Unit], error: StoreError) -> None:
        for unit in reversed(units):  # what was done last is undone first
            undo = unit[4]
            if undo is not None:
                try:
                    undo()
                except Exception:
                    _log.exception("taking back a dropped unit failed")
        for _, _, who, token, _ in units:
            try:
                who.failed(token, error)
            except Exception:
                _log.exception("telling a failure failed")
