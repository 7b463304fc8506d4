"""Which policy a destination has: the most specific one, whatever the order."""

import itertools
import random
from collections.abc import Iterable

import pytest

from tidegate.config import DEFAULT_POLICY, DestinationPolicy, PolicyMap
from tidegate.config._load import parse_config
from tidegate.config._policies import split_match
from tidegate.config._policy_map import check_reachable, is_reached
from tidegate.spi import ConfigError, names


def policies(*matches: str) -> list[DestinationPolicy]:
    return [DestinationPolicy(match=match) for match in matches]


def match_of(matches: Iterable[str], destination: str) -> str:
    return PolicyMap(policies(*matches)).of(destination).match


@pytest.mark.parametrize(
    ("match", "destination", "covered"),
    [
        ("orders.>", "queue://orders.eu.new", True),
        ("orders.>", "queue://orders", True),
        ("orders.*", "queue://orders.eu.new", False),
        ("queue://orders.>", "queue://orders.eu", True),
        ("queue://orders.>", "topic://orders.eu", False),
        ("topic://>", "topic://anything", True),
        ("topic://>", "queue://anything", False),
        (">", "topic://$SYS.uptime", True),
        ("*.uptime", "topic://$SYS.uptime", True),
        ("$SYS.>", "topic://$SYS.uptime", True),
        ("orders.>", "topic://orders.*", True),  # a subscription's filter is matched as a name
        ("orders.>", "topic://orders.>", True),
        ("orders.*", "topic://orders.>", True),
    ],
)
def test_a_policy_covers_what_its_pattern_says(match: str, destination: str, covered: bool) -> None:
    (policy,) = policies(match)
    found = PolicyMap([policy]).of(destination)
    assert found is (policy if covered else DEFAULT_POLICY)


@pytest.mark.parametrize(
    ("ordered", "destination"),
    [
        # From the most to the least specific; all of them match.
        (("orders.eu", "orders.*", "orders.>", "*.eu", "*.*", "*.>", ">"), "queue://orders.eu"),
        (("a.*.c", "a.*.*", "a.*.>", "a.>"), "topic://a.b.c"),
        (("a.b.>", "a.*.c", "*.b.c"), "topic://a.b.c"),
        (("a", "a.>", "*", ">"), "topic://a"),
        (("queue://a.*", "a.*", "queue://a.>", "a.>"), "queue://a.b"),
        # The pattern comes first, and the prefix decides between equal ones.
        (("orders.eu", "queue://>", ">"), "queue://orders.eu"),
        # A filter of a subscription: its wildcards are levels like others.
        (("a.>", "a.*", "*.>", ">"), "topic://a.>"),
        (("a.*", "a.>", "*.*"), "topic://a.*"),
        (("$SYS.>", "*.uptime", "*.*", ">"), "topic://$SYS.uptime"),
    ],
)
def test_the_most_specific_match_wins_in_every_order(
    ordered: tuple[str, ...], destination: str
) -> None:
    for first in range(len(ordered)):
        left = list(ordered[first:])
        for matches in (left, left[::-1], random.Random(first).sample(left, len(left))):
            assert match_of(matches, destination) == ordered[first]


def test_a_destination_that_no_match_covers_has_the_default() -> None:
    chosen = PolicyMap(policies("topic://a", "b.*"))
    for destination in ("queue://a", "queue://b", "topic://b.c.d", "topic://a.b"):
        assert chosen.of(destination) is DEFAULT_POLICY
    assert PolicyMap([]).of("queue://a") is DEFAULT_POLICY


def specificity(match: str, name: str) -> tuple[object, ...]:
    """The rule as it is written: level by level from the left, then the prefix."""
    prefix, pattern = split_match(match)
    levels = pattern.split(".")
    ranks = [2 if level == ">" else 1 if level == "*" else 0 for level in levels]
    return (*ranks, *([0] * (len(name.split(".")) + 1 - len(ranks)))), 0 if prefix else 1


def test_the_tree_finds_what_comparing_all_of_them_finds() -> None:
    """All sets of three of these, for all names: nothing ties, and the tree has the smallest."""
    patterns = [".".join(levels) for n in (1, 2) for levels in itertools.product("ab*", repeat=n)]
    patterns += [">", "a.>", "*.>", "a.b.>", "*.a.>"]
    every = [prefix + pattern for pattern in patterns for prefix in ("", "queue://")]
    wanted = ["a", "b", "a.b", "b.a", "c.c", "a.b.c", "c.a.b"]
    chance = random.Random(7)
    for _ in range(300):
        matches = chance.sample(every, 5)
        tree = PolicyMap(policies(*matches))
        for name in wanted:
            fitting = [m for m in matches if names.matches(split_match(m)[1], name)]
            keys = sorted((specificity(match, name), match) for match in fitting)
            assert len({key for key, _ in keys}) == len(keys), "a tie"
            found = tree.of(names.queue(name))
            assert found.match == keys[0][1] if keys else found is DEFAULT_POLICY


@pytest.mark.parametrize(
    "matches",
    [
        (">", "queue://>"),  # topics are left
        ("queue://>", "queue://a.>", "a.>"),
        ("*.>", "*", "a"),
        ("a.>", "a.*.>"),  # `a` itself is left
        ("a.*", "a.b", "a.c"),
        ("a.>", "*.b"),
        (">", "*", "*.*", "*.*.*"),
        ("queue://a.>", "topic://a.>", "a.*"),
    ],
)
def test_whatever_some_destination_has_is_no_error(matches: tuple[str, ...]) -> None:
    for ordered in itertools.permutations(matches):
        check_reachable(policies(*ordered), 128)


@pytest.mark.parametrize(
    ("hidden", "hiding"),
    [
        ("queue://>", ("queue://>",)),
        (">", ("queue://>", "topic://>")),
        ("a.*", ("queue://a.*", "topic://a.*")),
        ("a.>", ("a", "a.*.>")),
        (">", ("*.>",)),
        ("*.>", ("*", "*.*.>")),
        ("a.>", ("queue://a", "topic://a", "a.*", "a.*.*.>")),
    ],
)
def test_a_table_that_no_destination_has_is_refused_with_those_that_hide_it(
    hidden: str, hiding: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as caught:
        check_reachable(policies("other", *hiding, hidden), 128)
    assert caught.value.key == f"destinations[{len(hiding) + 1}].match"
    assert caught.value.problem.startswith(f"{hidden!r} is never used")
    for place in range(len(hiding)):
        assert f"destinations[{place + 1}]" in caught.value.problem
    if hidden in hiding:
        return
    with pytest.raises(ConfigError) as caught:  # whatever the order
        check_reachable(policies(hidden, *hiding), 128)
    assert caught.value.key == "destinations[0].match"


def test_the_default_is_there_for_what_the_tables_leave() -> None:
    assert is_reached(DEFAULT_POLICY, [])
    assert is_reached(DEFAULT_POLICY, policies("queue://>", "topic://a.>"))
    assert not is_reached(DEFAULT_POLICY, policies(">"))
    assert not is_reached(DEFAULT_POLICY, policies("queue://>", "topic://>"))
    assert not is_reached(DEFAULT_POLICY, policies("queue://>", "topic://*.>"))


def test_two_policies_with_one_match_are_not_put_into_a_map() -> None:
    with pytest.raises(ValueError, match=r"'a\.b'"):
        PolicyMap(policies("a.b", "a.b"))


@pytest.mark.parametrize(("match", "fits"), [("queue://a.b.c", 3), ("a.b.c.>", 3), ("*..a.>", 3)])
def test_a_table_of_names_with_more_levels_than_are_accepted_is_refused(
    match: str, fits: int
) -> None:
    check_reachable(policies(match), fits)
    with pytest.raises(ConfigError, match=f"{fits} levels, more than broker.levels_max") as caught:
        check_reachable(policies("a", match), fits - 1)
    assert caught.value.key == "destinations[1].match"


def test_the_limit_of_the_file_counts() -> None:
    text = '[broker]\nlevels_max = 2\n[[destinations]]\nmatch = "a.b.*"\nprefetch_count = 5\n'
    with pytest.raises(
        ConfigError, match="is never used: the names that it matches have at least 3 levels"
    ):
        parse_config(text)
