"""Clients of the Flight server, each a connection of the gateway's like any other.

So authenticators, authorizers, quotas, the audit log and the operator's list of connections know
them, and whoever loses a right, or whose token expires, loses it here as well.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import Final, final

from tidegate.spi import (
    Broker,
    BrokerConnection,
    ConnectRequest,
    GatewayError,
    StoredMessage,
    Token,
)

PROTOCOL: Final = "flight"


@final
class Reader:
    """One client that is let in: its end of the connection. Implements ClientPeer.

    Attributes: connection: asks for rights; used_at: when it last called, seconds of the loop's clock.
    """

    has_unsent = False

    def __init__(self) -> None:
        self.connection: BrokerConnection | None = None
        self.used_at = 0.0
        self.ended: GatewayError | None = None

    def confirmed(self, tokens: Sequence[Token]) -> None:
        """It never asks for anything that is confirmed."""

    def failed(self, token: Token, error: GatewayError) -> None:
        """Nor for anything that could fail later."""

    def deliver(self, key: str, messages: Sequence[StoredMessage]) -> None:
        raise AssertionError("it subscribes to nothing")

    def throttle(self, paused: bool, *, at_once: bool = False) -> None:
        """It sends nothing that could be too much."""

    def closed(self, error: GatewayError) -> None:
        """The gateway ended it: its next call is refused."""
        self.ended = error
        self.connection = None


class Sessions:
    """Args: address: of the server, for the audit log; timeout_s: without a call."""

    def __init__(self, broker: Broker, address: str, *, anonymous: bool, timeout_s: float) -> None:
        self._broker = broker
        self._address = address
        self._anonymous = anonymous
        self._timeout_s = timeout_s
        self._readers: dict[str, Reader] = {}

    def __len__(self) -> int:
        return len(self._readers)

    async def log_in(self, peer: str, username: str, password: bytes | None) -> tuple[str, str]:
        """Let a client in. Returns: its token, its principal. Raises: AccessError, FlowControlError."""
        reader = Reader()
        result = await self._broker.connect(
            ConnectRequest(
                protocol=PROTOCOL,
                version="1",
                client_id="",
                peer=peer,
                listener=self._address,
                username=username,
                password=password,
                anonymous_allowed=self._anonymous,
            ),
            reader,
        )
        connection = result.connection
        if reader.ended is not None:
            raise reader.ended
        reader.connection = connection
        connection.resume()
        reader.used_at = asyncio.get_running_loop().time()
        token = secrets.token_urlsafe(32)
        self._readers[token] = reader
        return token, connection.principal

    def of(self, token: str) -> BrokerConnection | None:
        """Whose *token* is; None: nobody's any more."""
        reader = self._readers.get(token)
        if reader is None:
            return None
        if reader.connection is None:
            del self._readers[token]
            return None
        reader.used_at = asyncio.get_running_loop().time()
        return reader.connection

    def leave(self, token: str) -> None:
        """The client has gone."""
        reader = self._readers.pop(token, None)
        if reader is not None and reader.connection is not None:
            reader.connection.disconnect(graceful=True)

    def sweep(self) -> None:
        """End those that have not called for long."""
        before = asyncio.get_running_loop().time() - self._timeout_s
        for token, reader in list(self._readers.items()):
            if reader.used_at < before or reader.connection is None:
                self.leave(token)

    def end(self) -> None:
        """All of them have gone."""
        for token in list(self._readers):
            self.leave(token)
