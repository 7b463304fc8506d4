"""What the machine is, as far as a gateway is concerned. Nothing here judges, and nothing is changed.

What cannot be known (another system, a container that hides it) is None.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import re
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: Number of timed syncs, and bytes of each.
_SYNCS: Final = 16
_SYNC_BYTES: Final = 4096

#: What adjtimex(2) returns when nobody sets the clock, and room for what it writes.
_TIME_ERROR: Final = 5
_TIMEX_BYTES: Final = 512


@dataclass(frozen=True, slots=True)
class Disk:
    """Where the gateway writes.

    Attributes:
        path: the directory, or the first one above it that is there.
        is_there, is_writable: the directory itself is; by this user.
        file_system: its type, ``ext4``; free_bytes; free_inodes: None: it has as many as it likes.
        sync_s: how long a small write takes to be on the disk (median).
    """

    path: Path
    is_there: bool
    is_writable: bool
    file_system: str | None
    free_bytes: int
    free_inodes: int | None
    sync_s: float | None


@dataclass(frozen=True, slots=True)
class Machine:
    """See the module.

    Attributes:
        system, kernel: ``Linux``, ``6.1.0``; python: its version.
        is_root: the command runs as root.
        processors: that this process may use, parts of one counted; memory_bytes: that it may.
        descriptors_soft, descriptors_hard: None: unlimited.
        backlog_max: connections that may wait to be accepted (net.core.somaxconn).
        clock_is_set: something keeps it right; now: seconds since the epoch.
        has_uvloop: the quick event loop is installed.
    """

    system: str
    kernel: str
    python: tuple[int, int, int]
    is_root: bool
    processors: float
    memory_bytes: int | None
    descriptors_soft: int | None
    descriptors_hard: int | None
    backlog_max: int | None
    clock_is_set: bool | None
    now: float
    has_uvloop: bool


def this_machine() -> Machine:
    """The one that this runs on."""
    from importlib.util import find_spec

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Machine(
        platform.system(),
        platform.release(),
        sys.version_info[:3],
        os.geteuid() == 0,
        _processors(),
        _memory(),
        None if soft == resource.RLIM_INFINITY else soft,
        None if hard == resource.RLIM_INFINITY else hard,
        _number(Path("/proc/sys/net/core/somaxconn")),
        _clock_is_set(),
        time.time(),
        find_spec("uvloop") is not None,
    )


def disk_of(directory: Path) -> Disk:
    """Where *directory* is, or would be. A small file is written there, synced and removed."""
    path = directory
    while not path.is_dir() and path != path.parent:
        path = path.parent
    is_writable = os.access(path, os.W_OK | os.X_OK)
    found = os.statvfs(path)
    return Disk(
        path,
        path == directory,
        is_writable,
        file_system_of(path, _mounts()),
        shutil.disk_usage(path).free,
        found.f_favail if found.f_files else None,
        _sync_seconds(path) if is_writable and path == directory else None,
    )


def file_system_of(path: Path, mounts: Sequence[str]) -> str | None:
    """The type of the file system that *path* is on. Args: mounts: lines of /proc/self/mountinfo."""
    best: tuple[int, str | None] = (-1, None)
    real = str(path.resolve())
    for line in mounts:
        fields, _, behind = line.partition(" - ")
        parts = fields.split()
        if len(parts) < 5 or not behind:
            continue
        place = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), parts[4])
        is_above = real == place or real.startswith(place.rstrip("/") + "/")
        if (
            is_above and len(place) >= best[0]
        ):  # the later of two mounts at one place hides the other
            best = (len(place), behind.split()[0])
    return best[1]


def _mounts() -> list[str]:
    with suppress(OSError):
        return Path("/proc/self/mountinfo").read_text().splitlines()
    return []


def _sync_seconds(directory: Path) -> float | None:
    """How long a write takes until it is on the disk."""
    took: list[float] = []
    try:
        with tempfile.NamedTemporaryFile(dir=directory, prefix=".tidegate-doctor-") as file:
            for _ in range(_SYNCS):
                os.pwrite(file.fileno(), os.urandom(_SYNC_BYTES), 0)
                begun = time.perf_counter()
                os.fsync(file.fileno())
                took.append(time.perf_counter() - begun)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EINVAL):
            raise
        return None
    return statistics.median(took)


def _processors() -> float:
    try:
        count = float(len(os.sched_getaffinity(0)))
    except (AttributeError, OSError):
        count = float(os.cpu_count() or 1)
    with suppress(OSError, ValueError):
        quota, _, period = Path("/sys/fs/cgroup/cpu.max").read_text().partition(" ")
        count = min(count, int(quota) / int(period))
    return count


def _memory() -> int | None:
    found: list[int] = []
    with suppress(ValueError, OSError):
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    limit = _number(Path("/sys/fs/cgroup/memory.max"))
    return min([*found, limit] if limit is not None else found, default=None)


def _number(path: Path) -> int | None:
    """What is in a file of the kernel's; None: no file, or no number."""
    with suppress(OSError, ValueError):
        return int(path.read_text())
    return None


def _clock_is_set() -> bool | None:
    """Whether the kernel knows of something that keeps the clock right."""
    try:
        ask = ctypes.CDLL(None).adjtimex
    except (OSError, AttributeError):
        return None
    state = ask(ctypes.create_string_buffer(_TIMEX_BYTES))  # its mode is 0: it only queries
    return None if state < 0 else state != _TIME_ERROR
