"""One destination's directory: its data files, and where and how the next records are written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from typing import Final, NamedTuple, Self

from tidegate_store_journal.bodies.folders import Folders
from tidegate_store_journal.log import format as _format
from tidegate_store_journal.log.datafile import DataFile, make_file, new_file
from tidegate_store_journal.log.format import (
    ADD,
    BATCH_HEADER_BYTES,
    DATA_OFFSET,
    END_MARK,
    encode_record,
)
from tidegate_store_journal.log.homes import Home

#: Most that a file grows by at once, and only if that fits a few more batches: large batches would
#: just write the space twice.
_PAD_BYTES_MAX: Final = 1 << 20
_PAD_BATCHES_MIN: Final = 4
_ZEROS: Final = bytes(_PAD_BYTES_MAX)

#: A message as it lies in a directory: sequence, record, bytes of its body.
Item = tuple[int, bytes, int]


class Spot(NamedTuple):
    """Where the next batch goes: after *batch* batches, at *end* of *file*."""

    file: DataFile
    end: int = DATA_OFFSET
    batch: int = 0


class Directory(Home):
    """Attributes:
    spots: where messages are appended ("tail") and where compaction copies to ("copies"); empty
        after a start: data after the last reference may belong to a batch that never completed.
    is_used: written to since the last check.
    """

    def __init__(self, name: str, folders: Folders, executor: Executor, *, is_made: bool) -> None:
        super().__init__(name, folders.get(name), executor)
        self.folders = folders
        self.is_made = is_made
        self.is_used = True
        self.spots: dict[str, Spot] = {}

    def delete(self, names: Iterable[str]) -> None:
        """Delete dead files that have left the pool. Blocks. Raises: OSError."""
        for name in names:
            self.folder.unlink(name)
        self.folder.sync_directory()

    def empty_pool(self) -> None:
        """Truncate the pool's dead files, keeping their names. Blocks. Raises: OSError."""
        for name, length in list(self.pool):
            if length:
                self.folder.open(name, create=True).close()


class Job:
    """One batch for one data file: planned on the loop, carried out in a thread.

    Attributes: places: locations by sequence; spot: where the next batch goes; end: of the written
        bytes, padding included; error: why it failed. is_new_file: the file is created for it.
    """

    def __init__(self, directory: Directory, key: str, spot: Spot) -> None:
        """A batch after the existing ones."""
        self.directory = directory
        self.key = key
        self.file = spot.file
        self.spot = spot
        self.end = spot.end
        self.places: dict[int, int] = {}
        self.error: OSError | None = None
        self.is_new_file = False
        self._buffers: list[bytes] = []
        self._free = ""

    @classmethod
    def in_new_file(
        cls, directory: Directory, key: str, *, store_id: str, file_id: int, length: int
    ) -> Self:
        """A batch that starts a file, reusing the dead one whose length is nearest to *length*."""
        free, old_length = "", 0
        if directory.pool:
            best = min(directory.pool, key=lambda item: abs(item[1] - length))
            directory.pool.remove(best)
            free, old_length = best
        home, name, reused = directory.folder, directory.name, old_length > 0
        file, page = new_file(home, store_id, file_id, length, reused=reused, folder=name)
        file.length = old_length
        job = cls(directory, key, Spot(file))
        job.is_new_file = True
        job._buffers.append(page)
        job._free = free
        return job

    def put(self, items: Sequence[Item], *, growth_max: int) -> None:
        """Encode the batch. *growth_max*: how far the file may grow beyond it.

        Syncing a file that did not grow writes only data, so a file grows by half its length at a
        time, in zeros that later batches overwrite.
        """
        file, spot = self.file, self.spot
        at = spot.end + BATCH_HEADER_BYTES
        for sequence, record, body in items:
            self.places[sequence] = _format.location(file.file_id, at, len(record), body)
            at += len(record)
        payload = b"".join([record for _, record, _ in items])
        last = max(sequence for sequence, _, _ in items)
        number = spot.batch + 1
        header = _format.encode_batch_header(
            file.seed, (payload,), number, 0, last, 0, 0, len(items)
        )
        self._buffers += [header, payload]
        if file.reused:
            self._buffers.append(END_MARK)
        self._offset = 0 if self.is_new_file else spot.end
        self.spot = Spot(file, at, number)
        self.end = at
        pad = min(at // 2, growth_max, _PAD_BYTES_MAX)
        if at > file.length and pad >= _PAD_BATCHES_MIN * (len(payload) + BATCH_HEADER_BYTES):
            self._buffers.append(_ZEROS[:pad])
            self.end += pad

    def write(self) -> None:
        """In a thread. Raises: OSError.

        Crash story: a new file has its header and its first batch on stable storage before it gets
        its name, and its name before anything refers to it.
        """
        file, directory = self.file, self.directory
        if not self.is_new_file:
            assert file.handle is not None
            file.handle.pwritev(self._buffers, self._offset)
            return
        if not directory.is_made:
            directory.folders.make(directory.name)
        file.handle = make_file(
            file.home, file.name, lambda to: to.pwritev(self._buffers, 0), free=self._free
        )

    def sync(self) -> None:
        """In a thread. Raises: OSError."""
        if not self.is_new_file:
            assert self.file.handle is not None
            self.file.handle.datasync()


def carry_out(jobs: Sequence[Job], *, synced: bool) -> None:
    """In a thread: write all, then sync all; each job keeps its own error."""
    for step in (Job.write, Job.sync) if synced else (Job.write,):
        for job in jobs:
            if job.error is None:
                try:
                    step(job)
                except OSError as error:
                    job.error = error


def item_of(sequence: int, value: bytes, body_bytes: int) -> Item:
    """A message as stored in a directory; its reference says which lists hold it."""
    return sequence, encode_record(ADD, value, sequence=sequence, body_bytes=body_bytes), body_bytes
