"""The vm cursor: every pending message is in memory, and producers are slowed at the limit.

The fastest cursor when consumers keep up. When they do not, ``is_full`` (its own limit, or that of
all vm cursors together) makes the broker throttle producers (AMQ message store, "VM cursors").
What was pending before the start is loaded from the store before new messages are handed out. A
backlog above the memory limit is loaded in parts, as memory drains: a gateway must be able to start
with a backlog that is larger than its memory.
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
class VmCursor:
    """A :class:`tidegate.spi.PendingCursor`; all calls on the event loop.

    Until the recovered messages are loaded, new ones wait in a second memory behind them.
    """

    __slots__ = (
        "_memory",
        "_offered_from",
        "_recovered",
        "_share",
        "_waiting",
        "feed",
    )

    def __init__(self, context: CursorContext, budget: MemoryBudget | None = None) -> None:
        self._share = Share(context, budget)
        self._memory = OrderedMemory()
        self._waiting = OrderedMemory()
        self._offered_from = 0  # the first message that had to wait for the recovered ones
        self._recovered = StoredTail(context.read_page, context.recovered_count)
        self.feed: CursorFeed = context.feed
        if self._recovered.count:
            self.feed.start_paging()

    @property
    def size(self) -> int:
        """Messages that are pending and not taken, including those not loaded yet."""
        return len(self._memory.messages) + len(self._waiting.messages) + self._recovered.count

    @property
    def memory_bytes(self) -> int:
        """Memory held now."""
        return self._memory.memory_bytes + self._waiting.memory_bytes

    @property
    def is_full(self) -> bool:
        """True at the memory limit, its own or the shared one: producers must wait."""
        if self._share.has_room(self._memory, self._waiting):
            return False
        self._share.wait()
        return True

    @property
    def needs_page(self) -> bool:
        """True when memory is empty and recovered messages are left to load."""
        return self._recovered.count > 0 and not self._memory.messages

    def offer(self, messages: Sequence[StoredMessage]) -> Sequence[StoredMessage]:
        """Keep new messages in memory, behind those that are still to be loaded."""
        if self._recovered.count:
            if not self._offered_from and messages:
                self._offered_from = messages[0].sequence
            memory = self._waiting
        else:
            memory = self._memory
        self.feed.direct_count += len(messages)
        self.feed.direct_bytes += memory.append(messages)
        self._account()
        return _NOTHING

    def take(self, limit: int, bytes_max: int) -> Sequence[StoredMessage]:
        """Take the first messages in memory."""
        taken = self._memory.take(limit, bytes_max)
        if taken:
            self._account()
        return taken

    async def page_in(self) -> None:
        """Load recovered messages, page by page, all of them or up to the memory limit.

        Raises: StoreError. Cancellation: safe; pages loaded before stay.
        """
        recovered = self._recovered
        memory = self._memory
        while recovered.count:
            page = await self._share.page(recovered.read, memory, self._waiting)
            if not page:
                break
            self.feed.paged(len(page), memory.append(page))
            self._account()
        self._release_waiting()
        self._account()

    def claim(self, sequences: Sequence[int]) -> Sequence[int]:
        """Take these messages wherever they are. Returns the untaken ones."""
        wanted = set(sequences)
        found = self._memory.claim(wanted)
        if self._recovered.count:
            wanted -= found
            first = self._offered_from
            if first:
                found |= self._waiting.claim({item for item in wanted if item >= first})
                wanted = {item for item in wanted if item < first}
            found |= self._recovered.claim(wanted)
            self._release_waiting()
        self._account()
        return sorted(found)

    def put_back(self, messages: Sequence[StoredMessage]) -> None:
        """Taken messages return to their place."""
        recovered = self._recovered
        if recovered.count and self._offered_from:  # offered messages stay behind the loaded ones
            first = self._offered_from
            self._waiting.put_back([m for m in messages if m.sequence >= first])
            messages = [m for m in messages if m.sequence < first]
        self._memory.put_back(recovered.put_back(messages))
        self._account()

    def remove(self, sequences: Sequence[int]) -> int:
        """Forget untaken messages. Returns how many were known."""
        gone = set(sequences)
        known = self._memory.remove(gone)
        if self._recovered.count:
            first = self._offered_from
            if first:
                known += self._waiting.remove({sequence for sequence in gone if sequence >= first})
                gone = {sequence for sequence in gone if sequence < first}
            known += self._recovered.remove(gone)
            self._release_waiting()
        self._account()
        return known

    def _release_waiting(self) -> None:
        if self._waiting.messages and not self._recovered.count:
            self._memory.append(self._waiting.in_order())
            self._waiting.clear()

    def _account(self) -> None:
        self._share.tell(self._memory.memory_bytes + self._waiting.memory_bytes)
        if self.feed.is_paging and not self._recovered.count:
            self.feed.turn(FeedReason.DRAINED)

    async def close(self) -> None:
        """Free the memory. Idempotent."""
        self._memory.clear()
        self._waiting.clear()
        self._recovered.forget()
        self._share.end()
        self.feed.end()


@final
class VmCursorFactory:
    """Makes vm cursors, for stored and unstored lists; see :class:`CursorMemory`."""

    def __init__(self) -> None:
        self._budgets = Budgets()

    @property
    def needs_store(self) -> bool:
        """False: the store is read only for what was pending before the start."""
        return False

    @property
    def spools(self) -> bool:
        """False: producers wait instead."""
        return False

    def create(self, context: CursorContext) -> PendingCursor:
        """Build the cursor of one list."""
        return VmCursor(context, self._budgets.of(context.shared_memory))
