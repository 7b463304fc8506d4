"""Names of staged files, and which of them one commit takes."""

from pathlib import Path

import pytest

from tidegate_sink_spark.staging.files import (
    StagedFile,
    choose,
    dead_name,
    is_temporary,
    list_staged,
    parse_dead_name,
    parse_name,
    reach,
    staged_name,
    temporary_name,
)


def files(*ranges: tuple[int, int], size_bytes: int = 100) -> list[StagedFile]:
    return sorted(
        StagedFile(lo, hi, Path(f"{lo}-{hi}"), size_bytes, hi - lo + 1) for lo, hi in ranges
    )


def chosen(
    ranges: list[tuple[int, int]],
    mark: int,
    *,
    rows_max: int = 10**6,
    bytes_max: int = 10**9,
    files_max: int = 100,
) -> tuple[list[tuple[int, int]], int, bool, int]:
    choice = choose(
        files(*ranges), mark, rows_max=rows_max, bytes_max=bytes_max, files_max=files_max
    )
    return [(f.lo, f.hi) for f in choice.files], choice.through, choice.more, choice.gap


def test_a_name_says_its_range_and_comes_back() -> None:
    assert staged_name(1, 50_000) == "ack-0000000000000001-0000000000050000.parquet"
    assert parse_name(staged_name(7, 7)) == (7, 7, 1, 0)


def test_a_name_says_how_many_of_its_range_a_sink_takes() -> None:
    assert staged_name(1, 9, 4) == "ack-0000000000000001-0000000000000009-00000004.parquet"
    assert parse_name(staged_name(1, 9, 4)) == (1, 9, 4, 0)
    assert parse_name(staged_name(1, 9, 4, 2)) == (1, 9, 4, 2)
    assert parse_name(staged_name(1, 9, 0, 9)) == (1, 9, 0, 9)
    assert parse_dead_name(dead_name(1, 9, 2)) == (1, 9, 2)
    assert parse_dead_name(staged_name(1, 9, 4, 2)) is None
    assert is_temporary(temporary_name(dead_name(1, 9, 2)))
    for dead in (6, -1):
        with pytest.raises(ValueError, match="cannot be a file"):
            staged_name(1, 9, 4, dead)
    assert staged_name(1, 9, 9) == staged_name(1, 9)
    for rows in (0, 10):
        with pytest.raises(ValueError, match="cannot be a file"):
            staged_name(1, 9, rows)


@pytest.mark.parametrize(("lo", "hi"), [(0, 1), (5, 4), (1, 10**16), (-1, 3)])
def test_a_range_that_cannot_be_is_refused(lo: int, hi: int) -> None:
    with pytest.raises(ValueError, match="not a range"):
        staged_name(lo, hi)


@pytest.mark.parametrize(
    "name",
    [
        "ack-1-2.parquet",
        "ack-0000000000000002-0000000000000001.parquet",
        "ack-0000000000000000-0000000000000001.parquet",
        ".ack-0000000000000001-0000000000000002.parquet.tmp",
        "ack-0000000000000001-0000000000000002.parquet.crc",
        "ack-0000000000000001-0000000000000002-00000003.parquet",
        "ack-0000000000000001-0000000000000002-00000000.parquet",
        "_SUCCESS",
    ],
)
def test_other_names_are_no_staged_files(name: str) -> None:
    assert parse_name(name) is None


def test_a_temporary_name_starts_with_a_dot_so_that_spark_ignores_it() -> None:
    name = temporary_name(staged_name(1, 2))
    assert name.startswith(".")
    assert is_temporary(name)
    assert not is_temporary(staged_name(1, 2))


def test_files_are_listed_by_number_and_others_left_out(tmp_path: Path) -> None:
    for lo, hi in [(11, 20), (1, 10), (9_999_999_999, 10_000_000_000)]:
        (tmp_path / staged_name(lo, hi)).write_bytes(b"x" * lo if lo < 100 else b"")
    (tmp_path / temporary_name(staged_name(21, 30))).touch()
    (tmp_path / "notes.txt").touch()
    found = list_staged(tmp_path)
    assert [(f.lo, f.hi) for f in found] == [(1, 10), (11, 20), (9_999_999_999, 10_000_000_000)]
    assert [f.size_bytes for f in found] == [1, 11, 0]
    assert found[0].rows == 10


def test_a_missing_directory_is_not_an_empty_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list_staged(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("ranges", "after", "expected"),
    [
        ([], 5, 5),
        ([(6, 10)], 5, 10),
        ([(7, 10)], 5, 5),
        ([(1, 10), (11, 20), (22, 30)], 0, 20),
        ([(1, 10), (5, 8), (11, 12)], 0, 12),
        ([(1, 3)], 5, 5),
    ],
)
def test_reach_ends_before_the_first_missing_row(
    ranges: list[tuple[int, int]], after: int, expected: int
) -> None:
    assert reach(files(*ranges), after) == expected


def test_files_that_continue_the_mark_are_taken_together() -> None:
    assert chosen([(1, 10), (11, 20)], 0) == ([(1, 10), (11, 20)], 20, False, 0)


def test_nothing_is_taken_when_nothing_is_new() -> None:
    assert chosen([(1, 10), (11, 20)], 20) == ([], 20, False, 0)
    assert chosen([], 7) == ([], 7, False, 0)


def test_files_before_the_mark_are_skipped_and_an_overlap_comes_first() -> None:
    assert chosen([(1, 10), (5, 25), (26, 30)], 12) == ([(5, 25), (26, 30)], 30, False, 0)


def test_a_later_overlap_waits_until_it_is_the_first_file() -> None:
    ranges = [(1, 10), (1, 15), (16, 20)]
    assert chosen(ranges, 0) == ([(1, 10)], 10, True, 0)
    assert chosen(ranges, 10) == ([(1, 15), (16, 20)], 20, False, 0)


def test_nothing_behind_a_missing_range_is_taken() -> None:
    assert chosen([(1, 10), (21, 30)], 0) == ([(1, 10)], 10, False, 21)
    assert chosen([(21, 30)], 10) == ([], 10, False, 21)


def test_a_commit_is_bounded_by_rows_bytes_and_files_but_takes_one_file_at_least() -> None:
    ranges = [(1, 10), (11, 20), (21, 30)]
    assert chosen(ranges, 0, rows_max=25) == ([(1, 10), (11, 20)], 20, True, 0)
    assert chosen(ranges, 0, bytes_max=199) == ([(1, 10)], 10, True, 0)
    assert chosen(ranges, 0, files_max=2) == ([(1, 10), (11, 20)], 20, True, 0)
    assert chosen(ranges, 0, rows_max=1) == ([(1, 10)], 10, True, 0)
