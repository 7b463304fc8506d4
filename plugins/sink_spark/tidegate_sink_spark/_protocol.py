"""What the sink and its Spark job say to each other: JSON lines over the job's stdin and stdout.

The first line to the job is its :class:`JobConfig`; each later one is a :class:`Command`. The end
of the job's stdin means that the gateway is gone: the job kills itself.
"""

from __future__ import annotations

import enum
from typing import TypeAlias

import msgspec


class JobConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the job needs to know.

    Attributes:
        gateway_name, store_id: whose log this is.
        staging_directory: where the staged files are.
        table: local path (absolute) or URI.
        layout: ``clustered`` or ``partitioned``, for a table that does not exist yet.
        commit_interval: seconds between two commits.
        floor: the store has released everything up to here, so no file can hold it.
        niceness: added to the process's own.
        spark_conf: complete Spark configuration.
        umask: for what the job makes; None: the gateway's.
    """

    gateway_name: str
    store_id: str
    staging_directory: str
    table: str
    layout: str
    commit_interval: float
    floor: int
    niceness: int
    spark_conf: dict[str, str]
    umask: int | None = None


class Command(enum.Enum):
    """One line to the job."""

    COMMIT = "commit"  # commit what is staged now
    STOP = "stop"  # commit what is staged now, then end


class Mark(msgspec.Struct, frozen=True, tag="mark"):
    """The mark as read back from the table; everything up to it is there and on stable storage.

    Attributes:
        mark: highest ack sequence in the table.
        version: the table's version.
        rows, files, seconds: of the commit that led here; 0 when it was only read.
    """

    mark: int
    version: int
    rows: int = 0
    files: int = 0
    seconds: float = 0.0


class Gap(msgspec.Struct, frozen=True, tag="gap"):
    """Files are there, but not the one with ack sequence *expected*; the next begins at *found*."""

    expected: int
    found: int


class Unreadable(msgspec.Struct, frozen=True, tag="unreadable"):
    """The staged file *name* does not hold what its name says."""

    name: str
    problem: str


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """A commit or the session failed; the job tries again or ends."""

    problem: str


class Stopped(msgspec.Struct, frozen=True, tag="stopped"):
    """All that could be committed was, and the job ends."""

    mark: int


Report: TypeAlias = Mark | Gap | Unreadable | Failed | Stopped

_config_decoder = msgspec.json.Decoder(JobConfig)
_report_decoder = msgspec.json.Decoder[Report](Report)


def encode_line(value: JobConfig | Command | Report) -> bytes:
    """One line, newline included."""
    return msgspec.json.encode(value) + b"\n"


def decode_config(line: bytes) -> JobConfig:
    """Raises: ValueError for anything else than a :class:`JobConfig`."""
    return _config_decoder.decode(line)


def decode_command(line: bytes) -> Command:
    """Raises: ValueError for anything else than a :class:`Command`."""
    return msgspec.json.decode(line, type=Command)


def decode_report(line: bytes) -> Report:
    """Raises: ValueError for anything else than a report."""
    return _report_decoder.decode(line)
