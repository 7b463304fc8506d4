"""The writer of ``journal_type = "ASYNCIO"``: requests to the kernel instead of a thread.

The loop hands a batch to the kernel and learns of its end from a descriptor that it watches anyway:
no thread, so no waiting for the interpreter's lock, twice a batch. What is written and synced, and
in which order, is the same as in ``writer``:

- One batch after the other. A batch that fits into one request, and before which everything is
  synced, is one request that writes and syncs (``O_DSYNC``). Everything else is written in requests of
  ``journal_buffer_size``, at most ``journal_max_io`` of them under way, and then synced.
- A file is begun when the one before it is synced.
- After a sync that failed, or an error that nobody thought of, nothing is written any more.

All methods are for the event loop.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import sys
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from tidegate_store_journal.log.storage import DirectoryFile, DirectoryStorage, File, Storage
from tidegate_store_journal.options import ASYNCIO, JournalOptions
from tidegate_store_journal.write.writer import (
    HAND_OVER_BYTES_MIN,
    BatchWriter,
    Request,
    Steps,
    Writer,
)

if TYPE_CHECKING:
    from caio.linux_uring import Operation

logger = logging.getLogger("tidegate.store.journal")

#: Told what a request came to: bytes written (0 for a sync), or ``-errno``.
Completed = Callable[[int], None]

#: A batch that is so much longer than a request is one all the same.
_REST_BYTES: Final = 4096
#: The system had no memory for a request; it is offered again after this.
_AGAIN_SECONDS: Final = 0.005


class Ring(Protocol):
    """A queue of requests to the system.

    Requests may be carried out in any order. *done* is called on the event loop, never before the
    method that it was given to has returned.
    """

    def write(self, file: File, data: bytes, offset: int, done: Completed, *, synced: bool) -> None:
        """Write *data*, or the first part of it; *synced*: and this range is on stable storage."""
        ...

    def datasync(self, file: File, done: Completed) -> None:
        """As ``File.datasync``."""
        ...

    def close(self) -> None:
        """Give everything back. No request is under way. Idempotent."""
        ...


@runtime_checkable
class RingStorage(Protocol):
    """A storage with files of its own kind that takes requests (tests, fault injection)."""

    def make_writer(
    options: JournalOptions,
    storage: Storage,
    loop: AbstractEventLoop,
    on_failure: Callable[[Exception], None],
) -> BatchWriter:
    """The writer of the journal type, or what is used where that cannot be had; not started."""
    if options.journal_type == ASYNCIO and storage.durable:
        try:
            ring = _make_ring(storage, loop, options.max_io)
        except (ImportError, OSError) as error:
            logger.warning("journal_type=ASYNCIO falls back to NIO reason=%s", error)
        else:
            return RingWriter(loop, options, on_failure, ring)
    return Writer(loop, options, on_failure)


def _make_ring(storage: Storage, loop: AbstractEventLoop, entries: int) -> Ring:
    if isinstance(storage, DirectoryStorage):
        return CaioRing(loop, entries)
    if isinstance(storage, RingStorage):
        return storage.make_ring(loop, entries)
    raise OSError(f"{storage.describe('')} takes no requests")
