"""One destination's directory: the record file, and the files of single large messages.

``vrfile`` holds records of any size in blocks that are used again; ``N.msg`` holds one message that
is larger than ``max_record_size``. Which of the records live is not written there: the journal knows.
So a record is never changed or marked, only overwritten when nothing can refer to it any more.

Placing and accounting are for the event loop; what blocks is in :class:`Job` and in the functions.
"""

from __future__ import annotations

import re
import secrets
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidegate_store_journal.log.format import FormatError
from tidegate_store_journal.log.storage import File
from tidegate_store_journal.split import records as _records
from tidegate_store_journal.split.folders import Folder
from tidegate_store_journal.split.records import BLOCK_BYTES, FileHeader, Header, Place, blocks_of
from tidegate_store_journal.split.space import Space

RECORD_FILE: Final = "vrfile"
TEMPORARY: Final = f"{RECORD_FILE}.tmp"
SINGLE_NAME: Final = re.compile(r"(\d+)\.msg")

#: A record file grows by half its size, within these limits, so that growing is rare and wastes
#: little room, also where there are very many destinations.
_GROW_BYTES_MIN: Final = 4 << 10
GROW_BYTES_MAX: Final = 64 << 20
_SCAN_BYTES: Final = 4 << 20
#: The header of a record file, unless the name of its destination is very long.
HEADER_BYTES: Final = 4096
#: Longest record file: 35 bits of block number.
_BLOCKS_MAX: Final = (1 << 35) - 1


@dataclass(frozen=True, slots=True)
class PoolPolicy:
    """What becomes of files of single messages: see the options of these names."""

    limit: int
    clean_ratio: int
    cleanup: bool


class Handle:
    """An open record file, and how many use it; one that was replaced is closed by the last."""

    __slots__ = ("file", "is_retired", "users")

    def __init__(self, file: File) -> None:
        self.file = file
        self.users = 0
        self.is_retired = False

    def give_back(self) -> None:
        """One user less."""
        self.users -= 1
        if self.is_retired and not self.users:
            self.file.close()

    def retire(self) -> None:
        """Close it as soon as nobody uses it."""
        self.is_retired = True
        if not self.users:
            self.file.close()


@dataclass(slots=True)
class Job:
    """What must be written to one directory before the batch may be. ``run`` blocks."""

    folder: RecordFolder
    handle: Handle
    sync: bool
    length: int = 0  # make the record file so long first; 0: it is long enough
    writes: list[tuple[int, list[bytes]]] = field(default_factory=list[tuple[int, list[bytes]]])
    singles: list[tuple[str, bool, bytes]] = field(default_factory=list[tuple[str, bool, bytes]])

    def run(self) -> None:
        """Raises: OSError; anything may have been written then."""
        file = self.handle.file
        if self.length:
            file.preallocate(self.length)
        for offset, buffers in self.writes:
            file.pwritev([b"".join(buffers)], offset)
        for name, is_new, record in self.singles:
            try:
                single = self.folder.files.open(name, create=is_new)
            except FileNotFoundError:
                # The batch that was to make it failed before, or somebody tidied up.
                single = self.folder.files.open(name, create=True)
            try:
                single.pwritev([record], 0)
                if self.sync:
                    single.datasync()
            finally:
                single.close()
        if self.sync:
            if self.singles:
                self.folder.files.sync_directory()
            if self.writes:
                file.datasync()


class RecordFolder:
    """See the module.

    Attributes:
        number: of this directory while the store is open (in places).
        files: where they are; header: of the record file. handle: open, or None.
        space: free room of the record file in blocks.
        messages: how many live here.
        unsynced, unsynced_singles: written without a sync.
    """

    def __init__(
        self, number: int, name: str, files: Folder, header: FileHeader, policy: PoolPolicy
    ) -> None:
        self.number = number
        self.name = name
        self.files = files
        self.header = header
        self.space = Space()
        self.handle: Handle | None = None
        self.messages = 0
        self.unsynced = False
        self.unsynced_singles: set[str] = set()
        self._policy = policy
        self._next_single = 1
        self._single_bytes: dict[int, int] = {}  # of every file of a single message, in use or not
        self._pool_clean: deque[int] = deque()
        self._pool_dirty: deque[int] = deque()
        self._emptying = 0  # files on their way into the clean ones

    # --------------------------------------------------------------------------- at start

    def adopt(
        self,
        length: int,
        used: Sequence[tuple[int, int]],
        singles: dict[int, int],
        used_singles: set[int],
        messages: int,
    ) -> None:
        """Begin with what was found: bytes of the record file, its used extents, and the files of
        single messages with their bytes."""
        blocks = max(0, length - self.header.data_offset) // BLOCK_BYTES
        # The file may be cut off amid its last record, which is damaged but still has its place.
        ends = [start + count for start, count in used[-1:]]
        self.space = Space(max([blocks, *ends]), used)
        self.messages = messages
        self._single_bytes = dict(singles)
        for number in sorted(singles.keys() - used_singles):
            (self._pool_dirty if singles[number] else self._pool_clean).append(number)
        self._next_single = max(singles, default=0) + 1

    # ---------------------------------------------------------------------------- writing

    def job(self, *, sync: bool) -> Job:
        """An empty job. Raises: OSError when the record file cannot be opened."""
        handle = self.borrow()
        return Job(self, handle, sync)

    def borrow(self) -> Handle:
        """The open record file; give it back. Raises: OSError."""
        if self.handle is None:
            self.handle = Handle(self.files.open(RECORD_FILE))
        self.handle.users += 1
        return self.handle

    def place(
        self,
        job: Job,
        records: Sequence[tuple[int, bytes, int]],
        record_bytes_max: int,
        slack_bytes: int = GROW_BYTES_MAX,
    ) -> list[tuple[int, int]]:
        """Find room for *records* (sequence, record, bytes of the body) and tell *job*.

        *slack_bytes*: by how much the record file may grow beyond what is needed.
        Returns: (sequence, packed place) of each.
        """
        placed: list[tuple[int, int]] = []
        small: list[tuple[int, bytes, int, int]] = []
        for sequence, record, body_bytes in records:
            payload_bytes = len(record) - _records.RECORD_HEADER_BYTES
            if payload_bytes > record_bytes_max:
                number, is_new = self._take_single()
                self._single_bytes[number] = max(
                    len(record), 0 if is_new else self._single_bytes.get(number, 0)
                )
                job.singles.append((single_name(number), is_new, record))
                place = Place(self.number, number, payload_bytes, body_bytes, single=True)
                placed.append((sequence, _records.pack_place(place)))
            else:
                small.append((sequence, record, body_bytes, blocks_of(payload_bytes)))
        if small:
            self._place_small(job, small, placed, slack_bytes)
        self.messages += len(records)
        return placed

    def _place_small(
        self,
        job: Job,
        small: Sequence[tuple[int, bytes, int, int]],
        placed: list[tuple[int, int]],
        slack_bytes: int,
    ) -> None:
        """In one piece when there is one that is large enough, else wherever there is room."""
        space = self.space
        total = sum(blocks for _, _, _, blocks in small)
        start = space.take(total)
        if start is None and space.free < 2 * total:
            start = self._grow(job, total, slack_bytes)
        end = -1  # of the piece that was written last
        for sequence, record, body_bytes, blocks in small:
            at = start
            if at is None:
                at = space.take(blocks)
                if at is None:
                    at = self._grow(job, blocks, slack_bytes)
            else:
                start = at + blocks
            offset = self.header.data_offset + at * BLOCK_BYTES
            padded = record.ljust(blocks * BLOCK_BYTES, b"\0")
            if offset == end:
                job.writes[-1][1].append(padded)
            else:
                job.writes.append((offset, [padded]))
            end = offset + len(padded)
            payload_bytes = len(record) - _records.RECORD_HEADER_BYTES
            place = Place(self.number, at, payload_bytes, body_bytes, single=False)
            placed.append((sequence, _records.pack_place(place)))

    def _grow(self, job: Job, blocks: int, slack_bytes: int) -> int:
        """Room for *blocks* at the end of the file."""
        space = self.space
        half = max(_GROW_BYTES_MIN, space.length * BLOCK_BYTES // 2)
        step = min(GROW_BYTES_MAX, slack_bytes, half)
        missing = max(blocks - space.tail, step // BLOCK_BYTES)
        assert space.length + missing <= _BLOCKS_MAX, "a record file has less than 4 TiB"
        space.grow(missing)
        job.length = self.header.data_offset + space.length * BLOCK_BYTES
        start = space.take(blocks)
        assert start is not None
        return start

    def _take_single(self) -> tuple[int, bool]:
        """A file for one message: its number, and whether it must be made."""
        for pool in (self._pool_clean, self._pool_dirty):
            if pool:
                return pool.popleft(), False
        number = self._next_single
        self._next_single += 1
        return number, True

    # ---------------------------------------------------------------------------- freeing

    def give_back(self, place: Place) -> str:
        """Nothing refers to the message any more. Returns: what to do with a file, see Disposal."""
        self.messages -= 1
        if not place.single:
            self.space.give_back(place.number, blocks_of(place.payload_bytes))
            return ""
        policy = self._policy
        clean = len(self._pool_clean) + self._emptying
        pooled = clean + len(self._pool_dirty)
        if pooled >= policy.limit:
            self._single_bytes.pop(place.number, None)
            return "delete"
        if 100 * (clean + 1) <= policy.clean_ratio * (pooled + 1):
            self._single_bytes[place.number] = 0
            self._emptying += 1
            return "empty"
        self._pool_dirty.append(place.number)
        return ""

    def emptied(self, number: int) -> None:
        """The file of a single message is clean now and may be used again."""
        self._emptying -= 1
        self._pool_clean.append(number)

    def all_dirty(self) -> list[int]:
        """For clean-up at the end: files in the pool with contents."""
        return list(self._pool_dirty)

    def delete_pool(self) -> None:
        """Delete the files of single messages that wait to be used again. Blocks. Raises: OSError."""
        for pool in (self._pool_clean, self._pool_dirty):
            while pool:
                number = pool.popleft()
                self.files.unlink(single_name(number))
                self._single_bytes.pop(number, None)
        self.files.sync_directory()

    # --------------------------------------------------------------------------- numbers

    @property
    def record_file_bytes(self) -> int:
        """Length of the record file."""
        return self.header.data_offset + self.space.length * BLOCK_BYTES

    @property
    def live_bytes(self) -> int:
        """Length of the record file if it were compacted now."""
        return self.header.data_offset + self.live_blocks * BLOCK_BYTES

    @property
    def disk_bytes(self) -> int:
        """Of the whole directory."""
        return self.record_file_bytes + sum(self._single_bytes.values())

    @property
    def live_blocks(self) -> int:
        """Blocks of the record file that are not free."""
        return self.space.length - self.space.free


def single_name(number: int) -> str:
    """Name of the file of a single message."""
    return f"{number}.msg"


# ------------------------------------------------------------------------------------ blocking


def create(files: Folder, store_id: str, destination: str) -> FileHeader:
    """Make an empty record file. Raises: OSError.

    Crash story: as for a data file; before the rename is durable there is at most ``vrfile.tmp``.
    """
    header = _records.encode_file_header(store_id, secrets.randbits(64), destination)
    file = files.open(TEMPORARY, create=True)
    try:
        file.pwritev([header], 0)
        file.datasync()
    finally:
        file.close()
    files.rename(TEMPORARY, RECORD_FILE)
    files.sync_directory()
    return _records.decode_file_header(header)


def read_header(file: File) -> FileHeader:
    """The header of an open record file. Raises: FormatError, OSError."""
    first = file.pread(HEADER_BYTES, 0)
    try:
        return _records.decode_file_header(first)
    except FormatError:
        # The name of a destination has up to 64 KiB, so the header can be longer than a page.
        return _records.decode_file_header(file.pread(1 << 17, 0))


def scan(file: File, header: FileHeader) -> Iterator[tuple[int, Header]]:
    """Every record in an open record file, living or not: (block, header). Raises: OSError."""
    offset = header.data_offset
    while True:
        data = file.pread(_SCAN_BYTES, offset)
        if not data:
            return
        first = (offset - header.data_offset) // BLOCK_BYTES
        for at, found in _records.find_headers(header.seed, data):
            yield first + at // BLOCK_BYTES, found
        if len(data) < _SCAN_BYTES:
            return
        offset += _SCAN_BYTES


def sync_folders(work: Sequence[tuple[RecordFolder, Handle, list[str]]]) -> None:
    for folder, handle, singles in work:
        handle.file.datasync()
        for name in singles:
            file = folder.files.open(name)
            try:
                file.datasync()
            finally:
                file.close()
        if singles:
            folder.files.sync_directory()


def dispose(disposals: Sequence[tuple[RecordFolder, int, str]]) -> None:
    for folder, number, disposal in disposals:
        if disposal == "delete":
            folder.files.unlink(single_name(number))
        else:
            folder.files.open(single_name(number), create=True).close()


def clean_up(folders: Sequence[RecordFolder]) -> None:
    dispose([(folder, number, "empty") for folder in folders for number in folder.all_dirty()])
