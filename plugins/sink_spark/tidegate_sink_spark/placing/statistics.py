"""What a table's log says of a data file, taken from the file's own footer.

Readers leave out files by it, so it must never promise too much: a smallest value may be smaller than
any row, a largest one larger, and a column that is not told is in no way restricted. Format: Delta's
PROTOCOL.md, "Per-file Statistics".
"""

from __future__ import annotations

import datetime as dt
import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

pq: Final[Any] = importlib.import_module("pyarrow.parquet")

#: Characters of a text that are kept, as in Delta's own writers.
TEXT_CHARACTERS_MAX: Final = 32
#: Behind a prefix: larger than whatever character may follow it.
_LARGEST_CHARACTER: Final = "\U0010ffff"
_MILLISECOND: Final = dt.timedelta(milliseconds=1)


class FileFacts:
    """A data file as its footer tells it. Attributes: rows, size_bytes."""

    def __init__(self, path: Path) -> None:
        """Raises: OSError, ArrowException when it is not a readable Parquet file."""
        self.size_bytes = path.stat().st_size
        self._footer = pq.read_metadata(str(path))
        self.rows: int = self._footer.num_rows
        names = (self._footer.schema.column(n).path for n in range(self._footer.num_columns))
        self._leaf = {str(name): number for number, name in enumerate(names)}

    def bounds(self, column: str) -> tuple[Any, Any] | None:
        """Smallest and largest value of a top-level *column*; None when they are not told."""
        chunks = self._chunks(column)
        if not chunks or any(chunk is None or not chunk.has_min_max for chunk in chunks):
            return None
        try:
            return min(chunk.min for chunk in chunks), max(chunk.max for chunk in chunks)
        except (ValueError, OverflowError):
            return None  # a time that Python has no value for

    def nulls(self, column: str) -> int | None:
        """How many rows have no value there; None when that is not told."""
        chunks = self._chunks(column)
        if not chunks or any(chunk is None or not chunk.has_null_count for chunk in chunks):
            return None
        return sum(int(chunk.null_count) for chunk in chunks)

    def _chunks(self, column: str) -> list[Any]:
        leaf = self._leaf.get(column)  # the path of a nested column's leaf is a longer one
        if leaf is None:
            return []
        groups = range(self._footer.num_row_groups)
        return [self._footer.row_group(number).column(leaf).statistics for number in groups]

    def statistics(self, columns: Sequence[str]) -> str:
        """The ``stats`` of the file's ``add`` action, for *columns* (not those of the partition)."""
        smallest: dict[str, Any] = {}
        largest: dict[str, Any] = {}
        nulls: dict[str, int] = {}
        for column in columns:
            count = self.nulls(column)
            if count is not None:
                nulls[column] = count
            bounds = self.bounds(column)
            if bounds is None or isinstance(bounds[0], bytes):
                continue
            low, high = _smallest(bounds[0]), _largest(bounds[1])
            if low is not None:
                smallest[column] = low
            if high is not None:
                largest[column] = high
        return json.dumps(
            {
                "numRecords": self.rows,
                "minValues": smallest,
                "maxValues": largest,
                "nullCount": nulls,
            },
            separators=(",", ":"),
        )


def _smallest(value: Any) -> Any:
    if isinstance(value, str):
        return value[:TEXT_CHARACTERS_MAX]
    if isinstance(value, dt.datetime):
        return _instant(value)
    return _plain(value)


def _largest(value: Any) -> Any:
    if isinstance(value, str):
        if len(value) <= TEXT_CHARACTERS_MAX:
            return value
        if value[TEXT_CHARACTERS_MAX] == _LARGEST_CHARACTER:
            return None
        return value[:TEXT_CHARACTERS_MAX] + _LARGEST_CHARACTER
    if isinstance(value, dt.datetime):
        if value.microsecond % 1000 == 0:
            return _instant(value)
        try:
            return _instant(value + _MILLISECOND)
        except OverflowError:
            return None
    return _plain(value)


def _instant(value: dt.datetime) -> str:
    """UTC, cut to milliseconds: finer ones are not read by all."""
    return value.astimezone(dt.UTC).replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def _plain(value: Any) -> Any:
    if isinstance(value, dt.date):
        return value.isoformat()
    # Whole numbers only: of NaN, infinity and decimals readers disagree about the way to write them.
    return value if isinstance(value, int) and not isinstance(value, bool) else None
