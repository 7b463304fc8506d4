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

from benchkit.brokers import TIDEGATE, tidegate_config
from benchkit.instead.attacks import ATTACKS, Ports, connect, field, packet
from benchkit.process import BrokerProcess
from benchkit.report import percentile

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
    script = Path(__file__).with_name("attacks.py")
    command = [sys.executable, str(script), name, *map(str, (ports.mqtt, ports.stomp, ports.ws))]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
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
        self._ask(connect("witness"))

    def __enter__(self) -> "Witness":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def _ask(self, data: bytes) -> None:
        """Send what is answered with four bytes."""
        self._socket.sendall(data)
        left = 4
        while left:
            answer = self._socket.recv(left)
            if not answer:
                raise OSError("the gateway closed the second client's connection")
            left -= len(answer)

    def round_trips(self, seconds: float) -> list[float]:
        """Publish for so long. Returns: how long each PUBACK took, in seconds."""
        data = packet(0x32, field(b"witness") + b"\0\1" + b"w" * 64)
        times: list[float] = []
        end = time.perf_counter() + seconds
        while not times or (times[-1] < seconds and time.perf_counter() < end):
            begin = time.perf_counter()
            self._ask(data)
            times.append(time.perf_counter() - begin)
            time.sleep(_PAUSE_SECONDS)
        return times


def choose(only: str) -> list[str]:
    """The attacks to run: *only* these, with commas; "": all, and nobody first.

    Raises: ValueError for a name that there is not.
    """
    names = [name.strip() for name in only.split(",") if name.strip()]
    if unknown := [name for name in names if name not in (NOBODY, *ATTACKS)]:
        raise ValueError(f"no attack {', '.join(unknown)}; there are {', '.join(ATTACKS)}")
    return names or [NOBODY, *ATTACKS]
