"""What a pending list knows of two that come and go with it."""

from __future__ import annotations

from typing import Protocol

from tidegate.spi import FlowControlError


class Limit(Protocol):
    """How many messages may wait (:mod:`tidegate.broker.limits.subscription_limit`)."""

    count_max: int
    overflow: str
    is_near: bool

    def room(self) -> int: ...
    def excludes(self) -> bool: ...
    def accept(self) -> None: ...
    def drop(self, count: int) -> None: ...
    def update(self) -> None: ...
    def end(self) -> None: ...
    def refusal(self) -> FlowControlError: ...


class Stepping(Protocol):
    """Retained messages on their way (:mod:`tidegate.broker.publish.retained_delivery`)."""

    def step(self) -> None: ...
