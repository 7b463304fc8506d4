"""What has to be known of the machine to read a figure: its parts, and what one disk sync costs."""

import importlib.metadata
import os
import platform
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from benchkit.report import Floor, percentile

_BLOCK: Final = b"t" * 4096
_SYNC_FILE_BLOCKS: Final = 256
#: MiB of a short write: about what the caches of a disk and its host take.
BURST_MIB: Final = 64


#: What a confirmed message and its receipt are about.
_ECHO: Final = b"e" * 256
#: Answers whatever comes; says its port first.
_ECHO_SERVER: Final = """
import asyncio, uvloop

class Echo(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport
    def data_received(self, data):
        self.transport.write(data)

async def serve():
    server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1")
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

uvloop.run(serve())
"""


def measure_floor(directory: Path, count: int = 500) -> Floor:
    """Measure the least that a broker on this event loop needs to confirm one message."""
    syncs = measure_syncs(directory, count)
    echo = percentile(measure_echoes(count), 0.5)
    return Floor(percentile(syncs, 0.5), percentile(syncs, 0.99), echo)


def measure_echoes(count: int) -> list[float]:
    """Return what round trips to an echo server in another process take, in microseconds."""
    server = subprocess.Popen([sys.executable, "-c", _ECHO_SERVER], stdout=subprocess.PIPE)
    times: list[float] = []
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _ in range(count):
                begin = time.perf_counter()
                client.sendall(_ECHO)
                client.recv(len(_ECHO), socket.MSG_WAITALL)
                times.append((time.perf_counter() - begin) * 1e6)
    finally:
        server.kill()
        server.communicate()
    return times


def measure_syncs(directory: Path, count: int) -> list[float]:
    """Return what writing and syncing 4 KiB takes, in microseconds.

    The file is written and synced beforehand and overwritten block by block, as a journal's
    pre-created files are, so that no file system metadata has to be written.
    """
    path = directory / "raw-sync.tmp"
    times: list[float] = []
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(descriptor, _BLOCK * _SYNC_FILE_BLOCKS)
        os.fsync(descriptor)
        for turn in range(count):
            begin = time.perf_counter()
            os.pwrite(descriptor, _BLOCK, turn % _SYNC_FILE_BLOCKS * len(_BLOCK))
            os.fdatasync(descriptor)
            times.append((time.perf_counter() - begin) * 1e6)
    finally:
        os.close(descriptor)
        path.unlink()
    return times


def measure_raw_write(directory: Path, count: int = BURST_MIB) -> float:
    """Return the MiB a second that `dd oflag=dsync bs=1M` writes to a new file of this disk.

    Raises: RuntimeError when dd fails.
    """
    path = directory / "raw-write.tmp"
    command = ["dd", "if=/dev/zero", f"of={path}", "bs=1M", f"count={count}", "oflag=dsync"]
    begin = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    taken = time.perf_counter() - begin
    path.unlink(missing_ok=True)
    if done.returncode != 0:
        raise RuntimeError(f"dd failed: {done.stderr.strip()}")
    return count / taken


def facts(work: Path) -> dict[str, str | int | float]:
    """Return the machine facts that go with every result."""
    return {
        "cpu": _after_colon(Path("/proc/cpuinfo"), "model name"),
        "processors": os.cpu_count() or 0,
        "memory": _after_colon(Path("/proc/meminfo"), "MemTotal"),
        "kernel": platform.release(),
        "work_directory": str(work),
        "file_system": _output("stat", "-f", "-c", "%T", str(work)),
        "load_average": os.getloadavg()[0],
        "python": platform.python_version(),
        "go": _output("go", "version"),
        "java": _output("java", "-version"),
        "revision": _output(
            "git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"
        ),
    }


def tidegate_version() -> str:
    """Return the version of the gateway beside this interpreter, empty when there is none."""
    try:
        return importlib.metadata.version("tidegate")
    except importlib.metadata.PackageNotFoundError:
        return ""


def _after_colon(path: Path, key: str) -> str:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")


def _output(*command: str) -> str:
    """Return the first line that a command prints, empty when it is missing or fails."""
    if shutil.which(command[0]) is None:
        return ""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    text = (done.stdout or done.stderr).strip()
    return text.splitlines()[0] if text and done.returncode == 0 else ""
