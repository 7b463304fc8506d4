"""How many bytes may be on the way inwards: whoever reads from the other broker waits here."""

from __future__ import annotations

import threading


class Budget:
    """Bytes that were read and are not confirmed. One message may exceed it, when it is alone."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._is_open = True
        self._changed = threading.Condition()

    def open(self) -> None:
        """Begin again with nothing."""
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
        """They are confirmed."""
        with self._changed:
            self._used -= size
            self._changed.notify_all()

    def close(self) -> None:
        """Let go whoever waits."""
        with self._changed:
            self._is_open = False
            self._changed.notify_all()
