"""What has to be known of the machine to read a figure: its parts, and what one disk sync costs."""

import importlib.metadata
import os
import platform
import shutil
import subprocess
import time
from pathlib import Path
from typing import Final

from benchkit.report import RawSync, percentile

_BLOCK: Final = b"t" * 4096
_SYNC_FILE_BLOCKS: Final = 256
#: MiB of a short write: about what the caches of a disk and its host take.
BURST_MIB: Final = 64


def measure_raw_sync(directory: Path, count: int = 500) -> RawSync:
    """Measure the least that any broker needs to put one message on this disk.

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
    return RawSync(percentile(times, 0.5), percentile(times, 0.99))


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
