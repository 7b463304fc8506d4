"""Operations are immutable values; a batch is a list of them with a durability."""

import typing

import msgspec
import pytest

from tidegate.spi import (
    AddDestination,
    Durability,
    InflightDirection,
    InflightRecord,
    InflightState,
    Operation,
    Session,
    Subscription,
    WriteBatch,
)


def test_an_empty_batch_wants_to_be_synced() -> None:
    batch = WriteBatch()
    assert (len(batch), batch.operations, batch.durability) == (0, [], Durability.SYNCED)


def test_two_batches_share_no_list() -> None:
    first, second = WriteBatch(), WriteBatch()
    first.operations.append(AddDestination("queue://a", 1))
    assert (len(first), len(second)) == (1, 0)


def test_a_batch_shows_its_size_and_durability_but_no_content() -> None:
    batch = WriteBatch([AddDestination("queue://secret", 1)], Durability.WRITTEN)
    assert repr(batch) == "WriteBatch(1 operations, WRITTEN)"


def test_synced_is_more_than_written() -> None:
    assert Durability.SYNCED > Durability.WRITTEN


@pytest.mark.parametrize("kind", typing.get_args(Operation))
def test_every_operation_is_a_frozen_value_outside_the_garbage_collector(kind: type) -> None:
    assert issubclass(kind, msgspec.Struct)
    config = kind.__struct_config__
    assert (config.frozen, config.gc) == (True, False)
    assert kind.__doc__


@pytest.mark.parametrize(
    "value",
    [
        Subscription(1, "c", "n", "topic://a", True, 1, True, "mqtt", "g", {"k": "v"}),
        Session("c", 60, 5, {"k": "v"}),
        InflightRecord("c", InflightDirection.OUT, 7, InflightState.RELEASED, "s", 9),
    ],
)
def test_stored_values_come_back_and_may_grow(value: msgspec.Struct) -> None:
    encoded = msgspec.msgpack.encode(value)
    assert msgspec.msgpack.decode(encoded, type=type(value)) == value
    longer = msgspec.msgpack.encode([*msgspec.msgpack.decode(encoded), "a field of the future"])
    assert msgspec.msgpack.decode(longer, type=type(value)) == value
