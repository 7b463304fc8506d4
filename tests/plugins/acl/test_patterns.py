"""What rules say of a filter is what they say of each of the names that it covers."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.spi import names
from tidegate_acl import _patterns
from tidegate_acl._patterns import Coverage, Pattern, decide

#: Patterns have at most three levels, of these; "other" and "$other" stand for any other level.
LITERALS = ("a", "$x", "")
NAMES = [
    ".".join([first, *levels])
    for length in (0, 1, 2, 3)
    for first in (*LITERALS, "other", "$other")
    for levels in itertools.product((*LITERALS, "other"), repeat=length)
]
NAMES.remove("")


def pattern(text: str, allows: bool = True, covers_dollar: bool = False) -> Pattern:
    return Pattern(tuple(text.split(".")), allows, covers_dollar)


def covers(item: Pattern, name: str) -> bool:
    return item.covers_dollar or names.matches(".".join(item.levels), name)


def brute(wanted: str, patterns: list[Pattern]) -> Coverage:
    found = {
        next((item.allows for item in patterns if covers(item, name)), False)
        for name in NAMES
        if names.matches(wanted, name)
    }
    if len(found) == 2:
        return Coverage.SOME
    return Coverage.ALL if True in found else Coverage.NONE


filters = st.builds(
    lambda levels, rest: ".".join([*levels, *rest]),
    st.lists(st.sampled_from([*LITERALS, "*"]), max_size=2),
    st.sampled_from([["*"], [">"], ["a"], ["$x"]]),
)
patterns = st.lists(
    st.one_of(
        st.builds(pattern, filters, st.booleans()),
        st.builds(pattern, st.just(">"), st.booleans(), st.just(True)),
    ),
    max_size=6,
)


@given(filters, patterns)
@settings(max_examples=300)
def test_the_answer_about_a_filter_is_that_of_all_its_names(
    wanted: str, found: list[Pattern]
) -> None:
    assert decide(wanted.split("."), found)[0] is brute(wanted, found)


@given(st.sampled_from(NAMES), patterns)
def test_a_pattern_covers_the_names_that_a_subscription_would(
    name: str, found: list[Pattern]
) -> None:
    for item in found:
        assert item.matches(name.split(".")) is covers(item, name)


@pytest.mark.parametrize(
    ("wanted", "rules", "coverage"),
    [
        ("*.plan", ["-secret.plan", "+*.plan"], Coverage.SOME),
        ("*.plan", ["+*.plan", "-secret.plan"], Coverage.ALL),
        ("secret.>", ["-secret.plan", "+secret.plan"], Coverage.NONE),
        ("secret.>", ["-secret.>", "+>"], Coverage.NONE),
        ("a.>", ["+a", "+a.*", "+a.*.>"], Coverage.ALL),  # together they are all of it
        ("a.>", ["+a.*", "+a.*.>"], Coverage.SOME),  # without "a" itself
        (">", ["+>"], Coverage.ALL),  # as MQTT sees it: "$SYS" is not among them
        ("$SYS.>", ["+>"], Coverage.NONE),
        ("$SYS.>", ["+$SYS.>"], Coverage.ALL),
        ("*", ["+*.>"], Coverage.ALL),
        (">", [], Coverage.NONE),
    ],
)
def test_known_cases(wanted: str, rules: list[str], coverage: Coverage) -> None:
    found = [pattern(text[1:], text[0] == "+") for text in rules]
    assert decide(wanted.split("."), found)[0] is coverage


def test_it_is_told_which_patterns_decided() -> None:
    found = [pattern("a.b", False), pattern("x.y"), pattern("a.*")]
    assert decide(["a", "*"], found) == (Coverage.SOME, (0, 2))
    assert decide(["a", "c"], found) == (Coverage.ALL, (2,))
    assert decide(["c"], found) == (Coverage.NONE, (-1,))


def test_a_filter_that_would_take_long_is_asked_about_message_by_message() -> None:
    """Else one SUBSCRIBE could keep everybody waiting."""
    many = [
        Pattern(tuple("*" if bit else f"l{number}" for bit in bits), True)
        for number in range(16)
        for bits in itertools.product((0, 1), repeat=6)
    ]
    walk = _patterns._Walk(("*",) * 6, many)
    assert walk.result() in (Coverage.SOME, Coverage.ALL)
    assert walk._work <= _patterns.WORK_MAX * 1.1


@pytest.mark.parametrize("allows", [True, False])
@pytest.mark.parametrize("wanted", [["*"] * 128, ["*"] * 127 + [">"], [">"], ["*", "*", "*", "b1"]])
def test_a_hundred_rules_are_no_reason_to_give_up(wanted: list[str], allows: bool) -> None:
    texts = [f"a{number}.*.b{number % 7}.>" for number in range(100)]
    texts += [f"*.c{number % 5}.>" for number in range(100)]
    patterns = [pattern(text, allows) for text in texts]
    if allows:
        patterns.append(pattern(">"))
    walk = _patterns._Walk(tuple(wanted), patterns)
    assert walk.result() is (Coverage.ALL if allows else Coverage.NONE)
    mixed = [pattern(text, index % 2 == 0) for index, text in enumerate(texts)]
    walk = _patterns._Walk(tuple(wanted), mixed)
    assert walk.result() is Coverage.SOME
    assert walk._work < 500
