"""A table on a local file system: its directory, and the lock that one writer at a time holds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from tidegate_sink_spark.job.driver import CommitError

LOCK_TIMEOUT: Final = 60.0
#: Seconds between two counts of a table's files.
COUNT_INTERVAL: Final = 10.0
_LOCK_POLL_MIN: Final = 0.005
_LOCK_POLL_MAX: Final = 0.05


def local_path(table: str) -> Path | None:
    """The directory of a table on a local file system; None for an object store's URI."""
    parts = urlsplit(table)
    if "://" not in table and not table.startswith("file:"):
        return Path(table)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


class FileCount:
    """Counts a table's files now and then: after each commit it would cost more than the commit."""

    def __init__(
        self, count: Callable[[], int], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._count = count
        self._clock = clock
        self._known: int | None = None
        self._again_at = float("-inf")

    def __call__(self) -> int | None:
        """How many there were, ``COUNT_INTERVAL`` or less ago."""
        if self._clock() >= self._again_at:
            self._known = self._count()
            self._again_at = self._clock() + COUNT_INTERVAL
        return self._known


def lock_path(directory: Path) -> Path:
    """The lock file: beside the table, since CREATE TABLE wants its directory empty."""
    return directory.parent / f".{directory.name}.tidegate-lock"


@dataclass(slots=True)
class _Held:
    give_back: Callable[[], object]
    users: int


class ProcessLocks:
    """Locks (``fcntl``, whole file) of one process, shared by threads.

    Such a lock belongs to a process, and closing *any* descriptor of the file releases it. So the first thread
    takes it, and the last releases it.
    """

    def __init__(self) -> None:
        self._held: dict[Path, _Held] = {}
        self._guard = threading.Lock()

    @contextmanager
    def hold(
        self, path: Path, take: Callable[[Path], Callable[[], object] | None]
    ) -> Generator[None]:
        """Keep other processes out of what the lock at *path* protects.

        Args: take: tries to get it; returns what releases it, None when another process has it.
        Raises: CommitError after LOCK_TIMEOUT; what *take* raises.
        """
        wait_for_lock(lambda: self._take(path, take), path)
        try:
            yield
        finally:
            self._give_back(path)

    def _take(self, path: Path, take: Callable[[Path], Callable[[], object] | None]) -> bool:
        with self._guard:
            held = self._held.get(path)
            if held is not None:
                held.users += 1
                return True
            give_back = take(path)
            if give_back is not None:
                self._held[path] = _Held(give_back, 1)
            return give_back is not None

    def _give_back(self, path: Path) -> None:
        with self._guard:
            held = self._held[path]
            held.users -= 1
            if not held.users:
                del self._held[path]
                held.give_back()


_of_java: Final = ProcessLocks()


@contextmanager
def java_lock(jvm: Any, directory: Path) -> Generator[None]:
    """Hold the lock of the table in *directory* in the Java process, whose end releases it.

    Raises: CommitError after LOCK_TIMEOUT; Py4JError.
    """

    def take(path: Path) -> Callable[[], object] | None:
        file = jvm.java.io.RandomAccessFile(str(path), "rw")
        taken = False
        try:
            taken = file.getChannel().tryLock() is not None
        finally:
            if not taken:
                file.close()
        return file.close if taken else None

    with _of_java.hold(lock_path(directory), take):
        yield


def wait_for_lock(take: Callable[[], bool], path: Path) -> None:
    """Try *take*, which tells whether it got the lock at *path*, again and again.

    Raises: CommitError after LOCK_TIMEOUT.
    """
    give_up_at = time.monotonic() + LOCK_TIMEOUT
    pause = _LOCK_POLL_MIN
    while not take():
        if time.monotonic() > give_up_at:
            raise CommitError(
                f"another job has held {path} for {LOCK_TIMEOUT:.0f} s; end it, or name another table"
            )
        time.sleep(pause)
        pause = min(pause * 2, _LOCK_POLL_MAX)
