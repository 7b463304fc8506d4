"""What is proved about a sink, and what is found wrong. Knows neither a format nor Spark.

Read in this order, so that the result is true even while the gateway goes on: how far the log
is, what is staged, the table (one state of it), its further tables, how far the log is now. Each moves in
one direction only.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from typing import Any, Final

from tidegate_sink_spark.staging import arrow
from tidegate_sink_spark.verify.contents import check_contents
from tidegate_sink_spark.verify.findings import Findings, Seen
from tidegate_sink_spark.verify.ranges import Ranges, text_of
from tidegate_sink_spark.verify.seen import SeenTable

pa: Final[Any] = importlib.import_module("pyarrow")
pc: Final[Any] = importlib.import_module("pyarrow.compute")

#: Ack sequences compared at once: 8 bytes each, several times over.
WINDOW: Final = 4_000_000


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
        check_contents(seen, found)
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
            f"rows {text_of(mark + 1, seen.before.first - 1)} are neither in the table nor in the log: they were "
            "released to another table, or discarded (acknowledged_limit, acknowledged_age)"
        )


def _check_staged(seen: Seen, found: Findings) -> None:
    """Check that staged files continue exactly at the mark, and that each holds what its name says."""
    through = found.mark
    for file in seen.staged:
        if file.hi <= through:
            continue
        if file.lo > through + 1:
            found.problems.append(
                f"staged files leave out rows {text_of(through + 1, file.lo - 1)} before {file.path.name}; the "
                "gateway stages them again when it runs, while its log has them"
            )
            break
        reason = arrow.check_staged(file)
        if reason and file.path.exists():  # otherwise the table has its rows by now
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
    """Check that each ack sequence up to the mark is in one of the tables, once."""
    missing, double = Ranges(), Ranges()
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
    above = Ranges()
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


def _compare(arrays: Sequence[Any], lo: int, hi: int, missing: Ranges, double: Ranges) -> None:
    """Find what *arrays* lack of *lo* to *hi*, and what they have more than once."""
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
