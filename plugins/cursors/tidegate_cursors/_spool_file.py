"""The temporary file of a spool: a sequence of bytes that is freed from the front.

The file consists of segments. Offsets only grow. This module maps parts of the sequence to
segments, and reuses a segment once all its bytes are freed. So neither a consumer that never
quite catches up nor dropping the oldest ever needs more than the limit, and when the file cannot
grow any more the spool goes on with what it has.

Room is reserved before it is written (``posix_fallocate``): each step doubles the file, by at most
:data:`STEP_BYTES`. Where the file system cannot do that (EOPNOTSUPP, EINVAL, ENOSYS) the file grows
as bytes are written. Both first check that enough of the disk stays free
(:meth:`tidegate.spi.TemporarySpace.leaves_enough`).

The file has no name in the file system (``O_TMPFILE``, or unlinked at once where that is missing), so
nothing is left behind when the gateway is killed.
"""

from __future__ import annotations

import asyncio
import errno
import os
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Final, TypeVar

from tidegate.spi import TemporarySpace

_T = TypeVar("_T")

#: Size of a segment, unless the limit is so low that this would be a large part of it.
SEGMENT_BYTES: Final = 64 << 10
_SEGMENTS_MIN: Final = 8

#: Most that is reserved in one step.
STEP_BYTES: Final = 16 << 20

#: Spools that may be written or read at the same time.
THREADS: Final = 4

_CANNOT_RESERVE: Final = frozenset({errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS})


class SpoolThreads:
    """Threads for the disk work of spools. All calls on the event loop.

    A pool of its own: a hung disk must not use up the threads that others need.
    """

    __slots__ = ("_executor", "_users")

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None
        self._users = 0

    def join(self) -> None:
        """A spool starts to use them."""
        self._users += 1

    def leave(self) -> None:
        """A spool is done with them; they end with the last one."""
        self._users -= 1
        if not self._users and self._executor is not None:
            self._executor.shutdown(wait=False)
            self._executor = None

    def run(self, act: Callable[[], _T]) -> asyncio.Future[_T]:
        """Run *act* in a thread."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(THREADS, "tidegate-spool")
        return asyncio.get_running_loop().run_in_executor(self._executor, act)


class Write:
    """A prepared write: where its bytes go, and how much the file must grow first.

    Attributes: is_reserved: the file has grown.
    """

    __slots__ = ("growth", "is_reserved", "parts")

    def __init__(self, parts: Sequence[tuple[int, int]], growth: int) -> None:
        self.parts = parts  # (place in the file, bytes)
        self.growth = growth  # in segments
        self.is_reserved = growth == 0


class SpoolFile:
    """See the module. ``prepare_*``, ``release`` and ``end_*`` belong to the event loop; ``write``,
    ``read``, ``empty`` and ``close`` may be called in a thread, of all but ``read`` one at a time."""

    __slots__ = (
        "_can_reserve",
        "_directory",
        "_file",
        "_first",
        "_free",
        "_places",
        "_segment_bytes",
        "_segments",
        "_segments_max",
        "_space",
    )

    def __init__(self, directory: Path, limit_bytes: int, space: TemporarySpace) -> None:
        """Creates nothing yet. Args: space: accounts for the file."""
        self._directory = directory
        self._segment_bytes = max(1, min(SEGMENT_BYTES, limit_bytes // _SEGMENTS_MIN))
        self._segments_max = limit_bytes // self._segment_bytes
        self._space = space
        self._file: IO[bytes] | None = None
        self._can_reserve = hasattr(os, "posix_fallocate")
        self._segments = 0  # that the file has
        self._first = 0  # number, in the sequence, of the first segment in use
        self._places: deque[int] = deque()  # places in the file of that one and those after it
        self._free: list[int] = []

    @property
    def is_open(self) -> bool:
        """There is a file."""
        return self._file is not None

    @property
    def is_empty(self) -> bool:
        """Whether it takes no disk space."""
        return self._segments == 0

    def room(self, head: int, end: int) -> int:
        """Bytes that fit at offset *end* while those from *head* on are kept."""
        return (head // self._segment_bytes + self._segments_max) * self._segment_bytes - end

    def start(self, end: int) -> int:
        """Where to continue, at or behind *end*, when nothing before it is kept."""
        return -(-end // self._segment_bytes) * self._segment_bytes

    def has_place(self, offset: int, size: int) -> bool:
        """Whether *size* bytes at *offset* fit without growing the file."""
        return self._missing(offset, size) <= len(self._free)

    def _missing(self, offset: int, size: int) -> int:
        """Segments that they need beyond those in use."""
        first, last = offset // self._segment_bytes, (offset + size - 1) // self._segment_bytes
        return last + 1 - (self._first + len(self._places) if self._places else first)

    def prepare_write(self, offset: int, size: int) -> Write | None:
        """Find a place for *size* bytes at *offset*. None: the spools have no more room."""
        if not self._places:
            self._first = offset // self._segment_bytes
        missing = self._missing(offset, size)
        growth = missing - len(self._free)
        if growth > 0:
            most = min(self._segments_max - self._segments, STEP_BYTES // self._segment_bytes)
            wanted = max(growth, min(self._segments, most))
            if not self._space.take(wanted * self._segment_bytes):
                wanted = growth
                if not self._space.take(wanted * self._segment_bytes):
                    return None
            growth = wanted
            end = self._segments + growth
            # New segments are used last: if the file cannot grow, the rest is unchanged.
            self._free = [*range(end - 1, self._segments - 1, -1), *self._free]
            self._segments = end
        for _ in range(missing):
            self._places.append(self._free.pop())
        return Write(self._parts(offset, size), max(0, growth))

    def prepare_read(self, offset: int, size: int) -> Sequence[tuple[int, int]]:
        """Where *size* bytes at *offset* are: (place in the file, bytes) of each part."""
        return self._parts(offset, size)

    def _parts(self, offset: int, size: int) -> Sequence[tuple[int, int]]:
        parts: list[tuple[int, int]] = []
        while size:
            number, inside = divmod(offset, self._segment_bytes)
            count = min(size, self._segment_bytes - inside)
            place = self._places[number - self._first] * self._segment_bytes + inside
            if parts and sum(parts[-1]) == place:
                parts[-1] = (parts[-1][0], parts[-1][1] + count)
            else:
                parts.append((place, count))
            offset += count
            size -= count
        return parts

    def end_write(self, write: Write) -> None:
        """A write has ended. If the file could not grow, the segments past its end are dropped."""
        if write.is_reserved:
            return
        kept = self._segments - write.growth
        self._segments = kept
        self._free = [place for place in self._free if place < kept]
        while self._places and self._places[-1] >= kept:
            self._places.pop()
        self._space.give_back(write.growth * self._segment_bytes)

    def release(self, head: int) -> None:
        """Nothing before *head* is kept."""
        places = self._places
        while places and (self._first + 1) * self._segment_bytes <= head:
            self._free.append(places.popleft())
            self._first += 1

    def release_all(self) -> None:
        """Nothing is kept; :meth:`empty` then frees the disk space."""
        self._free.extend(self._places)
        self._places.clear()

    def end_empty(self) -> None:
        """The file was emptied."""
        self._space.give_back(self._segments * self._segment_bytes)
        self._segments = 0
        self._free.clear()

    # --- in a thread ---------------------------------------------------------------------------

    def write(self, write: Write, data: bytes | bytearray) -> None:
        """Write *data* as was prepared. Raises: OSError; ENOSPC when there is no room."""
        if self._file is None:
            self._file = tempfile.TemporaryFile(  # noqa: SIM115 - lives as long as the spool
                prefix="tidegate-spool-", dir=self._directory, buffering=0
            )
        descriptor = self._file.fileno()
        if not write.is_reserved:
            self._reserve(descriptor, write)
        done = 0
        with memoryview(data) as view:
            for place, size in write.parts:
                stop = done + size
                while done < stop:
                    with view[done:stop] as part:
                        written = os.pwrite(descriptor, part, place)
                    done += written
                    place += written

    def _reserve(self, descriptor: int, write: Write) -> None:
        size = write.growth * self._segment_bytes
        if not self._space.leaves_enough(descriptor, size):
            raise OSError(
                errno.ENOSPC,
                "the file system would have less left than broker.temporary_free_limit",
            )
        if self._can_reserve:
            try:
                # The last segments: those were added to the file.
                os.posix_fallocate(
                    descriptor, (self._segments - write.growth) * self._segment_bytes, size
                )
            except OSError as error:
                if error.errno == errno.ENOSPC:
                    raise OSError(error.errno, error.strerror) from error
                if error.errno not in _CANNOT_RESERVE:
                    raise
                self._can_reserve = False
        write.is_reserved = True

    def read(self, parts: Sequence[tuple[int, int]]) -> bytes:
        """The bytes of *parts*. Raises: OSError; ValueError when it is closed meanwhile."""
        if self._file is None:
            raise OSError("the spool is closed")
        descriptor = self._file.fileno()
        found: list[bytes] = []
        for place, size in parts:
            while size:
                part = os.pread(descriptor, size, place)
                if not part:
                    raise OSError("the file is shorter than what was written to it")
                found.append(part)
                place += len(part)
                size -= len(part)
        return b"".join(found)

    def empty(self) -> None:
        """Free the disk space. Raises: OSError."""
        if self._file is not None:
            self._file.truncate(0)

    def close(self) -> None:
        """Idempotent."""
        file, self._file = self._file, None
        if file is not None:
            file.close()
