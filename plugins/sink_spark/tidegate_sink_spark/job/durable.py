"""Makes commits of a local Delta table survive a power cut.

Spark writes a local table through Hadoop's file system, which renames but never syncs. The sink
lets the store forget messages because the table has them, so the table must have them on disk:
every file that a commit added, the commit file, their checksum files (a missing or torn ``.crc``
makes Hadoop refuse the file it belongs to) and the directories they are in are synced before the
mark is reported. On an object store none of this is needed: what it accepted is durable.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import unquote

LOG_DIRECTORY: Final = "_delta_log"


def sync_commits(table: Path, first: int, last: int) -> int:
    """Sync everything that versions *first* to *last* of *table* consist of; how many files.

    A commit file that is gone was cleaned up by Delta after a checkpoint, long after it was made.
    Raises: OSError.
    """
    log = table / LOG_DIRECTORY
    directories = {table, log}
    files: set[Path] = set()
    for version in range(first, last + 1):
        commit = log / f"{version:020}.json"
        try:
            text = commit.read_text()
        except FileNotFoundError:
            continue
        for added in _added(text):
            path = table / added
            files.add(path)
            directories.add(path.parent)
        files.update(log.glob(f"{version:020}.*"))
    files.add(log / "_last_checkpoint")
    synced = sum(_sync(path) + _sync(path.parent / f".{path.name}.crc") for path in files)
    for directory in directories:
        _sync(directory)
    return synced


def _added(commit: str) -> Iterator[str]:
    """Paths of the data files that a commit added, relative to the table."""
    for line in commit.splitlines():
        action = cast("dict[str, Any]", json.loads(line))
        if "add" in action:
            yield unquote(str(action["add"]["path"]))  # Delta writes paths as URIs


def _sync(path: Path) -> int:
    """Sync one file or directory; 0 when it does not exist."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return 0
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    return 1
