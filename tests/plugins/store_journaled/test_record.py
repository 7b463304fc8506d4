"""Batches as records: everything the contract can say comes back as it was."""

from __future__ import annotations

import typing

import msgspec
import pytest

from tidegate.spi import (
    Acknowledge,
    AddDestination,
    AddMessage,
    ClearRetained,
    CorruptRecordError,
    Discard,
    DiscardReason,
    InflightDirection,
    InflightRecord,
    InflightState,
    Message,
    Move,
    Operation,
    PutInflight,
    PutSession,
    PutSubscription,
    RecordDelivery,
    RemoveDestination,
    RemoveInflight,
    RemoveSession,
    RemoveSubscription,
    Session,
    SetRetained,
    Subscription,
)
from tidegate_store_journaled._record import decode, encode, encode_release

MESSAGE = Message("queue://q", b"\x00body", (("a", "1"), ("a", "2")), 5, priority=9)
OPERATIONS: list[Operation] = [
    AddMessage(1, MESSAGE, (1, 2)),
    Acknowledge(1, (1, 2), (3, 4), 5, "client", "subscription", "stomp"),
    Discard(1, (3,), DiscardReason.EXPIRED),
    Move(1, 4, 2, 9, MESSAGE),
    RecordDelivery(1, (5,), (2,)),
    AddDestination("queue://q", 1),
    RemoveDestination("queue://q", 1),
    PutSubscription(Subscription(2, "c", "n", "topic://t", True, options={"x": "y"})),
    RemoveSubscription(2),
    SetRetained(MESSAGE),
    ClearRetained("topic://t"),
    PutSession(Session("c", 10, will=MESSAGE)),
    RemoveSession("c"),
    PutInflight(InflightRecord("c", InflightDirection.OUT, 1, InflightState.RELEASED)),
    RemoveInflight("c", InflightDirection.IN, 2),
]


def test_every_operation_comes_back() -> None:
    found = decode(encode(OPERATIONS, {}), 1)
    assert found.operations == OPERATIONS
    assert (found.references, found.released) == ({}, 0)


def test_the_sample_leaves_out_only_operations_that_are_plain_values() -> None:
    """Whatever the contract gains later is carried by name: it must be decodable by its type alone."""
    for kind in typing.get_args(Operation):
        assert issubclass(kind, msgspec.Struct)
        msgspec.msgpack.Decoder(kind)


def test_bodies_that_are_apart_are_left_out_and_numbered() -> None:
    record = encode([AddMessage(7, MESSAGE, (1,)), AddMessage(8, MESSAGE, (1,))], {8: 40})
    found = decode(record, 1)
    assert found.references == {8: 40}
    bodies = [op.message.body for op in found.operations if isinstance(op, AddMessage)]
    assert bodies == [MESSAGE.body, b""]


def test_a_release_is_a_record_of_its_own() -> None:
    found = decode(encode_release(77), 1)
    assert (found.operations, found.released) == ([], 77)


@pytest.mark.parametrize("record", [b"", b"\xc1", b"\x91\x92\xa3wat\x01", b"\x91\x92\xa1a\x01"])
def test_what_is_no_record_is_reported_with_its_number(record: bytes) -> None:
    with pytest.raises(CorruptRecordError, match="journal record 12"):
        decode(record, 12)
