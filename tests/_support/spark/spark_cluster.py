"""Real Spark clusters on loopback, for tests: a standalone master with workers. All ports are the system's choice."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Generator, Mapping
from pathlib import Path

START_TIMEOUT = 240.0


class Daemon:
    """A process in a session of its own, and all that it starts."""

    def __init__(self, name: str, directory: Path, environment: Mapping[str, str], *words: str):
        directory.mkdir(parents=True, exist_ok=True)
        self.log = directory / f"{name}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                words,
                cwd=directory,
                env={**environment, "SPARK_SCALA_VERSION": "2.13"},  # as its scripts do
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_for(self, pattern: str, count: int = 1) -> list[str]:
        """Wait until *pattern* stands *count* times in its log; what was found."""
        deadline = time.monotonic() + START_TIMEOUT
        while True:
            text = self.log.read_text(errors="replace")
            found = re.findall(pattern, text)
            if len(found) >= count:
                return found
            assert self.process.poll() is None, f"it ended: {text[-3000:]}"
            assert time.monotonic() < deadline, text[-3000:]
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill it, and all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def java(environment: Mapping[str, str], *words: str) -> tuple[str, ...]:
    """The command for a daemon of Spark's."""
    flags = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    off = ("-Dspark.master.rest.enabled=false", "-Dspark.ui.enabled=false")
    path = f"{environment['SPARK_HOME']}/jars/*"
    return (f"{environment['JAVA_HOME']}/bin/java", *flags, *off, "-cp", path, *words)


class Cluster:
    """A standalone master and its workers, one core each. Attributes: master (URL), workers."""

    def __init__(self, directory: Path, environment: Mapping[str, str], workers: int = 2) -> None:
        self._directory = directory
        self._environment = environment
        self.workers: list[Daemon] = []
        where = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        master = java(environment, "org.apache.spark.deploy.master.Master", *where)
        self._master = Daemon("master", directory, environment, *master)
        (self.master,) = self._master.wait_for(
            r"Starting Spark master at (spark://127\.0\.0\.1:\d+)"
        )
        self.add_workers(workers)

    def add_workers(self, count: int) -> None:
        """Start *count* more workers, and wait until the master knows them."""
        for number in range(len(self.workers), len(self.workers) + count):
            words = java(
                self._environment,
                *("org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--port", "0"),
                *("--webui-port", "0", "--cores", "1", "--memory", "768m"),
                *("--work-dir", str(self._directory / f"work-{number}"), self.master),
            )
            name = f"worker-{number}"
            self.workers.append(Daemon(name, self._directory, self._environment, *words))
        self._master.wait_for("Registering worker", len(self.workers))

    def close(self) -> None:
        for daemon in (*self.workers, self._master):
            daemon.kill()


@contextlib.contextmanager
def cluster(
    directory: Path, environment: Mapping[str, str], workers: int = 2
) -> Generator[Cluster]:
    """A :class:`Cluster` that ends with the block."""
    made = Cluster(directory, environment, workers)
    try:
        yield made
    finally:
        made.close()
