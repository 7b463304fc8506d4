"""What the processes of a sink's job use. One that has ended uses nothing."""

import contextlib
from collections.abc import Iterable

import psutil


def family(pid: int) -> list[psutil.Process]:
    """A process, and behind it all that it started."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def cpu_seconds(processes: Iterable[psutil.Process]) -> float:
    """User and system time so far."""
    total = 0.0
    for each in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = each.cpu_times()
            total += times.user + times.system
    return total


def resident_bytes(processes: Iterable[psutil.Process]) -> int:
    """Resident memory now."""
    total = 0
    for each in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            total += each.memory_info().rss
    return total
