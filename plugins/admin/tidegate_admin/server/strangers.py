"""Reports clients of the listener that speak another protocol, in the operator's log."""

from __future__ import annotations

import asyncio
import logging
from time import monotonic
from typing import Final, final

from tidegate.spi import Bind
from tidegate.spi.clients.mistaken import HTTP, TLS, spoken_by
from tidegate.spi.clients.seldom import Seldom

_log = logging.getLogger("tidegate.admin")

#: The first bytes by which a protocol is recognised.
FIRST_BYTES: Final = 64
#: Bytes of an unknown protocol that the operator is shown.
_SHOWN_BYTES: Final = 8


@final
class Strangers:
    """Reports at a limited rate. Args: port: of the listener."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._no_http = Seldom(_log, "http refused port=%d peer=%s reason=%r")
        self._no_handshake = Seldom(_log, "tls refused port=%d peer=%s reason=%r")

    def no_http(self, peer: str, first: bytes, *, is_late: bool = False) -> None:
        """A client sent something that is not a request.

        Args: first: the connection's first bytes; is_late: it timed out, perhaps half-way.
        """
        spoken = spoken_by(first)
        if spoken == HTTP:
            reason = "not complete within request_timeout" if is_late else "malformed HTTP"
        elif spoken == TLS:
            reason = "the peer speaks TLS, and this listener plain HTTP: http://, or another port"
        elif spoken:
            reason = f"the peer speaks {spoken}, and this listener HTTP: let it use another port"
        else:
            reason = f"no HTTP: it begins with the bytes {first[:_SHOWN_BYTES].hex(' ')}"
        self._no_http.say(monotonic(), self._port, peer, reason)

    def no_handshake(self, peer: str, reason: str) -> None:
        """A client's handshake failed."""
        self._no_handshake.say(monotonic(), self._port, peer, reason)


def peer_of(transport: asyncio.BaseTransport) -> str:
    """``host:port``; "unknown" if the client has already gone."""
    name = transport.get_extra_info("peername")
    return "unknown" if not name else str(Bind(name[0], name[1]))
