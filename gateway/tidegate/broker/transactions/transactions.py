"""A client's transaction: operations held back until COMMIT puts them into one batch."""

from __future__ import annotations

import enum

from tidegate.broker.lists.pending_list import Consumer, InFlight
from tidegate.spi import FlowControlError, InflightRecord, Message


class Outcome(enum.Enum):
    """What a client decided about delivered messages."""

    ACKNOWLEDGED = "acknowledged"
    REJECTED = "rejected"


class Settled:
    """In-flight messages of one consumer that a transaction holds."""

    __slots__ = ("consumer", "entries", "outcome")

    def __init__(self, consumer: Consumer, entries: list[InFlight], outcome: Outcome) -> None:
        self.consumer = consumer
        self.entries = entries
        self.outcome = outcome


class Published:
    """A message that a transaction holds."""

    __slots__ = ("duplicate_id", "inflight", "message")

    def __init__(
        self, message: Message, inflight: InflightRecord | None, duplicate_id: str = ""
    ) -> None:
        self.message = message
        self.inflight = inflight
        self.duplicate_id = duplicate_id


class Transaction:
    """Steps in the order they came; at most *operations_max* of them."""

    __slots__ = ("_operations_max", "count", "steps")

    def __init__(self, operations_max: int) -> None:
        self.steps: list[Published | Settled] = []
        self.count = 0
        self._operations_max = operations_max

    def check_room(self, count: int) -> None:
        """Call before adding *count* operations. Raises: FlowControlError at the limit."""
        if self.count + count > self._operations_max:
            raise FlowControlError(
                f"the transaction already has {self.count} operations;"
                f" broker.transaction_operations_max is {self._operations_max}"
            )

    def add(self, step: Published | Settled, count: int) -> None:
        self.steps.append(step)
        self.count += count

    def settled(self) -> list[Settled]:
        return [step for step in self.steps if isinstance(step, Settled)]
