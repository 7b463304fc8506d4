"""What verify looks at, and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tidegate.spi import LogState
from tidegate_sink_spark.staging.files import StagedFile
from tidegate_sink_spark.verify.seen import LogPart, SeenTable

#: Passes the rows that the log still has, after the first number up to the second, to the last argument in parts.
ReadLog: TypeAlias = Callable[[int, int, Callable[[LogPart], None]], None]


def _no_log(_after: int, _through: int, _take: Callable[[LogPart], None]) -> None:
    """Reads no log."""


@dataclass(slots=True)
class Findings:
    """What was found.

    Attributes:
        mark: of the table.
        rows, dead_rows: up to the mark, in the table (and its further ones) and in the dead-letter table.
        files: how many the table has.
        staged_through: how far staged files continue the mark; staged_rows: after it.
        log_first, log_last: what the log holds.
        content: hash of the contents of all rows up to the mark, in any order; "" when not requested.
        compared, compared_log: rows of the table whose contents were compared with staged ones, and with those of the log.
        compared_checksum: with those of the log, too, but their bodies by size and checksum.
        only_hashed: rows of the table that neither staging nor log still has.
        dead_named: dead letters that have a reason.
        damaged: rows of the table that are damaged in the log now.
        not_taken: rows of the log that are in no table, since the sink does not take them.
        problems: what is wrong, and what to do; empty: it is proved.
        notes: what is allowed, but worth knowing.
    """

    mark: int = 0
    rows: int = 0
    dead_rows: int = 0
    files: int = 0
    staged_through: int = 0
    staged_rows: int = 0
    log_first: int = 0
    log_last: int = 0
    content: str = ""
    compared: int = 0
    compared_log: int = 0
    compared_checksum: int = 0
    only_hashed: int = 0
    dead_named: int = 0
    damaged: int = 0
    not_taken: int = 0
    problems: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])


@dataclass(frozen=True, slots=True)
class Seen:
    """What was looked at.

    Attributes:
        before, after: the log, before everything else and after it.
        staged: files, listed before the table was looked at.
        table: the one with the mark; further: by name; dead: the dead-letter table.
        is_dense: the sink takes every destination.
        first: rows before it are not read.
        read_log: gives the rows of the log, to compare contents.
    """

    before: LogState
    after: LogState
    staged: Sequence[StagedFile]
    table: SeenTable | None
    further: Mapping[str, SeenTable]
    dead: SeenTable | None
    is_dense: bool
    first: int = 1
    read_log: ReadLog = _no_log
