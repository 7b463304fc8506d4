"""What a protocol session sees of a transport, and what a transport sees of a session.

Only the two protocols below couple them, so TCP, TLS and WebSocket can carry the same session, and
a test can put a list in place of a socket.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, final

from tidegate.spi import Principal, Stranger


class Link(Protocol):
    """One connection, seen from the session. Used on the event loop only."""

    @property
    def peer(self) -> str:
        """``host:port`` of the client (``[address]:port`` for IPv6)."""
        ...

    @property
    def subprotocol(self) -> str:
        """The WebSocket subprotocol agreed upon; "" for none and on other transports."""
        ...

    @property
    def tls_subject(self) -> str:
        """Subject of the client's verified certificate (RFC 4514); "" when it showed none."""
        ...

    @property
    def tls_principal(self) -> Principal | None:
        """See the field of this name of :class:`tidegate.spi.ConnectRequest`."""
        ...

    @property
    def is_closing(self) -> bool:
        """True once ``close`` or ``abort`` was called or the connection was lost."""
        ...

    @property
    def unsent_bytes(self) -> int:
        """Bytes sent that the socket has not taken yet."""
        ...

    def send(self, data: bytes) -> None:
        """Append *data* to what goes out at the end of this turn of the loop, in one write.

        Never waits. Ignored when the link is closing. The caller must respect ``pause_writing``.
        """
        ...

    def send_piece(self, data: bytes, *, last: bool) -> None:
        """As ``send``, but *data* is a piece of one message, which ends with the *last* one.

        Nothing but pieces may be sent from the first of a message to its last.
        """
        ...

    def flush(self) -> None:
        """Hand everything appended so far to the socket now."""
        ...

    def close(self) -> None:
        """Flush, then close; nothing more is received. Idempotent.

        :meth:`Handler.closed` follows when the socket is gone: at once, or as soon as the peer
        has read what was written, but no later than the transport's linger time.
        """
        ...

    def abort(self) -> None:
        """Close at once; unwritten data is lost. Idempotent."""
        ...

    def pause_reading(self) -> None:
        """Stop taking bytes from the socket (the peer's TCP window closes). Idempotent."""
        ...

    def resume_reading(self) -> None:
        """Undo ``pause_reading``. Idempotent."""
        ...


class Sockets(Protocol):
    """Counts the sockets of all listeners; see :class:`tidegate.spi.Broker`, which is one."""

    def socket_opened(self, size: int) -> bool:
        """Count an accepted socket. Returns: False when it is one too many."""
        ...

    def socket_closed(self, size: int) -> None:
        """A counted socket is gone."""
        ...

    def unauthenticated_holds(self, peer: Stranger, size: int) -> None:
        """*size* bytes of an incomplete request are held."""
        ...


class Handler(Protocol):
    """One connection, seen from the transport.

    An exception that escapes from one of these methods is logged with the peer's address and ends
    only this connection.
    """

    def opened(self, link: Link) -> None:
        """The connection is up. Called once, first."""
        ...

    def data_received(self, data: bytes) -> None:
        """Bytes arrived. Never called again after ``link.close()`` or ``link.abort()``."""
        ...

    def input_ended(self) -> bool:
        """The peer sends no more, but may still read; not with TLS, which cannot end one direction.

        Returns: True when it must still be told something: the handler closes the link then. False:
            the link is closed when everything is written.
        """
        ...

    def closed(self, error: Exception | None) -> None:
        """The socket is gone; *error* says why, None: an orderly end. Called once, last."""
        ...

    def pause_writing(self) -> None:
        """The write buffer is above its high-water mark: send only what cannot wait."""
        ...

    def resume_writing(self) -> None:
        """The write buffer has drained."""
        ...


class LinkSession(Protocol):
    """What a protocol makes of a link: a Handler without ``opened``."""

    def data_received(self, data: bytes) -> None: ...
    def input_ended(self) -> bool: ...
    def link_closed(self, error: Exception | None) -> None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...


@final
class SessionHandler:
    """A Handler that makes a session when its link opens."""

    __slots__ = ("_make", "_session")

    def __init__(self, make: Callable[[Link], LinkSession]) -> None:
        self._make = make
        self._session: LinkSession | None = None

    def opened(self, link: Link) -> None:
        self._session = self._make(link)

    def data_received(self, data: bytes) -> None:
        if self._session is not None:
            self._session.data_received(data)

    def input_ended(self) -> bool:
        return self._session is not None and self._session.input_ended()

    def closed(self, error: Exception | None) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.link_closed(error)

    def pause_writing(self) -> None:
        if self._session is not None:
            self._session.pause_writing()

    def resume_writing(self) -> None:
        if self._session is not None:
            self._session.resume_writing()
