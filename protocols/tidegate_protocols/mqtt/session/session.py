"""The session machine of one MQTT client: between its packets and the broker.

States and transitions are in ``states``; what a CONNECT settles is read in ``connect``; publishes
of the client go through ``incoming``, its subscriptions through ``subscriptions``, deliveries
through ``outgoing``. A *token* given to the broker is simply the bytes to send when the operation
is durable (PUBACK, PUBREC, SUBACK, a QoS 2 PUBLISH …), so confirming a whole turn is one ``join`` and
one write.

Time, tasks and the socket come in through Runtime and Link; nothing here waits but the coroutines
that authenticate.
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Sequence
from typing import Final, cast, final

import msgspec

from tidegate.spi import (
    ConnectRequest,
    ConnectResult,
    GatewayError,
    PeerProtocolError,
    StoredMessage,
    Token,
)
from tidegate_protocols._large_out import LargeOut, LargeWire
from tidegate_protocols.mqtt._answers import Answers
from tidegate_protocols.mqtt._reasons import RefusedError, connect_reason, end_reason
from tidegate_protocols.mqtt.codec.codec import Codec, NeedData
from tidegate_protocols.mqtt.codec.codes import (
    LEVEL_3_1_1,
    LEVEL_5_0,
    PACKET_REASONS,
    PacketType,
    PacketViolationError,
    ReasonCode,
    UnsupportedVersionError,
)
from tidegate_protocols.mqtt.codec.encode import PINGRESP
from tidegate_protocols.mqtt.codec.packets import (
    Auth,
    Connect,
    Disconnect,
    Event,
    LargePublish,
    Pingreq,
)
from tidegate_protocols.mqtt.session.authentication import EnhancedAuthentication
from tidegate_protocols.mqtt.session.connect import (
    Origin,
    Terms,
    answers_to,
    bounded_expiry,
    read_connect,
)
from tidegate_protocols.mqtt.session.context import SessionContext, Timer
from tidegate_protocols.mqtt.session.conversation import Conversation
from tidegate_protocols.mqtt.session.large_in import LargePublishes
from tidegate_protocols.mqtt.session.reading import Pause, Reading
from tidegate_protocols.mqtt.session.states import PACKET_INPUTS, Input, SessionState, next_state
from tidegate_protocols.transport import Link

logger = logging.getLogger("tidegate.mqtt")

#: Largest packet before the client is accepted: a CONNECT whose five fields are all as long as
#: they can be. Strangers cannot make the gateway keep more than this.
CONNECT_BYTES_MAX: Final = 10 + 5 * (2 + 65_535)

#: While a packet at least this long is on its way, its bytes count as a sign of life: a client
#: cannot send a PINGREQ in the middle of a packet.
LONG_PACKET_BYTES: Final = 4096

#: A client is given up after this many keep-alive times without a packet [MQTT-3.1.2-24].
KEEP_ALIVE_FACTOR: Final = 1.5

_CONNECTED: Final = SessionState.CONNECTED
_BEFORE_CONNACK: Final = frozenset({SessionState.AUTHENTICATING, SessionState.CHALLENGED})

# After these there is nobody to tell, or what there was to say has been said.
_UNTOLD: Final = frozenset({Input.DISCONNECT, Input.LOST, Input.REFUSED})


@final
class Session:
    """One client. Implements :class:`tidegate.spi.ClientPeer`; fed by the link's handler."""

    __slots__ = (
        "_answers",
        "_authentication",
        "_client_id",
        "_codec",
        "_context",
        "_conversation",
        "_first_data",
        "_large_in",
        "_large_out",
        "_link",
        "_lost",
        "_options",
        "_reading",
        "_request",
        "_runtime",
        "_session_expiry",
        "_silence_s",
        "_state",
        "_task",
        "_terms",
        "_timer",
    )

    def __init__(self, context: SessionContext, link: Link) -> None:
        options = context.options
        runtime = context.runtime
        self._context = context
        self._options = options
        self._runtime = runtime
        self._link = link
        self._codec = Codec(min(options.packet_bytes_max, CONNECT_BYTES_MAX), from_client=True)
        self._state = SessionState.CONNECTING
        self._client_id = ""
        self._session_expiry = 0
        self._terms: Terms | None = None
        self._request: ConnectRequest | None = None
        self._answers: Answers | None = None  # once the CONNECT has been read
        self._authentication: EnhancedAuthentication | None = None
        self._first_data = b""  # authentication data of the CONNECT
        self._conversation: Conversation | None = None  # from CONNACK to the end
        self._large_in: LargePublishes | None = None  # since the first large PUBLISH of the client
        self._large_out: LargeOut | None = None  # since the first large body for it
        self._lost: str | None = None  # why the link is gone, while what came whole is published
        self._reading = Reading(link, runtime)
        self._silence_s = 0.0
        self._task: Timer | None = None
        self._timer: Timer | None = runtime.call_later(
            options.connect_timeout, self._connect_timed_out
        )

    @property
    def state(self) -> SessionState:
        return self._state

    # --------------------------------------------------------------------------- from the link

    def data_received(self, data: bytes) -> None:
        """Bytes from the client."""
        codec = self._codec
        is_first = self._state is SessionState.CONNECTING and not codec.incomplete_bytes
        if is_first and data and data[0] >> 4 != PacketType.CONNECT:
            # Another protocol is recognized by its first byte, not after a packet's worth of it.
            problem = "the first packet is not a CONNECT [MQTT-3.1.0-1]"
            self._end(Input.BAD_INPUT, problem, logging.INFO)
            return
        codec.receive_data(data)
        if self._state is _CONNECTED:
            self._read()
        elif self._state is SessionState.CONNECTING:
            self._read_connect()
        elif self._state is SessionState.CHALLENGED:
            self._read_answer()
        # While authenticating the bytes stay undecoded [MQTT-3.1.4-5]; reading is paused.

    def link_closed(self, error: Exception | None) -> None:
        """The link is gone. Called once."""
        reason = str(error) if error is not None else "the client closed the connection"
        if self._large_out is not None:
            self._large_out.cancel()
        conversation, large = self._conversation, self._large_in
        if conversation is not None and large is not None and large.cut():
            # What came whole counts, as when it had been small: the end of the link waits its turn.
            self._lost = reason
            conversation.connection.writable(False)
            return
        self._lose(reason)

    def _lose(self, reason: str) -> None:
        self._end(Input.LOST, reason, logging.DEBUG)
        if self._large_out is not None:
            self._large_out.cancel()
        self._disconnect()

    def pause_writing(self) -> None:
        """The client does not read fast enough."""
        self._reading.writing_paused()
        if self._large_out is not None:
            self._large_out.writable(False)
        if self._conversation is not None and self._state is _CONNECTED:
            self._conversation.connection.writable(False)

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._reading.writing_resumed()
        if self._large_out is not None:
            self._large_out.writable(True)
            if self._large_out.is_busy:
                return  # the broker hears of it when that is over
        if self._conversation is not None and self._state is _CONNECTED:
            self._conversation.connection.writable(True)

    # ------------------------------------------------------------------------- from the broker

    def confirmed(self, tokens: Sequence[Token]) -> None:
        """Operations are durable: what waited for them leaves, in order."""
        if self._state is _CONNECTED and self._conversation is not None:
            self._conversation.confirmed(tokens)
            if self._large_out is None:
                self._send(b"".join(cast("Sequence[bytes]", tokens)))
                return
            for token in cast("Sequence[bytes]", tokens):
                self._send(token)

    def failed(self, token: Token, error: GatewayError) -> None:
        """Something asked for did not happen. MQTT 5.0 has an answer for a PUBLISH; else the
        connection is closed without the confirmation, and the client sends again."""
        if self._state is not _CONNECTED or self._conversation is None:
            return
        if self._conversation.failed(token, error):
            return
        # Not disconnected from here: the broker is in the middle of telling us.
        self._fail(error, disconnect=False)
        self._runtime.call_later(0.0, self._disconnect)

    def deliver(self, key: str, messages: Sequence[StoredMessage]) -> None:
        """Send messages of one subscription."""
        if self._state is _CONNECTED and self._conversation is not None:
            self._conversation.deliver(key, messages)

    def throttle(self, paused: bool) -> None:
        """The broker wants less, or more again."""
        if paused:
            self._reading.pause(Pause.BY_BROKER)
        else:
            self._reading.resume(Pause.BY_BROKER)

    def closed(self, error: GatewayError) -> None:
        """The broker ended the connection: take-over [MQTT-3.1.4-2], shutdown."""
        self._end(Input.ENDED, str(error), logging.INFO, code=end_reason(error))

    # ------------------------------------------------------------------------------ connecting

    def _read_connect(self) -> None:
        try:
            packet = self._codec.next_event()
            if isinstance(packet, NeedData):
                return
            self._state = next_state(self._state, PACKET_INPUTS[type(packet)])
            assert isinstance(packet, Connect), "the table lets nothing else through"
        except PeerProtocolError as error:
            self._tell_stranger(error)
            self._end(Input.BAD_INPUT, error.problem, logging.INFO)
            return
        try:
            self._settle(packet)
        except RefusedError as error:
            self._refuse(error)
            return
        self._reading.pause(Pause.AUTHENTICATING)
        self._spawn(self._authenticate())

    def _tell_stranger(self, error: PeerProtocolError) -> None:
        """Answer a CONNECT that cannot be read, where its version has an answer for that."""
        if isinstance(error, UnsupportedVersionError):
            level = LEVEL_3_1_1  # a later version must know at least this answer
        elif self._codec.level == LEVEL_5_0:
            level = LEVEL_5_0
        else:
            return  # no CONNACK [MQTT-3.1.4-1]
        reason = ReasonCode(error.wire_code or ReasonCode.MALFORMED_PACKET)
        self._link.send(Answers(level).refusal(reason, error.problem))  # [MQTT-3.1.2-2]

    def _settle(self, packet: Connect) -> None:
        """Read a CONNECT. Raises: RefusedError."""
        properties = packet.properties
        self._answers = answers_to(packet)
        link, context = self._link, self._context
        origin = Origin(link.peer, context.listener, link.tls_subject, context.allow_anonymous)
        now_us = self._runtime.now_us()
        streams = context.broker.large_bodies is not None
        terms, request = read_connect(packet, self._options, origin, now_us, streams=streams)
        self._terms, self._request = terms, request
        self._session_expiry = terms.session_expiry
        self._client_id = terms.client_id
        self._silence_s = terms.keep_alive * KEEP_ALIVE_FACTOR
        if terms.authentication_method is not None:
            self._authentication = EnhancedAuthentication(
                context.broker, terms.authentication_method, request
            )
            self._authentication.begin()
            self._first_data = properties.authentication_data or b""

    def _spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        self._task = self._runtime.spawn(self._guarded(coroutine))

    async def _guarded(self, coroutine: Coroutine[None, None, None]) -> None:
        try:
            await coroutine
        except RefusedError as error:
            self._task = None  # it must not be cancelled from within
            self._refuse(error)
        except Exception:  # nobody awaits this task, and a half-open session would stay for ever
            logger.exception(
                "connection failed client=%s peer=%s", self._client_id, self._link.peer
            )
            self._link.abort()

    async def _authenticate(self) -> None:
        if self._authentication is None:
            await self._ask_broker(b"")
        else:
            await self._step(self._first_data)

    async def _step(self, data: bytes) -> None:
        """One step of enhanced authentication before CONNACK. Raises: RefusedError."""
        authentication, request = self._authentication, self._request
        assert authentication is not None
        assert request is not None
        answer = await authentication.step(data)
        if self._state is not SessionState.AUTHENTICATING:
            return  # the client left meanwhile
        if authentication.principal:
            self._request = msgspec.structs.replace(request, exchange=authentication.exchange)
            await self._ask_broker(answer)
            return
        challenge = self._auth(ReasonCode.CONTINUE_AUTHENTICATION, answer)
        self._state = next_state(self._state, Input.CHALLENGE)
        self._task = None
        self._send(challenge)
        self._reading.resume(Pause.AUTHENTICATING)
        self._read_answer()

    def _auth(self, reason: ReasonCode, data: bytes) -> bytes:
        """Raises: RefusedError."""
        authentication, answers = self._authentication, self._answers
        assert authentication is not None
        assert answers is not None
        try:
            return answers.auth(reason, authentication.method, data)
        except PeerProtocolError as error:
            raise RefusedError(ReasonCode.PACKET_TOO_LARGE, error.problem) from error

    def _read_answer(self) -> None:
        """The client's next AUTH before CONNACK."""
        authentication = self._authentication
        assert authentication is not None
        try:
            packet = self._codec.next_event()
            if isinstance(packet, NeedData):
                return
            if isinstance(packet, Disconnect):
                self._end(Input.DISCONNECT, "the client disconnected", logging.DEBUG)
                return
            event = PACKET_INPUTS[type(packet)]
            next_state(self._state, event)  # raises for what may not come now
            assert isinstance(packet, Auth), "the table lets nothing else through"
            authentication.check(packet)
        except PeerProtocolError as error:
            self._end(Input.BAD_INPUT, error.problem, logging.INFO, code=end_reason(error))
            return
        self._state = next_state(self._state, event)
        self._reading.pause(Pause.AUTHENTICATING)
        self._spawn(self._step(packet.properties.authentication_data or b""))

    async def _ask_broker(self, authentication_data: bytes) -> None:
        """Raises: RefusedError."""
        request = self._request
        assert request is not None
        try:
            result = await self._context.broker.connect(request, self)
        except GatewayError as error:
            reason = connect_reason(error, has_username=bool(request.username))
            raise RefusedError(reason, str(error)) from error
        if self._state is SessionState.AUTHENTICATING:
            self._accept(result, authentication_data)
        else:
            # The client left before CONNACK: it was never accepted, so there is no will.
            result.connection.disconnect(graceful=True)

    def _refuse(self, error: RefusedError) -> None:
        """Answer a CONNECT with a refusal, or end a connection that failed to authenticate again."""
        if self._state is _CONNECTED:
            self._end(Input.FAILED, error.problem, logging.INFO, code=error.reason)
        elif self._state is SessionState.AUTHENTICATING:
            answers = self._answers
            assert answers is not None
            reference = self._options.server_reference
            self._link.send(answers.refusal(error.reason, error.problem, reference))
            self._end(Input.REFUSED, error.problem, logging.INFO)  # [MQTT-3.2.2-7]

    def _accept(self, result: ConnectResult, authentication_data: bytes) -> None:
        terms, answers, options = self._terms, self._answers, self._options
        assert terms is not None
        assert answers is not None
        properties = terms.changes
        if self._authentication is not None:  # [MQTT-4.12.0-5]
            properties = msgspec.structs.replace(
                properties,
                authentication_method=terms.authentication_method,
                authentication_data=authentication_data or None,
            )
        present = result.session_present and not terms.is_clean  # [MQTT-3.2.2-2] [MQTT-3.2.2-3]
        try:
            connack = answers.connack(present, properties)
        except PeerProtocolError as error:
            result.connection.disconnect(graceful=True)
            raise RefusedError(ReasonCode.PACKET_TOO_LARGE, error.problem) from error
        self._state = next_state(self._state, Input.ACCEPTED)
        self._task = None  # what follows runs in it
        self._cancel_timers()
        self._send(connack)  # the first packet [MQTT-3.2.0-1]
        connection = result.connection
        self._conversation = Conversation(
            self._context, terms, answers, result, self._send, self._expect_large
        )
        self._terms = self._request = None  # an idle client is not to keep what it does not need
        self._codec.packet_bytes_max = options.packet_bytes_max
        bodies = self._context.broker.large_bodies
        if bodies is not None:
            self._codec.stream_bodies(bodies.size_min, options.large_packet_bytes_max)
        self._reading.watch(self._silence_s, self._was_silent)
        logger.debug("connected client=%s peer=%s", self._client_id, self._link.peer)
        if self._reading.is_writing_paused:
            connection.writable(False)
        connection.resume()
        self._reading.resume(Pause.AUTHENTICATING)
        self._read()  # what came behind the CONNECT

    # ------------------------------------------------------------------------------- receiving

    def _read(self) -> None:
        """Handle every packet that is complete. Only called when connected."""
        conversation, codec, runtime = self._conversation, self._codec, self._runtime
        reading, large = self._reading, self._large_in
        assert conversation is not None
        try:
            if codec.incomplete_bytes >= LONG_PACKET_BYTES:
                reading.last_heard = runtime.time()
            held: Event | None = None
            if large is not None:
                if large.is_busy:
                    reading.last_heard = runtime.time()
                if not large.receive():
                    return
                held = large.take_held()
            # More than one round only when a packet broke the rules, which the second one says,
            # and around large messages.
            while packets := codec.events() if held is None else [held]:
                held = None
                reading.last_heard = runtime.time()
                if not conversation.receive(packets, runtime.now_us(), self._control):
                    return
                large = self._large_in
                if large is not None:
                    if not large.receive():
                        return
                    held = large.take_held()
            conversation.settle()
        except GatewayError as error:
            self._receiving_failed(error)

    def _receiving_failed(self, error: GatewayError) -> None:
        """What came cannot be handled, and there is no answer to that: the connection ends."""
        if isinstance(error, PeerProtocolError):
            # [MQTT-4.8.0-1] [MQTT-4.13.1-1]
            self._end(Input.BAD_INPUT, error.problem, logging.INFO, code=end_reason(error))
        else:
            # Before MQTT 5.0: a PUBLISH that is not allowed or has no room is not acknowledged
            # [MQTT-3.3.5-2].
            self._fail(error)

    def _control(self, packet: Event) -> bool:
        """Any packet but PUBLISH and PUBACK, which the table allows in this state only.

        Returns: False when the connection ended.
        """
        conversation = self._conversation
        assert conversation is not None
        # PUBACKs that came before must count before what comes now.
        conversation.settle()
        if isinstance(packet, Disconnect):
            self._client_disconnects(packet)
            return False
        self._state = next_state(self._state, PACKET_INPUTS[type(packet)])
        if isinstance(packet, Pingreq):
            self._send(PINGRESP)  # [MQTT-3.12.4-1]
        elif isinstance(packet, LargePublish):
            self._begin_large(packet)
        elif isinstance(packet, Auth):
            self._authenticate_again(packet)
        else:
            conversation.control(packet)
        return self._state is _CONNECTED

    def _client_disconnects(self, packet: Disconnect) -> None:
        """Raises: PacketViolationError."""
        expiry = packet.properties.session_expiry_interval
        if expiry is not None:
            if expiry and not self._session_expiry:
                raise PacketViolationError(
                    "a session that was to end with its connection cannot be kept",
                    "MQTT 5.0 3.14.2.2.2",
                )
            expiry = bounded_expiry(expiry, self._options)
        self._end(
            Input.DISCONNECT,
            f"the client disconnected, reason {packet.reason_code:#04x}",
            logging.DEBUG,
            disconnect=False,
        )
        # Only reason 0x00 takes back the will [MQTT-3.1.2-10] [MQTT-3.14.4-3].
        self._disconnect(graceful=True, publish_will=packet.reason_code != 0, session_expiry=expiry)

    def _authenticate_again(self, packet: Auth) -> None:
        """Raises: PacketViolationError."""
        authentication = self._authentication
        if authentication is None:
            raise PacketViolationError(
                "AUTH from a client that connected without a method", "5.0:MQTT-4.12.0-6"
            )
        authentication.check(packet)
        try:
            if packet.reason_code is ReasonCode.REAUTHENTICATE:
                authentication.begin()
        except RefusedError as error:
            self._refuse(error)
            return
        self._spawn(self._step_again(packet.properties.authentication_data or b""))

    async def _step_again(self, data: bytes) -> None:
        """One step of authenticating again; the connection goes on meanwhile. Raises: RefusedError."""
        authentication = self._authentication
        assert authentication is not None
        answer = await authentication.step(data)
        conversation = self._conversation
        if self._state is not _CONNECTED or conversation is None:
            return
        reason = ReasonCode.CONTINUE_AUTHENTICATION
        if authentication.principal:
            if authentication.principal != conversation.connection.principal:
                raise RefusedError(
                    ReasonCode.NOT_AUTHORIZED, "authenticated again as somebody else"
                )
            reason = ReasonCode.SUCCESS
        self._send(self._auth(reason, answer))

    # -------------------------------------------------------------------- large PUBLISH packets

    def _begin_large(self, packet: LargePublish) -> None:
        """Raises: GatewayError, when the connection has to end."""
        conversation, bodies = self._conversation, self._context.broker.large_bodies
        assert conversation is not None
        assert bodies is not None, "the codec was told of a store that streams"
        if self._large_in is None:
            runtime = self._runtime
            self._large_in = LargePublishes(
                bodies,
                self._codec,
                conversation.incoming,
                now_us=runtime.now_us,
                spawn=runtime.spawn,
                adjust=self._adjust_reading,
                failed=lambda error, _blamed: self._receiving_failed(error),
                go_on=self._go_on_behind_large,
                crashed=self._large_crashed,
            )
        self._large_in.begin(packet)

    def _adjust_reading(self) -> None:
        if self._large_in is not None and self._large_in.wants_pause:
            self._reading.pause(Pause.BEHIND_LARGE)
        else:
            self._reading.resume(Pause.BEHIND_LARGE)

    def _go_on_behind_large(self) -> None:
        """Everything is published that the next packet had to wait for."""
        if self._state is _CONNECTED:
            self._read()
        large, lost = self._large_in, self._lost
        assert large is not None, "it says so"
        if lost is not None and self._state is _CONNECTED and not large.cut():
            self._lose(lost)

    def _large_crashed(self, error: Exception) -> None:
        peer = self._link.peer
        logger.error("connection failed client=%s peer=%s", self._client_id, peer, exc_info=error)
        self._link.abort()
        if self._lost is not None:  # nobody says so again
            self._lose(self._lost)

    # --------------------------------------------------------------------------------- writing

    def _send(self, data: bytes) -> None:
        if self._large_out is not None or type(data) is LargeWire:
            self._send_large(data)
        else:
            self._link.send(data)
        if self._reading.is_writing_paused:
            self._reading.wrote(len(data))

    def _expect_large(self) -> None:
        """From now on large bodies may have to be written."""
        bodies = self._context.broker.large_bodies
        if self._large_out is None and bodies is not None:
            self._large_out = LargeOut(
                self._link, bodies, idle=self._all_written, broken=self._large_broke
            )
            self._large_out.writable(not self._reading.is_writing_paused)

    def _send_large(self, data: bytes) -> None:
        """Write *data*, with the large body that it may announce, behind what is being written."""
        self._expect_large()
        out, conversation = self._large_out, self._conversation
        assert out is not None, "a store that streams gave the large body"
        if not isinstance(data, LargeWire):
            out.send(data)
            return
        out.stream(data, data.large, b"", self._large_missing)
        if conversation is not None:
            conversation.connection.writable(False)

    def _all_written(self) -> None:
        conversation = self._conversation
        if conversation is None or self._state is not _CONNECTED:
            return
        if not self._reading.is_writing_paused:
            conversation.connection.writable(True)

    def _large_missing(self, error: GatewayError) -> None:
        logger.error("message not delivered client=%s error=%s", self._client_id, error)

    def _large_broke(self, error: GatewayError) -> None:
        """A PUBLISH ends in the middle. Only the end of the connection can tell the client."""
        self._end(Input.LOST, f"a large body cannot be read: {error}", logging.ERROR)
        self._link.abort()

    # ------------------------------------------------------------------------------ the end

    def _connect_timed_out(self) -> None:
        seconds = self._options.connect_timeout
        self._end(
            Input.TIMED_OUT,
            f"no accepted CONNECT within {seconds:g}s",
            logging.INFO,
            code=ReasonCode.SERVER_BUSY,
        )

    def _was_silent(self) -> None:
        self._end(  # [MQTT-3.1.2-24]
            Input.TIMED_OUT,
            f"no packet for {self._silence_s:g}s",
            logging.INFO,
            code=ReasonCode.KEEP_ALIVE_TIMEOUT,
        )

    def _fail(self, error: GatewayError, *, disconnect: bool = True) -> None:
        self._end(
            Input.FAILED, str(error), logging.INFO, code=end_reason(error), disconnect=disconnect
        )

    def _end(
        self,
        event: Input,
        reason: str,
        level: int,
        *,
        code: ReasonCode = ReasonCode.UNSPECIFIED_ERROR,
        disconnect: bool = True,
    ) -> None:
        """Close, whatever the cause; the first cause counts. code: what MQTT 5.0 is told."""
        if self._state is SessionState.CLOSED:
            return
        before = self._state
        self._state = next_state(before, event)
        logger.log(
            level,
            "session ended client=%s peer=%s cause=%s reason=%s",
            self._client_id,
            self._link.peer,
            event.name.lower(),
            reason,
        )
        self._cancel_timers()
        if self._task is not None:
            self._task.cancel()  # no effect when it is done
        if self._large_in is not None:
            self._large_in.abandon()
        if self._large_out is not None and self._large_out.is_busy:
            self._large_out.cancel()  # a PUBLISH ends in the middle: nothing can follow it
        elif event not in _UNTOLD:
            self._tell_why(before, code, reason)
        if disconnect:
            self._disconnect()
        self._link.close()

    def _tell_why(self, state: SessionState, code: ReasonCode, reason: str) -> None:
        """A client of MQTT 5.0 hears why its connection ends [MQTT-4.13.0-1]."""
        answers = self._answers
        if answers is None or not answers.is_v5:
            return
        if state in _BEFORE_CONNACK:  # no DISCONNECT there [MQTT-3.14.0-1]
            if code == ReasonCode.SERVER_SHUTTING_DOWN:
                code = ReasonCode.SERVER_UNAVAILABLE
            elif code not in PACKET_REASONS[PacketType.CONNACK]:  # taken over, by an operator
                code = ReasonCode.UNSPECIFIED_ERROR
            self._link.send(answers.refusal(code, reason))
        else:
            self._link.send(answers.disconnect(code, reason))

    def _disconnect(
        self,
        *,
        graceful: bool = False,
        publish_will: bool = False,
        session_expiry: int | None = None,
    ) -> None:
        """Leave the broker, once; not *graceful* publishes the will [MQTT-3.1.2-8]."""
        conversation, self._conversation = self._conversation, None
        if conversation is not None:
            conversation.leave(
                graceful=graceful, publish_will=publish_will, session_expiry=session_expiry
            )

    def _cancel_timers(self) -> None:
        self._reading.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
