"""The tree of topics finds exactly what the rules of filters say, and stays small."""

from __future__ import annotations

import sys
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.broker.route.topic_tree import BRANCH_BYTES, TopicTree
from tidegate.spi import names

LEVELS = st.sampled_from(["", "a", "b", "c", "$", "$SYS", "a/b"])
NAMES = st.lists(LEVELS, min_size=1, max_size=5).map(".".join).filter(bool)
FILTER_LEVELS = st.sampled_from(["", "a", "b", "$", "$SYS", "*"])


@st.composite
def filters(draw: st.DrawFn) -> str:
    levels = draw(st.lists(FILTER_LEVELS, max_size=5))
    if not levels or draw(st.booleans()):
        levels.append(">")
    return ".".join(levels) or ">"


def count_branches(tree: TopicTree) -> int:
    count, stack = 0, [tree._root]
    while stack:
        below = [item for item in stack.pop().values() if isinstance(item, dict)]
        count += len(below)
        stack += below
    return count


@given(
    changes=st.lists(st.tuples(st.booleans(), NAMES), max_size=40),
    wanted=st.lists(st.one_of(filters(), NAMES), min_size=1, max_size=10),
)
def test_the_tree_finds_what_the_rules_of_filters_say(
    changes: list[tuple[bool, str]], wanted: list[str]
) -> None:
    tree = TopicTree()
    known: set[str] = set()
    for is_added, name in changes:
        destination = names.topic(name)
        if is_added:
            tree.add(destination)
            known.add(destination)
        else:
            tree.discard(destination)
            known.discard(destination)
    for filter_name in wanted:
        expected = [d for d in known if names.matches(filter_name, names.name_of(d))]
        assert sorted(tree.match(filter_name)) == sorted(expected)
        for looked_at_max in (0, 3, 1000):
            few = tree.match_few(filter_name, looked_at_max)
            assert few is None or sorted(few) == sorted(expected)
    assert tree.branches == count_branches(tree)


def test_more_names_than_may_be_looked_at_are_not() -> None:
    tree = TopicTree()
    for number in range(100):
        tree.add(f"topic://a{number}.b")
        tree.add(f"topic://deep.c{number}")
    for filter_name, least in ((">", 100), ("*.b", 100), ("deep.>", 100), ("deep.*", 100)):
        assert tree.match_few(filter_name, least - 1) is None
        assert tree.match_few(filter_name, 1000) == tree.match(filter_name)
    assert tree.match_few("a1.b", 0) == ["topic://a1.b"]
    assert tree.match_few("deep.c1", 0) == ["topic://deep.c1"]


@given(st.lists(NAMES, max_size=30, unique=True), st.randoms())
def test_a_tree_from_which_everything_was_removed_is_empty(
    added: list[str], random: object
) -> None:
    tree = TopicTree()
    for name in added:
        tree.add(names.topic(name))
    random.shuffle(added)  # type: ignore[attr-defined]  # hypothesis' random.Random
    for left, name in enumerate(added, 1):
        tree.discard(names.topic(name))
        everything = sorted(tree.match(">") + tree.match("$.>") + tree.match("$SYS.>"))
        assert everything == sorted(map(names.topic, added[left:]))
    assert tree._root == {}
    assert tree.branches == 0


def test_a_topic_is_there_once_and_removing_an_unknown_one_changes_nothing() -> None:
    tree = TopicTree()
    for _ in range(2):
        tree.add("topic://a.b")
        tree.add("topic://a")
    for unknown in ("topic://b", "topic://a.b.c", "topic://a.c", "topic://"):
        tree.discard(unknown)
    assert sorted(tree.match(">")) == ["topic://a", "topic://a.b"]


def test_a_topic_whose_rest_nobody_shares_needs_no_branch_of_its_own() -> None:
    tree = TopicTree()
    for number in range(100):
        tree.add(f"topic://site.{number}.some.very.long.rest")
    assert tree.branches == 1  # below "site"
    tree.add("topic://site.7.other")
    assert tree.branches == 2
    tree.discard("topic://site.7.other")
    assert tree.branches == 1


def test_a_branch_costs_what_is_accounted_for_it() -> None:
    assert sys.getsizeof({str(number): number for number in range(5)}) <= BRANCH_BYTES


@pytest.mark.parametrize("pattern", ["topic://a.b.c.%d", "topic://one.%d", "topic://a.%d.state"])
def test_a_topic_costs_little_memory_besides_its_name(pattern: str) -> None:
    destinations = [pattern % number for number in range(10_000)]
    tracemalloc.start()
    try:
        tree = TopicTree()
        for destination in destinations:
            tree.add(destination)
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(tree.match(">")) == 10_000
    assert used / 10_000 < 200  # an entry of a dictionary and the text of one level


def test_a_name_of_very_many_levels_is_found_and_removed() -> None:
    tree = TopicTree()
    deep = "topic://" + ".".join(["x"] * 5_000)
    for destination in (deep, deep + ".y", deep + ".z"):
        tree.add(destination)
    assert tree.branches == 5_000
    assert sorted(tree.match("x.>")) == [deep, deep + ".y", deep + ".z"]
    assert tree.match(names.name_of(deep) + ".*") == [deep + ".y", deep + ".z"]
    tree.discard(deep + ".y")
    tree.discard(deep)
    assert tree.branches == 0
    assert tree.match(">") == [deep + ".z"]
