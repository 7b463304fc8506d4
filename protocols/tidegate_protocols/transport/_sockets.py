"""Sockets as listeners need them: bound, named, tuned."""

from __future__ import annotations

import asyncio
import socket
from typing import Final, cast

#: Connections the kernel may hold between two turns of the loop. A gateway that comes back is met
#: by all its clients at once; the kernel limits this to net.core.somaxconn.
BACKLOG: Final = 1024


async def bind(loop: asyncio.AbstractEventLoop, host: str, port: int) -> list[socket.socket]:
    """Sockets that listen on every address of *host* ("": on all interfaces). Raises: OSError."""
    found = await loop.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    bound: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            one = socket.socket(family, kind, protocol)
            bound.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                one.bind(address)
                one.listen(BACKLOG)
            except OSError as error:
                # Worded as in asyncio's own servers: with the address, which the bare error lacks.
                problem = f"error while attempting to bind on address {address!r}: {error.strerror}"
                raise OSError(error.errno, problem) from error
            one.setblocking(False)
    except OSError:
        for one in bound:
            one.close()
        raise
    return bound


def peer_name(transport: asyncio.BaseTransport) -> str:
    """``host:port`` of the peer (``[address]:port`` for IPv6)."""
    return _shown(transport.get_extra_info("peername"))


def name_of(accepted: socket.socket) -> str:
    """As :func:`peer_name`, for a socket without a transport."""
    try:
        return _shown(accepted.getpeername())
    except OSError:
        return _shown(None)


def port_of(accepted: socket.socket) -> int:
    """Our port, at which the peer connected."""
    return cast("tuple[str, int]", accepted.getsockname()[:2])[1]


def _shown(name: object) -> str:
    if not isinstance(name, tuple):
        return "unknown"  # the peer was already gone
    host, port = cast("tuple[str, int]", name[:2])
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def descriptor_of(transport: asyncio.BaseTransport) -> int:
    """The socket that takes written bytes unchanged; -1: there is none."""
    sock = cast("socket.socket | None", transport.get_extra_info("socket"))
    is_plain = transport.get_extra_info("ssl_object") is None
    return sock.fileno() if sock is not None and is_plain else -1


def tune(transport: asyncio.BaseTransport) -> None:
    """Set the socket's options."""
    sock = cast("socket.socket | None", transport.get_extra_info("socket"))
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        # A receipt is one small segment: Nagle's algorithm would hold it for the peer's delayed ACK.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Without heart-beats, a peer that lost power would otherwise keep its messages for ever.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
