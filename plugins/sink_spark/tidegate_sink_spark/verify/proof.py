"""What is proved of a sink, and what is found wrong. Knows neither a format nor Spark.

Looked at in this order, so that a gateway which goes on meanwhile is told no lies about: how far the log
is, what is staged, the table (one state of it), its further tables, how far the log is now. Each moves one
way only.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, cast

from tidegate.spi import LogState
from tidegate_sink_spark.staging import arrow
from tidegate_sink_spark.staging.files import StagedFile
from tidegate_sink_spark.verify.seen import SeenTable

pa: Final[Any] = importlib.import_module("pyarrow")
pc: Final[Any] = importlib.import_module("pyarrow.compute")
pq: Final[Any] = importlib.import_module("pyarrow.parquet")

#: Ack sequences that are looked at at once: 8 bytes each, some times over.
WINDOW: Final = 4_000_000
#: Rows whose contents are looked at at once.
CONTENT_WINDOW: Final = 50_000
#: Ranges of ack sequences that a problem names.
_RANGES_MAX: Final = 5
#: Columns of a row's contents: `ack_date` follows from `acked_at`, and some formats have it in the path.
_CONTENT: Final = tuple(name for name in arrow.SCHEMA.names if name != "ack_date")
_MODULUS: Final = 1 << 128


#: Gives the last argument, some at a time and as Arrow tables, the rows that the log still has behind the first one
#: and up to the second.
LogRows: TypeAlias = Callable[[int, int, Callable[[Any], None]], None]


def _no_log(_after: int, _through: int, _take: Callable[[Any], None]) -> None:
    """It is not asked."""


@dataclass(slots=True)
class Findings:
    """What was found.

    Attributes:
        mark: of the table.
        rows, dead_rows: up to the mark, in the table (and its further ones) and in the dead-letter table.
        files: that the table consists of.
        staged_through: how far staged files continue the mark; staged_rows: behind it.
        log_first, log_last: what the log holds.
        content: hash of the contents of all rows up to the mark, in any order; "" when not asked for.
        compared, compared_log: rows of the table whose contents were compared with staged ones, and with those of the log.
        problems: what is wrong, and what to do; empty: it is proved.
        notes: what is as it may be, and worth knowing.
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
    problems: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])


@dataclass(frozen=True, slots=True)
class Seen:
    """What was looked at.

    Attributes:
        before, after: the log, before everything else and after it.
        staged: files, listed before the table was looked at.
        table: which holds the position; further: by name; dead: the dead-letter table.
        is_dense: the sink takes every destination.
        first: rows before it are not asked for.
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
    read_log: LogRows = _no_log


def prove(seen: Seen, *, content: bool = False) -> Findings:
    """Count, compare, and say what is wrong. Raises: CommitError, OSError."""
    found = Findings(
        mark=seen.table.mark if seen.table else 0,
        files=seen.table.files if seen.table else 0,
        log_first=seen.after.first,
        log_last=seen.after.last,
    )
    _check_log(seen, found)
    _check_staged(seen, found)
    _check_rows(seen, found)
    if seen.table is not None:
        _check_above(seen.table, found)
    if content:
        _check_content(seen, found)
    return found


def _check_log(seen: Seen, found: Findings) -> None:
    mark = found.mark
    if seen.before.store_id != seen.after.store_id:
        found.problems.append("the store was replaced meanwhile; verify again")
    if mark > seen.after.last:
        found.problems.append(
            f"the table says that it has rows up to {mark}, and the log ends at {seen.after.last}: the store "
            "was restored from an older copy; name another table"
        )
    reached = max(mark, *(file.hi for file in seen.staged), 0) if seen.staged else mark
    if seen.is_dense and seen.before.first > reached + 1:
        found.problems.append(
            f"rows {_text(mark + 1, seen.before.first - 1)} are neither in the table nor in the log: they were "
            "released to another table, or discarded (acknowledged_limit, acknowledged_age)"
        )


def _check_staged(seen: Seen, found: Findings) -> None:
    """Staged files continue exactly at the mark, each holds what its name says."""
    through = found.mark
    for file in seen.staged:
        if file.hi <= through:
            continue
        if file.lo > through + 1:
            found.problems.append(
                f"staged files leave out rows {_text(through + 1, file.lo - 1)} before {file.path.name}; the "
                "gateway stages them again when it runs, while its log has them"
            )
            break
        reason = arrow.check_staged(file)
        if reason and file.path.exists():  # else the table has it meanwhile
            found.problems.append(
                f"the staged file {file.path.name} does not hold what its name says ({reason}); the gateway "
                "stages it again when it runs"
            )
            break
        found.staged_rows += file.rows + file.dead
        through = file.hi
    found.staged_through = through
    if through > seen.after.last:
        found.problems.append(
            f"staged files go up to {through}, and the log ends at {seen.after.last}: they are not of this store"
        )


# ----------------------------------------------------------------------------------- the rows
def _check_rows(seen: Seen, found: Findings) -> None:
    """Up to the mark each ack sequence is in one of the tables, once."""
    missing, double = _Ranges(), _Ranges()
    for lo in range(seen.first, found.mark + 1, WINDOW):
        hi = min(lo + WINDOW - 1, found.mark)
        living = [
            numbers
            for table in (seen.table, *seen.further.values())
            for numbers in _numbers(table, lo, hi)
        ]
        dead = list(_numbers(seen.dead, lo, hi))
        found.rows += sum(map(len, living))
        found.dead_rows += sum(map(len, dead))
        _compare([*living, *dead], lo, hi, missing, double)
    if missing and seen.is_dense:
        found.problems.append(
            f"rows {missing} are in no table, and the mark is {found.mark}: they were deleted there, or went "
            "to another table (verify from a later row: --from)"
        )
    if double:
        found.problems.append(
            f"rows {double} are there more than once; delete the further ones from the table"
        )


def _check_above(table: SeenTable, found: Findings) -> None:
    above = _Ranges()
    arrays = list(_numbers(table, found.mark + 1, None))
    for number in sorted(number for numbers in arrays for number in numbers.to_pylist()):
        above.add(number, number)
    if above:
        found.problems.append(
            f"rows {above} are in the table above its mark, {found.mark}: somebody else wrote them, and the "
            "sink would write them again; delete them"
        )


def _numbers(table: SeenTable | None, lo: int, hi: int | None) -> Iterator[Any]:
    if table is not None:
        for rows in table.rows(("ack_seq",), lo, hi):
            yield rows["ack_seq"].combine_chunks()


def _compare(arrays: Sequence[Any], lo: int, hi: int, missing: _Ranges, double: _Ranges) -> None:
    """Find what *arrays* leave out of *lo* to *hi*, and what they have more than once."""
    numbers = pa.chunked_array([*arrays], pa.int64()).combine_chunks()
    if not len(numbers):
        missing.add(lo, hi)
        return
    numbers = numbers.take(pc.sort_indices(numbers))
    first, last = numbers[0].as_py(), numbers[-1].as_py()
    if first > lo:
        missing.add(lo, first - 1)
    steps = pc.subtract(numbers.slice(1), numbers.slice(0, len(numbers) - 1))
    if last - first + 1 != len(numbers) or pc.any(pc.not_equal(steps, 1)).as_py():
        before = numbers.slice(0, len(numbers) - 1)
        wide = pc.greater(steps, 1)
        for number, step in zip(
            before.filter(wide).to_pylist(), steps.filter(wide).to_pylist(), strict=True
        ):
            missing.add(number + 1, number + step - 1)
        for number in pc.unique(before.filter(pc.equal(steps, 0))).to_pylist():
            double.add(number, number)
    if last < hi:
        missing.add(last + 1, hi)


class _Ranges:
    """Ranges of ack sequences, in order, as a text: the first few and how many there are."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []
        self._count = 0

    def add(self, lo: int, hi: int) -> None:
        self._count += hi - lo + 1
        if self._ranges and self._ranges[-1][1] + 1 == lo:
            self._ranges[-1] = (self._ranges[-1][0], hi)
        elif len(self._ranges) <= _RANGES_MAX:
            self._ranges.append((lo, hi))

    def __bool__(self) -> bool:
        return bool(self._count)

    def __str__(self) -> str:
        shown = ", ".join(_text(lo, hi) for lo, hi in self._ranges[:_RANGES_MAX])
        more = ", …" if len(self._ranges) > _RANGES_MAX else ""
        return f"{shown}{more} ({self._count} in all)" if more or self._count > 1 else shown


def _text(lo: int, hi: int) -> str:
    return str(lo) if lo == hi else f"{lo} to {hi}"


# ------------------------------------------------------------------------------- the contents
def _check_content(seen: Seen, found: Findings) -> None:
    """Hash the contents of all rows, and compare those that are in a table and elsewhere, too."""
    tables = [table for table in (seen.table, *seen.further.values(), seen.dead) if table]
    total = 0
    for lo in range(seen.first, found.mark + 1, CONTENT_WINDOW):
        hi = min(lo + CONTENT_WINDOW - 1, found.mark)
        for table in tables:
            for rows in table.rows(_CONTENT, lo, hi):
                total = (total + sum(_hashes(rows).values())) % _MODULUS
    found.content = f"{total:032x}"
    if seen.table is not None:
        _compare_staged(seen, found)
        _compare_log(seen, found)


def _compare_staged(seen: Seen, found: Findings) -> None:
    different = _Ranges()
    for file in seen.staged:
        if file.lo > found.mark or not file.rows:
            continue
        try:
            staged = _hashes(pq.read_table(str(file.path)))
        except FileNotFoundError:
            continue  # the table has it, and it is gone by now
        found.compared += _add_different(seen, found, staged, different)
    if different:
        found.problems.append(
            f"rows {different} are not in the table what they are in the staged files: they were changed there"
        )


def _compare_log(seen: Seen, found: Findings) -> None:
    """With a log whose rows others still wait for, or that was not released before the gateway died."""
    different, read = _Ranges(), dict[int, int]()

    def look(least: int) -> None:
        if len(read) >= least:
            found.compared_log += _add_different(seen, found, read, different)
            read.clear()

    def take(rows: Any) -> None:
        read.update(_hashes(rows))
        look(CONTENT_WINDOW)

    seen.read_log(max(seen.first, seen.after.first) - 1, found.mark, take)
    look(1)
    if different:
        found.problems.append(
            f"rows {different} are not in the table what they are in the acknowledged log: they were changed there"
        )


def _add_different(
    seen: Seen, found: Findings, hashes: Mapping[int, int], different: _Ranges
) -> int:
    """Add to *different* the rows that have other contents in a table; how many are in one."""
    there: dict[int, int] = {}
    for table in filter(None, (seen.table, *seen.further.values())):
        for rows in table.rows(_CONTENT, min(hashes), min(max(hashes), found.mark)):
            there |= _hashes(rows)
    both = sorted(hashes.keys() & there.keys())
    for number in both:
        if hashes[number] != there[number]:
            different.add(number, number)
    return len(both)


def _hashes(rows: Any) -> dict[int, int]:
    """A hash of each row's contents, by ack sequence; the same for every format."""
    columns: list[list[Any]] = []
    for name in _CONTENT:
        if name not in rows.column_names:  # the table is of an older version
            columns.append([None] * rows.num_rows)
            continue
        column = rows[name]
        if pa.types.is_timestamp(arrow.SCHEMA.field(name).type):
            column = column.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        columns.append([_plain(value) for value in column.to_pylist()])
    found: dict[int, int] = {}
    for row in zip(*columns, strict=True):
        digest = hashlib.blake2b(repr(row).encode("utf-8", "surrogatepass"), digest_size=16)
        found[row[0]] = int.from_bytes(digest.digest(), "big")
    return found


def _plain(value: object) -> object:
    """*value* in one spelling: maps and structures differ between formats."""
    if isinstance(value, dict):
        return tuple(cast("dict[object, object]", value).items())
    if isinstance(value, list):
        return tuple(map(_plain, cast("list[object]", value)))
    return value
