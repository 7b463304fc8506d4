"""Rows and columns from the contract's own types, and back."""

import enum

import msgspec
import pyarrow as pa
import pytest

from tidegate.portable._columns import arrow_fields, decode_row, encode_row
from tidegate.spi import (
    InflightDirection,
    InflightRecord,
    InflightState,
    Message,
    Session,
    Subscription,
)
from tidegate.testing._portable_contents import BRANCH, FULL, MEMBER, SESSION

RECORD = InflightRecord(
    "c", InflightDirection.OUT, 65535, InflightState.RELEASED, "s", 2**64 - 1, 2
)


@pytest.mark.parametrize(
    "value",
    [FULL, MEMBER, SESSION, BRANCH, RECORD, Message("queue://q", b""), Session("c", 0)],
    ids=lambda value: type(value).__name__,
)
def test_every_value_comes_back_through_arrow(value: msgspec.Struct) -> None:
    schema = pa.schema(arrow_fields(type(value)))
    batch = pa.RecordBatch.from_pylist([encode_row(value)], schema=schema)
    (row,) = batch.to_pylist()
    assert decode_row(type(value), row) == value


@pytest.mark.parametrize("kind", [Message, Subscription, Session, InflightRecord])
def test_every_field_of_the_contract_has_a_column_of_its_name(kind: type[msgspec.Struct]) -> None:
    assert [field.name for field in arrow_fields(kind)] == list(kind.__struct_fields__)


def test_an_enumeration_is_written_by_name() -> None:
    row = encode_row(RECORD)
    assert (row["direction"], row["state"]) == ("out", "released")


def test_a_column_that_is_missing_or_null_gives_the_default() -> None:
    row = {"destination": "queue://q", "body": b"x", "priority": None}
    assert decode_row(Message, row) == Message("queue://q", b"x")


def test_a_row_without_what_has_no_default_is_refused() -> None:
    with pytest.raises(ValueError, match="Message is incomplete"):
        decode_row(Message, {"body": b"x"})
    with pytest.raises(ValueError, match="'sideways' is not one of in, out"):
        decode_row(InflightRecord, encode_row(RECORD) | {"direction": "sideways"})


def test_a_field_that_no_column_fits_is_an_error_and_no_loss() -> None:
    class Odd(msgspec.Struct):
        things: dict[int, bytes]

    with pytest.raises(TypeError, match="no column of the portable format fits things"):
        arrow_fields(Odd)


def test_further_plain_fields_are_carried_without_code() -> None:
    class Colour(enum.Enum):
        RED = 1

    class Newer(msgspec.Struct, frozen=True):
        ratio: float = 0.0
        colours: tuple[Colour, ...] = ()
        inner: Message | None = None

    value = Newer(0.5, (Colour.RED, Colour.RED), FULL)
    batch = pa.RecordBatch.from_pylist([encode_row(value)], schema=pa.schema(arrow_fields(Newer)))
    assert decode_row(Newer, batch.to_pylist()[0]) == value
