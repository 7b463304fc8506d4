"""Destination names: one canonical form, a reversible map, and filters."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidegate.spi import names

#: Few letters, so that filters and names meet often; empty levels are legal.
levels = st.lists(st.sampled_from(["", "a", "b", "ab", "$a", "a/b", "+"]), min_size=1, max_size=5)
wild_levels = st.lists(
    st.sampled_from(["", "a", "b", "*", "ab", "$a", "+"]), min_size=1, max_size=5
)


@given(st.text())
@example("a/b.c")
@example("sensors/+/room.1/#")
def test_swapping_twice_changes_nothing(name: str) -> None:
    assert names.swap_separators(names.swap_separators(name)) == name


@pytest.mark.parametrize(
    ("mqtt", "canonical"),
    [
        ("a/b/c", "a.b.c"),
        ("a/b.c", "a.b/c"),
        ("+/b/#", "*.b.>"),
        ("/a", ".a"),
        ("a*b>c", "a+b#c"),
    ],
)
def test_mqtt_names_and_canonical_names_are_swapped_into_each_other(
    mqtt: str, canonical: str
) -> None:
    assert names.swap_separators(mqtt) == canonical
    assert names.swap_separators(canonical) == mqtt


@given(st.text(min_size=1))
def test_a_canonical_destination_gives_back_its_kind_and_name(name: str) -> None:
    for make, is_kind, is_other in (
        (names.queue, names.is_queue, names.is_topic),
        (names.topic, names.is_topic, names.is_queue),
    ):
        destination = make(name)
        assert names.name_of(destination) == name
        assert is_kind(destination)
        assert not is_other(destination)


def covers(wanted: list[str], got: list[str]) -> bool:
    """The definition, level by level (MQTT 3.1.1 section 4.7.1), without the rule for ``$``."""
    if wanted == [">"]:
        return True
    if not wanted or not got:
        return wanted == got or (wanted == [">"] and not got)
    return wanted[0] in ("*", got[0]) and covers(wanted[1:], got[1:])


@given(wild_levels, st.booleans(), levels)
@example(["a"], True, ["a"])
@example(["*"], False, [""])
@example(["*", "b"], False, ["$a", "b"])
@example([], True, ["$a"])
def test_matching_is_what_its_definition_says(
    wanted: list[str], ends_open: bool, got: list[str]
) -> None:
    wanted = [*wanted, ">"] if ends_open else wanted
    expected = covers(wanted, got)
    if got[0].startswith("$") and wanted[0] in ("*", ">"):
        expected = False  # [MQTT-4.7.2-1]
    assert names.matches(".".join(wanted), ".".join(got)) is expected


@pytest.mark.parametrize(
    ("wanted", "name", "expected"),
    [
        ("a.>", "a", True),  # MQTT 3.1.1 section 4.7.1.2: sport/tennis/player1/# and its parent
        ("a.>", "a.b.c", True),
        ("a.>", "ab", False),
        ("*.*", ".finance", True),  # section 4.7.1.3: +/+ matches /finance
        (".*", ".finance", True),
        ("*", ".finance", False),
        ("a.*", "a", False),
        (">", "$SYS.x", False),
        ("$SYS.>", "$SYS.x", True),
        ("a.*.c", "a.b.c", True),
        ("a", "a", True),
        ("a", "A", False),
    ],
)
def test_the_examples_of_the_standard_hold(wanted: str, name: str, expected: bool) -> None:
    assert names.matches(wanted, name) is expected


@given(st.text(min_size=1, max_size=50))
def test_a_name_covers_itself_alone(name: str) -> None:
    if names.is_filter(name):
        with pytest.raises(ValueError, match="wildcard"):
            names.check_name(name)
    else:
        assert names.matches(name, name)
        assert not names.matches(name, name + "x")


@pytest.mark.parametrize("name", ["a", "a.b", ".", "..", "ä 🚢", "$SYS", "a" * 65_535])
def test_legal_names_pass(name: str) -> None:
    names.check_name(name)
    names.check_filter(name)


@pytest.mark.parametrize("name", ["*", ">", "a.*", "a.>", "*.>", "*.*.b", ".*"])
def test_legal_filters_pass(name: str) -> None:
    names.check_filter(name)
    assert names.is_filter(name)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "empty"),
        ("a\0b", "U\\+0000"),
        ("\ud800", "surrogate"),
        ("ä" * 32_768, "65535 bytes"),
    ],
)
def test_what_no_protocol_can_carry_is_refused(name: str, reason: str) -> None:
    for check in (names.check_name, names.check_filter):
        with pytest.raises(ValueError, match=reason):
            check(name)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("a*", "whole level"),
        ("a.b*.c", "whole level"),
        ("**", "whole level"),
        ("a>", "whole level"),
        (">.a", "last level"),
        ("a.>.b", "last level"),
    ],
)
def test_a_wildcard_is_a_whole_level_and_the_open_end_the_last(name: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        names.check_filter(name)


@pytest.mark.parametrize(
    ("destination", "answer"),
    [
        ("queue://$temporary.t.a", True),
        ("topic://$temporary.>", True),
        ("queue://$temporary", False),
        ("queue://$temporaryx.a", False),
        ("topic://a.$temporary.b", False),
        ("topic://>", False),
    ],
)
def test_temporary_names_have_a_first_level_of_their_own(destination: str, answer: bool) -> None:
    assert names.is_temporary(destination) is answer


@pytest.mark.parametrize("wide", [">", "*.>", "*.*.*"])
def test_no_wildcard_covers_a_temporary_name(wide: str) -> None:
    assert not names.matches(wide, f"{names.TEMPORARY_LEVEL}.token.a")
