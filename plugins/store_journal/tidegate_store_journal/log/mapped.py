"""Data files of ``journal_type = "MAPPED"``: batches are copied into a mapping of the file.

A window of the file is mapped and moves along with the writes, so that older data does not count as
the gateway's memory. Reading and padding use system calls as before; on Linux all of them see the
same pages.

*Syncs.* Linux's ``msync`` is ``fdatasync`` of a range. The real ``fdatasync`` is called instead,
because ``mmap.flush`` holds the GIL while the disk works.

*SIGBUS.* Storing into a page that cannot be allocated kills the process. So a file is mapped only
where a full disk cannot cause that: all its blocks are allocated, and the file system overwrites
blocks in place (not btrfs, ZFS, or network file systems). Otherwise the write is a system call,
whose error can be handled. What remains is a device that cannot read a page back: see
docs/store-journal.md.
"""

from __future__ import annotations

import logging
import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tidegate_store_journal.log.storage import MappableFile, Mapping

logger = logging.getLogger("tidegate.store.journal")

#: Bytes of a file that are mapped at a time; a multiple of every page size.
WINDOW_BYTES: Final = 256 << 10
#: Longer writes (padding, large messages) are system calls, which copy without the GIL.
COPY_BYTES_MAX: Final = 64 << 10
#: File systems that overwrite blocks in place.
IN_PLACE: Final = frozenset({"ext2", "ext3", "ext4", "xfs", "tmpfs"})
#: Names of data files, also while they are made ready; other files are small or not ours to map.
_DATA_PREFIX: Final = "journal-"


class MappedFile:
    """A :class:`File`: *file*, to which short writes are copies into a mapping.

    *window_bytes* are mapped at a time.
    """

    __slots__ = ("_base", "_file", "_window", "_window_bytes", "datasync", "pread", "preallocate")

    def __init__(self, file: MappableFile, *, window_bytes: int = WINDOW_BYTES) -> None:
        self._file = file
        self._window: Mapping | None = None
        self._window_bytes = window_bytes
        self._base = 0  # where in the file the window begins
        self.pread = file.pread
        self.datasync = file.datasync  # of Linux: also what was stored through mappings
        self.preallocate = file.preallocate

    @property
    def is_mapped(self) -> bool:
        """Whether the last write was a copy into the mapping."""
        return self._window is not None

    def pwritev(self, buffers: Sequence[bytes], offset: int) -> None:
        length = sum(map(len, buffers))
        window = self._window_for(offset, length) if length <= COPY_BYTES_MAX else None
        if window is None:
            self._file.pwritev(buffers, offset)
            return
        at = offset - self._base
        for buffer in buffers:
            end = at + len(buffer)
            window[at:end] = buffer
            at = end

    def _window_for(self, offset: int, length: int) -> Mapping | None:
        """The mapping, moved to cover the range; None: write it with a system call."""
        window = self._window
        if window is not None:
            if self._base <= offset and offset + length <= self._base + len(window):
                return window
            self._unmap()
        base = offset - offset % mmap.ALLOCATIONGRANULARITY
        window = self._file.map(base, self._window_bytes)
        if window is not None and offset + length > base + len(window):
            window.close()
            return None  # a mapping cannot make a file longer
        self._base, self._window = base, window
        return window

    def _unmap(self) -> None:
        if self._window is not None:
            self._window.close()
            self._window = None

    @property
    def length(self) -> int:
        return self._file.length

    def close(self) -> None:
        self._unmap()
        self._file.close()


def with_mapping(
    name: str, file: MappableFile, *, window_bytes: int = WINDOW_BYTES
) -> MappedFile | MappableFile:
    """*file*, written through mappings when its *name* is that of a data file."""
    is_data = name.startswith(_DATA_PREFIX)
    return MappedFile(file, window_bytes=window_bytes) if is_data else file


def file_system_of(path: Path) -> str:
    """Type of the file system that *path* is (or will be) on, ``""`` when that cannot be told."""
    path = path.resolve()
    best, kind = -1, ""
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        mount, _, source = line.partition(" - ")
        where = Path(mount.split()[4].replace("\\040", " "))
        if path.is_relative_to(where) and len(where.parts) >= best:
            best, kind = len(where.parts), source.split()[0]
    return kind


def can_map(directory: Path) -> bool:
    """Whether files there can be mapped safely; if not, logs why."""
    kind = file_system_of(directory)
    if kind not in IN_PLACE:
        logger.warning(
            "journal_type=MAPPED falls back to NIO reason=%s",
            f"the file system {kind or '(unknown)'} may need room to overwrite a block",
        )
    return kind in IN_PLACE
