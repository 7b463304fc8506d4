"""The contract of a pending cursor: it feeds one list's consumers with messages in order.

The broker makes one cursor for each queue, each stored subscription and each unstored topic
subscription, by the factory that the destination's policy names. It offers every message that
became durable and takes messages when consumers have room. All calls happen on the event loop;
only ``page_in`` and ``close`` may wait.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol, TypeAlias

from tidegate.spi.messages import StoredMessage
from tidegate.spi.storage.feed import CursorFeed

#: ``await read_page(after, limit, bytes_max)``: :meth:`MessageStore.page_in` bound to one list.
PageReader: TypeAlias = Callable[[int, int, int], Awaitable[Sequence[StoredMessage]]]

#: Shortest time, in seconds, between two queries of the file system's free space.
LOOK_INTERVAL_S: Final = 1.0


def _nobody() -> None:
    """Does nothing: nobody waits."""


class TemporarySpace:
    """What the temporary files of all cursors take on the disk, and how much they may take.

    Args:
        limit_bytes: 0 for no limit.
        free_limit_bytes: what must stay free on the file system, for the store and others; 0 for
            nothing.
        clock: seconds, monotonic.
    Attributes:
        used: bytes.
        unwritten: bytes in memory that are on their way to those files; the cursors change it.
    """

    __slots__ = (
        "_clock",
        "_free",
        "_lock",
        "_look_at",
        "free_limit_bytes",
        "limit_bytes",
        "unwritten",
        "used",
    )

    def __init__(
        self,
        limit_bytes: int = 0,
        free_limit_bytes: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limit_bytes = limit_bytes
        self.free_limit_bytes = free_limit_bytes
        self.used = 0
        self.unwritten = 0
        self._clock = clock
        self._lock = threading.Lock()
        self._free = 0  # on the file system when last queried, less what was taken since
        self._look_at = -math.inf

    def take(self, size: int) -> bool:
        """Take *size* bytes more. Returns: False when there is no room; nothing is taken then."""
        if self.limit_bytes and self.used + size > self.limit_bytes:
            return False
        self.used += size
        return True

    def give_back(self, size: int) -> None:
        """Give back *size* bytes."""
        self.used -= size

    def leaves_enough(self, descriptor: int, size: int) -> bool:
        """Tell whether enough stays free on the file system of an open file that grows by *size*.

        The file system is queried at most once every :data:`LOOK_INTERVAL_S`; growth in between is
        counted. May be called in any thread, and should be called off the event loop.
        Raises: OSError.
        """
        if not self.free_limit_bytes:
            return True
        with self._lock:
            now = self._clock()
            if now >= self._look_at:
                found = os.fstatvfs(descriptor)
                self._free = found.f_bavail * found.f_frsize
                self._look_at = now + LOOK_INTERVAL_S
            if self._free - size < self.free_limit_bytes:
                return False
            self._free -= size
            return True


class CursorMemory:
    """What cursors hold in memory together, and how much they may hold. All calls on the event loop.

    Args: limit_bytes: 0 for no limit.
    Attributes:
        used: bytes.
        cursors: how many share it; reading: bytes set aside for pages being read. The cursors
            maintain both.
    """

    __slots__ = ("_waiting", "_wake_below", "cursors", "limit_bytes", "reading", "used")

    def __init__(self, limit_bytes: int = 0) -> None:
        self.limit_bytes = limit_bytes
        self.used = 0
        self.cursors = 0
        self.reading = 0
        self._waiting: dict[Callable[[], None], int] = {}
        self._wake_below = 0

    def add(self, size: int) -> None:
        """A cursor's ``memory_bytes`` grew by *size*, or shrank."""
        self.used += size
        if self.used < self._wake_below:
            self._wake()

    def when_below(self, level_bytes: int, call: Callable[[], None]) -> None:
        """Call *call* once, as soon as less than *level_bytes* are used."""
        self._waiting[call] = level_bytes
        self._wake_below = max(self._wake_below, level_bytes)

    def forget(self, call: Callable[[], None]) -> None:
        """Do not call *call* any more, if it was to be called."""
        self._waiting.pop(call, None)

    def _wake(self) -> None:
        used = self.used
        woken = [call for call, level in self._waiting.items() if used < level]
        for call in woken:
            del self._waiting[call]
        self._wake_below = max(self._waiting.values(), default=0)
        for call in woken:
            call()


@dataclass(frozen=True, slots=True)
class CursorContext:
    """What the broker gives a cursor factory.

    Attributes:
        destination: canonical destination or filter, for messages.
        read_page: reads the list from the store; None for an unstored topic subscription.
        recovered_count: messages that were pending in the store before this start.
        memory_limit_bytes: how much the cursor may hold in memory
            (:func:`~tidegate.spi.messages.memory_bytes` of each message).
        page_count: messages to read from store or file at once.
        page_bytes: bytes of them to read at once; at least one message is always read. 0 for no limit.
        temporary_directory: for spooled messages; emptied by the host at start.
        temporary_limit_bytes: how much one cursor may spool there.
        memory_limit_messages: how many messages the cursor may hold in memory, beside
            *memory_limit_bytes*; 0 for no limit.
        shared_memory: what cursors hold in memory together: one for all cursors that need the store,
            one for all others. Each cursor reports to it what it holds. Above its limit, or the part of
            it given by *memory_high_water_percent*, a cursor takes no more into memory than it needs
            to work, if it can: cursors that need the store drop messages the store has, others spool
            or are full.
        memory_high_water_percent: this much of that limit; the rest is for what must be held anyway.
        temporary_space: what all cursors together have in temporary files; each asks it before its
            files grow and reports when they shrink.
        has_room: call it, on the event loop, when ``is_full`` ends without a call of the broker's
            causing it, such as when the disk has caught up or others hold less.
        feed: where the list feeds from, since when, and which messages came which way; the cursor
            keeps it up to date.
    """

    destination: str
    read_page: PageReader | None
    recovered_count: int
    memory_limit_bytes: int
    page_count: int
    temporary_directory: Path
    temporary_limit_bytes: int
    page_bytes: int = 0
    memory_limit_messages: int = 0
    shared_memory: CursorMemory = field(default_factory=CursorMemory)
    temporary_space: TemporarySpace = field(default_factory=TemporarySpace)
    has_room: Callable[[], None] = _nobody
    memory_high_water_percent: int = 100
    feed: CursorFeed = field(default_factory=CursorFeed)


class PendingCursor(Protocol):
    """Pending messages of one list, in sequence order.

    Every message is *offered* once, *taken* at most once, and then either *removed* for good by
    the broker's bookkeeping (acknowledged: no call here, the store knows) or *put back*. For a
    consumer with a selector, messages are not taken in order but *claimed* by sequence.
    """

    @property
    def feed(self) -> CursorFeed:
        """The feed of its context, up to date as of the last call."""
        ...

    @property
    def size(self) -> int:
        """Messages that are pending and not taken (in memory, spooled or only in the store)."""
        ...

    @property
    def memory_bytes(self) -> int:
        """Memory held now."""
        ...

    @property
    def is_full(self) -> bool:
        """True when producers must be slowed: the limit is reached and nothing can be spilled now."""
        ...

    @property
    def needs_page(self) -> bool:
        """True when nothing can be taken now but ``page_in`` would bring something."""
        ...

    def offer(self, messages: Sequence[StoredMessage]) -> Sequence[StoredMessage]:
        """Append new messages; their sequences are above all earlier ones. Never fails, never waits.

        Returns: messages that had to be dropped because not even the spool has room and the list is
            not stored; almost always (). A stored message is never dropped.
        """
        ...

    def take(self, limit: int, bytes_max: int) -> Sequence[StoredMessage]:
        """Take the first messages, at most *limit* and about *bytes_max* of bodies.

        At least one message is returned when one is in memory and *limit* is 1 or more; () means
        that nothing is in memory (see ``needs_page``).
        """
        ...

    async def page_in(self) -> None:
        """Bring messages into memory from store or spool. Never called concurrently.

        Raises: StoreError. Cancellation: safe.
        """
        ...

    def put_back(self, messages: Sequence[StoredMessage]) -> None:
        """Return taken or claimed messages that were not acknowledged to their place in the order."""
        ...

    def claim(self, sequences: Sequence[int]) -> Sequence[int]:
        """Take messages out of order, wherever they are; all of them have been offered.

        A claimed message counts as taken: ``take`` does not return it until it is put back, even if
        ``page_in`` reads it. Each claimed message is in the end either put back or, when it has left
        the list, passed to ``remove``, so a cursor may remember which are claimed.

        Returns: those of *sequences* that were untaken, ascending; the others are left alone.
        """
        ...

    def remove(self, sequences: Sequence[int]) -> int:
        """Untaken or claimed messages left the list in another way (purge, expiry).

        The store has already removed them; a cursor that reads pages simply will not see them.

        Returns: how many untaken ones were known.
        """
        ...

    async def close(self) -> None:
        """Free memory and spool. Idempotent."""
        ...


class CursorFactory(Protocol):
    """What a plugin registers for a cursor type (hook ``register_cursor``)."""

    @property
    def needs_store(self) -> bool:
        """True when it reads from the store and so cannot serve an unstored subscription."""
        ...

    @property
    def spools(self) -> bool:
        """True when it uses temporary files, so that ``temporary_limit`` applies."""
        ...

    def create(self, context: CursorContext) -> PendingCursor:
        """Build the cursor of one list."""
        ...
