"""Makes commits of a local table survive a power cut.

Spark writes a local table through Hadoop's file system, which renames but never syncs. The sink
lets the store forget messages because the table has them, so the table must have them on disk:
every file that a commit added, the commit file, their checksum files (a missing or torn ``.crc``
makes Hadoop refuse the file it belongs to) and the directories they are in are synced before the
mark is reported. On an object store none of this is needed: what it accepted is durable.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import unquote

from tidegate_sink_spark.job.driver import CommitError

LOG_DIRECTORY: Final = "_delta_log"


class SyncedCommits:
    """How far the commits of a local Delta table are on stable storage."""

    def __init__(self, table: Path) -> None:
        self._table = table
        self._synced = -1

    def reach(self, version: int) -> None:
        """Sync everything up to *version* that was not yet. Raises: CommitError."""
        if version <= self._synced:
            return
        # At first: the one commit that a job killed before this line may have left, and
        # a few more for maintenance jobs; afterwards: everything since the last time.
        first = self._synced + 1 if self._synced >= 0 else max(0, version - 3)
        try:
            self._check(first, version)
            sync_commits(self._table, first, version)
        except (OSError, ValueError) as exc:
            raise CommitError(f"the table's files cannot be synced: {exc}") from exc
        self._synced = version

    def _check(self, first: int, last: int) -> None:
        """Check that what these commits added is there. Raises: CommitError, OSError, ValueError."""
        added: dict[str, None] = {}
        for version in range(first, last + 1):
            text = _commit_text(self._table, version)
            added.update(dict.fromkeys(_paths(text, "add")))
            for removed in _paths(text, "remove"):
                added.pop(removed, None)
        for path in added:
            if ":" not in path and not (self._table / path).exists():  # a clone's are URIs
                raise CommitError(
                    f"the table has committed {path}, which is not in {self._table} here: the workers of a "
                    "cluster must have that directory under the same path"
                )


def sync_commits(table: Path, first: int, last: int) -> int:
    """Sync everything that versions *first* to *last* of *table* consist of; returns how many files.

    A commit file that is gone was cleaned up by Delta after a checkpoint, long after it was made.
    Raises: OSError.
    """
    log = table / LOG_DIRECTORY
    directories = {table, log}
    files: set[Path] = set()
    for version in range(first, last + 1):
        text = _commit_text(table, version)
        if not text:
            continue
        for added in _paths(text, "add"):
            path = table / added
            files.add(path)
        files.update(log.glob(f"{version:020}.*"))
    directories |= directories_above(files, table)
    files.add(log / "_last_checkpoint")
    return sync_files(files, directories)


def directories_above(files: Iterable[Path], table: Path | None) -> set[Path]:
    """The directories from *files* up to that of their *table*: a commit may have made any of them."""
    if table is None:
        return set()
    found: set[Path] = set()
    for directory in {path.parent for path in files}:
        while directory.is_relative_to(table) and directory not in found:
            found.add(directory)
            directory = directory.parent
    return found


def sync_files(files: Iterable[Path], directories: Iterable[Path] = ()) -> int:
    """Sync *files* with their checksum files, their directories and *directories*; returns how many files.

    What does not exist is left out. Raises: OSError.
    """
    all_files = set(files)
    synced = sum(_sync(path) + _sync(path.parent / f".{path.name}.crc") for path in all_files)
    for directory in {*directories, *(path.parent for path in all_files)}:
        _sync(directory)
    return synced


def _commit_text(table: Path, version: int) -> str:
    """The actions of a commit, "" when Delta has cleaned it up. Raises: OSError."""
    try:
        return (table / LOG_DIRECTORY / f"{version:020}.json").read_text()
    except FileNotFoundError:
        return ""


def _paths(commit: str, action: str) -> Iterator[str]:
    """Paths of the data files that a commit added or removed, relative to the table."""
    for line in commit.split("\n"):  # not splitlines: values may hold a raw U+2028
        found = cast("dict[str, Any]", json.loads(line)) if line else {}
        if action in found:
            yield unquote(str(found[action]["path"]))  # Delta writes paths as URIs


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
