"""uvicorn's HTTP connections with limits that it lacks: their number, and how slow a header may be."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from tidegate_admin.server.strangers import FIRST_BYTES, Strangers, peer_of

#: Most bytes of a request's line and header.
HEADER_BYTES_MAX: Final = 32 << 10
#: How long an idle connection is kept.
KEEP_ALIVE_S: Final = 30


def bounded(
    connections_max: int, header_timeout_s: float, strangers: Strangers
) -> type[asyncio.Protocol]:
    """uvicorn's protocol class. *strangers* gets clients that do not speak HTTP."""

    class BoundedConnection(H11Protocol):
        """Closes at the first request whose header does not arrive in time."""

        _ends: asyncio.TimerHandle | None = None
        _first = b""
        _has_asked = False

        def connection_made(self, transport: Any) -> None:
            if len(self.connections) >= connections_max:
                transport.abort()
                self.transport = transport
                return
            super().connection_made(transport)
            self._expect()

        def connection_lost(self, exc: Exception | None) -> None:
            self._expect_nothing()
            if self in self.connections:
                super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self not in self.connections:
                return
            if len(self._first) < FIRST_BYTES:
                self._first += data[:FIRST_BYTES]
            super().data_received(data)
            if self.conn.their_state is not h11.IDLE:
                self._has_asked = True
                self._expect_nothing()
            elif self._ends is None and self.conn.trailing_data[0]:
                self._expect()

        def _expect(self) -> None:
            self._ends = self.loop.call_later(header_timeout_s, self._too_slow)

        def _expect_nothing(self) -> None:
            if self._ends is not None:
                self._ends.cancel()
                self._ends = None

        def _too_slow(self) -> None:
            self._ends = None
            if self._first and not self._has_asked:
                strangers.no_http(peer_of(self.transport), self._first, is_late=True)
            self.transport.close()

        def send_400_response(self, msg: str) -> None:
            strangers.no_http(peer_of(self.transport), self._first)
            super().send_400_response(msg)

    return BoundedConnection
