"""Bodies of moderate size that were just written, kept in memory for who reads them at once.

A queue whose consumer keeps up hands a body out a few milliseconds after it came: from here that
costs neither the disk nor a thread. Used on the event loop only.
"""

from __future__ import annotations

from typing import Final

#: Bytes of all bodies that are kept, those still being written included.
RECENT_BYTES_MAX: Final = 32 << 20
#: A longer body is never kept: it would be whole in memory.
BODY_BYTES_MAX: Final = 1 << 20


class RecentBodies:
    """Pieces of bodies by id; the oldest make room for new ones.

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
