"""``python -m tidegate_sink_flight.server.main FD``: the process that the sink starts."""

from __future__ import annotations

import errno
import os
import socket
import sys
import threading
import time
from typing import Final

from tidegate_sink_flight import _protocol as protocol
from tidegate_sink_flight.server.flight import make_server
from tidegate_sink_flight.server.link import Link

#: How long to wait for a port in use: the server of a killed gateway lives on for a moment.
PORT_TIMEOUT_S: Final = 10.0


def main(arguments: list[str]) -> None:
    """Serve until the gateway is gone."""
    link = Link(socket.socket(fileno=int(arguments[0])))
    start = link.receive_start()
    try:
        port = take_port(start.host, start.port)
        server = make_server(link, start, port)
    except Exception as error:
        where = f"[{start.host}]" if ":" in start.host else start.host
        link.tell(protocol.Ready(problem=f"cannot listen on {where}:{start.port}: {error}"))
        os._exit(1)
    threading.Thread(target=link.follow, daemon=True).start()
    link.tell(protocol.Ready(port=server.port))
    server.serve()


def take_port(host: str, port: int) -> int:
    """Make sure that nobody else listens there.

    gRPC would share the port with any other SO_REUSEPORT listener, and clients would reach either
    server. Port 0 picks a free one. Raises: OSError.
    """
    if not port:
        return 0
    deadline = time.monotonic() + PORT_TIMEOUT_S
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    while True:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                    raise
            else:
                return port
        time.sleep(0.1)


if __name__ == "__main__":
    main(sys.argv[1:])
