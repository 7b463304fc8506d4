"""Sizes and times are read as the seed documents write them, and always have a unit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.spi import format_duration, format_size, parse_duration, parse_size
from tidegate.spi.units import moment


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("32mb", 32 << 20),
        ("1024kb", 1 << 20),
        ("256 MB", 256 << 20),
        ("1G", 1 << 30),
        (" 10 KiB ", 10 << 10),
        ("1.5k", 1536),
        ("2T", 2 << 40),
        ("0b", 0),
        ("7 b", 7),
        ("3\tmb", 3 << 20),
    ],
)
def test_sizes_are_powers_of_1024_whatever_their_case_and_spaces(text: str, expected: int) -> None:
    assert parse_size(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("500ms", 0.5),
        ("30s", 30.0),
        ("30 sec", 30.0),
        ("5 min", 300.0),
        ("2m", 120.0),
        ("1H", 3600.0),
        ("1.5d", 129_600.0),
        ("250us", 0.00025),
        ("0s", 0.0),
    ],
)
def test_times_are_seconds(text: str, expected: float) -> None:
    assert parse_duration(text) == pytest.approx(expected)


@pytest.mark.parametrize(
    "text", ["", "32", "mb", "-1mb", "1 m b", "1xb", "1kbb", "0x10kb", "1e3kb", "\u0661kb", "1ms"]
)
def test_what_is_not_a_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"e\.g\. '32mb'"):
        parse_size(text)


@pytest.mark.parametrize("text", ["", "500", "ms", "-1s", "1 week", "1mb", "1 s s", "1,5s"])
def test_what_is_not_a_time_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"e\.g\. '500ms'"):
        parse_duration(text)


@given(st.integers(0, 1 << 50))
def test_a_size_is_written_as_it_is_read(size: int) -> None:
    assert parse_size(format_size(size)) == size


@given(st.integers(0, 10**15))
def test_a_time_is_written_as_it_is_read(microseconds: int) -> None:
    seconds = microseconds / 1_000_000
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(("size", "text"), [(32 << 20, "32mb"), (1 << 30, "1gb"), (1000, "1000b")])
def test_the_largest_whole_unit_is_taken(size: int, text: str) -> None:
    assert format_size(size) == text
    assert format_duration(90) == "90s"
    assert format_duration(0.5) == "500ms"


def test_a_moment_is_utc_to_the_second() -> None:
    assert moment(1_700_000_000.9) == "2023-11-14T22:13:20Z"
