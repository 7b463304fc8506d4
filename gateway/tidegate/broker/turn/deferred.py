"""Transactions one after another: each stands or falls as one, however large, and a turn takes one.

Several small ones fit into one turn. One that does not fit is carried out in the next turn with room,
before anything else of its client. Otherwise fifty clients that each commit ten thousand messages at
the same time would make one turn of half a million operations.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Protocol

from tidegate.broker.turn.turn import Turn, Waiting
from tidegate.spi import GatewayError, Token


class Turns(Protocol):
    """What this needs of its surroundings (:class:`tidegate.broker.turn.flow.Flow`)."""

    def takes(self, turn: Turn, operations: int, /) -> bool: ...
    def wait(self, client: Waiting, /) -> None: ...
    @property
    def turn(self) -> Turn: ...


class Deferred:
    """The transactions that wait for their turn."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._waiting: dict[Waiting, list[tuple[int, Callable[[], None]]]] = {}

    @property
    def clients(self) -> Set[Waiting]:
        """The clients they belong to."""
        return self._waiting.keys()

    def in_its_turn(
        self, client: Waiting, operations: int, token: Token, act: Callable[[], None]
    ) -> None:
        """Call *act*, which adds *operations* operations, now or later.

        Raises: what *act* raises, if called now; later the client is told that *token* failed.
        """
        if not self._waiting and self._takes(operations):
            act()
            return

        def carry_out() -> None:
            try:
                act()
            except GatewayError as error:
                client.failed(token, error)

        self._waiting.setdefault(client, []).append((operations, carry_out))
        self._turns.wait(client)

    def behind(self, client: Waiting, act: Callable[[], None]) -> None:
        """Call *act*, which adds no operations, after what *client* has waiting; it must have something."""
        self._waiting[client].append((0, act))

    def turn_written(self) -> None:
        """The next turn fills: carry out as many as it takes."""
        for client, acts in list(self._waiting.items()):
            if self._waiting.get(client) is not acts:
                continue  # it has ended meanwhile
            if not self._takes(sum(operations for operations, _ in acts)):
                self._turns.wait(client)
                return
            self.carry_out(client)

    def carry_out(self, client: Waiting) -> None:
        """Carry out now all that waits of *client*."""
        for _, act in self._waiting.pop(client, ()):
            act()

    def _takes(self, operations: int) -> bool:
        turn = self._turns.turn
        return not turn.commits or self._turns.takes(turn, operations)
