"""Units of a turn, and what is done when one is dropped."""

from __future__ import annotations

import pytest
from broker_harness import Broker, message

from tidegate.broker.publish.publisher import at_least_once
from tidegate.broker.turn import turn as turn_module
from tidegate.broker.turn.turn import Turn, fail
from tidegate.spi import (
    Acknowledge,
    GatewayError,
    RecordDelivery,
    RemoveDestination,
    StoreFullError,
    Token,
)


class Somebody:
    def __init__(self) -> None:
        self.failures: list[Token] = []

    def confirmed(self, tokens: list[Token]) -> None:
        raise AssertionError

    def failed(self, token: Token, error: GatewayError) -> None:
        self.failures.append(token)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_steps_are_undone_in_reverse(count: int) -> None:
    done: list[int] = []
    steps = [lambda number=number: done.append(number) for number in range(count)]
    unit = Turn().unit(0, Somebody(), undo=steps)
    assert (unit.undo is None) is (count == 0)
    if unit.undo is not None:
        unit.undo()
    assert done == list(reversed(range(count)))


def test_a_unit_is_what_was_added_since_its_first_operation() -> None:
    turn = Turn()
    turn.operations += [RemoveDestination("queue://a", 1), RemoveDestination("queue://b", 2)]
    unit = turn.unit(1, Somebody(), "token")
    assert (unit.first, unit.count) == (1, 1)
    turn.when_durable(lambda: None)
    assert [unit.count for unit in turn.units] == [1, 0]


def test_a_unit_that_was_taken_out_is_told_once() -> None:
    turn, somebody = Turn(), Somebody()
    unit = turn.unit(0, somebody, "token")
    fail(unit, StoreFullError("full"))
    assert somebody.failures == ["token"]
    assert unit.token is None
    unit.who.failed(None, StoreFullError("full"))
    assert somebody.failures == ["token"]


def test_a_queue_keeps_a_qos_0_message_as_one_to_be_acknowledged() -> None:
    assert at_least_once(message("queue://q", "m", qos=0)) == message("queue://q", "m", qos=1)


async def test_what_is_about_very_many_messages_is_several_operations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So a store can let others have the loop in between."""
    monkeypatch.setattr(turn_module, "OPERATION_SEQUENCES_MAX", 3)
    async with Broker() as broker:
        client = await broker.client()
        client.send("queue://q", "m")
        await broker.settle()
        queue = broker.queue("q")
        turn = Turn()
        turn.returned[queue] = {number: 10 + number for number in range(1, 8)}
        turn.acknowledged[None, queue] = (list(range(1, 8)), list(range(101, 108)), {2: 5, 7: 6})
        front = turn.take_front(now=9)
    delivered = [item for item in front if isinstance(item, RecordDelivery)]
    assert [item.sequences for item in delivered] == [(1, 2, 3), (4, 5, 6), (7,)]
    assert [item.delivery_count for item in delivered] == [(11, 12, 13), (14, 15, 16), (17,)]
    acknowledged = front[3:]
    assert acknowledged == [
        Acknowledge(queue.id, (1, 2, 3), (101, 102, 103), 9, delivery_counts=(1, 5, 1)),
        Acknowledge(queue.id, (4, 5, 6), (104, 105, 106), 9),
        Acknowledge(queue.id, (7,), (107,), 9, delivery_counts=(6,)),
    ]
    assert not turn.take_front(now=9)
