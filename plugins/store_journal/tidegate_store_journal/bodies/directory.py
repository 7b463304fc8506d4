"""One destination's directory: its data files, where the next records go, and writing them there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from tidegate_store_journal.log import format as _format
from tidegate_store_journal.log.datafile import DataFile, make_file, new_file
from tidegate_store_journal.log.format import (
    ADD,
    BATCH_HEADER_BYTES,
    DATA_OFFSET,
    END_MARK,
    encode_record,
)
from tidegate_store_journal.log.storage import Folder

#: A file grows by so much at once at most, and only when that is room for some more batches: with
#: large ones it would only be written twice.
_PAD_BYTES_MAX: Final = 1 << 20
_PAD_BATCHES_MIN: Final = 4
_ZEROS: Final = bytes(_PAD_BYTES_MAX)

#: A message as it lies in a directory: sequence, record, bytes of its body.
Item = tuple[int, bytes, int]


class Spot(NamedTuple):
    """Where the next batch goes: behind *batch* batches, at *end* of *file*."""

    file: DataFile
    end: int = DATA_OFFSET
    batch: int = 0


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
        written, padding included; error: what became of it. is_new_file: the file is made for it.
    """

    def __init__(self, directory: Directory, key: str, spot: Spot) -> None:
        """A batch behind those that are there."""
        self.directory = directory
        self.key = key
        self.file = spot.file
        self.spot = spot
        self.end = spot.end
        self.places: dict[int, int] = {}
        self.error: OSError | None = None
        self.is_new_file = False
        self._buffers: list[bytes] = []
        self._offset = spot.end
        self._free = ""
        self._make: Callable[[], object] | None = None

    @classmethod
    def in_new_file(
        cls,
        directory: Directory,
        key: str,
        *,
        store_id: str,
        file_id: int,
        length: int,
        make: Callable[[], object],
    ) -> Job:
        """A batch that begins a file, of the dead one whose length is nearest to *length*.

        *make*: makes the directory.
        """
        free, old_length = "", 0
        if directory.pool:
            best = min(directory.pool, key=lambda item: abs(item[1] - length))
            directory.pool.remove(best)
            free, old_length = best
        file, page = new_file(
            directory.home,
            store_id,
            file_id,
            length,
            reused=old_length > 0,
            folder=directory.name,
        )
        file.length = old_length
        job = cls(directory, key, Spot(file))
        job.is_new_file = True
        job._buffers.append(page)
        job._offset = 0
        job._free = free
        job._make = None if directory.is_made else make
        return job

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

    def write(self, *, synced: bool) -> None:
        """In a thread. Raises: OSError."""
        del synced
        if not self.is_new_file:
            assert self.file.handle is not None
            self.file.handle.pwritev(self._buffers, self._offset)

    def finish(self, *, synced: bool) -> None:
        """In a thread. Raises: OSError.

        Crash story: a new file has its header and its first batch on stable storage before it has
        its name, and its name before anything refers to it.
        """
        file = self.file
        if self.is_new_file:
            if self._make is not None:
                self._make()
            file.handle = make_file(
                file.home, file.name, lambda to: to.pwritev(self._buffers, 0), free=self._free
            )
        elif synced:
            assert file.handle is not None
            file.handle.datasync()


def carry_out(jobs: Sequence[Job], *, synced: bool) -> None:
    """In a thread: write all, then sync all; what went wrong is in each job."""
    for step in (Job.write, Job.finish):
        for job in jobs:
            if job.error is None:
                try:
                    step(job, synced=synced)
                except OSError as error:
                    job.error = error


def item_of(sequence: int, value: bytes, body_bytes: int) -> Item:
    """A message as it lies in a directory; who has it, the reference says."""
    return sequence, encode_record(ADD, value, sequence=sequence, body_bytes=body_bytes), body_bytes


def put_away(home: Folder, files: Sequence[DataFile], kept: dict[str, int]) -> None:
    """In a thread."""
    for file in files:
        free = _format.free_name(file.file_id)
        if free in kept:
            home.rename(file.name, free)
            if not kept[free]:
                home.open(free, create=True).close()
        else:
            home.unlink(file.name)
    home.sync_directory()


def delete(home: Folder, names: Sequence[str]) -> None:
    for name in names:
        home.unlink(name)
    home.sync_directory()
