"""The limit of sockets: what the configuration says, or what leaves the store its descriptors."""

from __future__ import annotations

import resource

import pytest

from tidegate.broker.limits.sockets import Sockets


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
    sockets = Sockets(1000)
    assert all(sockets.opened() for _ in range(allowed))
    assert not sockets.opened()
    assert not sockets.opened()
    assert caplog.text.count("broker.connections_max=1000") == 1
    sockets.closed()
    assert sockets.opened()
    assert not sockets.opened()
