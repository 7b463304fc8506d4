"""The journal without files: ``persistent = false``, bounded by ``memory_limit``.

The same engine runs on it, so the same things happen at the limit as on a full disk: new messages
are refused, acknowledgements still go through, and what they free makes room again.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from pathlib import Path

from tidegate.spi import format_size


class MemoryFile:
    """A :class:`File` of :class:`MemoryStorage`; bytes never written take no memory."""

    __slots__ = ("_data", "_length", "_require")

    def __init__(self, require: Callable[[int], None] = lambda _: None) -> None:
        """*require*: raises OSError when there is no room for that many more bytes."""
        self._data = bytearray()
        self._length = 0
        self._require = require

    def pwritev(self, buffers: Sequence[bytes], offset: int) -> None:
        data = self._data
        if offset > len(data):
            data.extend(bytes(offset - len(data)))
        joined = b"".join(buffers)
        data[offset : offset + len(joined)] = joined
        self._length = max(self._length, offset + len(joined))

    def pread(self, length: int, offset: int) -> bytes:
        wanted = max(0, min(length, self._length - offset))
        data = bytes(self._data[offset : offset + wanted])
        return data + bytes(wanted - len(data))

    def datasync(self) -> None: ...

    def preallocate(self, length: int) -> None:
        """See :class:`File`. Nothing is taken yet, but promised."""
        self._require(length - self._length)
        self._length = max(self._length, length)

    @property
    def length(self) -> int:
        return self._length

    def close(self) -> None: ...


class MemoryStorage:
    """A :class:`Storage` whose files live as long as this object.

    Attributes: limit: of the lengths of all files together, as in the configuration; "": none.
    """

    metadata_directory: Path | None = None

    def __init__(self, limit_bytes: int = 0) -> None:
        self._files: dict[str, MemoryFile] = {}
        self._limit_bytes = limit_bytes or 1 << 62
        self.limit = format_size(limit_bytes) if limit_bytes else ""

    @property
    def durable(self) -> bool:
        return False

    def lock(self, owner: str) -> None:
        """See :class:`Storage`. Nobody else can see these files."""

    def unlock(self) -> None: ...

    def open(self, name: str, *, create: bool = False) -> MemoryFile:
        if create:
            self._files[name] = MemoryFile(self._require)
        file = self._files.get(name)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, "no such file in memory", name)
        return file

    def list(self) -> Sequence[str]:
        return list(self._files)

    def rename(self, old: str, new: str) -> None:
        self._files[new] = self._files.pop(old)

    def unlink(self, name: str) -> None:
        self._files.pop(name, None)

    def sync_directory(self) -> None: ...

    def free_bytes(self) -> int:
        """See :class:`Storage`. The whole length of a file counts, written or not."""
        return max(0, self._limit_bytes - sum(file.length for file in [*self._files.values()]))

    def describe(self, name: str) -> str:
        where = f"memory (memory_limit = {self.limit}) " if self.limit else "memory:"
        return f"{where}{name}".rstrip()

    def _require(self, more: int) -> None:
        if more > self.free_bytes():
            raise OSError(
                errno.ENOSPC, f"persistent = false, and memory_limit ({self.limit}) is reached"
            )
