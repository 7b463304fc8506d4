"""The names of the user's headers between protocols."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate_protocols._user_headers import (
    ENVELOPE,
    MAPPED,
    OF_MESSAGE_FRAME,
    escaped,
    unescaped,
)

RESERVED = ["", "browser", *ENVELOPE, *OF_MESSAGE_FRAME, *MAPPED]


@pytest.mark.parametrize("name", RESERVED)
def test_a_name_that_a_stomp_frame_uses_itself_gets_a_prefix(name):
    assert escaped(name) == f"user-{name}"
    assert escaped(f"user-{name}") == f"user-user-{name}"


@pytest.mark.parametrize(
    "name", ["a", "Destination", "destination ", "user-id", "user", "timestamp", "type", ":\n"]
)
def test_any_other_name_stays_as_it_is(name):
    assert escaped(name) == name
    assert unescaped(name) == name


names = st.one_of(
    st.text(max_size=8),
    st.builds(
        lambda count, name: "user-" * count + name, st.integers(0, 3), st.sampled_from(RESERVED)
    ),
)


@given(names)
def test_unescaping_undoes_escaping(name):
    assert unescaped(escaped(name)) == name


@given(names)
def test_escaping_undoes_unescaping_of_what_can_stand_in_a_frame(name):
    if name not in RESERVED:
        assert escaped(unescaped(name)) == name


@given(names, names)
def test_two_names_never_become_one(one, other):
    assert (escaped(one) == escaped(other)) == (one == other)


def test_a_name_of_nothing_but_prefixes_costs_what_its_length_costs():
    name = "user-" * 13_000 + "ack"
    assert unescaped(escaped(name)) == name


@pytest.mark.parametrize("document", ["mqtt.md", "stomp.md"])
def test_the_names_are_those_that_the_documents_name(document):
    text = (Path(__file__).parents[2] / "docs" / document).read_text()
    assert [name for name in RESERVED if name and f"`{name}`" not in text.replace(":", "`")] == []
