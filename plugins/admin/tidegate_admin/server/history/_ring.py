"""The file of samples: of fixed size, with independent records, never synced.

Three rings of records, of 10 s to 10 min each, one after the other. A record's place follows from
its time, so no header says where a ring begins; an outdated record stays until it is overwritten,
and is ignored. Each has a checksum, so one torn by a power cut is just a gap. Everything is also in
memory and shown from there, so a hung disk delays no request.
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

#: Begin time (seconds since the epoch), seconds covered by its samples, the columns.
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

#: The file's header: a file with other columns or rings is started over.
_HEADER: Final = b"TGHIST1\n" + _CHECKSUM.pack(zlib.crc32(repr((COLUMNS, GRAINS)).encode()))
FILE_BYTES: Final = len(_HEADER) + _SLOT_BYTES * sum(grain.slots for grain in GRAINS)


class Ring:
    """The samples of the last week. Not thread-safe; only :meth:`keep` touches the file.

    Args: path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1
        self._image = bytearray(FILE_BYTES)
        self._changed: set[int] = set()

    def load(self) -> None:
        """Load the file. Raises: OSError; the ring is empty then."""
        data = self._read()
        if data is not None:
            self._image[:] = data

    def adopt(self, data: bytes) -> None:
        """Merge the file's contents, from :meth:`keep`; newer records here stay."""
        own = {place: bytes(self._image[place : place + _SLOT_BYTES]) for place in self._changed}
        self._image[:] = data
        for place, record in own.items():
            if _is_newer(record, data[place : place + _SLOT_BYTES]):
                self._image[place : place + _SLOT_BYTES] = record

    def add(self, at: float, seconds: float, values: Sequence[float]) -> None:
        """Add a sample. Args: at: since the epoch; seconds: covered, above 0; values: columns."""
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
        """When the first of a ring's last *count* records begins, and their columns; None: a gap."""
        step_s = GRAINS[number].step_s
        end = int(now) // step_s * step_s
        first = end - (count - 1) * step_s
        return first, list(self._columns(number, range(first, end + step_s, step_s)))

    def _columns(self, number: int, begins: Sequence[int]) -> Iterator[Sequence[float] | None]:
        for begin in begins:
            found = self._record(_place(number, begin), begin)
            yield None if found is None else found[1]

    def _record(self, place: int, begin: int) -> tuple[float, tuple[float, ...]] | None:
        """The record at *place*, if it is whole and of that time."""
        record = self._image[place : place + _RECORD.size]
        found, seconds, *values = _RECORD.unpack(record)
        if found != begin or not seconds > 0:
            return None
        (checksum,) = _CHECKSUM.unpack_from(self._image, place + _RECORD.size)
        return (seconds, tuple(values)) if checksum == zlib.crc32(record) else None

    # --- the file --------------------------------------------------------------------------------

    def changes(self) -> list[tuple[int, bytes]]:
        """Records that are not in the file yet, for :meth:`keep`."""
        found = [
            (place, bytes(self._image[place : place + _SLOT_BYTES])) for place in self._changed
        ]
        self._changed.clear()
        return found

    def not_kept(self, changes: Sequence[tuple[int, bytes]]) -> None:
        """Retry *changes*, whose write failed, with the next ones."""
        self._changed.update(place for place, _ in changes)

    def keep(self, changes: Sequence[tuple[int, bytes]]) -> bytes | None:
        """Write *changes*, in a separate thread. Does nothing while another process holds the file.

        Returns: the file's contents, if another process wrote it: for :meth:`adopt`. Raises: OSError.
        """
        is_mine = self._descriptor >= 0
        if not is_mine:
            self._descriptor = self._opened()
        if self._descriptor < 0:
            return self._read()
        try:
            # The previous owner, here or on another machine, may have seen more of a step.
            before = None if is_mine else self._read()
            for place, data in changes:
                if before is None or _is_newer(data, before[place : place + _SLOT_BYTES]):
                    os.pwrite(self._descriptor, data, place)
            return None if is_mine else self._read()
        except OSError:
            self.close()
            raise

    def _read(self) -> bytes | None:
        """The whole file; None if it is not one of ours. Raises: OSError."""
        with self._path.open("rb") as file:
            data = file.read(FILE_BYTES + 1)
        return data if len(data) == FILE_BYTES and data.startswith(_HEADER) else None

    def close(self) -> None:
        """Leave the file to others."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _opened(self) -> int:
        """The file, locked and of the right size; -1: another process holds it."""
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
        """Start a file with what is known. The header comes last: a file that has one is whole."""
        os.ftruncate(descriptor, 0)
        os.posix_fallocate(descriptor, 0, FILE_BYTES)
        os.pwrite(descriptor, self._image[len(_HEADER) :], len(_HEADER))
        os.pwrite(descriptor, _HEADER, 0)


def _is_newer(record: bytes, other: bytes) -> bool:
    """Whether *record* is of a later step than *other*, or covers more of the same step."""
    begin, seconds = _RECORD.unpack_from(record)[:2]
    other_begin, other_seconds = _RECORD.unpack_from(other)[:2]
    (checksum,) = _CHECKSUM.unpack_from(other, _RECORD.size)
    if checksum != zlib.crc32(other[: _RECORD.size]):
        return True
    return begin > other_begin or (begin == other_begin and not seconds < other_seconds)


def _place(number: int, begin: int) -> int:
    """The place in the file of a ring's record that begins at *begin*."""
    grain = GRAINS[number]
    return len(_HEADER) + _SLOT_BYTES * (_FIRST[number] + begin // grain.step_s % grain.slots)
