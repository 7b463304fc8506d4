"""The contract of a pending cursor: what feeds one list's consumers with messages in order.

The broker makes one cursor for each queue, each stored subscription and each unstored topic
subscription, by the factory that the destination's policy names. It offers every message that
became durable and takes messages when consumers have room. All calls happen on the event loop;
only ``page_in`` and ``close`` may wait.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias

from tidegate.spi.messages import StoredMessage

#: ``await read_page(after, limit, bytes_max)``: :meth:`MessageStore.page_in` bound to one list.
PageReader: TypeAlias = Callable[[int, int, int], Awaitable[Sequence[StoredMessage]]]


class TemporarySpace:
    """What the temporary files of all cursors take on the disk, and may take.

    Args: limit_bytes: 0 for no limit. Attributes: used: bytes.
    """

    __slots__ = ("limit_bytes", "used")

    def __init__(self, limit_bytes: int = 0) -> None:
        self.limit_bytes = limit_bytes
        self.used = 0

    def take(self, size: int) -> bool:
        """Take *size* bytes more. Returns: False when there is no room; nothing is taken then."""
        if self.limit_bytes and self.used + size > self.limit_bytes:
            return False
        self.used += size
        return True

    def give_back(self, size: int) -> None:
        """*size* bytes are free again."""
        self.used -= size


class CursorMemory:
    """What cursors of one kind hold in memory together, and may hold.

    Args: limit_bytes: 0 for no limit. Attributes: used: bytes; the cursors themselves change it, as
        their ``memory_bytes`` changes.
    """

    __slots__ = ("limit_bytes", "used")

    def __init__(self, limit_bytes: int = 0) -> None:
        self.limit_bytes = limit_bytes
        self.used = 0


@dataclass(frozen=True, slots=True)
class CursorContext:
    """What the broker gives a cursor factory.

    Attributes:
        destination: canonical destination or filter, for messages.
        read_page: reads the list from the store; None for an unstored topic subscription.
        recovered_count: messages that were pending in the store before this start.
        memory_limit_bytes: what the cursor may hold in memory
            (:func:`~tidegate.spi.messages.memory_bytes` of each message).
        page_count: messages to read from store or file at once.
        temporary_directory: for spooled messages; emptied by the host at start.
        temporary_limit_bytes: what one cursor may spool there.
        shared_memory: what all cursors of one kind hold in memory together; the same for all of them.
            Each tells it what it holds. Above its limit a cursor takes no more into memory than it
            needs to work, if it can do without: those that need the store let go of what the store
            has, others spool or are full.
        temporary_space: what all cursors together have in temporary files; each asks it before its
            files grow and tells it when they shrink.
    """

    destination: str
    read_page: PageReader | None
    recovered_count: int
    memory_limit_bytes: int
    page_count: int
    temporary_directory: Path
    temporary_limit_bytes: int
    shared_memory: CursorMemory = field(default_factory=CursorMemory)
    temporary_space: TemporarySpace = field(default_factory=TemporarySpace)


class PendingCursor(Protocol):
    """Pending messages of one list, in sequence order.

    Every message is *offered* once, *taken* at most once, and then either *removed* for good by
    the broker's bookkeeping (acknowledged: no call here, the store knows) or *put back*. A
    consumer with a selector does not take what is next: its messages are *claimed* by sequence.
    """

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
        """True when producers must be slowed: the limit is reached and nothing can be spilled."""
        ...

    @property
    def needs_page(self) -> bool:
        """True when nothing can be taken now but ``page_in`` would bring something."""
        ...

    def offer(self, messages: Sequence[StoredMessage]) -> Sequence[StoredMessage]:
        """New messages at the end, sequences above all before. Never fails, never waits.

        Returns: messages that had to be dropped because no room is left even in the spool and
            the list is not stored; () almost always. A stored message is never dropped.
        """
        ...

    def take(self, limit: int, bytes_max: int) -> Sequence[StoredMessage]:
        """Take the first messages, at most *limit* and about *bytes_max* of bodies.

        At least one message is returned when one is in memory and *limit* is 1 or more; () means
        that nothing is in memory (see ``needs_page``).
        """
        ...

    async def page_in(self) -> None:
        """Bring messages into memory from store or spool. Called never twice at a time.

        Raises: StoreError. Cancellation: safe.
        """
        ...

    def put_back(self, messages: Sequence[StoredMessage]) -> None:
        """Taken or claimed messages that were not acknowledged return to their place in the order."""
        ...

    def claim(self, sequences: Sequence[int]) -> Sequence[int]:
        """Take messages out of order, wherever they are; all of them have been offered.

        A claimed message is taken: ``take`` does not return it, also when ``page_in`` comes to
        read it, until it is put back. For each one either ``put_back`` or, when it has left the
        list, ``remove`` is called in the end, so a cursor may remember what is claimed.

        Returns: those of *sequences* that were untaken, ascending; the others are left alone.
        """
        ...

    def remove(self, sequences: Sequence[int]) -> int:
        """Untaken or claimed messages left the list otherwise (purge, expiry).

        The store has removed them already; a cursor that reads pages simply will not see them.

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
        """True when it reads from the store, so it cannot serve an unstored subscription."""
        ...

    def create(self, context: CursorContext) -> PendingCursor:
        """Build the cursor of one list."""
        ...
