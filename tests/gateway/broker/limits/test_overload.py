"""When new connections are refused because the loop comes too late, and when not any more."""

import asyncio

import pytest
from broker_harness import Broker

from tidegate.broker.limits.accounts import Accounts
from tidegate.broker.limits.overload import CALM_LOOKS_MIN, LATE_LOOKS_MIN, Overload
from tidegate.broker.limits.sockets import Sockets
from tidegate.config import BrokerConfig


def looked(overload: Overload, lag: float, times: int) -> bool:
    for _ in range(times):
        overload.looked(lag)
    return overload.is_on


def test_one_long_step_is_no_overload() -> None:
    overload = Overload(1.0)
    for _ in range(10):
        assert not looked(overload, 5.0, LATE_LOOKS_MIN - 1)
        assert not looked(overload, 0.9, 1)


def test_it_begins_above_the_limit_and_ends_below_half_of_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    overload = Overload(1.0)
    assert looked(overload, 1.1, LATE_LOOKS_MIN)
    assert looked(overload, 0.6, 100)
    assert looked(overload, 0.4, CALM_LOOKS_MIN - 1)
    assert looked(overload, 0.6, 1)
    assert not looked(overload, 0.4, CALM_LOOKS_MIN)
    assert [record.getMessage().split()[0] for record in caplog.records] == [
        "overloaded=1",
        "overloaded=0",
    ]


def test_new_connections_are_refused_and_counted_while_it_lasts() -> None:
    overload = Overload(1.0)
    sockets = Sockets(Accounts(BrokerConfig()).gateway, 10, overload.refuses)
    assert sockets.opened(1)
    looked(overload, 2.0, LATE_LOOKS_MIN)
    assert [sockets.opened(1), sockets.opened(1)] == [False, False]
    assert (sockets.count, overload.refused) == (1, 2)
    looked(overload, 0.0, CALM_LOOKS_MIN)
    assert sockets.opened(1)


def test_without_a_limit_nobody_is_refused() -> None:
    overload = Overload(0.0)
    assert not looked(overload, 60.0, 100)
    assert not overload.refuses()
    assert overload.lag == 60.0


async def test_the_broker_watches_its_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.broker.limits.overload.LOOK_EVERY_S", 0.0)
    async with Broker() as broker:
        looks: list[float] = []
        monkeypatch.setattr(broker.core.overload, "looked", looks.append)
        async with asyncio.timeout(60):
            while len(looks) < 3:
                await asyncio.sleep(0)
        assert all(lag >= 0 for lag in looks)
