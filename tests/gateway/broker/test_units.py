"""What everything that publishes shares."""

from __future__ import annotations

from broker_harness import message

from tidegate.broker.turn.units import at_least_once, undo_all


def test_steps_are_undone_in_reverse() -> None:
    done: list[int] = []
    undo = undo_all([lambda: done.append(1), lambda: done.append(2), lambda: done.append(3)])
    assert undo is not None
    undo()
    assert done == [3, 2, 1]


def test_without_steps_there_is_nothing_to_undo() -> None:
    assert undo_all([]) is None


def test_a_queue_keeps_a_qos_0_message_as_one_to_be_acknowledged() -> None:
    assert at_least_once(message("queue://q", "m", qos=0)) == message("queue://q", "m", qos=1)
