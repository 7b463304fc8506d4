"""How fast one principal is read: a second's worth at once, then as fast as the rate."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.broker.limits import meter as module
from tidegate.broker.limits.accounts import METERS_MIN, Accounts
from tidegate.broker.limits.meter import Meter
from tidegate.config import BrokerConfig, Quota


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


def test_whoever_comes_again_has_no_new_seconds_worth(clock: Clock) -> None:
    accounts = Accounts(BrokerConfig(), (Quota("*", receive_rate=1000),))
    first = accounts.open("ann", "peer 1")
    meter = accounts.meter("ann")
    assert meter is not None
    meter.received(Reader(), 5000)
    del first
    gc.collect()
    again = accounts.open("ann", "peer 2")
    reader = Reader()
    meter = accounts.meter("ann")
    assert meter is not None
    meter.received(reader, 1)
    assert reader.is_throttled
    del again


def test_those_that_are_gone_and_owe_nothing_are_forgotten(clock: Clock) -> None:
    accounts = Accounts(BrokerConfig(), (Quota("*", receive_rate=1000),))
    there = accounts.open("there", "peer")
    for number in range(3 * METERS_MIN):
        accounts.open(f"user {number}", "peer")
        owed = accounts.meter(f"user {number}")
        assert owed is not None
        owed.received(Reader(), 2000 if number == 0 else 500)
        clock.advance(0.001)
    assert accounts.meter("there") is not None
    assert accounts.meter("user 0") is None, "what it owed was made up for long ago"
    assert (
        sum(accounts.meter(f"user {n}") is not None for n in range(3 * METERS_MIN))
        < 2.1 * METERS_MIN
    )
    del there
