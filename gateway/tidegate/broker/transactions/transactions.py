"""A client's transaction: operations held back until COMMIT puts them into one batch.

Or until it is prepared: then it is a branch, which belongs to no client.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from tidegate.broker.limits.accounts import Account
from tidegate.broker.lists.pending_list import Consumer, InFlight, PendingList
from tidegate.broker.turn.turn import acknowledge, group_of
from tidegate.spi import (
    Acknowledge,
    Branch,
    BranchState,
    FlowControlError,
    Held,
    InflightRecord,
    LockedMessages,
    Message,
    memory_bytes,
)


@dataclass(slots=True, eq=False)
class Settled:
    """In-flight messages of one consumer and one list that a transaction holds."""

    consumer: Consumer
    pending_list: PendingList
    entries: list[InFlight]
    is_rejected: bool

    def acknowledge(self, now: int) -> Acknowledge | None:
        """The operation; None when there is nothing in the store to acknowledge."""
        pending_list = self.pending_list
        group = group_of(self.entries)
        if pending_list.selecting is not None:
            pending_list.selecting.leaving(group[0])
        if pending_list.is_removed or not pending_list.is_stored:
            return None
        return acknowledge(self.consumer, pending_list, group, now)

    def lock(self) -> LockedMessages:
        """What a branch keeps of them."""
        made = acknowledge(self.consumer, self.pending_list, group_of(self.entries), 0)
        return LockedMessages(
            made.pending_list,
            made.sequences,
            made.delivered_at,
            made.client_id,
            made.subscription,
            made.protocol,
            self.is_rejected,
            made.principal,
            made.delivery_counts,
        )


def settled(consumer: Consumer, entries: Iterable[InFlight], *, is_rejected: bool) -> list[Settled]:
    """*entries*, which *consumer* had, by list."""
    by_list: dict[PendingList, list[InFlight]] = {}
    for entry in entries:
        by_list.setdefault(entry[1], []).append(entry)
    return [Settled(consumer, found, held, is_rejected) for found, held in by_list.items()]


@dataclass(slots=True, eq=False)
class Published:
    """A message that a transaction holds."""

    message: Message
    inflight: InflightRecord | None
    duplicate_id: str = ""


@dataclass(slots=True, eq=False)
class Transaction:
    """Steps in the order they came; at most *operations_max* of them, charged to *account*.

    Attributes: held: bytes charged.
    """

    _operations_max: int
    _account: Account
    steps: list[Published | Settled] = field(default_factory=list[Published | Settled])
    published: list[Published] = field(default_factory=list[Published])
    settled: list[Settled] = field(default_factory=list[Settled])
    count: int = 0
    held: int = 0

    def check_room(self, count: int) -> None:
        """Call before adding *count* operations. Raises: FlowControlError at the limit."""
        if self.count + count > self._operations_max:
            raise FlowControlError(
                f"the transaction has {self.count} operations, and the limit is "
                f"{self._operations_max} (broker.transaction_operations_max)"
            )

    def publish(self, step: Published) -> None:
        """Add a message. Raises: FlowControlError: no more may be held; nothing is added."""
        self._charge(memory_bytes(step.message) + len(step.duplicate_id))
        self.steps.append(step)
        self.published.append(step)
        self.count += 1

    def settle(self, steps: Sequence[Settled]) -> None:
        """Add in-flight messages. Raises: FlowControlError; nothing is added."""
        self._charge(sum(memory_bytes(entry[0].message) for s in steps for entry in s.entries))
        self.steps += steps
        self.settled += steps
        self.count += sum(len(step.entries) for step in steps)

    def _charge(self, size: int) -> None:
        self._account.charge(Held.TRANSACTIONS, size)
        self.held += size

    def end(self) -> None:
        """What it held is on its way or forgotten. Called once."""
        self._account.add(Held.TRANSACTIONS, -self.held)


@dataclass(slots=True, eq=False)
class Prepared:
    """A branch, and what is known about it only while the gateway runs.

    Attributes:
        stored: what the store keeps.
        lists: of ``stored.locked``, in its order; None for one that is gone.
        unstored: messages of unstored lists that it acknowledged.
        is_claimed: its locked messages were claimed from their cursors, not delivered.
        is_durable: it is prepared.
        is_busy: it is being prepared or completed.
    """

    stored: Branch
    lists: Sequence[PendingList | None] = ()
    unstored: list[InFlight] = field(default_factory=list[InFlight])
    is_claimed: bool = False
    is_durable: bool = True
    is_busy: bool = False

    def locked(self) -> list[tuple[PendingList, LockedMessages]]:
        """Those whose lists are still there."""
        pairs = zip(self.lists, self.stored.locked, strict=True)
        return [
            (found, item) for found, item in pairs if found is not None and not found.is_removed
        ]

    def decided(self, *, commit: bool, now: int) -> Branch:
        """The record of what an operator decided."""
        return msgspec.structs.replace(
            self.stored,
            pending_list=0,
            state=BranchState.COMMITTED if commit else BranchState.ROLLED_BACK,
            completed_at=now,
            locked=(),
            duplicate_ids=(),
        )
