"""Readers are connections of the gateway's, for as long as they call."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.spi import AccessError, ConnectRequest
from tidegate_sink_flight._sessions import Sessions


class Broker:
    """Keeps what it was asked. Attributes: peers: of the connections, in order."""

    def __init__(self) -> None:
        self.requests: list[ConnectRequest] = []
        self.peers: list[Any] = []
        self.left = 0

    async def connect(self, request: ConnectRequest, peer: Any) -> Any:
        if request.password == b"wrong":
            raise AccessError("no", principal=request.username)
        self.requests.append(request)
        self.peers.append(peer)
        connection = SimpleNamespace(
            principal=request.username or "anonymous", resume=lambda: None, disconnect=self._leave
        )
        return SimpleNamespace(connection=connection)

    def _leave(self, *, graceful: bool) -> None:
        assert graceful
        self.left += 1


@pytest.fixture
def broker() -> Broker:
    return Broker()


def sessions(broker: Any, timeout_s: float = 600) -> Sessions:
    return Sessions(broker, "grpc://127.0.0.1:1", anonymous=True, timeout_s=timeout_s)


async def test_a_client_is_let_in_as_by_any_listener(broker: Broker) -> None:
    made = sessions(broker)
    token, principal = await made.log_in("192.0.2.1:5", "ann", b"one")
    assert principal == "ann"
    (request,) = broker.requests
    assert (request.protocol, request.peer) == ("flight", "192.0.2.1:5")
    assert (request.username, request.password) == ("ann", b"one")
    assert request.anonymous_allowed
    assert made.of(token) is not None
    assert made.of("another") is None
    with pytest.raises(AccessError):
        await made.log_in("192.0.2.1:5", "ann", b"wrong")
    assert len(made) == 1


async def test_one_that_the_gateway_ends_is_over(broker: Broker) -> None:
    made = sessions(broker)
    token, _ = await made.log_in("192.0.2.1:5", "ann", b"one")
    broker.peers[0].closed(AccessError("the credentials have expired"))
    assert made.of(token) is None
    assert (len(made), broker.left) == (0, 0), "the gateway knows"


async def test_one_that_does_not_call_is_ended_and_one_that_does_is_not(broker: Broker) -> None:
    made = sessions(broker, timeout_s=600)
    idle, _ = await made.log_in("192.0.2.1:5", "ann", b"one")
    busy, _ = await made.log_in("192.0.2.1:6", "bob", b"two")
    for peer in broker.peers:
        peer.used_at = asyncio.get_running_loop().time() - 601
    assert made.of(busy) is not None
    made.sweep()
    assert made.of(idle) is None
    assert made.of(busy) is not None
    assert broker.left == 1
    made.leave(busy)
    made.leave(busy)
    made.end()
    assert broker.left == 2
