"""TLS in front of an HTTP connection: a failed handshake is reported with the client's address."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, final

from tidegate.spi.clients.tls import why_no_handshake
from tidegate_admin.server.strangers import Strangers, peer_of


def context_of(certificate: str, key: str) -> ssl.SSLContext:
    """TLS with this certificate. Raises: OSError, ssl.SSLError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key)
    return context


@final
class Handshake(asyncio.Protocol):
    """A connection until its handshake is over; then another protocol takes over.

    asyncio's own server does not report failed handshakes.

    Args: make: makes the connection's protocol; strangers: told of clients that never got one.
    """

    def __init__(
        self,
        make: Callable[[], asyncio.Protocol],
        context: ssl.SSLContext,
        timeout_s: float,
        strangers: Strangers,
    ) -> None:
        self._make = make
        self._context = context
        self._timeout_s = timeout_s
        self._strangers = strangers
        self._task: asyncio.Task[None] | None = None
        # A request may arrive together with the end of the handshake: it waits here.
        self._early: list[bytes] = []
        self._is_gone = False

    def connection_made(self, transport: Any) -> None:
        """See asyncio.Protocol. The task runs before anything is read: it was ready first."""
        self._task = asyncio.get_running_loop().create_task(self._begin(transport))

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        self._early.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._is_gone = True

    async def _begin(self, transport: asyncio.Transport) -> None:
        peer = peer_of(transport)
        try:
            secure = await asyncio.get_running_loop().start_tls(
                transport,
                self,
                self._context,
                server_side=True,
                ssl_handshake_timeout=self._timeout_s,
            )
        except OSError as error:
            if reason := why_no_handshake(error, "request_timeout"):
                self._strangers.no_handshake(peer, reason)
            return
        if secure is None or self._is_gone:
            return
        protocol = self._make()
        secure.set_protocol(protocol)
        protocol.connection_made(secure)
        for data in self._early:
            protocol.data_received(data)
        self._early = []
