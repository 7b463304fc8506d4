"""A message whose bytes are in the record file of its destination: what the journal keeps of it.

In the journal it is an ordinary add record whose message has only a destination, and whose body
says which write of the record file it means. Nobody can mistake it for a message: the header of the
record (and so the location in the index) has the length of the *real* body, and that is never the
length of the body that is there. docs/journal-format.md section 10.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from tidegate.spi import AddMessage, Discard, DiscardReason, Message, Move, Operation
from tidegate_store_journal.log.format import (
    ADD,
    RECORD_HEADER_BYTES,
    SHARED_BIT,
    encode,
    encode_record,
    pack_integers,
)

_BODY: Final = struct.Struct("<QB")
_SYNCED: Final = 1
_SINGLE: Final = 2


class AddReference(msgspec.Struct, frozen=True, gc=False):
    """Takes the place of an ``AddMessage`` between the layout and the encoder.

    Attributes:
        value: the encoded reference. body_bytes: of the real message.
    """

    sequence: int
    value: bytes
    body_bytes: int
    pending_lists: tuple[int, ...]

    def record_at(self, base: int) -> tuple[bytes, int]:
        """The record, and its location when it is written to *base* (a location without sizes)."""
        lists = self.pending_lists
        prefix = pack_integers(lists[1:])
        record = encode_record(
            ADD,
            prefix + self.value,
            sequence=self.sequence,
            pending_list=lists[0],
            prefix_bytes=len(prefix),
            body_bytes=self.body_bytes,
        )
        place = base + (len(record) << 32 | self.body_bytes)
        return record, place | SHARED_BIT if len(lists) > 1 else place


class Reference(NamedTuple):
    """What a reference says: which write it means, that it was synced before the batch, and that it
    is in a file of its own (which references of older versions do not say)."""

    destination: str
    write: int
    synced: bool
    single: bool = False


#: No shorter record can be a reference.
REFERENCE_BYTES_MIN: Final = RECORD_HEADER_BYTES + _BODY.size


def encode_reference(
    destination: str, write: int, body_bytes: int, *, synced: bool, single: bool = False
) -> bytes:
    """The value for the journal."""
    body = _BODY.pack(write, (_SYNCED if synced else 0) | (_SINGLE if single else 0))
    if len(body) == body_bytes:
        body += b"\0"
    return encode(Message(destination, body))


def decode_reference(message: Message, body_bytes: int) -> Reference | None:
    """*message* as a reference; None when it is a real message.

    Args: body_bytes: what the location of the message says.
    """
    body = message.body
    if len(body) == body_bytes or len(body) not in (_BODY.size, _BODY.size + 1):
        return None
    write, flags = _BODY.unpack_from(body)
    return Reference(
        message.destination, write, bool(flags & _SYNCED), single=bool(flags & _SINGLE)
    )


def with_references(
    operations: Sequence[Operation], references: dict[int, AddReference]
) -> list[Operation | AddReference]:
    """*operations* with references in place of the messages that are in directories.

    A move becomes what it is: one message leaves, another one comes.
    """
    result: list[Operation | AddReference] = []
    for operation in operations:
        if type(operation) is AddMessage and operation.sequence in references:
            result.append(references[operation.sequence])
        elif type(operation) is Move and operation.target_sequence in references:
            source = (operation.sequence,)
            result.append(Discard(operation.pending_list, source, DiscardReason.DROPPED))
            result.append(references[operation.target_sequence])
        else:
            result.append(operation)
    return result
