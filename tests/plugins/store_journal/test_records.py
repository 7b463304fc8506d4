"""The bytes of record files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.spi import Message
from tidegate_store_journal.log.format import FormatError, encode
from tidegate_store_journal.split import records as _records
from tidegate_store_journal.split.records import BLOCK_BYTES, RECORD_HEADER_BYTES, Place

STORE = "0123456789abcdef0123456789abcdef"
SEED = 12345


def record(sequence: int = 7, write: int = 9, body: bytes = b"body") -> bytes:
    payload = encode(Message("queue://q", body))
    return _records.encode_record(SEED, sequence, write, payload, len(body))


@pytest.mark.parametrize("destination", ["queue://q", "topic://" + "ü" * 30_000])
def test_a_file_header_comes_back(destination: str) -> None:
    data = _records.encode_file_header(STORE, 99, destination)
    assert len(data) % 4096 == 0
    header = _records.decode_file_header(data)
    assert header[:4] == (STORE, 99, destination, len(data))


def test_a_bit_flipped_in_the_file_header_is_found() -> None:
    data = _records.encode_file_header(STORE, 99, "queue://q")
    for at in range(52 + len("queue://q")):
        damaged = bytearray(data)
        damaged[at] ^= 4
        with pytest.raises(FormatError):
            _records.decode_file_header(bytes(damaged))


def test_another_version_is_refused_as_that() -> None:
    data = bytearray(_records.encode_file_header(STORE, 99, "queue://q"))
    data[8] = 2
    crc = _records.crc32c(_records.crc32c(0, bytes(data[:48])), b"queue://q")
    data[48:52] = crc.to_bytes(4, "little")
    with pytest.raises(FormatError, match="format version 2"):
        _records.decode_file_header(bytes(data))


def test_the_layout_of_a_record_is_that_of_the_document() -> None:
    data = record(sequence=7, write=9, body=b"body")
    payload = data[RECORD_HEADER_BYTES:]
    assert RECORD_HEADER_BYTES == 40
    assert data[:4] == b"TGR1"
    assert int.from_bytes(data[4:8], "little") == len(payload)
    assert int.from_bytes(data[8:16], "little") == 7
    assert int.from_bytes(data[16:24], "little") == 9
    assert int.from_bytes(data[24:28], "little") == 4
    assert int.from_bytes(data[28:32], "little") == _records.crc32c(SEED, payload)
    assert int.from_bytes(data[36:40], "little") == _records.crc32c(SEED, data[:36])


def test_a_record_comes_back() -> None:
    data = record()
    header = _records.decode_header(SEED, data)
    assert header is not None
    assert (header.sequence, header.write, header.body_bytes) == (7, 9, 4)
    payload = _records.payload_of(SEED, data + b"padding", 7)
    assert _records.decode_message(payload, 7) == Message("queue://q", b"body")


def test_a_bit_flipped_anywhere_in_a_record_is_found() -> None:
    data = record()
    for at in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[at] ^= 1 << bit
            with pytest.raises(FormatError):
                _records.payload_of(SEED, bytes(damaged), 7)


def test_a_record_of_another_file_or_message_is_not_taken() -> None:
    data = record()
    assert _records.decode_header(SEED + 1, data) is None
    with pytest.raises(FormatError, match="message 8 is not there"):
        _records.payload_of(SEED, data, 8)
    with pytest.raises(FormatError):
        _records.payload_of(SEED, data[:-1], 7)
    with pytest.raises(FormatError, match="cannot be decoded"):
        _records.decode_message(b"\xc1", 7)


def test_headers_are_found_at_blocks_and_nowhere_else() -> None:
    def padded(data: bytes) -> bytes:
        return data.ljust(_records.blocks_of(len(data) - RECORD_HEADER_BYTES) * BLOCK_BYTES, b"\0")

    first = padded(record(1, 1, b"TGR1" * 100))
    gap = b"TGR1".ljust(3 * BLOCK_BYTES, b"x")
    unaligned = padded(b"x" + record(2, 2))
    data = first + gap + unaligned + padded(record(3, 3))
    found = [(at, header.sequence) for at, header in _records.find_headers(SEED, data)]
    assert found == [(0, 1), (len(first + gap + unaligned), 3)]


def test_a_body_cannot_pretend_to_be_a_record() -> None:
    """Whoever sends a message does not know the file's seed."""
    forged = _records.encode_record(SEED + 1, 99, 99, b"", 0)
    body = b"x" * (BLOCK_BYTES * 2) + forged.ljust(BLOCK_BYTES, b"\0")
    data = b"".join(record(1, 1, b"y" * shift + body) for shift in range(BLOCK_BYTES))
    assert all(header.sequence == 1 for _, header in _records.find_headers(SEED, data))


@given(
    st.integers(1, _records.FOLDERS_MAX),
    st.integers(0, (1 << 35) - 1),
    st.integers(1, (1 << 32) - 1),
    st.integers(0, (1 << 32) - 1),
    st.booleans(),
)
def test_a_place_is_one_number(
    folder: int, number: int, payload: int, body: int, single: bool
) -> None:
    place = Place(folder, number, payload, body, single)
    value = _records.pack_place(place)
    assert 0 < value < 1 << 128
    assert _records.unpack_place(value) == place
    assert _records.folder_of(value) == folder


@given(st.binary(max_size=600))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    assert list(_records.find_headers(SEED, data)) == []
    with pytest.raises(FormatError):
        _records.payload_of(SEED, data, 1)
    with pytest.raises(FormatError):
        _records.decode_file_header(data)


@given(st.integers(1, _records.FOLDERS_MAX), st.integers(0, (1 << 35) - 1), st.booleans())
def test_the_upper_half_of_a_place_stands_alone(folder: int, number: int, single: bool) -> None:
    word = _records.high_word(folder, number, single=single)
    assert word == _records.pack_place(Place(folder, number, 77, 88, single)) >> 64
    assert _records.parts_of_high_word(word) == (folder, number, single)
