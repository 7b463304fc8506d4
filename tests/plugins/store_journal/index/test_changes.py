"""The difference between two checkpoints."""

from __future__ import annotations

import pytest
from numbered import add, message

from tidegate.spi import (
    AddDestination,
    InflightDirection,
    InflightRecord,
    InflightState,
    Operation,
    PutInflight,
    PutSession,
    PutSubscription,
    Session,
    SetRetained,
    Subscription,
)
from tidegate_store_journal.index.index import Index
from tidegate_store_journal.write.encode import encode_batch

RECORD = InflightRecord("c", InflightDirection.IN, 7, InflightState.RECEIVED)


@pytest.mark.parametrize(
    ("operation", "is_small_state"),
    [
        (add(1), False),
        (AddDestination("queue://q", 1), True),
        (PutSubscription(Subscription(2, "c", "n", "topic://t", True)), True),
        (PutSession(Session("c", 1)), True),
        (PutInflight(RECORD), True),
        (SetRetained(message(1)), True),
    ],
)
def test_only_small_state_is_carried_to_the_bindings(
    operation: Operation, is_small_state: bool
) -> None:
    index = Index(keep_acknowledged=False)
    index.apply(encode_batch([operation], 1, 4096, index).effects)
    assert list(index.take_changes().small.values()) == [operation] * is_small_state
    assert not index.take_changes().small
