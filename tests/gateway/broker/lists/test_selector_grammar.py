"""Selectors as text: what is read as what, and where a bad one is bad."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.broker.lists.selector_grammar import DEPTH_MAX, LENGTH_MAX, parse
from tidegate.spi import RequestError

A = ("name", "a")
B = ("name", "b")
C = ("name", "c")
ONE = ("value", 1)


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("a OR b AND c", ("or", A, ("and", B, C))),
        ("(a OR b) AND c", ("and", ("or", A, B), C)),
        ("a AND b AND c", ("and", A, B, C)),
        ("NOT a AND b", ("and", ("not_", A), B)),
        ("NOT a = 1", ("not_", ("eq", A, ONE))),
        ("a + b * c = 1", ("eq", ("add", A, ("mul", B, C)), ONE)),
        ("a - b - c = 1", ("eq", ("sub", ("sub", A, B), C), ONE)),
        ("-a * b = 1", ("eq", ("mul", ("neg", A), B), ONE)),
        ("a - -1 = b", ("eq", ("sub", A, ("neg", ONE)), B)),
        ("a-b=1", ("eq", ("sub", A, B), ONE)),
        ("a between 1 and b and c", ("and", ("between", A, ONE, B), C)),
        ("a not in ('x','y')", ("not_in", A, ("list", ("value", "x"), ("value", "y")))),
        ("a LiKe 'it''s'", ("like", A, ("value", "it's"))),
        ("a not like 'x' escape '!'", ("not_like", A, ("value", "x"), ("value", "!"))),
        ("a is null", ("is_null", A)),
        ("a IS NOT\n NULL", ("is_not_null", A)),
        ("\"content-type\" = 'x'", ("eq", ("name", "content-type"), ("value", "x"))),
        ('"say ""hi""" = 1', ("eq", ("name", 'say "hi"'), ONE)),
        ("$x_1.y = 1", ("eq", ("name", "$x_1.y"), ONE)),
        ("notes = 1", ("eq", ("name", "notes"), ONE)),
        ("größe = 1", ("eq", ("name", "größe"), ONE)),
        ("TRUE", ("value", True)),
        ("a = false", ("eq", A, ("value", False))),
        ("a = 0x1F", ("eq", A, ("value", 31))),
        ("a = 7L", ("eq", A, ("value", 7))),
        ("a = 7.", ("eq", A, ("value", 7.0))),
        ("a = .5", ("eq", A, ("value", 0.5))),
        ("a = 6.2E-1f", ("eq", A, ("value", 0.62))),
        ("a = 57d", ("eq", A, ("value", 57.0))),
        ("convert_string_expressions:a = 1", ("eq", A, ONE)),
        ("hyphenated_props: convert_string_expressions: a = 1", ("eq", A, ONE)),
    ],
)
def test_is_read_as(text: str, tree: object) -> None:
    assert parse(text) == tree


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a =", "ends unexpectedly, at column 4"),
        ("a = 1 AND", "ends unexpectedly, at column 10"),
        ("a == 1", "unexpected '= 1' at column 4"),
        ("a = 1 b", "unexpected 'b' at column 7"),
        ("a = 'x", "the string that begins at column 5 is not closed"),
        ('"x = 1', "the quoted name that begins at column 1 is not closed"),
        ("a ? 1", "unexpected '? 1' at column 3"),
        ("a in ()", "unexpected ')' at column 7"),
        ("a in (1)", "unexpected '1)' at column 7"),
        ("a like b", "unexpected 'b' at column 8"),
        ("a = 1 OR null", "unexpected 'null' at column 10"),
        ("(a = 1", "ends unexpectedly, at column 7"),
        ("hyphenated_props: a !", "unexpected '!' at column 21"),
        ("and = 1", "unexpected 'and' at column 1; quote it"),
        ("a = " + "9" * 41, "is too long"),
        ("a = '" + "x" * LENGTH_MAX + "'", f"{LENGTH_MAX} are allowed"),
        ("NOT " * (DEPTH_MAX + 1) + "a", "levels deep"),
        ("a = 1" + " + 1" * 1000, "levels deep"),
    ],
)
def test_that_is_bad_says_what_and_where(text: str, reason: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse(text)
    assert reason in str(caught.value)
    assert str(caught.value).startswith("selector: ")


def test_long_chains_of_or_are_no_depth() -> None:
    assert len(parse("a = 1" + " OR a = 1" * 400)) == 402


_PIECES = st.sampled_from(
    [
        *("a", "b.c", '"x-y"', "1", "2.5e3", "'s'", "'", '"', "(", ")", ",", "=", "<>", "<="),
        *("+", "-", "*", "/", "AND", "OR", "NOT", "IN", "LIKE", "ESCAPE", "BETWEEN", "IS"),
        *("NULL", "TRUE", "é"),
    ]
)


@given(st.text(max_size=60) | st.lists(_PIECES, max_size=25).map(" ".join))
def test_any_text_parses_or_is_refused(text: str) -> None:
    refused = ""
    try:
        parse(text)
    except RequestError as error:
        refused = str(error)
    assert not refused or refused.startswith("selector: ")
