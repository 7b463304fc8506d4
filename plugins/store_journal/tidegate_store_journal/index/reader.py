"""Reading messages back: neighbouring records in one system call, each verified by its own CRC."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Final, TypeVar

import msgspec

from tidegate.spi import CorruptRecordError, Message, StoreError, StoreIOError, store_error
from tidegate_store_journal.log.datafile import DataFile
from tidegate_store_journal.log.files import DataFiles
from tidegate_store_journal.log.format import (
    FILE_SHIFT,
    MASK_32,
    SHARED_BIT,
    FormatError,
    location_parts,
)
from tidegate_store_journal.log.records import (
    read_message,
    read_small_value,
    read_small_values,
    read_value,
)
from tidegate_store_journal.log.storage import File

#: Records this close together are read in one piece: the gap costs less than a call.
_GAP_BYTES_MAX: Final = 64 << 10
#: Longest piece read at once, unless a single record is longer.
_EXTENT_BYTES_MAX: Final = 4 << 20
#: Files that one page may hold open at a time; they are not closed meanwhile.
_FILES_MAX: Final = 8

T = TypeVar("T")


class MissingRecordError(CorruptRecordError):
    """The file that held a message is missing."""


def _parts(wanted: Sequence[tuple[int, int]]) -> Iterator[Sequence[tuple[int, int]]]:
    """*wanted* in parts of few files each."""
    begin = 0
    files: set[int] = set()
    for number, (_, location) in enumerate(wanted):
        files.add(location >> FILE_SHIFT)
        if len(files) > _FILES_MAX:
            yield wanted[begin:number]
            begin, files = number, {location >> FILE_SHIFT}
    yield wanted[begin:] if begin else wanted


class _Extent(msgspec.Struct, eq=False):
    """A piece of one file: records as (number in the answer, sequence, offset, bytes)."""

    file: DataFile
    handle: File
    begin: int
    end: int = 0
    records: list[tuple[int, int, int, int]] = []


class Reader:
    """Reads messages by location in a few threads."""

    def __init__(self, files: DataFiles, executor: Executor) -> None:
        self._files = files
        self._executor = executor

    async def read(self, wanted: Sequence[tuple[int, int]]) -> list[Message]:
        """The messages at (sequence, location), in the order of *wanted*.

        Raises: CorruptRecordError, StoreIOError.
        Cancellation: safe; the files stay open until the thread is done with them.
        """
        return await self._read(wanted, read_message)

    async def read_values(self, wanted: Sequence[tuple[int, int]]) -> list[bytes]:
        """As :meth:`read`, but with the messages as stored."""
        return await self._read(wanted, read_value)

    async def read_small_values(
        self, sequences: Sequence[int], locations: Sequence[int]
    ) -> list[bytes]:
        """The same in the order of the lists; b"" for messages whose bodies have their own files.

        Raises, cancellation: as :meth:`read`.
        """
        extent = self._one_extent(sequences, locations)
        if extent is not None:
            try:
                return await self._in_thread(
                    [extent], lambda: _read_dense(extent, sequences, locations)
                )
            except FormatError:
                pass  # reading them one by one will show which it is
        wanted = list(zip(sequences, locations, strict=True))
        return await self._read(wanted, read_small_value)

    def _one_extent(self, sequences: Sequence[int], locations: Sequence[int]) -> _Extent | None:
        """One piece of a file that has all of them; None when they are not close together."""
        if not locations:
            return None
        if max(locations) & SHARED_BIT:  # its bit is above those of the offset
            locations = [location & ~SHARED_BIT for location in locations]
        first, last = min(locations), max(locations)
        file_id, begin, _, _ = location_parts(first)
        last_file, offset, size, _ = location_parts(last)
        length = offset + size - begin
        if last_file != file_id or length > _EXTENT_BYTES_MAX:
            return None
        wanted = sum([location >> 32 & MASK_32 for location in locations])
        if length > 2 * wanted + _GAP_BYTES_MAX:
            return None
        extent = self._begin_extent(file_id, begin, sequences[0])
        extent.end = begin + length
        return extent

    async def _read(
        self, wanted: Sequence[tuple[int, int]], decode: Callable[[bytes, int], T]
    ) -> list[T]:
        messages: list[T] = []
        for part in _parts(wanted):
            extents = self._plan(part)
            messages += await self._in_thread(
                extents, partial(self._read_extents, extents, len(part), decode)
            )
        return messages

    async def _in_thread(self, extents: Sequence[_Extent], work: Callable[[], list[T]]) -> list[T]:
        """Do *work* in a thread, then give back the files of *extents*."""
        future = asyncio.get_running_loop().run_in_executor(self._executor, work)
        future.add_done_callback(lambda _: self._give_back(extents))
        # shield: cancelling an executor's future would give back while the thread reads.
        return await asyncio.shield(future)

    def _give_back(self, extents: Sequence[_Extent]) -> None:
        for extent in extents:
            self._files.give_back(extent.file)

    def _plan(self, wanted: Sequence[tuple[int, int]]) -> list[_Extent]:
        extents: list[_Extent] = []
        extent: _Extent | None = None
        for number, (sequence, location) in enumerate(wanted):
            file_id, offset, size, _ = location_parts(location)
            if (
                extent is None
                or extent.file.file_id != file_id
                or not extent.end <= offset <= extent.end + _GAP_BYTES_MAX
                or offset + size - extent.begin > _EXTENT_BYTES_MAX
            ):
                try:
                    extent = self._begin_extent(file_id, offset, sequence)
                except StoreError:
                    self._give_back(extents)
                    raise
                extents.append(extent)
            extent.records.append((number, sequence, offset, size))
            extent.end = offset + size
        return extents

    def _begin_extent(self, file_id: int, offset: int, sequence: int) -> _Extent:
        file = self._files.get(file_id)
        if file is None:
            raise MissingRecordError(
                f"message {sequence} is pending but its data file is gone",
                location=f"data file {file_id} at offset {offset}",
            )
        try:
            return _Extent(file, self._files.borrow(file), offset)
        except FileNotFoundError as error:
            raise MissingRecordError(
                f"the file that held message {sequence} is missing. Restore it from a copy; or set "
                "ignore_missing_journalfiles = true in [store] to go on without what was in it",
                location=file.home.describe(file.name),
            ) from error
        except OSError as error:
            raise store_error(file.home.describe(file.name), error) from error

    def _read_extents(
        self, extents: Sequence[_Extent], count: int, decode: Callable[[bytes, int], T]
    ) -> list[T]:
        messages: list[T | None] = [None] * count
        for extent in extents:
            begin, data = extent.begin, _bytes_of(extent)
            for number, sequence, offset, size in extent.records:
                at = offset - begin
                try:
                    messages[number] = decode(data[at : at + size], sequence)
                except FormatError as error:
                    where = f"{extent.file.home.describe(extent.file.name)} at offset {offset}"
                    raise CorruptRecordError(
                        f"{error}. Restore the file from a copy, or restart with damaged_journal_policy = "
                        '"quarantine", which puts the message aside and reports it',
                        location=where,
                        raw=data[at : at + size],
                    ) from error
        return [message for message in messages if message is not None]


def _bytes_of(extent: _Extent) -> bytes:
    """Raises: StoreIOError."""
    try:
        return extent.handle.pread(extent.end - extent.begin, extent.begin)
    except OSError as error:
        raise StoreIOError(f"{extent.file.home.describe(extent.file.name)}: {error}") from error


def _read_dense(extent: _Extent, sequences: Sequence[int], locations: Sequence[int]) -> list[bytes]:
    return read_small_values(_bytes_of(extent), extent.begin, sequences, locations)
