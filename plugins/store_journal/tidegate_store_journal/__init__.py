"""The append-only journal store: data files, index, checkpoint, recovery.

``JournalStore(context, options, storage=None)`` may be given another :class:`Storage`; that is how
the crash tests put faults under the engine.
"""

from __future__ import annotations

from tidegate_store_journal.bodies.large import read_large
from tidegate_store_journal.checkpoint.metadata import MetadataCounters, read_counters
from tidegate_store_journal.log.memory import MemoryStorage
from tidegate_store_journal.log.storage import DirectoryStorage, File, Storage
from tidegate_store_journal.options import JournalOptions
from tidegate_store_journal.space.tidy import DestinationCompaction
from tidegate_store_journal.store import JournalStore
from tidegate_store_journal.tools.offline import compact_destination
from tidegate_store_journal.tools.report import FileReport, Holder, describe, inspect, why

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
    "compact_destination",
    "describe",
    "inspect",
    "read_counters",
    "read_large",
    "why",
]
