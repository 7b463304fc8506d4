"""Rows of the log as columns are the rows that they were made of."""

from typing import Any

from tidegate.spi import Outcome, encode_rows
from tidegate_sink_spark.staging.rows import LogRows


def rows_of(kit: Any, *numbers: int) -> list[Any]:
    return [kit.acknowledged(number) for number in numbers]


def test_columns_of_rows_are_those_rows(kit: Any) -> None:
    rows = rows_of(kit, 1, 2, 3)
    found = LogRows.of(rows)
    assert list(found) == rows
    assert (len(found), found[1]) == (3, rows[1])
    assert list(LogRows.of([])) == []


def test_a_run_is_added_as_it_is_decoded(kit: Any) -> None:
    rows = rows_of(kit, 1, 2, 3, 4)
    found = LogRows()
    for run in encode_rows(rows):
        found.add_run(run, run.decode_messages())
    assert list(found) == rows
    assert found.outcomes == [Outcome.ACKNOWLEDGED] * 4


def test_some_of_them_are_taken_and_one_is_added(kit: Any) -> None:
    rows = rows_of(kit, 1, 2, 3, 4, 5)
    found = LogRows.of(rows)
    assert list(found.part(1, 3)) == rows[1:3]
    assert list(found.part(4, 9)) == rows[4:]
    assert list(found.only([0, 4])) == [rows[0], rows[4]]
    part = found.part(0, 4)
    part.add(rows[4])
    assert list(part) == rows
    assert list(found) == rows
