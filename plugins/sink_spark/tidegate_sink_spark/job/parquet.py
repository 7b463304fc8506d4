"""The Parquet table: a directory of files, without Spark and without Java.

Parquet has no transactions, so there is a manifest, written the way staged files are. Below the table::

    ack_date=2026-01-02/ack-<lo>-<hi>-<log>-<n>.parquet    rows; what readers see
    _tidegate/table.json                                   columns and layout
    _tidegate/<log>/ack-<lo>-<hi>.json                     one commit: its files, and the mark (hi)
    _tidegate/<log>/*.tmp                                  files of a commit that is being made
    _tidegate/compacted/                                   of upkeep in progress (``upkeep.parquet``)

Readers of Parquet directories leave out names that begin with an underscore. A commit:

1. its files are written under temporary names, and synced;
2. the manifest gets its name: from here on the rows are in the table, whatever happens;
3. the files are renamed to where readers see them.

A writer that dies before 2 leaves temporary files, which the next one removes; one that dies
between 2 and 3 leaves a manifest whose files the next one renames. So the mark is the ``hi`` of the
newest manifest, a reader sees no row twice, and it sees all of them when the commit is reported.
One writer at a time holds the lock; its end, however it comes, releases it.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib
import json
import os
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from tidegate_sink_spark.job.driver import Addition, CommitError, TableState
from tidegate_sink_spark.job.durable import directories_above, sync_files
from tidegate_sink_spark.job.files import FileCount, wait_for_lock
from tidegate_sink_spark.job.table import Shape, bring_up_to_date, columns_of
from tidegate_sink_spark.placing.batches import (
    BATCH_ROWS,
    by_partition,
    staged_batches,
    staged_schema,
)
from tidegate_sink_spark.staging.arrow import FILE_METADATA, SCHEMA_VERSION

pa: Final[Any] = importlib.import_module("pyarrow")
pc: Final[Any] = importlib.import_module("pyarrow.compute")
pq: Final[Any] = importlib.import_module("pyarrow.parquet")

OWN_DIRECTORY: Final = "_tidegate"
#: Manifests kept: only the newest matters, the others say what the last commits added.
MANIFESTS_KEPT: Final = 100
_MANIFEST: Final = re.compile(r"ack-(\d{16})-(\d{16})\.json", re.ASCII)
#: Files that a commit has open at once: there may be more partitions than a process may open files.
OPEN_MAX: Final = 64
#: What Hive escapes in directory names, and its readers unescape; nothing else.
_ESCAPED: Final = re.compile("[\x00-\x1f\x7f\"#%'*/:=?\\\\{\\[\\]^]")
_NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"


@dataclass(slots=True)
class _Commit:
    """A commit that is being written. Attributes: writers by partition value ("" for none)."""

    stem: str
    writers: dict[str, Any] = field(default_factory=dict[str, Any])
    files: dict[str, str] = field(default_factory=dict[str, str])  # temporary name: final path
    rows: int = 0

    def close(self) -> None:
        """Close the open files; a partition may get another one."""
        for writer in self.writers.values():
            writer.add_key_value_metadata(FILE_METADATA)
            writer.close()
        self.writers.clear()


def _escaped(value: object) -> str:
    if value is None:
        return _NO_VALUE
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", str(value))


def is_parquet_table(directory: Path) -> bool:
    """Tell whether there is a table of the sink in *directory*. Raises: OSError."""
    return (directory / OWN_DIRECTORY / "table.json").exists()


def commits_of(directory: Path, app_id: str) -> Path:
    """Where the table in *directory* has a log's manifests, and files of its unfinished commits."""
    return directory / OWN_DIRECTORY / hashlib.sha256(app_id.encode()).hexdigest()[:8]


def manifests_in(commits: Path) -> list[Path]:
    """The manifests of one log, in the order of their numbers; the newest has the mark. Raises: OSError."""
    return sorted(path for path in commits.glob("*.json") if _MANIFEST.fullmatch(path.name))


def data_files(directory: Path) -> Iterator[Path]:
    """What readers see of the table in *directory*. Raises: OSError."""
    for path in directory.rglob("*.parquet"):
        if OWN_DIRECTORY not in path.relative_to(directory).parts:
            yield path


@contextmanager
def locked(directory: Path, *, is_shared: bool = False) -> Generator[None]:
    """Hold the lock of the table in *directory*: alone, or *is_shared* with others who only read.

    Raises: CommitError after LOCK_TIMEOUT; OSError.
    """
    path = directory / OWN_DIRECTORY / "lock"
    operation = fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX
    with path.open("a") as file:
        wait_for_lock(lambda: _flock(file.fileno(), operation), path)
        yield


def _flock(fd: int, operation: int) -> bool:
    """Take the lock of the file *fd*; False when another one has it. Raises: OSError."""
    try:
        fcntl.flock(fd, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class ParquetTable:
    """A :class:`tidegate_sink_spark.job.driver.Table` that is a directory of Parquet files."""

    def __init__(self, directory: Path, shape: Shape, app_id: str) -> None:
        """Opens the table and creates it when it is missing. Raises: CommitError, OSError."""
        self._schema = staged_schema(shape.further)
        self._directory = directory
        self._app_id = app_id
        self._own = directory / OWN_DIRECTORY
        self._commits = commits_of(directory, app_id)
        self._count_files = FileCount(self.count_files)
        self._check_directory()
        self._commits.mkdir(parents=True, exist_ok=True)
        sync_files((), (directory.parent, directory, self._own))
        with locked(self._directory):
            found = _read_json(self._own / "table.json")
            self._table: dict[str, Any] = found or {
                "schema_version": str(SCHEMA_VERSION),
                "layout": shape.layout,
                "partition_by": list(shape.partitions),
                "columns": dict(columns_of(shape.further)),
            }
            bring_up_to_date(self, str(directory), shape.further)
            if not found:
                self._save("table.json", self._table, self._own)
            self._state()

    def _check_directory(self) -> None:
        if self._own.is_dir():
            return
        other = next(iter(self._directory.iterdir()), None) if self._directory.is_dir() else None
        if other is not None and other != self._own:  # another writer may just have made that
            raise CommitError(
                f"{self._directory} is not a Parquet table of the sink (it holds {other.name}); "
                "name another directory, or an empty one"
            )

    @property
    def directory(self) -> Path:
        """The table's."""
        return self._directory

    @property
    def layout(self) -> str:
        """``clustered``, ``partitioned`` or ``plain``, as it was created."""
        return str(self._table["layout"])

    def count_files(self) -> int:
        """How many files readers see."""
        return sum(1 for _ in data_files(self._directory))

    @contextmanager
    def settled(self) -> Generator[None]:
        """Hold the lock, with all that is committed where readers see it. Raises: CommitError, OSError."""
        with locked(self._directory):
            self._state()
            yield

    # ------------------------------------------------------------------------------------ columns
    def columns(self) -> Mapping[str, str]:
        """See :meth:`tidegate_sink_spark.job.table.Columns.columns`."""
        return cast("dict[str, str]", self._table["columns"])

    def add_columns(self, columns: Sequence[tuple[str, str]]) -> None:
        """See :meth:`tidegate_sink_spark.job.table.Columns.add_columns`."""
        self._table = {**self._table, "columns": {**self.columns(), **dict(columns)}}
        self._save("table.json", self._table, self._own)

    def schema_version(self) -> str | None:
        """See :meth:`tidegate_sink_spark.job.table.Columns.schema_version`."""
        found = self._table.get("schema_version")
        return None if found is None else str(found)

    def set_schema_version(self, version: int) -> None:
        """See :meth:`tidegate_sink_spark.job.table.Columns.set_schema_version`."""
        self._table = {**self._table, "schema_version": str(version)}
        self._save("table.json", self._table, self._own)

    # --------------------------------------------------------------------------------------- mark
    def state(self) -> TableState:
        """See :meth:`tidegate_sink_spark.job.driver.Table.state`. Raises: CommitError, OSError."""
        with locked(self._directory):
            return self._state()

    def _state(self) -> TableState:
        """Finish what a dead writer left, and read the mark."""
        manifests = manifests_in(self._commits)
        if not manifests:
            self._finish({})
            return TableState(0, 0, 0)
        manifest = _read_json(manifests[-1])
        if manifest.get("log") != self._app_id:
            raise CommitError(f"{manifests[-1]} is not a manifest of {self._app_id}")
        self._finish(manifest["files"])
        return TableState(int(manifest["hi"]), int(manifest["version"]), self._count_files())

    def _finish(self, files: Mapping[str, str]) -> None:
        """Give the committed *files* their names, and remove other temporary ones."""
        moved: set[Path] = set()
        for entry in list(self._commits.iterdir()):
            if entry.suffix != ".tmp":
                continue
            final = files.get(entry.name)
            if final is None:
                entry.unlink()
                continue
            path = self._directory / final
            path.parent.mkdir(parents=True, exist_ok=True)
            os.replace(entry, path)
            moved.add(path)
        if moved:
            sync_files(moved, {*directories_above(moved, self._directory), self._commits})

    def sequences(self, gateway_id: str, epoch: str, after: int) -> list[int]:
        """See :meth:`tidegate_sink_spark.job.dead.SequencedTable.sequences`."""
        found: list[int] = []
        with locked(self._directory):
            self._state()
        for path in data_files(self._directory):
            rows = pq.read_table(
                str(path),
                columns=["ack_seq"],
                partitioning=None,
                filters=(pc.field("gateway_id") == gateway_id)
                & (pc.field("epoch") == epoch)
                & (pc.field("ack_seq") > after),
            )
            found += rows["ack_seq"].to_pylist()
        return found

    # ------------------------------------------------------------------------------------- append
    def append(self, addition: Addition) -> None:
        """See :meth:`tidegate_sink_spark.job.driver.Table.append`. Raises: OSError, too."""
        with locked(self._directory):
            state = self._state()
            addition.check_mark(state.mark)
            lo, hi = addition.after + 1, addition.through
            commit = _Commit(f"ack-{lo:016}-{hi:016}")
            try:
                with _write_errors(addition.paths):
                    self._write(addition, commit)
                addition.check_count(commit.rows)
            except BaseException:
                self._discard(commit)
                raise
            manifest = {
                "log": self._app_id,
                "lo": lo,
                "hi": hi,
                "version": state.version + 1,
                "rows": addition.count,
                "files": commit.files,
                "commit": json.loads(addition.metadata),
            }
            self._save(f"{commit.stem}.json", manifest, self._commits)
            self._finish(commit.files)
            for old in manifests_in(self._commits)[:-MANIFESTS_KEPT]:
                old.unlink()

    def _write(self, addition: Addition, commit: _Commit) -> None:
        behind = addition.after if addition.overlaps else 0
        for path in addition.paths:
            for batch in staged_batches(path, behind, self._schema):
                for value, part in self._parts(batch):
                    if value not in commit.writers and len(commit.writers) >= OPEN_MAX:
                        commit.close()
                    writer = commit.writers.get(value) or self._open(commit, value, part.schema)
                    writer.write_table(part, row_group_size=BATCH_ROWS)
                    commit.rows += part.num_rows
        commit.close()
        sync_files(self._commits / name for name in commit.files)

    def _parts(self, batch: Any) -> Iterator[tuple[str, Any]]:
        """*batch* by partition, sorted within."""
        if self._table["layout"] != "plain":
            batch = batch.sort_by([("destination", "ascending"), ("acked_at", "ascending")])
        names = self._table["partition_by"]
        for values, part in by_partition(batch, names):
            # The values are in the path, as Spark writes them.
            directories = [f"{name}={_escaped(v)}" for name, v in zip(names, values, strict=True)]
            yield "/".join(directories), part.drop_columns(names)

    def _open(self, commit: _Commit, value: str, schema: Any) -> Any:
        name = f"{commit.stem}-{self._commits.name}-{len(commit.files)}.parquet"
        commit.files[f"{name}.tmp"] = str(Path(value) / name)
        commit.writers[value] = pq.ParquetWriter(
            str(self._commits / f"{name}.tmp"), schema, compression="zstd", store_schema=False
        )
        return commit.writers[value]

    def _discard(self, commit: _Commit) -> None:
        for writer in commit.writers.values():
            try:
                writer.close()
            except (OSError, ValueError):
                pass  # it goes anyway
        for name in commit.files:
            (self._commits / name).unlink(missing_ok=True)

    # -------------------------------------------------------------------------------------- files
    def _save(self, name: str, value: Mapping[str, Any], directory: Path) -> None:
        """Write *value* as a whole or not at all."""
        temporary = directory / f"{name}.tmp"
        temporary.write_text(json.dumps(value, indent=1))
        sync_files((temporary,))
        os.replace(temporary, directory / name)
        sync_files((), (directory,))


@contextmanager
def _write_errors(paths: Sequence[Path]) -> Generator[None]:
    """Turn a full disk into a failed commit; a missing staged file stays FileNotFoundError."""
    try:
        yield
    except (OSError, pa.ArrowException) as exc:
        if isinstance(exc, FileNotFoundError) and not all(path.exists() for path in paths):
            raise
        raise CommitError(f"the commit failed: {exc}") from exc


def _read_json(path: Path) -> dict[str, Any]:
    """The object in *path*, {} when there is no such file. Raises: CommitError, OSError."""
    try:
        return cast("dict[str, Any]", json.loads(path.read_text()))
    except FileNotFoundError:
        return {}
    except ValueError as exc:
        raise CommitError(f"{path} is damaged: {exc}") from exc
