"""The journal without files: ``persistent = false``, bounded by ``memory_limit``.

The same engine runs on it, so the same things happen at the limit as on a full disk: new messages
are refused, acknowledgements still go through, and what they free makes room again.
"""

from __future__ import annotations

import errno

from tidegate.spi import format_size
from tidegate_store_journal.log.storage import MemoryFile, MemoryStorage


class LimitedMemoryFile(MemoryFile):
    """A file of :class:`LimitedMemoryStorage`; making it longer than there is room for fails."""

    __slots__ = ("_storage",)

    def __init__(self, storage: LimitedMemoryStorage) -> None:
        super().__init__()
        self._storage = storage

    def preallocate(self, length: int) -> None:
        """See :class:`File`. Nothing is taken yet, but promised."""
        if length - self.length > self._storage.free_bytes():
            raise OSError(
                errno.ENOSPC,
                f"persistent = false, and memory_limit ({self._storage.limit}) is reached",
            )
        super().preallocate(length)


class LimitedMemoryStorage(MemoryStorage):
    """Files in memory whose lengths together stay below a limit.

    Attributes: limit: as in the configuration, for messages.
    """

    def __init__(self, limit_bytes: int) -> None:
        super().__init__()
        self._limit_bytes = limit_bytes
        self.limit = format_size(limit_bytes)

    def open(self, name: str, *, create: bool = False) -> MemoryFile:
        """See :class:`Storage`."""
        if create:
            self._files[name] = LimitedMemoryFile(self)
        return super().open(name)

    def describe(self, name: str) -> str:
        """See :class:`Storage`."""
        return f"memory (memory_limit = {self.limit}) {name}".rstrip()

    def free_bytes(self) -> int:
        """See :class:`Storage`. The whole length of a file counts, written or not."""
        return max(0, self._limit_bytes - sum(file.length for file in [*self._files.values()]))
