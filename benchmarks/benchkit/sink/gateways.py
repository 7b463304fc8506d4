"""Gateways with and without a sink, beside each other on one machine."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from benchkit.brokers import (
    BENCHMARKS,
    BROKERS,
    TIDEGATE,
    Address,
    Protocol,
    tidegate_config,
    toml_string,
)
from benchkit.instead.slow import Bench
from benchkit.process import BrokerProcess, free_ports, running
from benchkit.sink.jobs import cpu_seconds, family
from benchkit.sink.pipeline import ENGINES, live_files

#: The gateway without a sink.
WITHOUT: Final = "without"
#: The log is kept, and nothing reads it: what the log alone costs.
LOG_ALONE: Final = "log"

_READY_SECONDS: Final = 120.0
_QUIET_SECONDS: Final = 1.5
_POLL_SECONDS: Final = 0.05
#: Options that are seconds in ENGINES.
_DURATIONS: Final = frozenset({"commit_interval", "lag_goal"})
_NAME: Final = "lake"


@dataclass(frozen=True, slots=True)
class SinkGateway:
    """A running gateway, perhaps with a sink. Attributes: ticks: where its loop's stalls are written."""

    name: str
    broker: BrokerProcess
    addresses: Mapping[Protocol, Address]
    directory: Path

    @property
    def ticks(self) -> Path:
        return self.directory / "ticks"

    @property
    def table(self) -> Path:
        return self.directory / "table"

    def bench(self, seconds: float) -> Bench:
        """What gives it load."""
        spec, at = BROKERS[TIDEGATE], self.addresses
        return Bench(spec, self.broker, at["stomp"], at["mqtt"], ("", ""), seconds, 1)

    def jobs(self) -> list[psutil.Process]:
        """The processes of its sink's job."""
        return [each for pid in self.broker.pids() for each in family(pid)[1:]]

    def job_cpu(self) -> float:
        """CPU seconds that its job has used so far; 0 when there is none."""
        return cpu_seconds(self.jobs())

    def wait_quiet(self) -> None:
        """Wait until its table has all that was acknowledged. Raises: RuntimeError."""
        deadline, quiet_since = time.monotonic() + _READY_SECONDS, time.monotonic()
        while time.monotonic() < quiet_since + _QUIET_SECONDS:
            if any(self.directory.glob("data/sinks/*/staging/*/*.parquet")):
                quiet_since = time.monotonic()
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name}: the sink does not come to rest; {self.tail()}")
            time.sleep(_POLL_SECONDS)

    def wait_first_commit(self) -> None:
        """Wait until its table has rows. Raises: RuntimeError."""
        deadline = time.monotonic() + _READY_SECONDS
        while not live_files(self.table)[0]:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name}: the sink commits nothing; {self.tail()}")
            time.sleep(_POLL_SECONDS)

    def stalls(self) -> list[float]:
        """How much too late its loop came back each time since the last call, in seconds."""
        self.ticks.unlink(missing_ok=True)
        os.kill(min(self.broker.pids()), signal.SIGUSR2)
        deadline = time.monotonic() + _READY_SECONDS
        while not self.ticks.exists():
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name}: its loop does not answer; {self.tail()}")
            time.sleep(_POLL_SECONDS)
        return [float(line) for line in self.ticks.read_text().split()]

    def tail(self) -> str:
        """The last words of the gateway."""
        return self.broker.tail(1)


def sink_table(engine: str, table: Path, **options: Any) -> str:
    """The ``[[sinks]]`` of a gateway."""
    chosen = ENGINES[engine] | options
    lines = ["", "[[sinks]]", 'plugin = "spark"', f'name = "{_NAME}"']
    lines.append(f"table = {toml_string(str(table))}")
    for key, value in chosen.items():
        text = f"{round(value * 1000)}ms" if key in _DURATIONS else value
        lines.append(f"{key} = {toml_string(text) if isinstance(text, str) else str(text).lower()}")
    return "\n".join(lines) + "\n"


@contextlib.contextmanager
def gateways(
    names: Sequence[str], work: Path, command: Path, *, ticking: bool = False
) -> Iterator[list[SinkGateway]]:
    """Run a gateway for each of *names*: an engine, WITHOUT or LOG_ALONE, for a `with` block.

    Args: ticking: they can be asked for the stalls of their loops.
    Raises: BrokerStartError, RuntimeError.
    """
    with contextlib.ExitStack() as stack:
        found: list[SinkGateway] = []
        for name in names:
            directory = work / f"sink-{name}"
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir(parents=True)
            stack.callback(shutil.rmtree, directory, ignore_errors=True)
            found.append(_start(stack, name, directory, command, ticking=ticking))
        yield found


def _start(
    stack: contextlib.ExitStack,
    name: str,
    directory: Path,
    command: Path,
    *,
    ticking: bool,
) -> SinkGateway:
    stomp, mqtt = free_ports(2)
    ports: dict[Protocol, int] = {"stomp": stomp, "mqtt": mqtt}
    text = tidegate_config(directory / "data", ports)
    if name == LOG_ALONE:
        # Staging stops at once, and the log is written as for any other sink.
        alone = {"staging_max": "1mb", "segment_size": "64kb"}
        text += sink_table("deltalake", directory / "table", **alone)
    elif name != WITHOUT:
        text += sink_table(name, directory / "table")
    config = directory / "bench.toml"
    config.write_text(text)
    run = [str(command), "run", "--config", str(config)]
    if ticking:
        run[:1] = ["env", f"PYTHONPATH={BENCHMARKS}", sys.executable, "-m"]
        run[4:4] = ["benchkit.sink.ticking", str(directory / "ticks")]
    addresses: dict[Protocol, Address] = {
        protocol: Address("127.0.0.1", port) for protocol, port in ports.items()
    }
    broker = stack.enter_context(running(run, directory / "log", list(addresses.values())))
    return SinkGateway(name, broker, addresses, directory)


@contextlib.contextmanager
def pinned(gateway: SinkGateway, *, gateway_on: int, job_on: int) -> Iterator[None]:
    """Have a gateway, and the clients that are started meanwhile, on one processor, its job on another."""
    everywhere = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {gateway_on})
        _pin(gateway.broker.pids(), {gateway_on})
        _pin([each.pid for each in gateway.jobs()], {job_on})
        yield
    finally:
        os.sched_setaffinity(0, everywhere)
        _pin([*gateway.broker.pids(), *(each.pid for each in gateway.jobs())], everywhere)


@contextlib.contextmanager
def busy(processor: int) -> Iterator[None]:
    """Keep a processor busy for a `with` block with what touches no memory and no disk."""
    loop = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        _pin([loop.pid], {processor})
        yield
    finally:
        loop.kill()
        loop.wait()


@contextlib.contextmanager
def stopped(processes: Sequence[psutil.Process]) -> Iterator[None]:
    """Have processes do nothing for a `with` block; a job that stays so would outlive its gateway."""
    try:
        for each in processes:
            each.suspend()
        yield
    finally:
        for each in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.resume()


def _pin(pids: Sequence[int], processors: set[int]) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                with contextlib.suppress(OSError):
                    os.sched_setaffinity(int(thread), processors)
