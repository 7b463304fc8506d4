"""Gateways that share a store: one serves, the others wait; by their sockets, health, logs and exit codes."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from free_ports import free_port
from gateway_process import GatewayProcess
from http_raw import HttpClient
from wire import StompClient

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

#: Longest wait for what must happen; not for how fast it does.
_WAIT_SECONDS = 60.0


def store_of(plugin: str, directory: Path, expiration: str) -> str:
    """A ``[store]`` that gateways with data directories of their own share."""
    if plugin == "journal":
        where = f'directory = "{directory}"'
    else:
        where = (
            f'url = "sqlite:///{directory}/tidegate.db"\njournal_directory = "{directory}/front"'
        )
        where += f'\nnetwork_timeout = "{expiration}"'
    return (
        f'[store]\nplugin = "{plugin}"\n{where}\nlock_policy = "wait"\n'
        f'lock_renew_period = "100ms"\nlock_expiration = "{expiration}"\n'
    )


class Shared:
    """Gateways by name; each is made with its ports, and started when it is wanted."""

    def __init__(self, directory: Path, plugin: str, expiration: str) -> None:
        (directory / "shared").mkdir()
        self._directory = directory
        self._store = store_of(plugin, directory / "shared", expiration)
        self._made: list[GatewayProcess] = []
        self._starting: list[threading.Thread] = []
        self.health: dict[GatewayProcess, HttpClient] = {}

    def gateway(self, name: str) -> GatewayProcess:
        (self._directory / name).mkdir()
        port = free_port()
        admin = f'[[listeners]]\nprotocol = "admin"\nbind = "127.0.0.1:{port}"\n'
        made = GatewayProcess(self._directory / name, extra=f"{admin}\n{self._store}")
        self.health[made] = HttpClient(port)
        self._made.append(made)
        return made

    def start_as_standby(self, gateway: GatewayProcess) -> threading.Thread:
        """Returns: what ends when it lets clients in."""

        def start() -> None:
            with contextlib.suppress(AssertionError):  # it was killed while it waited
                gateway.start()

        thread = threading.Thread(target=start)
        thread.start()
        self._starting.append(thread)
        until_logged(gateway, "standby: waiting for the lock of")
        return thread

    def end(self) -> None:
        for gateway in self._made:
            gateway.__exit__()
        for thread in self._starting:
            thread.join(_WAIT_SECONDS)


def until_logged(gateway: GatewayProcess, text: str) -> None:
    end = time.monotonic() + _WAIT_SECONDS
    while not (gateway.log.exists() and text in gateway.log.read_text()):
        assert time.monotonic() < end, f"no {text!r}"
        time.sleep(0.02)


@contextlib.contextmanager
def shared(directory: Path, plugin: str, expiration: str = "60s") -> Iterator[Shared]:
    made = Shared(directory, plugin, expiration)
    try:
        yield made
    finally:
        made.end()


class Load:
    """Sends messages one after another, each with a receipt, until its gateway is gone."""

    def __init__(self) -> None:
        self.confirmed: list[bytes] = []
        self.enough = threading.Event()

    async def run(self, port: int) -> None:
        client = await StompClient.connect(port)
        with contextlib.suppress(OSError, EOFError, AssertionError, asyncio.IncompleteReadError):
            for number in range(1_000_000):
                client.send("SEND", b"%d" % number, destination="/queue/q", receipt=str(number))
                await client.receipt(str(number))
                self.confirmed.append(b"%d" % number)
                if len(self.confirmed) == 100:
                    self.enough.set()
        client.close()


async def received(port: int, count: int) -> list[bytes]:
    client = await StompClient.connect(port)
    client.send("SUBSCRIBE", destination="/queue/q", id="1", ack="auto")
    bodies = [(await client.receive()).body for _ in range(count)]
    await client.aclose()
    return bodies


@pytest.mark.parametrize("plugin", ["journal", "journaled"])
async def test_a_standby_takes_over_from_a_gateway_that_is_killed_under_load(
    tmp_path: Path, plugin: str
) -> None:
    with shared(tmp_path, plugin) as group:
        first, second = group.gateway("one"), group.gateway("two")
        first.start()
        taking_over = await asyncio.to_thread(group.start_as_standby, second)
        found = await group.health[second].get("/health/ready")
        assert found.status == 503
        assert found.json()["phase"] == "standby"
        assert "another gateway owns the store; waiting since 20" in found.json()["status"]
        assert (await group.health[second].get("/health/live")).status == 200
        with pytest.raises(OSError):  # noqa: PT011 - it lets nobody in
            await StompClient.connect(second.stomp_port)
        load = Load()
        loading = asyncio.create_task(load.run(first.stomp_port))
        assert await asyncio.to_thread(load.enough.wait, _WAIT_SECONDS), first.tail()
        killed_at = time.monotonic()
        first.kill()
        await loading
        await asyncio.to_thread(taking_over.join, _WAIT_SECONDS)
        took = time.monotonic() - killed_at
        print(f"store={plugin} take_over_s={took:.2f} confirmed={len(load.confirmed)}")
        assert await received(second.stomp_port, len(load.confirmed)) == load.confirmed
        assert (await group.health[second].get("/health/ready")).json()["phase"] == "running"
        told = re.findall(
            "event=(standby-begun|taken-over|gateway-started)", second.log.read_text()
        )
        assert told == ["standby-begun", "taken-over", "gateway-started"]
        third = await asyncio.to_thread(group.start_as_standby, first)
        assert second.stop() == 0  # one that ends is followed, too
        await asyncio.to_thread(third.join, _WAIT_SECONDS)
        assert first.stop() == 0


@pytest.mark.parametrize("plugin", ["journal", "journaled"])
async def test_a_gateway_that_was_paused_for_too_long_ends_and_is_followed(
    tmp_path: Path, plugin: str
) -> None:
    with shared(tmp_path, plugin, "4s") as group:
        first, second = group.gateway("one"), group.gateway("two")
        first.start()
        client = await StompClient.connect(first.stomp_port)
        client.send("SEND", b"before", destination="/queue/q", receipt="1")
        await client.receipt("1")
        taking_over = await asyncio.to_thread(group.start_as_standby, second)
        assert first.process is not None
        first.process.send_signal(signal.SIGSTOP)
        client.send("SEND", b"asleep", destination="/queue/q", receipt="2")
        await asyncio.sleep(5)  # longer than its lease, however busy the machine is
        first.process.send_signal(signal.SIGCONT)
        frames = []
        with contextlib.suppress(OSError, EOFError, AssertionError, asyncio.IncompleteReadError):
            while True:
                frames.append(await client.receive())
        client.close()
        assert "RECEIPT" not in [frame.command for frame in frames]
        assert await asyncio.to_thread(first.process.wait, _WAIT_SECONDS) == 4
        log = first.log.read_text()
        assert log.count("store=lost: the gateway is stopping and confirms nothing more") == 1
        before, told = log.split("store=lost")
        assert "restart it" in told
        # One line, of an event that is expected: no traces, and no other complaints.
        assert not re.search("Traceback|ERROR|CRITICAL|read-only|unknown", told), log
        assert not re.search("Traceback|ERROR|read-only|unknown", before), log
        await asyncio.to_thread(taking_over.join, _WAIT_SECONDS)
        assert (await received(second.stomp_port, 1)) == [b"before"]
        assert second.stop() == 0
