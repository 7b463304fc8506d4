"""Patterns for destination names, and how an ordered list of them decides about a filter.

A pattern is a list of levels; ``*`` covers any one level, ``>`` at the end any number, even none.
The rules are those of :func:`tidegate.spi.names.matches`: a wildcard in the first level covers no
name that begins with ``$`` (MQTT 3.1.1 [MQTT-4.7.2-1]).

Whether *one* pattern covers a filter is easy to decide; but rules are an ordered list in which an
earlier one takes names out of a later one. So :func:`decide` walks all the names that the filter
covers, a level at a time. At each level it tells apart only the literals that some pattern has
there, and "any other". After each level only the patterns that still match are alive; there are few
such sets, so the walk is short. The answer is exact: every name is allowed, none is, or some are.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

#: Level names examined for one filter: some 10 ms of work. Past it the answer is "some", which is
#: always safe, because then each message is checked.
WORK_MAX: Final = 5_000

#: Names without a live pattern cost less: this many count as one.
_LOOKS_A_BRANCH: Final = 8

_ONE: Final = "*"
_REST: Final = ">"


class Coverage(enum.Enum):
    """How many of a filter's names are allowed."""

    ALL = "all"
    SOME = "some"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern of an allowing or denying rule.

    Attributes:
        levels: at least one.
        covers_dollar: a wildcard in its first level covers names that begin with ``$``, too.
    """

    levels: tuple[str, ...]
    allows: bool
    covers_dollar: bool = False

    def matches(self, levels: Sequence[str]) -> bool:
        """Whether it covers a name."""
        mine = self.levels
        if levels[0].startswith("$") and mine[0] in (_ONE, _REST) and not self.covers_dollar:
            return False
        for position, level in enumerate(mine):
            if level == _REST:
                return True
            if position >= len(levels) or level not in (_ONE, levels[position]):
                return False
        return len(mine) == len(levels)


def decide(wanted: Sequence[str], patterns: Sequence[Pattern]) -> tuple[Coverage, tuple[int, ...]]:
    """Decide, by the first pattern that covers each, about all the names that *wanted* covers.

    Args: wanted: the levels of a filter; patterns: in order. What none of them covers is denied.
    Returns: also the indices of patterns that decided about some name, in ascending order, with -1
        for names that no pattern covers; only as far as the search needed to go.
    """
    # Only a few of many rules concern these names.
    meeting = [index for index, item in enumerate(patterns) if meet(item.levels, wanted)]
    if meeting and _includes(patterns[meeting[0]], wanted):
        return (Coverage.ALL if patterns[meeting[0]].allows else Coverage.NONE), (meeting[0],)
    walk = _Walk(tuple(wanted), [patterns[index] for index in meeting])
    coverage = walk.result()
    deciding = sorted(meeting[index] if index >= 0 else -1 for index in walk.deciding)
    return coverage, tuple(deciding)


def _includes(pattern: Pattern, wanted: Sequence[str]) -> bool:
    """Whether the pattern covers all that *wanted* does; True is certain."""
    levels = pattern.levels
    if levels[0] in (_ONE, _REST) and wanted[0].startswith("$") and not pattern.covers_dollar:
        return False
    for position, level in enumerate(levels):
        if level == _REST:
            return True
        if position >= len(wanted) or wanted[position] == _REST:
            return False
        if level not in (_ONE, wanted[position]):
            return False
    return len(levels) == len(wanted)


def meet(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether two filters may both cover some name; False is certain."""
    for mine, theirs in zip(one, other, strict=False):
        if mine == _REST or theirs == _REST:
            return True
        if mine != theirs and mine != _ONE and theirs != _ONE:
            return False
    longer = one if len(one) > len(other) else other
    shorter = min(len(one), len(other))
    return len(longer) == shorter or longer[shorter] == _REST


#: Levels consumed, and patterns alive (a bit set of indices): those that match these levels.
_State: TypeAlias = tuple[int, int]


class _Walk:
    """One walk through the names that a filter covers."""

    def __init__(self, wanted: tuple[str, ...], patterns: Sequence[Pattern]) -> None:
        self._wanted = wanted
        self._patterns = patterns
        self.deciding: set[int] = set()
        self._work = 0
        self._has_allowed = self._has_denied = False
        self._cover_dollar = _bits(
            index for index, item in enumerate(patterns) if item.covers_dollar
        )
        self._levels: list[tuple[dict[str, int], int]] = []
        self._ending: list[tuple[int, int]] = []
        self._deepest = max((len(item.levels) for item in patterns), default=0)

    def result(self) -> Coverage:
        """Walk."""
        # Depth first, and only to the first two answers that differ: mostly a name or two, where
        # going level by level could visit the square of the number of rules.
        seen: set[_State] = set()
        todo = [self._step(0, (1 << len(self._patterns)) - 1)]
        while todo:
            for following in todo[-1]:
                if self._has_allowed and self._has_denied:
                    return Coverage.SOME
                if self._work > WORK_MAX:
                    return Coverage.SOME
                if following is not None and following not in seen:
                    seen.add(following)
                    todo.append(self._step(*following))
                    break
            else:
                todo.pop()
        return Coverage.ALL if self._has_allowed else Coverage.NONE

    def _step(self, depth: int, alive: int) -> Iterator[_State | None]:
        """Go one level down, one literal at a time, and judge the names that end with it.

        Yields: the state for longer names; None: there are none.
        """
        wanted = self._wanted
        is_rest = wanted[-1] == _REST and depth >= len(wanted) - 1
        if not is_rest and depth >= len(wanted):
            return
        level = _REST if is_rest else wanted[depth]
        named, wild = self._by_level(depth)
        branches: list[str | None]  # None: any level that no pattern names here
        if level in (_ONE, _REST):
            # A wildcard in the first level covers no name that begins with "$".
            branches = [
                item
                for item, found in named.items()
                if found & alive and (depth or not item.startswith("$"))
            ]
            branches.append(None)
            self._work += len(named) // _LOOKS_A_BRANCH
        else:
            branches = [level]
        length = depth + 1
        endless, exact = self._by_length(length)
        for branch in branches:
            self._work += 1
            found = wild
            if branch is not None:
                if not depth and branch.startswith("$"):
                    found &= self._cover_dollar
                found |= named.get(branch, 0)
            found &= alive
            # Patterns after the first that covers any continuation never decide.
            found = _through_first(found, found & endless)
            is_name = depth > 0 or branch != ""  # no name is empty
            goes_on = self._goes_on(length)
            if self._ends(length) and is_name:
                self._judge(found & (endless | exact))
            elif goes_on and is_name and not found & ~endless:
                self._judge(found)  # all longer names are decided alike
            yield (length, found) if goes_on and (not is_name or found & ~endless) else None

    def _by_level(self, depth: int) -> tuple[dict[str, int], int]:
        """The patterns by their literal at a level, and those with a wildcard there."""
        while len(self._levels) <= min(depth, self._deepest):
            at = len(self._levels)
            named: dict[str, int] = {}
            wild = 0
            for index, item in enumerate(self._patterns):
                levels = item.levels
                level = levels[at] if at < len(levels) else levels[-1]
                if level == _REST or (level == _ONE and at < len(levels)):
                    wild |= 1 << index
                elif at < len(levels):
                    named[level] = named.get(level, 0) | 1 << index
            self._levels.append((named, wild))
        return self._levels[min(depth, self._deepest)]

    def _by_length(self, length: int) -> tuple[int, int]:
        """The patterns that cover any name of at least this length, and those that end there."""
        while len(self._ending) <= min(length, self._deepest + 1):
            at = len(self._ending)
            sizes = [(len(item.levels), item.levels[-1] == _REST) for item in self._patterns]
            endless = _bits(
                index for index, (size, is_rest) in enumerate(sizes) if is_rest and at >= size - 1
            )
            exact = _bits(
                index for index, (size, is_rest) in enumerate(sizes) if not is_rest and at == size
            )
            self._ending.append((endless, exact))
        return self._ending[min(length, self._deepest + 1)]

    def _ends(self, length: int) -> bool:
        """Whether the filter covers names of this length."""
        count = len(self._wanted)
        if self._wanted[-1] == _REST:
            return length >= count - 1
        return length == count

    def _goes_on(self, length: int) -> bool:
        """Whether the filter covers longer names."""
        return self._wanted[-1] == _REST or length < len(self._wanted)

    def _judge(self, covering: int) -> None:
        """Judge a name that these cover: the first one decides."""
        index = (covering & -covering).bit_length() - 1  # -1: none
        self.deciding.add(index)
        if index >= 0 and self._patterns[index].allows:
            self._has_allowed = True
        else:
            self._has_denied = True


def _bits(indices: Iterable[int]) -> int:
    return sum(1 << index for index in indices)


def _through_first(found: int, ends: int) -> int:
    """Those of *found* up to the first one of *ends*."""
    return found & (((ends & -ends) << 1) - 1) if ends else found
