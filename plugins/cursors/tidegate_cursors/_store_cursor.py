"""The store cursor: hybrid of direct dispatch and paging from the message store (the default).

While consumers keep up, an offered message goes to memory and from there to a consumer; the store
is written but never read. When memory reaches the limit (of the list, or of all store cursors
together), new messages stay in the store and are paged in as memory drains. Once the last of them
is in memory, offers go there directly again (AMQ message store, "Store-based cursors").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

from tidegate.spi import CursorContext, CursorFeed, FeedReason, PendingCursor, StoredMessage
from tidegate_cursors._budget import Budgets, MemoryBudget, Share
from tidegate_cursors._ordered_memory import OrderedMemory
from tidegate_cursors._stored_tail import StoredTail

_NOTHING: Final[Sequence[StoredMessage]] = ()


@final
class StoreCursor:
    """A :class:`tidegate.spi.PendingCursor`; all calls on the event loop."""

    __slots__ = (
        "_memory",
        "_out_to",
        "_share",
        "_tail",
        "feed",
        "taken_at",
    )

    def __init__(self, context: CursorContext, budget: MemoryBudget | None = None) -> None:
        self.taken_at = 0  # see Holder
        self._share = Share(context, budget, self)
        self._out_to = 0  # nothing behind this sequence was ever taken out of memory
        self._memory = OrderedMemory()
        self._tail = StoredTail(context.read_page, context.recovered_count)
        self.feed: CursorFeed = context.feed
        if self._tail.count:
            self.feed.start_paging()

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
        if tail.count or tail.is_reading:  # during a read, memory is reserved for the page
            tail.add(len(messages))
            self._account()
            return _NOTHING
        share, memory, feed = self._share, self._memory, self.feed
        before = memory.body_bytes
        kept = memory.append_within(messages, share.allowed, share.limit_count)
        if kept:
            tail.position = messages[kept - 1].sequence
            feed.direct_count += kept
            feed.direct_bytes += memory.body_bytes - before
        if kept != len(messages):
            tail.add(len(messages) - kept)
        self._account()
        share.budget.make_room(self)
        return _NOTHING

    def take(self, limit: int, bytes_max: int) -> Sequence[StoredMessage]:
        """Take the first messages in memory."""
        taken = self._memory.take(limit, bytes_max)
        if taken:
            self._out_to = max(self._out_to, taken[-1].sequence)
            budget = self._share.budget
            self.taken_at = budget.clock = budget.clock + 1
            self._account()
        return taken

    async def page_in(self) -> None:
        """Read the next page from the store, as far as there is room in memory.

        Raises: StoreError. Cancellation: safe.
        """
        page = await self._share.page(self._tail.read, self._memory)
        if page:
            self.feed.paged(len(page), self._memory.append(page))
        self._account()
        self._share.budget.make_room(self)

    def claim(self, sequences: Sequence[int]) -> Sequence[int]:
        """Take these messages, in memory or only in the store. Returns the untaken ones."""
        wanted = set(sequences)
        found = self._memory.claim(wanted)
        if found:
            self._out_to = max(self._out_to, max(found))
        behind = self._tail.claim(wanted - found)
        self._account()
        return sorted(found | behind)

    def put_back(self, messages: Sequence[StoredMessage]) -> None:
        """Taken messages return to their place: in memory, or where they were claimed."""
        back = self._tail.put_back(messages)
        if back:
            self._memory.put_back(back)
            self._out_to = max(self._out_to, max([message.sequence for message in back]))
        self._account()

    def remove(self, sequences: Sequence[int]) -> int:
        """Forget untaken messages. Returns how many were known."""
        gone = set(sequences)
        removed = self._memory.remove(gone) + self._tail.remove(gone)
        self._account()
        return removed

    def let_go(self, floor_bytes: int) -> None:
        """See :class:`~tidegate_cursors._budget.Holder`.

        Drops only what was never taken: the store may not know yet that the rest was delivered,
        and a page from it must not bring what is in flight.
        """
        tail = self._tail
        if tail.is_reading:
            return  # the page being read starts from the current position
        dropped = self._memory.drop_behind(self._out_to, floor_bytes)
        if dropped:
            messages = self._memory.messages
            last = messages[-1].sequence if messages else 0
            tail.position = max(last, self._out_to)
            tail.add(dropped)
            self._account()
            self.feed.changed()

    def _account(self) -> None:
        self._share.tell(self._memory.memory_bytes)
        feed = self.feed
        if feed.is_paging is not (self._tail.count > 0):
            feed.turn(FeedReason.DRAINED if feed.is_paging else self._share.reason)

    async def close(self) -> None:
        """Free the memory. Idempotent."""
        self._memory.clear()
        self._tail.forget()
        self._share.end()
        self.feed.end()


@final
class StoreCursorFactory:
    """Makes store cursors; they cannot serve a list that is not in the store.

    All cursors of a factory share the memory that the first one's context allows.
    """

    def __init__(self) -> None:
        self._budgets = Budgets()

    @property
    def needs_store(self) -> bool:
        """True: the store is where the messages wait."""
        return True

    @property
    def spools(self) -> bool:
        """False: the store has what is not in memory."""
        return False

    def create(self, context: CursorContext) -> PendingCursor:
        """Build the cursor of one stored list.

        Raises: ValueError when the list is not stored (the host asks ``needs_store`` before).
        """
        if context.read_page is None:
            raise ValueError(f"{context.destination}: a store cursor needs a stored list")
        return StoreCursor(context, self._budgets.of(context.shared_memory))
