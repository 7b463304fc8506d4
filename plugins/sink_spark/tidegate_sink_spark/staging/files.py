"""Names and choice of staged files: ``ack-<lo>-<hi>.parquet`` holds ack sequences lo to hi.

A sink that takes only some destinations has ``ack-<lo>-<hi>-<rows>.parquet``: of the ack sequences lo
to hi the rows that it takes. ``ack-<lo>-<hi>-<rows>-<dead>.parquet`` has a companion,
``dead-<lo>-<hi>-<dead>.parquet``, with those that go to the dead-letter table.

The name is the manifest: it alone tells the job which file continues the table, so a file
never has to be opened to be skipped, and a duplicate file is harmless.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: 16 digits keep name order equal to number order for 10^16 messages (300 years at a million/s).
_NAME: Final = re.compile(r"ack-(\d{16})-(\d{16})(?:-(\d{8})(?:-(\d{8}))?)?\.parquet", re.ASCII)
_DEAD_NAME: Final = re.compile(r"dead-(\d{16})-(\d{16})-(\d{8})\.parquet", re.ASCII)
_TEMPORARY: Final = re.compile(
    r"\.(?:ack|dead)-\d{16}-\d{16}(?:-\d{8}){0,2}\.parquet\.tmp", re.ASCII
)


@dataclass(frozen=True, slots=True, order=True)
class StagedFile:
    """A sealed file.

    Attributes:
        lo, hi: ack sequences, inclusive.
        path, size_bytes, rows: of the file.
        dead: rows of the companion, :attr:`dead_path`, which are for the dead-letter table.
    """

    lo: int
    hi: int
    path: Path
    size_bytes: int
    rows: int
    dead: int = 0

    @property
    def dead_path(self) -> Path:
        """Where its dead letters are, if it has any."""
        return self.path.with_name(dead_name(self.lo, self.hi, self.dead))

    @property
    def is_dense(self) -> bool:
        """Whether it holds every ack sequence from lo to hi, not only those that the sink takes."""
        return self.rows == self.hi - self.lo + 1


@dataclass(frozen=True, slots=True)
class Choice:
    """What one commit takes.

    Attributes:
        files: to append, in order; rows up to the mark are left out of the first one.
        through: the mark after the commit (the mark before it when there is nothing to take).
        more: further files continue these.
        gap: first ack sequence after a missing range, 0 when nothing is missing.
    """

    files: tuple[StagedFile, ...]
    through: int
    more: bool
    gap: int


def staged_name(lo: int, hi: int, rows: int | None = None, dead: int = 0) -> str:
    """The name of the file that holds ack sequences *lo* to *hi*, both inclusive.

    Args: rows: how many of them it holds; None: all. dead: how many are in its companion.
    """
    if not 0 < lo <= hi < 10**16:
        raise ValueError(f"{lo}..{hi} is not a range of ack sequences")
    if rows is None or rows == hi - lo + 1:
        return f"ack-{lo:016}-{hi:016}.parquet"
    if rows < 0 or dead < 0 or not 0 < rows + dead <= min(hi - lo + 1, 10**8 - 1):
        raise ValueError(f"{lo}..{hi} cannot be a file of {rows} rows and {dead} dead letters")
    return f"ack-{lo:016}-{hi:016}-{rows:08}{f'-{dead:08}' if dead else ''}.parquet"


def dead_name(lo: int, hi: int, dead: int) -> str:
    """The name of the companion with the *dead* letters among ack sequences *lo* to *hi*."""
    return f"dead-{lo:016}-{hi:016}-{dead:08}.parquet"


def parse_dead_name(name: str) -> tuple[int, int, int] | None:
    """(lo, hi, dead) of a companion's *name*, or None for any other file."""
    match = _DEAD_NAME.fullmatch(name)
    return None if match is None else (int(match[1]), int(match[2]), int(match[3]))


def temporary_name(name: str) -> str:
    """Where a file is written before it gets its *name*; Spark ignores names that start with a dot."""
    return f".{name}.tmp"


def is_temporary(name: str) -> bool:
    """Tell whether *name* is a file whose writer died before it was sealed."""
    return _TEMPORARY.fullmatch(name) is not None


def parse_name(name: str) -> tuple[int, int, int, int] | None:
    """(lo, hi, rows, dead) of a staged file's *name*, or None for any other file."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    lo, hi = int(match.group(1)), int(match.group(2))
    rows = hi - lo + 1 if match.group(3) is None else int(match.group(3))
    dead = int(match.group(4) or 0)
    return (lo, hi, rows, dead) if 0 < lo <= hi and 0 < rows + dead <= hi - lo + 1 else None


def list_staged(directory: Path) -> list[StagedFile]:
    """Sealed files in *directory* by range; files deleted meanwhile are left out.

    Raises: OSError.
    """
    found: list[StagedFile] = []
    for entry in list(os.scandir(directory)):
        parsed = parse_name(entry.name)
        if parsed is None:
            continue
        lo, hi, rows, dead = parsed
        try:
            size_bytes = entry.stat().st_size
        except FileNotFoundError:
            continue
        found.append(StagedFile(lo, hi, Path(entry.path), size_bytes, rows, dead))
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

    Only the first chosen file may hold rows that the table already has. A file that overlaps the
    previous file waits for the next commit, where it is the first one: so "after the mark" is
    the only filter ever needed. At least one file is taken when one continues the mark.
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
