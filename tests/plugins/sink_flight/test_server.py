"""The server's own part, in this process, with a gateway that is made up."""

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import pyarrow.flight as fl
import pytest

from tidegate.spi import AcknowledgedMessage, Message
from tidegate_sink_flight import _protocol as protocol
from tidegate_sink_flight.server import callers
from tidegate_sink_flight.server.batches import DAMAGED
from tidegate_sink_flight.server.flight import make_server

NOW = 1_767_323_045_000_006


def row(number: int, body: bytes = b"x", **changes: Any) -> AcknowledgedMessage:
    return AcknowledgedMessage(
        ack_sequence=number,
        sequence=number * 10,
        message=Message(
            destination="queue://orders", body=body, **{"received_at": NOW + number, **changes}
        ),
        pending_list=1,
        delivered_at=NOW + number,
        acked_at=NOW + number,
        client_id="c",
        subscription="s",
        protocol="mqtt",
    )


@dataclass
class Gateway:
    """Stands for the link. Attributes: logins: who came; held: pages that it does not answer yet."""

    rows: dict[int, AcknowledgedMessage] = field(
        default_factory=lambda: {n: row(n) for n in range(1, 1001)}
    )
    damaged: frozenset[int] = frozenset()
    refuses: str = ""
    holds: bool = False
    held: list[Callable[[], None]] = field(default_factory=list)
    logins: list[protocol.Login] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    came: threading.Event = field(default_factory=threading.Event)

    def ask(self, question: Any) -> Future[protocol.Answer]:
        future: Future[protocol.Answer] = Future()

        def answer() -> None:
            future.set_result(protocol.Answer(1, self.answered(question)))

        if self.holds and isinstance(question, protocol.Page):
            self.held.append(answer)
            self.came.set()
        else:
            answer()
        return future

    def answered(self, question: Any) -> Any:
        match question:
            case protocol.Login():
                self.logins.append(question)
                if self.refuses:
                    return protocol.Refusal("unauthenticated", self.refuses)
                return protocol.Session(f"s{len(self.logins)}", question.username or "anonymous")
            case protocol.Leave():
                self.left.append(question.session)
                return protocol.View()
            case protocol.Page():
                first = question.after + 1
                if first in self.damaged:
                    return protocol.Rows([], first, [first])
                last = min(first + 99, question.through)
                last = min([last, *[n - 1 for n in self.damaged if n > first]])
                return protocol.Rows([self.rows[n] for n in range(first, last + 1)], last)
            case _:
                return protocol.View("store-1", 1, len(self.rows))


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()


@pytest.fixture
def client(gateway: Gateway) -> Iterator[Any]:
    start = protocol.Start(
        host="127.0.0.1",
        port=0,
        certificate="",
        key="",
        gateway_name="gw",
        streams_max=3,
        streams_per_client_max=2,
        version="1",
    )
    link: Any = gateway
    server = make_server(link, start, 0)
    with fl.FlightClient(f"grpc://127.0.0.1:{server.port}") as made:
        yield made
    gateway.holds = False
    for answer in gateway.held:
        answer()
    server.shutdown()


def ticket(after: int, through: int, **more: Any) -> Any:
    return fl.Ticket(
        json.dumps({"epoch": "store-1", "after": after, "through": through, **more}).encode()
    )


def as_user(client: Any, name: str) -> Any:
    return fl.FlightCallOptions(
        headers=[client.authenticate_basic_token(name, "secret")], timeout=60
    )


def test_pages_become_batches_in_order(client: Any) -> None:
    table = client.do_get(ticket(10, 990)).read_all()
    assert table["ack_seq"].to_pylist() == list(range(11, 991))
    assert table["gateway_id"][0].as_py() == "gw"
    assert client.do_get(ticket(5, 5)).read_all().num_rows == 0


def test_a_damaged_row_is_a_row_that_says_so_and_nothing_more(
    client: Any, gateway: Gateway
) -> None:
    gateway.damaged = frozenset({1, 50, 51})
    gateway.rows[77] = row(77, priority=1 << 40)  # does not fit its column
    rows = client.do_get(ticket(0, 100)).read_all().to_pylist()
    assert [r["ack_seq"] for r in rows] == list(range(1, 101))
    bad = [r for r in rows if ("dead-letter-reason", DAMAGED) in r["headers"]]
    assert [r["ack_seq"] for r in bad] == [1, 50, 51, 77]
    assert all(not r["body"] and r["destination"] is None for r in bad)


def test_reads_at_a_time_are_bounded_for_each_and_for_all(client: Any, gateway: Gateway) -> None:
    gateway.holds = True
    ann, bob = as_user(client, "ann"), as_user(client, "bob")
    streams = [client.do_get(ticket(0, 10), ann) for _ in range(2)]

    def refused(options: Any, limit: str) -> None:
        with pytest.raises(fl.FlightUnavailableError, match=limit):
            client.do_get(ticket(0, 10), options).read_all()

    while len(gateway.held) < 2:
        gateway.came.wait(60)
        gateway.came.clear()
    refused(ann, "streams_per_client_max")
    streams.append(client.do_get(ticket(0, 10), bob))
    while len(gateway.held) < 3:
        gateway.came.wait(60)
        gateway.came.clear()
    refused(bob, "streams_max")

    # Read to the end, or let go: either makes room.
    gateway.holds = False
    for answer in gateway.held:
        answer()
    gateway.held.clear()
    streams[0].read_all()
    streams[1].cancel()
    del streams[1:]
    for _ in range(600):
        try:
            assert client.do_get(ticket(0, 10), ann).read_all().num_rows == 10
            break
        except fl.FlightUnavailableError:
            threading.Event().wait(0.1)
    else:
        pytest.fail("no room was made")


def test_credentials_are_checked_once_a_session_and_with_the_address(
    client: Any, gateway: Gateway
) -> None:
    options = as_user(client, "ann")
    assert not gateway.logins, "a handshake does not say where it comes from"
    for _ in range(3):
        client.do_get(ticket(0, 10), options).read_all()
    (login,) = gateway.logins
    assert (login.username, login.password) == ("ann", b"secret")
    assert login.peer.startswith("127.0.0.1:")
    assert gateway.left == []
    assert "secret" not in repr(login)

    client.do_get(ticket(0, 10)).read_all()
    assert gateway.logins[1].password is None
    for _ in range(600):
        if gateway.left:
            break
        threading.Event().wait(0.1)
    assert gateway.left == ["s2"], "without a token the session is the call's"


def test_what_is_wrong_is_told_without_what_is_inside(client: Any, gateway: Gateway) -> None:
    for data in (b"", b"{", b"[]", b'{"epoch": "e", "after": 5, "through": 1}', b"\xff" * 100):
        with pytest.raises(fl.FlightServerError) as raised:
            client.do_get(fl.Ticket(data)).read_all()
        assert "Traceback" not in str(raised.value)
        assert ".py" not in str(raised.value)
    for body in (b'{"reader": "%s"}' % (b"x" * (1 << 21)), b"9" * (1 << 21)):
        with pytest.raises(fl.FlightServerError, match="larger than"):
            list(client.do_action(fl.Action("look", body)))
    with pytest.raises(fl.FlightServerError, match="no action 'drop'"):
        list(client.do_action(fl.Action("drop", b"")))
    for header in (b"Bearer x", b"Basic !", b"Basic bm9jb2xvbg==", b"Other x"):
        options = fl.FlightCallOptions(headers=[(b"authorization", header)])
        with pytest.raises(fl.FlightUnauthenticatedError):
            client.do_get(ticket(0, 10), options).read_all()
    gateway.refuses = "not you"
    with pytest.raises(fl.FlightUnauthenticatedError, match="not you"):
        client.do_get(ticket(0, 10), as_user(client, "eve")).read_all()
    gateway.refuses = ""
    gateway.answered = lambda question: 1 / 0  # type: ignore[method-assign]
    with pytest.raises(fl.FlightInternalError) as raised:
        client.do_get(ticket(0, 10)).read_all()
    assert "division" not in str(raised.value)


def test_unused_handshakes_push_out_nobody_who_is_in() -> None:
    tokens = callers.Tokens()
    token = tokens.give("Basic YW5uOm9uZQ==")
    entry = tokens.entry(token)
    assert entry is not None
    tokens.used(token, entry)
    for _ in range(callers.UNUSED_MAX * 2):
        tokens.give("Basic YW5uOm9uZQ==")
    assert tokens.entry(token) is entry


@pytest.mark.parametrize(
    ("text", "peer"),
    [
        ("ipv4:127.0.0.1:50000", "127.0.0.1:50000"),
        ("ipv6:%5B::1%5D:50000", "[::1]:50000"),
        ("unix:/tmp/x", "local:0"),
    ],
)
def test_where_a_call_comes_from(text: str, peer: str) -> None:
    assert callers.peer_of(text) == peer
