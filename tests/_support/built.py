"""Clients in other languages are built once below ``build/``, by whichever worker of the tests is first."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def building(directory: Path) -> Iterator[None]:
    """Make *directory*; nobody else builds in it meanwhile."""
    directory.mkdir(parents=True, exist_ok=True)
    with directory.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def put(source: Path, target: Path) -> Path:
    """Copy *source*; who reads or runs *target* now has the old one whole. Returns: *target*."""
    made = target.with_name(f"{os.getpid()}.{target.name}")
    shutil.copy(source, made)
    return made.replace(target)
