"""What is in one list, counted in messages and bytes, and how far that is from its limit.

What the store has for the list is counted: waiting, in flight, or held by a transaction; and what
is accepted but not durable yet. Messages enter when they are offered, durable, and leave when the
operation that removes them is durable, no matter whose it is. Bytes are those of bodies, as stores
count them (:class:`tidegate.spi.PendingCount`), so that both are known again after a restart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from tidegate.broker.turn.writer import TurnWriter
from tidegate.config import DestinationPolicy
from tidegate.spi import PendingCount, StoredMessage, body_bytes

SLOW: Final = "slow"
REFUSE: Final = "refuse"
DROP_OLDEST: Final = "drop_oldest"
DROP_NEWEST: Final = "drop_newest"
DISCONNECT: Final = "disconnect"

#: How near its limit a list must be for its publishes to be counted; a tenth of the limit if that
#: is more. About what one client sends in one turn.
MARGIN: Final = 1000
MARGIN_BYTES: Final = 4 << 20

#: More than any list holds.
ANY: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Bounds:
    """A policy's limits for a list. Attributes: 0 means unlimited; prefix: of the options' names."""

    prefix: str
    messages_max: int
    bytes_max: int
    age_us: int
    overflow: str
    wait_s: float
    is_dead_lettered: bool

    @classmethod
    def of(cls, policy: DestinationPolicy, *, is_queue: bool) -> Bounds | None:
        """Those of a queue or a durable subscription; None: it is unlimited."""
        if is_queue:
            bounds = cls(
                "",
                policy.messages_max,
                policy.bytes_max,
                int(policy.age_max * 1_000_000),
                policy.overflow,
                policy.overflow_wait,
                policy.overflow_dead_letter,
            )
        else:
            bounds = cls(
                "subscription_",
                policy.subscription_messages_max,
                policy.subscription_bytes_max,
                int(policy.subscription_age_max * 1_000_000),
                policy.subscription_overflow,
                policy.subscription_overflow_wait,
                policy.subscription_overflow_dead_letter,
            )
        return bounds if bounds.is_bound else None

    @property
    def is_bound(self) -> bool:
        """There is a limit."""
        return bool(self.messages_max or self.bytes_max or self.age_us)

    def without_bytes(self) -> Bounds | None:
        """The same without a limit in bytes; None: there is no other."""
        rest = replace(self, bytes_max=0)
        return rest if rest.is_bound else None


class Ledger:
    """See the module. Args: pending: what the store has for the list.

    Attributes:
        count, bytes: what the store has for it, in messages and in bytes of their bodies.
        weighs: it must be told of messages before they leave (:meth:`weigh`).
    """

    __slots__ = (
        "_accepted",
        "_before",
        "_leaving",
        "_leaving_bytes",
        "_leaving_count",
        "_margin",
        "_margin_bytes",
        "_sizes",
        "_writer",
        "bounds",
        "bytes",
        "count",
        "weighs",
    )

    def __init__(self, writer: TurnWriter, bounds: Bounds, pending: PendingCount) -> None:
        self._writer = writer
        self._bind(bounds)
        self.count = pending.messages
        self.bytes = pending.body_bytes
        # A turn, and how much was accepted in it: the last one and the one before.
        self._accepted = (-1, 0, 0)
        self._before = (-1, 0, 0)
        self._sizes: dict[int, int] = {}  # of messages that were handed out, and perhaps came back
        # What this limit lets go, not durable yet, by the first sequence of its operation.
        self._leaving: dict[int, tuple[int, int]] = {}
        self._leaving_count = self._leaving_bytes = 0

    def _bind(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.weighs = bounds.bytes_max > 0
        self._margin = max(MARGIN, bounds.messages_max // 10)
        self._margin_bytes = max(MARGIN_BYTES, bounds.bytes_max // 10)

    @property
    def act(self) -> str:
        """What happens at its limit; "": only the age of its messages is limited."""
        bounds = self.bounds
        return bounds.overflow if bounds.messages_max or bounds.bytes_max else ""

    def enter(self, messages: Sequence[StoredMessage]) -> None:
        """*messages* are durable, and in the list."""
        self.count += len(messages)
        if self.weighs:
            self.bytes += sum([body_bytes(item.message) for item in messages])

    def weigh(self, messages: Sequence[StoredMessage]) -> None:
        """*messages* may leave the list; call only where it :attr:`weighs`."""
        sizes = self._sizes
        for item in messages:
            sizes[item.sequence] = body_bytes(item.message)

    def take_out(self, sequences: Sequence[int]) -> None:
        """An operation that takes these off the list is durable."""
        count = len(sequences)
        if self.weighs:
            # Of a message that was not weighed (purged unread) only the mean is known.
            mean = self.bytes // max(self.count, 1)
            self.bytes -= sum([self._sizes.pop(item, mean) for item in sequences])
        self.count -= count
        self._has_left(sequences[0])
        if self.count <= 0:
            self.count = self.bytes = 0
            self._sizes.clear()

    def accept(self, size: int) -> None:
        """A message for it is being published; *size*: of its body."""
        turn, count, total = self._accepted
        filling = self._writer.turns
        if turn != filling:
            self._before = self._accepted
            count = total = 0
        self._accepted = (filling, count + 1, total + size)

    def spare(self) -> tuple[int, int]:
        """How many more messages and bytes of bodies it takes; negative above the limit."""
        count = self.count - self._leaving_count
        size = self.bytes - self._leaving_bytes
        written = self._writer.batches
        for turn, accepted, accepted_bytes in (self._accepted, self._before):
            if turn >= written:
                count += accepted
                size += accepted_bytes
        bounds = self.bounds
        return (
            bounds.messages_max - count if bounds.messages_max else ANY,
            bounds.bytes_max - size if bounds.bytes_max else ANY,
        )

    def fits(self, count: int, size: int) -> bool:
        """Tell whether *count* more messages of *size* bytes are within the limit."""
        spare, spare_bytes = self.spare()
        return spare >= count and spare_bytes >= size

    def _is_beyond(self, count: int, size: int) -> bool:
        """With that many more it would exceed its limit by more than the margin."""
        spare, spare_bytes = self.spare()
        return spare - count < -self._margin or spare_bytes - size < -self._margin_bytes

    def _excess(self) -> tuple[int, int]:
        """How many durable messages and bytes must be dropped."""
        bounds = self.bounds
        if bounds.overflow != DROP_OLDEST:
            return 0, 0
        count = self.count - self._leaving_count - bounds.messages_max
        size = self.bytes - self._leaving_bytes - bounds.bytes_max
        return (count if bounds.messages_max else 0), (size if bounds.bytes_max else 0)

    def _leaves(self, messages: Sequence[StoredMessage]) -> None:
        size = sum([body_bytes(item.message) for item in messages]) if self.weighs else 0
        self._leaving[messages[0].sequence] = len(messages), size
        self._leaving_count += len(messages)
        self._leaving_bytes += size

    def _has_left(self, first: int) -> None:
        count, size = self._leaving.pop(first, (0, 0))
        self._leaving_count -= count
        self._leaving_bytes -= size
