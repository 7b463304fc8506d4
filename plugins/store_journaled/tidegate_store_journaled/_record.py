"""One batch as one record of the journal: MessagePack, ``[[kind, operation], …]``.

The journal holds each batch as the body of one message. Kinds are the names of the contract's
operations, so new operations need no change here. The two most frequent ones have a shorter form,
and one is this package's own: how far the acknowledged log was released.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from tidegate.spi import Acknowledge, AddMessage, CorruptRecordError, Message, Operation, Outcome

#: Kinds that are not the name of an operation.
_ADD: Final = "a"
_REFERENCE: Final = "b"
_ACKNOWLEDGE: Final = "k"
_RELEASE: Final = "r"

_Add: TypeAlias = tuple[int, Message, tuple[int, ...]]
_Ack: TypeAlias = tuple[
    int, tuple[int, ...], tuple[int, ...], int, str, str, str, str, tuple[int, ...], Outcome, str
]

_decoders: Final[dict[str, Callable[[msgspec.Raw], Operation]]] = {
    kind.__name__: msgspec.msgpack.Decoder(kind).decode for kind in typing.get_args(Operation)
}
_replace: Final = msgspec.structs.replace
_encode: Final = msgspec.msgpack.Encoder().encode
_decode_record: Final = msgspec.msgpack.Decoder(list[tuple[str, msgspec.Raw]]).decode
_decode_add: Final = msgspec.msgpack.Decoder(_Add).decode
_decode_reference: Final = msgspec.msgpack.Decoder(tuple[int, Message, tuple[int, ...], int]).decode
_decode_ack: Final = msgspec.msgpack.Decoder(_Ack).decode


class Record(msgspec.Struct):
    """What one record says.

    Attributes:
        operations: the batch; messages whose body is stored beside the record have an empty one.
        references: sequence -> number of the body in the journal.
        released: the acknowledged log was released up to here; 0 when the record does not say.
    """

    operations: list[Operation]
    references: dict[int, int]
    released: int = 0


def encode(operations: Sequence[Operation], references: Mapping[int, int]) -> bytes:
    """A batch as a record; bodies of the messages in *references* are left out."""
    items: list[tuple[str, Any]] = []
    for operation in operations:
        kind = type(operation)
        if kind is AddMessage:
            assert isinstance(operation, AddMessage)
            sequence, message, lists = (
                operation.sequence,
                operation.message,
                operation.pending_lists,
            )
            if sequence in references:
                bare = _replace(message, body=b"")
                items.append((_REFERENCE, (sequence, bare, lists, references[sequence])))
            else:
                items.append((_ADD, (sequence, message, lists)))
        elif kind is Acknowledge:
            assert isinstance(operation, Acknowledge)
            items.append((_ACKNOWLEDGE, _fields(operation)))
        else:
            items.append((kind.__name__, operation))
    return _encode(items)


def encode_release(through: int) -> bytes:
    """The record that says how far the acknowledged log was released."""
    return _encode([(_RELEASE, through)])


def decode(record: bytes, number: int) -> Record:
    """The inverse. *number*: of the record, for the error. Raises: CorruptRecordError."""
    found = Record([], {})
    try:
        for kind, value in _decode_record(record):
            if kind == _ADD:
                found.operations.append(AddMessage(*_decode_add(value)))
            elif kind == _REFERENCE:
                sequence, message, lists, place = _decode_reference(value)
                found.operations.append(AddMessage(sequence, message, lists))
                found.references[sequence] = place
            elif kind == _ACKNOWLEDGE:
                found.operations.append(Acknowledge(*_decode_ack(value)))
            elif kind == _RELEASE:
                found.released = msgspec.msgpack.decode(value, type=int)
            else:
                found.operations.append(_decoders[kind](value))
    except (msgspec.MsgspecError, KeyError) as error:
        raise CorruptRecordError(
            f"not a record of this version: {error}", location=f"journal record {number}"
        ) from error
    return found


def _fields(operation: Acknowledge) -> _Ack:
    return msgspec.structs.astuple(operation)
