"""Operators and prepared transactions: a gateway that was killed, and the commands on its store."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tidegate.cli import main
from tidegate.cli._exit import ExitCode
from tidegate.config import load_config, resolve
from tidegate.gateway import Gateway
from tidegate.plugins import PluginHost
from tidegate.spi import BranchId, ConnectRequest, Message, StoredMessage, SubscribeRequest

ONE, TWO = (
    BranchId(1, b"one", b"\xff", "anonymous"),
    BranchId(2, b"two", owner="anonymous"),
)

#: Prepares two branches, each consuming one message of queue://in and sending one to queue://out, and
#: dies at once. No front-end of ours can prepare, so it speaks to the broker as one would.
CHILD = """
import asyncio, os, signal, sys
sys.path.insert(0, {here!r})
from pathlib import Path
from test_transactions import ONE, TWO, Client, connected, opened

async def main():
    gateway = await opened(Path({config!r}))
    client = await connected(gateway)
    for number in range(3):
        client.connection.publish(client.message("queue://in", b"%d" % number))
    client.subscribe("queue://in")
    await client.until(lambda: len(client.received) == 3)
    for number, branch in enumerate((ONE, TWO)):
        client.connection.begin("t")
        client.connection.acknowledge("s", [client.received[number].sequence], None, "t")
        client.connection.publish(client.message("queue://out", b"out %d" % number), None, "t")
        client.connection.prepare("t", branch, branch)
        await client.until(lambda: branch in client.tokens)
    if {kill}:
        os.kill(os.getpid(), signal.SIGKILL)
    print("prepared", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await gateway.stop()

asyncio.run(main())
"""


class Client:
    """A front-end's side of a connection."""

    def __init__(self) -> None:
        self.received: list[StoredMessage] = []
        self.tokens: list[object] = []
        self.has_unsent = False
        self.connection: Any = None

    def confirmed(self, tokens) -> None:
        self.tokens += tokens

    def failed(self, token, error) -> None:
        raise error

    def deliver(self, key, messages) -> None:
        self.received += messages

    def throttle(self, paused, *, at_once=False) -> None:
        pass

    def closed(self, error) -> None:
        pass

    def message(self, destination: str, body: bytes) -> Message:
        return Message(destination, body)

    def subscribe(self, destination: str) -> None:
        self.connection.subscribe(SubscribeRequest(key="s", destination=destination))

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                await asyncio.sleep(0.001)


async def opened(config: Path) -> Gateway:
    plugins = PluginHost()
    gateway = Gateway(resolve(load_config(config), plugins), plugins)
    await gateway.start()
    return gateway


async def connected(gateway: Gateway) -> Client:
    client = Client()
    request = ConnectRequest(
        protocol="test",
        version="1",
        client_id="manager",
        peer="",
        listener="test",
        anonymous_allowed=True,
    )
    client.connection = (await gateway.broker.connect(request, client)).connection
    client.connection.resume()
    return client


async def bodies(config: Path, destination: str, count: int) -> list[tuple[bytes, int]]:
    """What can be consumed, and how often it was delivered before."""
    gateway = await opened(config)
    client = await connected(gateway)
    client.subscribe(destination)
    await client.until(lambda: len(client.received) >= count)
    found = [(item.message.body, item.delivery_count) for item in client.received]
    await gateway.stop()
    return found


@pytest.fixture(params=["journal", "jdbc"])
def config(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "gateway.toml"
    path.write_text(
        f'[broker]\ndata_directory = "{tmp_path / "data"}"\n[store]\nplugin = "{request.param}"\n'
        '[[listeners]]\nprotocol = "stomp"\nbind = "127.0.0.1:0"\n'
    )
    return path


def child(config: Path, *, kill: bool) -> subprocess.Popen[str]:
    here = str(Path(__file__).parent)
    text = CHILD.format(here=here, config=str(config), kill=kill)
    return subprocess.Popen(
        [sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


@pytest.fixture
def killed(config: Path) -> Path:
    """The configuration of a gateway that was killed with two branches in doubt."""
    process = child(config, kill=True)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    return config


@pytest.fixture
def command(config: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    def call(*arguments: str) -> tuple[int, str]:
        code = main(["transactions", *arguments, "--config", str(config)])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return call


def test_branches_in_doubt_are_listed_committed_and_rolled_back(
    killed: Path, command: Callable[..., tuple[int, str]]
) -> None:
    code, text = command("list", "--json")
    assert code == 0
    listed = json.loads(text)
    assert [
        (item["branch"], item["state"], item["messages"], item["locked"]) for item in listed
    ] == [
        ("1:6f6e65:ff@anonymous", "in doubt", 1, 1),
        ("2:74776f:@anonymous", "in doubt", 1, 1),
    ]
    assert listed[0]["client_id"] == "manager"
    assert command("commit", str(ONE)) == (0, "committed: 1:6f6e65:ff@anonymous\n")
    assert command("rollback", str(TWO)) == (0, "rolled back: 2:74776f:@anonymous\n")
    code, text = command("list")
    assert "committed" in text
    assert "rolled back" in text
    assert asyncio.run(bodies(killed, "queue://out", 1)) == [(b"out 0", 0)]
    found = asyncio.run(bodies(killed, "queue://in", 2))
    assert [body for body, _ in found] == [b"1", b"2"]
    assert found[0][1] > 0
    code, text = command("commit", str(ONE))
    assert code == ExitCode.CONFIG
    assert "was committed by an operator; forget it" in text
    assert command("forget", str(ONE)) == (0, "forgotten: 1:6f6e65:ff@anonymous\n")
    assert command("forget", str(TWO)) == (0, "forgotten: 2:74776f:@anonymous\n")
    assert command("list") == (0, "no prepared transactions\n")


async def test_in_doubt_is_neither_delivered_nor_lost(killed: Path) -> None:
    gateway = await opened(killed)
    client = await connected(gateway)
    for key, queue in (("a", "queue://in"), ("b", "queue://out")):
        client.connection.subscribe(SubscribeRequest(key=key, destination=queue))
    await client.until(lambda: bool(client.received))
    client.connection.synchronize("everything")
    await client.until(lambda: "everything" in client.tokens)
    assert [item.message.body for item in client.received] == [b"2"]
    assert [item.branch_id for item in client.connection.branches()] == [ONE, TWO]
    assert gateway.broker.store.statistics().pending_messages == 5
    # Its transaction manager is back.
    client.connection.commit_branch(ONE, "one")
    await client.until(lambda: "one" in client.tokens)
    client.connection.roll_back_branch(TWO, "two")
    await client.until(lambda: "two" in client.tokens and len(client.received) == 3)
    assert [item.message.body for item in client.received] == [b"2", b"out 0", b"1"]
    await gateway.stop()


def test_the_commands_are_refused_while_the_gateway_runs(
    config: Path, command: Callable[..., tuple[int, str]]
) -> None:
    process = child(config, kill=False)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "prepared\n"
        for arguments in (("list",), ("commit", str(ONE)), ("forget", str(ONE))):
            code, text = command(*arguments)
            assert code == ExitCode.STORE_LOCKED
            assert "stop the gateway first" in text
    finally:
        process.communicate("", timeout=60)
    assert process.returncode == 0
    assert command("rollback", str(ONE))[0] == 0


def test_a_branch_that_is_not_there_and_a_bad_id_are_usage_errors(
    config: Path, command: Callable[..., tuple[int, str]]
) -> None:
    for arguments, said in (
        (("commit", "1:6f:"), "there is no prepared branch 1:6f:"),
        (("forget", "1:6f:"), "there is no prepared branch 1:6f:"),
        (("rollback", "1:xyz:"), "is not a branch id"),
    ):
        code, text = command(*arguments)
        assert code == ExitCode.CONFIG
        assert said in text
