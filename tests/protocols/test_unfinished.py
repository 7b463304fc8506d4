"""A frame that does not end: told in steps, given time as long as it moves, forgotten when it has ended."""

import pytest

from tidegate.spi import FlowControlError
from tidegate_protocols._pace import Pace
from tidegate_protocols._unfinished import PROGRESS_BYTES, STEP_BYTES, UnfinishedInput


class Case:
    def __init__(self, timeout_s=60.0):
        self.told: list[int] = []
        self.timers, self.refused, self.is_paused = [], [], False
        self.unfinished = UnfinishedInput(
            self.told.append,
            Pace(timeout_s, self.call_later, lambda: self.is_paused),
            self.refused.append,
            lambda: self.unfinished.size if self.size is None else self.size,
        )
        self.size: int | None = None

    def call_later(self, delay_s, callback):
        self.timers.append(callback)
        return self

    def cancel(self):
        self.timers.clear()

    def time_passes(self):
        self.timers.pop()()


@pytest.fixture
def case():
    return Case()


def test_it_is_told_in_steps_until_it_ends(case):
    for size in range(0, 4 * STEP_BYTES, STEP_BYTES // 2):
        case.unfinished.waits(size)
    assert case.told == [STEP_BYTES, 2 * STEP_BYTES, 3 * STEP_BYTES]
    case.unfinished.waits(10)
    assert (case.told[-1], case.unfinished.size, case.timers) == (0, 0, [])


def test_a_frame_that_follows_at_once_is_another_one(case):
    case.unfinished.waits(5 * STEP_BYTES)
    case.unfinished.waits(2 * STEP_BYTES)
    assert case.told == [5 * STEP_BYTES, 0, 2 * STEP_BYTES]
    assert len(case.timers) == 1


def test_one_that_moves_has_time_and_one_that_does_not_is_refused(case):
    case.unfinished.waits(STEP_BYTES)
    case.unfinished.waits(STEP_BYTES + PROGRESS_BYTES)
    case.time_passes()
    assert not case.refused
    case.unfinished.waits(2 * STEP_BYTES + PROGRESS_BYTES)
    case.time_passes()
    assert "frame_timeout" in str(case.refused[0])
    assert not case.timers


def test_what_was_handled_meanwhile_is_not_refused(case):
    case.unfinished.waits(STEP_BYTES)
    case.size = STEP_BYTES - 1
    case.time_passes()
    assert (case.refused, case.timers, case.told) == ([], [], [STEP_BYTES, 0])


def test_while_it_is_not_read_nothing_can_come(case):
    case.unfinished.waits(STEP_BYTES)
    case.is_paused = True
    case.time_passes()
    assert (len(case.timers), case.refused) == (1, [])


def test_without_a_timeout_it_may_take_as_long_as_it_likes():
    case = Case(timeout_s=0)
    case.unfinished.waits(STEP_BYTES)
    assert (case.timers, case.told) == ([], [STEP_BYTES])


def test_a_budget_that_is_used_up_refuses_it(case):
    def refuse(size):
        raise FlowControlError("used up")

    case.unfinished._tell = refuse
    with pytest.raises(FlowControlError):
        case.unfinished.waits(STEP_BYTES)
    assert (case.unfinished.size, case.timers) == (0, [])
