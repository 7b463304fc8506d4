"""A real gateway process for tests: started, killed, started again on the same ports and data."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
from pathlib import Path

from free_ports import free_port

START_TIMEOUT_S = 60.0


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits to be collected does not count."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


class GatewayProcess:
    """``tidegate run`` with STOMP and MQTT on free loopback ports and its data in *directory*.

    *extra* is TOML that is appended to the configuration; *broker* goes into ``[broker]``, *mqtt*
    and *stomp* into the listeners.
    """

    address = "127.0.0.1"

    def __init__(
        self, directory: Path, *, extra: str = "", broker: str = "", mqtt: str = "", stomp: str = ""
    ) -> None:
        self.directory = directory
        self.stomp_port = free_port()
        self.mqtt_port = free_port()
        self.config = directory / "tidegate.toml"
        self.log = directory / "gateway.log"
        self.config.write_text(
            f"""
[broker]
name = "under-test"
data_directory = "{directory / "data"}"
{broker}

[[listeners]]
protocol = "stomp"
bind = "{self.address}:{self.stomp_port}"
{stomp}

[[listeners]]
protocol = "mqtt"
bind = "{self.address}:{self.mqtt_port}"
{mqtt}

{extra}
"""
        )
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> GatewayProcess:
        """Start and wait until each listener of the configuration accepts connections."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        listeners = tomllib.loads(self.config.read_text())["listeners"]
        for port in (int(item["bind"].rpartition(":")[2]) for item in listeners):
            while not self._accepts(port):
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError(f"the gateway did not start:\n{self.tail()}")
                time.sleep(0.02)
        return self

    def command(self) -> list[str]:
        return [sys.executable, "-m", "tidegate", "run", "--config", str(self.config)]

    def _accepts(self, port: int) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((self.address, port)) == 0

    def tail(self) -> str:
        """The end of its log, for failure messages."""
        return self.log.read_text(errors="replace")[-4000:]

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self, timeout_s: float = 60.0) -> int:
        """SIGTERM; returns the exit code."""
        assert self.process is not None
        os.kill(self.pid, signal.SIGTERM)
        return self.process.wait(timeout_s)

    def __enter__(self) -> GatewayProcess:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
