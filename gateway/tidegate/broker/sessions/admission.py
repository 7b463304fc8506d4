"""A client is let in when its session is durable.

What the answer to a CONNECT says (there is a session, or it begins anew; the will is kept) must
still be true after the gateway was killed: a client that began anew gives its packet ids out again,
and the QoS 2 states of the session before would make its messages duplicates.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tidegate.broker.turn.writer import FULL_BACK_OFF_S
from tidegate.spi import GatewayError, Token

if TYPE_CHECKING:
    from tidegate.broker.core import BrokerCore


class _Waiter:
    """Who is told when the turn is durable."""

    __slots__ = ("future",)

    def __init__(self) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def confirmed(self, tokens: list[Token]) -> None:
        del tokens
        if not self.future.done():
            self.future.set_result(None)

    def failed(self, token: Token, error: GatewayError) -> None:
        del token
        if not self.future.done():
            self.future.set_exception(error)


async def until_durable(core: BrokerCore) -> None:
    """Wait until everything asked for so far is durable.

    Does not wait for room in a full store, for longer than ``FULL_BACK_OFF_S``: the clients that
    can make some by acknowledging must be let in.

    Raises: StoreError. Cancellation: nothing is taken back.
    """
    writer = core.writer
    if writer.full_until > asyncio.get_running_loop().time():
        return
    waiter = _Waiter()
    turn = writer.turn
    turn.units.append((0, 0, waiter, waiter, None))
    turn.synced = True
    core.schedule()
    try:
        while not waiter.future.done():
            await asyncio.wait((waiter.future,), timeout=FULL_BACK_OFF_S)
            if writer.full_until:
                return
        waiter.future.result()
    finally:
        waiter.future.cancel()
