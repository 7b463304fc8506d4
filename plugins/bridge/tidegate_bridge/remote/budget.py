"""Bounds incoming bytes in flight: readers of the other broker wait here."""

from __future__ import annotations

import threading


class Budget:
    """Bytes read and not yet confirmed. A single message may exceed the limit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._is_open = True
        self._changed = threading.Condition()

    def open(self) -> None:
        """Start again from zero."""
        with self._changed:
            self._used, self._is_open = 0, True

    def take(self, size: int) -> bool:
        """Wait until there is room for *size*. Returns: False when it was closed."""
        with self._changed:
            while self._is_open and self._used and self._used + size > self._limit:
                self._changed.wait()
            self._used += size
            return self._is_open

    def give_back(self, size: int) -> None:
        """*size* bytes are confirmed."""
        with self._changed:
            self._used -= size
            self._changed.notify_all()

    def close(self) -> None:
        """Release all waiters."""
        with self._changed:
            self._is_open = False
            self._changed.notify_all()
