"""`tidegate destination` against a real gateway: one for all commands, and none."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from wire import StompClient

from tidegate.cli import main
from tidegate.cli._exit import ExitCode
from tidegate.operator_socket import CONNECTIONS_MAX, REQUEST_BYTES_MAX, SOCKET_NAME, OperatorClient
from tidegate.spi.operate import DestinationPage, ListDestinations
from tidegate.testing.embedded import EmbeddedGateway


class Running:
    """A gateway on a loop of its own in a thread. Attributes: directory, config (a file)."""

    def __init__(self, directory: Path) -> None:
        # Longer than a socket's path may be.
        self.directory = directory / ("d" * 120)
        self.directory.mkdir()
        self.config = directory / "tidegate.toml"
        self.config.write_text(f'[broker]\ndata_directory = "{self.directory}"\n')
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.embedded = EmbeddedGateway(data_directory=self.directory)
        self.call(self.embedded.__aenter__())

    def call(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def stop(self) -> None:
        self.call(self.embedded.__aexit__(None, None, None))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def send(self, queue: str, *bodies: str) -> None:
        async def work() -> None:
            client = await StompClient.connect(self.embedded.stomp_port)
            for body in bodies:
                headers = {"destination": f"/queue/{queue}", "receipt": body, "kind": body[0]}
                client.send("SEND", body.encode(), **headers)
                await client.receipt(body)
            client.close()

        self.call(work())


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    found = Running(tmp_path_factory.mktemp("gateway"))
    yield found
    found.stop()


@pytest.fixture
def command(running: Running, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    def call(*arguments: str) -> tuple[int, str]:
        code = main(["destination", *arguments, "--config", str(running.config)])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return call


def test_messages_are_purged_moved_and_copied(running: Running, command: Any) -> None:
    running.send("m.a", *[f"{kind}{number}" for number in range(5) for kind in "xy"])
    assert command("create", "m.b")[0] == 0
    code, text = command("move", "m.a", "m.b", "--selector", "kind = 'x'", "--count", "3", "--json")
    assert (code, json.loads(text)["count"]) == (0, 3)
    assert json.loads(command("copy", "m.a", "m.b", "--json")[1])["count"] == 7
    assert (
        json.loads(command("purge", "m.a", "--selector", "kind = 'y'", "--json")[1])["count"] == 5
    )
    code, text = command("list", "m.>", "--sort", "pending", "--json")
    assert [(row["destination"], row["pending"]) for row in json.loads(text)] == [
        ("queue://m.b", 10),
        ("queue://m.a", 2),
    ]
    assert [
        row["destination"]
        for row in json.loads(command("list", "m.>", "--json", "--limit", "1")[1])
    ] == ["queue://m.a"]
    code, text = command("delete", "m.a")
    assert code == ExitCode.CONFIG
    assert "not empty" in text
    code, text = command("delete", "m.a", "--with-messages")
    assert code == 0
    assert text.startswith("deleted queue://m.a with 2 pending messages.")


def test_a_purge_is_undone(running: Running, command: Any) -> None:
    assert command("purged") == (0, "no purged messages are kept\n")
    running.send("p.a", "1", "2", "3")
    code, text = command("purge", "p.a", "--keep", "1h", "--count", "2")
    assert (
        code,
        text.startswith("purged 2 messages of queue://p.a. They are kept in "),
    ) == (
        0,
        True,
    )
    (row,) = json.loads(command("purged", "P.A", "--json")[1])
    assert (row["destination"], row["pending"]) == ("queue://p.a", 2)
    assert row["kept"] in text
    assert row["kept"] in command("purged")[1]
    code, text = command("undo", row["kept"])
    assert (code, text) == (0, f"brought back 2 messages of {row['kept']}.\n")
    assert json.loads(command("purged", "--json")[1]) == []
    for keep in ("0s", "31d", "soon"):
        assert command("purge", "p.a", "--keep", keep)[0] == ExitCode.CONFIG
    assert command("undo", "p.a")[0] == ExitCode.CONFIG


def test_chosen_messages_are_shown_and_purged_moved_or_copied(
    running: Running, command: Any
) -> None:
    running.send("c.a", *[str(number) for number in range(6)])
    assert command("create", "c.b")[0] == 0
    assert command("browse", "c.b") == (0, "no messages\n")
    code, text = command("browse", "c.a", "--selector", "kind <> 'x'", "--limit", "2")
    assert (code, "in flight" in text) == (0, True)
    rows = json.loads(command("browse", "c.a", "--json")[1])
    numbers = [str(row["sequence"]) for row in rows]
    chosen = [item for number in (1, 2, 5) for item in ("--message", numbers[number])]
    code, text = command("purge", "c.a", "--keep", "1h", *chosen)
    assert text.startswith("purged 3 messages of queue://c.a. They are kept in ")
    assert command("purge", "c.a", *chosen) == (0, "purged 0 messages of queue://c.a.\n")
    for word, done in (("copy", "copied"), ("move", "moved")):
        code, text = command(word, "c.a", "c.b", "--message", numbers[3])
        assert (code, text) == (0, f"{done} 1 messages of queue://c.a to queue://c.b.\n")
    left = [row["sequence"] for row in json.loads(command("browse", "c.a", "--json")[1])]
    assert left == [rows[0]["sequence"], rows[4]["sequence"]]
    assert command("purge", "c.a", "--message", "0")[0] == ExitCode.CONFIG


def test_one_is_shown_with_its_policy(running: Running, command: Any) -> None:
    running.send("s", "1")
    code, text = command("show", "s")
    assert code == 0
    assert "policy cursor" in text
    assert "oldest message" in text
    assert "fed from" in text
    assert "(start), changed 0 times" in text
    assert "1 messages, " in text
    found = json.loads(command("show", "queue://s", "--json")[1])
    assert found["row"]["pending"] == 1
    assert found["policy"]["cursor"] == "store"
    assert found["feeds"][0]["direct_messages"] == 1
    none = (ExitCode.CONFIG, "tidegate: error: there is no queue 'queue://none'\n")
    assert command("show", "none") == none


def test_pausing_says_whom_and_is_shown(command: Any) -> None:
    command("create", "p")
    assert "paused producers of queue://p." in command("pause", "p", "--producers")[1]
    assert json.loads(command("show", "p", "--json")[1])["row"]["producers_paused"]
    assert command("resume", "p") == (0, "resumed producers and consumers of queue://p.\n")


def test_the_socket_is_its_users_alone(running: Running) -> None:
    mode = os.stat(running.directory / SOCKET_NAME).st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"{}", "not a valid request"),
        (b"nonsense", "not a valid request"),
        (b'{"type": "list-destinations", "limit": 100000}', "not a valid request"),
        (b'{"type": "list-destinations", "after": "?"}', "`after`"),
    ],
    ids=["empty", "nonsense", "limit", "after"],
)
def test_what_is_no_request_is_answered_with_what_is_wrong(
    running: Running, line: bytes, problem: str
) -> None:
    with OperatorClient(running.directory) as client:
        client._socket.sendall(line + b"\n")
        answer = json.loads(client._file.readline())
        assert answer["error"]["kind"] == "RequestError"
        assert problem in answer["error"]["problem"]
    with OperatorClient(running.directory) as client:
        assert isinstance(client.ask(ListDestinations()).answer, DestinationPage)


def test_a_request_that_does_not_end_ends_its_connection_alone(running: Running) -> None:
    with OperatorClient(running.directory) as client:
        reply = client.ask(ListDestinations(match="x" * REQUEST_BYTES_MAX))
        assert reply.error is not None
        assert "must not be longer" in reply.error.problem
        with contextlib.suppress(ConnectionError):
            client._socket.sendall(b"[" * (4 * REQUEST_BYTES_MAX))
            while client._socket.recv(1 << 16):  # the gateway closes it, sooner or later
                pass
    with OperatorClient(running.directory) as client:
        assert isinstance(client.ask(ListDestinations()).answer, DestinationPage)


def test_without_a_gateway_the_command_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "tidegate.toml"
    for text, problem in (
        (f'[broker]\ndata_directory = "{tmp_path}/none"\n', "no gateway is running on"),
        ("[broker]\npersistent = false\n", "persistent = false"),
    ):
        config.write_text(text)
        assert main(["destination", "list", "--config", str(config)]) == ExitCode.BROKER
        assert problem in capsys.readouterr().err


def test_a_socket_that_a_killed_gateway_left_is_replaced(tmp_path: Path) -> None:
    async def start_and_ask() -> None:
        async with EmbeddedGateway(data_directory=tmp_path):
            assert (tmp_path / SOCKET_NAME).is_socket()
        assert not (tmp_path / SOCKET_NAME).exists()

    import socket

    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / SOCKET_NAME))
    asyncio.run(start_and_ask())


async def test_a_gateway_that_stops_ends_its_operators_and_takes_no_more_than_it_may(
    tmp_path: Path,
) -> None:
    async with EmbeddedGateway(data_directory=tmp_path):
        clients = [OperatorClient(tmp_path) for _ in range(CONNECTIONS_MAX)]
        for client in clients:
            assert (await asyncio.to_thread(client.ask, ListDestinations())).error is None
        with OperatorClient(tmp_path) as one_too_many:
            answer = await asyncio.to_thread(one_too_many._file.readline)
            assert b"too many operators" in answer
    for client in clients:
        assert client._file.readline() == b""
        client.__exit__(None, None, None)
