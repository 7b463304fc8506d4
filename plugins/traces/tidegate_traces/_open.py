"""What is remembered of traced messages while they wait, and of deliveries until they are settled: bounded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple

from opentelemetry.trace import SpanContext

from tidegate_traces._spans import Sent


class Delivered(NamedTuple):
    """A delivery that goes on.

    Attributes: began: nanoseconds since the epoch; before: deliveries that came back; more: attributes.
    """

    sent: Sent
    context: SpanContext
    began: int
    before: int
    more: Mapping[str, str | int]


class OpenDeliveries:
    """By list and sequence. Args: limit: how many."""

    __slots__ = ("_limit", "by_list", "size")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.by_list: dict[int, dict[int, Delivered]] = {}
        self.size = 0

    def put(self, pending_list: int, sequence: int, delivered: Delivered) -> Delivered | None:
        """Returns: the oldest of a list, which has to make room."""
        oldest = None
        if self.size >= self._limit:
            first = next(iter(self.by_list))
            oldest = self.take(first, next(iter(self.by_list[first])))
        self.by_list.setdefault(pending_list, {})[sequence] = delivered
        self.size += 1
        return oldest

    def get(self, pending_list: int, sequence: int) -> Delivered | None:
        """It, if it is open."""
        return self.by_list.get(pending_list, {}).get(sequence)

    def take(self, pending_list: int, sequence: int) -> Delivered | None:
        """It is over; None: it was not open."""
        of_list = self.by_list.get(pending_list)
        if of_list is None:
            return None
        found = of_list.pop(sequence, None)
        if found is not None:
            self.size -= 1
            if not of_list:
                del self.by_list[pending_list]
        return found

    def take_all(self, pending_list: int) -> list[Delivered]:
        """The list is gone."""
        found = self.by_list.pop(pending_list, {})
        self.size -= len(found)
        return list(found.values())


class Waiting:
    """Traced messages by sequence, the oldest first. Args: limit: how many."""

    __slots__ = ("_limit", "_sent")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # A plain dict is slow to find its first entry when those before it are gone.
        self._sent: OrderedDict[int, Sent] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sent)

    def put(self, sequence: int, sent: Sent) -> bool:
        """Returns: the oldest was forgotten for it."""
        is_full = len(self._sent) >= self._limit
        if is_full:
            self._sent.popitem(last=False)
        self._sent[sequence] = sent
        return is_full

    def get(self, sequence: int) -> Sent | None:
        """It, if it is remembered."""
        return self._sent.get(sequence)

    def forget(self, sequence: int) -> None:
        """Nothing more comes of it."""
        self._sent.pop(sequence, None)
