"""The contents of rows: hashed all together, and compared with any other copy.

Each row of the tables is accounted for in one way: it was compared with its staged copy or with the log; it is a
dead letter, whose number and reason are checked; or no other copy is left, and it is only in the hash.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, cast

import google_crc32c

from tidegate.spi import LargeBody
from tidegate_sink_spark.staging import arrow
from tidegate_sink_spark.staging.dead import REASON
from tidegate_sink_spark.verify.findings import Findings, Seen
from tidegate_sink_spark.verify.ranges import Numbers, Ranges
from tidegate_sink_spark.verify.seen import LogPart, SeenTable

pa: Final[Any] = importlib.import_module("pyarrow")
pq: Final[Any] = importlib.import_module("pyarrow.parquet")

#: Rows whose contents are compared at once.
CONTENT_WINDOW: Final = 50_000
#: Columns of a row's contents: `ack_date` follows from `acked_at`, and some formats have it in the path.
_CONTENT: Final = tuple(name for name in arrow.SCHEMA.names if name != "ack_date")
_MODULUS: Final = 1 << 128

#: ``crc32c(data)`` is the checksum of a :class:`~tidegate.spi.LargeBody` (the package is untyped).
_crc32c: Final = cast(
    "Callable[[bytes], int]",
    google_crc32c.value,  # pyright: ignore[reportUnknownMemberType]  # untyped package
)


def check_contents(seen: Seen, found: Findings) -> None:
    """Hash all rows up to the mark, compare those that have another copy, and count what was done with each.

    Raises: CommitError, OSError.
    """
    dead = _hash_all(seen, found)
    if seen.table is not None:
        staged = _compare_staged(seen, found)
        of_log = _compare_log(seen, found, dead)
        found.only_hashed = found.rows - staged.union_count(of_log)


def _hash_all(seen: Seen, found: Findings) -> set[int]:
    """Hash the rows, and check that each dead letter has a reason. Returns: their ack sequences."""
    total, dead, silent = 0, set[int](), Ranges()
    for lo in range(seen.first, found.mark + 1, CONTENT_WINDOW):
        hi = min(lo + CONTENT_WINDOW - 1, found.mark)
        for table in _living(seen):
            for rows in table.rows(_CONTENT, lo, hi):
                total += sum(_hashes(rows).values())
        if seen.dead is not None:
            letters: dict[int, bool] = {}
            for rows in seen.dead.rows(_CONTENT, lo, hi):
                total += sum(_hashes(rows).values())
                letters |= _reasoned(rows)
            dead |= letters.keys()
            for number in sorted(number for number, says_why in letters.items() if not says_why):
                silent.add(number, number)
        total %= _MODULUS
    found.content = f"{total:032x}"
    found.dead_named = found.dead_rows - len(silent)
    if silent:
        found.problems.append(
            f"rows {silent} are in the dead-letter table without the header {REASON}: they were changed there"
        )
    return dead


def _reasoned(rows: Any) -> dict[int, bool]:
    """Which dead letters have a reason."""
    found: dict[int, bool] = {}
    for number, headers in zip(
        rows["ack_seq"].to_pylist(), rows["headers"].to_pylist(), strict=True
    ):
        pairs = cast("dict[str, str]", dict(headers or ()))
        found[number] = bool(pairs.get(REASON))
    return found


def _compare_staged(seen: Seen, found: Findings) -> Numbers:
    """Compare with staged files that the mark has passed. Returns: what was compared."""
    different, compared = Ranges(), Numbers()
    for file in sorted(seen.staged, key=lambda file: file.lo):
        if file.lo > found.mark or not file.rows:
            continue
        try:
            staged = _hashes(pq.read_table(str(file.path)))
        except FileNotFoundError:
            continue  # the table has its rows, so it was deleted
        both = _compare(staged, _of_tables(seen, found, staged, {}), different)
        found.compared += len(both)
        compared.add(both)
    if different:
        found.problems.append(
            f"rows {different} are not in the table what they are in the staged files: they were changed there"
        )
    return compared


def _compare_log(seen: Seen, found: Findings, dead: Collection[int]) -> Numbers:
    """Compare with a log whose rows others still need, or that was not released before the gateway died."""
    reading = _LogReading(seen, found, dead)
    seen.read_log(max(seen.first, seen.after.first) - 1, found.mark, reading.take)
    reading.look()
    reading.tell()
    return reading.compared


class _LogReading:
    """The log's rows as they come. Attributes: compared: the table's rows that were."""

    def __init__(self, seen: Seen, found: Findings, dead: Collection[int]) -> None:
        self._seen = seen
        self._found = found
        self._dead = dead
        self._different, self._unread = Ranges(), Ranges()
        self._hashes: dict[int, int] = {}
        self._bodies: dict[int, LargeBody] = {}
        self._damaged: list[int] = []
        self.compared = Numbers()

    def take(self, part: LogPart) -> None:
        """Some rows, after those that came before."""
        bodies = part.bodies
        self._hashes |= _hashes(
            part.rows, lambda n, body: _stored(bodies[n]) if n in bodies else body
        )
        self._bodies |= bodies
        self._damaged += part.damaged
        if len(self._hashes) + len(self._damaged) >= CONTENT_WINDOW:
            self.look()

    def look(self) -> None:
        """Compare the rows that came."""
        seen, found = self._seen, self._found
        there = _of_tables(seen, found, [*self._hashes, *self._damaged], self._bodies)
        both = _compare(self._hashes, there, self._different)
        outlined = sum(number in self._bodies for number in both)
        found.compared_checksum += outlined
        found.compared_log += len(both) - outlined
        self.compared.add(both)
        found.not_taken += len(self._hashes.keys() - there.keys() - set(self._dead))
        for number in self._damaged:
            if number in there:  # it was read once, and written
                found.damaged += 1
                self._unread.add(number, number)
        self._hashes.clear()
        self._bodies.clear()
        self._damaged.clear()

    def tell(self) -> None:
        """Report what is wrong, and what is worth knowing."""
        if self._different:
            self._found.problems.append(
                f"rows {self._different} are not in the table what they are in the acknowledged log: they were "
                "changed there"
            )
        if self._unread:
            self._found.notes.append(
                f"rows {self._unread} are damaged in the log by now, and in the table: there is nothing to compare "
                "them with"
            )


def _living(seen: Seen) -> list[SeenTable]:
    return [table for table in (seen.table, *seen.further.values()) if table is not None]


def _of_tables(
    seen: Seen, found: Findings, numbers: Collection[int], bodies: Mapping[int, LargeBody]
) -> dict[int, int]:
    """Hashes of the tables' rows among *numbers* and between, of *bodies* by size and checksum."""
    if not numbers:
        return {}
    there: dict[int, int] = {}
    for table in _living(seen):
        lo, hi = max(min(numbers), seen.first), min(max(numbers), found.mark)
        for rows in table.rows(_CONTENT, lo, hi):
            there |= _hashes(
                rows, lambda n, body: (len(body), _crc32c(body)) if n in bodies else body
            )
    return there


def _stored(body: LargeBody) -> tuple[int, int]:
    """A body stored elsewhere, as its reference describes it."""
    return body.size, body.checksum


def _compare(hashes: Mapping[int, int], there: Mapping[int, int], different: Ranges) -> list[int]:
    """Add to *different* the rows whose contents differ in a table. Returns: the rows in both, in order."""
    both = sorted(hashes.keys() & there.keys())
    for number in both:
        if hashes[number] != there[number]:
            different.add(number, number)
    return both


def _whole(_number: int, body: bytes) -> object:
    return body


def _hashes(rows: Any, body_of: Callable[[int, bytes], object] = _whole) -> dict[int, int]:
    """A hash of each row's contents, by ack sequence; the same for every format.

    Args: body_of: what counts of a row's body.
    """
    columns: list[Iterable[Any]] = []
    for name in _CONTENT:
        if name not in rows.column_names:  # the table is of an older version
            columns.append([None] * rows.num_rows)
            continue
        column = rows[name]
        if pa.types.is_timestamp(arrow.SCHEMA.field(name).type):
            column = column.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        values = column.to_pylist()
        if name == "body":
            numbers = rows["ack_seq"].to_pylist()
            columns.append(map(body_of, numbers, values))
        else:
            columns.append(map(_plain, values))
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
