"""One destination's directory: its data files, where the next records go, and writing them there."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Sequence
from typing import Final

from tidegate_store_journal.log import format as _format
from tidegate_store_journal.log.datafile import DataFile
from tidegate_store_journal.log.format import BATCH_HEADER_BYTES, DATA_OFFSET, END_MARK
from tidegate_store_journal.log.storage import Folder

#: A file grows by so much at once at most, and only when that is room for some more batches: with
#: large ones it would only be written twice.
_PAD_BYTES_MAX: Final = 1 << 20
_PAD_BATCHES_MIN: Final = 4
_ZEROS: Final = bytes(_PAD_BYTES_MAX)

#: A message as it lies in a directory: sequence, record, bytes of its body.
Item = tuple[int, bytes, int]


class Spot:
    """Where the next batch goes: behind *batch* batches, at *end* of *file*."""

    __slots__ = ("batch", "end", "file")

    def __init__(self, file: DataFile, end: int = DATA_OFFSET, batch: int = 0) -> None:
        self.file = file
        self.end = end
        self.batch = batch


class Directory:
    """Attributes:
    files: by id. pool: names and lengths of dead files. spots: where messages are appended
        ("tail") and where compaction copies to ("copies"); none after a start, because what lies
        behind the last reference may be of a batch that never came.
    is_used: written to since somebody looked.
    """

    __slots__ = ("files", "home", "is_made", "is_used", "name", "pool", "spots")

    def __init__(self, name: str, home: Folder, *, is_made: bool) -> None:
        self.name = name
        self.home = home
        self.is_made = is_made
        self.is_used = True
        self.files: dict[int, DataFile] = {}
        self.pool: list[tuple[str, int]] = []
        self.spots: dict[str, Spot] = {}

    @property
    def disk_bytes(self) -> int:
        """Bytes of all its files."""
        return sum(file.length for file in self.files.values()) + sum(n for _, n in self.pool)


class Job:
    """One batch for one data file: planned on the loop, carried out in a thread.

    Attributes: places: locations by sequence; spot: where the next one goes then; end: of what is
        written, padding included; error: what became of it.
    """

    __slots__ = (
        "_buffers",
        "_make",
        "_offset",
        "_source",
        "directory",
        "end",
        "error",
        "file",
        "key",
        "places",
        "spot",
    )

    def __init__(self, directory: Directory, key: str, file: DataFile, spot: Spot) -> None:
        self.directory = directory
        self.key = key
        self.file = file
        self.spot = spot
        self.end = spot.end
        self.places: dict[int, int] = {}
        self.error: OSError | None = None
        self._buffers: list[bytes] = []
        self._offset = spot.end
        self._source: str | None = None  # of a new file: the dead one that it is made of, or ""
        self._make: Callable[[], object] | None = None

    @property
    def is_new_file(self) -> bool:
        """The file is made for this batch."""
        return self._source is not None

    def begin_file(self, header: bytes, source: str, make: Callable[[], object] | None) -> None:
        """The file is to be made: of the dead one called *source*, "" for none. *make*: the
        directory."""
        self._source = source
        self._make = make
        self._buffers.append(_format.header_page(header))

    def put(self, items: Sequence[Item], *, growth_max: int) -> None:
        """Encode the batch. *growth_max*: the file may grow by so much beyond it.

        A sync of a file that did not grow writes data only, so a file grows by half its length at a
        time, in zeros that later batches write over.
        """
        file, spot = self.file, self.spot
        at = spot.end + BATCH_HEADER_BYTES
        for sequence, record, body in items:
            self.places[sequence] = _format.location(file.file_id, at, len(record), body)
            at += len(record)
        payload = b"".join([record for _, record, _ in items])
        last = max(sequence for sequence, _, _ in items)
        number = spot.batch + 1
        header = _format.encode_batch_header(file.seed, payload, number, 0, last, 0, 0, len(items))
        self._buffers += [header, payload]
        if file.reused:
            self._buffers.append(END_MARK)
        self.spot = Spot(file, at, number)
        self.end = at
        pad = min(at // 2, growth_max, _PAD_BYTES_MAX)
        if at > file.length and pad >= _PAD_BATCHES_MIN * (len(payload) + BATCH_HEADER_BYTES):
            self._buffers.append(_ZEROS[:pad])
            self.end += pad

    def write(self) -> None:
        """In a thread; what is new gets its name only in :meth:`finish`. Raises: OSError."""
        file = self.file
        if self._source is None:
            assert file.handle is not None
            file.handle.pwritev(self._buffers, self._offset)
            return
        if self._make is not None:
            self._make()
        temporary = file.name + ".tmp"
        if self._source:
            file.home.rename(self._source, temporary)
        file.handle = file.home.open(temporary, create=not self._source)
        file.handle.pwritev(self._buffers, 0)

    def finish(self, *, synced: bool) -> None:
        """In a thread. Raises: OSError.

        Crash story: a new file has its header and its first batch on stable storage before it has
        its name, and its name before anything refers to it.
        """
        file = self.file
        assert file.handle is not None
        if synced or self._source is not None:
            file.handle.datasync()
        if self._source is not None:
            file.home.rename(file.name + ".tmp", file.name)
            file.home.sync_directory()

    def abandon(self) -> None:
        """In a thread: leave nothing of a new file that was not made."""
        if self._source is not None:
            if self.file.handle is not None:
                self.file.handle.close()
            with contextlib.suppress(OSError):
                self.file.home.unlink(self.file.name + ".tmp")


def job_in_place(directory: Directory, key: str) -> Job:
    """A batch behind those that are there."""
    spot = directory.spots[key]
    return Job(directory, key, spot.file, spot)


def job_in_new_file(
    directory: Directory,
    key: str,
    *,
    store_id: str,
    file_id: int,
    length: int,
    make: Callable[[], object],
) -> Job:
    """A batch that begins a file, made of the dead one whose length is nearest to *length*."""
    source, old_length = "", 0
    if directory.pool:
        best = min(directory.pool, key=lambda item: abs(item[1] - length))
        directory.pool.remove(best)
        source, old_length = best
    reused = old_length > 0
    salt = secrets.randbits(64)
    header = _format.encode_file_header(store_id, file_id, salt, length, reused=reused)
    seed = _format.decode_file_header(header).seed
    file = DataFile(
        file_id,
        old_length,
        seed,
        None,
        home=directory.home,
        folder=directory.name,
        reused=reused,
    )
    job = Job(directory, key, file, Spot(file))
    job.begin_file(header, source, None if directory.is_made else make)
    return job


def carry_out(jobs: Sequence[Job], *, synced: bool) -> None:
    """In a thread: write all, then sync all; what went wrong is in each job."""
    for job in jobs:
        try:
            job.write()
        except OSError as error:
            job.error = error
    for job in jobs:
        if job.error is None:
            try:
                job.finish(synced=synced)
            except OSError as error:
                job.error = error
        if job.error is not None:
            job.abandon()
