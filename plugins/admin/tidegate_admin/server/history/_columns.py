"""The values kept of a sample, and how two samples combine."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from tidegate.spi.operate import Overview

#: Picks, of two numbers that are not NaN, the one that operators must see.
_Worse: TypeAlias = Callable[[float, float], float]

#: Messages and confirmations a second: the mean of a bucket is kept.
RATES: Final = ("published", "confirmed", "delivered", "acknowledged", "dropped")
#: The worst value of a bucket is kept; bytes, messages, milliseconds.
GAUGES: Final[Mapping[str, _Worse]] = {
    "confirmation_p50_ms": max,
    "confirmation_p99_ms": max,
    "backlog": max,
    "connections": max,
    "store_bytes": max,
    "disk_free_bytes": min,
    "memory_bytes": max,
    "held_bytes": max,
    "in_flight_bytes": max,
    "stored_memory_bytes": max,
    "unstored_memory_bytes": max,
    "temporary_bytes": max,
}
COLUMNS: Final = (*RATES, *GAUGES)
_UNKNOWN: Final = math.nan


def gauges(found: Overview) -> tuple[float, ...]:
    """In the order of ``GAUGES``; NaN where there is no value."""
    waits = found.confirmation
    return (
        waits.p50_ms if waits.count else _UNKNOWN,
        waits.p99_ms if waits.count else _UNKNOWN,
        found.backlog,
        found.connections.used,
        found.store.used,
        _UNKNOWN if found.disk_free is None else found.disk_free,
        found.memory_bytes,
        found.held.used,
        found.in_flight.used,
        found.stored_memory.used,
        found.unstored_memory.used,
        found.temporary.used,
    )


def rates(found: Overview, before: Overview | None) -> tuple[float, ...]:
    """In the order of ``RATES``. Args: before: the previous sample of this run, or None."""
    if before is None or found.uptime_s <= before.uptime_s:
        return tuple(getattr(found, name).per_second for name in RATES)
    seconds = found.uptime_s - before.uptime_s
    return tuple(
        (getattr(found, name).total - getattr(before, name).total) / seconds for name in RATES
    )


def together(
    seconds: float, values: Sequence[float], more_s: float, more: Sequence[float]
) -> tuple[float, ...]:
    """The bucket that joins both. Args: seconds, more_s: the time that each covers, above 0."""
    count, whole = len(RATES), seconds + more_s
    means = [
        (one * seconds + other * more_s) / whole
        for one, other in zip(values[:count], more[:count], strict=True)
    ]
    worst = [
        other if math.isnan(one) else one if math.isnan(other) else worse(one, other)
        for worse, one, other in zip(GAUGES.values(), values[count:], more[count:], strict=True)
    ]
    return (*means, *worst)
