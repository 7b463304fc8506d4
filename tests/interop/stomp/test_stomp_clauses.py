"""Sentences of the STOMP specifications that only a whole gateway can keep, on a plain socket."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from gateway_process import GatewayProcess
from wire import frame

pytestmark = pytest.mark.interop
WAIT_S = 60.0
EVERY_VERSION = pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
SINCE_1_1 = pytest.mark.parametrize("version", ["1.1", "1.2"])


class Client:
    """One frame out, one frame in; as simple as a client of the first hour."""

    def __init__(self, gateway: GatewayProcess, version: str) -> None:
        self.version = version
        self.socket = socket.create_connection(("127.0.0.1", gateway.stomp_port), WAIT_S)
        self.buffer = b""
        self.aside: list[tuple[str, dict[str, str]]] = []
        headers = {} if version == "1.0" else {"accept_version": version, "host": "x"}
        self.send("CONNECT", **headers)
        assert self.receive("CONNECTED")["version"] == version

    def send(self, command: str, body: bytes = b"", /, **headers: str) -> None:
        self.socket.sendall(frame(command, body, **headers))

    def receive(self, command: str) -> dict[str, str]:
        """The next *command*, its body as ``body``; MESSAGE and RECEIPT may pass each other."""
        for position, (name, _) in enumerate(self.aside):
            if name == command:
                return self.aside.pop(position)[1]
        while True:
            name, found = self.receive_any()
            if name == command:
                return found
            assert {name, command} == {"MESSAGE", "RECEIPT"}, (name, found)
            self.aside.append((name, found))

    def receive_any(self) -> tuple[str, dict[str, str]]:
        while b"\0" not in self.buffer:  # bodies here have no NUL
            data = self.socket.recv(65536)
            assert data, "the gateway closed the connection"
            self.buffer += data
        raw, _, self.buffer = self.buffer.partition(b"\0")
        head, _, body = raw.lstrip(b"\n").decode().partition("\n\n")
        name, *lines = head.split("\n")
        return name, dict(line.split(":", 1) for line in lines) | {"body": body}

    def confirmed(self, command: str, body: bytes = b"", /, **headers: str) -> None:
        self.send(command, body, receipt="r", **headers)
        assert self.receive("RECEIPT")["receipt-id"] == "r"

    def acknowledge(self, message: dict[str, str], command: str = "ACK", **more: str) -> None:
        named: dict[str, Any] = {"id": message["ack"]} if self.version == "1.2" else {}
        if self.version != "1.2":
            named["message_id"] = message["message-id"]
        if self.version == "1.1":
            named["subscription"] = message["subscription"]
        self.confirmed(command, **named, **more)

    def subscribe(self, destination: str, mode: str) -> None:
        self.confirmed("SUBSCRIBE", id="1", destination=destination, ack=mode)

    def next_body(self) -> str:
        return self.receive("MESSAGE")["body"]

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def lose(self) -> None:
        """As a crash does it: reset, no DISCONNECT."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def leave(self) -> None:
        self.confirmed("DISCONNECT")
        assert self.socket.recv(1) == b""
        self.socket.close()


@pytest.fixture
def connect(gateway: GatewayProcess) -> Iterator[Callable[[str], Client]]:
    """Connect with a version; what is still open after the test is closed."""
    with contextlib.ExitStack() as stack:
        yield lambda version: stack.enter_context(Client(gateway, version))


@pytest.mark.clause("stomp-1.1,1.2/lingering/rapid")
@SINCE_1_1
def test_clients_may_connect_and_disconnect_rapidly(connect, version) -> None:
    for number in range(100):
        client = connect(version)
        if number % 2:
            client.lose()
        else:
            client.leave()
    client = connect(version)
    client.confirmed("SEND", b"x", destination="/queue/rapid")
    client.leave()


@pytest.mark.clause("stomp-1.2/begin/unique")
def test_a_transaction_that_is_open_cannot_begin_again(connect) -> None:
    client = connect("1.2")
    client.confirmed("BEGIN", transaction="t")
    client.send("BEGIN", transaction="t", receipt="again")
    error = client.receive("ERROR")
    assert error["receipt-id"] == "again"
    assert "already open" in error["message"]


@pytest.mark.clause("stomp-1.0,1.1,1.2/begin/covers", "stomp-1.0,1.1,1.2/commit/transaction")
@EVERY_VERSION
def test_a_transaction_is_one_step(connect, version) -> None:
    source, target = f"/queue/step.from.{version}", f"/queue/step.to.{version}"
    client, watcher = connect(version), connect(version)
    watcher.subscribe(target, "auto")
    client.confirmed("SEND", b"in", destination=source)
    client.subscribe(source, "client")
    message = client.receive("MESSAGE")
    client.confirmed("BEGIN", transaction="t")
    client.confirmed("SEND", b"out", destination=target, transaction="t")
    client.acknowledge(message, transaction="t")
    client.confirmed("SEND", b"outside", destination=target)
    assert watcher.next_body() == "outside", "nothing is visible before COMMIT"
    client.confirmed("COMMIT", transaction="t")
    assert watcher.next_body() == "out"
    client.leave()
    again = connect(version)
    again.confirmed("SEND", b"next", destination=source)
    again.subscribe(source, "auto")
    assert again.next_body() == "next", "the acknowledgement was part of it"
    again.leave()
    watcher.leave()


@pytest.mark.clause("stomp-1.1,1.2/begin/aborted", "stomp-1.1,1.2/subscribe/redelivery")
@SINCE_1_1
@pytest.mark.parametrize("end", ["DISCONNECT", "lost"])
def test_what_is_open_at_the_end_is_aborted(connect, version, end) -> None:
    source, target = f"/queue/open.{end}.{version}", f"/queue/never.{end}.{version}"
    first = connect(version)
    first.confirmed("SEND", b"kept", destination=source)
    first.subscribe(source, "client-individual")
    message = first.receive("MESSAGE")
    first.confirmed("BEGIN", transaction="t")
    first.confirmed("SEND", b"never", destination=target, transaction="t")
    first.acknowledge(message, transaction="t")
    if end == "lost":
        first.lose()
    else:
        first.leave()
    second = connect(version)
    second.subscribe(source, "auto")
    back = second.receive("MESSAGE")
    assert (back["body"], back["redelivered"]) == ("kept", "true")
    second.confirmed("SEND", b"later", destination=target)
    second.confirmed("UNSUBSCRIBE", id="1")
    second.subscribe(target, "auto")
    assert second.next_body() == "later"
    second.leave()


@pytest.mark.clause("stomp-1.1,1.2/nack/scope", "stomp-1.1,1.2/subscribe/individual")
@SINCE_1_1
def test_a_nack_brings_back_only_what_it_covers(connect, version) -> None:
    name = f"/queue/nack.{version}"
    client = connect(version)
    for number in range(3):
        client.confirmed("SEND", b"%d" % number, destination=name)
    client.subscribe(name, "client-individual")
    messages = [client.receive("MESSAGE") for _ in range(3)]
    client.acknowledge(messages[0])
    client.acknowledge(messages[2])
    client.send(
        "NACK",
        **(
            {"id": messages[1]["ack"]}
            if version == "1.2"
            else {"message_id": messages[1]["message-id"], "subscription": "1"}
        ),
    )
    back = client.receive("MESSAGE")
    assert (back["body"], back["redelivered"]) == ("1", "true")
    client.acknowledge(back)
    client.leave()
