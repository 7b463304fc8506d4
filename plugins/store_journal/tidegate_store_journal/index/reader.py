"""Reading messages back: neighbouring records in one system call, each verified by its own CRC."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from typing import Final, TypeVar

import msgspec

from tidegate.spi import CorruptRecordError, Message, StoreError, StoreIOError, store_error
from tidegate_store_journal.log.datafile import DataFile
from tidegate_store_journal.log.files import DataFiles
from tidegate_store_journal.log.format import FILE_SHIFT, FormatError, location_parts
from tidegate_store_journal.log.records import read_message, read_small_value, read_value
from tidegate_store_journal.log.storage import File

#: Records this close together are read in one piece: what lies between costs less than a call.
_GAP_BYTES_MAX: Final = 64 << 10
#: Longest piece read at once, unless a single record is longer.
_EXTENT_BYTES_MAX: Final = 4 << 20
#: Files that one page may hold open at a time; they are not closed meanwhile.
_FILES_MAX: Final = 8

T = TypeVar("T")


class MissingRecordError(CorruptRecordError):
    """The file that held a message is not there."""


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
        """As :meth:`read`, but the messages as they are stored."""
        return await self._read(wanted, read_value)

    async def read_small_values(self, wanted: Sequence[tuple[int, int]]) -> list[bytes]:
        """The same; b"" for those whose bodies are in files of their own."""
        return await self._read(wanted, read_small_value)

    async def _read(
        self, wanted: Sequence[tuple[int, int]], decode: Callable[[bytes, int], T]
    ) -> list[T]:
        loop = asyncio.get_running_loop()
        messages: list[T] = []
        for part in _parts(wanted):
            extents = self._plan(part)
            count = len(part)
            future = loop.run_in_executor(
                self._executor, self._read_extents, extents, count, decode
            )
            future.add_done_callback(lambda _, extents=extents: self._give_back(extents))
            # shield: cancelling an executor's future would give back while the thread reads.
            messages += await asyncio.shield(future)
        return messages

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
            begin = extent.begin
            try:
                data = extent.handle.pread(extent.end - begin, begin)
            except OSError as error:
                raise StoreIOError(
                    f"{extent.file.home.describe(extent.file.name)}: {error}"
                ) from error
            for number, sequence, offset, size in extent.records:
                at = offset - begin
                try:
                    messages[number] = decode(data[at : at + size], sequence)
                except FormatError as error:
                    where = f"{extent.file.home.describe(extent.file.name)} at offset {offset}"
                    raise CorruptRecordError(
                        f"{error}. Restore the file from a copy, or discard the message",
                        location=where,
                        raw=data[at : at + size],
                    ) from error
        return [message for message in messages if message is not None]
