"""The answers of ``/history``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import msgspec

from tidegate_admin.server.history._columns import COLUMNS
from tidegate_admin.server.history._ring import Ring

#: By name: the number of its ring, its step in seconds, and how many records.
RANGES: Final[Mapping[str, tuple[int, int, int]]] = {
    "15m": (0, 10, 90),
    "1h": (0, 10, 360),
    "24h": (1, 60, 1440),
    "7d": (2, 600, 1008),
}


class History(msgspec.Struct, frozen=True, tag="history"):
    """The gateway's history, in steps of equal length up to now.

    Attributes:
        step_s: length of a step in seconds.
        first_at: when the first step begins, microseconds since the epoch.
        series: by name, a number per step: for rates the mean per second, otherwise the worst of
            the step; null: no sample, or no value.
    """

    range: str
    step_s: int
    first_at: int
    series: Mapping[str, tuple[float | None, ...]]


def shown(ring: Ring, name: str, now: float) -> History:
    """The history of one range. Args: name: one of ``RANGES``; now: seconds since the epoch."""
    number, step_s, count = RANGES[name]
    first, records = ring.last(number, count, now)
    series = {
        column: tuple(None if record is None else _number(record[index]) for record in records)
        for index, column in enumerate(COLUMNS)
    }
    return History(name, step_s, first * 1_000_000, series)


def _number(value: float) -> float | None:
    if math.isnan(value):
        return None
    return int(value) if value.is_integer() else round(value, 3)
