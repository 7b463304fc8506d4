"""The process that the listener starts: it waits to be told how to serve, and where."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import ssl
from pathlib import Path
from typing import Final

import uvicorn

from tidegate_admin import _protocol as protocol
from tidegate_admin.server.app import Application
from tidegate_admin.server.connections import HEADER_BYTES_MAX, KEEP_ALIVE_S, bounded
from tidegate_admin.server.history import EVERY_S, HISTORY_FILE, Ring, Sampler
from tidegate_admin.server.link import Link

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
        context: ssl.SSLContext | None = config.ssl
        if context is not None:
            context.load_cert_chain(start.certificate, start.key)

    link = Link(reader, writer, renew)
    ring = Ring(Path(start.directory) / HISTORY_FILE)
    sampler = Sampler(ring, lambda: link.sample(EVERY_S))
    config = uvicorn.Config(
        Application(start, link, ring).asgi(),
        http=bounded(start.connections_max, start.request_timeout),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        h11_max_incomplete_event_size=HEADER_BYTES_MAX,
        ssl_certfile=start.certificate or None,
        ssl_keyfile=start.key or None,
    )
    config.load()
    if config.ssl is not None:
        config.ssl.minimum_version = ssl.TLSVersion.TLSv1_2
    following = [asyncio.create_task(link.follow()), asyncio.create_task(sampler.follow())]
    await uvicorn.Server(config).serve(sockets=[listening])
    for task in following:
        task.cancel()


def _bound_descriptors(connections_max: int) -> None:
    """So many connections and no more, also of those whose TLS handshake has not ended."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * connections_max + _DESCRIPTORS
    if hard == resource.RLIM_INFINITY or wanted < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def main(arguments: list[str]) -> None:
    """Wait to be told how to serve, and serve until the gateway is gone. Args: arguments: the number of its socket."""
    link = socket.socket(fileno=int(arguments[0]))
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    # What strangers send is nothing to be told of.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    handed_over = protocol.handed_over(link)
    if handed_over is not None:
        asyncio.run(serve(link, *handed_over))
