"""The file of samples: of a fixed size, each record by itself, nothing synced.

Three rings of records, from 10 s to 10 min each, one after the other. The place of a record follows from its time, so that
nothing says where a ring begins; a record of another time is there until it is written over, and does not count.
Each has a checksum: one that was torn by a power cut is a gap, and nothing else is. All of it is in memory, too,
which is what is shown: a disk that hangs holds up nobody who asks.
"""

from __future__ import annotations

import fcntl
import os
import stat
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidegate_admin.server.history._columns import COLUMNS, together

#: In the data directory.
HISTORY_FILE: Final = "history.ring"

#: When it begins (seconds since the epoch), how many seconds its samples stand for, the columns.
_RECORD: Final = struct.Struct(f"<qd{len(COLUMNS)}d")
_CHECKSUM: Final = struct.Struct("<I")
_SLOT_BYTES: Final = _RECORD.size + _CHECKSUM.size


@dataclass(frozen=True, slots=True)
class Grain:
    """One ring. Attributes: step_s: of a record; slots: how many records it has."""

    step_s: int
    slots: int


#: An hour, a day, a week.
GRAINS: Final = (Grain(10, 360), Grain(60, 1440), Grain(600, 1008))
_FIRST: Final = tuple(sum(grain.slots for grain in GRAINS[:number]) for number in range(3))

#: What a file begins with: one that has other columns or rings is begun anew.
_HEADER: Final = b"TGHIST1\n" + _CHECKSUM.pack(zlib.crc32(repr((COLUMNS, GRAINS)).encode()))
FILE_BYTES: Final = len(_HEADER) + _SLOT_BYTES * sum(grain.slots for grain in GRAINS)


class Ring:
    """What is known of the last week. Not thread-safe; only :meth:`keep` touches the file.

    Args: path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1
        self._image = bytearray(FILE_BYTES)
        self._changed: set[int] = set()

    def load(self) -> None:
        """Begin with what the file has. Raises: OSError; then it begins with nothing."""
        data = self._read()
        if data is not None:
            self._image[:] = data

    def adopt(self, data: bytes) -> None:
        """Show what the file had, of :meth:`keep`; what is newer here stays."""
        own = {place: bytes(self._image[place : place + _SLOT_BYTES]) for place in self._changed}
        self._image[:] = data
        for place, record in own.items():
            if _is_newer(record, data[place : place + _SLOT_BYTES]):
                self._image[place : place + _SLOT_BYTES] = record

    def add(self, at: float, seconds: float, values: Sequence[float]) -> None:
        """One sample. Args: at: since the epoch; seconds: that it stands for, above 0; values: by ``COLUMNS``."""
        for number, grain in enumerate(GRAINS):
            begin = int(at) // grain.step_s * grain.step_s
            place = _place(number, begin)
            known = self._record(place, begin)
            both_s, both = seconds, values
            if known is not None:
                both_s, both = known[0] + seconds, together(*known, seconds, values)
            record = _RECORD.pack(begin, both_s, *both)
            self._image[place : place + _SLOT_BYTES] = record + _CHECKSUM.pack(zlib.crc32(record))
            self._changed.add(place)

    def last(self, number: int, count: int, now: float) -> tuple[int, list[Sequence[float] | None]]:
        """When the first of the last *count* records of a ring begins, and their columns; None: a gap."""
        step_s = GRAINS[number].step_s
        end = int(now) // step_s * step_s
        first = end - (count - 1) * step_s
        return first, list(self._columns(number, range(first, end + step_s, step_s)))

    def _columns(self, number: int, begins: Sequence[int]) -> Iterator[Sequence[float] | None]:
        for begin in begins:
            found = self._record(_place(number, begin), begin)
            yield None if found is None else found[1]

    def _record(self, place: int, begin: int) -> tuple[float, tuple[float, ...]] | None:
        """What stands there, when it is whole and of that time."""
        record = self._image[place : place + _RECORD.size]
        found, seconds, *values = _RECORD.unpack(record)
        if found != begin or not seconds > 0:
            return None
        (checksum,) = _CHECKSUM.unpack_from(self._image, place + _RECORD.size)
        return (seconds, tuple(values)) if checksum == zlib.crc32(record) else None

    # --- the file --------------------------------------------------------------------------------

    def changes(self) -> list[tuple[int, bytes]]:
        """What is not in the file yet, for :meth:`keep`."""
        found = [
            (place, bytes(self._image[place : place + _SLOT_BYTES])) for place in self._changed
        ]
        self._changed.clear()
        return found

    def not_kept(self, changes: Sequence[tuple[int, bytes]]) -> None:
        """They could not be written, and are to be with the next ones."""
        self._changed.update(place for place, _ in changes)

    def keep(self, changes: Sequence[tuple[int, bytes]]) -> bytes | None:
        """Write them, in a thread of its own. Where another process keeps the file, this one does not.

        Returns: the file, when another process has written it: for :meth:`adopt`. Raises: OSError.
        """
        is_mine = self._descriptor >= 0
        if not is_mine:
            self._descriptor = self._opened()
        if self._descriptor < 0:
            return self._read()
        try:
            # Whoever had it before, on this machine or another, may have seen more of a step.
            before = None if is_mine else self._read()
            for place, data in changes:
                if before is None or _is_newer(data, before[place : place + _SLOT_BYTES]):
                    os.pwrite(self._descriptor, data, place)
            return None if is_mine else self._read()
        except OSError:
            self.close()
            raise

    def _read(self) -> bytes | None:
        """All of the file; None: it is none of ours. Raises: OSError."""
        with self._path.open("rb") as file:
            data = file.read(FILE_BYTES + 1)
        return data if len(data) == FILE_BYTES and data.startswith(_HEADER) else None

    def close(self) -> None:
        """Leave the file to others."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _opened(self) -> int:
        """The file, of the right size, nobody else's; -1: another process has it."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(self._path, flags, 0o600)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise OSError(f"{self._path} is no file")
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return -1
            if stat.S_IMODE(found.st_mode) != 0o600:
                os.fchmod(descriptor, 0o600)
            if found.st_size != FILE_BYTES or os.pread(descriptor, len(_HEADER), 0) != _HEADER:
                self._begin(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _begin(self, descriptor: int) -> None:
        """A file with what is known so far; its header comes last, so that a file with one is whole."""
        os.ftruncate(descriptor, 0)
        os.posix_fallocate(descriptor, 0, FILE_BYTES)
        os.pwrite(descriptor, self._image[len(_HEADER) :], len(_HEADER))
        os.pwrite(descriptor, _HEADER, 0)


def _is_newer(record: bytes, other: bytes) -> bool:
    """Whether it is of a later step than another one of its place, or stands for more of the same."""
    begin, seconds = _RECORD.unpack_from(record)[:2]
    other_begin, other_seconds = _RECORD.unpack_from(other)[:2]
    (checksum,) = _CHECKSUM.unpack_from(other, _RECORD.size)
    if checksum != zlib.crc32(other[: _RECORD.size]):
        return True
    return begin > other_begin or (begin == other_begin and not seconds < other_seconds)


def _place(number: int, begin: int) -> int:
    """Where in the file the record of a ring is that begins then."""
    grain = GRAINS[number]
    return len(_HEADER) + _SLOT_BYTES * (_FIRST[number] + begin // grain.step_s % grain.slots)
