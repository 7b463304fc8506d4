"""One STOMP connection, from the first byte to the last.

The steps between states are in ``_transitions``, the meaning of a connected client's frames is in
``_client``; here they meet the transport, the broker's answers and time. The frames of one read
are handled in one go: plain ACKs are collected and passed to the broker in one call for each
subscription, receipts that become due together leave in one write, and so do messages.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, cast, final

from tidegate.spi import (
    AccessError,
    Broker,
    ConnectionEndedError,
    ConnectResult,
    GatewayError,
    Held,
    PeerProtocolError,
    StoredMessage,
    Token,
)
from tidegate_protocols._unfinished import STEP_BYTES, Pace, UnfinishedInput
from tidegate_protocols.stomp._client import Client
from tidegate_protocols.stomp._errors import error_frame
from tidegate_protocols.stomp._handshake import Admission, Handshake
from tidegate_protocols.stomp._headers import check_no_body
from tidegate_protocols.stomp._options import StompOptions
from tidegate_protocols.stomp._receiving import Receiving
from tidegate_protocols.stomp._split import SUBPROTOCOLS
from tidegate_protocols.stomp._transitions import Farewell, Input, State, input_of, step
from tidegate_protocols.stomp._wire import Wire
from tidegate_protocols.stomp.codec.decoder import Decoder
from tidegate_protocols.stomp.codec.encoder import LargeBodyMetError, encode_receipts
from tidegate_protocols.stomp.codec.frames import AckRun, Frame, LargeSend, Version
from tidegate_protocols.transport import Link

logger = logging.getLogger("tidegate.stomp")

_CONNECTED: Final = State.CONNECTED
_REFUSED: Final = State.REFUSED


@dataclass(frozen=True, slots=True)
class SessionContext:
    """What all sessions of a listener share.

    Attributes:
        broker, options: as the front-end got them.
        allow_anonymous: the listener's rule.
        address: the listener's address, known once it is bound.
        ended: called when a session's socket is gone.
    """

    broker: Broker
    options: StompOptions
    allow_anonymous: bool
    address: Callable[[], str]
    ended: Callable[[Session], None]


@final
class Session:
    """The protocol side of one connection; also the broker's :class:`~tidegate.spi.ClientPeer`.

    Attributes: state: where it stands.
    """

    __slots__ = (
        "_admission",
        "_client",
        "_context",
        "_decoder",
        "_is_behind",
        "_is_graceful",
        "_loop",
        "_meter",
        "_receiving",
        "_throttled",
        "_unfinished",
        "_wire",
        "state",
    )

    def __init__(
        self, context: SessionContext, loop: asyncio.AbstractEventLoop, link: Link
    ) -> None:
        """The connection is up; CONNECT must follow within ``connect_timeout``."""
        self._context = context
        self._loop = loop
        self.state = State.WAITING
        large = context.broker.large_bodies
        limits = context.options.limits
        if large is not None:
            limits = context.options.limits_with(large.size_min, unsized=True)
        self._decoder = Decoder(limits)
        self._wire = Wire(
            link,
            loop,
            context.broker,
            unread_max=context.options.unread_output_max,
            unread_timeout_s=context.options.unread_output_timeout,
            stop_reading=self._stop_reading,
            idle=self._all_written,
            broken=self._large_broke,
        )
        self._admission = Admission(
            context.broker,
            self,
            link,
            loop,
            listener=context.address,
            anonymous_allowed=context.allow_anonymous,
            timeout_s=context.options.connect_timeout,
            accept=self._answered,
            refuse=self.end,
        )
        self._client: Client | None = None
        self._is_graceful = False  # the client said DISCONNECT
        self._receiving: Receiving | None = None  # since CONNECTED
        self._throttled = False
        self._unfinished: UnfinishedInput | None = None  # since CONNECTED
        self._meter: Callable[[int], None] | None = None  # told how much was read
        self._is_behind = False  # it does not read what it asked for

    # ------------------------------------------------------------------------- from the transport

    def data_received(self, data: bytes) -> None:
        """Bytes from the client."""
        heart_beat = self._wire.heart_beat
        if heart_beat is not None:
            heart_beat.heard_at = self._loop.time()
        if self.state is _REFUSED:
            return  # read only so that a client that leaves or falls silent is noticed
        try:
            self._decoder.receive_data(data)
        except PeerProtocolError:
            return  # the error was answered when it was found
        self._process()
        unfinished = self._unfinished
        if unfinished is not None:
            if self._meter is not None:
                self._meter(len(data))
            waiting = self._decoder.buffered_bytes
            if waiting >= STEP_BYTES or unfinished.size:
                self._hold_unfinished(unfinished, waiting)
        elif self.state is State.WAITING or self.state is State.CONNECTING:
            self._context.broker.unauthenticated_holds(self, self._decoder.buffered_bytes)

    def _hold_unfinished(self, unfinished: UnfinishedInput, waiting: int) -> None:
        try:
            unfinished.waits(waiting)
        except GatewayError as error:
            self.refuse(error)

    def link_closed(self, error: Exception | None) -> None:
        """The socket is gone."""
        if self.state is not State.CLOSED:
            logger.debug("connection lost peer=%s error=%s", self._wire.link.peer, error)
        self._wire.cancel_large()
        client, receiving = self._client, self._receiving
        if (
            self.state is _CONNECTED
            and client is not None
            and receiving is not None
            and receiving.lost()
        ):
            # What came whole counts: the end waits its turn.
            self._wire.stop_beating()
            client.connection.writable(False)
            return
        self.lose()

    def lose(self) -> None:
        """The link is gone, and all that came whole is handled."""
        self.state = step(self.state, Input.LOST)
        self._release()
        self._context.ended(self)

    def end(self, error: GatewayError) -> None:
        """The connection ends: ERROR, then close."""
        self._fail(error)

    def pause_writing(self) -> None:
        """The client reads too slowly."""
        self._wire.writable(False)
        if self._client is not None:
            self._client.connection.writable(False)

    def resume_writing(self) -> None:
        """The client caught up."""
        self._wire.writable(True)
        if self._is_behind:
            self._is_behind = False
            self.adjust_reading()
        if self._client is not None and self._may_deliver and not self._wire.is_streaming:
            self._client.connection.writable(True)

    def _stop_reading(self) -> None:
        """It reads so slowly that it is not to ask for more."""
        self._is_behind = True
        self.adjust_reading()

    # ---------------------------------------------------------------------------- from the broker

    def confirmed(self, tokens: Sequence[Token]) -> None:
        """ClientPeer: these are durable: RECEIPTs in one write. STOMP 1.2 "RECEIPT"."""
        if self.state is State.CLOSED:
            return
        last = tokens[-1]
        if type(last) is Farewell:  # nothing was asked for behind it, so it is the last token
            tokens = [*tokens[:-1], last.receipt] if last.receipt is not None else tokens[:-1]
        if tokens:
            self._wire.write(encode_receipts(cast("Sequence[str]", tokens), self._version))
            if self._client is not None and not self._client.is_subscribed:
                self._wire.link.flush()  # nothing else will come in this turn
        if type(last) is Farewell:
            self._part(last)

    def _part(self, last: Farewell) -> None:
        """The client knows what became of all that it sent: close."""
        if last.error:
            self._wire.write(last.error)
        self.state = step(self.state, Input.SETTLED)
        if not self._wire.is_streaming:  # else when that is over
            self._wire.link.close()
        self._loop.call_soon(self._release)

    def failed(self, token: Token, error: GatewayError) -> None:
        """ClientPeer: an operation was not carried out: ERROR, and the connection ends."""
        if self.state is _REFUSED and type(token) is Farewell:
            self._part(token)  # of what it waited for everything was confirmed
            return
        receipt = token.receipt if isinstance(token, Farewell) else cast("str | None", token)
        self._fail(error, receipt=receipt)

    @property
    def has_unsent(self) -> bool:
        """ClientPeer: the client has not taken all."""
        return self._wire.is_streaming or self._wire.link.unsent_bytes > 0

    def deliver(self, key: str, messages: Sequence[StoredMessage]) -> None:
        """ClientPeer: messages for subscription *key*, in one write."""
        if self._client is not None and self._may_deliver and not self._is_lost:
            try:
                data = self._client.deliver(key, messages)
            except LargeBodyMetError:
                self._wire.deliver_large(self._client, key, messages)
                return
            if data:
                self._wire.write(data)

    def throttle(self, paused: bool, *, at_once: bool = False) -> None:
        """ClientPeer: producers are too fast (or no longer)."""
        if self._receiving is not None:
            self._receiving.hold(at_once)
        self._throttled = paused
        self.adjust_reading()

    def closed(self, error: GatewayError) -> None:
        """ClientPeer: the broker ended the connection: ERROR, then close."""
        self._client = None
        if isinstance(error, AccessError) and self.has_unsent:
            self._wire.cancel_large()
            self._wire.link.abort()
        self._fail(error)

    # ------------------------------------------------------------------------------------- frames

    def _process(self) -> None:
        """Handle the frames that are complete, as far as the state lets us."""
        if self.state is _CONNECTED and self._receiving is not None:
            self._receiving.run()
        elif self.state is State.CONNECTING:
            self.adjust_reading()
        # Here CONNECT is awaited, or everything is an error (after DISCONNECT). In CONNECTING
        # further frames wait in the decoder, and in REFUSED and CLOSED for ever.
        while self.state is State.WAITING or self.state is State.LEAVING:
            frame: Frame | AckRun | LargeSend | None = None
            try:
                frame = next(self._decoder.events(), None)
                if frame is None:
                    return
                self.step_by(frame)
            except GatewayError as error:
                self.refuse(error, frame)

    def step_by(self, frame: Frame | AckRun | LargeSend) -> None:
        """A frame that changes the state, or one at the wrong moment."""
        after = step(self.state, input_of(frame.command), frame.command.rstrip("*+"))
        assert isinstance(frame, Frame), "no step is taken by an ACK"
        if after is State.CONNECTING:
            # STOMP 1.2 "CONNECT or STOMP Frame"
            bound = SUBPROTOCOLS.get(self._wire.link.subprotocol)
            self._decoder.version = self._admission.connect(frame, bound=bound)
        else:  # STOMP 1.2 "DISCONNECT": the receipt says that everything before it is safe
            assert self._client is not None, "only a connected client can send DISCONNECT"
            check_no_body(frame, self._version)
            self._is_graceful = True
            self._client.connection.synchronize(Farewell(frame.headers.get("receipt")))
        self.state = after
        self.adjust_reading()

    def _answered(self, handshake: Handshake, result: ConnectResult) -> None:
        """The broker lets the client in."""
        if self.state is State.CONNECTING:
            self._accept(handshake, result)
            self._process()
        else:
            result.connection.disconnect(graceful=False)

    def _accept(self, handshake: Handshake, result: ConnectResult) -> None:
        self.state = step(self.state, Input.ACCEPT)
        context = self._context
        context.broker.unauthenticated_holds(self, 0)
        self._client = Client(
            result.connection,
            version=handshake.version,
            client_id=handshake.client_id,
            options=context.options,
            store_id=context.broker.store_id,
        )
        self._receiving = Receiving(
            self, self._client, self._decoder, self._wire, context.broker.large_bodies
        )
        self._wire.begin(
            handshake, context.options, result.connection.principal, self._heart_beat_expired
        )
        self._meter = result.connection.meter
        self._unfinished = UnfinishedInput(
            partial(result.connection.holds, Held.INPUT),
            context.options.frame_timeout,
            self._loop.call_later,
            lambda: not self._wire.is_reading,
            self.refuse,
            lambda: self._decoder.buffered_bytes,
        )
        self._wire.unread.tell = partial(result.connection.holds, Held.OUTPUT)
        result.connection.resume()
        if not self._wire.is_writable:
            result.connection.writable(False)
        self.adjust_reading()

    # ------------------------------------------------------------------------------- large bodies

    @property
    def pace(self) -> Pace:
        """How long a body that is streamed may stand still."""
        timeout_s = self._context.options.body_timeout
        return Pace(timeout_s, self._loop.call_later, lambda: not self._wire.is_reading)

    def _all_written(self) -> None:
        if self.state is State.CLOSED:  # DISCONNECT was answered meanwhile
            self._wire.link.close()
        elif self._client is not None and self._may_deliver and self._wire.is_writable:
            self._client.connection.writable(True)

    def _large_broke(self, error: GatewayError) -> None:
        """A body ends in the middle. Only the end of the connection can tell the client."""
        logger.error(
            "message not delivered whole, connection ends peer=%s error=%s",
            self._wire.link.peer,
            error,
        )
        self._wire.link.abort()
        if self.state is _CONNECTED and self._receiving is not None and self._receiving.is_behind:
            return  # it is lost in a moment, and what came whole before counts
        if self.state is not State.CLOSED:
            self.state = step(self.state, Input.FAIL)
        self._loop.call_soon(self._release)

    # ------------------------------------------------------------------------------------- the end

    def refuse(self, error: GatewayError, frame: object = None) -> None:
        """What the client sent is refused: ERROR, then close (STOMP 1.2 "ERROR").

        First it is told what became of all that it sent before: who hears nothing sends that again.
        """
        client = self._client
        if self.state is _REFUSED:
            return
        if (
            client is None
            or self.state is not _CONNECTED
            or self._is_lost
            or self._wire.is_streaming
            or isinstance(error, ConnectionEndedError)
            or not client.connection.has_unconfirmed
        ):
            self._fail(error, frame)
            return
        told = self._error_frame(error, frame, None)
        self.state = step(self.state, Input.REFUSE)
        if self._receiving is not None:
            self._receiving.hold(True)
        client.connection.writable(False)
        client.connection.synchronize(Farewell(error=told))
        self._loop.call_soon(self._ignore_rest)  # not at once: it may be what calls us

    def _fail(
        self, error: GatewayError, frame: object = None, *, receipt: str | None = None
    ) -> None:
        """ERROR, then close, whatever is not confirmed yet."""
        if self.state is State.CLOSED:
            return
        told = self._error_frame(error, frame, receipt)
        if self._wire.is_streaming:
            self._wire.cancel_large()  # a body ends in the middle, so ERROR would be taken for it
        else:
            self._wire.write(told)
        self.state = step(self.state, Input.FAIL)
        if self._receiving is not None:
            self._receiving.hold(True)
        self._wire.link.close()
        # Not at once: the broker may be calling us, and wants no call before it returned.
        self._loop.call_soon(self.lose if self._is_lost else self._release)

    def _error_frame(self, error: GatewayError, frame: object, receipt: str | None) -> bytes:
        shown = frame if isinstance(frame, Frame) else None
        if receipt is None and shown is not None:
            receipt = shown.headers.get("receipt")
        log = logger.debug if isinstance(error, ConnectionEndedError) else logger.info
        log("refused peer=%s state=%s reason=%s", self._wire.link.peer, self.state.name, error)
        return error_frame(error, self._version, frame=shown, receipt=receipt)

    def _ignore_rest(self) -> None:
        self._stop_receiving()
        self.adjust_reading()

    def _stop_receiving(self) -> None:
        """Nothing more that was read counts. Idempotent."""
        if self._receiving is not None:
            self._receiving.stop()
        if self._unfinished is not None:
            self._unfinished.stop()
        self._decoder.forget()  # the socket may linger

    def _release(self) -> None:
        """Let go of timers, the task and the broker's side. Idempotent."""
        self._admission.stop()
        if self._unfinished is None:
            self._context.broker.unauthenticated_holds(self, 0)
        self._wire.stop_beating()
        self._stop_receiving()
        self._unfinished = None
        client, self._client = self._client, None
        if client is not None:
            client.connection.disconnect(graceful=self._is_graceful)

    def _heart_beat_expired(self, silent_s: float) -> None:
        logger.info(
            "heart-beat missed peer=%s last_heard_ms=%d", self._wire.link.peer, silent_s * 1000
        )
        problem = f"no heart-beat: nothing was heard for {round(silent_s * 1000)} ms"
        error = ConnectionEndedError("heart-beat", problem)
        receiving = self._receiving
        if receiving is None or self.state is not _CONNECTED or not receiving.fail_behind(error):
            self._fail(error)

    # ------------------------------------------------------------------------------------- helpers

    @property
    def is_connected(self) -> bool:
        """From CONNECTED to the end."""
        return self.state is _CONNECTED

    @property
    def is_closed(self) -> bool:
        """Nothing more is said."""
        return self.state is State.CLOSED

    @property
    def _is_lost(self) -> bool:
        return self._receiving is not None and self._receiving.is_lost

    @property
    def _version(self) -> Version:
        handshake = self._admission.handshake
        return Version.V1_0 if handshake is None else handshake.version

    @property
    def _may_deliver(self) -> bool:
        return self.state is _CONNECTED or self.state is State.LEAVING

    def adjust_reading(self) -> None:
        receiving = self._receiving
        paused = (
            self._throttled
            or self._is_behind
            # Whoever leaves now is noticed only while its socket is read; so it is, until it sends.
            or (self.state is State.CONNECTING and self._decoder.buffered_bytes > 0)
            or (receiving is not None and receiving.wants_pause)
        )
        self._wire.readable(not paused)
