"""The alarm of a sink that is further behind than its goal."""

import logging

import pytest

from tidegate.spi import SinkLag
from tidegate_sink_spark.commits.lag import CALM_MIN, LagWatch


def watch(goal: float, told: list[SinkLag]) -> LagWatch:
    return LagWatch("lake", goal, told.append)


def why() -> str:
    return "the disk is full"


def test_it_is_told_once_with_its_cause_and_once_when_it_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told: list[SinkLag] = []
    seen = watch(3.0, told)
    with caplog.at_level(logging.INFO):
        assert seen.look(100.0, 101.0, why) == pytest.approx(2.001)
        assert told == []
        assert seen.look(100.0, 103.5, why) == 1.0
        assert seen.look(100.0, 104.5, why) == 1.0
        assert told == [SinkLag("lake", 3.0, 3.5, "the disk is full", False)]
        assert seen.is_late
        assert seen.look(None, 105.0, why) == pytest.approx(104.5 + CALM_MIN - 105.0)
        assert seen.look(None, 104.5 + CALM_MIN, why) is None
    assert told[1:] == [SinkLag("lake", 3.0, 0.0, "", True)]
    assert not seen.is_late
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert caplog.messages[0] == "lag=late sink=lake oldest=3.5s goal=3s: the disk is full"


def test_who_is_late_now_and_then_is_late_until_it_stays_within_the_goal() -> None:
    told: list[SinkLag] = []
    seen = watch(1.0, told)
    for second in range(0, 60, 5):  # late each five seconds
        seen.look(second - 2.0, second, why)
        seen.look(None, second + 2.0, why)
    assert [lag.is_over for lag in told] == [False]


def test_a_long_goal_is_calm_for_as_long() -> None:
    told: list[SinkLag] = []
    seen = watch(100.0, told)
    seen.look(0.0, 101.0, why)
    assert seen.look(None, 150.0, why) == pytest.approx(51.0)
    assert seen.is_late


def test_without_rows_or_a_goal_nothing_is_looked_at_again() -> None:
    told: list[SinkLag] = []
    assert watch(3.0, told).look(None, 100.0, why) is None
    assert watch(0.0, told).look(0.0, 100.0, why) is None
    assert told == []
