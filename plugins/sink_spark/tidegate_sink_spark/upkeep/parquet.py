"""Upkeep of a Parquet table: small files of a directory become large ones.

Readers of Parquet see what is in a directory, so many files must become one in a single step, or rows would
be there twice or not at all in between. That step exchanges the directory for another one:

1. the large file is written below ``_tidegate/compacted``, where no reader looks, and synced; commits go on;
2. under the table's lock, a directory is made beside it that has all of the other's files but the small ones, as
   hard links, and the large one; it is synced;
3. the two directories are exchanged, and that is synced: readers see the large file instead of the small ones;
4. below ``_tidegate/compacted`` is now the old directory. The next turn removes it: a reader about to
   list it at the exchange would see files disappear.

If the job is killed before 3, it leaves a copy that nobody sees, which the next turn removes, too. A reader that
listed the old directory, and opens a file of it later, finds none: it has to list again, and never sees a row twice.
The mark is in the manifests, which this leaves alone.
"""

from __future__ import annotations

import fcntl
import importlib
import os
import re
import shutil
import uuid
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tidegate_sink_spark.job.driver import CommitError
from tidegate_sink_spark.job.durable import sync_files
from tidegate_sink_spark.job.parquet import OWN_DIRECTORY, ParquetTable
from tidegate_sink_spark.placing.batches import BATCH_ROWS
from tidegate_sink_spark.staging.arrow import FILE_METADATA
from tidegate_sink_spark.upkeep.exchange import exchange
from tidegate_sink_spark.upkeep.worker import FILE_BYTES, SMALL_BYTES, Turn

pa: Final[Any] = importlib.import_module("pyarrow")
pq: Final[Any] = importlib.import_module("pyarrow.parquet")

#: Bytes in memory that become a row group, if reached before BATCH_ROWS.
GROUP_BYTES: Final = 64 << 20
COMPACTED: Final = "compacted"
_OURS: Final = re.compile(r"(ack-\d{16})-(\d{16})-.*\.parquet", re.ASCII)
_SORTED_BY: Final = ("destination", "acked_at")


@dataclass(frozen=True, slots=True)
class _Small:
    """A file as found. Attributes: identity (inode, size, time of the last change)."""

    path: Path
    size_bytes: int
    identity: tuple[int, int, int]


class ParquetUpkeep:
    """A :class:`tidegate_sink_spark.upkeep.worker.TableUpkeep`."""

    def __init__(self, table: ParquetTable) -> None:
        """Args: table: opened for upkeep alone."""
        self._table = table
        self._place = table.directory / OWN_DIRECTORY / COMPACTED

    def turn(self, *, vacuums: bool) -> Turn:
        """See TableUpkeep; old files go at once. Raises: CommitError, OSError, what PyArrow raises."""
        removed = added = 0
        with self._alone() as is_mine:
            if not is_mine:
                return Turn()  # another job is at it
            if self._table.layout != "partitioned":
                raise CommitError(
                    f"it has layout {self._table.layout!r}: only directories below the table can be exchanged for "
                    "others; write a new table with layout 'partitioned', or set compact_interval = 0"
                )
            shutil.rmtree(self._place, ignore_errors=True)  # from the last turn, or a killed job
            with self._table.settled():
                directories = sorted(_leaves(self._table.directory))
            for directory in directories:
                groups = groups_of(_small_files(directory))
                if groups:
                    self._compact(directory, groups)
                    removed += sum(map(len, groups))
                    added += len(groups)
        return Turn(removed, added, self._table.count_files())

    def _compact(self, directory: Path, groups: Sequence[Sequence[_Small]]) -> None:
        place = self._place / uuid.uuid4().hex
        place.mkdir(parents=True)
        try:
            made = [_merge([file.path for file in group], place) for group in groups]
            with self._table.settled():
                small = [file for group in groups for file in group]
                _check(small)
                self._swap(directory, place / "new", {file.path.name for file in small}, made)
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise

    def _swap(self, directory: Path, other: Path, without: set[str], made: Sequence[Path]) -> None:
        """Make *other* a compacted copy of *directory*, and exchange the two."""
        other.mkdir()
        for entry in directory.iterdir():
            if entry.name not in without:
                os.link(entry, other / entry.name)
        for path in made:
            os.replace(path, other / path.name)
        shutil.copystat(directory, other)
        sync_files((), (other, other.parent, self._place, self._place.parent))
        exchange(other, directory)
        sync_files((), (directory.parent, other.parent))

    @contextmanager
    def _alone(self) -> Generator[bool]:
        """Keep out other jobs' upkeep; False when another one is at it."""
        path = self._table.directory / OWN_DIRECTORY / f"{COMPACTED}.lock"
        with path.open("a") as file:
            try:
                fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True


def _leaves(table: Path) -> Iterator[Path]:
    """Directories of partitions that hold files and no other directories."""
    for root, directories, files in os.walk(table):
        if OWN_DIRECTORY in directories and Path(root) != table:
            directories.clear()  # another table, with its own lock
            continue
        directories[:] = [name for name in directories if not name.startswith(("_", "."))]
        if not directories and Path(root) != table and any(map(_OURS.fullmatch, files)):
            yield Path(root)


def _small_files(directory: Path) -> list[_Small]:
    """In the order of their contents."""
    found: list[_Small] = []
    for path in sorted(directory.iterdir()):
        if _OURS.fullmatch(path.name):
            state = path.stat()
            if state.st_size < SMALL_BYTES:
                found.append(_Small(path, state.st_size, _identity(state)))
    return found


def _identity(state: os.stat_result) -> tuple[int, int, int]:
    return state.st_ino, state.st_size, state.st_mtime_ns


def groups_of(files: Sequence[_Small], size_bytes: int = FILE_BYTES) -> list[list[_Small]]:
    """*files* in order, in groups of up to *size_bytes*; a file that stays alone is in none."""
    groups: list[list[_Small]] = []
    total = size_bytes
    for file in files:
        if total + file.size_bytes > size_bytes:
            groups.append([])
            total = 0
        groups[-1].append(file)
        total += file.size_bytes
    return [group for group in groups if len(group) > 1]


def _check(files: Sequence[_Small]) -> None:
    """Check that nobody changed what was read. Raises: CommitError."""
    for file in files:
        try:
            is_same = _identity(file.path.stat()) == file.identity
        except FileNotFoundError:
            is_same = False
        if not is_same:
            raise CommitError(f"conflict: {file.path} was changed by another program meanwhile")


def _merge(paths: Sequence[Path], place: Path) -> Path:
    """Write the rows of *paths* durably as one file in *place*.

    Raises: CommitError when the number of rows differs; OSError, what PyArrow raises.
    """
    first, last = _OURS.fullmatch(paths[0].name), _OURS.fullmatch(paths[-1].name)
    assert first is not None, "_small_files takes no others"
    assert last is not None, "_small_files takes no others"
    made = place / f"{first[1]}-{last[2]}-{uuid.uuid4().hex[:12]}.parquet"
    schema = pa.unify_schemas([pq.read_schema(str(path)).remove_metadata() for path in paths])
    expected = sum(pq.read_metadata(str(path)).num_rows for path in paths)
    with pq.ParquetWriter(str(made), schema, compression="zstd", store_schema=False) as writer:
        for rows in _row_groups(paths, schema):
            writer.write_table(rows, row_group_size=BATCH_ROWS)
        writer.add_key_value_metadata(FILE_METADATA)
    found = pq.read_metadata(str(made)).num_rows
    if found != expected:
        raise CommitError(
            f"{found} rows instead of {expected} are in what was made of {paths[0]} and others"
        )
    made.chmod(paths[0].stat().st_mode & 0o7777)
    sync_files((made,))
    return made


def _row_groups(paths: Sequence[Path], schema: Any) -> Iterator[Any]:
    """All rows, in tables that fit a row group, each sorted like a commit's."""
    waiting: list[Any] = []
    for path in paths:
        with pq.ParquetFile(str(path)) as file:
            for batch in file.iter_batches(batch_size=BATCH_ROWS, use_threads=False):
                rows = _with_all(pa.Table.from_batches([batch]), schema)
                count = rows.num_rows + sum(part.num_rows for part in waiting)
                size = rows.nbytes + sum(part.nbytes for part in waiting)
                if waiting and (count > BATCH_ROWS or size > GROUP_BYTES):
                    yield _sorted(waiting)
                    waiting = []
                waiting.append(rows)
    if waiting:
        yield _sorted(waiting)


def _with_all(rows: Any, schema: Any) -> Any:
    """*rows* with all columns of *schema*: an older version had fewer."""
    for field in schema:
        if field.name not in rows.column_names:
            rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
    return rows.select(schema.names).cast(schema)


def _sorted(parts: Sequence[Any]) -> Any:
    rows = pa.concat_tables(parts)
    keys = [(name, "ascending") for name in _SORTED_BY if name in rows.column_names]
    return rows.sort_by(keys) if keys else rows
