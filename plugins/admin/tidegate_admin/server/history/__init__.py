"""The gateway's history over hours and days: samples in a small file of fixed size."""

from __future__ import annotations

from tidegate_admin.server.history._columns import COLUMNS
from tidegate_admin.server.history._ring import FILE_BYTES, HISTORY_FILE, Ring
from tidegate_admin.server.history._sampler import EVERY_S, Sampler
from tidegate_admin.server.history._shown import RANGES, History, shown

__all__ = [
    "COLUMNS",
    "EVERY_S",
    "FILE_BYTES",
    "HISTORY_FILE",
    "RANGES",
    "History",
    "Ring",
    "Sampler",
    "shown",
]
