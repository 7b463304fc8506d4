"""Reading messages: few system calls, every record verified, files kept open meanwhile."""

from __future__ import annotations

import errno
from concurrent.futures import ThreadPoolExecutor

import pytest
from journal_kit import CrashStorage
from numbered import message

from tidegate.spi import CorruptRecordError, StoreIOError
from tidegate_store_journal import JournalOptions
from tidegate_store_journal.index.reader import Reader
from tidegate_store_journal.log import format as _format
from tidegate_store_journal.log.datafile import DataFile
from tidegate_store_journal.log.files import DataFiles
from tidegate_store_journal.log.format import DATA_OFFSET, location

LENGTH = 1 << 20


class Bench:
    """Files with messages at chosen places, and a reader."""

    def __init__(self, executor: ThreadPoolExecutor) -> None:
        self.storage = CrashStorage()
        self.reads = 0
        self.storage.fault = self.count
        self.error: OSError | None = None
        options = JournalOptions(journal_max_file_length=LENGTH)
        self.files = DataFiles(self.storage, executor, options, store_id="0" * 32)
        self.reader = Reader(self.files, executor)
        self.made: list[DataFile] = []

    def count(self, operation: str, _name: str) -> OSError | None:
        if operation == "pread":
            self.reads += 1
            return self.error
        return None

    async def file(self) -> DataFile:
        file = await self.files.take(LENGTH + 1, grows=False)
        assert file is not None
        self.made.append(file)
        return file

    def put(self, file: DataFile, offset: int, sequence: int) -> tuple[int, int]:
        wanted = message(sequence)
        record = _format.encode_record(_format.ADD, _format.encode(wanted), sequence=sequence)
        assert file.handle is not None
        file.handle.pwritev([record], offset)
        return sequence, location(file.file_id, offset, len(record), len(wanted.body))


async def test_neighbours_are_read_in_one_piece_and_far_ones_apart() -> None:
    with ThreadPoolExecutor(1) as executor:
        bench = Bench(executor)
        first, second = await bench.file(), await bench.file()
        wanted = [
            bench.put(first, DATA_OFFSET, 1),
            bench.put(first, DATA_OFFSET + 1000, 2),
            bench.put(first, DATA_OFFSET + 900_000, 3),
            bench.put(second, DATA_OFFSET, 4),
            bench.put(first, DATA_OFFSET + 2000, 5),
        ]
        messages = await bench.reader.read(wanted)
        assert messages == [message(number) for number in range(1, 6)]
        assert bench.reads == 4
        assert [file.readers for file in bench.made] == [0, 0]


async def test_a_damaged_record_is_reported_with_its_place() -> None:
    with ThreadPoolExecutor(1) as executor:
        bench = Bench(executor)
        file = await bench.file()
        wanted = [bench.put(file, DATA_OFFSET, 1), bench.put(file, 8000, 2)]
        bench.storage.flip(file.name, 8000 + 60)
        with pytest.raises(CorruptRecordError, match="message 2") as caught:
            await bench.reader.read(wanted)
        assert caught.value.location == f"crash:{file.name} at offset 8000"
        assert file.readers == 0
        assert await bench.reader.read(wanted[:1]) == [message(1)]


async def test_a_missing_file_is_reported_and_the_others_are_given_back() -> None:
    with ThreadPoolExecutor(1) as executor:
        bench = Bench(executor)
        file = await bench.file()
        wanted = [bench.put(file, DATA_OFFSET, 1), (2, location(99, 5000, 10, 1))]
        with pytest.raises(CorruptRecordError) as caught:
            await bench.reader.read(wanted)
        assert caught.value.location == "data file 99 at offset 5000"
        assert file.readers == 0


async def test_an_error_of_the_disk_is_a_store_error() -> None:
    with ThreadPoolExecutor(1) as executor:
        bench = Bench(executor)
        file = await bench.file()
        wanted = [bench.put(file, DATA_OFFSET, 1)]
        bench.error = OSError(errno.EIO, "broken")
        with pytest.raises(StoreIOError, match="broken"):
            await bench.reader.read(wanted)
        assert file.readers == 0
