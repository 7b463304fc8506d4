"""Bounded memory of traced messages while they wait, and of deliveries until they settle."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final, NamedTuple

from opentelemetry.trace import SpanContext

from tidegate.spi import HoldFor
from tidegate_traces._spans import Sent

#: Memory of a delivery besides the message and attribute texts: measured, rounded up.
_DELIVERED_BYTES: Final = 700


class Delivered(NamedTuple):
    """An open delivery.

    Attributes: began: nanoseconds since the epoch; before: deliveries that came back;
        more: attributes; owner: the principal that it went to.
    """

    sent: Sent
    context: SpanContext
    began: int
    before: int
    more: Mapping[str, str | int]
    owner: str

    @property
    def size(self) -> int:
        """Memory that it takes, bytes. Other holders of the message count it too."""
        texts = sum(len(value) for value in self.more.values() if isinstance(value, str))
        return _DELIVERED_BYTES + texts + self.sent.size


class OpenDeliveries:
    """By list and sequence. Args: limit: how many; hold: charges them to the receivers."""

    __slots__ = ("_hold", "_limit", "by_list", "size")

    def __init__(self, limit: int, hold: HoldFor) -> None:
        self._limit = limit
        self._hold = hold
        self.by_list: dict[int, dict[int, Delivered]] = {}
        self.size = 0

    def put(self, pending_list: int, sequence: int, delivered: Delivered) -> Delivered | None:
        """Returns: the oldest of a list, evicted, or *delivered* if its owner has no room."""
        if not self._hold(delivered.owner, delivered.size):
            return delivered
        oldest = None
        if self.size >= self._limit:
            first = next(iter(self.by_list))
            oldest = self.take(first, next(iter(self.by_list[first])))
        self.by_list.setdefault(pending_list, {})[sequence] = delivered
        self.size += 1
        return oldest

    def get(self, pending_list: int, sequence: int) -> Delivered | None:
        """The delivery, if open."""
        return self.by_list.get(pending_list, {}).get(sequence)

    def take(self, pending_list: int, sequence: int) -> Delivered | None:
        """Remove and return it; None: it was not open."""
        of_list = self.by_list.get(pending_list)
        if of_list is None:
            return None
        found = of_list.pop(sequence, None)
        if found is not None:
            self._hold(found.owner, -found.size)
            self.size -= 1
            if not of_list:
                del self.by_list[pending_list]
        return found

    def take_all(self, pending_list: int) -> list[Delivered]:
        """Remove all of a list that is gone."""
        found = self.by_list.pop(pending_list, {})
        self.size -= len(found)
        for delivered in found.values():
            self._hold(delivered.owner, -delivered.size)
        return list(found.values())


class Waiting:
    """Traced messages by sequence, the oldest first.

    Args: limit: how many; hold: charges them to their publishers.
    """

    __slots__ = ("_hold", "_limit", "_sent")

    def __init__(self, limit: int, hold: HoldFor) -> None:
        self._limit = limit
        self._hold = hold
        # A plain dict is slow to find its first entry after many deletions at the front.
        self._sent: OrderedDict[int, Sent] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sent)

    def put(self, sequence: int, sent: Sent) -> bool:
        """Returns: whether one was lost: the oldest, or this one if its owner has no room."""
        is_full = len(self._sent) >= self._limit
        if is_full:
            self.forget(next(iter(self._sent)))
        if not self._hold(sent.owner, sent.size):
            return True
        self._sent[sequence] = sent
        return is_full

    def get(self, sequence: int) -> Sent | None:
        """The message, if remembered."""
        return self._sent.get(sequence)

    def forget(self, sequence: int) -> None:
        """Forget a message that gets no more spans."""
        sent = self._sent.pop(sequence, None)
        if sent is not None:
            self._hold(sent.owner, -sent.size)
