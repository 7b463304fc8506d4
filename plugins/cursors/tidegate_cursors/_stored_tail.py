"""The end of a pending list that is only in the message store, and reading it forwards.

A page is read while the gateway goes on: messages are offered and removed during the read, and the
page may hold messages that are durable but were not offered yet. The tail therefore counts what is
known to be in the store behind its position, and takes from a page only what it has counted:
sequences of a list are offered in increasing order, so the first *count* messages behind the
position are exactly the known ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidegate.spi import MESSAGE_OVERHEAD_BYTES, PageReader, StoredMessage

#: Memory that a page reserves for each message before its size is known: the overhead and a body
#: of about the same size. A page of larger bodies is cut short by its byte limit.
_RESERVED_BYTES: Final = 2 * MESSAGE_OVERHEAD_BYTES


def page_bounds(room_bytes: int, page_count: int) -> tuple[int, int]:
    """Messages and bytes of bodies to read so that they fit into *room_bytes* of memory."""
    limit = max(1, min(page_count, room_bytes // _RESERVED_BYTES))
    return limit, max(1, room_bytes - limit * MESSAGE_OVERHEAD_BYTES)


class StoredTail:
    """Messages of one list behind *position* that are only in the store.

    Attributes:
        count: how many there are; offered or recovered, not removed.
        position: highest sequence of the list that has been in memory or spool.
    """

    __slots__ = ("_added", "_page_count", "_read_page", "_removed", "count", "position")

    def __init__(self, read_page: PageReader | None, recovered_count: int, page_count: int) -> None:
        self._read_page = read_page
        self._page_count = max(1, page_count)
        self._removed: set[int] | None = None  # while a page is being read: removed meanwhile
        self._added = 0  # … and added meanwhile
        self.count = recovered_count if read_page is not None else 0
        self.position = 0

    @property
    def is_stored(self) -> bool:
        """True when the list is in the store at all."""
        return self._read_page is not None

    def add(self, count: int) -> None:
        """*count* more messages at the end are only in the store."""
        self.count += count
        self._added += count

    def remove(self, sequences: set[int]) -> int:
        """Messages left the list. Returns how many of them were counted here."""
        if not self.count:
            return 0
        position = self.position
        behind = [sequence for sequence in sequences if sequence > position]
        known = min(len(behind), self.count)
        self.count -= known
        if self._removed is not None:
            self._removed.update(behind)
        return known

    async def read(self, room_bytes: int) -> list[StoredMessage]:
        """Read the next page, as much as fits into *room_bytes* of memory, at least one message.

        What is returned is no longer counted here. An empty list means that nothing known is left
        or that what was read has been removed meanwhile.

        Raises: StoreError. Cancellation: safe, nothing changes.
        """
        if self._read_page is None or not self.count:
            return []
        limit, bytes_max = page_bounds(room_bytes, self._page_count)
        removed: set[int] = set()
        self._removed = removed
        self._added = 0
        try:
            page = await self._read_page(self.position, limit, bytes_max)
        finally:
            self._removed = None
        return self._known(page, removed)

    def _known(self, page: Sequence[StoredMessage], removed: set[int]) -> list[StoredMessage]:
        if not page:
            # Nothing is there, so whatever is still counted was added during the read. A count
            # that is too high must not make the broker ask for pages for ever.
            self.count = min(self.count, self._added)
            return []
        position = self.position  # may have moved on, when all that was known was removed
        known = [
            message
            for message in page
            if message.sequence > position and message.sequence not in removed
        ]
        del known[self.count :]
        if known:
            self.position = known[-1].sequence
            self.count -= len(known)
        return known

    def forget(self) -> None:
        """Count nothing any more; the page being read, if any, brings nothing."""
        self.count = 0
