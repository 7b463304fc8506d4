"""How fast one principal is read: a second's worth at once, then as fast as the rate."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.broker.limits import meter as module
from tidegate.broker.limits.meter import Meter


class Clock:
    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[tuple[float, Any]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Any) -> None:
        self.timers.append((self.now + delay, callback))

    def advance(self, seconds: float) -> None:
        self.now += seconds
        due = [timer for timer in self.timers if timer[0] <= self.now + 1e-9]
        self.timers = [timer for timer in self.timers if timer not in due]
        for _, callback in due:
            callback()


class Reader:
    def __init__(self) -> None:
        self.is_throttled = False

    def throttle(self, reason: object) -> None:
        self.is_throttled = True

    def unthrottle(self, reason: object) -> None:
        self.is_throttled = False


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "asyncio", SimpleNamespace(get_running_loop=lambda: made))
    return made


def test_a_seconds_worth_at_once_and_then_a_pause(clock: Clock) -> None:
    meter, reader = Meter(1000), Reader()
    meter.received(reader, 1000)
    assert not reader.is_throttled
    meter.received(reader, 500)
    assert reader.is_throttled
    clock.advance(0.4)
    assert reader.is_throttled
    clock.advance(0.1)
    assert not reader.is_throttled


def test_all_connections_of_a_principal_share_it(clock: Clock) -> None:
    meter, one, two = Meter(1000), Reader(), Reader()
    meter.received(one, 1500)
    meter.received(two, 500)
    assert one.is_throttled
    assert two.is_throttled
    clock.advance(0.5)
    assert one.is_throttled, "the other one's bytes have to be made up for, too"
    clock.advance(0.5)
    assert not one.is_throttled
    assert not two.is_throttled


def test_what_was_not_used_is_saved_for_a_second_and_no_longer(clock: Clock) -> None:
    meter, reader = Meter(1000), Reader()
    clock.advance(100)
    meter.received(reader, 1001)
    assert reader.is_throttled
