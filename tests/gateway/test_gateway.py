"""Gateway: put together, started, stopped; with the real plugins on free ports."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from wire import StompClient

from tidegate import operator_desk
from tidegate.config import parse_config, resolve
from tidegate.config._resolve import ResolvedExtension
from tidegate.gateway import Gateway, make_writable_directory
from tidegate.plugins import PluginHost
from tidegate.spi import (
    Action,
    Identity,
    StoreLockedError,
    Verdict,
)
from tidegate_store_jdbc._store import JdbcStore

CONFIG = """
[broker]
data_directory = "{directory}"
persistent = {persistent}
connections_max = {connections_max}

[[listeners]]
protocol = "stomp"
bind = "127.0.0.1:{port}"
"""


def make(
    directory: Path, *, port: int = 0, persistent: bool = True, connections_max: int = 100
) -> Gateway:
    host = PluginHost()
    text = CONFIG.format(
        directory=directory,
        port=port,
        persistent=str(persistent).lower(),
        connections_max=connections_max,
    )
    return Gateway(resolve(parse_config(text), host), host)


def port_of(gateway: Gateway) -> int:
    return int(gateway.addresses[0].rpartition(":")[2])


async def send(port: int, body: bytes) -> None:
    client = await StompClient.connect(port)
    client.send("SEND", body, destination="/queue/q", receipt="r")
    await client.receipt("r")
    client.close()


async def consume(port: int, count: int) -> list[bytes]:
    client = await StompClient.connect(port)
    client.send("SUBSCRIBE", destination="/queue/q", id="1", ack="client-individual")
    bodies: list[bytes] = []
    for _ in range(count):
        frame = await client.receive()
        bodies.append(frame.body)
        client.send("ACK", id=frame.headers["ack"])
    client.close()
    return bodies


async def test_what_was_confirmed_is_there_after_a_restart(tmp_path: Path) -> None:
    async def scenario() -> list[bytes]:
        first = make(tmp_path)
        await first.start()
        await send(port_of(first), b"kept")
        await first.stop()
        second = make(tmp_path)
        await second.start()
        try:
            return await consume(port_of(second), 1)
        finally:
            await second.stop()

    assert await scenario() == [b"kept"]


async def test_without_persistence_nothing_is_written(tmp_path: Path) -> None:
    async def scenario() -> list[bytes]:
        gateway = make(tmp_path / "data", persistent=False)
        await gateway.start()
        try:
            await send(port_of(gateway), b"fleeting")
            return await consume(port_of(gateway), 1)
        finally:
            await gateway.stop()

    assert await scenario() == [b"fleeting"]
    assert not (tmp_path / "data").exists()


async def test_a_second_gateway_is_refused_and_leaves_the_first_alone(tmp_path: Path) -> None:
    first, second = make(tmp_path), make(tmp_path)
    await first.start()
    with pytest.raises(StoreLockedError):
        await second.start()
    await send(port_of(first), b"still works")
    await first.stop()


class Watchman:
    """An extension with a life of its own; says how many could connect at each end of it."""

    def __init__(self, name: str, said: list[str], fails: bool = False) -> None:
        self.name, self.said, self.fails = name, said, fails
        self.changed: Callable[[], None] | None = None

    def authorize(self, identity: Identity, action: Action, destination: str) -> Verdict:
        self.said.append(f"{self.name} asked {action.value}")
        return Verdict.ALLOW

    async def start(self, changed: Callable[[], None]) -> None:
        if self.fails:
            raise OSError("no lantern")
        self.changed = changed
        self.said.append(f"{self.name} up")

    async def stop(self) -> None:
        self.said.append(f"{self.name} down")


def guarded(directory: Path, *watchmen: Watchman) -> Gateway:
    gateway = make(directory)
    factory: Any = None
    gateway.config = dataclasses.replace(
        gateway.config,
        extensions=tuple(ResolvedExtension(one.name, factory, None, one) for one in watchmen),
    )
    return gateway


async def test_services_run_from_before_the_listeners_until_after_them(tmp_path: Path) -> None:
    said: list[str] = []
    one, two = Watchman("one", said), Watchman("two", said)
    gateway = guarded(tmp_path, one, two)
    await gateway.start()
    assert said == ["one up", "two up"]
    client = await StompClient.connect(port_of(gateway))
    client.send("SEND", b"m", destination="/queue/q", receipt="r")
    await client.receipt("r")
    assert one.changed is not None
    one.changed()
    client.send("SEND", b"m", destination="/queue/q", receipt="s")
    await client.receipt("s")
    client.close()
    await gateway.stop()
    assert said[-2:] == ["two down", "one down"]
    assert said.count("one asked publish") == 2  # once more after the change


async def test_a_service_that_does_not_start_ends_the_start(tmp_path: Path) -> None:
    said: list[str] = []
    gateway = guarded(tmp_path, Watchman("one", said), Watchman("two", said, fails=True))
    with pytest.raises(OSError, match="no lantern"):
        await gateway.start()
    assert gateway.addresses == []
    assert said == ["one up", "one down"]


async def test_a_port_in_use_stops_what_was_started(tmp_path: Path) -> None:
    first = make(tmp_path / "one")
    await first.start()
    second = make(tmp_path / "two", port=port_of(first))
    with pytest.raises(OSError, match="in use"):
        await second.start()
    third = make(tmp_path / "two")  # the store was closed again: its lock is free
    await third.start()
    await third.stop()
    await first.stop()


async def test_stopping_tells_the_clients_after_confirming_their_work(tmp_path: Path) -> None:
    async def scenario() -> list[str]:
        gateway = make(tmp_path)
        await gateway.start()
        client = await StompClient.connect(port_of(gateway))
        client.send("SEND", b"last", destination="/queue/q", receipt="r")
        await client.receipt("r")
        stopping = asyncio.create_task(gateway.stop())
        commands: list[str] = []
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                commands.append((await client.receive()).command)
        await stopping
        client.close()
        await gateway.wait()
        return commands

    assert await scenario() == ["ERROR"]


async def test_sockets_are_counted_before_anybody_says_who_it_is(tmp_path: Path) -> None:
    """Else clients that never log in could take the descriptors that the store needs."""

    gateway = make(tmp_path, connections_max=2)
    await gateway.start()
    port = port_of(gateway)
    strangers = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
    while gateway.broker.sockets.count < 2:
        await asyncio.sleep(0)
    reader, refused = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.suppress(ConnectionResetError):
        assert await reader.read() == b""
    refused.close()
    strangers[0][1].close()
    while gateway.broker.sockets.count == 2:
        await asyncio.sleep(0)
    await send(port, b"let in")
    await gateway.stop()
    assert gateway.broker.sockets.count == 0
    strangers[1][1].close()


async def test_stop_is_idempotent_and_wait_returns(tmp_path: Path) -> None:
    gateway = make(tmp_path)
    await gateway.start()
    await asyncio.gather(gateway.stop(), gateway.stop(), gateway.wait())


async def test_a_start_deletes_nothing_that_is_somebody_else_s(tmp_path: Path) -> None:
    """As with ``data_directory = "/var"``, where a ``tmp`` is that everybody uses."""
    kept = [tmp_path / name for name in ("tmp/file", "work/file", "spool/file")]
    for path in kept:
        path.parent.mkdir()
        path.touch()
    gateway = make(tmp_path)
    await gateway.start()
    await gateway.stop()
    assert all(path.is_file() for path in kept)


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for directory in (tmp_path / "file", tmp_path / "file" / "data"):
        with pytest.raises(
            OSError,
            match=r"cannot create the data directory \(broker\.data_directory\): a file is in the way: '.*/file",
        ):
            make_writable_directory(directory)


async def test_a_store_of_two_that_waits_for_each_is_told_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    text = (
        f'[broker]\ndata_directory = "{tmp_path}/data"\n[store]\nplugin = "jdbc"\n'
        '[[listeners]]\nprotocol = "stomp"\nbind = "127.0.0.1:0"\n'
    )
    opened = JdbcStore.open

    async def waits_twice(self: Any) -> Any:
        for owner in ("one", "one", "", "two", ""):
            self._context.stands_by(owner)
        return await opened(self)

    times = itertools.count(1)
    monkeypatch.setattr(operator_desk, "moment", lambda _seconds: f"since {next(times)}")

    monkeypatch.setattr(JdbcStore, "open", waits_twice)
    caplog.set_level("INFO")
    host = PluginHost()
    waits: list[tuple[str, str]] = []
    config = resolve(parse_config(text), host)
    gateway = Gateway(config, host, standing_by=lambda *wait: waits.append(wait))
    await gateway.start()
    await gateway.stop()
    assert waits == [("one", "since 1"), ("one", "since 1"), ("", ""), ("two", "since 2"), ("", "")]
    told = [getattr(record, "event", "") for record in caplog.records]
    assert [
        name for name in told if name in {"standby-begun", "taken-over", "gateway-started"}
    ] == [
        "standby-begun",
        "taken-over",
        "gateway-started",
    ]
