"""Broker processes: started each in a session of its own, measured and ended as a whole."""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchkit.brokers import Address

_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
_READY_SECONDS: Final = 90.0
_STOP_SECONDS: Final = 15.0


class BrokerStartError(Exception):
    """A broker did not come up; the text ends with the last lines of its log."""


def free_ports(count: int) -> list[int]:
    """Return loopback ports that nobody uses now, all different."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def stat_fields(text: str) -> tuple[int, float]:
    """Read session id and CPU seconds (user and system) from a /proc/PID/stat line.

    The command in parentheses may hold anything, so fields count from its end (proc(5)).
    """
    fields = text[text.rindex(")") + 2 :].split()
    return int(fields[3]), (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident bytes of one process, files that it maps included: now, and the most so far."""

    now: int
    peak: int


def memory_of(status: str) -> Memory:
    """Read the figures from the text of /proc/PID/status (proc(5): VmRSS and VmHWM)."""
    found = {"VmRSS": 0, "VmHWM": 0}
    for line in status.splitlines():
        name, _, value = line.partition(":")
        if name in found:
            found[name] = int(value.split()[0]) << 10
    return Memory(found["VmRSS"], found["VmHWM"])


def session_processes(session: int) -> dict[int, float]:
    """Return the processes of a session: process id to CPU seconds used so far."""
    found: dict[int, float] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError, ValueError):
                owner, seconds = stat_fields((entry / "stat").read_text())
                if owner == session:
                    found[int(entry.name)] = seconds
    return found


class BrokerProcess:
    """One running broker with everything that it started."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self.log = log

    def cpu_seconds(self) -> float:
        """Return what all its processes have used so far, user and system."""
        return sum(session_processes(self._process.pid).values())

    def pids(self) -> list[int]:
        """Return all its processes that run now."""
        return list(session_processes(self._process.pid))

    def memory(self) -> Memory:
        """Return the resident memory of its first process; zeros when that has ended."""
        try:
            return memory_of((Path("/proc") / str(self._process.pid) / "status").read_text())
        except OSError:
            return Memory(0, 0)

    def kill(self) -> None:
        """End it as a power cut of the process would: SIGKILL, nothing is asked."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait(_STOP_SECONDS)

    def wait_ready(self, addresses: Sequence[Address]) -> None:
        """Wait until every address takes connections.

        Raises: BrokerStartError when the process ends first, or after 90 s.
        """
        deadline = time.monotonic() + _READY_SECONDS
        for address in addresses:
            while not accepts(address):
                if self._process.poll() is not None:
                    raise BrokerStartError(f"it ended at once: {self.tail()}")
                if time.monotonic() > deadline:
                    raise BrokerStartError(f"{address} is not open after {_READY_SECONDS:.0f} s")
                time.sleep(0.1)

    def tail(self, lines: int = 3) -> str:
        """Return the last lines of what it printed."""
        return " | ".join(self.log.read_text(errors="replace").strip().splitlines()[-lines:])

    def stop(self) -> None:
        """End it politely, then end whatever of its session is left."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_SECONDS)
        deadline = time.monotonic() + _STOP_SECONDS
        while (left := session_processes(self._process.pid)) and time.monotonic() < deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.poll()  # a killed child stays in the list until it is waited for
            time.sleep(0.05)
        self._process.wait(_STOP_SECONDS)


def accepts(address: Address) -> bool:
    """Whether a TCP connection to the address succeeds."""
    try:
        with socket.create_connection((address.host, address.port), timeout=2):
            return True
    except OSError:
        return False


def start(command: Sequence[str], log: Path) -> BrokerProcess:
    """Start a broker and return at once; the caller has to `stop` it."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return BrokerProcess(process, log)


@contextlib.contextmanager
def running(
    command: Sequence[str], log: Path, addresses: Sequence[Address]
) -> Iterator[BrokerProcess]:
    """Run a broker for the length of a `with` block.

    Raises: BrokerStartError when it does not come up.
    """
    broker = start(command, log)
    try:
        broker.wait_ready(addresses)
        yield broker
    finally:
        broker.stop()
