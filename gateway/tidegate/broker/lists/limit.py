"""How much may wait in a list, and where, as far as the list needs it."""

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
        """What happens when the list is as large as it may be; "": it may be of any size."""
        ...

    @property
    def is_full(self) -> bool:
        """Producers of the list are to wait."""
        ...

    def room(self) -> int:
        """How many messages more it takes, those in flight left out; 0 or less: none."""
        ...

    def spare(self) -> tuple[int, int]:
        """How many messages and bytes of bodies more it takes, those in flight counted."""
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
    """What is not stored of a queue (:class:`tidegate.broker.unstored.spool.ListSpool`)."""

    count: int
    memory_bytes: int

    @property
    def file_bytes(self) -> int: ...
    @property
    def is_full(self) -> bool: ...
