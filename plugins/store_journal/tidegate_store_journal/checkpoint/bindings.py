"""The bindings journal: the one home of the small state. docs/journal-format.md section 6.

Every batch goes into the main journal first. A checkpoint *carries* the changes of the small state
since the last one to the end of the bindings journal: the latest state of each key, then a *mark*.
It is a log like the main one, so a carry writes in proportion to what changed, not to what exists.
Files come and go at the ends: live records of the oldest one are copied to the end, which frees it.
So a record that removes a key is no longer needed once it is in the oldest file: what it removes
was in an older one.

Room is reserved ahead. A batch that adds small state is accepted only while there are files for
twice everything that lives here or is still to be carried: once for the records, and once for those
that will remove the keys, which are smaller. So no carry ever asks the disk for room.
"""

from __future__ import annotations

import bisect
import itertools
import logging
import threading
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

import msgspec

from tidegate.spi import AddDuplicateId, ForgetDuplicateIds, Operation
from tidegate_store_journal.checkpoint.live import LiveList
from tidegate_store_journal.index.changes import Numbers
from tidegate_store_journal.index.smallstate import SmallKey
from tidegate_store_journal.log import format as _format
from tidegate_store_journal.log.datafile import DataFile, make_padded, prepare
from tidegate_store_journal.log.format import BATCH_HEADER_BYTES, BINDINGS, DATA_OFFSET, END_MARK
from tidegate_store_journal.log.records import KINDS, PUTTING, encode_operation
from tidegate_store_journal.log.storage import FULL_ERRNOS, Storage
from tidegate_store_journal.log.walk import Unproven

logger = logging.getLogger("tidegate.store.journal")

#: Bytes of a file while little lives here; a carry is usually some hundred.
FILE_BYTES: Final = 256 << 10
#: Files grow with what lives in them, so that there are never many.
_FILES_WANTED: Final = 64
_FILE_BYTES_MAX: Final = 32 << 20
#: Files besides twice what lives here: the end of the one that the last start left, the one being
#: written, those that the oldest file is copied to, and the headers of all.
_FILES_EXTRA: Final = 6
#: Used files may exceed twice what lives in them by this many before the oldest is copied.
_FILES_USED_EXTRA: Final = 3
#: Less than this at the end of a file is not worth a batch.
_REST_MIN: Final = BATCH_HEADER_BYTES + 128
_SIZE_BITS: Final = 32
_SIZE_MASK: Final = (1 << _SIZE_BITS) - 1


class Mark(Numbers, frozen=True, array_like=True):
    """Value of a mark: everything before it is the small state as of main batch *batch*.

    *floor_batch*, *floor_released*: the checkpoint on disk when data files were last put away. An
    older checkpoint names files that are gone. *oldest*: first batch of the oldest file that is
    needed.
    """

    floor_batch: int = 0
    floor_released: int = 0
    oldest: int = 1


@dataclass(slots=True)
class BindingsFile:
    """A used file. Attributes: batches: stream position, offset and length of each payload."""

    file: DataFile
    batches: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])

    @property
    def position(self) -> int:
        """Stream position of its first byte."""
        return self.batches[0][0]


@dataclass(slots=True)
class BindingsFound:
    """What a start found, see ``start/bindings.py``.

    Attributes:
        store_id: "" when there is no file. files: with what counts, in order. places: of each live
        record, position and size in one number, in the order of positions. lives: per data file, the
        batch and the payload of its live list. free: names and lengths of
        files to reuse. leftovers: names of those in which nothing counts. batch, position:
        where the journal ends. mark: the last one. is_damaged: everything
        must be rewritten. problems: file, offset and what is wrong there.
        unproven: what may not be on stable storage.
    """

    store_id: str = ""
    files: list[BindingsFile] = field(default_factory=list[BindingsFile])
    places: dict[SmallKey, int] = field(default_factory=dict[SmallKey, int])
    lives: dict[int, tuple[int, bytes]] = field(default_factory=dict[int, tuple[int, bytes]])
    free: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    leftovers: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    next_file_id: int = 1
    batch: int = 0
    position: int = 0
    mark: Mark = field(default_factory=Mark)
    is_damaged: bool = False
    unproven: Unproven = field(default_factory=Unproven)
    problems: list[tuple[str, int, str]] = field(default_factory=list[tuple[str, int, str]])

    def keep_lives(self, there: Container[int]) -> None:
        """Drop live lists of data files that are not *there*."""
        for file_id in [file_id for file_id in self.lives if file_id not in there]:
            del self.lives[file_id]
            self.places.pop((LiveList, file_id), None)


class Bindings:
    """See the module. Everything but the attributes blocks; any thread.

    Attributes:
        live_bytes: of records that count. pending_bytes: of what a checkpoint has taken from the index and
            not carried yet. capacity: bytes of all files. mark, batch: of the last carry. must_carry: even when
        nothing changed, and live lists of all files. lives: per data file, the batch of its live list.
    """

    def __init__(
        self, storage: Storage, store_id: str, file_length: int, found: BindingsFound
    ) -> None:
        self._storage = storage
        self._store_id = store_id
        self._base = max(4 * DATA_OFFSET, min(FILE_BYTES, file_length))
        self._lock = threading.Lock()
        self._files = found.files
        self._old = len(found.files) if found.is_damaged else 0  # to be deleted
        self._places = {} if found.is_damaged else found.places
        lives = {} if found.is_damaged else found.lives
        self.lives = {file_id: batch for file_id, (batch, _) in lives.items()}
        self._spares = found.free
        self._leftovers = found.leftovers
        self._next_id = found.next_file_id
        self._tail: BindingsFile | None = None  # a start never continues a file, see section 6
        self._offset = 0
        self._number = self.batch = found.batch
        self._position = self._marked_position = found.position
        self.mark = found.mark
        sizes = [place & _SIZE_MASK for place in self._places.values()]
        self.live_bytes = sum(sizes)
        self._largest = max(sizes, default=0)
        self.pending_bytes = 0
        self.must_carry = found.is_damaged
        self.capacity = 0
        self._count_capacity()

    # ------------------------------------------------------------------------------- room

    def fits(self, more: int) -> bool:
        """Whether *more* bytes of records to carry fit. Any thread."""
        return self._needed(more) <= self.capacity

    def _needed(self, more: int) -> int:
        carried = 2 * (self.live_bytes + self.pending_bytes + more)
        return carried + max(self._largest, more) + _FILES_EXTRA * self._length()

    def _length(self) -> int:
        """Size of the next file: a multiple of the smallest."""
        wanted = self.live_bytes // _FILES_WANTED
        return min(_FILE_BYTES_MAX, self._base * (1 + wanted // self._base))

    def grow(self, more: int) -> None:
        """Make files until *more* bytes fit. Raises: OSError."""
        with self._lock:
            while not self.fits(more):
                self._make_spare()

    def prepare(self) -> None:
        """Prepare for the first carry. Raises: OSError without room for the usual files."""
        with self._lock:
            self._put_leftovers_away()
        self.grow(self._ahead())

    def _ahead(self) -> int:
        """Room to reserve ahead, so that writers need not wait for a file between checkpoints."""
        return self._length() // 4

    def _make_spare(self) -> None:
        name, length = _format.free_name(self._take_id(), BINDINGS), self._length()
        make_padded(self._storage, name, length)
        self._spares.append((name, length))
        self._count_capacity()

    def _take_id(self) -> int:
        file_id = self._next_id
        self._next_id += 1
        return file_id

    def _count_capacity(self) -> None:
        others = itertools.chain(self._spares, self._leftovers)
        self.capacity = sum(length for _, length in others) + self._used_bytes()

    def _used_bytes(self) -> int:
        return sum(item.file.length for item in self._files)

    def _room(self) -> int:
        """Bytes of records that fit into the existing files."""
        overhead = DATA_OFFSET + BATCH_HEADER_BYTES + _REST_MIN
        room = sum(max(0, length - overhead) for _, length in self._spares)
        if self._tail is not None:
            room += max(0, self._tail.file.length - self._offset - _REST_MIN)
        return room

    # ------------------------------------------------------------------------------ carries

    def carry(
        self,
        operations: Mapping[SmallKey, Operation],
        mark: Mark,
        lives: Mapping[int, LiveList] = MappingProxyType({}),
    ) -> None:
        """Write the latest state of the keys in *operations*, as of *mark*, and sync it.

        Args: lives: live lists by data file. No room was set aside for them.
        Raises: OSError; nothing of it counts then, and it can be tried again.
        """
        lists: list[tuple[SmallKey, bytes]] = [
            ((LiveList, file_id), live.encode(file_id)) for file_id, live in lives.items()
        ]
        if lists:
            self.grow(sum(len(record) for _, record in lists))
        with self._lock:
            try:
                self._put_leftovers_away()
                records = [*self._records(operations), *lists]
                needed = sum(len(record) for _, record in records) + 2 * _REST_MIN
                while self._room() < needed and self._compact_oldest():
                    pass
                self._write(records, mark)
                self.lives.update((file_id, live.batch) for file_id, live in lives.items())
                self.must_carry = False
                self._tidy()
            except OSError:
                self._abandon()
                raise

    def forget(self, file_ids: Iterable[int]) -> None:
        """Forget data files that are gone."""
        with self._lock:
            for file_id in file_ids:
                self.lives.pop(file_id, None)
                self.live_bytes -= self._places.pop((LiveList, file_id), 0) & _SIZE_MASK

    def _records(
        self, operations: Mapping[SmallKey, Operation]
    ) -> Iterable[tuple[SmallKey, bytes]]:
        """Removals first: removing a session removes its packet ids."""
        forgotten: dict[str, tuple[int, SmallKey]] = {}
        for key, operation in operations.items():
            if type(operation) in PUTTING or key not in self._places:
                continue  # a key added and removed between two carries was never here
            if key[0] is AddDuplicateId:
                forgotten[key[1]] = max(forgotten.get(key[1], (0, key)), (key[2], key))
            yield key, b"" if key[0] is AddDuplicateId else encode_operation(operation)
        for destination, (through, key) in forgotten.items():
            yield key, encode_operation(ForgetDuplicateIds(destination, through))
        for key, operation in operations.items():
            if type(operation) in PUTTING:
                yield key, encode_operation(operation)

    def _write(
        self, records: Sequence[tuple[SmallKey, bytes]], mark: Mark, *, oldest: int = 0
    ) -> None:
        """One segment: *records* and *mark*, synced. Raises: OSError."""
        if not oldest:
            oldest = self._files[0].file.first_batch if self._files else self._number + 1
        mark = msgspec.structs.replace(mark, oldest=oldest)
        begins: list[int] = []
        position = self._position
        for _, record in records:
            begins.append(position)
            position += len(record)
        begins.append(position)
        end = _format.encode_record(_format.MARK, _format.encode(mark))
        self._append(b"".join([*(record for _, record in records), end]), begins)
        assert self._tail is not None
        assert self._tail.file.handle is not None
        self._tail.file.handle.datasync()
        for (key, record), begin in zip(records, begins, strict=False):
            self.live_bytes -= self._places.pop(key, 0) & _SIZE_MASK
            if record and record[_format.TYPE_OFFSET] in _PUTTING_TYPES:
                self._places[key] = begin << _SIZE_BITS | len(record)
                self.live_bytes += len(record)
                self._largest = max(self._largest, len(record))
        self.mark, self.batch = mark, self._number
        self._marked_position = self._position

    def _append(self, stream: bytes, begins: Sequence[int]) -> None:
        at = 0
        while at < len(stream):
            tail = self._tail
            if tail is None or tail.file.length - self._offset < _REST_MIN:
                tail = self._next_file()
            file = tail.file
            assert file.handle is not None
            payload = stream[at : at + file.length - self._offset - BATCH_HEADER_BYTES]
            first = bisect.bisect_left(begins, self._position)
            last = bisect.bisect_left(begins, self._position + len(payload))
            continued = begins[first] - self._position if first < last else len(payload)
            header = _format.encode_batch_header(
                file.seed,
                (payload,),
                self._number + 1,
                self.batch,
                self._position,
                continued,
                0,
                0,
            )
            end = self._offset + BATCH_HEADER_BYTES + len(payload)
            file.handle.pwritev([header, payload, END_MARK[: file.length - end]], self._offset)
            tail.batches.append((self._position, self._offset + BATCH_HEADER_BYTES, len(payload)))
            self._number += 1
            self._position += len(payload)
            self._offset = end
            at += len(payload)

    def _next_file(self) -> BindingsFile:
        """Start a file; everything before it is synced. Raises: OSError."""
        self._close_tail(sync=True)
        if not self._spares:
            self._make_spare()
        name, length = self._spares.pop(0)
        try:
            what = (self._storage, self._store_id, self._take_id(), length)
            file = prepare(*what, free=name, series=BINDINGS)
        except OSError:
            self._count_capacity()
            raise
        file.first_batch = self._number + 1
        self._tail = BindingsFile(file)
        self._files.append(self._tail)
        self._offset = DATA_OFFSET
        return self._tail

    def _close_tail(self, *, sync: bool) -> None:
        tail, self._tail = self._tail, None
        if tail is not None and tail.file.handle is not None:
            try:
                if sync:
                    tail.file.handle.datasync()
            finally:
                tail.file.close()

    def _abandon(self) -> None:
        """A carry failed: what of it is on disk is unknown.

        Crash story: the next carry has the same batch numbers, so it starts another file, after the
        files that this one started are gone. What this one left in the last file is past the
        first number of the new file, and is ignored.
        """
        self._close_tail(sync=False)
        self._number, self._position = self.batch, self._marked_position
        while self._files and self._files[-1].file.first_batch > self.batch:
            gone = self._files.pop().file
            self._leftovers.append((gone.name, gone.length))
        if self._files:
            batches = self._files[-1].batches
            while batches and batches[-1][0] >= self._position:
                batches.pop()

    # ---------------------------------------------------------------------------- tidying up

    def _tidy(self) -> None:
        """Keep the number of files small for what lives in them. Raises: OSError."""
        for _ in range(len(self._files)):
            wanted = 2 * self.live_bytes + _FILES_USED_EXTRA * self._length()
            if not self._old and self._used_bytes() <= wanted:
                break
            if not self._compact_oldest():
                break
        try:
            while not self.fits(self._ahead()):
                self._make_spare()
        except OSError as error:
            if error.errno not in FULL_ERRNOS:
                raise
        needed = 2 * self._needed(self._ahead())
        while self._spares and self.capacity - self._spares[-1][1] >= needed:
            self._storage.unlink(self._spares.pop()[0])
            self._count_capacity()

    def _compact_oldest(self) -> bool:
        """Copy the live records of the oldest file to the end, and free it. Raises: OSError.

        Returns: False when it is the file that is written, or there is no room for the copies.
        """
        if len(self._files) < 2:
            return False
        oldest, end = self._files[0], self._files[1].position
        until = end << _SIZE_BITS
        living = list(itertools.takewhile(lambda item: item[1] < until, self._places.items()))
        size = sum(place & _SIZE_MASK for _, place in living)
        if size + 2 * _REST_MIN > self._room():
            return False
        copies = [(key, self._read(place)) for key, place in living]
        self._write(copies, self.mark, oldest=self._files[1].file.first_batch)
        self._files.remove(oldest)
        self._old = max(0, self._old - 1)
        oldest.file.close()
        self._leftovers.append((oldest.file.name, oldest.file.length))
        self._put_leftovers_away()
        return True

    def _put_leftovers_away(self) -> None:
        """Rename files without live records, to be reused. Raises: OSError.

        The directory is synced first: a power cut must not bring back a name whose file has a new
        header by then.
        """
        for number, (name, length) in enumerate(self._leftovers):
            free = _format.free_name(_format.file_id_of(name), BINDINGS)
            if name != free:
                self._storage.rename(name, free)
                self._leftovers[number] = free, length
        if self._leftovers:
            self._storage.sync_directory()
            self._spares += self._leftovers
            self._leftovers.clear()
        self._count_capacity()

    def _read(self, place: int) -> bytes:
        """A record. Raises: OSError."""
        position, size = place >> _SIZE_BITS, place & _SIZE_MASK
        parts: list[bytes] = []
        number = bisect.bisect_right(self._files, position, key=lambda item: item.position) - 1
        while size:
            item = self._files[number]
            if item.file.handle is None:
                item.file.handle = self._storage.open(item.file.name)
            at = bisect.bisect_right(item.batches, position, key=lambda batch: batch[0]) - 1
            for begin, offset, length in item.batches[at:]:
                count = min(size, begin + length - position)
                parts.append(item.file.handle.pread(count, offset + position - begin))
                position += count
                size -= count
                if not size:
                    break
            number += 1
        return b"".join(parts)

    def close(self) -> None:
        """Close all files. Idempotent."""
        with self._lock:
            for item in self._files:
                item.file.close()
            self._tail = None


_PUTTING_TYPES: Final = frozenset({_format.LIVE, *(kind.type for kind in KINDS if kind.puts)})
