"""What the sink and its Spark job say to each other: JSON lines over the job's stdin and stdout.

The first line to the job is its :class:`JobConfig`; each later one is a :class:`Command`. The end
of the job's stdin means that the gateway is gone: the job kills itself.
"""

from __future__ import annotations

import enum
from typing import Final, TypeAlias

import msgspec

#: Most rows of one commit, by default: a long backlog is worked off in steps of some seconds, each of which
#: keeps its progress. Measured: 143 thousand rows/s.
COMMIT_ROWS: Final = 500_000
COMMIT_BYTES: Final = 512 << 20


class RouteConfig(msgspec.Struct, frozen=True):
    """A further table, for the rows of some destinations.

    Attributes: pattern (of destinations), table and is_name (as in :class:`JobConfig`).
    """

    pattern: str
    table: str
    is_name: bool = False


class JobConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the job needs to know.

    Attributes:
        engine: ``spark`` or ``deltalake``.
        vacuum_retention: seconds that files no longer in the table are kept; 0: for ever.
        gateway_name, store_id: of the log.
        staging_directory: where the staged files are.
        table: local path (absolute), URI, or name in a catalog.
        layout: ``clustered``, ``partitioned`` or ``plain``, for a table that does not exist yet.
        commit_interval: seconds between two looks at the staging directory; 0: only when told.
        commit_rows, commit_bytes: limits of one commit; its first file may exceed them.
        floor: the store has released everything up to here, so no file can hold it.
        spark_conf: complete Spark configuration; empty for another engine.
        umask: for files that the job creates; None: the gateway's.
        format: ``delta``, ``iceberg`` or ``parquet``.
        is_name: the table is a name in a catalog.
        routes: further tables; the first that covers a destination gets its rows.
        columns: name and SQL type of columns besides those that every table has.
        partition_by: columns, for a table that does not exist yet and has layout ``partitioned``.
        shared_directory: for the job's own files that the workers of a cluster must see; "": there
            is no cluster, and they are where the job runs.
        storage_options: of the object store, for engine ``deltalake``; including keys.
        connect: URL of a Spark Connect server; "": the job has its own Spark.
    """

    gateway_name: str
    store_id: str
    staging_directory: str
    table: str
    layout: str
    floor: int
    spark_conf: dict[str, str] = {}
    commit_interval: float = 0.0
    commit_rows: int = COMMIT_ROWS
    commit_bytes: int = COMMIT_BYTES
    engine: str = "spark"
    vacuum_retention: float = 0.0
    umask: int | None = None
    format: str = "delta"
    is_name: bool = False
    routes: tuple[RouteConfig, ...] = ()
    columns: tuple[tuple[str, str], ...] = ()
    partition_by: tuple[str, ...] = ("ack_date",)
    shared_directory: str = ""
    connect: str = ""
    storage_options: dict[str, str] = {}


class Command(enum.Enum):
    """One line to the job."""

    COMMIT = "commit"  # commit what is staged now
    STOP = "stop"  # commit what is staged now, then end
    COMPACT = "compact"  # run upkeep of the tables, beside the commits
    COMPACT_AND_VACUUM = "compact-and-vacuum"  # and delete files that nobody needs


class Mark(msgspec.Struct, frozen=True, tag="mark"):
    """The mark as read back from the table; everything up to it is there and on stable storage.

    Attributes:
        mark: highest ack sequence in the table.
        version: the table's version.
        rows, files, seconds: of the commit that led here; 0 if the mark was only read.
        dead: dead letters among its files, which went to their own table.
        table_files: how many the table has; None: not known; dead_rows: in the dead-letter table.
    """

    mark: int
    version: int
    rows: int = 0
    files: int = 0
    seconds: float = 0.0
    dead: int = 0
    table_files: int | None = None
    dead_rows: int = 0


class Gap(msgspec.Struct, frozen=True, tag="gap"):
    """The file with ack sequence *expected* is missing; the next one begins at *found*."""

    expected: int
    found: int


class Unreadable(msgspec.Struct, frozen=True, tag="unreadable"):
    """The staged file *name* does not hold what its name says."""

    name: str
    problem: str


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """A commit or the session failed; the job tries again or ends."""

    problem: str


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """Everything that could be committed is; the job waits for its next command. Attributes: mark."""

    mark: int


class Stopped(msgspec.Struct, frozen=True, tag="stopped"):
    """Everything that could be committed is, and the job ends."""

    mark: int


class Kept(msgspec.Struct, frozen=True, tag="kept"):
    """A turn of upkeep has ended.

    Attributes:
        seconds, files_removed, files_added: of all tables.
        problem: "" when there was none.
        table_files: how many the main table has; None: not known.
    """

    seconds: float = 0.0
    files_removed: int = 0
    files_added: int = 0
    problem: str = ""
    table_files: int | None = None


Report: TypeAlias = Mark | Gap | Unreadable | Failed | Ready | Stopped | Kept

_config_decoder = msgspec.json.Decoder(JobConfig)
_report_decoder = msgspec.json.Decoder[Report](Report)


def encode_line(value: JobConfig | Command | Report) -> bytes:
    """One line, newline included."""
    return msgspec.json.encode(value) + b"\n"


def decode_config(line: bytes) -> JobConfig:
    """Raises: ValueError for anything but a :class:`JobConfig`."""
    return _config_decoder.decode(line)


def decode_command(line: bytes) -> Command:
    """Raises: ValueError for anything but a :class:`Command`."""
    return msgspec.json.decode(line, type=Command)


def decode_report(line: bytes) -> Report:
    """Raises: ValueError for anything but a report."""
    return _report_decoder.decode(line)
