"""Which files and which writer a journal type has, and what is used where it cannot be had."""

from __future__ import annotations

import logging
from asyncio import AbstractEventLoop
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, runtime_checkable

from tidegate_store_journal.log.mapped import can_map, with_mapping
from tidegate_store_journal.log.memory import MemoryStorage
from tidegate_store_journal.log.names import NAMINGS, NamedStorage
from tidegate_store_journal.log.storage import DirectoryStorage, Storage
from tidegate_store_journal.options import (
    ALWAYS,
    ASYNCIO,
    MAPPED,
    NEVER,
    PERIODIC,
    JournalOptions,
)
from tidegate_store_journal.write.caio import open_ring
from tidegate_store_journal.write.ringwriter import Ring, RingWriter
from tidegate_store_journal.write.writer import (
    BACKGROUND_SYNC_SECONDS,
    BatchWriter,
    Writer,
    WriterSettings,
)

logger = logging.getLogger("tidegate.store.journal")


@runtime_checkable
class RingStorage(Protocol):
    """A storage with files of its own kind that takes requests (tests, fault injection)."""

    def make_ring(self, loop: AbstractEventLoop, entries: int) -> Ring:
        """A ring for its files, with room for *entries*. Raises: OSError: there is none."""
        ...


def open_directory(options: JournalOptions, directory: Path) -> DirectoryStorage:
    """The storage for *directory*, with the names of the preset. Nothing is made or opened yet."""
    maps = options.journal_type == MAPPED and can_map(directory)
    naming = NAMINGS.get(options.preset)
    return NamedStorage(directory, naming, wrap=with_mapping if maps else None)


def make_writer(
    options: JournalOptions,
    storage: Storage,
    loop: AbstractEventLoop,
    on_failure: Callable[[Exception], None],
) -> BatchWriter:
    """The writer, not started. *on_failure* is told of a sync that failed behind nobody's request."""
    settings = WriterSettings(
        background_sync_seconds={
            ALWAYS: BACKGROUND_SYNC_SECONDS,
            PERIODIC: options.journal_disk_sync_interval,
            NEVER: None,
        }[options.sync_strategy],
        slow_sync_seconds=options.slow_sync_threshold,
        on_failure=on_failure,
    )
    if options.journal_type == ASYNCIO and not isinstance(storage, MemoryStorage):
        try:
            ring = _make_ring(storage, loop, options.max_io)
        except (ImportError, OSError) as error:
            logger.warning("journal_type=ASYNCIO falls back to NIO reason=%s", error)
        else:
            return RingWriter(
                loop,
                ring,
                max_io=options.max_io,
                request_bytes_max=options.journal_buffer_size,
                **settings,
            )
    return Writer(loop, **settings)


def _make_ring(storage: Storage, loop: AbstractEventLoop, entries: int) -> Ring:
    if isinstance(storage, DirectoryStorage):
        return open_ring(loop, entries)
    if isinstance(storage, RingStorage):
        return storage.make_ring(loop, entries)
    raise OSError(f"{storage.describe('')} takes no requests")
