"""Text of clients that cannot act on a terminal."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.spi.printable import printable, printable_json, printable_lines


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain Größe 🚢", "plain Größe 🚢"),
        ("a\nb\r\tc", r"a\nb\r\tc"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("\x9b31m", r"\x9b31m"),  # the one-byte form of ESC [
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("a\u202eb\u2066c\u2028", r"a\u202eb\u2066c\u2028"),
        ("\U000e0041", r"\U000e0041"),  # a tag: invisible
        ("\ud800", r"\ud800"),
    ],
)
def test_what_would_act_is_shown_instead(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text())
def test_everything_becomes_printable(text: str) -> None:
    assert printable(text).isprintable()
    lines = printable_lines(text)
    assert lines.count("\n") == text.count("\n")
    assert lines.replace("\n", "").replace("\t", "").isprintable()


@given(st.dictionaries(st.text(), st.text() | st.lists(st.text())))
def test_json_stays_what_it_means(value: dict[str, object]) -> None:
    shown = printable_json(json.dumps(value, indent=2, ensure_ascii=False))
    assert json.loads(shown) == value
    assert shown.replace("\n", "").isprintable()
