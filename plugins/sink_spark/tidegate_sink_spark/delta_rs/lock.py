"""The table's lock, the same that the Spark job's Java process takes (``fcntl``, whole file).

Such a lock belongs to a process, and closing *any* descriptor of the file gives it up. So the threads of a
process share one descriptor per file: the first takes the lock, the last gives it back.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidegate_sink_spark.job.driver import CommitError
from tidegate_sink_spark.job.files import lock_path, wait_for_lock


@dataclass(slots=True)
class _Held:
    fd: int
    users: int


_held: Final[dict[Path, _Held]] = {}
_guard: Final = threading.Lock()


@contextmanager
def table_lock(directory: Path) -> Generator[None]:
    """Keep other processes from committing to the table in *directory*.

    Raises: CommitError when another one has held it for LOCK_TIMEOUT, or it cannot be made.
    """
    path = lock_path(directory)
    wait_for_lock(lambda: _take(path), path)
    try:
        yield
    finally:
        _give_back(path)


def _take(path: Path) -> bool:
    with _guard:
        held = _held.get(path)
        if held is not None:
            held.users += 1
            return True
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as exc:
            raise CommitError(f"the table's lock cannot be taken: {exc}") from exc
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            os.close(fd)
            if isinstance(exc, BlockingIOError | PermissionError):  # another process has it
                return False
            raise CommitError(f"the table's lock cannot be taken: {exc}") from exc
        _held[path] = _Held(fd, 1)
        return True


def _give_back(path: Path) -> None:
    with _guard:
        held = _held[path]
        held.users -= 1
        if not held.users:
            del _held[path]
            os.close(held.fd)
