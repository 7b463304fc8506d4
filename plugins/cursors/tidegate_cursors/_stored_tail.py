"""The end of a pending list that is only in the message store, and how it is read.

The gateway goes on while a page is read: messages are offered and removed during the read, and the
page may hold messages that are durable but not offered yet. So the tail counts what it knows to be
in the store behind its position, and takes no more than that from a page. Sequences of a list are
offered in increasing order, so the first *count* messages behind the position are exactly those.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.spi import PageReader, StoredMessage


class StoredTail:
    """Messages of one list behind *position* that are only in the store.

    Attributes:
        count: how many there are: offered or recovered, and not removed.
        position: highest sequence of the list that was ever in memory or spool.
    """

    __slots__ = (
        "_added",
        "_claimed",
        "_read_page",
        "_removed",
        "_returned",
        "count",
        "position",
    )

    def __init__(self, read_page: PageReader | None, recovered_count: int) -> None:
        self._read_page = read_page
        self._removed: set[int] | None = None  # removed while a page is being read
        self._added = 0  # added while a page is being read
        self._claimed: set[int] = set()  # taken, though pages still return them
        self._returned: dict[int, int] = {}  # delivery counts of claimed ones that came back
        self.count = recovered_count if read_page is not None else 0
        self.position = 0

    @property
    def is_stored(self) -> bool:
        """True when the list is in the store at all."""
        return self._read_page is not None

    @property
    def is_reading(self) -> bool:
        """A page is being read."""
        return self._removed is not None

    def add(self, count: int) -> None:
        """*count* more messages at the end are only in the store."""
        self.count += count
        self._added += count

    def claim(self, sequences: set[int]) -> set[int]:
        """Take messages out of order. Returns those that were counted here."""
        if not self.count:
            return set()
        position = self.position
        found = {sequence for sequence in sequences if sequence > position} - self._claimed
        self.count -= len(found)
        self.remember_claimed(found)
        return found

    def remember_claimed(self, sequences: set[int]) -> None:
        """Leave these out of every page until they come back."""
        self._claimed |= sequences
        for sequence in sequences:
            self._returned.pop(sequence, None)

    @property
    def has_claimed(self) -> bool:
        """True while something that was claimed is out."""
        return bool(self._claimed)

    def put_back(
        self, messages: Sequence[StoredMessage], *, waits: bool = False
    ) -> Sequence[StoredMessage]:
        """Taken messages come back: those that a page will bring again are counted again.

        Args: waits: something waits between memory and this tail.
        Returns: the others, which belong in memory.
        """
        if not self._claimed:
            return messages
        others: list[StoredMessage] = []
        for message in messages:
            if self.unclaim(message) and message.sequence > self.position:
                if self.count or waits:
                    self.add(1)
                    self.remember_returned(message)
                    continue
                self.position = message.sequence  # nothing before it is left to read
            others.append(message)
        return others

    def unclaim(self, message: StoredMessage) -> bool:
        """The message is no longer claimed. Returns whether it was."""
        if message.sequence not in self._claimed:
            return False
        self._claimed.discard(message.sequence)
        return True

    def remember_returned(self, message: StoredMessage) -> None:
        """Keep its delivery count: a page may be older than the delivery that just failed."""
        self._returned[message.sequence] = message.delivery_count

    def counted(self, messages: list[StoredMessage]) -> list[StoredMessage]:
        """*messages* of a page with the delivery counts that they came back with."""
        returned = self._returned
        if not returned:
            return messages
        return [
            StoredMessage(
                message.sequence, message.message, message.size, returned.pop(message.sequence)
            )
            if message.sequence in returned
            else message
            for message in messages
        ]

    def remove(self, sequences: set[int]) -> int:
        """Messages left the list. Returns how many of them were counted here."""
        claimed = sequences & self._claimed
        if claimed:
            self._claimed -= claimed
            if self._removed is not None:
                self._removed |= claimed
            sequences = sequences - claimed
        for sequence in sequences & self._returned.keys():
            del self._returned[sequence]
        if not self.count:
            return 0
        position = self.position
        behind = [sequence for sequence in sequences if sequence > position]
        known = min(len(behind), self.count)
        self.count -= known
        if self._removed is not None:
            self._removed.update(behind)
        return known

    async def read(self, limit: int, bytes_max: int) -> list[StoredMessage]:
        """Read the next page: at most *limit* messages, about *bytes_max*, at least one message.

        What is returned is no longer counted here. An empty list means that nothing known is left
        or that what was read has been removed meanwhile.

        Raises: StoreError. Cancellation: safe, nothing changes.
        """
        if self._read_page is None or not self.count:
            return []
        while True:
            removed: set[int] = set()
            self._removed = removed
            self._added = 0
            before = self.position
            try:
                page = await self._read_page(before, limit, bytes_max)
            finally:
                self._removed = None
            known = self._known(page, removed)
            if known or not self.count or self.position == before:
                return self.counted(known)
            # The whole page is claimed; what is counted lies further behind.

    def _known(self, page: Sequence[StoredMessage], removed: set[int]) -> list[StoredMessage]:
        if not page:
            # The store has nothing, so anything still counted was added during the read. A count
            # that is too high must not make the broker ask for pages for ever.
            self.count = min(self.count, self._added)
            return []
        position = self.position  # moves on when everything counted was removed
        if self._claimed:
            return self._known_beside_claimed(page, removed)
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

    def _known_beside_claimed(
        self, page: Sequence[StoredMessage], removed: set[int]
    ) -> list[StoredMessage]:
        known: list[StoredMessage] = []
        position = self.position
        for message in page:
            sequence = message.sequence
            if sequence <= position:
                continue
            if sequence in self._claimed:
                self.position = sequence  # should it come back, it comes back into memory
            elif sequence not in removed:
                if not self.count:
                    break
                self.count -= 1
                self.position = sequence
                known.append(message)
        return known

    def forget(self) -> None:
        """Count nothing any more; the page being read, if any, brings nothing."""
        self.count = 0
        self._claimed.clear()
        self._returned.clear()
