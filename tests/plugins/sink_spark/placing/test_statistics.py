"""What the log says of a file: never less than the file holds."""

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidegate_sink_spark.placing.statistics import FileFacts


def statistics(path: Path, kind: Any, values: list[Any], groups: int = 2) -> dict[str, Any]:
    table = pa.table({"c": pa.array(values, kind)})
    pq.write_table(table, path, row_group_size=groups, store_schema=False)
    return json.loads(FileFacts(path).statistics(["c"]))


UTC_US = pa.timestamp("us", tz="UTC")
AT = dt.datetime(2026, 1, 2, 3, 4, 5, 6_789, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("kind", "values", "low", "high"),
    [
        (pa.int64(), [5, -3, 9, 2], -3, 9),
        (pa.string(), ["b", "a", "ü"], "a", "ü"),
        (pa.string(), ["x" * 40, "y" * 32], "x" * 32, "y" * 32),
        (pa.string(), ["x" * 32, "x" * 33], "x" * 32, "x" * 32 + "\U0010ffff"),
        (pa.string(), ["x", "x" * 32 + "\U0010ffffy"], "x", None),
        (UTC_US, [AT, AT], "2026-01-02T03:04:05.006Z", "2026-01-02T03:04:05.007Z"),
        (UTC_US, [AT.replace(microsecond=7_000)], *["2026-01-02T03:04:05.007Z"] * 2),
        (pa.date32(), [dt.date(2026, 1, 2), dt.date(2025, 1, 2)], "2025-01-02", "2026-01-02"),
        (pa.binary(), [b"a", b"b"], None, None),
        (pa.float64(), [1.5, float("inf")], None, None),
        (pa.bool_(), [True, False], None, None),
        (UTC_US, [10**18 * 4, 0], None, None),  # the year 128,726
        (UTC_US, [253_402_300_799_999_999], "9999-12-31T23:59:59.999Z", None),
    ],
)
def test_bounds_hold_every_value(
    tmp_path: Path, kind: Any, values: list[Any], low: Any, high: Any
) -> None:
    found = statistics(tmp_path / "a.parquet", kind, values)
    assert found["numRecords"] == len(values)
    assert found["minValues"].get("c") == low
    assert found["maxValues"].get("c") == high
    assert found["nullCount"] == {"c": 0}


def test_nothing_is_said_of_a_column_without_values(tmp_path: Path) -> None:
    found = statistics(tmp_path / "a.parquet", pa.string(), [None, None, None])
    assert found == {"numRecords": 3, "minValues": {}, "maxValues": {}, "nullCount": {"c": 3}}


def test_a_group_without_values_hides_no_other_ones(tmp_path: Path) -> None:
    found = statistics(tmp_path / "a.parquet", pa.int64(), [None, None, 4, 5])
    assert found["minValues"].get("c") in (None, 4)
    assert found["nullCount"] == {"c": 2}


def test_nested_columns_are_not_told(tmp_path: Path) -> None:
    found = statistics(tmp_path / "a.parquet", pa.map_(pa.string(), pa.string()), [{"a": "b"}])
    assert found == {"numRecords": 1, "minValues": {}, "maxValues": {}, "nullCount": {}}
