"""One batch a turn: collects what a turn of the event loop asked for and makes it durable.

The heart of the gateway (design, section 2). Everything that arrives in one turn lands in the
*filling* :class:`Turn`. At the end of the turn, if no write is under way, the turn becomes one
:class:`WriteBatch`; while the store makes it durable the next turn fills. When the store answers,
confirmations leave and messages go to their lists, in that order, once for the whole turn.

What happens when there is no room (StoreFullError, nothing was written):

1. Every unit that adds a message is taken out of the turn and its client is told.
2. The rest (acknowledgements, subscriptions …) is written again until it succeeds: it frees room.
3. For ``FULL_BACK_OFF_S`` publishes are refused at once; after that one is let through to try.

After any other store error the store is read-only: nothing is confirmed any more, everyone waiting
is told, and publishes are refused until the operator has acted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from tidegate.spi import (
    Acknowledge,
    Durability,
    GatewayError,
    MessageStore,
    Operation,
    StoredMessage,
    StoreError,
    StoreFullError,
    StoreIOError,
    Token,
    WriteBatch,
)

if TYPE_CHECKING:
    from tidegate.broker._consumer import Consumer
    from tidegate.broker._pending_list import PendingList
    from tidegate.broker._router import Route

_log = logging.getLogger("tidegate.broker.writer")

#: After the store said it is full, publishes are refused this long before one may try again.
FULL_BACK_OFF_S: Final = 1.0


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
        operations: in order; acknowledgements are added in front when the turn is sealed.
        units: what can fail on its own, and who waits for it.
        added: by route, the messages to hand out when the turn is durable.
        acknowledged: by (consumer, list), sequences and delivery times.
        synced: somebody waits, or a message is added: the batch must be synced.
        body_bytes: bodies of the added messages.
    """

    __slots__ = ("acknowledged", "added", "body_bytes", "operations", "synced", "units")

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.units: list[Unit] = []
        self.added: dict[Route, list[StoredMessage]] = {}
        self.acknowledged: dict[
            tuple[Consumer | None, PendingList], tuple[list[int], list[int]]
        ] = {}
        self.synced = False
        self.body_bytes = 0

    def is_empty(self) -> bool:
        return not (self.operations or self.units or self.added or self.acknowledged)

    def seal(self, now: int) -> WriteBatch:
        """Make the batch. Acknowledgements go first: they concern messages and lists of earlier
        turns, while an operation of this turn may remove the list."""
        operations = self.operations
        if self.acknowledged:
            operations = [
                _acknowledge(consumer, pending_list, sequences, times, now)
                for (consumer, pending_list), (sequences, times) in self.acknowledged.items()
            ]
            shift = len(operations)
            operations += self.operations
            self.operations = operations
            self.units = [
                (first + shift, count, who, token, undo)
                for first, count, who, token, undo in self.units
            ]
            self.acknowledged = {}
        return WriteBatch(operations, Durability.SYNCED if self.synced else Durability.WRITTEN)

    def drop_additions(self) -> list[Unit]:
        """Take the units that add messages out of a sealed turn; returns them."""
        dropped = [unit for unit in self.units if unit[1]]
        gone: set[int] = set()
        for first, count, *_ in dropped:
            gone.update(range(first, first + count))
        self.operations = [op for index, op in enumerate(self.operations) if index not in gone]
        self.units = [
            (0, 0, who, token, undo) for _, count, who, token, undo in self.units if not count
        ]
        self.added = {route: held for route, held in self.added.items() if not route.ids}
        self.body_bytes = 0
        return dropped


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
        on_write: called after each successful write with the bytes not yet durable.
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
        self.batches = 0
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
        self._task = self._loop.create_task(self._run(), name="tidegate-writer")

    @property
    def unwritten_bytes(self) -> int:
        """Bodies accepted and not yet durable."""
        in_flight = self._in_flight
        return self.turn.body_bytes + (in_flight.body_bytes if in_flight else 0)

    def schedule(self) -> None:
        """See to it that the filling turn ends; call when ``scheduled`` is False."""
        self.scheduled = True
        self._loop.call_soon(self._end)

    def check_writable(self) -> None:
        """Raises: StoreError when a publish cannot become durable now."""
        if self.error is not None:
            raise StoreIOError(f"the message store is read-only after an error: {self.error}")
        if self.full_until and self._loop.time() < self.full_until:
            raise StoreFullError("the message store is full; free disk space, then send again")

    async def drained(self) -> None:
        """Wait until everything asked for so far is durable (or has failed)."""
        while not (self.turn.is_empty() and self._in_flight is None):
            if not self.scheduled:
                self.schedule()
            self._idle.clear()
            await self._idle.wait()

    async def close(self) -> None:
        """Drain, then end the task. Idempotent."""
        if not self._task.done():
            await self.drained()
            self._closing = True
            self._wake.set()
            await self._task

    def _end(self) -> None:
        self._end_of_turn()
        self.scheduled = False
        if self._in_flight is None:
            self._wake.set()

    async def _run(self) -> None:
        wake = self._wake
        while True:
            await wake.wait()
            wake.clear()
            while not self.turn.is_empty():
                turn = self._in_flight = self.turn
                self.turn = Turn()
                try:
                    await self._write(turn)
                except Exception:  # a bug must not end the only task that confirms
                    _log.exception("handing out a durable batch failed")
                finally:
                    self._in_flight = None
            self._idle.set()
            if self._closing:
                return

    async def _write(self, turn: Turn) -> None:
        batch = turn.seal(self._clock())
        if self.error is not None:
            self._fail(turn, self.error)
            return
        if batch.operations:
            try:
                await self._store.write(batch)
            except StoreFullError as error:
                await self._write_without_additions(turn, error)
            except Exception as error:  # whatever a store raises: never confirm, never guess
                failure = error if isinstance(error, StoreError) else StoreIOError(str(error))
                failure.__cause__ = error
                self.error = failure
                _log.critical("store=read-only error=%r", str(error), exc_info=error)
                self._fail(turn, failure)
                return
        self.batches += 1
        self._complete(turn)
        self._on_write(self.turn.body_bytes)

    async def _write_without_additions(self, turn: Turn, error: StoreFullError) -> None:
        _log.error("store=full error=%r publishes_refused_for_s=%g", str(error), FULL_BACK_OFF_S)
        for _, _, who, token, undo in turn.drop_additions():
            if undo is not None:
                undo()
            who.failed(token, error)
        while True:
            self.full_until = self._loop.time() + FULL_BACK_OFF_S
            if not turn.operations:
                return
            try:
                await self._store.write(WriteBatch(turn.operations))
            except StoreFullError:
                await asyncio.sleep(FULL_BACK_OFF_S)
            else:
                return

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
            who.confirmed(tokens)
        for route, messages in turn.added.items():
            route.hand_out(messages)

    def _fail(self, turn: Turn, error: StoreError) -> None:
        for _, _, who, token, undo in turn.units:
            if undo is not None:
                undo()
            who.failed(token, error)
