"""Which files and which writer a journal type has, and what is used where it cannot be had."""

from __future__ import annotations

import logging
from asyncio import AbstractEventLoop
from collections.abc import Callable
from pathlib import Path

from tidegate_store_journal.log.mapped import can_map, with_mapping
from tidegate_store_journal.log.names import NAMINGS, NamedStorage
from tidegate_store_journal.log.storage import DirectoryStorage, Storage
from tidegate_store_journal.options import ASYNCIO, MAPPED, JournalOptions
from tidegate_store_journal.write.ring import RingWriter, make_ring
from tidegate_store_journal.write.writer import BatchWriter, Writer

logger = logging.getLogger("tidegate.store.journal")


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
    """The writer, not started."""
    if options.journal_type == ASYNCIO and storage.durable:
        try:
            ring = make_ring(storage, loop, options.max_io)
        except (ImportError, OSError) as error:
            logger.warning("journal_type=ASYNCIO falls back to NIO reason=%s", error)
        else:
            return RingWriter(loop, options, on_failure, ring)
    return Writer(loop, options, on_failure)
