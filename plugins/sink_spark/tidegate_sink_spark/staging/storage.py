"""The staging directory on disk: seal, recover, discard. Blocking; called in the staging thread.

Crash story of :meth:`StagingDirectory.seal`:

1. rows go to ``.name.tmp``, which nobody reads; a crash leaves it, and recovery removes it;
2. the file is synced, so that after step 3 the name never shows half a file;
3. it is renamed to its name; a crash here leaves the file with or without its name, both fine;
4. the directory is synced, so that the name survives a power cut.

Nothing depends on step 4 for safety, because the store keeps its rows until the *table* has them:
a lost staged file is staged again.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidegate.spi.private_files import inherited_umask, make_private_directory
from tidegate_sink_spark.staging import arrow
from tidegate_sink_spark.staging.files import (
    StagedFile,
    dead_name,
    is_temporary,
    list_staged,
    parse_dead_name,
    reach,
    staged_name,
    temporary_name,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Amount:
    """How much is staged. Attributes: files; rows (dead letters included); size_bytes (of the files)."""

    files: int = 0
    rows: int = 0
    size_bytes: int = 0

    def plus(self, file: StagedFile) -> Amount:
        """With *file* added."""
        return Amount(
            self.files + 1, self.rows + file.rows + file.dead, self.size_bytes + file.size_bytes
        )


@dataclass(frozen=True, slots=True)
class Waiting:
    """What is not in the table yet.

    Attributes:
        oldest: when its oldest row was acknowledged, in the loop's time; None: nothing waits.
        files: its staged files. rows, size_bytes: staged or about to be.
    """

    oldest: float | None = None
    files: int = 0
    rows: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Recovered:
    """What was found. Attributes: position (staged up to here), amount (staged there)."""

    position: int
    amount: Amount


class StagingDirectory:
    """Immutable Parquet files of one log, named by their range."""

    def __init__(
        self,
        directory: Path,
        *,
        is_shared: bool = False,
        write_parquet: arrow.ParquetWriter = arrow.write_parquet,
        further: Sequence[Any] = (),
    ) -> None:
        """Args:
        is_shared: others may read it, as the operator's umask permits.
        further: columns (``pyarrow.Field``) of the files after those that all have.
        """
        self.directory = directory
        self._is_shared = is_shared
        self._write_parquet = write_parquet
        self._further = tuple(further)

    def recover(self, floor: int) -> Recovered:
        """Bring the directory to a state that continues *floor* (the store released up to there).

        Removes what a crash left half written, what the floor has passed, what does not hold what
        its name says, and what comes after a missing range. The store's log still has all of that,
        so it is staged again. Raises: OSError.
        """
        make_staging_directory(self.directory, is_shared=self._is_shared)
        for entry in list(self.directory.iterdir()):
            if is_temporary(entry.name):
                entry.unlink()
                log.info("staging removed=%s reason=half-written", entry.name)
        kept: list[StagedFile] = []
        companions: set[str] = set()
        position = floor
        for file in list_staged(self.directory):
            reason = self._reason_to_remove(file, floor, position)
            if reason:
                file.path.unlink(missing_ok=True)
                log.info("staging removed=%s reason=%s", file.path.name, reason)
                continue
            kept.append(file)
            companions.add(file.dead_path.name)
            position = reach((file,), position)
        self._remove_dead(lambda name: name not in companions)
        return Recovered(position, functools.reduce(Amount.plus, kept, Amount()))

    def _reason_to_remove(self, file: StagedFile, floor: int, position: int) -> str:
        if file.hi <= floor:
            return "released"
        if file.lo > position + 1:
            return "behind-a-missing-range"
        problem = arrow.check_staged(file)
        if problem:
            return problem
        # Staged before a configuration change: the table would get other columns, or other types.
        paths = [file.path] if file.rows else []
        paths += [file.dead_path] if file.dead else []
        is_same = all(arrow.has_columns(path, self._further) for path in paths)
        return "" if is_same else "other-columns"

    def _remove_dead(self, is_unneeded: Callable[[str], bool]) -> None:
        for entry in list(self.directory.iterdir()):
            if parse_dead_name(entry.name) is not None and is_unneeded(entry.name):
                entry.unlink(missing_ok=True)

    def seal(
        self, lo: int, hi: int, batches: Sequence[Any], dead: Sequence[Any] = ()
    ) -> StagedFile:
        """Write *batches* as the file for *lo* to *hi*, and *dead* as its companion before it.

        Raises: OSError; then nothing is left, or a companion that the next attempt replaces.
        """
        rows = sum(batch.num_rows for batch in batches)
        letters = sum(batch.num_rows for batch in dead)
        if letters:
            self._write(dead_name(lo, hi, letters), dead)
        name = staged_name(lo, hi, rows, letters)
        return StagedFile(lo, hi, self.directory / name, self._write(name, batches), rows, letters)

    def _write(self, name: str, batches: Sequence[Any]) -> int:
        """Write one file durably; returns its bytes. Raises: OSError."""
        path = self.directory / name
        temporary = self.directory / temporary_name(name)
        try:
            self._write_parquet(temporary, batches)
            size_bytes = temporary.stat().st_size
            umask = inherited_umask() if self._is_shared else None
            if umask is not None:
                temporary.chmod(0o666 & ~umask)
            os.rename(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_directory(self.directory)
        return size_bytes

    def discard_through(self, mark: int) -> Amount:
        """Delete files that the table's *mark* has passed; returns how much stays. Raises: OSError."""
        amount = Amount()
        for file in list_staged(self.directory):
            if file.hi <= mark:
                file.path.unlink(missing_ok=True)
            else:
                amount = amount.plus(file)
        self._remove_dead(lambda name: _end_of(name) <= mark)
        return amount

    def times(self) -> list[tuple[StagedFile, float]]:
        """Staged files, and their writing times. Raises: OSError."""
        return [(file, file.path.stat().st_mtime) for file in list_staged(self.directory)]


def _end_of(dead: str) -> int:
    bounds = parse_dead_name(dead)
    assert bounds is not None
    return bounds[1]


def make_staging_directory(directory: Path, *, is_shared: bool) -> None:
    """Make *directory*: private, or as the operator's umask permits. Raises: OSError."""
    if not is_shared:
        make_private_directory(directory)
        return
    umask = inherited_umask()
    missing = [path for path in (directory, *directory.parents) if not path.is_dir()]
    directory.mkdir(parents=True, exist_ok=True)
    if umask is not None:
        for path in missing:
            path.chmod(0o777 & ~umask)


def sync_directory(directory: Path) -> None:
    """Make the names in *directory* survive a power cut. Raises: OSError."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def disk_problem(exc: OSError) -> str:
    """*exc* in words, with what to do."""
    if exc.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"no room left for staged files ({exc}); the store keeps the log; free some space"
    return f"staged files cannot be written ({exc}); the store keeps the log"


def warn_of_other_logs(directory: Path) -> None:
    """Warn of files staged from a store that is gone: rows that nothing carries on.

    The store was replaced before the table had all of its log. The files are left for
    the operator, who alone knows whether that was meant.
    """
    for other in sorted(directory.parent.iterdir()):
        files = list_staged(other) if other != directory and other.is_dir() else []
        if files:
            log.warning(
                "staging directory=%s files=%d: they come from another store and are not carried "
                "into the table; append or delete them by hand",
                other,
                len(files),
            )
