"""The journal's bytes as pure functions: docs/journal-format.md is the specification.

Nothing here does I/O, keeps state or knows about threads. A *location* is one integer (section 7
of the document), so that an index entry is one object and the sums of many can be taken in C.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, cast

import google_crc32c
import msgspec

FORMAT_VERSION: Final = 1
FILE_MAGIC: Final = b"TGJOURNL"
BATCH_MAGIC: Final = b"TGB1"
#: The first batch begins on the page after the header, so that padding keeps pages whole.
DATA_OFFSET: Final = 4096
#: The file header is stored twice: without it nothing in the file could be verified.
_HEADER_OFFSETS: Final = (0, 2048)

_REUSED_FLAG: Final = 1
#: In a reused file these zeros follow each batch until the next one overwrites them: otherwise a
#: torn batch would look like bytes of an earlier life.
END_MARK: Final = bytes(64)

_FILE_HEADER: Final = struct.Struct("<8sHHI16sQQQI")
_BATCH_HEADER: Final = struct.Struct("<4sIQQQQQIII")
_CRC: Final = struct.Struct("<I")
RECORD_HEADER: Final = struct.Struct("<IIQQIIB3x")

FILE_HEADER_BYTES: Final = _FILE_HEADER.size + _CRC.size
BATCH_HEADER_BYTES: Final = _BATCH_HEADER.size + _CRC.size
RECORD_HEADER_BYTES: Final = RECORD_HEADER.size
#: Of the type in the header of a record.
TYPE_OFFSET: Final = 32
#: Lengths inside a batch are u32.
BATCH_BYTES_MAX: Final = 0xFFFF_FFFF

MASK_32: Final = 0xFFFF_FFFF
MASK_35: Final = (1 << 35) - 1
#: Set in the location of a message that was added to more than one list.
SHARED_BIT: Final = 1 << 99
FILE_SHIFT: Final = 100
#: 28 bits of file id: at 32 MiB a file, 8 EiB are written before they run out.
FILE_ID_MAX: Final = (1 << 28) - 1

#: Types of records other than simple operations, which are in ``records.KINDS``.
ADD: Final = 1
ACKNOWLEDGE: Final = 2
DELIVERY: Final = 5
COPY: Final = 16
COPIED_ROWS: Final = 17
#: An added message, or a copy, stored in its destination's directory (section 10).
REFERENCE: Final = 18
COPY_REFERENCE: Final = 19
#: In the bindings journal only: what lives in the data file that its sequence names, as of the batch
#: stored in the list's place.
LIVE: Final = 24
#: In the bindings journal only: everything before it is the small state as of a batch.
MARK: Final = 25
#: In place of damaged batches; its sequence is the offset where the next one begins.
VOID: Final = 250

#: Set in the type of a record with a message whose body has its own file; the rest of
#: the type is the ordinary one.
LARGE_BIT: Final = 0x80

#: Records that hold a message.
MESSAGE_TYPES: Final = frozenset({ADD, COPY, ADD | LARGE_BIT, COPY | LARGE_BIT})

#: ``crc32c(seed, data)`` continues a CRC-32C whose value so far is *seed* (the package is untyped).
crc32c: Final = cast(
    "Callable[[int, bytes], int]",
    google_crc32c.extend,  # pyright: ignore[reportUnknownMemberType]  # untyped package
)
encode: Final = msgspec.msgpack.Encoder().encode


class FormatError(Exception):
    """Bytes that do not follow this version of the format."""


# ------------------------------------------------------------------------------------- data files


#: The journals of one store, by their number in the header of their files.
JOURNAL: Final = "journal"
BINDINGS: Final = "bindings"
SERIES: Final = (JOURNAL, BINDINGS)


class FileHeader(NamedTuple):
    """Header of a data file; *seed* is its CRC, which goes into the CRC of every batch.

    *reused*: the file had an earlier life, whose bytes follow its last batch. *series*: the
    journal it is part of.
    """

    store_id: str
    file_id: int
    salt: int
    length: int
    seed: int
    reused: bool = False
    series: str = JOURNAL


#: Names of data files, and of dead ones to be reused.
DATA_NAME: Final = re.compile(r"journal-(\d{10})\.data")
FREE_NAME: Final = re.compile(r"journal-(\d{10})\.free")
#: Names of files of the bindings journal, including those to be reused.
BINDINGS_NAME: Final = re.compile(r"bindings-(\d{10})\.(data|free)")


def file_id_of(name: str) -> int:
    """The id in the name of a data file, or of a file made from one."""
    return int(name.partition("-")[2][:10])


def file_name(file_id: int, series: str = JOURNAL) -> str:
    """Name of the data file with *file_id*."""
    return f"{series}-{file_id:010d}.data"


def free_name(file_id: int, series: str = JOURNAL) -> str:
    """Name of that data file when it is dead and to be reused."""
    return f"{series}-{file_id:010d}.free"


def encode_file_header(
    store_id: str,
    file_id: int,
    salt: int,
    length: int,
    *,
    reused: bool = False,
    series: str = JOURNAL,
) -> bytes:
    """The 64 bytes at the beginning of a data file. *store_id*: 32 hexadecimal digits."""
    body = _FILE_HEADER.pack(
        FILE_MAGIC,
        FORMAT_VERSION,
        _REUSED_FLAG if reused else 0,
        DATA_OFFSET,
        bytes.fromhex(store_id),
        file_id,
        salt,
        length,
        SERIES.index(series),
    )
    return body + _CRC.pack(crc32c(0, body))


def header_page(header: bytes) -> bytes:
    """All bytes before the first batch: *header* twice."""
    page = bytearray(DATA_OFFSET)
    for at in _HEADER_OFFSETS:
        page[at : at + len(header)] = header
    return bytes(page)


def decode_header_page(page: bytes) -> tuple[FileHeader, bytes]:
    """Read the header from whichever copy is whole.

    Returns: the header; and what *page* should hold when one of the copies is damaged, or b"".
    Raises: FormatError: both are.
    """
    first: FormatError | None = None
    for at in _HEADER_OFFSETS:
        data = page[at : at + FILE_HEADER_BYTES]
        try:
            header = decode_file_header(data)
        except FormatError as error:
            first = first or error
            continue
        copies = {page[other : other + FILE_HEADER_BYTES] for other in _HEADER_OFFSETS}
        return header, header_page(data) if copies != {data} else b""
    assert first is not None
    raise first


def decode_file_header(data: bytes) -> FileHeader:
    """Read and verify a file header. Raises: FormatError."""
    if len(data) < FILE_HEADER_BYTES or data[:8] != FILE_MAGIC:
        raise FormatError("it does not begin with the header of a data file")
    magic, version, flags, offset, store_id, file_id, salt, length, series = (
        _FILE_HEADER.unpack_from(data)
    )
    seed = crc32c(0, data[: _FILE_HEADER.size])
    if (seed,) != _CRC.unpack_from(data, _FILE_HEADER.size):
        raise FormatError("the CRC of its file header does not match")
    if version != FORMAT_VERSION or offset != DATA_OFFSET or magic != FILE_MAGIC:
        raise FormatError(
            f"it has format version {version}; this program reads version {FORMAT_VERSION}"
        )
    if series >= len(SERIES):
        raise FormatError(f"it is of the unknown series {series}; a newer version wrote it")
    reused = bool(flags & _REUSED_FLAG)
    return FileHeader(store_id.hex(), file_id, salt, length, seed, reused, SERIES[series])


# ---------------------------------------------------------------------------------------- batches


class BatchHeader(NamedTuple):
    """Header of a batch (docs/journal-format.md section 2)."""

    payload_bytes: int
    batch: int
    synced: int
    last_sequence: int
    last_ack: int
    last_list: int
    record_count: int
    payload_crc: int


def encode_batch_header(
    seed: int,
    payload: Sequence[bytes],
    batch: int,
    synced: int,
    last_sequence: int,
    last_ack: int,
    last_list: int,
    record_count: int,
) -> bytes:
    """The 64 bytes before *payload*, which is all records of the batch, in parts."""
    crc = seed
    for part in payload:
        crc = crc32c(crc, part)
    body = _BATCH_HEADER.pack(
        BATCH_MAGIC,
        sum(map(len, payload)),
        batch,
        synced,
        last_sequence,
        last_ack,
        last_list,
        record_count,
        crc,
        0,
    )
    return body + _CRC.pack(crc32c(seed, body))


def decode_batch_header(seed: int, data: bytes) -> BatchHeader | None:
    """Read a batch header; None when there is no valid one of the file with *seed*."""
    if len(data) < BATCH_HEADER_BYTES or data[:4] != BATCH_MAGIC:
        return None
    body = data[: _BATCH_HEADER.size]
    if (crc32c(seed, body),) != _CRC.unpack_from(data, _BATCH_HEADER.size):
        return None
    fields = cast("tuple[int, ...]", _BATCH_HEADER.unpack(body)[1:9])
    return BatchHeader(*fields)


def void_until(payload: bytes) -> int:
    """Where the journal resumes after the void batch with these records; 0: not a void batch."""
    if len(payload) != RECORD_HEADER_BYTES:
        return 0
    _, _, sequence, _, _, _, kind = RECORD_HEADER.unpack(payload)
    return sequence if kind == VOID else 0


def payload_is_valid(seed: int, header: BatchHeader, payload: bytes) -> bool:
    """Whether *payload* matches *header*, whole and undamaged."""
    return len(payload) == header.payload_bytes and crc32c(seed, payload) == header.payload_crc


# ---------------------------------------------------------------------------------------- records


class Record(NamedTuple):
    """A record inside a batch. *offset* counts from the beginning of the batch's payload."""

    offset: int
    sequence: int
    pending_list: int
    prefix_bytes: int
    body_bytes: int
    type: int
    payload: bytes


def encode_record(
    record_type: int,
    payload: bytes,
    *,
    sequence: int = 0,
    pending_list: int = 0,
    prefix_bytes: int = 0,
    body_bytes: int = 0,
) -> bytes:
    """One record with its header."""
    return (
        RECORD_HEADER.pack(
            len(payload),
            crc32c(sequence & MASK_32, payload),
            sequence,
            pending_list,
            prefix_bytes,
            body_bytes,
            record_type,
        )
        + payload
    )


def iterate_records(payload: bytes, count: int) -> Iterator[Record]:
    """The records of a batch whose CRC was verified. Raises: FormatError."""
    offset = 0
    end = len(payload)
    unpack = RECORD_HEADER.unpack_from
    for _ in range(count):
        if offset + RECORD_HEADER_BYTES > end:
            raise FormatError("a batch ends inside a record")
        size, _crc, sequence, pending_list, prefix, body, kind = unpack(payload, offset)
        begin = offset + RECORD_HEADER_BYTES
        if begin + size > end or prefix > size:
            raise FormatError("a record is longer than its batch")
        value = payload[begin : begin + size]
        yield Record(offset, sequence, pending_list, prefix, body, kind, value)
        offset = begin + size
    if offset != end:
        raise FormatError("a batch has bytes behind its last record")


# -------------------------------------------------------------------------------------- locations


def location(file_id: int, offset: int, record_bytes: int, body_bytes: int) -> int:
    """Pack a record's location (docs/journal-format.md section 7)."""
    return (((file_id << 36 | offset) << 32 | record_bytes) << 32) | body_bytes


def location_parts(value: int) -> tuple[int, int, int, int]:
    """Unpack a location into file id, offset, record bytes and body bytes."""
    return (
        value >> FILE_SHIFT,
        value >> 64 & MASK_35,
        value >> 32 & MASK_32,
        value & MASK_32,
    )


def pack_integers(values: Sequence[int]) -> bytes:
    """One u64 each."""
    return struct.pack(f"<{len(values)}Q", *values)


def unpack_integers(data: bytes) -> tuple[int, ...]:
    """The inverse of :func:`pack_integers`."""
    return struct.unpack(f"<{len(data) // 8}Q", data)


def pack_locations(values: Sequence[int]) -> bytes:
    """Sixteen bytes each."""
    return b"".join([value.to_bytes(16, "little") for value in values])


def unpack_locations(data: bytes) -> list[int]:
    """The inverse of :func:`pack_locations`."""
    halves = struct.unpack(f"<{len(data) // 8}Q", data)
    return [high << 64 | low for low, high in zip(halves[::2], halves[1::2], strict=True)]
