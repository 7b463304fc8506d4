"""What one client costs the others: a round trip beside each attack of `attacks.py`."""

import contextlib
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchkit.brokers import BENCHMARKS, TIDEGATE, tidegate_config
from benchkit.instead.attacks import Ports
from benchkit.process import BrokerProcess
from benchkit.report import percentile
from benchkit.wire import connect, exchange, field, packet

#: Nothing attacks: what the machine itself is good for.
NOBODY: Final = "nobody"

#: What a second client's round trip may take beside any attack, in milliseconds (issue 13).
P99_GOAL_MS: Final = 50.0
WORST_GOAL_MS: Final = 250.0

_READY_SECONDS: Final = 120.0
#: An attack that has ended is still one: its connections close with all that they have.
_AFTER_SECONDS: Final = 0.5
#: Between two round trips, so that the second client is no load of its own.
_PAUSE_SECONDS: Final = 0.002
_ANSWER_SECONDS: Final = 60.0
#: Of a CONNACK and of a PUBACK.
_ANSWER_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class HostileRun:
    """Round trips of a QoS 1 PUBLISH beside one attack, in milliseconds.

    Attributes: count: of them; 0 with an error.
    """

    attack: str
    count: int = 0
    p50: float = 0.0
    p99: float = 0.0
    worst: float = 0.0
    error: str = ""

    @property
    def broker(self) -> str:
        """No other broker is attacked."""
        return TIDEGATE

    @property
    def reached(self) -> bool:
        """The goals are met."""
        return not self.error and self.p99 < P99_GOAL_MS and self.worst < WORST_GOAL_MS

    def line(self) -> str:
        """One line for people."""
        if self.error:
            return f"{self.attack:<20} failed: {self.error}"
        figures = f"p50 {self.p50:8.2f}  p99 {self.p99:8.2f}  worst {self.worst:8.2f} ms"
        missed = "" if self.reached else "  missed"
        return f"{self.attack:<20} {figures}  ({self.count:,} round trips){missed}"


def config(data: Path, ports: Ports) -> str:
    """The gateway's configuration: as in the other benchmarks, and a WebSocket listener."""
    web_socket = (
        '\n[[listeners]]\nprotocol = "mqtt"\ntransport = "ws"\n'
        f'bind = "127.0.0.1:{ports.ws}"\nallow_anonymous = true\n'
    )
    return tidegate_config(data, {"mqtt": ports.mqtt, "stomp": ports.stomp}) + web_socket


def run_from_times(attack: str, times: Sequence[float]) -> HostileRun:
    """Make a run of round trips in seconds."""
    p50, p99 = (1000 * percentile(times, share) for share in (0.5, 0.99))
    return HostileRun(attack, len(times), p50, p99, 1000 * max(times))


def measure(attack: str, broker: BrokerProcess, ports: Ports, seconds: float) -> HostileRun:
    """Let one attack run for so many seconds, and measure beside it and while it ends."""
    try:
        with attacking(attack, ports), Witness(ports.mqtt) as witness:
            times = witness.round_trips(seconds)
        with Witness(ports.mqtt) as witness:
            times += witness.round_trips(_AFTER_SECONDS)
    except OSError as error:
        return HostileRun(attack, error=f"{error}; {broker.tail()}")
    return run_from_times(attack, times)


@contextlib.contextmanager
def attacking(name: str, ports: Ports) -> Iterator[None]:
    """Have an attack under way for the length of a `with` block. Raises: OSError."""
    if name == NOBODY:
        yield
        return
    command = [sys.executable, "-m", "benchkit.instead.attacks", name]
    command += [str(port) for port in (ports.mqtt, ports.stomp, ports.ws)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=BENCHMARKS) as process:
        try:
            assert process.stdout is not None
            ready, _, _ = select.select([process.stdout], [], [], _READY_SECONDS)
            if not ready or not process.stdout.readline():
                raise OSError("the attack could not begin")
            yield
            if process.poll() is not None:
                raise OSError("the attack ended early")
        finally:
            process.kill()


class Witness:
    """The second client: MQTT 3.1.1, one QoS 1 PUBLISH at a time. Its methods raise OSError."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), _ANSWER_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        exchange(self._socket, connect("witness"), _ANSWER_BYTES)

    def __enter__(self) -> "Witness":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def round_trips(self, seconds: float) -> list[float]:
        """Publish for so long. Returns: how long each PUBACK took, in seconds."""
        data = packet(0x32, field(b"witness") + b"\0\1" + b"w" * 64)
        times: list[float] = []
        end = time.perf_counter() + seconds
        while not times or (times[-1] < seconds and time.perf_counter() < end):
            begin = time.perf_counter()
            exchange(self._socket, data, _ANSWER_BYTES)
            times.append(time.perf_counter() - begin)
            time.sleep(_PAUSE_SECONDS)
        return times
