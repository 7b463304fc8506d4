"""Clients in other languages are built once below ``build/``, by whichever worker of the tests is first."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
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


def node_client(source: Path, directory: Path, package: str) -> Path:
    """``client.mjs`` of *source* in *directory*, beside what its ``package.json`` wants.

    The packages are installed when *package*, the client under test, is not there, or when
    ``package.json`` has changed. Returns: the copy of ``client.mjs``.
    """
    with building(directory):
        wanted = (source / "package.json").read_text()
        installed = directory / "package.json"
        is_there = (directory / "node_modules" / package).is_dir()
        if not is_there or not installed.is_file() or installed.read_text() != wanted:
            installed.write_text(wanted)
            command = "npm install --no-package-lock --no-audit --no-fund --ignore-scripts"
            done = subprocess.run(
                command.split(),
                cwd=directory,
                capture_output=True,
                text=True,
                check=False,
                timeout=240,
            )
            if done.returncode != 0:
                installed.unlink()
            assert done.returncode == 0, f"npm install failed:\n{done.stderr}"
        return put(source / "client.mjs", directory / "client.mjs")
