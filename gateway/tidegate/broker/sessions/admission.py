"""A client is let in when its session is durable.

What the answer to a CONNECT says (there is a session, or it begins anew; the will is kept) must
still be true after the gateway was killed: a client that began anew gives its packet ids out again,
and the QoS 2 states of the session before would make its messages duplicates.
"""

from __future__ import annotations

import asyncio

from tidegate.broker.turn.writer import FULL_BACK_OFF_S, TurnWriter
from tidegate.spi import GatewayError


async def until_durable(writer: TurnWriter) -> None:
    """Wait until everything asked for so far is durable.

    Does not wait for room in a full store, for longer than ``FULL_BACK_OFF_S``: the clients that
    can make some by acknowledging must be let in.

    Raises: StoreError. Cancellation: nothing is taken back.
    """
    if writer.full_until > asyncio.get_running_loop().time():
        return
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done() -> None:
        if not future.done():
            future.set_result(None)

    def failed(error: GatewayError) -> None:
        if not future.done():
            future.set_exception(error)

    writer.when_durable(done, failed)
    try:
        while not future.done():
            await asyncio.wait((future,), timeout=FULL_BACK_OFF_S)
            if writer.full_until:
                return
        future.result()
    finally:
        future.cancel()
