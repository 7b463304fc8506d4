"""The process's end of the socket pair."""

from __future__ import annotations

import socket
import threading

from tidegate_bridge import _protocol as protocol


class Link:
    """Frames to and from the gateway; any thread may send, one receives."""

    def __init__(self, link: socket.socket) -> None:
        self._socket = link
        self._reader = link.makefile("rb", buffering=1 << 18)
        self._sending = threading.Lock()

    def send(self, told: protocol.FromProcess) -> None:
        """Send a frame; blocks while the gateway reads nothing. Raises: OSError when it is gone."""
        data = protocol.frame(told)
        with self._sending:
            self._socket.sendall(data)

    def receive(self) -> protocol.FromGateway | None:
        """The next frame; None: the gateway is gone."""
        head = self._reader.read(protocol.LENGTH_BYTES)
        if len(head) < protocol.LENGTH_BYTES:
            return None
        size = protocol.length_of(head)
        data = self._reader.read(size)
        return protocol.decode_from_gateway(data) if len(data) == size else None
