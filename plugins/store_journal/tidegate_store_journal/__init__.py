"""The append-only journal store: data files, index, checkpoint, recovery.

``JournalStore(context, options, storage=None)`` may be given another :class:`Storage`; that is how
the crash tests put faults under the engine.
"""

from __future__ import annotations

from tidegate_store_journal._metadata import MetadataCounters, read_counters
from tidegate_store_journal._options import JournalOptions
from tidegate_store_journal._splitcompact import DestinationCompaction, compact
from tidegate_store_journal._storage import DirectoryStorage, File, MemoryStorage, Storage
from tidegate_store_journal._store import JournalStore
from tidegate_store_journal._why import FileReport, Holder, describe, inspect, why

__all__ = [
    "DestinationCompaction",
    "DirectoryStorage",
    "File",
    "FileReport",
    "Holder",
    "JournalOptions",
    "JournalStore",
    "MemoryStorage",
    "MetadataCounters",
    "Storage",
    "compact",
    "describe",
    "inspect",
    "read_counters",
    "why",
]
