"""What a service manager hears, on a real socket: the protocol of sd_notify(3)."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from free_ports import free_port

from tidegate.cli._notify import ServiceManager


class Manager:
    """Listens as systemd does."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.settimeout(60)
        self.socket.bind("\0" + path[1:] if path.startswith("@") else path)
        self.environment = {"NOTIFY_SOCKET": path}

    def hears(self) -> dict[str, str]:
        lines = self.socket.recv(4096).decode().split("\n")
        return dict(line.split("=", 1) for line in lines)

    def is_quiet(self) -> bool:
        self.socket.setblocking(False)
        try:
            self.socket.recv(4096)
        except BlockingIOError:
            return True
        finally:
            self.socket.settimeout(60)
        return False


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    name = str(tmp_path / "notify")[-90:]
    made = Manager(name if request.param == "path" else f"@tidegate-test-{os.getpid()}")
    yield made
    made.socket.close()


async def test_it_hears_what_the_gateway_does(manager: Manager) -> None:
    told = ServiceManager(manager.environment)
    told.reloading()  # nobody is to think that it is ready
    told.reloaded()
    told.standing_by("first on host", "2026-11-24T02:26:19Z")
    text = "standby since 2026-11-24T02:26:19Z: first on host has the store's lock"
    assert manager.hears() == {"STATUS": text}
    told.standing_by("", "")
    assert manager.hears() == {"STATUS": "recovering"}
    told.recovering("replaying, 4 of 10")
    assert manager.hears() == {"STATUS": "recovering: replaying, 4 of 10"}
    told.recovering("replaying, 5 of 10")  # a moment later
    told.ready()
    assert manager.hears() == {"READY": "1", "STATUS": "running"}
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    told.reloading()
    heard = manager.hears()
    assert heard["RELOADING"] == "1"
    assert int(heard["MONOTONIC_USEC"]) >= before
    told.reloaded()
    assert manager.hears()["READY"] == "1"
    told.stopping()
    assert manager.hears()["STOPPING"] == "1"
    told.reloaded()
    assert manager.is_quiet()
    told.close()
    told.close()
    told.ready()
    assert manager.is_quiet()


async def test_the_watchdog_hears_the_loop_and_nobody_else(manager: Manager) -> None:
    for wrong in ({"WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": "soon"}, {"WATCHDOG_USEC": "0"}):
        told = ServiceManager(manager.environment | {"WATCHDOG_USEC": "30000"} | wrong)
        told.ready()
        assert manager.hears()["READY"] == "1"
        assert manager.is_quiet()
        told.close()
    told = ServiceManager(
        manager.environment | {"WATCHDOG_USEC": "30000", "WATCHDOG_PID": str(os.getpid())}
    )
    told.ready()
    assert manager.hears()["READY"] == "1"
    for _ in range(3):
        assert await asyncio.to_thread(manager.hears) == {"WATCHDOG": "1"}
    told.close()


async def test_nobody_is_told_without_a_socket_and_one_that_is_gone_does_no_harm(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told = ServiceManager({})
    told.ready()
    told.stopping()
    assert caplog.text == ""
    told = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "nobody")})
    told.ready()
    assert "notify=READY=1" in caplog.text
    told.close()


@pytest.mark.long
def test_a_real_gateway_tells_from_its_start_to_its_end(tmp_path: Path) -> None:
    manager = Manager(str(tmp_path / "notify"))
    config = tmp_path / "gw.toml"
    config.write_text(
        f'[broker]\ndata_directory = "{tmp_path / "data"}"\n'
        f'[[listeners]]\nprotocol = "stomp"\nbind = "127.0.0.1:{free_port()}"\n'
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "tidegate", "run", "--config", str(config)],
        env=os.environ | manager.environment | {"WATCHDOG_USEC": "300000"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        heard = manager.hears()
        while "READY" not in heard:
            assert "WATCHDOG" not in heard
            heard = manager.hears()
        while "WATCHDOG" not in heard:
            heard = manager.hears()
        process.send_signal(signal.SIGHUP)
        while "RELOADING" not in heard:
            heard = manager.hears()
        while "READY" not in heard:
            heard = manager.hears()
        process.terminate()
        while "STOPPING" not in heard:
            heard = manager.hears()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        manager.socket.close()
