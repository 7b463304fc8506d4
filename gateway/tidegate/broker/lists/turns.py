"""What lists ask of the turn that is being filled (:class:`tidegate.broker.turn.writer.TurnWriter`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tidegate.spi import GatewayError


class Turns(Protocol):
    """See the module."""

    next_sequence: int

    def now(self) -> int: ...
    def when_durable(
        self,
        done: Callable[[], object],
        failed: Callable[[GatewayError], None] | None = None,
        *,
        synced: bool = True,
    ) -> None: ...
