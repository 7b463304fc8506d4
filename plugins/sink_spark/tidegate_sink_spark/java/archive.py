"""The archive of Spark's classes, with which Java starts it in half the time.

Much of Spark's start is Java reading, checking and laying out some 15,000 classes. Java can write what it made of
them to a file, and map that file at later starts (application class-data sharing, JEP 350). The file is made
once for a Java and a Spark, by a short Spark of its own, when a job has run for a minute and memory is free: no start and
no end waits for it. Java ignores a file that does not fit its options, or whose checksum is wrong, and starts as without.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import logging
import os
import shlex
import shutil
import sys
import tempfile
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from tidegate.spi.machine.children import NICENESS_MAX, follow_lines, kill_group, start_child
from tidegate_sink_spark._options import SparkSinkOptions
from tidegate_sink_spark._process import TAIL_LINES, last_words
from tidegate_sink_spark.java import jars
from tidegate_sink_spark.java.runtime import JavaRuntime, spark_home
from tidegate_sink_spark.job.session import DRIVER_FLAGS

log = logging.getLogger(__name__)

#: Java's own archive, on which ours is built. Packages of a JDK bring it; some reduced runtimes do not.
_BASE: Final = Path("lib", "server", "classes.jsa")
_TRAINING: Final = (sys.executable, "-P", "-m", "tidegate_sink_spark.java.training")
_TIMEOUT: Final = 600.0
#: A job that runs this long is no trial, and its first commits are over.
_DELAY: Final = 60.0
#: More than the Spark that makes it takes (0.5 GiB): nobody is to be killed for memory because of it.
_MEMORY_BYTES: Final = 1 << 30
_MEMINFO: Final = Path("/proc/meminfo")
_CONTAINER: Final = Path("/sys/fs/cgroup")
_LOCK: Final = ".archive.lock"
_UNFINISHED: Final = ".archive-"
_NAME: Final = "spark-classes-"
#: An archive that no Spark has used for so long is removed when another one is made.
_KEPT_S: Final = 30 * 86_400.0


def archive_path(
    options: SparkSinkOptions, java: JavaRuntime, environ: Mapping[str, str]
) -> Path | None:
    """Where the archive of *java* and the installed Spark is kept: beside the jars that are fetched.

    The name is of what Java compares (its own build, the jars' times and sizes), so an update asks for another file.

    Returns: None where nothing is fetched and kept, or Java can have no archive.
    """
    if not jars.is_kept(options):
        return None
    directory = jars.cache_directory(options.jars_cache, environ)
    if not (java.home / _BASE).is_file() or ":" in str(directory):  # which Java takes for two files
        return None
    spark = spark_home()
    files = [java.home / "lib" / "modules", *sorted((spark / "jars").glob("*.jar"))]
    try:
        states = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    except OSError:
        return None
    digest = hashlib.sha256(repr(states).encode()).hexdigest()[:16]
    return directory / f"{_NAME}java{java.version}-{digest}.jsa"


def settings_of(archive: Path | None) -> dict[str, str]:
    """Spark's settings that make its driver use *archive*; none when it is None or not there."""
    if archive is None or not archive.is_file():
        return {}
    with suppress(OSError):
        os.utime(archive)  # it is in use
    flags = (
        f"-XX:SharedArchiveFile={archive}",
        "-XX:+VerifySharedSpaces",  # a flipped bit must not become a crash
        "-Xlog:cds*=off",  # why it was not used, on standard output
    )
    return {DRIVER_FLAGS: shlex.join(flags)}


async def make_later(
    archive: Path, environment: Mapping[str, str], *, delay: float = _DELAY
) -> None:
    """:func:`make_archive` after *delay* seconds, with the lowest priority, if there is memory for it."""
    await asyncio.sleep(delay)
    left = await asyncio.to_thread(memory_left)
    if left < _MEMORY_BYTES:
        log.info("spark archive=%s is not made: only %d MiB of memory left", archive, left >> 20)
    else:
        await make_archive(archive, environment)


def memory_left() -> int:
    """Bytes of memory that programs may still take, of the machine or of our container; 0: unknown."""
    left: list[int] = []
    with suppress(OSError, ValueError):
        lines = _MEMINFO.read_text().splitlines()
        left.append(_field(lines, "MemAvailable:") << 10)
        limit = (_CONTAINER / "memory.max").read_text().strip()
        if limit != "max":
            used = _field((_CONTAINER / "memory.stat").read_text().splitlines(), "anon")
            left.append(int(limit) - used)
    return max(0, min(left, default=0))


def _field(lines: list[str], name: str) -> int:
    """The number behind *name*. Raises: ValueError."""
    for line in lines:
        if line.split()[:1] == [name]:
            return int(line.split()[1])
    raise ValueError(name)


async def make_archive(archive: Path, environment: Mapping[str, str]) -> None:
    """Make *archive*: some 25 s of CPU. Never raises OSError; why it could not be made is logged.

    It does nothing while another process makes one in that directory.

    Args: environment: of the job.
    Cancellation: safe; the Spark ends, and no part of the file stays.
    """
    try:
        lock = os.open(archive.with_name(_LOCK), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        log.info("spark archive=%s cannot be made: %s", archive, exc)
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        await _make(archive, environment)
    except BlockingIOError:
        log.info("spark archive=%s is being made by another process", archive)
    except (OSError, TimeoutError) as exc:
        log.warning(
            "spark archive=%s could not be made: %s; Spark starts without it, in twice the time",
            archive,
            str(exc) or f"nothing after {_TIMEOUT:g} s",
        )
    finally:
        os.close(lock)


async def _make(archive: Path, environment: Mapping[str, str]) -> None:
    """With the lock. Raises: OSError, TimeoutError."""
    began = time.monotonic()
    log.info("spark archive=%s is being made, once: later starts take half the time", archive)
    await asyncio.to_thread(_remove_unused, archive.parent)
    directory = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=archive.parent))
    try:
        made = directory / archive.name
        async with asyncio.timeout(_TIMEOUT):
            why = await _run(directory, made, environment)
        try:
            size = await asyncio.to_thread(_publish, made, archive)
        except FileNotFoundError as exc:
            raise OSError(why) from exc
    finally:
        await asyncio.shield(asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True))
    log.info("spark archive made in %.1f s, %d MiB", time.monotonic() - began, size >> 20)


async def _run(directory: Path, made: Path, environment: Mapping[str, str]) -> str:
    """Run the Spark that makes it; returns how it ended. Raises: OSError."""
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    process = await start_child(
        [*_TRAINING, str(made)], environment=environment, directory=directory, niceness=NICENESS_MAX
    )
    try:
        await follow_lines(process.stderr, tail.append)
        code = await process.wait()
    finally:
        kill_group(process)
        await process.wait()
    return last_words("\n".join(tail), code, "archiving")


def _remove_unused(directory: Path) -> None:
    """What a killed process left, and archives of a Java or a Spark that is used no more. Raises: OSError."""
    for left in directory.glob(f"{_UNFINISHED}*"):
        shutil.rmtree(left, ignore_errors=True)
    for path in directory.glob(f"{_NAME}*.jsa"):
        if path.stat().st_mtime < time.time() - _KEPT_S:
            path.unlink(missing_ok=True)


def _publish(made: Path, archive: Path) -> int:
    """Returns: its size in bytes. Raises: OSError."""
    descriptor = os.open(made, os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        os.fsync(descriptor)  # no power cut may leave the name with nothing behind it
    finally:
        os.close(descriptor)
    os.replace(made, archive)
    return size
