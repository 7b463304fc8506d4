"""Which queues are there for dead letters."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.config import DEFAULT_POLICY, DestinationPolicy
from tidegate.spi import names


class DeadLetters:
    """What *policies* call them."""

    def __init__(self, policies: Iterable[DestinationPolicy]) -> None:
        self._patterns = {
            tuple(policy.dead_letter.split("{name}")) for policy in (*policies, DEFAULT_POLICY)
        }

    def go_to(self, destination: str) -> bool:
        """A policy has dead letters of some destination go there."""
        name = names.name_of(destination)
        return names.is_queue(destination) and any(
            name == ends[0]
            if len(ends) == 1
            else name.startswith(ends[0]) and name.endswith(ends[-1]) and name != "".join(ends)
            for ends in self._patterns
        )
