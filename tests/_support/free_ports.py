"""Loopback ports for servers that a test starts."""

from __future__ import annotations

import itertools
import os
import re
import socket
from typing import Final

# Below the ports that the system gives to clients (32768 and up), so that none takes one of these
# between the look and the use. Each worker of pytest-xdist has a stretch of its own, for the same
# reason, and begins somewhere in it.
_STRETCH: Final = 2_000
_worker = re.sub(r"\D", "", os.environ.get("PYTEST_XDIST_WORKER", "")) or "10"
_first = 10_000 + int(_worker) % 11 * _STRETCH
_ports = itertools.cycle(range(_first, _first + _STRETCH))
for _ in range(os.getpid() % _STRETCH):
    next(_ports)


def free_port() -> int:
    """A port that nobody listens on now, and that nobody else is given for a long time."""
    for port in itertools.islice(_ports, _STRETCH):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no port is free")
