"""TCP and TLS: a listener that gives each connection a handler.

Thin on purpose: read, feed, write once a turn. The protocols are elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter
from typing import Final, cast, final

from tidegate.spi.clients.seldom import Seldom
from tidegate.spi.clients.tls import why_no_handshake
from tidegate_protocols.transport._link import Handler, Sockets
from tidegate_protocols.transport._principal import PrincipalOf, nobody
from tidegate_protocols.transport._proxy import Proxies, ProxyHeaderError, client_of
from tidegate_protocols.transport._sockets import (
    bind,
    descriptor_of,
    name_of,
    peer_name,
    port_of,
    tune,
)
from tidegate_protocols.transport._tcp_link import CLOSE_LINGER_S, TcpLink
from tidegate_protocols.transport._tls import subject_of

logger = logging.getLogger("tidegate.transport")

#: Bytes that may wait in one connection's write buffer before its handler is told to pause, and
#: the level at which it resumes. One dispatch page of 256-byte messages is about 128 KiB: twice
#: that keeps a fast consumer fed while a stalled one holds little memory.
WRITE_BUFFER_HIGH_BYTES: Final = 256 * 1024
WRITE_BUFFER_LOW_BYTES: Final = 64 * 1024

#: A read of this many bytes or more is its connection's only one in a turn of the loop: uvloop
#: would continue, up to 32 times 256,000 bytes, as long as the peer keeps the socket full.
FULL_READ_BYTES: Final = 128 * 1024
#: Unless it took less than this: 32 of those are not long, and pieces of a large body, which another
#: thread takes, would come at two thirds of the speed with a turn for each.
QUICK_READ_S: Final = 0.000_25

#: Memory of a socket with its transport, its link and its session before anything was read; the other
#: includes the buffers of TLS, from before the handshake on. Measured with a thousand sockets.
SOCKET_BYTES: Final = 4 * 1024
TLS_SOCKET_BYTES: Final = 52 * 1024

#: Connections accepted in a row before existing connections get their turn.
ACCEPTED_AT_A_TIME: Final = 16

#: Pause after accepting fails: usually no descriptor or memory is left for it, and
#: the socket would stay ready and the loop do nothing else.
ACCEPT_RETRY_S: Final = 0.2


@final
class TcpListener:
    """Accepts TCP connections and gives each its own handler.

    Args:
        host, port: where to listen; port 0 takes a free one.
        make_handler: called once per accepted connection.
        connections_max: 1 or more, counted from accept on; any further connection is sent *refusal*
            and closed, with TLS closed at once: a handshake for clients that are refused would cost
            more than one for clients that are let in.
        refusal: bytes for a connection over the limit; b"" says nothing.
        tls: the context of a TLS listener; None: plain TCP.
        tls_handshake_timeout_s: more than 0; a TLS handshake that takes longer is aborted.
        principal_of: determines the owner of a certificate, see :class:`PrincipalRule`.
        sockets: counts the sockets of all listeners, from accept on; None: not counted.
        proxies: their connections begin with a header that names the client; None: there are none.
        make_context: creates a new TLS context when the files may have changed. Raises: ConfigError.
    """

    def __init__(
        self,
        host: str,
        port: int,
        make_handler: Callable[[], Handler],
        *,
        connections_max: int,
        refusal: bytes = b"",
        tls: ssl.SSLContext | None = None,
        tls_handshake_timeout_s: float = 10.0,
        principal_of: PrincipalOf = nobody,
        sockets: Sockets | None = None,
        proxies: Proxies | None = None,
        make_context: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        self.principal_of = principal_of
        self._tls = tls
        self._make_context = make_context
        self._proxies = proxies
        self._tls_handshake_timeout_s = tls_handshake_timeout_s
        self._sockets = sockets
        self._socket_bytes = SOCKET_BYTES if tls is None else TLS_SOCKET_BYTES
        self._host = host
        self._port = port
        self._make_handler = make_handler
        self._connections_max = connections_max
        self._refusal = refusal
        self._accepting: list[tuple[asyncio.Task[None], socket.socket]] = []
        self._beginning: set[asyncio.Task[object]] = set()
        self._connections: set[_Connection] = set()  # including those in their handshake
        self._none_left = asyncio.Event()
        self._refused = Seldom(logger, "connections refused connections_max=%d")
        self._failed = Seldom(logger, "accept failed error=%s")
        self._unknown = Seldom(logger, "proxy refused peer=%s reason=%s")
        self._no_handshake = Seldom(logger, "tls refused port=%d peer=%s reason=%r")

    @property
    def connection_count(self) -> int:
        """Connections that are open now, including those still in their handshake."""
        return len(self._connections)

    async def start(self) -> tuple[str, int]:
        """Bind and accept. Called once.

        Returns: the address bound (with the port the kernel chose for port 0).
        Raises: OSError unchanged (port in use, no such address, not permitted).
        """
        loop = asyncio.get_running_loop()
        bound = await bind(loop, self._host, self._port)
        self._accepting = [(loop.create_task(self._accept(loop, one)), one) for one in bound]
        host, port = cast("tuple[str, int]", bound[0].getsockname()[:2])
        return host, port

    async def _accept(self, loop: asyncio.AbstractEventLoop, listening: socket.socket) -> None:
        """Accept until cancelled.

        A server of the loop's own accepts all pending connections at once, and reports a TLS
        connection only after its handshake: too late to count descriptors.
        """
        while True:
            for _ in range(ACCEPTED_AT_A_TIME):
                try:
                    accepted, _address = await loop.sock_accept(listening)
                except ConnectionError:  # it was gone before it was accepted
                    continue
                except OSError as error:
                    self._failed.say(loop.time(), error)
                    await asyncio.sleep(ACCEPT_RETRY_S)
                    break
                self._take(loop, accepted)
            await asyncio.sleep(0)

    def _take(self, loop: asyncio.AbstractEventLoop, accepted: socket.socket) -> None:
        """Take up the socket, or close it when this listener, or all together, have too many."""
        is_refused = len(self._connections) >= self._connections_max
        if is_refused:
            self._refused.say(loop.time(), self._connections_max)
        # No TLS handshake, and no wait for a proxy's header, for clients that are refused.
        is_told = self._refusal and self._tls is None and self._proxies is None
        if (is_refused and not is_told) or not (
            self._sockets is None or self._sockets.socket_opened(self._socket_bytes)
        ):
            accepted.close()
            return
        connection = _Connection(self, loop, self._refusal if is_refused else b"")
        if not is_refused:
            self._connections.add(connection)
        self._begin(loop, accepted, connection)

    def _begin(
        self, loop: asyncio.AbstractEventLoop, accepted: socket.socket, connection: _Connection
    ) -> None:
        """Make a connection of the socket after its TLS handshake."""
        task: asyncio.Task[object] = loop.create_task(self._make(loop, accepted, connection))
        self._beginning.add(task)
        task.add_done_callback(partial(self._begun, connection, accepted))

    async def _make(
        self, loop: asyncio.AbstractEventLoop, accepted: socket.socket, connection: _Connection
    ) -> None:
        if self._proxies is not None:
            try:
                connection.client = await client_of(loop, accepted, self._proxies)
            except ProxyHeaderError as error:
                self._unknown.say(loop.time(), name_of(accepted), error)
                raise
        tls = self._tls
        if tls is None:  # asyncio refuses the two timeouts there
            await loop.connect_accepted_socket(lambda: connection, accepted)
            return
        port, peer = port_of(accepted), connection.client or name_of(accepted)
        try:
            await loop.connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=tls,
                ssl_handshake_timeout=self._tls_handshake_timeout_s,
                ssl_shutdown_timeout=CLOSE_LINGER_S,
            )
        except OSError as error:
            if reason := why_no_handshake(error, "handshake_timeout"):
                self._no_handshake.say(loop.time(), port, peer, reason)
            raise

    async def reload(self) -> bool:
        """Reread the certificates: later handshakes use them.

        Returns: False when there are none. Raises: ConfigError; the previous ones stay.
        """
        if self._make_context is None:
            return False
        self._tls = await asyncio.to_thread(self._make_context)
        return True

    def _begun(
        self, connection: _Connection, accepted: socket.socket, task: asyncio.Task[object]
    ) -> None:
        self._beginning.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, OSError):
            logger.error("starting a connection failed", exc_info=error)
        if not connection.is_made:  # the handshake failed, or the listener stops
            accepted.close()
            self.forget(connection)

    async def stop_accepting(self) -> None:
        """Close the listening socket; existing connections go on. Idempotent."""
        accepting, self._accepting = self._accepting, []
        for task, _ in accepting:
            task.cancel()
        await asyncio.gather(*[task for task, _ in accepting], return_exceptions=True)
        for _, listening in accepting:
            listening.close()

    async def stop(self, timeout_s: float) -> None:
        """Close every connection after its pending output. Idempotent.

        Whatever is still open after *timeout_s* seconds is aborted.
        """
        await self.stop_accepting()
        for task in self._beginning:
            task.cancel()
        await asyncio.gather(*self._beginning, return_exceptions=True)
        for connection in list(self._connections):
            connection.close()
        if not await self._wait_until_empty(timeout_s):
            logger.warning("connections aborted count=%d", len(self._connections))
            for connection in list(self._connections):
                connection.abort()
            await self._wait_until_empty(CLOSE_LINGER_S)

    async def _wait_until_empty(self, timeout_s: float) -> bool:
        if not self._connections:
            return True
        self._none_left.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._none_left.wait()
        except TimeoutError:
            return False
        return True

    def make_handler(self) -> Handler:
        """A handler for an established connection."""
        return self._make_handler()

    def forget(self, connection: _Connection) -> None:
        """*connection* is gone."""
        if self._sockets is not None:
            self._sockets.socket_closed(self._socket_bytes)
        self._connections.discard(connection)
        if not self._connections:
            self._none_left.set()


@final
class _Connection(asyncio.Protocol):
    """Glue between asyncio's protocol callbacks and one handler.

    Args: refusal: the only thing it is sent; b"": it is let in.
    """

    __slots__ = ("_error", "_handler", "_link", "_listener", "_loop", "_refusal", "client")

    def __init__(
        self, listener: TcpListener, loop: asyncio.AbstractEventLoop, refusal: bytes
    ) -> None:
        self._refusal = refusal
        self._listener = listener
        self._loop = loop
        self._link: TcpLink | None = None
        self._handler: Handler | None = None
        self._error: Exception | None = None
        self.client = ""  # as reported by a proxy

    @property
    def is_made(self) -> bool:
        """The connection was established."""
        return self._link is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        tcp = cast(asyncio.Transport, transport)
        certificate = cast("Mapping[str, object] | None", tcp.get_extra_info("peercert"))
        peer = self.client or peer_name(tcp)
        link = TcpLink(
            tcp,
            self._loop,
            peer,
            subject_of(certificate),
            descriptor_of(tcp),
            self._listener.principal_of(certificate),
        )
        self._link = link
        try:
            if self._refusal:
                link.send(self._refusal)
                link.close()
                return
            tune(tcp)
            tcp.set_write_buffer_limits(WRITE_BUFFER_HIGH_BYTES, WRITE_BUFFER_LOW_BYTES)
            self._handler = handler = self._listener.make_handler()
            handler.opened(link)
        except Exception as error:
            self._fail(link, error)

    def data_received(self, data: bytes) -> None:
        link, handler = self._link, self._handler
        if link is None or handler is None or link.is_closing:
            return  # lingering close: input is read only so that the peer gets our last bytes
        is_full = len(data) >= FULL_READ_BYTES
        begun_at = perf_counter() if is_full else 0.0
        try:
            handler.data_received(data)
        except Exception as error:
            self._fail(link, error)
        if is_full and perf_counter() - begun_at > QUICK_READ_S:
            link.rest()

    def eof_received(self) -> bool:
        # The peer writes no more. Unless it must still be told something, the transport closes by itself
        # after the output it already has, so hand it this turn's answers first.
        link, handler = self._link, self._handler
        if link is None:
            return False
        link.flush()
        if handler is None or not link.end_input():
            return False
        try:
            return handler.input_ended()
        except Exception as error:
            self._fail(link, error)
            return False

    def connection_lost(self, exc: Exception | None) -> None:
        link, handler = self._link, self._handler
        self._handler = None
        if link is None:
            return  # it was never established
        self._listener.forget(self)
        link.lost()
        if handler is None:
            return
        try:
            handler.closed(self._error or exc)
        except Exception:
            logger.exception("handler failed while closing peer=%s", link.peer)

    def pause_writing(self) -> None:
        link, handler = self._link, self._handler
        if link is None or handler is None:
            return
        try:
            handler.pause_writing()
        except Exception as error:
            self._fail(link, error)

    def resume_writing(self) -> None:
        link, handler = self._link, self._handler
        if link is None or handler is None:
            return
        try:
            handler.resume_writing()
        except Exception as error:
            self._fail(link, error)

    def close(self) -> None:
        if self._link is not None:
            self._link.close()

    def abort(self) -> None:
        if self._link is not None:
            self._link.abort()

    def _fail(self, link: TcpLink, error: Exception) -> None:
        logger.error("handler failed, connection aborted peer=%s", link.peer, exc_info=error)
        self._error = error
        link.abort()
