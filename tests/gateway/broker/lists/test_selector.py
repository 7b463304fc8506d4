"""What selectors select."""

from __future__ import annotations

import fnmatch
import gc
import re
import sys
import time
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.broker.lists import selector, selector_like
from tidegate.broker.lists.selector import compile_selector
from tidegate.broker.lists.selector_grammar import parse
from tidegate.broker.lists.selector_like import compile_like
from tidegate.spi import Message, RequestError

MESSAGE = Message(
    "queue://q",
    b"body",
    (
        ("color", "red"),
        ("color", "blue"),
        ("n", "42"),
        ("f", "2.50"),
        ("yes", "true"),
        ("x-y", "5"),
        ("x", "9"),
        ("y", "4"),
        ("type", "order"),
        ("JMSXGroupID", "g1"),
        ("per", "50%"),
        ("text", "line\nbreak"),
        ("weird", "1e400"),
        ("long", "9" * 60),
    ),
    received_at=1_700_000_000_123_456,
    expires_at=1_800_000_000_000_000,
    priority=7,
    persistent=False,
    content_type="text/plain",
    correlation_data=b"c-1",
    reply_to="queue://answers",
)


def selects(text: str, message: Message = MESSAGE) -> bool:
    matches = compile_selector(text)
    assert matches is not None
    return matches(message)


@pytest.mark.parametrize(
    "text",
    [
        "color = 'red'",
        "color <> 'blue'",
        "n = 42",
        "n = '42'",
        "n = 42.0",
        "n > 41 AND n < 43 AND n >= 42 AND n <= 42",
        "f = 2.5",
        "n > f",
        "yes",
        "yes = TRUE",
        "NOT (yes = FALSE)",
        "x - y = 5",
        '"x-y" = 5',
        "n / 4 = 10",
        "n / 4.0 = 10.5",
        "-7 / 2 = -3",
        "n * 2 + 1 - -1 = 86",
        "+n = 42",
        "n BETWEEN 42 AND 42",
        "n NOT BETWEEN 1 AND 41",
        "color IN ('green', 'red')",
        "color NOT IN ('blue')",
        "color LIKE 'r%' AND color LIKE '_e_' AND color LIKE '%' AND color LIKE '%d'",
        "color NOT LIKE 'r_'",
        "per LIKE '50!%' ESCAPE '!' AND color NOT LIKE 'r!%' ESCAPE '!'",
        "text LIKE 'line%break'",
        "missing IS NULL AND color IS NOT NULL",
        "JMSPriority = 7 AND priority = 7",
        "JMSTimestamp = 1700000000123",
        "JMSExpiration = 1800000000000",
        "JMSDeliveryMode = 'NON_PERSISTENT' AND persistent = FALSE",
        "JMSCorrelationID = 'c-1' AND \"correlation-id\" = 'c-1'",
        "JMSType = 'order' AND type = 'order'",
        "JMSReplyTo = 'queue://answers'",
        "JMSXGroupID = 'g1'",
        "JMSMessageID IS NULL",
        "\"content-type\" = 'text/plain'",
        "convert_string_expressions:n > 41",
        "TRUE",
    ],
)
def test_is_selected(text: str) -> None:
    assert selects(text)


@pytest.mark.parametrize(
    "text",
    [
        "color = 'blue'",  # only the first of repeated headers counts
        "color = 1",
        "color > 'a'",  # strings have no order
        "color + 1 = 1",
        "missing = 1",
        "missing <> 1",
        "NOT (missing = 1)",
        "missing IN ('x')",
        "missing NOT IN ('x')",
        "missing LIKE '%'",
        "missing NOT LIKE '%'",
        "missing BETWEEN 1 AND 2",
        "missing NOT BETWEEN 1 AND 2",
        "missing",
        "n / 0 = 1",
        "n / 0 <> 1",
        "weird > 1",
        "long = 1",
        "n = 'x'",
        "color LIKE 'R%'",
        "Color = 'red'",
        "FALSE",
    ],
)
def test_is_not_selected(text: str) -> None:
    if "'a'" in text:
        with pytest.raises(RequestError, match="'a' is not a number"):
            compile_selector(text)
        return
    assert not selects(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("'x'", "'x' is no condition"),
        ("n + 1", "a calculation is no condition"),
        ("n AND 1", "1 is no condition"),
        ("'1' + 1 = 2", "'1' is not a number"),
        ("TRUE > 1", "TRUE is not a number"),
        ("(n = 1) + 1 = 2", "a condition is not a number"),
        ("1 IN ('1')", "need a name"),
        ("n LIKE 'x' ESCAPE 'ab'", "ESCAPE needs one character"),
        ("n LIKE 'x!' ESCAPE '!'", "ends with its ESCAPE"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, reason: str) -> None:
    with pytest.raises(RequestError) as caught:
        compile_selector(text)
    assert reason in str(caught.value)


def test_nothing_selects_everything() -> None:
    assert (compile_selector(""), compile_selector("  ")) == (None, None)


_WORDS = {True: "yes", False: "yes = FALSE", None: "missing = 1"}
_TABLE = [(left, right) for left in _WORDS for right in _WORDS]


@pytest.mark.parametrize(("left", "right"), _TABLE)
def test_and_or_and_not_have_three_values(left: bool | None, right: bool | None) -> None:
    def value(text: str) -> bool | None:
        if selects(text):
            return True
        return False if selects(f"NOT ({text})") else None

    known = (left, right)
    both = False if False in known else None if None in known else True
    either = True if True in known else None if None in known else False
    assert value(f"{_WORDS[left]} AND {_WORDS[right]}") is both
    assert value(f"{_WORDS[left]} OR {_WORDS[right]}") is either
    assert value(f"NOT {_WORDS[left]}") is (None if left is None else not left)


@given(st.text("ab%_", max_size=8), st.text("ab", max_size=12))
def test_like_is_what_a_shell_pattern_is(pattern: str, text: str) -> None:
    wanted = fnmatch.fnmatchcase(text, pattern.replace("%", "*").replace("_", "?"))
    message = Message("queue://q", b"", (("t", text),))
    assert selects(f"t LIKE '{pattern}'", message) is wanted


_LETTERS = "abcd\u00e9\u0163\u1e63\ud800\U0001f40b\U0001f60b"  # some have bytes in common


@given(st.data())
def test_a_long_piece_of_like_is_found_where_it_is(data: st.DataObject) -> None:
    letters = data.draw(st.sampled_from(["ab", "abcd", _LETTERS]))
    text = data.draw(st.text(letters, max_size=40)) * data.draw(st.integers(1, 5))
    begin = data.draw(st.integers(0, len(text)))
    near = text[begin : begin + data.draw(st.integers(2, 40))]
    changes = st.sampled_from([None, None, None, "_", "_", letters[0]])
    piece = "_" + "".join(data.draw(changes) or letter for letter in near)
    wanted = re.search(f"{piece}.*b".replace("_", "."), text, re.DOTALL) is not None
    assert compile_like(f"%{piece}%b%", None)(text) is wanted


def test_a_piece_of_like_is_found_across_what_nearly_is_one() -> None:
    wild = compile_like("%" + "_a" * 20 + "b%c", None)
    assert wild("a" * 500 + "b" + "c")
    assert not wild("a" * 500 + "c")
    assert not wild("b" * 500 + "c")


@pytest.mark.parametrize(
    "text", ["a" * 3000, "ab" * 10_000, "a" * 2985 + "b" * 15, "é" * 3000 + "b"]
)
def test_like_tries_few_places_and_reads_a_text_once_for_all_selectors(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = read = 0

    class Text(str):
        __slots__ = ()

        def find(self, *where: Any) -> int:
            nonlocal tried
            tried += 1
            return str.find(self, *where)

    def counted(characters: str) -> Counter[str]:
        nonlocal read
        read += 1
        return Counter(characters)

    monkeypatch.setattr(selector_like, "Counter", counted)
    for letter in "abcdefghijé":
        assert not compile_like("%" + f"_{letter}" * 30 + "bxb%", None)(Text(text))
    assert read == 1
    assert tried <= 11 * 40  # a place of the rarest character each


@pytest.mark.parametrize("condition", ["'%" + "_" * 65 + "%'", "'x' OR n LIKE " * 8 + "'y'"])
def test_a_like_that_would_take_long_is_refused(condition: str) -> None:
    with pytest.raises(RequestError, match=r"more than (64|8) "):
        compile_selector(f"n LIKE {condition}")


def test_like_takes_no_exponential_time() -> None:
    message = Message("queue://q", b"", (("t", "a" * 20_000),))
    began = time.process_time()
    assert not selects("t LIKE '" + "%a" * 1000 + "%b'", message)
    assert time.process_time() - began < 30  # a backtracking one would not end at all


_NAMES = st.sampled_from(["n", "f", "color", "missing", "yes", "weird", "long", "1", "0", "2.5"])
_OPERATORS = st.sampled_from(["+", "-", "*", "/", "=", "<>", "<", ">=", "AND", "OR"])


@given(st.lists(st.tuples(_NAMES, _OPERATORS), min_size=1, max_size=12), _NAMES)
def test_no_message_makes_a_selector_fail(parts: list[tuple[str, str]], last: str) -> None:
    text = " ".join(f"{name} {operator}" for name, operator in parts) + f" {last}"
    try:
        matches = compile_selector(text)
    except RequestError:
        return
    assert matches is not None
    assert matches(MESSAGE) in (True, False)


def test_large_numbers_stay_bounded() -> None:
    many = " * ".join(["n"] * 90)
    assert not selects(f"{many} > 1")
    assert not selects(f"{many} < 1")


def test_a_compiled_selector_is_used_again() -> None:
    assert compile_selector("n = 1") is compile_selector("n = 1")
    assert parse("n = 1") == parse("n=1")


def test_long_selectors_are_one_while_somebody_has_them_and_then_forgotten() -> None:
    text = " OR ".join(f"number = {number}" for number in range(200))
    assert len(text) > selector._REMEMBERED_CHARACTERS
    first = compile_selector(text)
    assert compile_selector(text) is first
    del first
    gc.collect()
    assert text not in selector._long


def test_the_grammar_can_be_built_before_the_first_selector(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "tidegate.broker.lists.selector_grammar")
    selector.prepare()
    built = sys.modules["tidegate.broker.lists.selector_grammar"]
    assert compile_selector("n = 1 AND n = 1") is not None
    assert sys.modules["tidegate.broker.lists.selector_grammar"] is built
