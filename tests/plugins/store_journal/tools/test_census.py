"""Counting what a data file holds, and finding what is wrong inside whole batches."""

from __future__ import annotations

from pathlib import Path

import pytest
from journal_kit import data_files, opened, write
from numbered import ack, add

from tidegate.spi import AddDestination, RecordDelivery, RemoveDestination
from tidegate_store_journal.log import format as _format
from tidegate_store_journal.log.datafile import read_data_file
from tidegate_store_journal.log.format import DATA_OFFSET, FormatError
from tidegate_store_journal.log.records import BY_TYPE
from tidegate_store_journal.log.walk import Batch, walk
from tidegate_store_journal.tools.census import (
    RECORD_NAMES,
    Census,
)
from tidegate_store_journal.tools.lookon import ReadOnlyStorage


async def filled(where: Path) -> Path:
    store, _ = await opened(where, keep=True)
    await write(store, AddDestination("queue://q", 1), add(1), add(2))
    await write(store, add(3, 1, 2), RecordDelivery(1, (1,), (2,)))
    await write(store, ack(1, 2), RemoveDestination("queue://x", 9))
    await store.close()
    return data_files(where)[0]


def census_of(path: Path, *, checks: bool = True) -> Census:
    storage = ReadOnlyStorage(path.parent)
    return Census(read_data_file(storage, path.name), checks=checks)


async def test_batches_and_records_are_counted_by_type(tmp_path: Path) -> None:
    census = census_of(await filled(tmp_path))
    assert (census.first, census.batches, census.records) == (1, 3, 7)
    assert census.last is not None
    assert census.last.batch == 3
    assert census.types == {
        "add": 3,
        "acknowledge": 1,
        "delivery": 1,
        "add destination": 1,
        "remove destination": 1,
    }
    assert census.problems == []
    assert census.end > DATA_OFFSET


async def test_a_file_without_batches_is_empty(tmp_path: Path) -> None:
    path = await filled(tmp_path)
    spare = data_files(tmp_path)[1]
    assert spare != path
    census = census_of(spare)
    assert (census.first, census.last, census.batches, census.types) == (0, None, 0, {})


async def test_counting_ends_where_a_batch_is_not_whole(tmp_path: Path) -> None:
    path = await filled(tmp_path)
    whole = census_of(path)
    data = bytearray(path.read_bytes())
    data[whole.end - 3] ^= 1
    path.write_bytes(data)
    census = census_of(path)
    assert (census.batches, census.problems) == (2, [])
    assert census.end < whole.end


async def test_a_record_that_is_wrong_inside_a_whole_batch_is_named_with_its_offset(
    tmp_path: Path,
) -> None:
    path = await filled(tmp_path)
    storage = ReadOnlyStorage(path.parent)
    file = read_data_file(storage, path.name)
    batch = next(walk(file))
    assert isinstance(batch, Batch)
    header, payload, at = batch.header, batch.payload, batch.at
    records = list(_format.iterate_records(payload, header.record_count))
    wrong = bytearray(payload)
    wrong[records[1].offset + _format.RECORD_HEADER_BYTES + 5] ^= 1  # the message of the first add
    batch = _format.encode_batch_header(
        file.seed,
        (bytes(wrong),),
        header.batch,
        header.synced,
        header.last_sequence,
        header.last_ack,
        header.last_list,
        header.record_count,
    )
    with path.open("r+b") as raw:
        raw.seek(DATA_OFFSET)
        raw.write(batch + wrong)
    census = census_of(path)
    assert census.batches == 3
    assert census.problems == [(at + records[1].offset, "the CRC of a record (add) does not match")]
    assert census_of(path, checks=False).problems == []


def test_every_type_of_the_format_has_a_name() -> None:
    others = {_format.ADD, _format.ACKNOWLEDGE, _format.COPY, _format.COPIED_ROWS, _format.VOID}
    others |= {_format.REFERENCE, _format.COPY_REFERENCE}
    decoded = set(BY_TYPE)
    assert set(RECORD_NAMES) == decoded | others


def test_what_is_no_data_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "journal-0000000001.data").write_bytes(b"something else")
    with pytest.raises(FormatError, match="header"):
        read_data_file(ReadOnlyStorage(tmp_path), "journal-0000000001.data")
