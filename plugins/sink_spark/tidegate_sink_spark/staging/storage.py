"""The staging directory on disk: seal, recover, discard. Blocking; called in the staging thread.

Crash story of :meth:`StagingDirectory.seal`:

1. rows go to ``.name.tmp``, which nobody reads; a crash leaves it, and recovery removes it;
2. the file is synced, so that after step 3 the name never shows half a file;
3. it is renamed to its name; a crash here leaves the file with or without its name, both fine;
4. the directory is synced, so that the name survives a power cut.

Nothing depends on step 4 for safety, because the store keeps its rows until the *table* has them:
a staged file that is lost is staged again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidegate.spi.private_files import make_private_directory
from tidegate_sink_spark.staging import arrow
from tidegate_sink_spark.staging.files import (
    StagedFile,
    is_temporary,
    list_staged,
    reach,
    staged_name,
    temporary_name,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Recovered:
    """What was found. Attributes: position (staged up to here), files, size_bytes (of the files)."""

    position: int
    files: int
    size_bytes: int


class StagingDirectory:
    """Immutable Parquet files of one log, named by their range."""

    def __init__(
        self, directory: Path, *, write_parquet: arrow.ParquetWriter = arrow.write_parquet
    ) -> None:
        self.directory = directory
        self._write_parquet = write_parquet

    def recover(self, floor: int) -> Recovered:
        """Bring the directory to a state that continues *floor* (the store released up to there).

        Removes what a crash left half written, what the floor has passed, what does not hold what
        its name says, and what lies behind a missing range. All of that is still in the store's
        log, which therefore stages it again. Raises: OSError.
        """
        make_private_directory(self.directory)
        for entry in list(self.directory.iterdir()):
            if is_temporary(entry.name):
                entry.unlink()
                log.info("staging removed=%s reason=half-written", entry.name)
        kept: list[StagedFile] = []
        position = floor
        for file in list_staged(self.directory):
            reason = self._reason_to_remove(file, floor, position)
            if reason:
                file.path.unlink(missing_ok=True)
                log.info("staging removed=%s reason=%s", file.path.name, reason)
                continue
            kept.append(file)
            position = reach((file,), position)
        return Recovered(position, len(kept), sum(file.size_bytes for file in kept))

    def _reason_to_remove(self, file: StagedFile, floor: int, position: int) -> str:
        if file.hi <= floor:
            return "released"
        if file.lo > position + 1:
            return "behind-a-missing-range"
        return arrow.check_file(file.path, file.lo, file.hi)

    def seal(self, lo: int, hi: int, batches: Sequence[Any]) -> StagedFile:
        """Write *batches* as the file for *lo* to *hi*. Raises: OSError; then nothing is left."""
        name = staged_name(lo, hi)
        path = self.directory / name
        temporary = self.directory / temporary_name(name)
        try:
            self._write_parquet(temporary, batches)
            size_bytes = temporary.stat().st_size
            os.rename(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_directory(self.directory)
        return StagedFile(lo, hi, path, size_bytes)

    def discard_through(self, mark: int) -> int:
        """Delete files that the table's *mark* has passed; the bytes of those that stay.

        Raises: OSError.
        """
        size_bytes = 0
        for file in list_staged(self.directory):
            if file.hi <= mark:
                file.path.unlink(missing_ok=True)
            else:
                size_bytes += file.size_bytes
        return size_bytes


def sync_directory(directory: Path) -> None:
    """Make the names in *directory* survive a power cut. Raises: OSError."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
