"""Files of large bodies that nobody needs any more, kept for a moment to be written over.

A new file costs the file system its blocks, its place in the directory and room in the page cache;
one that is there costs a new name. Thread-safe: files are taken on the loop and given up in threads.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from typing import Final

#: Bytes of all files that are kept; a larger file than a quarter of it is not kept.
FREE_BYTES_MAX: Final = 128 << 20


class FreeFiles:
    """Names of files by their length.

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
