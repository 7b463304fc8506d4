"""Builds the listener for a configuration: which transport, with which context."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Protocol, final

from tidegate.spi import ListenerConfig
from tidegate_protocols.transport._link import Handler, Sockets
from tidegate_protocols.transport._options import (
    TransportOptions,
    check_transport,
    is_tls,
    is_websocket,
    proxies_of,
)
from tidegate_protocols.transport._principal import PrincipalRule
from tidegate_protocols.transport._tcp import TcpListener
from tidegate_protocols.transport._tls import server_context
from tidegate_protocols.transport._upgrade import (
    WebSocketProfile,
    http_refusal,
)
from tidegate_protocols.transport._websocket import WebSocketHandler


class Listener(Protocol):
    """What a front-end needs of a listener; see the methods of :class:`TcpListener`."""

    @property
    def connection_count(self) -> int: ...
    async def start(self) -> tuple[str, int]: ...
    async def stop_accepting(self) -> None: ...
    async def stop(self, timeout_s: float) -> None: ...
    async def reload(self) -> bool: ...


def make_listener(
    config: ListenerConfig,
    options: TransportOptions,
    make_handler: Callable[[], Handler],
    *,
    profile: WebSocketProfile,
    connections_max: int,
    refusal: bytes = b"",
    refusal_text: str = "too many connections",
    sockets: Sockets | None = None,
) -> Listener:
    """Build the listener for ``config.transport``; does not bind, but reads certificates.

    Args:
        make_handler: called once per connection, for WebSocket after its handshake.
        profile: the protocol's requirements on WebSocket.
        connections_max: 1 or more; any further connection is sent *refusal* (WebSocket: 503 with
            *refusal_text*) and closed.
        sockets: counts the sockets of all listeners; one too many is closed silently.
    Raises: ConfigError with the key.
    """
    check_transport(config.transport, options)
    context = server_context(options) if is_tls(config.transport) else None
    make_context = None if context is None else partial(server_context, options)
    proxies = proxies_of(options)
    principal_of = PrincipalRule(options).principal_of
    if not is_websocket(config.transport):
        return TcpListener(
            config.host,
            config.port,
            make_handler,
            connections_max=connections_max,
            refusal=refusal,
            tls=context,
            tls_handshake_timeout_s=options.handshake_timeout,
            principal_of=principal_of,
            sockets=sockets,
            proxies=proxies,
            make_context=make_context,
        )
    connections: set[WebSocketHandler] = set()

    def make_web_socket() -> Handler:
        loop = asyncio.get_running_loop()
        handler = WebSocketHandler(
            make_handler, profile, options, loop, connections.discard, sockets
        )
        connections.add(handler)
        return handler

    tcp = TcpListener(
        config.host,
        config.port,
        make_web_socket,
        connections_max=connections_max,
        refusal=http_refusal(HTTPStatus.SERVICE_UNAVAILABLE, refusal_text),
        tls=context,
        tls_handshake_timeout_s=options.handshake_timeout,
        principal_of=principal_of,
        sockets=sockets,
        proxies=proxies,
        make_context=make_context,
    )
    return WebSocketListener(tcp, connections)


@final
class WebSocketListener:
    """A TCP or TLS listener whose clients get close code 1001 when it stops."""

    def __init__(self, below: TcpListener, connections: set[WebSocketHandler]) -> None:
        self._below = below
        self._connections = connections

    @property
    def connection_count(self) -> int:
        """Connections that are open now, including those still in their handshake."""
        return self._below.connection_count

    async def start(self) -> tuple[str, int]:
        """See :meth:`TcpListener.start`."""
        return await self._below.start()

    async def stop_accepting(self) -> None:
        """See :meth:`TcpListener.stop_accepting`."""
        await self._below.stop_accepting()

    async def reload(self) -> bool:
        """See :meth:`TcpListener.reload`."""
        return await self._below.reload()

    async def stop(self, timeout_s: float) -> None:
        """Send Close to every client, then as :meth:`TcpListener.stop`. Idempotent."""
        await self._below.stop_accepting()
        for connection in list(self._connections):
            connection.going_away()
        await self._below.stop(timeout_s)
