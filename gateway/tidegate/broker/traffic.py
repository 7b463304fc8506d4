"""How much goes through the gateway: totals since its start, and rates over the last seconds."""

from __future__ import annotations

from collections import deque
from typing import Final

from tidegate.broker.turn.flow import Flow

#: Samples, one a second, that rates are computed from.
SAMPLES_MAX: Final = 11

_US: Final = 1_000_000


class Traffic:
    """Made when the store is open, before clients come. Call :meth:`sample` every second.

    Attributes: started_at: microseconds of a monotonic clock; since: the same since the epoch.
    """

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        writer = self._writer = flow.writer
        self._first_sequence = writer.next_sequence
        self._own_before = writer.own_sequences
        self.started_at = writer.elapsed()
        self.since = writer.now()
        self._samples: deque[tuple[int, dict[str, int]]] = deque(maxlen=SAMPLES_MAX)
        self.sample()

    def totals(self) -> dict[str, int]:
        """Messages ``published`` by clients, ``delivered`` to them, ``acknowledged`` and ``dropped``,
        and ``confirmed``."""
        flow, writer = self._flow, self._writer
        own = writer.own_sequences - self._own_before
        return {
            "published": writer.next_sequence - self._first_sequence - own,
            "confirmed": writer.confirmed,
            "delivered": flow.sent,
            "acknowledged": writer.acknowledged,
            "dropped": flow.dropped,
        }

    def sample(self) -> None:
        """A second has passed, or begun."""
        self._samples.append((self._writer.elapsed(), self.totals()))
        self._writer.latencies.tick()

    def rates(self) -> dict[str, float]:
        """The same per second, since the oldest sample."""
        at, before = self._samples[0]
        seconds = (self._writer.elapsed() - at) / _US
        return {
            name: (total - before[name]) / seconds if seconds > 0 else 0.0
            for name, total in self.totals().items()
        }

    @property
    def uptime_s(self) -> float:
        return (self._writer.elapsed() - self.started_at) / _US
