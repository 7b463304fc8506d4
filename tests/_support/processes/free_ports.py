"""Loopback ports for servers that a test starts."""

from __future__ import annotations

import fcntl
import functools
import itertools
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TextIO

# Below the ports that the system gives to clients (32768 and up), so that none takes one of these
# between the look and the use. Each process has a stretch of its own while it lives, for the same reason:
# nobody listens on the port of a standby, and another run of the tests would take it for a free one.
# Above 10,080, which browsers refuse to open (Fetch standard, "port blocking").
_FIRST: Final = 10_500
_STRETCH: Final = 500
_STRETCHES: Final = 44
_held: Final[list[TextIO]] = []


def free_port() -> int:
    """A port that nobody listens on now, and that nobody else is given for a long time."""
    for port in itertools.islice(_ports(os.getpid()), _STRETCH):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no port is free")


@functools.cache
def _ports(_process: int) -> Iterator[int]:
    first = _FIRST + _own_stretch() * _STRETCH
    return itertools.cycle(range(first, first + _STRETCH))


def _own_stretch() -> int:
    """One that no process has which lives; where all are taken, anyone's."""
    directory = Path(tempfile.gettempdir()) / f"tidegate-ports-{os.getuid()}"
    directory.mkdir(exist_ok=True)
    begin = os.getpid() % _STRETCHES  # what ended just now may still be closing its sockets
    for number in (*range(begin, _STRETCHES), *range(begin)):
        file = (directory / str(number)).open("w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            continue
        _held.append(file)
        return number
    return begin
