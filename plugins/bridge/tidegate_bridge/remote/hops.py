"""Records in two headers the bridges that a message has passed, and ends loops.

The names are usable in selectors of JMS brokers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

#: The last bridge that it passed: ``STORE/BRIDGE``.
LAST: Final = "tidegate_bridge"
#: How many bridges it has passed.
COUNT: Final = "tidegate_hops"
#: The other broker may have delivered it before.
REDELIVERED: Final = "tidegate_redelivered"
OWN: Final = frozenset((LAST, COUNT, REDELIVERED))
_DIGITS_MAX: Final = 4

#: Headers added to a message's own.
More: TypeAlias = tuple[tuple[str, str], ...]


class Hops:
    """Args: here: this bridge; hops_max: see BridgeOptions; is_echoed: see the rule."""

    def __init__(self, here: str, hops_max: int, *, is_echoed: bool) -> None:
        self._here = here
        self._max = hops_max
        self._is_echoed = is_echoed

    def is_copy_of_ours(self, headers: Iterable[tuple[str, str]]) -> bool:
        """Whether this bridge carried it the other way, from a topic: do not send it back."""
        if not self._is_echoed:
            return False
        return any(name == LAST and value == self._here for name, value in headers)

    def next(self, headers: Iterable[tuple[str, str]]) -> More | None:
        """The two headers to send it on with; None: it has passed too many bridges."""
        been = 0
        for name, value in headers:
            if name == COUNT and value.isascii() and value.isdigit():
                been = int(value[:_DIGITS_MAX])
                break
        if been >= self._max:
            return None
        return (LAST, self._here), (COUNT, str(been + 1))
