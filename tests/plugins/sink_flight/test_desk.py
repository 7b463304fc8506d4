"""What the gateway answers to a session that ends meanwhile."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.spi import (
    AccessError,
    AcknowledgedMessage,
    EncodedPage,
    GatewayError,
    Message,
    RequestError,
    encode_rows,
)
from tidegate_sink_flight import _protocol as protocol
from tidegate_sink_flight._desk import Desk
from tidegate_sink_flight._positions import Positions
from tidegate_sink_flight._sessions import Sessions
from tidegate_sink_spark.staging.selection import Selection

ROW = AcknowledgedMessage(
    ack_sequence=1,
    sequence=1,
    message=Message(destination="queue://orders", body=b"x"),
    pending_list=1,
    delivered_at=1,
    acked_at=1,
    client_id="c",
    subscription="s",
    protocol="mqtt",
)


class World:
    """A log of one row, and a broker that lets ann in; what happens while the row is read is *meanwhile*."""

    store_id, first, last, released = "e", 1, 1, 0

    def __init__(self, directory: Path) -> None:
        self.meanwhile: Callable[[], None] = lambda: None
        self.refuses: GatewayError | None = None
        self.peer: Any = None
        self.sessions = Sessions(self, "grpc://127.0.0.1:1", anonymous=True, timeout_s=600)  # type: ignore[arg-type]
        self.desk = Desk(
            self,  # type: ignore[arg-type]
            Positions(directory, "e"),
            self.sessions,
            Selection(),
            {},
            self._released,
        )

    async def _released(self) -> None:
        raise AssertionError("nothing is committed")

    async def connect(self, _: Any, peer: Any) -> Any:
        self.peer = peer
        connection = SimpleNamespace(
            principal="ann", resume=lambda: None, may_take=self._may_take, disconnect=None
        )
        return SimpleNamespace(connection=connection)

    def _may_take(self, _: str) -> bool:
        if self.refuses is not None:
            raise self.refuses
        return True

    async def read_encoded(self, after: int, limit: int, bytes_max: int) -> EncodedPage:
        assert (after, limit) == (0, 1)
        self.meanwhile()
        return EncodedPage(encode_rows([ROW]), 1)

    async def page(self) -> protocol.Rows | protocol.Refusal:
        session, _ = await self.sessions.log_in("192.0.2.1:5", "ann", b"one")
        answer = await self.desk.answer(protocol.Call(7, protocol.Page(session, "e", 0, 1)))
        assert answer.id == 7
        assert isinstance(answer.body, protocol.Rows | protocol.Refusal)
        return answer.body


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_a_page_has_the_rows_that_the_client_may_see(world: World) -> None:
    assert await world.page() == protocol.Rows([ROW], 1)


@pytest.mark.parametrize(
    "error", [RequestError("the connection is closed"), AccessError("user no longer exists")]
)
async def test_a_client_whose_session_ends_while_it_reads_has_to_log_in_again(
    world: World, error: GatewayError
) -> None:
    def end() -> None:
        world.refuses = error
        world.peer.closed(AccessError("bob: connect is not allowed"))

    world.meanwhile = end
    found = await world.page()
    assert isinstance(found, protocol.Refusal)
    assert (found.kind, found.text) == (
        "unauthenticated",
        "the session has ended; log in again",
    )


async def test_what_is_wrong_with_a_request_is_told_to_a_session_that_goes_on(world: World) -> None:
    world.refuses = RequestError("no such thing")
    found = await world.page()
    assert isinstance(found, protocol.Refusal)
    assert (found.kind, found.text) == ("invalid", "no such thing")
