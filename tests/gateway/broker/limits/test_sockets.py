"""The limit of sockets: what the configuration says, or what leaves the store its descriptors."""

from __future__ import annotations

import resource

import pytest

from tidegate.broker.limits.accounts import Account, Accounts
from tidegate.broker.limits.sockets import Sockets
from tidegate.config import BrokerConfig
from tidegate.spi import Held


@pytest.mark.parametrize(
    ("soft", "allowed"),
    [(resource.RLIM_INFINITY, 1000), (2000, 1000), (1024, 512), (600, 150), (2, 1)],
)
def test_descriptors_are_left_to_the_store(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    soft: int,
    allowed: int,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (soft, soft))
    sockets = Sockets(Accounts(BrokerConfig()).gateway, 1000)
    assert all(sockets.opened(1) for _ in range(allowed))
    assert not sockets.opened(1)
    assert not sockets.opened(1)
    assert caplog.text.count("broker.connections_max=1000") == 1
    sockets.closed(1)
    assert sockets.opened(1)
    assert not sockets.opened(1)


def test_what_they_take_is_counted_and_keeps_nobody_out() -> None:
    account = Account("the gateway", None, 10_000, "broker.held_limit")
    sockets = Sockets(account, 10)
    assert all(sockets.opened(6000) for _ in range(3))
    assert (account.held, account.kinds[Held.CONNECTIONS], account.refused) == (18_000, 18_000, 0)
    for _ in range(3):
        sockets.closed(6000)
    assert account.held == 0
