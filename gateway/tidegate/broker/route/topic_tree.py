"""Topic names by level, for finding the few that a filter covers among very many.

A tree of dictionaries, one level each, with two differences that keep it small: a topic whose
rest nobody shares is a leaf at the first level that tells it apart (``site/4711/battery`` costs one
entry and no dictionary of its own while it is the only topic of site 4711), and a leaf is the
destination string that the caller holds anyway.
"""

from __future__ import annotations

import sys
from typing import Final, TypeAlias, cast

from tidegate.spi import names

#: Maps a level, or ``_END``, to what is below it: a destination (leaf) or another branch.
Branch: TypeAlias = "dict[str, str | Branch]"

#: Key of the topic that ends where a branch begins (``a`` besides ``a/b``). No level can be this.
_END: Final = "."

#: Names that may be examined in one go to find those a filter covers: some milliseconds.
LOOKED_AT_MAX: Final = 2000

#: What a branch costs, in bytes: ``sys.getsizeof`` of a dictionary with up to five entries.
BRANCH_BYTES: Final = 232


class TopicTree:
    """Canonical destinations of topics, each once.

    Attributes:
        branches: dictionaries in use; two long names that share all but their last level need one
            for each level, so code that limits memory must count them.
    """

    __slots__ = ("_root", "branches")

    def __init__(self) -> None:
        self._root: Branch = {}
        self.branches = 0

    def add(self, destination: str) -> None:
        """Add the wildcard-free topic *destination*, unless it is there."""
        node = self._root
        for depth, level in enumerate(names.name_of(destination).split(".")):
            found = node.get(level)
            if found is None:
                node[level] = destination
                return
            if isinstance(found, str):
                if found == destination:
                    return
                branch: Branch = {_level(found, depth + 1): found}
                node[level] = found = branch
                self.branches += 1
            node = found
        node[_END] = destination

    def discard(self, destination: str) -> None:
        """Remove *destination* if it is there; a branch with one topic left becomes a leaf."""
        node = self._root
        path: list[tuple[Branch, str]] = []
        for level in names.name_of(destination).split("."):
            found = node.get(level)
            if found is None:
                return
            if isinstance(found, str):
                if found != destination:
                    return
                del node[level]
                break
            path.append((node, level))
            node = found
        else:
            if node.pop(_END, None) is None:
                return
        for parent, level in reversed(path):
            if len(node) > 1:
                return
            (only,) = node.values()
            if not isinstance(only, str):
                return
            parent[level] = only
            self.branches -= 1
            node = parent

    def match(self, filter_name: str) -> list[str]:
        """Every destination that the filter (a NAME) covers, in no particular order.

        The rules are those of :func:`tidegate.spi.names.matches`.
        """
        found = self.match_few(filter_name, sys.maxsize)
        assert found is not None, "there is no end of what may be looked at"
        return found

    def match_few(self, filter_name: str, looked_at_max: int) -> list[str] | None:
        """The same; None when more than *looked_at_max* names and branches would have to be examined."""
        found: list[str] = []
        nodes = [self._root]
        wanted = filter_name.split(".")
        for position, level in enumerate(wanted):
            if level in (">", "*"):
                looked_at_max -= sum(map(len, nodes))
                if looked_at_max < 0:
                    return None
            if level == ">":
                nodes = nodes if position else _without_dollar(nodes)
                return found if _collect(nodes, found, looked_at_max) else None
            if level == "*":
                if position == 0:  # [MQTT-4.7.2-1]
                    nodes = _without_dollar(nodes)
                reached = [item for node in nodes for key, item in node.items() if key != _END]
            else:
                reached = [node[level] for node in nodes if level in node]
            leaves = [item for item in reached if isinstance(item, str)]
            found += _covered(leaves, filter_name, wanted, position)
            nodes = [item for item in reached if not isinstance(item, str)]
            if not nodes:
                return found
        for node in nodes:
            end = node.get(_END)
            if end is not None:
                found.append(cast("str", end))
        return found


def _level(destination: str, depth: int) -> str:
    levels = names.name_of(destination).split(".")
    return levels[depth] if depth < len(levels) else _END


def _without_dollar(nodes: list[Branch]) -> list[Branch]:
    """The root without the topics that a wildcard in the first level does not cover."""
    root = nodes[0]
    if not any(key.startswith("$") for key in root):
        return nodes
    return [{key: item for key, item in root.items() if not key.startswith("$")}]


def _covered(leaves: list[str], filter_name: str, wanted: list[str], position: int) -> list[str]:
    """Those of *leaves*, which match the filter up to *position*, that match the rest too."""
    rest = len(wanted) - 1 - position
    if rest == 0:  # "topic://" has no full stop: as many as levels before the last one
        return [leaf for leaf in leaves if leaf.count(".") == position]
    if rest == 1 and wanted[-1] == ">":
        return leaves
    return [leaf for leaf in leaves if names.matches(filter_name, names.name_of(leaf))]


def _collect(nodes: list[Branch], found: list[str], looked_at_max: int) -> bool:
    """Add everything below *nodes* to *found*. Returns: False when it is too much."""
    stack = list(nodes)
    while stack:
        node = stack.pop()
        looked_at_max -= len(node)
        if looked_at_max < 0:
            return False
        for item in node.values():
            if isinstance(item, str):
                found.append(item)
            else:
                stack.append(item)
    return True
