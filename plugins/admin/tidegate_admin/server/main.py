"""The process that the listener starts: it waits to be told how and where to serve."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import uvicorn

from tidegate_admin import _protocol as protocol
from tidegate_admin.server.app import Application
from tidegate_admin.server.connections import HEADER_BYTES_MAX, KEEP_ALIVE_S, bounded
from tidegate_admin.server.handshakes import Handshake, context_of
from tidegate_admin.server.history import EVERY_S, HISTORY_FILE, Ring, Sampler
from tidegate_admin.server.link import Link
from tidegate_admin.server.strangers import Strangers

#: The longest line of an answer: a page of rows with long names.
_ANSWER_BYTES_MAX: Final = 256 << 20
#: Descriptors besides those of connections.
_DESCRIPTORS: Final = 64


async def serve(
    link_socket: socket.socket, start: protocol.Start, listening: socket.socket
) -> None:
    """Serve until the gateway is gone."""
    reader, writer = await asyncio.open_connection(sock=link_socket, limit=_ANSWER_BYTES_MAX)
    _bound_descriptors(start.connections_max)

    def renew() -> None:
        if context is not None:
            context.load_cert_chain(start.certificate, start.key)

    context = context_of(start.certificate, start.key) if start.certificate else None
    strangers = Strangers(listening.getsockname()[1])
    connection = bounded(start.connections_max, start.request_timeout, strangers)

    def connected(**of_uvicorn: Any) -> asyncio.Protocol:
        make = partial(connection, **of_uvicorn)
        if context is None:
            return make()
        return Handshake(make, context, start.request_timeout, strangers)

    link = Link(reader, writer, renew)
    ring = Ring(Path(start.directory) / HISTORY_FILE)
    sampler = Sampler(ring, lambda: link.sample(EVERY_S))
    config = uvicorn.Config(
        Application(start, link, ring).asgi(),
        http=cast("type[asyncio.Protocol]", connected),  # uvicorn only calls it
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        h11_max_incomplete_event_size=HEADER_BYTES_MAX,
    )
    following = [asyncio.create_task(link.follow()), asyncio.create_task(sampler.follow())]
    await uvicorn.Server(config).serve(sockets=[listening])
    for task in following:
        task.cancel()


def _bound_descriptors(connections_max: int) -> None:
    """Limit connections, including those still in their TLS handshake."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * connections_max + _DESCRIPTORS
    if hard == resource.RLIM_INFINITY or wanted < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def main(arguments: list[str]) -> None:
    """Serve as told until the gateway is gone. Args: arguments: the number of its socket."""
    link = socket.socket(fileno=int(arguments[0]))
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    # We report what strangers send, at a limited rate.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    handed_over = protocol.handed_over(link)
    if handed_over is not None:
        asyncio.run(serve(link, *handed_over))
