"""The admin process beside a gateway process that is started, killed and told to read its files anew."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from free_ports import free_port
from gateway_process import GatewayProcess
from http_raw import HttpClient

from tidegate_admin.server.history import FILE_BYTES, HISTORY_FILE, Ring

pytestmark = pytest.mark.long


def children(pid: int) -> list[int]:
    found = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False
    )
    return [int(text) for text in found.stdout.split()]


def ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def gateway(tmp_path: Path, port: int) -> GatewayProcess:
    extra = f'[[listeners]]\nprotocol = "admin"\nbind = "127.0.0.1:{port}"\n'
    return GatewayProcess(tmp_path, extra=extra)


def test_the_process_ends_with_a_gateway_that_is_killed_and_the_next_one_has_its_port(
    gateway: GatewayProcess, port: int
) -> None:
    client = HttpClient(port)
    for _ in range(2):
        with gateway:
            assert asyncio.run(client.get("/health/ready")).status == 200
            (child,) = children(gateway.pid)
            gateway.kill()
        deadline = time.monotonic() + 60
        while not ended(child):
            assert time.monotonic() < deadline, "the admin process outlives its gateway"
            time.sleep(0.02)


def test_sighup_reads_the_token_anew(gateway: GatewayProcess, port: int) -> None:
    with gateway:
        path = gateway.directory / "data" / "admin.token"
        old = path.read_text().strip()
        new = "n" * 40
        path.write_text(new)
        assert gateway.process is not None
        gateway.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 60
        while asyncio.run(HttpClient(port).bearer(new).get("/api/v1/list-sinks")).status != 200:
            assert time.monotonic() < deadline, gateway.tail()
        assert asyncio.run(HttpClient(port).bearer(old).get("/api/v1/list-sinks")).status == 401
        assert gateway.stop() == 0
        assert old not in gateway.tail()
        assert new not in gateway.tail()


def test_the_history_of_samples_outlives_both_processes(gateway: GatewayProcess, port: int) -> None:
    path = gateway.directory / "data" / HISTORY_FILE

    def seen() -> list[float | None]:
        token = path.with_name("admin.token").read_text().strip()
        found = asyncio.run(HttpClient(port).bearer(token).get("/history?range=7d"))
        return [value for value in found.json()["series"]["connections"] if value is not None]

    def kept() -> bool:
        ring = Ring(path)
        with contextlib.suppress(FileNotFoundError):
            ring.load()
        _, rows = ring.last(2, 1008, time.time())
        return any(rows)

    with gateway:
        wait(kept, gateway)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        (child,) = children(gateway.pid)
        os.kill(child, signal.SIGKILL)
        wait(lambda: children(gateway.pid) not in ([], [child]), gateway)
        wait(seen, gateway)
        gateway.kill()
        gateway.start()
        wait(seen, gateway)
    assert path.stat().st_size == FILE_BYTES


def wait(look: Callable[[], object], gateway: GatewayProcess) -> None:
    deadline = time.monotonic() + 60
    while not look():
        assert time.monotonic() < deadline, gateway.tail()
        time.sleep(0.05)
