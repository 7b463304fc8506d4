"""References to messages in directories: never taken for a message, nor a message for one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from split_kit import add, message

from tidegate.spi import Acknowledge, Discard, Message, Move, Operation
from tidegate_store_journal.index.index import Index
from tidegate_store_journal.log import format as _format
from tidegate_store_journal.log.encode import decode_batch, encode_batch
from tidegate_store_journal.log.format import BatchHeader, read_message
from tidegate_store_journal.split.reference import (
    AddReference,
    Reference,
    decode_reference,
    encode_reference,
    with_references,
)


def decoded(value: bytes) -> Message:
    return read_message(_format.encode_record(_format.ADD, value, sequence=1), 1)


@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("synced", [True, False])
@pytest.mark.parametrize("body_bytes", [0, 8, 9, 10, 11, 5000])
def test_a_reference_comes_back(body_bytes: int, synced: bool, single: bool) -> None:
    value = encode_reference("queue://q", 77, body_bytes, synced=synced, single=single)
    found = decode_reference(decoded(value), body_bytes)
    assert found == Reference("queue://q", 77, synced, single)


@given(st.binary(max_size=30))
def test_no_message_is_taken_for_a_reference(body: bytes) -> None:
    assert decode_reference(Message("queue://q", body), len(body)) is None


@pytest.mark.parametrize("lists", [(1,), (1, 2, 3)])
def test_a_reference_is_an_add_record_with_the_length_of_the_real_body(
    lists: tuple[int, ...],
) -> None:
    value = encode_reference("queue://q", 5, 4000, synced=True)
    index = Index(keep_acknowledged=False)
    operations = [add(1), AddReference(2, value, 4000, lists), add(3)]
    batch = encode_batch(operations, 7, 4096, index)
    assert (batch.effects.messages, batch.effects.references) == (3, 2 + len(lists))
    assert batch.grows
    header = BatchHeader(len(batch.payload), 1, 0, 3, 0, 0, 3, 0)
    again = decode_batch(batch.payload, header, 7, 4096)
    assert again.adds == batch.effects.adds
    assert again.shared == batch.effects.shared
    assert again.message_bytes == batch.effects.message_bytes
    place = batch.effects.adds[lists[-1]][2]
    file_id, offset, size, body_bytes = _format.location_parts(place)
    assert (file_id, body_bytes) == (7, 4000)
    record = batch.payload[offset - 4096 : offset - 4096 + size]
    found = decode_reference(read_message(record, 2), body_bytes)
    assert found == Reference("queue://q", 5, synced=True)


def test_references_take_the_place_of_messages_and_moves() -> None:
    operations: list[Operation] = [
        add(1),
        Acknowledge(1, (1,)),
        Move(1, 2, 3, 9, message(9)),
        add(4),
    ]
    references = {sequence: AddReference(sequence, b"", 0, (3,)) for sequence in (1, 9)}
    changed = with_references(operations, references)
    assert changed[0] is references[1]
    assert changed[1] is operations[1]
    assert isinstance(changed[2], Discard)
    assert (changed[2].pending_list, changed[2].sequences) == (1, (2,))
    assert changed[3] is references[9]
    assert changed[4] is operations[3]
