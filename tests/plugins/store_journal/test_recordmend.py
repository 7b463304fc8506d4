"""Damaged headers of record files are put right from what is known elsewhere, and from nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.spi import Message
from tidegate_store_journal.log.format import crc32c, encode
from tidegate_store_journal.split import records as _records
from tidegate_store_journal.split.recordmend import (
    Candidate,
    Known,
    crc_before,
    destination_in,
    find_damaged,
    header_with_seed,
    mended_record_header,
    seed_of_record,
)
from tidegate_store_journal.split.records import BLOCK_BYTES, RECORD_HEADER_BYTES

STORE = "0123456789abcdef0123456789abcdef"
SEED = 0xC0FFEE11
KNOWN = Known(9, 4)


def record(sequence: int = 7, write: int = 9, body: bytes = b"body", seed: int = SEED) -> bytes:
    payload = encode(Message("queue://q", body))
    return _records.encode_record(seed, sequence, write, payload, len(body))


@given(st.integers(0, (1 << 32) - 1), st.binary(max_size=50))
def test_a_crc_runs_backwards(seed: int, data: bytes) -> None:
    assert crc_before(crc32c(seed, data), data) == seed


@given(st.integers(0, (1 << 32) - 1), st.text(max_size=30))
def test_a_header_is_made_for_any_seed(seed: int, name: str) -> None:
    header = _records.decode_file_header(header_with_seed(STORE, f"queue://{name}", seed))
    assert (header.seed, header.store_id, header.destination) == (seed, STORE, f"queue://{name}")


def test_a_whole_record_says_what_its_seed_was_and_no_other_one_does() -> None:
    data = b"x" * BLOCK_BYTES + record()
    assert seed_of_record(data, BLOCK_BYTES) == SEED
    assert destination_in(data, BLOCK_BYTES, SEED) == "queue://q"
    assert seed_of_record(data) is None
    for at in range(len(record())):
        damaged = bytearray(record())
        damaged[at] ^= 32
        assert seed_of_record(bytes(damaged)) is None
    assert destination_in(data, BLOCK_BYTES, SEED + 1) is None
    noise = _records.encode_record(SEED, 7, 9, b"\xc1", 4)
    assert seed_of_record(noise) == SEED
    assert destination_in(noise, 0, SEED) is None


def test_a_bit_flipped_in_any_byte_of_a_record_header_is_turned_back() -> None:
    whole = record()
    for at in range(RECORD_HEADER_BYTES):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[at] ^= 1 << bit
            header = mended_record_header(SEED, bytes(damaged), 7, KNOWN)
            assert header == whole[:RECORD_HEADER_BYTES], (at, bit)


@pytest.mark.parametrize("field", [(0, 4), (8, 16), (16, 24), (24, 28), (32, 36), (36, 40)])
def test_a_field_that_the_reference_knows_may_be_gone_altogether(field: tuple[int, int]) -> None:
    whole = record()
    damaged = bytearray(whole)
    damaged[slice(*field)] = bytes(b ^ 0xFF for b in damaged[slice(*field)])
    assert mended_record_header(SEED, bytes(damaged), 7, KNOWN) == whole[:RECORD_HEADER_BYTES]


def test_a_record_of_another_batch_is_not_made_the_one_that_is_wanted() -> None:
    """Same message number, same length, another write: of a batch that never came."""
    other = bytearray(record(write=8))
    other[38] ^= 1
    assert mended_record_header(SEED, bytes(other), 7, KNOWN) is None
    assert mended_record_header(SEED, bytes(RECORD_HEADER_BYTES), 7, KNOWN) is None
    assert mended_record_header(SEED, b"TGR1", 7, KNOWN) is None


@pytest.mark.parametrize("at", [1, 9, 17, 25, 29, 37])
def test_a_damaged_header_is_found_by_what_is_left_of_it(at: int) -> None:
    size = _records.blocks_of(len(record()) - RECORD_HEADER_BYTES) * BLOCK_BYTES
    damaged = bytearray(record())
    damaged[at] ^= 8
    data = b"".join(
        item.ljust(size, b"\0") for item in (record(6, 8), bytes(damaged), record(8, 10))
    )
    found = list(find_damaged(SEED, data, 4096, {7: KNOWN}))
    assert found == [Candidate(7, 4096 + size)]
    assert list(find_damaged(SEED, data, 4096, {70: Known(90, 4)})) == []
