"""What is kept of large bodies for a moment, because it may be wanted at once: files, and bytes.

*Files* that nobody needs any more are written over: a new one costs the file system its blocks, its
place in the directory and room in the page cache; one that is there costs a new name.

*Bodies* of moderate size that were just written stay in memory: a queue whose consumer keeps up hands
a body out a few milliseconds after it came, and from here that costs neither the disk nor a thread.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from typing import Final

#: Bytes of all files that are kept; a larger file than a quarter of it is not kept.
FREE_BYTES_MAX: Final = 128 << 20
#: Bytes of all bodies that are kept, those still being written included.
RECENT_BYTES_MAX: Final = 32 << 20
#: A longer body is never kept: it would be whole in memory.
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
        """All names, which are not kept any more."""
        with self._lock:
            names = [name for _, name in self._files]
            self._files.clear()
            self.bytes = 0
            return names

    def give_up_if_idle(self) -> list[str]:
        """As :meth:`give_up` when nothing was given or asked for since the last call, else nothing."""
        is_idle, self._is_idle = self._is_idle, True
        return self.give_up() if is_idle else []


class RecentBodies:
    """Pieces of bodies by id; the oldest make room for new ones. For the event loop.

    Attributes: bytes: of all that is kept or has a place reserved.
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
        """A place for a body that is going to be written; False: it cannot be kept."""
        self._is_idle = False
        if size > self._body_bytes_max:
            return False
        while self.bytes + size > self._bytes_max and self._bodies:
            self.drop(next(iter(self._bodies)))
        if self.bytes + size > self._bytes_max:
            return False  # all of it is reserved for others that are being written
        self._sizes[body_id] = size
        self.bytes += size
        return True

    def keep(self, body_id: str, pieces: tuple[bytes, ...]) -> None:
        """A body that has a place is complete."""
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
