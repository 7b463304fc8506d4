"""What a client does not read: told in steps, its reading stopped at the limit, closed when nothing moves."""

from typing import Any

import pytest

from tidegate.spi import FlowControlError
from tidegate_protocols._unread import UnreadOutput

LIMIT = 200_000


class FakeLink:
    peer = "somebody"

    def __init__(self):
        self.unsent_bytes, self.is_aborted = 0, False

    def abort(self):
        self.is_aborted = True


class Case:
    def __init__(self, timeout_s=60.0):
        self.link, self.timers, self.stops = FakeLink(), [], 0
        self.told: list[int] = []
        link: Any = self.link
        self.unread = UnreadOutput(link, LIMIT, timeout_s, self.call_later, self.stop)
        self.unread.tell = self.told.append

    def call_later(self, delay_s, callback):
        self.timers.append(callback)
        return self

    def cancel(self):
        self.timers.clear()

    def stop(self):
        self.stops += 1

    def time_passes(self):
        callback, self.timers = self.timers[0], []
        callback()


@pytest.fixture
def case():
    return Case()


def test_what_waited_is_told_but_does_not_count_as_an_answer(case):
    case.link.unsent_bytes = 5 * LIMIT
    case.unread.paused()
    case.unread.wrote(10)
    assert (case.told, case.stops) == ([5 * LIMIT], 0)
    case.unread.resumed()
    assert case.told == [5 * LIMIT, 0]


def test_it_is_told_in_steps(case):
    case.unread.paused()
    for _ in range(100):
        case.unread.wrote(1000)
    assert case.told == [66_000]


def test_reading_stops_once_at_the_limit_and_may_again_later(case):
    case.unread.paused()
    for _ in range(5):
        case.unread.wrote(LIMIT)
    assert (case.stops, len(case.timers)) == (1, 1)
    case.unread.resumed()
    assert not case.timers
    case.unread.paused()
    case.unread.wrote(LIMIT + 1)
    assert case.stops == 2


def test_who_takes_nothing_is_closed_and_who_takes_a_little_is_not(case):
    case.unread.paused()
    case.link.unsent_bytes = LIMIT + 1
    case.unread.wrote(LIMIT + 1)
    case.link.unsent_bytes -= 1
    case.time_passes()
    assert not case.link.is_aborted
    case.time_passes()
    assert case.link.is_aborted
    assert not case.timers


def test_without_a_timeout_nobody_is_closed():
    case = Case(timeout_s=0)
    case.unread.paused()
    case.unread.wrote(LIMIT + 1)
    assert (case.stops, case.timers) == (1, [])


def test_a_budget_that_is_used_up_is_the_limit_too(case):
    def refuse(size):
        raise FlowControlError("used up")

    case.unread.tell = refuse
    case.link.unsent_bytes = 1
    case.unread.paused()
    assert case.stops == 1
