"""Which queues are for dead letters."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tidegate.config import DEFAULT_POLICY, DestinationPolicy
from tidegate.spi import names


class DeadLetters:
    """Those that *policies* name."""

    def __init__(self, policies: Iterable[DestinationPolicy]) -> None:
        named = {policy.dead_letter for policy in (*policies, DEFAULT_POLICY)}
        each = (".+".join(map(re.escape, one.split("{name}"))) for one in sorted(named))
        self._is_one = re.compile(names.queue("(?:" + "|".join(each) + ")"), re.DOTALL).fullmatch

    def go_to(self, destination: str) -> bool:
        """Some policy sends dead letters there."""
        return self._is_one(destination) is not None
