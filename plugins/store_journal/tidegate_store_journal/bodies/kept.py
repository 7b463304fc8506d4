"""Caches for large bodies: files to reuse, and bytes that may be read at once.

*Files* that are no longer needed are overwritten: a new one costs the file system blocks, a
directory entry and page cache; an existing one costs only a rename.

*Bodies* of moderate size stay in memory for a while after they are written: a queue whose consumer
keeps up delivers them a few milliseconds later, which then costs neither disk nor thread.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from typing import Final

#: Bytes of all files kept; a file larger than a quarter of this is not kept.
FREE_BYTES_MAX: Final = 128 << 20
#: Bytes of all bodies kept, including those still being written.
RECENT_BYTES_MAX: Final = 32 << 20
#: A longer body is never kept, because it would be whole in memory.
BODY_BYTES_MAX: Final = 1 << 20


class FreeFiles:
    """Names of files by their length. Thread-safe: taken on the loop and given up in threads.

    Attributes: bytes: of all of them.
    """

    def __init__(self, bytes_max: int = FREE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._files: list[tuple[int, str]] = []
        self._lock = threading.Lock()
        self._is_idle = True
        self.bytes = 0

    def give(self, name: str, length: int) -> bool:
        """Keep a file of *length* bytes; False when there is no room for it."""
        with self._lock:
            self._is_idle = False
            if 4 * length > self._bytes_max or self.bytes + length > self._bytes_max:
                return False
            insort(self._files, (length, name))
            self.bytes += length
            return True

    def take(self, size: int) -> tuple[str, int] | None:
        """A file for a body of *size* bytes: name and length, at most half of it unused."""
        with self._lock:
            self._is_idle = False
            at = bisect_left(self._files, (size, ""))
            if at == len(self._files) or self._files[at][0] > 2 * size:
                return None
            length, name = self._files.pop(at)
            self.bytes -= length
            return name, length

    def give_up(self) -> list[str]:
        """Return all names, and keep none."""
        with self._lock:
            names = [name for _, name in self._files]
            self._files.clear()
            self.bytes = 0
            return names

    def give_up_if_idle(self) -> list[str]:
        """As :meth:`give_up` if nothing was given or taken since the last call, else nothing."""
        is_idle, self._is_idle = self._is_idle, True
        return self.give_up() if is_idle else []


class RecentBodies:
    """Pieces of bodies by id; the oldest make room for new ones. For the event loop.

    Attributes: bytes: of all bodies kept or reserved for.
    """

    def __init__(
        self, bytes_max: int = RECENT_BYTES_MAX, body_bytes_max: int = BODY_BYTES_MAX
    ) -> None:
        self._bytes_max = bytes_max
        self._body_bytes_max = body_bytes_max
        self._bodies: dict[str, tuple[bytes, ...]] = {}
        self._sizes: dict[str, int] = {}
        self._is_idle = True
        self.bytes = 0

    def reserve(self, body_id: str, size: int) -> bool:
        """Reserve space for a body about to be written; False: it cannot be kept."""
        self._is_idle = False
        if size > self._body_bytes_max:
            return False
        while self.bytes + size > self._bytes_max and self._bodies:
            self.drop(next(iter(self._bodies)))
        if self.bytes + size > self._bytes_max:
            return False  # everything is reserved for others being written
        self._sizes[body_id] = size
        self.bytes += size
        return True

    def keep(self, body_id: str, pieces: tuple[bytes, ...]) -> None:
        """Keep a complete body in its reserved place."""
        if body_id in self._sizes:
            self._bodies[body_id] = pieces

    def get(self, body_id: str) -> tuple[bytes, ...] | None:
        """The pieces of a body, front to back; None: read the file."""
        return self._bodies.get(body_id)

    def drop(self, body_id: str) -> None:
        """Forget a body, or its place. Idempotent."""
        self._bodies.pop(body_id, None)
        self.bytes -= self._sizes.pop(body_id, 0)

    def drop_if_idle(self) -> None:
        """Forget all complete bodies when nothing was written since the last call."""
        is_idle, self._is_idle = self._is_idle, True
        if is_idle:
            for body_id in list(self._bodies):
                self.drop(body_id)
