"""Operations of the contract as records, and back: docs/journal-format.md section 3.

:data:`KINDS` defines the record of each operation. Only messages and acknowledgements are more than
a few fields; they have their own functions.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from operator import attrgetter
from types import GenericAlias
from typing import Any, Final, TypeVar

import msgspec

from tidegate.spi import (
    Acknowledge,
    AddDestination,
    AddDuplicateId,
    ClearRetained,
    Discard,
    ForgetDuplicateIds,
    LargeBody,
    Message,
    Operation,
    Outcome,
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
    SetRetained,
)
from tidegate_store_journal.log import format as _format
from tidegate_store_journal.log.format import (
    LARGE_BIT,
    MASK_32,
    MASK_35,
    MESSAGE_TYPES,
    RECORD_HEADER,
    RECORD_HEADER_BYTES,
    FormatError,
    Record,
    crc32c,
    encode,
    encode_record,
    pack_integers,
)

T = TypeVar("T")
V = TypeVar("V")


class AcknowledgeValue(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Value of an acknowledge record (docs/journal-format.md section 3)."""

    ack_first: int
    sequences: tuple[int, ...]
    delivered_at: tuple[int, ...] = ()
    acked_at: int = 0
    client_id: str = ""
    subscription: str = ""
    protocol: str = ""
    principal: str = ""
    delivery_counts: tuple[int, ...] = ()
    outcome: Outcome = Outcome.ACKNOWLEDGED
    reason: str = ""


_decode_message: Final = msgspec.msgpack.Decoder(Message).decode
_decode_acknowledge: Final = msgspec.msgpack.Decoder(AcknowledgeValue).decode
_decode_reference: Final = msgspec.msgpack.Decoder(tuple[bytes, bool]).decode


def _decoded(decode: Callable[[V], T], value: V, what: str, number: int) -> T:
    try:
        return decode(value)
    except (msgspec.DecodeError, struct.error, ValueError) as error:
        raise FormatError(f"{what} {number} cannot be decoded: {error}") from error


# ------------------------------------------------------------------------------------- operations


class Kind:
    """How an operation maps to a record: the value is one field, or several as an array.

    Attributes: type: of the record. operation: the class. puts: whether it puts a piece of the small state.
    """

    def __init__(
        self, record_type: int, operation: type[Any], *fields: str, of: str = "", puts: bool = False
    ) -> None:
        """*of*: where the operation has the list that the record's header names, if any."""
        self.type = record_type
        self.operation = operation
        self.puts = puts
        self._fields = fields
        self._value: Callable[[Any], object] = attrgetter(*fields) if fields else _nil
        self._list_of = attrgetter(of) if of else None
        self._own_list = of if "." not in of else ""
        types = {field.name: field.type for field in msgspec.structs.fields(operation)}
        shapes = tuple(types[name] for name in fields)
        shape = shapes[0] if len(shapes) == 1 else GenericAlias(tuple, shapes)
        self._read: Callable[[bytes], Any] = (
            msgspec.msgpack.Decoder(shape).decode if fields else _nil
        )

    def encode(self, operation: Any) -> bytes:
        """The record."""
        value = encode(self._value(operation))
        return encode_record(self.type, value, pending_list=self.list_of(operation))

    def list_of(self, operation: Any) -> int:
        """The list that the record's header names; 0: none."""
        return self._list_of(operation) if self._list_of is not None else 0

    def decode(self, record: Record) -> Operation:
        """The inverse. Raises: msgspec.DecodeError."""
        value = self._read(record.payload)
        values = value if len(self._fields) > 1 else (value,)[: len(self._fields)]
        fields: dict[str, Any] = dict(zip(self._fields, values, strict=True))
        if self._own_list:
            fields[self._own_list] = record.pending_list
        return self.operation(**fields)


def _nil(_: object) -> None:
    return None


#: All operations but *add message* and *acknowledge*, by the types of their records. (A *move* is two.)
KINDS: Final = (
    Kind(3, Discard, "sequences", "reason", of="pending_list"),
    Kind(_format.DELIVERY, RecordDelivery, "sequences", "delivery_count", of="pending_list"),
    Kind(
        6,
        AddDestination,
        "destination",
        "owner",
        "producers_paused",
        "consumers_paused",
        of="pending_list",
        puts=True,
    ),
    Kind(7, RemoveDestination, "destination", of="pending_list"),
    Kind(8, PutSubscription, "subscription", of="subscription.pending_list", puts=True),
    Kind(9, RemoveSubscription, of="pending_list"),
    Kind(10, SetRetained, "message", puts=True),
    Kind(11, ClearRetained, "destination"),
    Kind(12, PutSession, "session", puts=True),
    Kind(13, RemoveSession, "key"),
    Kind(14, PutInflight, "record", puts=True),
    Kind(15, RemoveInflight, "session", "direction", "packet_id"),
    Kind(20, PutBranch, "branch", of="branch.pending_list", puts=True),
    Kind(21, RemoveBranch, "branch_id", of="pending_list"),
    Kind(22, AddDuplicateId, "destination", "duplicate_id", "sequence", puts=True),
    Kind(23, ForgetDuplicateIds, "destination", "through"),
)
BY_OPERATION: Final = {kind.operation: kind for kind in KINDS}
BY_TYPE: Final = {kind.type: kind for kind in KINDS}
#: Operations that put a piece of the small state; the others take one away.
PUTTING: Final = frozenset(kind.operation for kind in KINDS if kind.puts)


def encode_operation(operation: Operation) -> bytes:
    """The record of any of :data:`KINDS`. Raises: KeyError for any other."""
    return BY_OPERATION[type(operation)].encode(operation)


def decode_operation(record: Record) -> Operation:
    """The operation of any of :data:`KINDS`. Raises: FormatError."""
    kind = BY_TYPE.get(record.type)
    if kind is None:
        raise FormatError(f"a record has the unknown type {record.type}; a newer version wrote it")
    return _decoded(kind.decode, record, "a record of type", record.type)


# --------------------------------------------------------------------------------------- messages


def body_bytes(message: Message) -> int:
    """What a record's header and a location say about the body: its size, as far as they can."""
    return len(message.body) if message.large is None else min(message.large.size, MASK_32)


def read_message(record: bytes, sequence: int) -> Message:
    """Decode the message of one record that was read alone; see :func:`read_value`."""
    return _decoded(_decode_message, read_value(record, sequence), "message", sequence)


def large_body_of(record: Record) -> LargeBody:
    """The body that a message record with LARGE_BIT refers to. Raises: FormatError."""
    value = record.payload[record.prefix_bytes :]
    body = _decoded(_decode_message, value, "message", record.sequence).large
    if body is None:
        raise FormatError(f"message {record.sequence} does not name its large body")
    return body


def read_small_value(record: bytes, sequence: int) -> bytes:
    """As :func:`read_value`; b"" for a message whose body has its own file."""
    value = read_value(record, sequence)
    return b"" if record[_format.TYPE_OFFSET] & LARGE_BIT else value


def read_small_values(
    data: bytes, begin: int, sequences: Sequence[int], locations: Sequence[int]
) -> list[bytes]:
    """The result of :func:`read_small_value` for each of many records of one file.

    Args: data: the file's bytes from offset *begin* on, with all of the records in it.
    Raises: FormatError: some record is damaged or not the expected one; it does not say which.
    """
    values: list[bytes] = []
    unpack, extend, header = RECORD_HEADER.unpack_from, crc32c, RECORD_HEADER_BYTES
    try:
        for sequence, location in zip(sequences, locations, strict=True):
            at = (location >> 64 & MASK_35) - begin
            payload = data[at + header : at + (location >> 32 & MASK_32)]
            size, crc, found, _, prefix, _, kind = unpack(data, at)
            if (
                found != sequence
                or size != len(payload)
                or kind not in MESSAGE_TYPES
                or prefix > size
                or extend(sequence & MASK_32, payload) != crc
            ):
                raise FormatError(f"message {sequence} is not there")
            if kind & LARGE_BIT:
                payload = b""
            values.append(payload[prefix:] if prefix else payload)
    except struct.error as error:
        raise FormatError(f"a record is cut off: {error}") from error
    return values


def read_value(record: bytes, sequence: int) -> bytes:
    """The encoded message of one add, move or copy record that was read alone.

    Args: record: header and payload, exactly. sequence: which one it must be.
    Raises: FormatError when it is damaged or not the expected one.
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


def lists_of(record: Record) -> tuple[int, ...]:
    """The lists of an add, copy or reference record; none for a copy that has none."""
    if not record.prefix_bytes:
        return (record.pending_list,) if record.pending_list else ()
    further = struct.unpack_from(f"<{record.prefix_bytes // 8}Q", record.payload)
    return (record.pending_list, *further)


def encode_reference(
    kind: int, sequence: int, place: int, lists: Sequence[int], *, synced: bool
) -> bytes:
    """The record that says where a message lies. *synced*: it is already on stable storage."""
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
    value = record.payload[record.prefix_bytes :]
    place, synced = _decoded(_decode_reference, value, "the reference to message", record.sequence)
    return int.from_bytes(place, "little"), synced


# ------------------------------------------------------------------------------- acknowledgements


def encode_acknowledge(operation: Acknowledge, ack_first: int) -> bytes:
    """The record; without a log (*ack_first* 0) only what replay needs."""
    value: tuple[object, ...] = (ack_first, operation.sequences)
    if ack_first:
        value += msgspec.structs.astuple(operation)[2:]
    return encode_record(_format.ACKNOWLEDGE, encode(value), pending_list=operation.pending_list)


def decode_acknowledge(record: Record) -> tuple[Acknowledge, int]:
    """The operation and its ``ack_first``. Raises: FormatError."""
    value = _decoded(_decode_acknowledge, record.payload, "a record of type", record.type)
    fields = msgspec.structs.astuple(value)
    return Acknowledge(record.pending_list, *fields[1:]), value.ack_first
