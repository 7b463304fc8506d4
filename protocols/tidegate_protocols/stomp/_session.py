"""One STOMP connection, from the first byte to the last.

The steps between states are in ``_transitions``, the meaning of a connected client's frames is in
``_client``; here they meet the transport, the broker's answers and time. The frames of one read
are handled together: plain ACKs are collected and passed to the broker in one call for each
subscription; receipts that become due together leave in one write, and so do messages.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, cast, final

from tidegate.spi import (
    Broker,
    ConnectionEndedError,
    ConnectResult,
    GatewayError,
    Held,
    PeerProtocolError,
    StoredMessage,
    Token,
)
from tidegate_protocols._farewell import Farewell, Farewells, answers_in
from tidegate_protocols._intake import Intake
from tidegate_protocols._pace import Pace
from tidegate_protocols.stomp._client import Client
from tidegate_protocols.stomp._errors import error_frame
from tidegate_protocols.stomp._handshake import Admission, Handshake
from tidegate_protocols.stomp._headers import check_no_body
from tidegate_protocols.stomp._options import StompOptions
from tidegate_protocols.stomp._receiving import Receiving
from tidegate_protocols.stomp._split import SUBPROTOCOLS
from tidegate_protocols.stomp._transitions import Input, State, input_of, step
from tidegate_protocols.stomp._wire import Wire
from tidegate_protocols.stomp.codec.decoder import Decoder
from tidegate_protocols.stomp.codec.encoder import encode_receipts
from tidegate_protocols.stomp.codec.frames import AckRun, Frame, LargeSend
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

    Attributes: state: its current state.
    """

    __slots__ = (
        "_admission",
        "_client",
        "_context",
        "_decoder",
        "_farewells",
        "_intake",
        "_is_behind",
        "_is_graceful",
        "_loop",
        "_reason",
        "_receiving",
        "_throttled",
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
            context.options,
            stop_reading=self._stop_reading,
            idle=self._all_written,
            broken=self._large_broke,
        )
        self._admission = Admission(
            context.broker,
            link,
            loop,
            listener=context.address,
            anonymous_allowed=context.allow_anonymous,
            timeout_s=context.options.connect_timeout,
            accept=self._answered,
            refuse=self.end,
        )
        self._client: Client | None = None
        self._farewells = Farewells()
        self._is_graceful = False  # the client said DISCONNECT
        self._reason = ""  # what the client was told with the last ERROR
        self._receiving: Receiving | None = None  # since CONNECTED
        self._intake: Intake | None = None  # from CONNECTED to the end
        self._throttled = False
        self._is_behind = False  # it does not read what it asked for

    # ------------------------------------------------------------------------- from the transport

    def data_received(self, data: bytes) -> None:
        """Bytes from the client."""
        heart_beat = self._wire.heart_beat
        if heart_beat is not None:
            heart_beat.heard_at = self._loop.time()
        if self.state is _REFUSED:
            # Read only so that a client that leaves or falls silent is noticed.
            if self._intake is not None:
                self._intake.dropped(len(data))
            return
        try:
            self._decoder.receive_data(data)
        except PeerProtocolError:
            return  # the error was answered when it was found
        self._process()
        if self._intake is not None:
            self._intake.handled(len(data), self._decoder.buffered_bytes)
        elif self.state is State.WAITING or self.state is State.CONNECTING:
            self._context.broker.unauthenticated_holds(self, self._decoder.buffered_bytes)

    def input_ended(self) -> bool:
        """The client sends no more. Complete input counts, and the client is told the outcome.

        Returns: False when there is nothing to say.
        """
        client, receiving = self._client, self._receiving
        if client is None or receiving is None or self._wire.is_streaming:
            return False
        self._farewells.has_ended = True
        self._wire.stop_beating()
        if self.state is _CONNECTED and not receiving.lost():
            self.lose()
        return self.state is not State.CLOSED

    def link_closed(self, error: Exception | None) -> None:
        """The socket is gone."""
        if self.state is not State.CLOSED:
            logger.debug("connection lost peer=%s error=%s", self._wire.link.peer, error)
        self._farewells.has_ended = False
        self._wire.cancel_large()
        client, receiving = self._client, self._receiving
        if (
            self.state is _CONNECTED
            and client is not None
            and receiving is not None
            and receiving.lost()
        ):
            # Complete input counts: the end waits its turn.
            self._wire.stop_beating()
            client.connection.writable(False)
            return
        self.lose()

    def lose(self) -> None:
        """The client sends no more, and everything that arrived completely is handled."""
        if self._farewells.has_ended:
            if self.state is _CONNECTED and not self._waits_behind(b""):
                self.state = step(self.state, Input.LOST)
                self._wire.link.close()
                self._loop.call_soon(self._release)
            return
        self.state = step(self.state, Input.LOST)
        self._release()
        self._context.ended(self)
        # Its parts know it: without those references it is freed by reference counting (decision 12).
        self._wire.forget()
        self._admission.forget()
        self._receiving = None

    def pause_writing(self) -> None:
        """The client reads too slowly."""
        self._wire.writable(False)
        if self._client is not None:
            self._client.connection.writable(False)

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._wire.writable(True)
        if self._is_behind:
            self._is_behind = False
            self.adjust_reading()
        if self._client is not None and self._may_deliver and not self._wire.is_streaming:
            self._client.connection.writable(True)

    def _stop_reading(self) -> None:
        """It reads so slowly that it must not ask for more."""
        self._is_behind = True
        self.adjust_reading()

    # ---------------------------------------------------------------------------- from the broker

    def confirmed(self, tokens: Sequence[Token]) -> None:
        """ClientPeer: these are durable: RECEIPTs in one write. STOMP 1.2 "RECEIPT"."""
        if self.state is State.CLOSED:
            return
        answers = answers_in(tokens)
        if answers:
            self._wire.write(
                encode_receipts(cast("Sequence[str]", answers), self._admission.version)
            )
            if self._client is not None and not self._client.is_subscribed:
                self._wire.link.flush()  # nothing else will come in this turn
        self._farewells.say(tokens[-1])

    def _part(self, error: bytes = b"") -> None:
        """The client knows the outcome of everything it sent: close. error: the ERROR frame."""
        if error:
            self._wire.write(error)
        self.state = step(self.state, Input.SETTLED)
        if not self._wire.is_streaming:  # otherwise when that is over
            self._wire.link.close()
        self._loop.call_soon(self._release)

    def failed(self, token: Token, error: GatewayError) -> None:
        """ClientPeer: an operation was not carried out: ERROR, and the connection ends."""
        if self.state is _REFUSED and self._farewells.say(token):
            return  # everything it waited for was confirmed
        receipt = token.receipt if isinstance(token, Farewell) else cast("str | None", token)
        self.end(error, receipt=receipt)

    @property
    def has_unsent(self) -> bool:
        """ClientPeer: the client has not read everything."""
        return self._wire.has_unsent

    def deliver(self, key: str, messages: Sequence[StoredMessage]) -> None:
        """ClientPeer: messages for subscription *key*, in one write."""
        if self._client is not None and self._may_deliver and not self._is_lost:
            self._wire.deliver(self._client, key, messages)

    def throttle(self, paused: bool, *, at_once: bool = False) -> None:
        """ClientPeer: producers are too fast (or no longer)."""
        if self._receiving is not None:
            self._receiving.hold(at_once)
        self._throttled = paused
        self.adjust_reading()

    def closed(self, error: GatewayError) -> None:
        """ClientPeer: the broker ended the connection: ERROR, then close."""
        self._client = None
        self._wire.withhold(error)
        self.end(error)

    # ------------------------------------------------------------------------------------- frames

    def _process(self) -> None:
        """Handle the complete frames, as far as the state allows."""
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
        """Handle a frame that changes the state, or comes at the wrong moment."""
        after = step(self.state, input_of(frame.command), frame.command.rstrip("*+"))
        assert isinstance(frame, Frame), "no step is taken by an ACK"
        if after is State.CONNECTING:
            # STOMP 1.2 "CONNECT or STOMP Frame"
            bound = SUBPROTOCOLS.get(self._wire.link.subprotocol)
            self._decoder.version = self._admission.connect(frame, self, bound=bound)
        else:  # STOMP 1.2 "DISCONNECT": the receipt says that everything before it is safe
            assert self._client is not None, "only a connected client can send DISCONNECT"
            check_no_body(frame, self._admission.version)
            self._is_graceful = True
            farewell = Farewell(self._part, frame.headers.get("receipt"))
            self._farewells.add(self._client.connection, farewell)
        self.state = after
        self.adjust_reading()

    def _answered(self, handshake: Handshake, result: ConnectResult) -> None:
        """The broker lets the client in."""
        connection = result.connection
        if self.state is not State.CONNECTING:
            connection.disconnect(graceful=False)
            return
        self.state = step(self.state, Input.ACCEPT)
        broker, options = self._context.broker, self._context.options
        broker.unauthenticated_holds(self, 0)
        self._client = client = Client(
            connection,
            version=handshake.version,
            client_id=handshake.client_id,
            options=options,
            store_id=broker.store_id,
        )
        bodies, pace = broker.large_bodies, self._pace(options.body_timeout)
        self._receiving = Receiving(self, client, self._decoder, self._wire, bodies, pace)
        self._wire.begin(handshake, connection.principal, self._heart_beat_expired)
        self._intake = intake = Intake(
            connection,
            self._pace(options.frame_timeout),
            self.refuse,
            lambda: self._decoder.buffered_bytes,
        )
        self._wire.unread.tell = partial(connection.holds, Held.OUTPUT)
        connection.resume()
        if not self._wire.is_writable:
            connection.writable(False)
        self.adjust_reading()
        self._process()
        intake.handled(0, self._decoder.buffered_bytes)  # part of a frame that came along

    # ------------------------------------------------------------------------------- large bodies

    def _pace(self, timeout_s: float) -> Pace:
        """For something that may stall for *timeout_s*."""
        wire = self._wire
        return Pace(
            timeout_s, self._loop.call_later, lambda: not wire.is_reading, lambda: wire.pauses
        )

    def _all_written(self) -> None:
        if self.state is State.CLOSED:  # DISCONNECT was answered meanwhile
            self._wire.link.close()
        elif self._client is not None and self._may_deliver and self._wire.is_writable:
            self._client.connection.writable(True)

    def _large_broke(self, error: GatewayError) -> None:
        """A body breaks off in the middle. Only the end of the connection can tell the client."""
        link = self._wire.link
        logger.error(
            "message not delivered whole, connection ends peer=%s error=%s", link.peer, error
        )
        link.abort()
        if self.state is _CONNECTED and self._receiving is not None and self._receiving.is_behind:
            return  # it is lost in a moment, and what arrived completely before counts
        if self.state is not State.CLOSED:
            self.state = step(self.state, Input.FAIL)
        self._loop.call_soon(self._release)

    # ------------------------------------------------------------------------------------- the end

    def refuse(self, error: GatewayError, frame: object = None) -> None:
        """What the client sent is refused: ERROR, then close (STOMP 1.2 "ERROR").

        It is first told the outcome of everything it sent before: a client that hears nothing resends.
        """
        if self.state is _REFUSED or self.state is State.CLOSED:
            return
        told = self._error_frame(error, frame, None)
        if isinstance(error, ConnectionEndedError) or not self._waits_behind(told):
            self._close(told)

    def _waits_behind(self, told: bytes) -> bool:
        """The client is first told the outcome of everything it sent. Returns: False: it was, or cannot be."""
        client = self._client
        if (
            client is None
            or not self._may_deliver
            or self._is_lost
            or self._wire.is_streaming
            or not self._farewells.wait(client.connection, partial(self._part, told))
        ):
            return False
        self.state = step(self.state, Input.REFUSE)
        if self._receiving is not None:
            self._receiving.hold(True)
        self._loop.call_soon(self._ignore_rest)  # not at once: it may be what is calling us
        return True

    def end(self, error: GatewayError, *, receipt: str | None = None) -> None:
        """ERROR, then close, whatever is not confirmed yet."""
        if self.state is not State.CLOSED:
            self._close(self._error_frame(error, None, receipt))

    def _close(self, told: bytes) -> None:
        if self._wire.is_streaming:
            self._wire.cancel_large()  # a body breaks off, so ERROR would be taken for part of it
        else:
            self._wire.write(told)
        self.state = step(self.state, Input.FAIL)
        if self._receiving is not None:
            self._receiving.hold(True)
        self._wire.link.close()
        # Not at once: the broker may be calling us, and must not be called before it returns.
        self._loop.call_soon(self.lose if self._is_lost else self._release)

    def _error_frame(self, error: GatewayError, frame: object, receipt: str | None) -> bytes:
        shown = frame if isinstance(frame, Frame) else None
        if receipt is None and shown is not None:
            receipt = shown.headers.get("receipt")
        log = logger.debug if isinstance(error, ConnectionEndedError) else logger.info
        log("refused peer=%s state=%s reason=%s", self._wire.link.peer, self.state.name, error)
        self._reason = str(error)
        return error_frame(error, self._admission.version, frame=shown, receipt=receipt)

    def _ignore_rest(self) -> None:
        self._stop_receiving()
        self.adjust_reading()

    def _stop_receiving(self) -> None:
        """Nothing more of what was read counts. Idempotent."""
        if self._receiving is not None:
            self._receiving.stop()
        if self._intake is not None:
            self._intake.stop()
        self._decoder.forget()  # the socket may linger

    def _release(self) -> None:
        """Release timers, the task and the broker's side. Idempotent."""
        self._admission.stop()
        if self._intake is None:
            self._context.broker.unauthenticated_holds(self, 0)
        self._wire.stop_beating()
        self._stop_receiving()
        self._intake = None
        self._farewells.forget()
        client, self._client = self._client, None
        if client is not None:
            client.connection.disconnect(graceful=self._is_graceful, reason=self._reason)

    def _heart_beat_expired(self, silent_s: float) -> None:
        logger.info(
            "heart-beat missed peer=%s last_heard_ms=%d", self._wire.link.peer, silent_s * 1000
        )
        problem = f"heart-beat missed: nothing received for {round(silent_s * 1000)} ms"
        error = ConnectionEndedError("heart-beat", problem)
        receiving = self._receiving
        if receiving is None or self.state is not _CONNECTED or not receiving.fail_behind(error):
            self.end(error)

    # ------------------------------------------------------------------------------------- helpers

    @property
    def is_connected(self) -> bool:
        """From CONNECTED to the end."""
        return self.state is _CONNECTED

    @property
    def is_closed(self) -> bool:
        """Nothing more is sent."""
        return self.state is State.CLOSED

    @property
    def _is_lost(self) -> bool:
        is_lost = self._receiving is not None and self._receiving.is_lost
        return is_lost and not self._farewells.has_ended

    @property
    def _may_deliver(self) -> bool:
        return self.state is _CONNECTED or self.state is State.LEAVING

    def adjust_reading(self) -> None:
        receiving = self._receiving
        paused = (
            self._throttled
            or self._is_behind
            # A client that leaves now is noticed only while its socket is read, so read until it sends.
            or (self.state is State.CONNECTING and self._decoder.buffered_bytes > 0)
            or (receiving is not None and receiving.wants_pause)
        )
        self._wire.readable(not paused)
