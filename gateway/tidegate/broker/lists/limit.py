"""What a list needs to know about how much may wait in it, and where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tidegate.spi import StoredMessage


class Limit(Protocol):
    """The limit of one list (:class:`tidegate.broker.limits.list_limit.ListLimit`)."""

    weighs: bool
    bytes: int

    @property
    def act(self) -> str:
        """What happens when the list is at its limit; "": its size is unlimited."""
        ...

    @property
    def is_full(self) -> bool:
        """Producers of the list must wait."""
        ...

    def room(self) -> int:
        """How many more messages it takes, not counting those in flight; 0 or less: none."""
        ...

    def spare(self) -> tuple[int, int]:
        """How many more messages and bytes of bodies it takes, counting those in flight."""
        ...

    def accept(self, size: int) -> None:
        """A message for the list is in the filling turn. Args: size: of its body."""
        ...

    def offered(self, messages: Sequence[StoredMessage]) -> None:
        """New messages are durable."""
        ...

    def weigh(self, messages: Sequence[StoredMessage]) -> None:
        """These may leave the list; only where it weighs."""
        ...

    def update(self, *, is_dispatched: bool = False) -> None:
        """Messages came or went. Args: is_dispatched: the list has just handed out what it could."""
        ...

    def end(self) -> None:
        """The list is gone."""
        ...


class Unstored(Protocol):
    """A queue's messages that are not stored (:class:`tidegate.broker.unstored.spool.ListSpool`)."""

    count: int
    memory_bytes: int

    @property
    def file_bytes(self) -> int: ...
    @property
    def is_full(self) -> bool: ...
