"""Rights change: what each connected client may have is decided again, one after another.

The change counts at once; the work is done in steps. From the change on nothing is handed out to a
connection that has not been decided about: for lists it is a socket that takes no more, so messages
pay nothing for this. What it asks for meanwhile is answered by its current rights: who it now is has
been decided before (:meth:`Undecided.decide_who`). Only clients that lose a right notice more than
a moment without messages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol

from tidegate.broker.turn.walks import Walk, Walks
from tidegate.plugin_exit import FAILURES
from tidegate.spi import ConnectionEndedError, GatewayError

_log = logging.getLogger("tidegate.broker.connection")

#: Answers of authorizers between looks at the clock: with a hundred rules each takes some 30
#: microseconds, and 200 where patterns name the client.
DECIDED_AT_ONCE: Final = 16

#: Memory per connection for messages that no list keeps and that wait for the decision, or those of
#: one turn; later ones are dropped, as for a socket that takes no more.
HELD_BACK_BYTES: Final = 64 * 1024


class Undecided(Protocol):
    """What this needs of a connection."""

    def hold_until_decided(self) -> bool:
        """Rights have changed. Returns: whether the client has not taken all that it was handed before."""
        ...

    def decide_again(self) -> Iterator[int]:
        """Decide, step by step, and end it or go on.

        Yields: the work done, in answers of authorizers."""
        ...

    def end(self, error: GatewayError) -> None: ...


class HeldBack:
    """What is done for a connection when it has been decided about."""

    __slots__ = ("_acts", "_size")

    def __init__(self) -> None:
        self._acts: list[Callable[[], None]] = []
        self._size = 0

    def add(self, act: Callable[[], None], size: int) -> bool:
        """Args: size: bytes that *act* hands over. Returns: False when that is too many."""
        if self._size and size and self._size + size > HELD_BACK_BYTES:
            return False
        self._size += size
        self._acts.append(act)
        return True

    def clear(self) -> None:
        """Drop all of it."""
        self._acts.clear()
        self._size = 0

    def release(self) -> None:
        """Do all of it."""
        acts = list(self._acts)
        self.clear()
        for act in acts:
            act()


class Deciding:
    """All connections that must be decided about."""

    def __init__(self, walks: Walks) -> None:
        self._walks = walks
        self._undecided: dict[Undecided, Iterator[int]] = {}

    def begin(self, connections: Iterable[Undecided]) -> None:
        """Rights of *connections* have changed, perhaps again."""
        is_walking = bool(self._undecided)
        urgent: dict[Undecided, Iterator[int]] = {}
        others: dict[Undecided, Iterator[int]] = {}
        for connection in connections:
            # Those that have not taken what they were handed come first: it still goes out meanwhile.
            chosen = urgent if connection.hold_until_decided() else others
            chosen[connection] = connection.decide_again()
        self._undecided = urgent | {**self._undecided, **others, **urgent}
        if self._undecided and not is_walking:
            self._walks.begin(self._walk())

    def _walk(self) -> Walk:
        work = 0
        while self._undecided:
            connection, steps = next(iter(self._undecided.items()))
            try:
                for size in steps:
                    work += size
                    if work >= DECIDED_AT_ONCE:
                        work = 0
                        yield
                        if self._undecided.get(connection) is not steps:
                            break  # rights have changed again
            except FAILURES:  # it must get nothing, and the others must go on
                _log.exception("deciding what a client may have failed")
                connection.end(ConnectionEndedError("internal-error", "internal error"))
            if self._undecided.get(connection) is steps:
                del self._undecided[connection]
