"""What a connection costs that does nothing but keep its heart-beats: memory and processor time."""

import json
import os
import resource
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchkit.brokers import Address
from benchkit.generator import LOADGEN
from benchkit.process import BrokerProcess

#: Connections opened and closed before the count begins, so that what a first client makes the
#: broker load is not divided among those that follow.
WARM_CONNECTIONS: Final = 20
#: File descriptors that a process needs beside its connections.
DESCRIPTORS_SPARE: Final = 300
#: Seconds of holding at each end that are not measured.
_EDGE_SECONDS: Final = 3.0
_OPEN_SECONDS_MAX: Final = 300.0
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class IdleRun:
    """One measurement.

    Attributes:
        wanted, opened, survived: connections asked for, opened, and open at the end.
        bytes_each: growth of the broker's resident memory, divided by the connections. What the
            kernel keeps for a socket is not in it.
        cpu_percent: of one processor, while all connections do nothing but heart-beats.
        connects_per_s: how quickly they opened. heart_beat_s: in each direction.
        limited: why fewer than wanted were tried; "" when they were not.
    """

    broker: str
    protocol: str
    wanted: int
    opened: int
    survived: int
    bytes_each: float
    cpu_percent: float
    connects_per_s: float
    heart_beat_s: float
    hold_s: float
    limited: str = ""
    error: str = ""

    @property
    def reached(self) -> bool:
        """There is no goal."""
        return not self.error

    def line(self) -> str:
        """One line for people."""
        if self.error:
            return f"{self.broker} {self.protocol} idle: failed: {self.error}"
        return (
            f"{self.broker} {self.protocol} idle: {self.opened:,} connections opened at "
            f"{self.connects_per_s:,.0f}/s, {self.survived:,} alive after {self.hold_s:g} s; "
            f"{self.bytes_each / 1024:,.1f} KiB resident memory each; heart-beats every "
            f"{self.heart_beat_s:g} s both ways take {self.cpu_percent:.1f} % of one processor"
            + (f" ({self.limited})" if self.limited else "")
        )


def possible(wanted: int) -> tuple[int, str]:
    """How many connections the limit on open files allows one process, and a reason if fewer."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard == resource.RLIM_INFINITY or wanted + DESCRIPTORS_SPARE <= hard:
        return wanted, ""
    count = max(1, hard - DESCRIPTORS_SPARE)
    return count, f"{wanted:,} wanted; the limit on open files, `ulimit -Hn`, is {hard:,}"


def resident_bytes(pids: Sequence[int], root: Path = Path("/proc")) -> int:
    """Resident memory of processes, from statm's second field (proc(5)); one that ended has none."""
    total = 0
    for pid in pids:
        with suppress(OSError):
            total += int((root / str(pid) / "statm").read_text().split()[1]) * _PAGE_BYTES
    return total


def open_files(pids: Sequence[int], root: Path = Path("/proc")) -> int:
    """Open file descriptors of processes."""
    total = 0
    for pid in pids:
        with suppress(OSError):
            total += len(os.listdir(root / str(pid) / "fd"))
    return total


def measure(
    name: str,
    broker: BrokerProcess,
    address: Address,
    protocol: str,
    wanted: int,
    *,
    login: Sequence[str] = (),
    hold_s: float = 30.0,
    heart_beat_s: float = 10.0,
) -> IdleRun:
    """Open the connections, wait until the broker has them all, and look at it while they idle.

    Args: protocol: as the load generator calls it: stomp, mqtt (3.1.1) or mqtt5.
    """
    count, limited = possible(wanted)
    command = [str(LOADGEN), "-json", f"-protocol={protocol}", f"-addr={address}", *login]
    command += [f"-heart-beat={heart_beat_s:g}s", f"-timeout={_OPEN_SECONDS_MAX + hold_s:g}s"]

    def failed(error: str) -> IdleRun:
        return IdleRun(
            name, protocol, wanted, 0, 0, 0.0, 0.0, 0.0, heart_beat_s, hold_s, limited, error
        )

    warm = [*command, f"-idle={min(WARM_CONNECTIONS, count)}", "-hold=1s"]
    subprocess.run(warm, capture_output=True, check=False, timeout=120)
    files = _settle(broker)
    before = resident_bytes(broker.pids())
    load = subprocess.Popen(
        [*command, f"-idle={count}", f"-hold={hold_s + 2 * _EDGE_SECONDS:g}s"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + _OPEN_SECONDS_MAX
        while open_files(broker.pids()) < files + count:
            if load.poll() is not None or time.monotonic() > deadline:
                load.kill()
                out, err = load.communicate()
                return failed((err or out).strip()[-300:] or "the connections did not open")
            time.sleep(0.1)
        time.sleep(_EDGE_SECONDS)
        used, start = broker.cpu_seconds(), time.monotonic()
        time.sleep(hold_s)
        cpu = (broker.cpu_seconds() - used) / (time.monotonic() - start)
        after = resident_bytes(broker.pids())
        out, err = load.communicate(timeout=60)
    finally:
        load.kill()
        load.wait()
    if not out.startswith("{"):
        return failed(err.strip() or "the load generator gave no report")
    found = json.loads(out)
    return IdleRun(
        name,
        protocol,
        wanted,
        int(found["opened"]),
        int(found["survived"]),
        (after - before) / count,
        cpu * 100,
        float(found["connects_per_s"]),
        heart_beat_s,
        hold_s,
        limited,
        str(found.get("error") or ""),
    )


def _settle(broker: BrokerProcess) -> int:
    """Wait until the broker has closed what the warm-up opened; returns its open files."""
    files = open_files(broker.pids())
    for _ in range(100):
        time.sleep(0.1)
        now = open_files(broker.pids())
        if now >= files:
            return now
        files = now
    return files
