"""A frame that does not end: told in steps, given time as long as it moves, forgotten when it has ended."""

import pytest

from tidegate.spi import FlowControlError
from tidegate_protocols._pace import Pace
from tidegate_protocols._unfinished import (
    PROGRESS_BYTES,
    SMALL_PROGRESS_BYTES,
    STEP_BYTES,
    IdleBodies,
    UnfinishedInput,
)


class Case:
    def __init__(self, timeout_s=60.0):
        self.told: list[int] = []
        self.timers, self.refused, self.is_paused, self.pauses = [], [], False, 0
        self.pace = Pace(timeout_s, self.call_later, lambda: self.is_paused, lambda: self.pauses)
        self.unfinished = UnfinishedInput(
            self.told.append, self.pace, self.refused.append, lambda: self.size
        )
        self.size = 0

    def waits(self, size, *, ended=0):
        """After a read *size* bytes of a frame are here; bytes of frames that *ended* came before them."""
        self.unfinished.read += ended + size - self.size
        self.size = size
        self.unfinished.waits(size)

    def handled(self, size):
        """Without a read: of what waited for its turn *size* bytes are left."""
        self.size = size

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
        case.waits(size)
    assert case.told == [STEP_BYTES, 2 * STEP_BYTES, 3 * STEP_BYTES]
    case.waits(0, ended=4 * STEP_BYTES)
    assert (case.told[-1], case.unfinished.size, case.timers) == (0, 0, [])


def test_a_frame_that_follows_at_once_is_another_one(case):
    case.waits(5 * STEP_BYTES)
    case.waits(2 * STEP_BYTES, ended=6 * STEP_BYTES)
    assert case.told == [5 * STEP_BYTES, 0, 2 * STEP_BYTES]
    assert len(case.timers) == 1


def test_one_that_moves_has_time_and_one_that_does_not_is_refused(case):
    case.waits(STEP_BYTES)
    case.waits(STEP_BYTES + PROGRESS_BYTES)
    case.time_passes()
    assert not case.refused
    case.waits(STEP_BYTES + 2 * PROGRESS_BYTES - 1)
    case.time_passes()
    assert "frame_timeout" in str(case.refused[0])
    assert not case.timers


def test_a_small_one_that_does_not_move_is_refused_too(case):
    assert case.unfinished.least == 1
    case.waits(1)
    case.time_passes()
    assert "the frame is incomplete: 1b have arrived, fewer than 1kb more in 1min" in str(
        case.refused[0]
    )
    assert (case.told, case.timers) == ([], [])


def test_a_small_one_needs_little_of_a_thin_line_and_is_told_of_when_it_stays(case):
    size = 10
    for _ in range(STEP_BYTES // SMALL_PROGRESS_BYTES):
        case.waits(size)
        size += SMALL_PROGRESS_BYTES
        case.waits(size)
        case.time_passes()
    assert not case.refused
    assert case.told[0] == 10 + SMALL_PROGRESS_BYTES
    assert case.told[-1] == case.unfinished.size == case.size > STEP_BYTES
    case.waits(size + PROGRESS_BYTES - 1)  # by now it is a large one
    case.time_passes()
    assert "fewer than 1mb more" in str(case.refused[0])


def test_another_frame_each_time_is_never_refused_and_sets_no_timer_of_its_own(case):
    for _ in range(5):
        for _ in range(10):
            case.waits(100, ended=300)
            assert (len(case.timers), case.unfinished.least) == (1, STEP_BYTES)
        case.time_passes()
    assert (case.refused, case.told) == ([], [])
    case.waits(0, ended=300)
    case.time_passes()
    assert (case.timers, case.unfinished.least) == ([], 1)


def test_what_was_handled_meanwhile_is_not_refused(case):
    case.waits(STEP_BYTES)
    case.handled(STEP_BYTES - 1)
    case.time_passes()
    assert (case.refused, case.told) == ([], [STEP_BYTES, 0])
    case.handled(0)
    case.time_passes()
    assert (case.refused, case.timers) == ([], [])


def test_while_it_is_not_read_nothing_can_come(case):
    case.waits(STEP_BYTES)
    case.is_paused = True
    case.time_passes()
    assert (len(case.timers), case.refused) == (1, [])


@pytest.mark.parametrize("size", [1, STEP_BYTES])
def test_who_is_read_again_has_all_of_its_time(case, size):
    case.waits(size)
    case.pauses += 1  # and it was over a moment ago
    case.time_passes()
    assert (len(case.timers), case.refused) == (1, [])
    case.time_passes()
    assert (len(case.timers), len(case.refused)) == (0, 1)


def test_a_body_that_could_not_come_has_all_of_its_time_too(case):
    bodies = IdleBodies(case.pace, case.refused.append)
    bodies.moves()
    case.pauses += 1
    case.time_passes()
    assert (len(case.timers), case.refused) == (1, [])
    case.time_passes()
    assert (len(case.timers), len(case.refused)) == (0, 1)


def test_without_a_timeout_it_may_take_as_long_as_it_likes():
    case = Case(timeout_s=0)
    case.waits(1)
    case.waits(STEP_BYTES)
    assert (case.timers, case.told, case.unfinished.least) == ([], [STEP_BYTES], STEP_BYTES)


def test_a_budget_that_is_used_up_refuses_it(case):
    def refuse(size):
        raise FlowControlError("used up")

    case.unfinished._tell = refuse
    with pytest.raises(FlowControlError):
        case.waits(STEP_BYTES)
    assert (case.unfinished.size, case.timers) == (0, [])


def test_a_budget_that_is_used_up_when_it_stays_refuses_it_too(case):
    def refuse(size):
        raise FlowControlError("used up")

    case.unfinished._tell = refuse
    case.waits(10)
    case.waits(10 + SMALL_PROGRESS_BYTES)
    case.time_passes()
    assert (str(case.refused[0]), case.timers) == ("used up", [])
