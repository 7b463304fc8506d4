"""WebSocket (RFC 6455) between a byte transport and a protocol session.

To the listener's connection this is a :class:`Handler`; to the session it offers a :class:`Link`. So
it works over TCP and TLS alike, and sessions see bytes: they do not notice how these are split into
messages and frames.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Final, final

from tidegate.spi import GatewayError, Principal, format_duration
from tidegate_protocols.transport._frames import (
    BINARY,
    CLOSE_GOING_AWAY,
    CLOSE_NORMAL,
    CONTINUATION,
    PONG,
    TEXT,
    FrameDecoder,
    WebSocketError,
    encode_close,
    encode_frame,
    encode_header,
)
from tidegate_protocols.transport._link import Handler, Link, Sockets
from tidegate_protocols.transport._options import TransportOptions
from tidegate_protocols.transport._slices import Share, nobody
from tidegate_protocols.transport._tcp_link import CLOSE_LINGER_S
from tidegate_protocols.transport._upgrade import Answer, Upgrade, WebSocketProfile, refuse

logger = logging.getLogger("tidegate.transport")

#: Frames read in one step, before the clock is checked: a frame of one byte takes about a
#: microsecond, and what is left behind is copied in each step.
STEP_FRAMES: Final = 512


@final
class WebSocketLink:
    """A :class:`~tidegate_protocols.transport.Link` that writes WebSocket messages.

    Args: paused: called when :attr:`is_paused` changes: make sure that nothing is read then.
    Attributes: is_paused: the session wants no input.

    Each ``send`` becomes one message, or as many as the profile's ``split`` yields, of the kind that
    the client sent last; bytes that are not UTF-8 are always a binary message.
    """

    __slots__ = (
        "_below",
        "_decoder",
        "_is_closing",
        "_is_in_pieces",
        "_linger",
        "_loop",
        "_paused",
        "_split",
        "is_paused",
        "subprotocol",
    )

    def __init__(
        self,
        below: Link,
        decoder: FrameDecoder,
        loop: asyncio.AbstractEventLoop,
        profile: WebSocketProfile,
        subprotocol: str,
        paused: Callable[[], None],
    ) -> None:
        self.subprotocol: Final = subprotocol
        self.is_paused = False
        self._paused = paused
        self._below = below
        self._decoder = decoder
        self._loop = loop
        self._split = profile.split
        self._is_closing = False
        self._is_in_pieces = False
        self._linger: asyncio.TimerHandle | None = None

    @property
    def peer(self) -> str:
        return self._below.peer

    @property
    def tls_subject(self) -> str:
        return self._below.tls_subject

    @property
    def tls_principal(self) -> Principal | None:
        return self._below.tls_principal

    @property
    def is_closing(self) -> bool:
        return self._is_closing

    @property
    def unsent_bytes(self) -> int:
        return self._below.unsent_bytes

    def send(self, data: bytes) -> None:
        if self._is_closing:
            return
        split = self._split
        out: list[bytes] = []
        for piece in (data,) if split is None else split(data):
            opcode = TEXT if self._decoder.is_text and _is_text(piece) else BINARY
            out.append(encode_header(opcode, len(piece)))
            out.append(piece)
        self._below.send(b"".join(out))

    def send_piece(self, data: bytes, *, last: bool) -> None:
        """A fragment of a binary message. RFC 6455 section 5.4: control frames may come between."""
        if self._is_closing:
            return
        opcode = CONTINUATION if self._is_in_pieces else BINARY
        self._is_in_pieces = not last
        self._below.send(encode_header(opcode, len(data), last=last) + data)

    def flush(self) -> None:
        self._below.flush()

    def close(self) -> None:
        self.close_with(CLOSE_NORMAL)

    def close_with(self, code: int, reason: str = "") -> None:
        """Send Close and wait briefly for the peer's. RFC 6455 section 7.1.1. Idempotent."""
        if self._is_closing:
            return
        self._is_closing = True
        self._below.send(encode_close(code, reason))
        self._below.flush()
        self.is_paused = False
        self._paused()  # otherwise its Close would never be seen
        self._linger = self._loop.call_later(CLOSE_LINGER_S, self._below.abort)

    def finish(self, reply: bytes = b"") -> None:
        """The closing handshake is over, or there is none to wait for: send *reply*, then close."""
        self._is_closing = True
        if reply:
            self._below.send(reply)
        self.released()
        self._below.close()

    def released(self) -> None:
        """Stop the timer."""
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None

    def forget(self) -> None:
        """The connection is gone: call nobody any more."""
        self.released()
        self._is_closing = True
        self._paused = nobody

    def abort(self) -> None:
        self._is_closing = True
        self._below.abort()

    def pause_reading(self) -> None:
        self._set_paused(True)

    def resume_reading(self) -> None:
        self._set_paused(False)

    def _set_paused(self, value: bool) -> None:
        if value is not self.is_paused and not self._is_closing:
            self.is_paused = value
            self._paused()


@final
class _Request:
    """A client's request until it is answered: reports the bytes held of it.

    Args: refuse: called when the broker has no room for it.
    """

    __slots__ = ("_refuse", "_size", "_sockets")

    def __init__(self, sockets: Sockets, refuse: Callable[[GatewayError], None]) -> None:
        self._sockets = sockets
        self._refuse = refuse
        self._size = 0

    def holds(self, size: int) -> None:
        """*size* bytes of it are held."""
        if size != self._size:
            self._size = size
            self._sockets.unauthenticated_holds(self, size)

    def closed(self, error: GatewayError) -> None:
        """See :class:`tidegate.spi.Stranger`."""
        self._size = 0
        self._refuse(error)


@final
class WebSocketHandler:
    """One connection: first its HTTP request, then its frames.

    Args:
        make_inner: the protocol's handler; called when the WebSocket is open, not before.
        profile: the protocol's requirements.
        options: limits, times, origins.
        loop: for the two timers.
        ended: called with this handler when the socket is gone.
        sockets: told how much of a request is held; None: nobody is.
    """

    __slots__ = (
        "_below",
        "_decoder",
        "_ended",
        "_error",
        "_inner",
        "_is_due",
        "_is_paused",
        "_link",
        "_loop",
        "_make_inner",
        "_options",
        "_profile",
        "_request",
        "_share",
        "_sockets",
        "_timer",
        "_upgrade",
    )

    def __init__(
        self,
        make_inner: Callable[[], Handler],
        profile: WebSocketProfile,
        options: TransportOptions,
        loop: asyncio.AbstractEventLoop,
        ended: Callable[[WebSocketHandler], None],
        sockets: Sockets | None = None,
    ) -> None:
        self._sockets = sockets
        self._request: _Request | None = None  # one that has not arrived completely
        self._make_inner = make_inner
        self._profile = profile
        self._options = options
        self._loop = loop
        self._ended = ended
        self._upgrade = Upgrade(profile, options.websocket_origins, options.websocket_handshake_max)
        self._decoder = FrameDecoder(
            options.websocket_message_max, text_allowed=profile.text_allowed
        )
        self._below: Link | None = None
        self._link: WebSocketLink | None = None
        self._inner: Handler | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._error: Exception | None = None
        self._is_paused = False
        self._share: Share | None = None  # since the handshake
        self._is_due = False  # to continue in the next turn of the loop

    # --------------------------------------------------------------------------- as a Handler

    def opened(self, link: Link) -> None:
        self._below = link
        self._timer = self._loop.call_later(self._options.handshake_timeout, self._too_slow)

    def data_received(self, data: bytes) -> None:
        if self._share is None:
            self._shake_hands(data)
        elif self._decoder.has_more:
            self._decoder.keep(data)
        else:
            self._receive(data)
            if self._decoder.has_more:
                self._adjust_reading()

    def _receive(self, data: bytes = b"") -> None:
        """Handle some frames: from *data*, or left behind earlier."""
        link, inner, decoder = self._link, self._inner, self._decoder
        if link is None or inner is None:
            return
        try:
            payload = decoder.receive_data(data, frames_max=STEP_FRAMES)
        except WebSocketError as error:
            self._fail(link, error)
            return
        if payload and not link.is_closing:
            inner.data_received(payload)
        if decoder.ping is not None and not self._is_paused:
            self._pong()
        if decoder.close is not None:
            # RFC 6455 section 5.5.1: answer with the code that came, unless ours was first.
            link.finish(b"" if link.is_closing else encode_close(decoder.close[0]))

    def _work(self, _count_max: int) -> bool:
        """Handle some of what was left behind, unless the session is busy."""
        if self._link is None or self._link.is_paused or not self._decoder.has_more:
            return False
        self._receive()
        return self._decoder.has_more

    def _adjust_reading(self) -> None:
        """The session, or this handler, is busy, or no longer is."""
        link, share, below = self._link, self._share, self._below
        if link is None or share is None or below is None:
            return
        if link.is_paused or self._decoder.has_more:
            below.pause_reading()
        else:
            below.resume_reading()
        if not (link.is_paused or share.is_waiting or self._is_due) and self._decoder.has_more:
            self._is_due = True
            self._loop.call_soon(self._go_on)  # not now: the session may be in the middle of it

    def _go_on(self) -> None:
        self._is_due = False
        if self._share is not None and self._inner is not None:
            self._share.run()
            self._adjust_reading()

    def input_ended(self) -> bool:
        return False  # a peer that leaves like that sends no Close, and hears none

    def closed(self, error: Exception | None) -> None:
        self._forget_request()
        self._ended(self)
        if self._link is not None:
            self._link.released()
        while self._decoder.has_more and self._error is None:
            self._receive()  # received input counts; the session takes it in small steps
        if self._share is not None:
            self._share.stop()
        inner, self._inner = self._inner, None
        if self._error is not None:
            self._error = error = self._error.with_traceback(
                None
            )  # the traceback holds all of this
        if inner is not None:
            inner.closed(error)
        if self._link is not None:
            self._link.forget()

    def pause_writing(self) -> None:
        self._is_paused = True
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._is_paused = False
        if self._decoder.ping is not None:
            self._pong()
        if self._inner is not None:
            self._inner.resume_writing()

    def going_away(self) -> None:
        """The listener stops. RFC 6455 section 7.4.1, 1001."""
        if self._link is not None:
            self._link.close_with(CLOSE_GOING_AWAY, "the gateway is stopping")

    # ---------------------------------------------------------------------------------- steps

    def _shake_hands(self, data: bytes) -> None:
        below, upgrade = self._below, self._upgrade
        if below is None or upgrade is None:
            return  # the request was refused
        answer = upgrade.receive_data(data)
        if answer is None:
            if self._request is None and self._sockets is not None:
                self._request = _Request(self._sockets, self._no_room)
            if self._request is not None:
                self._request.holds(upgrade.waiting_bytes)
            return
        self._forget_request()
        if answer.refusal:
            self._refuse(answer)
            return
        below.send(answer.response)
        self._link = link = WebSocketLink(
            below,
            self._decoder,
            self._loop,
            self._profile,
            answer.subprotocol,
            self._adjust_reading,
        )
        self._share = Share(below, self._work, self._adjust_reading)
        self._inner = inner = self._make_inner()
        inner.opened(link)
        if self._is_paused:
            inner.pause_writing()
        if answer.rest:
            self.data_received(answer.rest)

    def _forget_request(self) -> None:
        self._upgrade = None  # it holds the request
        request, self._request = self._request, None
        if request is not None:
            request.holds(0)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _no_room(self, error: GatewayError) -> None:
        self._forget_request()
        self._refuse(refuse(HTTPStatus.SERVICE_UNAVAILABLE, error.for_client))

    def _too_slow(self) -> None:
        self._forget_request()
        limit = format_duration(self._options.handshake_timeout)
        text = f"no complete WebSocket request within {limit}"
        self._refuse(refuse(HTTPStatus.REQUEST_TIMEOUT, text))

    def _refuse(self, answer: Answer) -> None:
        below = self._below
        if below is not None:
            logger.info("websocket refused peer=%s reason=%s", below.peer, answer.refusal)
            below.send(answer.response)
            below.close()

    def _fail(self, link: WebSocketLink, error: WebSocketError) -> None:
        """RFC 6455 section 7.1.7: send the reason, and do not wait for the peer's Close."""
        if link.is_closing:
            link.finish()
            return
        logger.info(
            "websocket failed peer=%s code=%d reason=%s", link.peer, error.code, error.reason
        )
        self._error = error
        link.finish(encode_close(error.code, error.reason))

    def _pong(self) -> None:
        ping, self._decoder.ping = self._decoder.ping, None
        if self._below is not None and self._link is not None and not self._link.is_closing:
            self._below.send(encode_frame(PONG, ping or b""))


def _is_text(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
