"""What a handler writes to: TCP and TLS. One write per turn of the loop, and a close that loses nothing."""

from __future__ import annotations

import asyncio
import os
from typing import Final, final

from tidegate.spi import Principal

#: How long a closed connection waits for the peer to take the last bytes. Closing a socket while
#: unread input is queued makes the kernel send RST, which destroys what the peer has not read yet:
#: exactly the ERROR frame that says why. So: end the write side, discard input, then close.
CLOSE_LINGER_S: Final = 2.0


@final
class TcpLink:
    """A :class:`~tidegate_protocols.transport.Link` over an asyncio transport.

    Args: descriptor: of the socket, for direct writes: uvloop's transport writes only at the end of a
        turn of the loop, and by then the store may already be syncing what came in. -1: none (TLS).
    """

    __slots__ = (
        "_closing",
        "_descriptor",
        "_has_ended",
        "_linger",
        "_loop",
        "_pieces",
        "_reading_paused",
        "_rests",
        "_transport",
        "_wants_reading",
        "peer",
        "tls_principal",
        "tls_subject",
    )

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        peer: str,
        tls_subject: str = "",
        descriptor: int = -1,
        tls_principal: Principal | None = None,
    ) -> None:
        self.peer: Final = peer
        self.tls_subject: Final = tls_subject
        self.tls_principal: Final = tls_principal
        self._transport = transport
        self._descriptor = descriptor
        self._loop = loop
        self._pieces: list[bytes] = []
        self._closing = False
        self._has_ended = False  # the peer sends no more
        self._reading_paused = False
        self._wants_reading = True
        self._rests = False
        self._linger: asyncio.TimerHandle | None = None

    @property
    def subprotocol(self) -> str:
        return ""

    @property
    def is_closing(self) -> bool:
        return self._closing

    @property
    def unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size() + sum(map(len, self._pieces))

    def send(self, data: bytes) -> None:
        pieces = self._pieces
        if not pieces:
            if self._closing:
                return
            self._loop.call_soon(self.flush)
        pieces.append(data)

    def send_piece(self, data: bytes, *, last: bool) -> None:
        self.send(data)

    def flush(self) -> None:
        pieces = self._pieces
        if not pieces:
            return  # an explicit flush came before the scheduled one
        self._pieces = []
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        transport = self._transport
        if (
            self._descriptor < 0
            or transport.is_closing()  # the descriptor may be another connection's by now
            or transport.get_write_buffer_size()
        ):
            transport.write(data)
            return
        try:
            written = os.write(self._descriptor, data)
        except OSError:
            written = 0  # full or broken: the transport handles it
        if written < len(data):
            transport.write(memoryview(data)[written:])

    def close(self) -> None:
        if self._closing:
            return
        self.flush()
        self._closing = True
        if self._transport.is_closing():
            return  # the peer closed first; connection_lost follows
        if not self._transport.can_write_eof():
            # TLS cannot end one direction only. Its shutdown discards input too, until the peer
            # has answered close_notify, but only if it may read.
            self._set_reading(True)
            self._transport.close()
            return
        if self._has_ended:
            self._transport.close()  # when everything is written
            self._linger = self._loop.call_later(CLOSE_LINGER_S, self._transport.abort)
            return
        try:
            self._transport.write_eof()
        except (OSError, RuntimeError):
            self._transport.abort()  # the peer has reset the connection: nobody will read
            return
        self._linger = self._loop.call_later(CLOSE_LINGER_S, self._transport.abort)
        self._set_reading(True)

    def abort(self) -> None:
        self._closing = True
        self._pieces.clear()
        self._transport.abort()

    def pause_reading(self) -> None:
        if not self._closing:
            self._set_reading(False)

    def resume_reading(self) -> None:
        if not self._closing:
            self._set_reading(True)

    def end_input(self) -> bool:
        """The peer sends no more (called by the connection). Returns: whether it may still read."""
        self._has_ended = True
        return not self._closing and self._transport.can_write_eof()

    def lost(self) -> None:
        """The socket is gone (called by the connection)."""
        self._closing = True
        self._pieces.clear()
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None

    def rest(self) -> None:
        """Read no more in this turn of the loop."""
        if not self._rests and not self._closing:
            self._rests = True
            self._loop.call_soon(self._rested)
            self._set_reading(self._wants_reading)

    def _rested(self) -> None:
        self._rests = False
        self._set_reading(self._wants_reading)

    def _set_reading(self, on: bool) -> None:
        self._wants_reading = on
        if self._has_ended:
            return  # reading again would only be signalled again
        on = on and not self._rests
        # asyncio tolerates a repeated call, uvloop raises: keep the state here for both.
        if on is not self._reading_paused or self._transport.is_closing():
            return
        self._reading_paused = not on
        if on:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()
