"""The cursor of a list that never holds anything."""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.spi import PendingCursor, StoredMessage


class NoCursor(PendingCursor):
    """See the module."""

    @property
    def size(self) -> int:
        return 0

    @property
    def memory_bytes(self) -> int:
        return 0

    @property
    def is_full(self) -> bool:
        return False

    @property
    def needs_page(self) -> bool:
        return False

    def offer(self, messages: Sequence[StoredMessage]) -> Sequence[StoredMessage]:
        return messages

    def take(self, limit: int, bytes_max: int) -> Sequence[StoredMessage]:
        return ()

    async def page_in(self) -> None:
        pass

    def put_back(self, messages: Sequence[StoredMessage]) -> None:
        pass

    def claim(self, sequences: Sequence[int]) -> Sequence[int]:
        return ()

    def remove(self, sequences: Sequence[int]) -> int:
        return 0

    async def close(self) -> None:
        pass
