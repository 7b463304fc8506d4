"""Finds a destination's ``[[destinations]]`` table: the most specific one that matches it.

Two matches are compared level by level from the left: a literal level is more specific than ``*``, which
is more specific than ``>``; if all levels are equal, ``queue://`` or ``topic://`` is more specific than no
prefix. Two different matches that cover the same destination always differ in one of these, so only equal
matches tie. As in ActiveMQ's DestinationMap, the order in the file does not matter.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from tidegate.config._policies import DEFAULT_POLICY, DestinationPolicy, split_match
from tidegate.spi import ConfigError, names

#: A level that no match can contain, since names have no U+0000: only wildcards cover it.
_FRESH: Final = "\0"


class _Node:
    """Matches that begin with the same levels. ``ends``, ``rest``: by prefix."""

    __slots__ = ("ends", "levels", "rest")

    def __init__(self) -> None:
        self.levels: dict[str, _Node] = {}
        self.ends: dict[str, DestinationPolicy] = {}
        self.rest: dict[str, DestinationPolicy] = {}  # the next level is ``>``


class PolicyMap:
    """The policies as a tree of levels; a look-up visits each node at most once.

    Raises: ValueError when two of *policies* have the same match.
    """

    def __init__(self, policies: Iterable[DestinationPolicy]) -> None:
        self._root = _Node()
        for policy in policies:
            prefix, pattern = split_match(policy.match)
            node, levels = self._root, pattern.split(".")
            is_open = levels[-1] == ">"
            for level in levels[:-1] if is_open else levels:
                node = node.levels.setdefault(level, _Node())
            found = node.rest if is_open else node.ends
            if prefix in found:
                raise ValueError(f"two policies have the match {policy.match!r}")
            found[prefix] = policy

    def of(self, destination: str) -> DestinationPolicy:
        """The policy of a canonical destination, or of a subscription's filter.

        A filter is looked up like a name, so a policy with the same match comes first. Unlike in a
        subscription, a first-level wildcard here also covers names that start with ``$``: leaving
        those without a limit would help nobody.
        """
        prefix = destination[: len(names.QUEUE_PREFIX)]
        found = _find(self._root, names.name_of(destination).split("."), 0, prefix)
        return DEFAULT_POLICY if found is None else found


def _find(
    node: _Node, levels: Sequence[str], position: int, prefix: str
) -> DestinationPolicy | None:
    """The most specific policy below *node* that covers the levels from *position* on."""
    rest = node.rest.get(prefix) or node.rest.get("")
    if position == len(levels):
        return node.ends.get(prefix) or node.ends.get("") or rest
    level = levels[position]
    if level == ">" and rest is not None:
        return rest
    for wanted in (level,) if level == "*" else (level, "*"):
        below = node.levels.get(wanted)
        found = _find(below, levels, position + 1, prefix) if below is not None else None
        if found is not None:
            return found
    return rest


def ranked(policies: Iterable[DestinationPolicy], destination: str) -> list[DestinationPolicy]:
    """All that cover *destination*, the one in force first; each is followed by the one that would apply next."""
    left = {policy.match: policy for policy in policies}
    found: list[DestinationPolicy] = []
    while (next_ := PolicyMap(left.values()).of(destination)).match in left:
        found.append(left.pop(next_.match))
    return found


def why_before(first: str, second: str) -> str:
    """Why the match *first* is more specific than *second*, in words. Both cover one destination."""
    (prefix, pattern), (_, other) = split_match(first), split_match(second)
    if pattern == other:
        return f"it applies to {'queues' if prefix == names.QUEUE_PREFIX else 'topics'} only"
    pairs = itertools.zip_longest(pattern.split("."), other.split("."))
    level, ours, theirs = next(
        (level, ours, theirs) for level, (ours, theirs) in enumerate(pairs, 1) if ours != theirs
    )
    if ours is None:
        return f"it ends where the next one has {theirs!r}"
    return f"its level {level} is {ours!r}, and that of the next one is {theirs!r}"


# -------------------------------------------------------------------------- what is never reached


def check_reachable(policies: Sequence[DestinationPolicy], levels_max: int) -> None:
    """Refuse a table that no destination would use, because that is never intended.

    Args: levels_max: of accepted names.
    Raises: ConfigError that names the table and what hides it.
    """
    places: dict[str, int] = {}
    for index, policy in enumerate(policies):
        levels = policy.match.removesuffix(".>").count(".") + 1
        if levels > levels_max:
            raise ConfigError(
                f"{policy.match[:40]!r}… is never used: the names that it matches have "
                f"at least {levels} levels, more than broker.levels_max = {levels_max}; "
                "raise that limit, or remove the table",
                key=f"destinations[{index}].match",
            )
        earlier = places.setdefault(policy.match, index)
        if earlier != index:
            raise ConfigError(
                f"{policy.match!r} is never used: destinations[{earlier}] has the same "
                "match, and tables are not merged; merge them by hand",
                key=f"destinations[{index}].match",
            )
    every = PolicyMap(policies)
    longest = max((policy.match.count(".") + 1 for policy in policies), default=0)
    for match, index in places.items():
        found = {every.of(sample).match for sample in _samples(match, longest)}
        if match not in found:
            others = " and ".join(
                f"destinations[{place}] ({other!r})"
                for other, place in places.items()
                if other in found
            )
            raise ConfigError(
                f"{match!r} is never used: everything that it matches is covered by the "
                f"more specific table {others}; remove one of them",
                key=f"destinations[{index}].match",
            )


def is_reached(policy: DestinationPolicy, others: Sequence[DestinationPolicy]) -> bool:
    """Whether some destination has *policy* rather than one of *others*."""
    if any(other.match == policy.match for other in others):
        return False
    every = PolicyMap([*others, policy])
    longest = max((other.match.count(".") + 1 for other in others), default=0)
    return any(every.of(sample) is policy for sample in _samples(policy.match, longest))


def _samples(match: str, longest: int) -> Iterator[str]:
    """Destinations that *match* covers, chosen so that a match covering all of them covers all that exist.

    A level that only a wildcard covers stands for any level. Args: longest: the most levels of any
    match; longer names are all alike.
    """
    prefix, pattern = split_match(match)
    levels = [_FRESH if level == "*" else level for level in pattern.split(".")]
    lists = [levels]
    if levels[-1] == ">":
        start = levels[:-1]
        lists = [start + [_FRESH] * more for more in range(longest + 2 - len(start))]
    for kind in (prefix,) if prefix else (names.QUEUE_PREFIX, names.TOPIC_PREFIX):
        for sample in filter(None, lists):
            yield kind + ".".join(sample)
