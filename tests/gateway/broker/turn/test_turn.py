"""Units of a turn, and what is done when one is dropped."""

from __future__ import annotations

import pytest
from broker_harness import message

from tidegate.broker.publish.publisher import at_least_once
from tidegate.broker.turn.turn import Turn, fail
from tidegate.spi import GatewayError, RemoveDestination, StoreFullError, Token


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
