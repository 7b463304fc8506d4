"""The record file of one destination as bytes: docs/journal-format.md section 10. Pure functions."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from tidegate.spi import Message
from tidegate_store_journal.log.format import FormatError, crc32c

FILE_MAGIC: Final = b"TGRECORD"
RECORD_MAGIC: Final = b"TGR1"
VERSION: Final = 1
#: Records begin at multiples of this: small enough to waste little, large enough to find a record
#: again by looking at every block.
BLOCK_BYTES: Final = 128
_PAGE_BYTES: Final = 4096

_FILE_HEADER: Final = struct.Struct("<8sHHI16sQII")
RECORD_HEADER: Final = struct.Struct("<4sIQQIII")
_CRC: Final = struct.Struct("<I")
_FILE_HEADER_BYTES: Final = _FILE_HEADER.size + _CRC.size
RECORD_HEADER_BYTES: Final = RECORD_HEADER.size + _CRC.size

_decode_message: Final = msgspec.msgpack.Decoder(Message).decode


class VersionError(FormatError):
    """Whole, but written by a newer program: nothing that could be put right."""


class FileHeader(NamedTuple):
    """Header of a record file; *seed* goes into every CRC in the directory of the destination."""

    store_id: str
    salt: int
    destination: str
    data_offset: int
    seed: int


class Header(NamedTuple):
    """Header of a record: *write* grows with every write of the store, also over restarts."""

    payload_bytes: int
    sequence: int
    write: int
    body_bytes: int
    payload_crc: int


def encode_file_header(store_id: str, salt: int, destination: str) -> bytes:
    """Everything in front of the first record. *store_id*: 32 hexadecimal digits."""
    name = destination.encode()
    size = _FILE_HEADER_BYTES + len(name)
    data_offset = -(-size // _PAGE_BYTES) * _PAGE_BYTES
    body = _FILE_HEADER.pack(
        FILE_MAGIC, VERSION, 0, data_offset, bytes.fromhex(store_id), salt, BLOCK_BYTES, len(name)
    )
    crc = _CRC.pack(crc32c(crc32c(0, body), name))
    return (body + crc + name).ljust(data_offset, b"\0")


def decode_file_header(data: bytes) -> FileHeader:
    """Read and verify what :func:`encode_file_header` made. Raises: FormatError, VersionError."""
    if len(data) < _FILE_HEADER_BYTES or data[:8] != FILE_MAGIC:
        raise FormatError("it does not begin with the header of a record file")
    fields = _FILE_HEADER.unpack_from(data)
    _, version, _, data_offset, store_id, salt, block, length = fields
    name = data[_FILE_HEADER_BYTES : _FILE_HEADER_BYTES + length]
    seed = crc32c(crc32c(0, data[: _FILE_HEADER.size]), name)
    if (seed,) != _CRC.unpack_from(data, _FILE_HEADER.size):
        raise FormatError("the CRC of its file header does not match")
    if version != VERSION or block != BLOCK_BYTES:
        raise VersionError(f"it has format version {version}; this program reads {VERSION}")
    return FileHeader(store_id.hex(), salt, name.decode(), data_offset, seed)


def encode_record(seed: int, sequence: int, write: int, payload: bytes, body_bytes: int) -> bytes:
    """One record, not padded."""
    body = RECORD_HEADER.pack(
        RECORD_MAGIC, len(payload), sequence, write, body_bytes, crc32c(seed, payload), 0
    )
    return body + _CRC.pack(crc32c(seed, body)) + payload


def decode_header(seed: int, data: bytes, offset: int = 0) -> Header | None:
    """The header at *offset*; None when there is no valid one of the file with *seed*."""
    end = offset + RECORD_HEADER.size
    if len(data) < end + _CRC.size or data[offset : offset + 4] != RECORD_MAGIC:
        return None
    if (crc32c(seed, data[offset:end]),) != _CRC.unpack_from(data, end):
        return None
    _, length, sequence, write, body_bytes, crc, _ = RECORD_HEADER.unpack_from(data, offset)
    return Header(length, sequence, write, body_bytes, crc)


def payload_of(seed: int, record: bytes, sequence: int) -> bytes:
    """The payload of one whole record. Raises: FormatError when it is damaged or another one."""
    header = decode_header(seed, record)
    if header is None or header.sequence != sequence:
        raise FormatError(f"message {sequence} is not there")
    payload = record[RECORD_HEADER_BYTES : RECORD_HEADER_BYTES + header.payload_bytes]
    if len(payload) != header.payload_bytes or crc32c(seed, payload) != header.payload_crc:
        raise FormatError(f"the CRC of message {sequence} does not match")
    return payload


def decode_message(payload: bytes, sequence: int) -> Message:
    """The message in a payload. Raises: FormatError."""
    try:
        return _decode_message(payload)
    except msgspec.DecodeError as error:
        raise FormatError(f"message {sequence} cannot be decoded: {error}") from error


def find_headers(seed: int, data: bytes) -> Iterator[tuple[int, Header]]:
    """All valid record headers in *data*, which begins at a block: (offset, header).

    Every block is looked at, also inside of records: what a record is worth is not known here, and
    the CRC with the file's seed lets nobody forge a header in a body.
    """
    # Written out, because a start does this for every record there is.
    find, unpack, crc_of = data.find, RECORD_HEADER.unpack_from, _CRC.unpack_from
    size = RECORD_HEADER.size
    last = len(data) - RECORD_HEADER_BYTES
    at = find(RECORD_MAGIC)
    while 0 <= at <= last:
        if at % BLOCK_BYTES == 0 and crc_of(data, at + size)[0] == crc32c(
            seed, data[at : at + size]
        ):
            _, length, sequence, write, body_bytes, crc, _ = unpack(data, at)
            yield at, Header(length, sequence, write, body_bytes, crc)
        at = find(RECORD_MAGIC, at + 1)


def blocks_of(payload_bytes: int) -> int:
    """Blocks that a record takes."""
    return -(-(RECORD_HEADER_BYTES + payload_bytes) // BLOCK_BYTES)


# ----------------------------------------------------------------------------------------- places

_SINGLE_BIT: Final = 1 << 99
_FOLDER_SHIFT: Final = 100
_MASK_35: Final = (1 << 35) - 1
_MASK_32: Final = (1 << 32) - 1
#: 28 bits.
FOLDERS_MAX: Final = (1 << 28) - 1


class Place(NamedTuple):
    """Where a message lies: block *number* of the record file, or (*single*) file *number*."""

    folder: int
    number: int
    payload_bytes: int
    body_bytes: int
    single: bool


def pack_place(place: Place) -> int:
    """As one integer below 2**128; never 0."""
    folder, number, payload_bytes, body_bytes, single = place
    value = folder << _FOLDER_SHIFT | number << 64 | payload_bytes << 32 | body_bytes
    return value | _SINGLE_BIT if single else value


def unpack_place(value: int) -> Place:
    """The inverse of :func:`pack_place`."""
    return Place(
        value >> _FOLDER_SHIFT,
        value >> 64 & _MASK_35,
        value >> 32 & _MASK_32,
        value & _MASK_32,
        bool(value & _SINGLE_BIT),
    )


def folder_of(value: int) -> int:
    """Only the folder of a packed place."""
    return value >> _FOLDER_SHIFT


def high_word(folder: int, number: int, *, single: bool) -> int:
    """The upper 64 bits of a packed place; the lower ones are payload bytes and body bytes."""
    return (folder << _FOLDER_SHIFT | number << 64 | (_SINGLE_BIT if single else 0)) >> 64


def parts_of_high_word(word: int) -> tuple[int, int, bool]:
    """Folder, number, single: the inverse of :func:`high_word`."""
    return word >> _FOLDER_SHIFT - 64, word & _MASK_35, bool(word & _SINGLE_BIT >> 64)
