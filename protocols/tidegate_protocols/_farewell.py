"""Delays the end of a connection until what came before it is confirmed, in both protocols.

A client that does not see a confirmation sends again. So when a client must go because of what it
sent last, or leaves by itself and still reads, its session gives the broker one more token and
closes once that is confirmed: the broker confirms in order. That takes as long as the store takes
to write; meanwhile nothing the client sends is handled or kept. When the gateway or an operator
ends a connection, nothing waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

from tidegate.spi import BrokerConnection, Token


@final
class Farewell:
    """A token of the session's own.

    Args: say: sends the last words and closes the connection.
    Attributes: say; receipt: the receipt for its own confirmation; None: it has none.
    """

    __slots__ = ("receipt", "say")

    def __init__(self, say: Callable[[], None], receipt: str | None = None) -> None:
        self.say = say
        self.receipt = receipt


@final
class Farewells:
    """The farewells of one connection, owned by the session. A client that said goodbye and then
    had to go has two, and only the second is said.

    Attributes: has_ended: the client sends no more, but still reads.
    """

    __slots__ = ("_last", "has_ended")

    def __init__(self) -> None:
        self.has_ended = False
        self._last: Farewell | None = None

    def wait(self, connection: BrokerConnection, say: Callable[[], None]) -> bool:
        """Deliver nothing more, and call *say* once everything pending is confirmed.

        Returns: False: everything is confirmed already, and nothing was done.
        """
        if not connection.has_unconfirmed:
            return False
        connection.writable(False)
        self.add(connection, Farewell(say))
        return True

    def add(self, connection: BrokerConnection, farewell: Farewell) -> None:
        """Say *farewell* once everything pending is confirmed."""
        self._last = farewell
        connection.synchronize(farewell)

    def say(self, token: Token) -> bool:
        """Say the farewell *token*: everything before it is confirmed, or cannot be.

        Returns: False: it is not the last one.
        """
        last = self._last
        if last is None or token is not last:
            return False
        self._last = None
        last.say()
        return True

    def forget(self) -> None:
        """Say no farewell any more."""
        self._last = None


def answers_in(tokens: Sequence[Token]) -> Sequence[Token]:
    """The confirmed *tokens* that the client hears about."""
    if type(tokens[-1]) is not Farewell:  # it is last, except for a second one
        return tokens
    named = [token.receipt if type(token) is Farewell else token for token in tokens]
    return [answer for answer in named if answer is not None]
