"""The store cursor: hybrid of direct dispatch and paging from the message store (the default).

While consumers keep up, an offered message goes to memory and from there to a consumer; the store
is written but never read. When memory reaches the limit, messages stay in the store only and are
paged in as memory drains; once the last of them is in memory, offers go there directly again
(AMQ message store, "Store-based cursors").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

from tidegate.spi import CursorContext, PendingCursor, StoredMessage
from tidegate_cursors._ordered_memory import OrderedMemory
from tidegate_cursors._stored_tail import StoredTail

_NOTHING: Final[Sequence[StoredMessage]] = ()


@final
class StoreCursor:
    """A :class:`tidegate.spi.PendingCursor`; all calls on the event loop."""

    __slots__ = ("_limit_bytes", "_memory", "_tail")

    def __init__(self, context: CursorContext) -> None:
        self._limit_bytes = context.memory_limit_bytes
        self._memory = OrderedMemory()
        self._tail = StoredTail(context.read_page, context.recovered_count, context.page_count)

    @property
    def size(self) -> int:
        """Messages that are pending and not taken, in memory or only in the store."""
        return len(self._memory.messages) + self._tail.count

    @property
    def memory_bytes(self) -> int:
        """Memory held now."""
        return self._memory.memory_bytes

    @property
    def is_full(self) -> bool:
        """Never: what does not fit stays in the store."""
        return False

    @property
    def needs_page(self) -> bool:
        """True when memory is empty and the store has more."""
        return self._tail.count > 0 and not self._memory.messages

    def offer(self, messages: Sequence[StoredMessage]) -> Sequence[StoredMessage]:
        """Take new messages into memory while there is room and nothing waits in the store."""
        tail = self._tail
        if tail.count:
            tail.add(len(messages))
            return _NOTHING
        kept = self._memory.append_within(messages, self._limit_bytes)
        if kept:
            tail.position = messages[kept - 1].sequence
        if kept != len(messages):
            tail.add(len(messages) - kept)
        return _NOTHING

    def take(self, limit: int, bytes_max: int) -> Sequence[StoredMessage]:
        """Take the first messages in memory."""
        return self._memory.take(limit, bytes_max)

    async def page_in(self) -> None:
        """Read the next page from the store, as far as there is room in memory.

        Raises: StoreError. Cancellation: safe.
        """
        memory = self._memory
        room_bytes = self._limit_bytes - memory.memory_bytes
        if room_bytes <= 0 and memory.messages:
            return
        page = await self._tail.read(room_bytes)
        if page:
            memory.append(page)

    def claim(self, sequences: Sequence[int]) -> Sequence[int]:
        """Take these messages, in memory or only in the store. Returns the untaken ones."""
        wanted = set(sequences)
        found = self._memory.claim(wanted)
        return sorted(found | self._tail.claim(wanted - found))

    def put_back(self, messages: Sequence[StoredMessage]) -> None:
        """Taken messages return to their place: in memory, or where they were claimed."""
        self._memory.put_back(self._tail.put_back(messages))

    def remove(self, sequences: Sequence[int]) -> int:
        """Forget untaken messages. Returns how many were known."""
        gone = set(sequences)
        return self._memory.remove(gone) + self._tail.remove(gone)

    async def close(self) -> None:
        """Free the memory. Idempotent."""
        self._memory.clear()
        self._tail.forget()


@final
class StoreCursorFactory:
    """Makes store cursors; they cannot serve a list that is not in the store."""

    @property
    def needs_store(self) -> bool:
        """True: the store is where the messages wait."""
        return True

    def create(self, context: CursorContext) -> PendingCursor:
        """Build the cursor of one stored list.

        Raises: ValueError when the list is not stored (the host asks ``needs_store`` before).
        """
        if context.read_page is None:
            raise ValueError(f"{context.destination}: a store cursor needs a stored list")
        return StoreCursor(context)
