"""The table's lock, the same that the Spark job's Java process takes (``fcntl``, whole file)."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from tidegate_sink_spark.job.driver import CommitError
from tidegate_sink_spark.job.files import ProcessLocks, lock_path

_locks: Final = ProcessLocks()


@contextmanager
def table_lock(directory: Path) -> Generator[None]:
    """Keep other processes from committing to the table in *directory*.

    Raises: CommitError when another one has held it for LOCK_TIMEOUT, or it cannot be made.
    """
    with _locks.hold(lock_path(directory), _take):
        yield


def _take(path: Path) -> Callable[[], object] | None:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as exc:
        raise CommitError(f"the table's lock cannot be taken: {exc}") from exc
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as exc:
        os.close(fd)
        if isinstance(exc, BlockingIOError | PermissionError):  # another process has it
            return None
        raise CommitError(f"the table's lock cannot be taken: {exc}") from exc
    return partial(os.close, fd)
