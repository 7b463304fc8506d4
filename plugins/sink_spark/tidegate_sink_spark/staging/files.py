"""Names and choice of staged files: ``ack-<lo>-<hi>.parquet`` holds ack sequences lo to hi.

The name is the manifest: the job knows from it alone which file continues the table, so a file
never has to be opened to be skipped, and a file that came twice is harmless.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: 16 digits keep name order equal to number order for 10^16 messages (300 years at a million/s).
_NAME: Final = re.compile(r"ack-(\d{16})-(\d{16})\.parquet", re.ASCII)
_TEMPORARY: Final = re.compile(r"\.ack-\d{16}-\d{16}\.parquet\.tmp", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class StagedFile:
    """A sealed file. Attributes: lo, hi (ack sequences, inclusive), path, size_bytes."""

    lo: int
    hi: int
    path: Path
    size_bytes: int

    @property
    def rows(self) -> int:
        """Rows it holds: the ack sequence is dense."""
        return self.hi - self.lo + 1


@dataclass(frozen=True, slots=True)
class Choice:
    """What one commit takes.

    Attributes:
        files: to append, in order; rows up to the mark in the first one are to be left out.
        through: the mark after the commit (the mark before it when there is nothing to take).
        more: further files continue these.
        gap: first ack sequence behind a missing range, 0 when nothing is missing.
    """

    files: tuple[StagedFile, ...]
    through: int
    more: bool
    gap: int


def staged_name(lo: int, hi: int) -> str:
    """The name of the file that holds ack sequences *lo* to *hi*, both inclusive."""
    if not 0 < lo <= hi < 10**16:
        raise ValueError(f"{lo}..{hi} is not a range of ack sequences")
    return f"ack-{lo:016}-{hi:016}.parquet"


def temporary_name(name: str) -> str:
    """Where a file is written before it gets its *name*; Spark ignores names that start with a dot."""
    return f".{name}.tmp"


def is_temporary(name: str) -> bool:
    """Tell whether *name* is a file whose writer died before it was sealed."""
    return _TEMPORARY.fullmatch(name) is not None


def parse_name(name: str) -> tuple[int, int] | None:
    """(lo, hi) of a staged file's *name*, or None for any other file."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    lo, hi = int(match.group(1)), int(match.group(2))
    return (lo, hi) if 0 < lo <= hi else None


def list_staged(directory: Path) -> list[StagedFile]:
    """Sealed files in *directory* by range; files that are deleted meanwhile are left out.

    Raises: OSError (but a missing directory is an empty one).
    """
    found: list[StagedFile] = []
    try:
        entries = list(os.scandir(directory))
    except FileNotFoundError:
        return found
    for entry in entries:
        bounds = parse_name(entry.name)
        if bounds is None:
            continue
        try:
            size_bytes = entry.stat().st_size
        except FileNotFoundError:
            continue
        found.append(StagedFile(*bounds, Path(entry.path), size_bytes))
    found.sort()
    return found


def reach(files: Iterable[StagedFile], after: int) -> int:
    """How far *files* (in order) continue *after* without a missing range."""
    for file in files:
        if file.lo > after + 1:
            break
        after = max(after, file.hi)
    return after


def choose(
    files: Sequence[StagedFile], mark: int, *, rows_max: int, bytes_max: int, files_max: int
) -> Choice:
    """Choose what one commit appends to a table whose mark is *mark*.

    Only the first chosen file may hold rows that the table has already. A file that overlaps the
    file before it waits for the next commit, where it is the first one: so "behind the mark" is
    the only filter that is ever needed. At least one file is taken when one continues the mark.
    """
    chosen: list[StagedFile] = []
    through = mark
    rows = size_bytes = 0
    for file in files:
        if file.hi <= through:
            continue
        if file.lo > through + 1:
            return Choice(tuple(chosen), through, False, file.lo)
        if chosen and (
            file.lo <= through
            or rows + file.rows > rows_max
            or size_bytes + file.size_bytes > bytes_max
            or len(chosen) == files_max
        ):
            return Choice(tuple(chosen), through, True, 0)
        chosen.append(file)
        rows += file.rows
        size_bytes += file.size_bytes
        through = file.hi
    return Choice(tuple(chosen), through, False, 0)
