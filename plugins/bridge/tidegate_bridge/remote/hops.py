"""Bridges that a message has been through, in two headers, and what ends a circle of them.

The names are such that selectors of JMS brokers can ask for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

#: The bridge that it went through last: ``STORE/BRIDGE``.
LAST: Final = "tidegate_bridge"
#: Through how many it has been.
COUNT: Final = "tidegate_hops"
#: The other broker has perhaps given it before.
REDELIVERED: Final = "tidegate_redelivered"
OWN: Final = frozenset((LAST, COUNT, REDELIVERED))
_DIGITS_MAX: Final = 4

#: Headers that a message goes on with beside its own.
More: TypeAlias = tuple[tuple[str, str], ...]


class Hops:
    """Args: here: this bridge; hops_max: see BridgeOptions; is_echoed: what it sends comes back by another rule."""

    def __init__(self, here: str, hops_max: int, *, is_echoed: bool) -> None:
        self._here = here
        self._max = hops_max
        self._is_echoed = is_echoed

    def is_copy_of_ours(self, headers: Iterable[tuple[str, str]]) -> bool:
        """This bridge has carried it the other way, and of topics: to carry it back would be to send it again."""
        if not self._is_echoed:
            return False
        return any(name == LAST and value == self._here for name, value in headers)

    def next(self, headers: Iterable[tuple[str, str]]) -> More | None:
        """The two headers that it goes on with; None: it has been through too many."""
        been = 0
        for name, value in headers:
            if name == COUNT and value.isascii() and value.isdigit():
                been = int(value[:_DIGITS_MAX])
                break
        if been >= self._max:
            return None
        return (LAST, self._here), (COUNT, str(been + 1))
