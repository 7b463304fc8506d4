"""The context in headers: what comes with a message, and what the gateway puts in its place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate_traces._context import Marks, extract, is_sampled, value_of

TRACE, PARENT, OWN = 0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7, 0x1122334455667788
SAMPLED = f"00-{TRACE:032x}-{PARENT:016x}-01"
MARKS = Marks("harbour")
MADE = f"00-{TRACE:032x}-{OWN:016x}-01"


@pytest.mark.parametrize(
    ("traceparent", "sampled"),
    [
        (SAMPLED, True),
        (SAMPLED[:-2] + "00", False),
        (SAMPLED[:-2] + "03", True),  # other flags, Trace Context level 2
        (SAMPLED[:-2] + "02", False),
        ("cc" + SAMPLED[2:] + "-what-comes-later", True),  # section 4.3: of a later version
        ("", False),
        ("00", False),
    ],
)
def test_whether_it_is_sampled(traceparent: str, sampled: bool) -> None:
    assert is_sampled(traceparent) is sampled


@pytest.mark.parametrize(
    "traceparent",
    [
        f"00-{0:032x}-{PARENT:016x}-01",  # no trace
        f"00-{TRACE:032x}-{0:016x}-01",  # no span
        f"ff-{TRACE:032x}-{PARENT:016x}-01",
        f"00-{TRACE:032x}-{PARENT:016x}-01-more",  # version 00 has no more
        f"00-{TRACE:032X}-{PARENT:016X}-01",
        "00-x-y-01",
    ],
)
def test_what_is_malformed_is_no_context(traceparent: str) -> None:
    assert extract((("traceparent", traceparent),)) is None


def test_a_context_takes_the_place_of_another_one() -> None:
    headers = (
        ("a", "1"),
        ("traceparent", SAMPLED),
        ("b", "2"),
        ("tracestate", "x=1,y=2"),
        ("a", "3"),
    )
    parent = extract(headers)
    assert parent is not None
    given_ = MARKS.inject(headers, TRACE, OWN, parent.trace_state)
    assert [name for name, _ in given_] == ["a", "traceparent", "b", "tracestate", "a"]
    assert value_of(given_, "traceparent") == MADE
    assert value_of(given_, "tracestate").endswith(f".{OWN:016x},x=1,y=2")
    own = MARKS.context_of(given_)
    assert own is not None
    assert (own.trace_id, own.span_id) == (TRACE, OWN)
    assert MARKS.context_of(headers) is None


def test_without_one_it_comes_last() -> None:
    given_ = MARKS.inject((("a", "1"),), TRACE, OWN, None)
    assert [name for name, _ in given_] == ["a", "traceparent", "tracestate"]


def test_there_is_one_of_each_and_of_ours() -> None:
    twice = (("traceparent", SAMPLED), ("traceparent", "else"), ("tracestate", ""))
    before = MARKS.inject(twice, TRACE, PARENT, None)
    parent = extract(before)
    assert parent is not None
    again = MARKS.inject(before, TRACE, OWN, parent.trace_state)
    assert [name for name, _ in again] == ["traceparent", "tracestate"]
    assert value_of(again, "tracestate").count("tidegate=") == 1


def test_at_most_32_entries_are_handed_on() -> None:
    many = ",".join(f"k{number}=v" for number in range(32))
    parent = extract((("traceparent", SAMPLED), ("tracestate", many)))
    assert parent is not None
    entries = value_of(MARKS.inject((), TRACE, OWN, parent.trace_state), "tracestate").split(",")
    assert len(entries) == 32
    assert entries[1:] == many.split(",")[:31]


def test_another_gateways_context_is_not_its_own() -> None:
    theirs = Marks("elsewhere").inject((), TRACE, OWN, None)
    assert MARKS.context_of(theirs) is None
    # Nor is one that a client has gone on from: the entry is still there, the span another one.
    ours = dict(MARKS.inject((), TRACE, OWN, None)) | {"traceparent": SAMPLED}
    assert MARKS.context_of(tuple(ours.items())) is None


@given(st.lists(st.tuples(st.sampled_from(["traceparent", "tracestate", "a"]), st.text())))
def test_whatever_clients_send(headers: list[tuple[str, str]]) -> None:
    found = tuple(headers)
    parent = extract(found)
    state = None if parent is None else parent.trace_state
    given_ = MARKS.inject(found, TRACE, OWN, state)
    own = MARKS.context_of(given_)
    assert own is not None
    assert own.span_id == OWN
    others = [item for item in headers if item[0] == "a"]
    assert [item for item in given_ if item[0] == "a"] == others
