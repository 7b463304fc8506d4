"""Clients of the Flight server, each a connection of the gateway like any other.

So authenticators, authorizers, quotas, the audit log and the operator's list of connections cover
them, and a lost right or an expired token takes effect here as well.
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
    """An admitted client's end of its connection. Implements ClientPeer.

    Attributes: connection: checks its rights; used_at: its last call, seconds of the loop's clock.
    """

    has_unsent = False

    def __init__(self) -> None:
        self.connection: BrokerConnection | None = None
        self.used_at = 0.0
        self.ended: GatewayError | None = None

    def confirmed(self, tokens: Sequence[Token]) -> None:
        """Never happens: it publishes nothing."""

    def failed(self, token: Token, error: GatewayError) -> None:
        """Never happens, for the same reason."""

    def deliver(self, key: str, messages: Sequence[StoredMessage]) -> None:
        raise AssertionError("it subscribes to nothing")

    def throttle(self, paused: bool, *, at_once: bool = False) -> None:
        """It publishes nothing to slow down."""

    def closed(self, error: GatewayError) -> None:
        """The gateway ended the connection: its next call is refused."""
        self.ended = error
        self.connection = None


class Sessions:
    """Args: address: the server's, for the audit log; timeout_s: longest time without a call."""

    def __init__(self, broker: Broker, address: str, *, anonymous: bool, timeout_s: float) -> None:
        self._broker = broker
        self._address = address
        self._anonymous = anonymous
        self._timeout_s = timeout_s
        self._readers: dict[str, Reader] = {}

    def __len__(self) -> int:
        return len(self._readers)

    async def log_in(self, peer: str, username: str, password: bytes | None) -> tuple[str, str]:
        """Admit a client. Returns: token and principal. Raises: AccessError, FlowControlError."""
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
        """The connection of *token*; None: no longer valid."""
        reader = self._readers.get(token)
        if reader is None:
            return None
        if reader.connection is None:
            del self._readers[token]
            return None
        reader.used_at = asyncio.get_running_loop().time()
        return reader.connection

    def leave(self, token: str) -> None:
        """End the session of a client that has left."""
        reader = self._readers.pop(token, None)
        if reader is not None and reader.connection is not None:
            reader.connection.disconnect(graceful=True)

    def sweep(self) -> None:
        """End sessions that have been idle for too long."""
        before = asyncio.get_running_loop().time() - self._timeout_s
        for token, reader in list(self._readers.items()):
            if reader.used_at < before or reader.connection is None:
                self.leave(token)

    def end(self) -> None:
        """End all sessions."""
        for token in list(self._readers):
            self.leave(token)
