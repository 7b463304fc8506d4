"""The temporary files of one list's spool: each is filled once, and goes when nothing in it is needed.

Room is reserved before writing (``posix_fallocate``; where the file system cannot do that, it is taken
as bytes are written), within what one list and all lists together may have. The files have no name,
so that nothing is left of them when the gateway is killed.
"""

from __future__ import annotations

import asyncio
import errno
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Final, TypeVar, final

from tidegate.spi import TemporarySpace

_T = TypeVar("_T")

#: Size of a list's first file; each later one is twice as large, up to the second figure.
SEGMENT_BYTES_MIN: Final = 256 << 10
SEGMENT_BYTES_MAX: Final = 8 << 20
#: A file is at most this fraction of its list's limit: what a consumer has taken must come free.
_SEGMENTS_MIN: Final = 8
#: Lists written or read at a time.
THREADS: Final = 2

_CANNOT_RESERVE: Final = frozenset({errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS})


@final
class Threads:
    """For everything that waits for the disk; separate threads, because a disk may hang."""

    __slots__ = ("_executor",)

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None

    def run(self, act: Callable[[], _T]) -> asyncio.Future[_T]:
        """Run *act* in one of them."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(THREADS, "tidegate-unstored")
        return asyncio.get_running_loop().run_in_executor(self._executor, act)

    def close(self) -> None:
        """End them, when nothing is under way. Idempotent."""
        if self._executor is not None:
            self._executor.shutdown(wait=False)
            self._executor = None


@final
class Segment:
    """One file. ``write`` and ``read`` are called in threads, all else on the event loop.

    Attributes:
        capacity, end: bytes it may have, and those given out.
        blocks: how many have a place in it; readers: how often it is being read.
    """

    __slots__ = ("_file", "_is_reserved", "blocks", "capacity", "end", "readers")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.end = self.blocks = self.readers = 0
        self._file: IO[bytes] | None = None
        self._is_reserved = False

    def write(self, directory: Path, space: TemporarySpace, offset: int, data: bytes) -> None:
        """Raises: OSError; ENOSPC when there is no room."""
        if self._file is None:
            self._file = tempfile.TemporaryFile(  # noqa: SIM115 - lives as long as its blocks
                prefix="tidegate-unstored-", dir=directory, buffering=0
            )
        descriptor = self._file.fileno()
        if not self._is_reserved:
            self._reserve(descriptor, space)
        with memoryview(data) as view:
            done = 0
            while done < len(data):
                with view[done:] as part:
                    done += os.pwrite(descriptor, part, offset + done)

    def _reserve(self, descriptor: int, space: TemporarySpace) -> None:
        if not space.leaves_enough(descriptor, self.capacity):
            raise OSError(
                errno.ENOSPC,
                "the file system would have less left than broker.temporary_free_limit",
            )
        if hasattr(os, "posix_fallocate"):
            try:
                os.posix_fallocate(descriptor, 0, self.capacity)
            except OSError as error:
                if error.errno not in _CANNOT_RESERVE:
                    raise
        self._is_reserved = True

    def read(self, offset: int, size: int) -> bytes:
        """Raises: OSError."""
        if self._file is None:
            raise OSError("the file is closed")
        found: list[bytes] = []
        while size:
            part = os.pread(self._file.fileno(), size, offset)
            if not part:
                raise OSError("the file is shorter than what was written to it")
            found.append(part)
            offset += len(part)
            size -= len(part)
        return found[0] if len(found) == 1 else b"".join(found)

    def close(self) -> None:
        """Idempotent."""
        file, self._file = self._file, None
        if file is not None:
            file.close()


@final
class Segments:
    """All files of one list. All calls on the event loop.

    Args: limit_bytes: of all of them; space: shared by all lists.
    Attributes: size_bytes: what they take.
    """

    __slots__ = ("_directory", "_last", "_limit_bytes", "_segments", "_space", "size_bytes")

    def __init__(self, directory: Path, limit_bytes: int, space: TemporarySpace) -> None:
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._space = space
        self._segments: set[Segment] = set()
        self._last: Segment | None = None  # has room at its end
        self.size_bytes = 0

    def place(self, size: int) -> tuple[Segment, int] | None:
        """Find a place: a file and an offset in it, which belong to the caller until :meth:`release`.

        Returns: None when the list, or all of them together, may not have that much more.
        """
        segment = self._last
        if segment is None or segment.end + size > segment.capacity:
            segment = self._last = self._grow(size)
            if segment is None:
                return None
        offset = segment.end
        segment.end += size
        segment.blocks += 1
        return segment, offset

    def _grow(self, size: int) -> Segment | None:
        left = self._limit_bytes - self.size_bytes
        most = min(SEGMENT_BYTES_MAX, max(1, self._limit_bytes // _SEGMENTS_MIN))
        before = 0 if self._last is None else self._last.capacity
        wanted = max(size, min(max(SEGMENT_BYTES_MIN, 2 * before), most, left))
        for capacity in dict.fromkeys((wanted, size)):
            if capacity <= left and self._space.take(capacity):
                segment = Segment(capacity)
                self._segments.add(segment)
                self.size_bytes += capacity
                return segment
        return None

    def write(self, segment: Segment, offset: int, data: bytes) -> None:
        """In a thread, one at a time. Raises: OSError."""
        segment.write(self._directory, self._space, offset, data)

    def release(self, segment: Segment) -> bool:
        """A block no longer needs its place. Returns: whether the file is not needed any more, either."""
        segment.blocks -= 1
        return self._drop_unneeded(segment)

    def begin_read(self, segment: Segment) -> None:
        """It stays open until :meth:`end_read`."""
        segment.readers += 1

    def end_read(self, segment: Segment) -> None:
        """The read is over, successful or not."""
        segment.readers -= 1
        if segment not in self._segments and not segment.readers:
            segment.close()

    def _drop_unneeded(self, segment: Segment) -> bool:
        if segment.blocks:
            return False
        if segment is self._last:
            self._last = None
        self._segments.discard(segment)
        self.size_bytes -= segment.capacity
        self._space.give_back(segment.capacity)
        if not segment.readers:
            segment.close()
        return True
