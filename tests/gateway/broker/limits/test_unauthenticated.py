"""What clients hold that are not let in yet: those that hold most go, and nobody else notices."""

from typing import Any

import pytest

from tidegate.broker.limits.accounts import Accounts
from tidegate.broker.limits.unauthenticated import Unauthenticated
from tidegate.config import BrokerConfig
from tidegate.spi import FlowControlError


class Peer:
    def __init__(self, unauthenticated: Any):
        self.unauthenticated = unauthenticated
        self.error = None

    def closed(self, error):
        self.error = error
        self.unauthenticated.holds(self, 0)  # as sessions say when they end


@pytest.fixture
def accounts():
    return Accounts(BrokerConfig())


def test_those_that_hold_most_are_closed_and_room_is_made_for_many(accounts):
    unauthenticated = Unauthenticated(accounts.gateway, 1000)
    peers: list[Any] = [Peer(unauthenticated) for _ in range(10)]
    for peer, size in zip(peers, (10, 10, 200, 300, 10, 10, 250, 100, 110, 0), strict=True):
        unauthenticated.holds(peer, size)
    assert accounts.snapshot()["held.login.bytes"] == 1000
    assert not any(peer.error for peer in peers)
    unauthenticated.holds(peers[9], 1)
    closed = [number for number, peer in enumerate(peers) if peer.error is not None]
    assert closed == [3]  # a quarter is free again
    assert isinstance(peers[3].error, FlowControlError)
    assert "broker.login_input_limit" in str(peers[3].error)
    assert accounts.snapshot()["held.login.bytes"] == 701
    assert accounts.snapshot()["held.refused"] == 1


def test_what_they_hold_is_counted_until_they_are_let_in(accounts):
    unauthenticated = Unauthenticated(accounts.gateway, 0)
    peer: Any = Peer(unauthenticated)
    for size in (5, 70_000, 20, 0, 0):
        unauthenticated.holds(peer, size)
        assert accounts.snapshot()["held.login.bytes"] == size
    assert peer.error is None
