"""What the processes of a sink's job use, and what they find there. One that has ended uses nothing."""

import asyncio
import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

import psutil

from tidegate_sink_spark._options import SparkSinkOptions
from tidegate_sink_spark.java import archive, jars, runtime


def make_archive(work: Path) -> None:
    """Fetch Delta's jars and make Java's archive, as a sink does that has run for some minutes."""
    options = SparkSinkOptions()
    java = runtime.find_java("", work / "java", os.environ)
    environment = runtime.job_environment(java, os.environ)
    jars.jars_of(options, environment)
    path = archive.archive_path(options, java, environment)
    if path is not None and not path.is_file():
        asyncio.run(archive.make_archive(path, environment))


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
