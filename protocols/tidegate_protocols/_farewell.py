"""The end of a connection waits for what came before it, in both protocols.

Whoever does not hear that something was confirmed sends it again. So a session whose client has to
go, for what it sent last, or goes by itself and still reads, gives the broker one more token and says
its last words when that is confirmed: the broker confirms in the order in which it was asked. That
takes as long as the store takes to write, and meanwhile nothing the client sends is looked at or
kept. Where the gateway or an operator ends a connection, nothing waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

from tidegate.spi import BrokerConnection, Token


@final
class Farewell:
    """A token of the session's own.

    Args: say: closes the connection, with its last words.
    Attributes: say; receipt: what its own confirmation is called; None: it has none.
    """

    __slots__ = ("receipt", "say")

    def __init__(self, say: Callable[[], None], receipt: str | None = None) -> None:
        self.say = say
        self.receipt = receipt


@final
class Farewells:
    """Those of one connection: there is a second one where the client said goodbye before it had to go,
    and then only that one is said. Owned by the session.

    Attributes: has_ended: the client sends no more, and reads on.
    """

    __slots__ = ("_last", "has_ended")

    def __init__(self) -> None:
        self.has_ended = False
        self._last: Farewell | None = None

    def wait(self, connection: BrokerConnection, say: Callable[[], None]) -> bool:
        """Deliver nothing more, and call *say* behind all that is not confirmed yet.

        Returns: False: all is confirmed, and nothing was done.
        """
        if not connection.has_unconfirmed:
            return False
        connection.writable(False)
        self.add(connection, Farewell(say))
        return True

    def add(self, connection: BrokerConnection, farewell: Farewell) -> None:
        """Say *farewell* behind all that is not confirmed yet."""
        self._last = farewell
        connection.synchronize(farewell)

    def say(self, token: Token) -> bool:
        """Say the farewell that *token* is: all before it is confirmed, or cannot be.

        Returns: False: it is not the last one.
        """
        last = self._last
        if last is None or token is not last:
            return False
        self._last = None
        last.say()
        return True

    def forget(self) -> None:
        """Say none any more."""
        self._last = None


def answers_in(tokens: Sequence[Token]) -> Sequence[Token]:
    """What the client is told of *tokens*, which are confirmed."""
    if type(tokens[-1]) is not Farewell:  # it is behind all others, but for a second one
        return tokens
    named = [token.receipt if type(token) is Farewell else token for token in tokens]
    return [answer for answer in named if answer is not None]
