"""Patterns of destination names, and what an ordered list of them decides about a whole filter.

A pattern is a list of levels; ``*`` covers any one level, ``>`` at the end any number, also none.
The rules are those of :func:`tidegate.spi.names.matches`: a wildcard in the first level covers no
name that begins with ``$`` (MQTT 3.1.1 [MQTT-4.7.2-1]).

That a filter is covered by *one* pattern is easily told; but rules are an ordered list in which an
earlier one takes names out of a later one. So :func:`decide` walks through all the names that the
filter covers, a level at a time, where at each level only those literals are told apart that some
pattern has there, and "any other". What is left of the patterns after a level are those that are still alive;
there are few such sets, so that the walk is short. The answer is exact: whether every name is
allowed, none is, or some are.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

#: Patterns that are looked at for one filter, each as often as it is: some 10 ms of work. Past it
#: the answer is "some", which is always safe, because then each message is asked about.
WORK_MAX: Final = 50_000

_ONE: Final = "*"
_REST: Final = ">"


class Coverage(enum.Enum):
    """How much of what a filter covers is allowed."""

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
    """What the first pattern that covers a name says of all the names that *wanted* covers.

    Args: wanted: the levels of a filter; patterns: in order. What none of them covers is denied.
    Returns: also the indices of patterns that decided about some name, with -1 for none of them, in
        ascending order, as far as was looked to know the answer.
    """
    walk = _Walk(tuple(wanted), patterns)
    return walk.result(), tuple(sorted(walk.deciding))


class _Walk:
    """One walk through the names that a filter covers."""

    def __init__(self, wanted: tuple[str, ...], patterns: Sequence[Pattern]) -> None:
        self._wanted = wanted
        self._patterns = patterns
        self.deciding: set[int] = set()
        self._work = 0
        self._has_allowed = self._has_denied = False

    def result(self) -> Coverage:
        """Walk."""
        # (levels consumed, patterns alive: those that agree with these levels, in order)
        todo: list[tuple[int, tuple[int, ...]]] = [(0, tuple(range(len(self._patterns))))]
        seen = set(todo)
        while todo:
            depth, alive = todo.pop()
            for following in self._step(depth, alive):
                if following not in seen:
                    seen.add(following)
                    todo.append(following)
            if self._has_allowed and self._has_denied:
                return Coverage.SOME
            if self._work > WORK_MAX:
                return Coverage.SOME
        return Coverage.ALL if self._has_allowed else Coverage.NONE

    def _step(self, depth: int, alive: tuple[int, ...]) -> list[tuple[int, tuple[int, ...]]]:
        """One level more: judge the names that end with it, return where longer ones go on."""
        wanted = self._wanted
        is_rest = wanted[-1] == _REST and depth >= len(wanted) - 1
        if not is_rest and depth >= len(wanted):
            return []
        level = _REST if is_rest else wanted[depth]
        named, wild = self._by_level(depth, alive)
        branches: list[str | None]  # None: any level that no pattern names here
        if level in (_ONE, _REST):
            # A wildcard in the first level covers no name that begins with "$".
            branches = [item for item in named if depth or not item.startswith("$")]
            branches.append(None)
        else:
            branches = [level]
        following: list[tuple[int, tuple[int, ...]]] = []
        length = depth + 1
        for branch in branches:
            found = named.get(branch, []) if branch is not None else []
            others = wild
            if not depth and branch is not None and branch.startswith("$"):
                others = [index for index in wild if self._patterns[index].covers_dollar]
            found = sorted(found + others)
            self._work += len(found) + 1
            left = self._until_endless(found, length)
            is_name = depth > 0 or branch != ""  # no name is empty
            if self._ends(length) and is_name:
                self._judge(length, left)
            if self._goes_on(length) and (not is_name or self._tells_more(length, left)):
                following.append((length, left))
        return following

    def _by_level(
        self, depth: int, alive: tuple[int, ...]
    ) -> tuple[dict[str, list[int]], list[int]]:
        """The patterns by what they have at a level, and those that cover any there."""
        named: dict[str, list[int]] = {}
        wild: list[int] = []
        for index in alive:
            levels = self._patterns[index].levels
            level = levels[depth] if depth < len(levels) else levels[-1]
            if level == _REST or (level == _ONE and depth < len(levels)):
                wild.append(index)
            elif depth < len(levels):
                named.setdefault(level, []).append(index)
        self._work += len(alive)
        return named, wild

    def _until_endless(self, found: list[int], length: int) -> tuple[int, ...]:
        """Without those that never decide, because one before them covers whatever comes."""
        for position, index in enumerate(found):
            if self._is_endless(index, length):
                return tuple(found[: position + 1])
        return tuple(found)

    def _is_endless(self, index: int, length: int) -> bool:
        """The pattern covers every name that begins with these levels."""
        levels = self._patterns[index].levels
        return levels[-1] == _REST and length >= len(levels) - 1

    def _ends(self, length: int) -> bool:
        """The filter covers names of this length."""
        count = len(self._wanted)
        if self._wanted[-1] == _REST:
            return length >= count - 1
        return length == count

    def _goes_on(self, length: int) -> bool:
        """The filter covers longer names."""
        return self._wanted[-1] == _REST or length < len(self._wanted)

    def _judge(self, length: int, alive: tuple[int, ...]) -> None:
        for index in alive:
            if self._is_endless(index, length) or len(self._patterns[index].levels) == length:
                self.deciding.add(index)
                if self._patterns[index].allows:
                    self._has_allowed = True
                else:
                    self._has_denied = True
                return
        self.deciding.add(-1)
        self._has_denied = True

    def _tells_more(self, length: int, alive: tuple[int, ...]) -> bool:
        """Longer names may be judged otherwise, or have not been judged yet."""
        if not self._ends(length):
            return True
        return any(not self._is_endless(index, length) for index in alive)
