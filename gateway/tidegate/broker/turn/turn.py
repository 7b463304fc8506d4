"""What one turn of the event loop asked for, until it is one batch of the store.

Code that adds operations that stand or fall together says so with :meth:`Turn.unit`; code that only
waits for the turn calls :meth:`Turn.when_durable`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, Protocol, TypeAlias

import msgspec

from tidegate.broker.lists.pending_list import Consumer, InFlight, PendingList
from tidegate.broker.route.router import Route
from tidegate.spi import (
    Acknowledge,
    AddDuplicateId,
    AddMessage,
    Discard,
    Durability,
    GatewayError,
    Move,
    Operation,
    PutBranch,
    RecordDelivery,
    SetRetained,
    StoredMessage,
    SyncedFor,
    Token,
    WriteBatch,
)

_set: Final = msgspec.structs.force_setattr
#: Messages in one operation of the gateway's own: a store takes up to 1.5 microseconds for each, and
#: others get the loop between two operations.
OPERATION_SEQUENCES_MAX: Final = 2000

_ADDING: Final = (AddMessage, Move, SetRetained, AddDuplicateId, PutBranch)


class Waiting(Protocol):
    """What confirmations need of a connection."""

    def confirmed(self, tokens: list[Token]) -> None: ...
    def failed(self, token: Token, error: GatewayError) -> None: ...


class Unit(msgspec.Struct, gc=False):
    """Operations that can fail on their own, and who waits for them.

    Attributes:
        first, count: its operations; none: it only waits.
        who: is told; token: what of; None: nothing when it is durable.
        undo: called when the unit is dropped.
    """

    first: int
    count: int
    who: Waiting
    token: Token = None
    undo: Callable[[], None] | None = None


#: Acknowledged messages of one list: sequences, when each was delivered, and the delivery counts of
#: those that were delivered more than once.
Group: TypeAlias = tuple[list[int], list[int], dict[int, int]]


def group_of(entries: Iterable[InFlight]) -> Group:
    """The group of *entries*, which are in flight."""
    group: Group = ([], [], {})
    for message, _, delivered_at in entries:
        group[0].append(message.sequence)
        group[1].append(delivered_at)
        if message.delivery_count:
            group[2][message.sequence] = message.delivery_count + 1
    return group


class _Callbacks:
    """Waits for a turn without being a connection."""

    __slots__ = ("_done", "_failed")

    def __init__(
        self, done: Callable[[], object], failed: Callable[[GatewayError], None] | None
    ) -> None:
        self._done = done
        self._failed = failed

    def confirmed(self, tokens: list[Token]) -> None:
        self._done()

    def failed(self, token: Token, error: GatewayError) -> None:
        if self._failed is not None:
            self._failed(error)


class _Nobody:
    """Stands in for the client of a unit that was taken out of its turn."""

    def confirmed(self, tokens: list[Token]) -> None: ...
    def failed(self, token: Token, error: GatewayError) -> None: ...


_NOBODY: Final = _Nobody()


class Turn:
    """What one turn of the loop asked for.

    Attributes:
        operations: in order; delivery counts and acknowledgements are added in front when the
            turn is sealed.
        units: what can fail on its own, and who waits for it.
        added: by route, the messages to hand out when the turn is durable.
        acknowledged: by (consumer, list), sequences, delivery times, and the delivery counts of those
            that were delivered more than once.
        returned: by list, the delivery counts of what came back, perhaps several times, by sequence.
        synced: somebody waits, or a message is added: the batch must be synced.
        commits: the same for the end of a transaction, which leaves ``synced`` as it is.
        body_bytes: bodies of the added messages.
        work: what else must be done in one go, see :data:`tidegate.broker.turn.flow.TURN_WORK_MAX`.
        begun_at: when something was first asked for, by :func:`time.perf_counter`; 0: nothing was.
        settled: messages that its transactions acknowledge.
    """

    __slots__ = (
        "_front",
        "acknowledged",
        "added",
        "begun_at",
        "body_bytes",
        "commits",
        "operations",
        "returned",
        "settled",
        "synced",
        "units",
        "work",
    )

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.units: list[Unit] = []
        self.added: dict[Route, list[StoredMessage]] = {}
        self.acknowledged: dict[tuple[Consumer | None, PendingList], Group] = {}
        self.returned: dict[PendingList, dict[int, int]] = {}
        self.synced = False
        self.commits = False
        self.body_bytes = 0
        self.work = 0
        self.begun_at = 0.0
        self.settled = 0
        self._front = 0  # operations that sealing put before those of the units

    def unit(
        self,
        first: int,
        who: Waiting,
        token: Token = None,
        undo: Sequence[Callable[[], None]] = (),
    ) -> Unit:
        """The operations from number *first* to the last one so far stand or fall together.

        Args: who: is told *token* when they are durable (None: nothing), or why they were dropped;
            undo: steps that, if they are dropped, take back what else was done, the last one first.
        """
        unit = Unit(first, len(self.operations) - first, who, token, _undo_all(undo))
        self.units.append(unit)
        return unit

    def when_durable(
        self,
        done: Callable[[], object],
        failed: Callable[[GatewayError], None] | None = None,
        *,
        first: int | None = None,
        undo: Sequence[Callable[[], None]] = (),
    ) -> None:
        """Call *done* when the turn is written, before its messages are handed out, or *failed*.

        It is also synced when ``synced`` is set. Args: first, undo: as for :meth:`unit`; without
        *first* nothing of the turn is dropped with it.
        """
        waiting = _Callbacks(done, failed)
        self.unit(len(self.operations) if first is None else first, waiting, waiting, undo)

    def is_empty(self) -> bool:
        return not (
            self.operations or self.units or self.added or self.acknowledged or self.returned
        )

    def acknowledged_count(self) -> int:
        """How many messages it acknowledges, besides those of transactions; before it is sealed."""
        return sum([len(sequences) for sequences, _, _ in self.acknowledged.values()])

    def settle(self, count: int) -> None:
        """A transaction acknowledges *count* more messages; negative: fewer."""
        self.settled += count

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
        single = SyncedFor.SINGLE if self.synced else SyncedFor(0)
        return WriteBatch(self.operations, Durability.SYNCED, single | SyncedFor.TRANSACTION)

    def stamp(self, now: int) -> None:
        """The messages are given to the store *now*: their rows of the log will say so."""
        for held in self.added.values():
            for stored in held:
                _set(stored.message, "stored_at", now)

    def take_front(self, now: int) -> list[Operation]:
        """Remove delivery counts and acknowledgements and return them as operations.

        Delivery counts first: a message that came back may have been delivered again and
        acknowledged within this turn, and its count must not be set after it is gone.
        """
        front: list[Operation] = []
        if self.returned:
            for pending_list, counts in self.returned.items():
                items = iter(counts.items())
                while part := dict(islice(items, OPERATION_SEQUENCES_MAX)):
                    front.append(RecordDelivery(pending_list.id, tuple(part), tuple(part.values())))
            self.returned = {}
        if self.acknowledged:
            front += [
                acknowledge(consumer, pending_list, part, now)
                for (consumer, pending_list), group in self.acknowledged.items()
                for part in _parts(group)
            ]
            self.acknowledged = {}
        return front

    def leaving(self, pending_list: PendingList) -> int:
        """How many messages it takes off the list."""
        count = 0
        for (_, of), group in self.acknowledged.items():
            count += len(group[0]) if of is pending_list else 0
        for operation in self.operations:
            if isinstance(operation, Acknowledge | Discard):
                count += (
                    len(operation.sequences) if operation.pending_list == pending_list.id else 0
                )
            elif isinstance(operation, Move):
                count += operation.pending_list == pending_list.id
        return count

    def drop_additions(self) -> tuple[list[Unit], list[Operation], list[Operation]]:
        """Take the units that add messages out of a sealed turn.

        Returns: these units; the front of what is left (see :meth:`take_front`); the rest of it.
        """
        operations, front = self.operations, self._front
        dropped: list[Unit] = []
        kept: list[Unit] = []
        gone: set[int] = set()
        for unit in self.units:
            indexes = range(front + unit.first, front + unit.first + unit.count)
            if any(isinstance(operations[index], _ADDING) for index in indexes):
                dropped.append(unit)
                gone.update(indexes)
            else:
                kept.append(unit)
        self.units = kept
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


def _parts(group: Group) -> Iterator[Group]:
    """*group* in parts that a store takes in one step."""
    sequences, times, repeated = group
    step = OPERATION_SEQUENCES_MAX
    if len(sequences) <= step:
        yield group
        return
    for first in range(0, len(sequences), step):
        part = sequences[first : first + step]
        again = {item: repeated[item] for item in part if item in repeated}
        yield part, times[first : first + step], again


def acknowledge(
    consumer: Consumer | None, pending_list: PendingList, group: Group, now: int
) -> Acknowledge:
    """The operation for messages of the list that *consumer* acknowledged."""
    sequences, times, repeated = group
    counts: tuple[int, ...] = ()
    if repeated:
        counts = tuple([repeated.get(sequence, 1) for sequence in sequences])
    if consumer is None:
        return Acknowledge(
            pending_list.id, tuple(sequences), tuple(times), now, delivery_counts=counts
        )
    client = consumer.client
    return Acknowledge(
        pending_list.id,
        tuple(sequences),
        tuple(times),
        now,
        client.client_id,
        consumer.subscription_name,
        client.protocol,
        client.principal,
        counts,
    )


def fail(unit: Unit, error: GatewayError) -> None:
    """Take a unit without operations out of its turn, which is not durable yet, and tell why."""
    who, token = unit.who, unit.token
    unit.who, unit.token, unit.undo = _NOBODY, None, None
    who.failed(token, error)


def returned(message: StoredMessage) -> StoredMessage:
    """*message* as it is when it comes back: delivered once more."""
    return StoredMessage(
        message.sequence, message.message, message.size, message.delivery_count + 1
    )


def _undo_all(steps: Sequence[Callable[[], None]]) -> Callable[[], None] | None:
    """One function that takes *steps* back, the last one first; None when there are none."""
    if len(steps) < 2:
        return steps[0] if steps else None
    taken = tuple(steps)

    def undo() -> None:
        for step in reversed(taken):
            step()

    return undo
