"""The file cursor: memory up to the limit, then a temporary file.

For consumers that fall behind now and then while the message store is slow: the backlog is read
from a local file instead of the store (AMQ message store, "File-based cursors"). The pending list
has three parts, in this order: memory, spool, and what is only in the store. The last one holds
what was pending before the start and what the spool has no room for. An unstored list has no such
part: there the oldest messages are dropped when the spool is full.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, final

from tidegate.spi import (
    CursorContext,
    CursorFeed,
    FeedReason,
    PendingCursor,
    StoredMessage,
    StoreIOError,
)
from tidegate_cursors._budget import Budgets, MemoryBudget, Share
from tidegate_cursors._ordered_memory import OrderedMemory
from tidegate_cursors._spool import READ_BYTES_MAX, Spool
from tidegate_cursors._spool_file import SpoolThreads
from tidegate_cursors._stored_tail import StoredTail

_log = logging.getLogger("tidegate.cursor.file")

_NOTHING: Final[Sequence[StoredMessage]] = ()

#: The part of its memory that may wait to be written to the spool.
_BUFFER_PART: Final = 4


@final
class FileCursor:
    """A :class:`tidegate.spi.PendingCursor`; all calls on the event loop."""

    __slots__ = (
        "_destination",
        "_has_room",
        "_memory",
        "_memory_position",
        "_page_count",
        "_share",
        "_spool",
        "_tail",
        "feed",
    )

    def __init__(
        self,
        context: CursorContext,
        budget: MemoryBudget | None = None,
        threads: SpoolThreads | None = None,
    ) -> None:
        self._share = Share(context, budget)
        self._destination = context.destination
        self._page_count = max(1, context.page_count)
        self._memory = OrderedMemory()
        self._memory_position = 0  # highest sequence that has been in memory
        self._spool = Spool(
            context.temporary_directory,
            context.temporary_limit_bytes,
            context.destination,
            buffer_bytes=context.memory_limit_bytes // _BUFFER_PART,
            space=context.temporary_space,
            changed=self._written,
            threads=threads,
        )
        self._has_room = context.has_room
        self._tail = StoredTail(context.read_page, context.recovered_count)
        self.feed: CursorFeed = context.feed
        if self._tail.count:
            self.feed.start_paging()

    @property
    def size(self) -> int:
        """Messages that are pending and not taken: in memory, spooled, or only in the store."""
        return len(self._memory.messages) + self._spool.count + self._tail.count

    @property
    def memory_bytes(self) -> int:
        """Memory held now, with the spool's write buffer."""
        return self._memory.memory_bytes + self._spool.buffered_bytes

    @property
    def is_full(self) -> bool:
        """True while the spool fills faster than the disk can write.

        Otherwise what does not fit is spooled, left in the store, or replaces the oldest.
        """
        spool = self._spool
        if not spool.count or not spool.is_writing:
            return False
        allowed = self._share.allowed
        return spool.buffered_bytes > allowed // _BUFFER_PART and self.memory_bytes > allowed

    @property
    def needs_page(self) -> bool:
        """True when memory is empty and spool or store have more."""
        return not self._memory.messages and (self._spool.count > 0 or self._tail.count > 0)

    def offer(self, messages: Sequence[StoredMessage]) -> Sequence[StoredMessage]:
        """Take new messages into memory while there is room and nothing waits behind it."""
        tail = self._tail
        # While a page is being read from the store, memory is reserved for that page.
        if not tail.count and not tail.is_reading and not self._spool.count:
            share, memory, feed = self._share, self._memory, self.feed
            before = memory.body_bytes
            kept = memory.append_within(messages, share.allowed, share.limit_count)
            if kept:
                feed.direct_count += kept
                feed.direct_bytes += memory.body_bytes - before
                tail.position = self._memory_position = messages[kept - 1].sequence
                if kept == len(messages):
                    self._account()
                    return _NOTHING
                messages = messages[kept:]
        dropped = self._offer_behind(messages)
        self._account()
        return dropped

    def _offer_behind(self, messages: Sequence[StoredMessage]) -> Sequence[StoredMessage]:
        tail = self._tail
        if tail.count or tail.is_reading or (tail.is_stored and tail.has_claimed):
            # A message claimed from the tail may come back, and the spool has no place for it.
            # A page being read may also hold these messages.
            tail.add(len(messages))
            return _NOTHING
        kept = self._spool.append(messages, self._share.allowed // _BUFFER_PART)
        if kept:
            tail.position = self._spool.last
        if kept == len(messages):
            return _NOTHING
        if tail.is_stored:
            tail.add(len(messages) - kept)
            return _NOTHING
        return self._replace_oldest(messages[kept:])

    def _replace_oldest(self, messages: Sequence[StoredMessage]) -> Sequence[StoredMessage]:
        """Make room at the end by dropping as much at the beginning of the list.

        The oldest are in memory but the spool needs the room, so the first spooled messages move
        into memory and the first in memory are dropped.
        """
        spool = self._spool
        dropped: list[StoredMessage] = []
        while messages:
            part = self._share.allowed // _BUFFER_PART
            kept = spool.append(messages, part, even_behind=True)
            if not kept and not self._read_oldest():
                kept = 1  # larger than the spool's limit, or nothing can be written
                self._memory.append(messages[:1])
            messages = messages[kept:]
            dropped += self._drop_above()
        return dropped

    def _read_oldest(self) -> bool:
        """Move the first spooled messages into memory. Returns: False when there are none."""
        if not self._spool.count:
            return False
        try:
            found = self._spool.read_now(self._page_count, READ_BYTES_MAX)
            self._append_page(self._tail.counted(found))
        except StoreIOError as error:
            self._abandon_spool(error)
        return True

    def _drop_above(self) -> list[StoredMessage]:
        """Drop the oldest until memory, with what is not yet written, is within its limit."""
        memory, spool, share = self._memory, self._spool, self._share
        dropped: list[StoredMessage] = []
        while True:
            is_above = self.memory_bytes > share.allowed + spool.behind_max
            if len(memory) > 1 and (is_above or share.is_above(memory)):
                dropped += memory.take(1, 0)
            elif not is_above or not spool.count or not self._read_oldest():
                return dropped

    def take(self, limit: int, bytes_max: int) -> Sequence[StoredMessage]:
        """Take the first messages in memory."""
        taken = self._memory.take(limit, bytes_max)
        if taken:
            self._account()
        return taken

    async def page_in(self) -> None:
        """Read from the spool, or from the store when the spool is empty; a page at a time.

        Raises: StoreError; StoreIOError when the spool cannot be read and the list is not stored
            (what was spooled is lost then). Cancellation: safe.
        """
        try:
            await self._page_in()
        finally:
            self._account()

    async def _page_in(self) -> None:
        memory = self._memory
        spool = self._spool
        while True:
            if memory.messages and not self._share.has_room(memory):
                return
            if not spool.count:
                page = await self._share.page(self._tail.read, memory)
                break
            try:
                page = await spool.read(*self._share.page_bounds(memory))
            except StoreIOError as error:
                if not self._abandon_spool(error):
                    raise
                continue
            if page:
                page = self._tail.counted(page)
                break
        if page:
            self._memory_position = max(self._memory_position, page[-1].sequence)
            self._append_page(page)

    def _append_page(self, page: Sequence[StoredMessage]) -> None:
        self.feed.paged(len(page), self._memory.append(page))

    def _abandon_spool(self, error: StoreIOError) -> bool:
        """The spool cannot be read: a stored list is read from the store instead.

        Returns: False when the list is not stored, so that the spooled messages are lost.
        """
        count = self._spool.count
        self._spool.clear()
        _log.error(
            "spool abandoned destination=%s messages=%d stored=%s error=%s",
            self._destination,
            count,
            self._tail.is_stored,
            error,
        )
        if not self._tail.is_stored:
            return False
        self._tail.position = self._memory_position
        self._tail.add(count)
        return True

    def claim(self, sequences: Sequence[int]) -> Sequence[int]:
        """Take these messages: in memory, spooled or only in the store. Returns the untaken."""
        wanted = set(sequences)
        found = self._memory.claim(wanted)
        spooled = self._spool.claim(wanted - found)
        self._tail.remember_claimed(spooled)  # the store has them, too, should the spool fail
        behind = self._tail.claim(wanted - found - spooled)
        self._account()
        return sorted(found | spooled | behind)

    def put_back(self, messages: Sequence[StoredMessage]) -> None:
        """Taken messages return to their place: in memory, or where they were claimed."""
        tail = self._tail
        spool = self._spool
        if tail.has_claimed:
            others: list[StoredMessage] = []
            for message in messages:
                if spool.put_back(message.sequence):
                    tail.unclaim(message)
                    tail.remember_returned(message)
                else:
                    others.append(message)
            # An unstored list has nothing behind the spool: what was read past goes to memory.
            messages = tail.put_back(others, waits=tail.is_stored and spool.count > 0)
            for message in messages:
                self._memory_position = max(self._memory_position, message.sequence)
        self._memory.put_back(messages)
        self._account()

    def remove(self, sequences: Sequence[int]) -> int:
        """Forget untaken messages. Returns how many were known."""
        gone = set(sequences)
        known = self._memory.remove(gone) + self._spool.remove(gone) + self._tail.remove(gone)
        self._account()
        return known

    def _account(self) -> None:
        self._share.tell(self.memory_bytes)
        feed = self.feed
        if feed.is_paging is not (self._spool.count > 0 or self._tail.count > 0):
            feed.turn(FeedReason.DRAINED if feed.is_paging else self._share.reason)

    def _written(self) -> None:
        """The spool has written, and so freed memory."""
        self._account()
        self.feed.changed()
        if not self.is_full:
            self._has_room()

    async def close(self) -> None:
        """Free memory and spool. Idempotent."""
        self._memory.clear()
        self._tail.forget()
        try:
            await self._spool.close()
        finally:
            self._share.end()
            self.feed.end()


@final
class FileCursorFactory:
    """Makes file cursors, for stored and unstored lists; see :class:`CursorMemory`."""

    def __init__(self) -> None:
        self._budgets = Budgets()
        self._threads = SpoolThreads()

    @property
    def needs_store(self) -> bool:
        """False: an unstored list lives in memory and spool alone."""
        return False

    @property
    def spools(self) -> bool:
        """True: what does not fit into memory is in a temporary file."""
        return True

    def create(self, context: CursorContext) -> PendingCursor:
        """Build the cursor of one list; the file is made when the first message is spooled."""
        return FileCursor(context, self._budgets.of(context.shared_memory), self._threads)
