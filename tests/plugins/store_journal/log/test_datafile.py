"""Data files come into being whole, or not at all."""

from __future__ import annotations

import pytest
from journal_kit import CrashStorage, full

from tidegate_store_journal.log.datafile import prepare
from tidegate_store_journal.log.format import (
    DATA_OFFSET,
    END_MARK,
    FILE_HEADER_BYTES,
    decode_batch_header,
    decode_file_header,
    encode_batch_header,
)

STORE_ID = "0" * 32


LENGTH = 65536


def test_a_prepared_file_survives_a_power_cut_empty_and_whole() -> None:
    storage = CrashStorage()
    file = prepare(storage, STORE_ID, 3, LENGTH)
    after = storage.crash()
    handle = after.open(file.name)
    header = decode_file_header(handle.pread(FILE_HEADER_BYTES, 0))
    assert (header.store_id, header.file_id, header.length) == (STORE_ID, 3, LENGTH)
    assert header.seed == file.seed
    assert handle.pread(LENGTH, DATA_OFFSET) == bytes(LENGTH - DATA_OFFSET)


def test_two_files_never_have_the_same_seed() -> None:
    storage = CrashStorage()
    seeds = {prepare(storage, STORE_ID, 3, LENGTH).seed for _ in range(5)}
    assert len(seeds) == 5


def test_a_file_that_cannot_be_prepared_leaves_nothing_behind() -> None:
    storage = CrashStorage()
    storage.fault = full("preallocate")
    with pytest.raises(OSError, match="space"):
        prepare(storage, STORE_ID, 3, LENGTH)
    assert storage.list() == []


def dead_file(storage: CrashStorage) -> str:
    """A file full of a batch that was valid in its life, put away."""
    file = prepare(storage, STORE_ID, 3, LENGTH)
    assert file.handle is not None
    payload = bytes(range(256)) * 200
    header = encode_batch_header(file.seed, (payload,), 7, 6, 1, 0, 0, 1)
    file.handle.pwritev([header, payload], DATA_OFFSET)
    file.handle.datasync()
    storage.rename(file.name, "journal-0000000003.free")
    storage.sync_directory()
    return "journal-0000000003.free"


def test_a_reused_file_is_as_long_as_before_and_none_of_its_old_batches_is_valid() -> None:
    storage = CrashStorage()
    free = dead_file(storage)
    old = storage.open(free).pread(LENGTH, 0)
    file = prepare(storage, STORE_ID, 9, LENGTH, free=free)
    after = storage.crash()
    assert after.list() == [file.name] == ["journal-0000000009.data"]
    data = after.open(file.name).pread(LENGTH, 0)
    header = decode_file_header(data)
    assert (header.file_id, header.length, header.reused) == (9, LENGTH, True)
    assert header.seed == file.seed != decode_file_header(old).seed
    assert decode_batch_header(file.seed, data[DATA_OFFSET:]) is None
    assert decode_batch_header(file.seed, old[DATA_OFFSET:]) is None
    assert data[DATA_OFFSET : DATA_OFFSET + 64] == END_MARK
    assert data[DATA_OFFSET + 64 :] == old[DATA_OFFSET + 64 :]  # nothing else was written


def test_reusing_a_file_writes_one_page_and_a_mark() -> None:
    storage = CrashStorage()
    free = dead_file(storage)
    before = storage.written
    prepare(storage, STORE_ID, 9, LENGTH, free=free)
    assert storage.written - before == DATA_OFFSET + len(END_MARK)


@pytest.mark.parametrize("at", range(4))
def test_a_power_cut_while_a_file_is_reused_leaves_no_half_made_data_file(at: int) -> None:
    storage = CrashStorage()
    free = dead_file(storage)
    calls = 0

    def fault(_operation: str, _name: str) -> OSError | None:
        nonlocal calls
        calls += 1
        return OSError(5, "cut") if calls > at else None

    storage.fault = fault
    try:
        prepare(storage, STORE_ID, 9, LENGTH, free=free)
    except OSError:
        assert at < 3
    else:
        assert at == 3
    for seed in range(10):
        for name in (after := storage.crash(seed)).list():
            if name.endswith(".data"):
                header = decode_file_header(after.open(name).pread(64, 0))
                assert header.file_id == 9
                assert not after.open(name).pread(64, DATA_OFFSET).strip(b"\0")


def test_a_file_that_cannot_be_reused_leaves_nothing_behind() -> None:
    storage = CrashStorage()
    free = dead_file(storage)
    storage.fault = full("pwritev")
    with pytest.raises(OSError, match="space"):
        prepare(storage, STORE_ID, 9, LENGTH, free=free)
    assert storage.list() == []
