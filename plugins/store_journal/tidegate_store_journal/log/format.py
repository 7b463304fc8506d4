"""The journal's bytes as pure functions: docs/journal-format.md is the specification.

Nothing here does I/O, keeps state or knows about threads. A *location* is one integer (section 7
of the document), so that an index entry is one object and the sums of many can be taken in C.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, cast

import google_crc32c
import msgspec

from tidegate.spi import (
    Acknowledge,
    AddDestination,
    AddDuplicateId,
    Branch,
    BranchId,
    ClearRetained,
    Discard,
    DiscardReason,
    ForgetDuplicateIds,
    InflightDirection,
    InflightRecord,
    LargeBody,
    Message,
    Move,
    Operation,
    PutBranch,
    PutInflight,
    PutSession,
    PutSubscription,
    RecordDelivery,
    RemoveBranch,
    RemoveDestination,
    RemoveInflight,
    RemoveSession,
    RemoveSubscription,
    Session,
    SetRetained,
    Subscription,
)

FORMAT_VERSION: Final = 1
FILE_MAGIC: Final = b"TGJOURNL"
BATCH_MAGIC: Final = b"TGB1"
#: The first batch begins on the page behind the header, so that padding keeps pages whole.
DATA_OFFSET: Final = 4096
#: The file header is there twice: without it nothing in the file could be verified.
_HEADER_OFFSETS: Final = (0, 2048)

_REUSED_FLAG: Final = 1
#: In a reused file these zeros follow each batch until the next one takes their place: otherwise
#: nobody could tell a torn batch from bytes of an earlier life.
END_MARK: Final = bytes(64)

_FILE_HEADER: Final = struct.Struct("<8sHHI16sQQQI")
_BATCH_HEADER: Final = struct.Struct("<4sIQQQQQIII")
_CRC: Final = struct.Struct("<I")
RECORD_HEADER: Final = struct.Struct("<IIQQIIB3x")
_MOVE_PREFIX: Final = struct.Struct("<QQ")

FILE_HEADER_BYTES: Final = _FILE_HEADER.size + _CRC.size
BATCH_HEADER_BYTES: Final = _BATCH_HEADER.size + _CRC.size
RECORD_HEADER_BYTES: Final = RECORD_HEADER.size
#: Of the type in the header of a record.
TYPE_OFFSET: Final = 32
#: Lengths inside a batch are u32.
BATCH_BYTES_MAX: Final = 0xFFFF_FFFF

MASK_32: Final = 0xFFFF_FFFF
_MASK_35: Final = (1 << 35) - 1
#: Set in the location of a message that was added to more than one list.
SHARED_BIT: Final = 1 << 99
FILE_SHIFT: Final = 100
#: 28 bits of file id: at 32 MiB a file, 8 EiB are written before they run out.
FILE_ID_MAX: Final = (1 << 28) - 1

ADD: Final = 1
ACKNOWLEDGE: Final = 2
DISCARD: Final = 3
MOVE: Final = 4
DELIVERY: Final = 5
ADD_DESTINATION: Final = 6
REMOVE_DESTINATION: Final = 7
PUT_SUBSCRIPTION: Final = 8
REMOVE_SUBSCRIPTION: Final = 9
SET_RETAINED: Final = 10
CLEAR_RETAINED: Final = 11
PUT_SESSION: Final = 12
REMOVE_SESSION: Final = 13
PUT_INFLIGHT: Final = 14
REMOVE_INFLIGHT: Final = 15
COPY: Final = 16
COPIED_ROWS: Final = 17
#: An added message, or a copy, that lies in the directory of its destination (section 10).
REFERENCE: Final = 18
COPY_REFERENCE: Final = 19
PUT_BRANCH: Final = 20
REMOVE_BRANCH: Final = 21
ADD_DUPLICATE_ID: Final = 22
FORGET_DUPLICATE_IDS: Final = 23
#: In the bindings journal only: what lives in the data file that its sequence names, as of the batch
#: in the place of the list.
LIVE: Final = 24
#: In the bindings journal only: everything in front of it is the small state as of a batch.
MARK: Final = 25
#: In place of batches that were damaged; its sequence is the offset where the next one begins.
VOID: Final = 250

#: Set in the type of a record that holds a message whose body is in a file of its own; the rest of
#: the type is the ordinary one.
LARGE_BIT: Final = 0x80

#: Records that hold a message.
MESSAGE_TYPES: Final = frozenset(
    {ADD, MOVE, COPY, ADD | LARGE_BIT, MOVE | LARGE_BIT, COPY | LARGE_BIT}
)

#: ``crc32c(seed, data)`` continues a CRC-32C whose value so far is *seed* (the package is untyped).
crc32c: Final = cast(
    "Callable[[int, bytes], int]",
    google_crc32c.extend,  # pyright: ignore[reportUnknownMemberType]  # untyped package
)
encode: Final = msgspec.msgpack.Encoder().encode
_decode_message: Final = msgspec.msgpack.Decoder(Message).decode
_decode_subscription: Final = msgspec.msgpack.Decoder(Subscription).decode
_decode_session: Final = msgspec.msgpack.Decoder(Session).decode
_decode_inflight: Final = msgspec.msgpack.Decoder(InflightRecord).decode
_decode_str: Final = msgspec.msgpack.Decoder(str).decode
_decode_branch: Final = msgspec.msgpack.Decoder(Branch).decode
_decode_branch_id: Final = msgspec.msgpack.Decoder(BranchId).decode
_decode_add_id: Final = msgspec.msgpack.Decoder(tuple[str, str, int]).decode
_decode_forget_ids: Final = msgspec.msgpack.Decoder(tuple[str, int]).decode


_decode_reference: Final = msgspec.msgpack.Decoder(tuple[bytes, bool]).decode


class AcknowledgeValue(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Value of an acknowledge record (docs/journal-format.md section 3)."""

    ack_first: int
    sequences: tuple[int, ...]
    delivered_at: tuple[int, ...] = ()
    acked_at: int = 0
    client_id: str = ""
    subscription: str = ""
    protocol: str = ""


_decode_acknowledge: Final = msgspec.msgpack.Decoder(AcknowledgeValue).decode
_decode_discard: Final = msgspec.msgpack.Decoder(tuple[tuple[int, ...], DiscardReason]).decode
_decode_delivery: Final = msgspec.msgpack.Decoder(tuple[tuple[int, ...], tuple[int, ...]]).decode
_decode_inflight_key: Final = msgspec.msgpack.Decoder(tuple[str, InflightDirection, int]).decode


class FormatError(Exception):
    """Bytes that are not what this version of the format says."""


# ------------------------------------------------------------------------------------- data files


#: The journals of one store, by their number in the header of their files.
JOURNAL: Final = "journal"
BINDINGS: Final = "bindings"
SERIES: Final = (JOURNAL, BINDINGS)


class FileHeader(NamedTuple):
    """Header of a data file; *seed* is its CRC, which goes into the CRC of every batch.

    *reused*: the file had an earlier life, so bytes of that lie behind its last batch. *series*: which
    journal it is a part of.
    """

    store_id: str
    file_id: int
    salt: int
    length: int
    seed: int
    reused: bool = False
    series: str = JOURNAL


#: Names of data files.
DATA_NAME: Final = re.compile(r"journal-(\d{10})\.data")
#: Names of files of the bindings journal, also of those that wait to be used.
BINDINGS_NAME: Final = re.compile(r"bindings-(\d{10})\.(data|free)")


def file_id_of(name: str) -> int:
    """The id in the name of a data file, or of what was made of one."""
    return int(name.partition("-")[2][:10])


def file_name(file_id: int, series: str = JOURNAL) -> str:
    """Name of the data file with *file_id*."""
    return f"{series}-{file_id:010d}.data"


def free_name(file_id: int, series: str = JOURNAL) -> str:
    """Name of that data file when it is dead and waits to be used again."""
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
    """All bytes in front of the first batch: *header* twice."""
    page = bytearray(DATA_OFFSET)
    for at in _HEADER_OFFSETS:
        page[at : at + len(header)] = header
    return bytes(page)


def decode_header_page(page: bytes) -> tuple[FileHeader, bytes]:
    """Read the header from whichever copy is whole.

    Returns: it; and what should be in the place of *page* when one of the copies is damaged, or b"".
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
    payload: bytes,
    batch: int,
    synced: int,
    last_sequence: int,
    last_ack: int,
    last_list: int,
    record_count: int,
) -> bytes:
    """The 64 bytes in front of *payload*, which is all records of the batch."""
    body = _BATCH_HEADER.pack(
        BATCH_MAGIC,
        len(payload),
        batch,
        synced,
        last_sequence,
        last_ack,
        last_list,
        record_count,
        crc32c(seed, payload),
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
    """Where the journal goes on behind the void batch with these records; 0: it is none."""
    if len(payload) != RECORD_HEADER_BYTES:
        return 0
    _, _, sequence, _, _, _, kind = RECORD_HEADER.unpack(payload)
    return sequence if kind == VOID else 0


def payload_is_valid(seed: int, header: BatchHeader, payload: bytes) -> bool:
    """Tell whether *payload* is what *header* speaks of, whole and undamaged."""
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


def read_message(record: bytes, sequence: int) -> Message:
    """Decode the message of one record that was read alone; see :func:`read_value`."""
    value = read_value(record, sequence)
    try:
        return _decode_message(value)
    except msgspec.DecodeError as error:
        raise FormatError(f"message {sequence} cannot be decoded: {error}") from error


def large_body_of(record: Record) -> LargeBody:
    """The body that a message record with LARGE_BIT refers to. Raises: FormatError."""
    try:
        body = _decode_message(record.payload[record.prefix_bytes :]).large
    except msgspec.DecodeError as error:
        raise FormatError(f"message {record.sequence} cannot be decoded: {error}") from error
    if body is None:
        raise FormatError(f"message {record.sequence} does not name its large body")
    return body


def read_value(record: bytes, sequence: int) -> bytes:
    """The encoded message of one add, move or copy record that was read alone.

    Args: record: header and payload, exactly. sequence: which one it must be.
    Raises: FormatError when it is damaged or another one.
    """
    if len(record) < RECORD_HEADER_BYTES:
        raise FormatError("the record is cut off")
    size, crc, found, _, prefix, _, kind = RECORD_HEADER.unpack_from(record)
    payload = record[RECORD_HEADER_BYTES:]
    if found != sequence or size != len(payload) or kind not in MESSAGE_TYPES:
        raise FormatError(f"message {sequence} is not there")
    if crc32c(sequence & MASK_32, payload) != crc or prefix > size:
        raise FormatError(f"the CRC of message {sequence} does not match")
    return payload[prefix:] if prefix else payload


def further_lists(record: Record) -> tuple[int, ...]:
    """The lists of an add or copy record besides the one in its header."""
    return struct.unpack_from(f"<{record.prefix_bytes // 8}Q", record.payload)


def encode_reference(
    kind: int, sequence: int, place: int, lists: Sequence[int], *, synced: bool
) -> bytes:
    """The record that says where a message lies. *synced*: it is on stable storage already."""
    prefix = pack_integers(lists[1:])
    return encode_record(
        kind,
        prefix + encode((place.to_bytes(16, "little"), synced)),
        sequence=sequence,
        pending_list=lists[0] if lists else 0,
        prefix_bytes=len(prefix),
        body_bytes=place & MASK_32,
    )


def decode_reference(record: Record) -> tuple[int, bool]:
    """The location in a reference, and whether it was synced before. Raises: FormatError."""
    try:
        place, synced = _decode_reference(record.payload[record.prefix_bytes :])
    except msgspec.DecodeError as error:
        raise FormatError(f"a reference cannot be decoded: {error}") from error
    return int.from_bytes(place, "little"), synced


def encode_acknowledge(operation: Acknowledge, ack_first: int) -> bytes:
    """Value of an acknowledge record; without a log only what replay needs."""
    if not ack_first:
        return encode((0, operation.sequences))
    return encode(
        (
            ack_first,
            operation.sequences,
            operation.delivered_at,
            operation.acked_at,
            operation.client_id,
            operation.subscription,
            operation.protocol,
        )
    )


def encode_move(operation: Move) -> bytes:
    """The payload of a move record."""
    return _MOVE_PREFIX.pack(operation.pending_list, operation.sequence) + encode(operation.message)


MOVE_PREFIX_BYTES: Final = _MOVE_PREFIX.size


def decode_acknowledge(record: Record) -> tuple[Acknowledge, int]:
    """The operation and its ``ack_first``. Raises: FormatError."""
    try:
        value = _decode_acknowledge(record.payload)
    except msgspec.DecodeError as error:
        raise FormatError(f"an acknowledge record cannot be decoded: {error}") from error
    operation = Acknowledge(
        record.pending_list,
        value.sequences,
        value.delivered_at,
        value.acked_at,
        value.client_id,
        value.subscription,
        value.protocol,
    )
    return operation, value.ack_first


def decode_operation(record: Record, kind: int | None = None) -> Operation:
    """Decode any record but *add message* and *acknowledge*. Raises: FormatError.

    Args: kind: its type without LARGE_BIT; None: as it is.

    The message of a move is not decoded (replay needs only where it is); its field is empty.
    """
    decode = _DECODERS.get(record.type if kind is None else kind)
    if decode is None:
        raise FormatError(f"a record has the unknown type {record.type}; a newer version wrote it")
    try:
        return decode(record)
    except (msgspec.DecodeError, struct.error, ValueError) as error:
        raise FormatError(f"a record of type {record.type} cannot be decoded: {error}") from error


_NO_MESSAGE: Final = Message("", b"")


def _move(record: Record) -> Move:
    source, sequence = _MOVE_PREFIX.unpack_from(record.payload)
    return Move(source, sequence, record.pending_list, record.sequence, _NO_MESSAGE)


_DECODERS: Final[Mapping[int, Callable[[Record], Operation]]] = {
    DISCARD: lambda r: Discard(r.pending_list, *_decode_discard(r.payload)),
    MOVE: _move,
    DELIVERY: lambda r: RecordDelivery(r.pending_list, *_decode_delivery(r.payload)),
    ADD_DESTINATION: lambda r: AddDestination(_decode_str(r.payload), r.pending_list),
    REMOVE_DESTINATION: lambda r: RemoveDestination(_decode_str(r.payload), r.pending_list),
    PUT_SUBSCRIPTION: lambda r: PutSubscription(_decode_subscription(r.payload)),
    REMOVE_SUBSCRIPTION: lambda r: RemoveSubscription(r.pending_list),
    SET_RETAINED: lambda r: SetRetained(_decode_message(r.payload)),
    CLEAR_RETAINED: lambda r: ClearRetained(_decode_str(r.payload)),
    PUT_SESSION: lambda r: PutSession(_decode_session(r.payload)),
    REMOVE_SESSION: lambda r: RemoveSession(_decode_str(r.payload)),
    PUT_INFLIGHT: lambda r: PutInflight(_decode_inflight(r.payload)),
    REMOVE_INFLIGHT: lambda r: RemoveInflight(*_decode_inflight_key(r.payload)),
    PUT_BRANCH: lambda r: PutBranch(_decode_branch(r.payload)),
    REMOVE_BRANCH: lambda r: RemoveBranch(_decode_branch_id(r.payload), r.pending_list),
    ADD_DUPLICATE_ID: lambda r: AddDuplicateId(*_decode_add_id(r.payload)),
    FORGET_DUPLICATE_IDS: lambda r: ForgetDuplicateIds(*_decode_forget_ids(r.payload)),
}


# -------------------------------------------------------------------------------------- locations


def location(file_id: int, offset: int, record_bytes: int, body_bytes: int) -> int:
    """Pack where a record lies (docs/journal-format.md section 7)."""
    return (((file_id << 36 | offset) << 32 | record_bytes) << 32) | body_bytes


def location_parts(value: int) -> tuple[int, int, int, int]:
    """Unpack a location into file id, offset, record bytes and body bytes."""
    return (
        value >> FILE_SHIFT,
        value >> 64 & _MASK_35,
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
    return [int.from_bytes(data[at : at + 16], "little") for at in range(0, len(data), 16)]
