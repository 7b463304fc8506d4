"""From a client's first byte to its CONNACK: the CONNECT is read, the client authenticates, and the
broker is asked. A client of MQTT 5.0 may authenticate again later, which is also handled here.

``states`` says what may happen when; the session takes the steps.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Final, Protocol, cast, final

import msgspec

from tidegate.spi import (
    AccessError,
    AuthenticationExchange,
    ClientPeer,
    ConnectRequest,
    ConnectResult,
    GatewayError,
    PeerProtocolError,
)
from tidegate.spi.clients.mistaken import mistaken
from tidegate_protocols._pace import Timer
from tidegate_protocols.mqtt._answers import Answers
from tidegate_protocols.mqtt._reasons import (
    RefusedError,
    connect_reason,
    end_reason,
    reference_of,
    told,
)
from tidegate_protocols.mqtt.codec.codec import Codec, NeedData
from tidegate_protocols.mqtt.codec.codes import (
    LEVEL_3_1_1,
    LEVEL_5_0,
    PacketType,
    PacketViolationError,
    ReasonCode,
    UnsupportedVersionError,
)
from tidegate_protocols.mqtt.codec.packets import Auth, Connect, Disconnect
from tidegate_protocols.mqtt.session.authentication import EnhancedAuthentication
from tidegate_protocols.mqtt.session.connect import (
    Origin,
    Terms,
    answers_to,
    bounded_expiry,
    read_connect,
    response_information,
)
from tidegate_protocols.mqtt.session.context import SessionContext
from tidegate_protocols.mqtt.session.reading import Pause, Reading
from tidegate_protocols.mqtt.session.states import PACKET_INPUTS, Input, SessionState, next_state
from tidegate_protocols.transport import Link, nobody

logger = logging.getLogger("tidegate.mqtt")

_CONNECTED: Final = SessionState.CONNECTED


class Session(ClientPeer, Protocol):
    """What admission needs of the session."""

    @property
    def state(self) -> SessionState: ...

    def advance(self, event: Input) -> None:
        """Take a step. Raises: PeerProtocolError for one that is not in the table."""
        ...

    def accept(self, terms: Terms, result: ConnectResult, connack: bytes) -> None:
        """The client is let in: its CONNACK can be sent."""
        ...

    def end(self, event: Input, reason: str, level: int, *, code: ReasonCode = ...) -> None:
        """Close, whatever the cause."""
        ...


@final
class Admission:
    """One client's way in.

    Args: renew: called when the connected client has authenticated again. Raises: AccessError.
    Attributes: answers: once the CONNECT has been read; client_id, session_expiry: from the CONNECT.
    """

    __slots__ = (
        "_authentication",
        "_codec",
        "_context",
        "_first_data",
        "_link",
        "_reading",
        "_renew",
        "_request",
        "_send",
        "_session",
        "_task",
        "_terms",
        "answers",
        "client_id",
        "session_expiry",
    )

    def __init__(
        self,
        session: Session,
        context: SessionContext,
        link: Link,
        codec: Codec,
        reading: Reading,
        send: Callable[[bytes], None],
        renew: Callable[[AuthenticationExchange], None],
    ) -> None:
        self._session = session
        self._context = context
        self._link = link
        self._codec = codec
        self._reading = reading
        self._send = send
        self._renew = renew
        self._task: Timer | None = None
        self._terms: Terms | None = None
        self._request: ConnectRequest | None = None
        self._authentication: EnhancedAuthentication | None = None
        self._first_data = b""  # authentication data of the CONNECT
        self.answers: Answers | None = None
        self.client_id = ""
        self.session_expiry = 0

    def cancel(self) -> None:
        """The connection has ended. Does nothing when no task is running."""
        if self._task is not None:
            self._task.cancel()

    def forget(self) -> None:
        """The link is gone, too: call nobody any more, except from work under way."""
        self.cancel()
        self._session = cast("Session", None)
        self._send = self._renew = nobody

    # --------------------------------------------------------------------------------- CONNECT

    def received(self, data: bytes) -> None:
        """Bytes from a client that is not accepted yet."""
        session, codec = self._session, self._codec
        is_first = session.state is SessionState.CONNECTING and not codec.incomplete_bytes
        if is_first and data and (said := _no_connect(data)):
            # Another protocol is recognized by its first bytes, not only after a packet's worth of them.
            session.end(Input.BAD_INPUT, f"{said} [MQTT-3.1.0-1]", logging.INFO)
            return
        codec.receive_data(data)
        if session.state is SessionState.CONNECTING:
            self._read_connect()
        elif session.state is SessionState.CHALLENGED:
            self._read_answer()
        elif session.state is SessionState.AUTHENTICATING:
            self._reading.pause(Pause.AUTHENTICATING)  # they stay undecoded [MQTT-3.1.4-5]
        if session.state is not SessionState.CLOSED:
            self._context.broker.unauthenticated_holds(session, codec.waiting_bytes)

    def _read_connect(self) -> None:
        """Read the first packet, once it is complete."""
        session = self._session
        try:
            packet = self._codec.next_event()
            if isinstance(packet, NeedData):
                return
            session.advance(PACKET_INPUTS[type(packet)])
            assert isinstance(packet, Connect), "the table lets nothing else through"
        except PeerProtocolError as error:
            self._tell_stranger(error)
            session.end(Input.BAD_INPUT, error.problem, logging.INFO)
            return
        try:
            self._settle(packet)
        except RefusedError as error:
            self._refuse(error, session)
            return
        self._wait_for_answer()
        self._spawn(self._authenticate())

    def _wait_for_answer(self) -> None:
        """A client that leaves now is noticed only while its socket is read, so read until it sends."""
        if self._codec.has_more:
            self._reading.pause(Pause.AUTHENTICATING)

    def _tell_stranger(self, error: PeerProtocolError) -> None:
        """Answer a CONNECT that cannot be read, if its version has an answer for that."""
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
        self.answers = answers_to(packet)
        link, context = self._link, self._context
        origin = Origin(
            link.peer,
            context.listener,
            link.tls_subject,
            context.allow_anonymous,
            link.tls_principal,
        )
        now_us = context.runtime.now_us()
        streams = context.broker.large_bodies is not None
        terms, request = read_connect(packet, context.options, origin, now_us, streams=streams)
        self._terms, self._request = terms, request
        self.session_expiry = terms.session_expiry
        self.client_id = terms.client_id
        if terms.authentication_method is not None:
            self._authentication = EnhancedAuthentication(
                context.broker, terms.authentication_method, request
            )
            self._authentication.begin()
            self._first_data = packet.properties.authentication_data or b""

    def _spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        self._task = self._context.runtime.spawn(self._guarded(coroutine))

    async def _guarded(self, coroutine: Coroutine[None, None, None]) -> None:
        session = self._session
        try:
            await coroutine
        except RefusedError as error:
            self._task = None  # it must not be cancelled from within
            self._refuse(error, session)
        except Exception:  # nobody awaits this task, and a half-open session would stay for ever
            logger.exception("connection failed client=%s peer=%s", self.client_id, self._link.peer)
            self._link.abort()

    def _refuse(self, error: RefusedError, session: Session) -> None:
        """Answer a CONNECT with a refusal, or end a connection that failed to authenticate again."""
        if session.state is _CONNECTED:
            session.end(Input.FAILED, error.problem, logging.INFO, code=error.reason)
        elif session.state is SessionState.AUTHENTICATING:
            answers = self.answers
            assert answers is not None
            reference = error.server_reference or self._context.options.server_reference
            self._link.send(answers.refusal(error.reason, error.problem, reference))
            session.end(Input.REFUSED, error.problem, logging.INFO)  # [MQTT-3.2.2-7]

    # ---------------------------------------------------------------------------- authenticating

    async def _authenticate(self) -> None:
        if self._authentication is None:
            await self._ask_broker(b"")
        else:
            await self._step(self._first_data)

    async def _step(self, data: bytes) -> None:
        """One step of enhanced authentication before CONNACK. Raises: RefusedError."""
        authentication, request, session = self._authentication, self._request, self._session
        assert authentication is not None
        assert request is not None
        answer = await authentication.step(data)
        if session.state is not SessionState.AUTHENTICATING:
            return  # the client left meanwhile
        if authentication.principal:
            self._request = msgspec.structs.replace(request, exchange=authentication.exchange)
            await self._ask_broker(answer)
            return
        challenge = self._auth(ReasonCode.CONTINUE_AUTHENTICATION, answer)
        session.advance(Input.CHALLENGE)
        self._task = None
        self._send(challenge)
        self._reading.resume(Pause.AUTHENTICATING)
        self._read_answer()

    def _auth(self, reason: ReasonCode, data: bytes) -> bytes:
        """Raises: RefusedError."""
        authentication, answers = self._authentication, self.answers
        assert authentication is not None
        assert answers is not None
        try:
            return answers.auth(reason, authentication.method, data)
        except PeerProtocolError as error:
            raise RefusedError(ReasonCode.PACKET_TOO_LARGE, error.problem) from error

    def _read_answer(self) -> None:
        """Read the client's next AUTH before CONNACK, once it is complete."""
        authentication, session = self._authentication, self._session
        assert authentication is not None
        try:
            packet = self._codec.next_event()
            if isinstance(packet, NeedData):
                return
            if isinstance(packet, Disconnect):
                session.end(Input.DISCONNECT, "the client disconnected", logging.DEBUG)
                return
            event = PACKET_INPUTS[type(packet)]
            next_state(session.state, event)  # raises for what may not come now
            assert isinstance(packet, Auth), "the table lets nothing else through"
            authentication.check(packet)
        except PeerProtocolError as error:
            session.end(Input.BAD_INPUT, error.problem, logging.INFO, code=end_reason(error))
            return
        session.advance(event)
        self._wait_for_answer()
        self._spawn(self._step(packet.properties.authentication_data or b""))

    def authenticate_again(self, packet: Auth) -> None:
        """The connected client sent AUTH. Raises: PacketViolationError."""
        authentication = self._authentication
        if authentication is None:
            raise PacketViolationError(
                "AUTH from a client that connected without an authentication method",
                "5.0:MQTT-4.12.0-6",
            )
        authentication.check(packet)
        try:
            if packet.reason_code is ReasonCode.REAUTHENTICATE:
                authentication.begin()
        except RefusedError as error:
            self._refuse(error, self._session)
            return
        self._spawn(self._step_again(authentication, packet.properties.authentication_data or b""))

    async def _step_again(self, authentication: EnhancedAuthentication, data: bytes) -> None:
        """One step of authenticating again; the connection continues meanwhile. Raises: RefusedError."""
        session = self._session
        answer = await authentication.step(data)
        if session.state is not _CONNECTED:
            return
        reason = ReasonCode.CONTINUE_AUTHENTICATION
        if authentication.principal:
            assert authentication.exchange is not None
            try:
                self._renew(authentication.exchange)
            except AccessError as error:
                raise RefusedError(ReasonCode.NOT_AUTHORIZED, str(error)) from error
            if session.state is not _CONNECTED:
                return  # with its current groups it may not be here
            reason = ReasonCode.SUCCESS
        self._send(self._auth(reason, answer))

    def changed_expiry(self, packet: Disconnect) -> int | None:
        """When the client's session is to end, if its DISCONNECT changes that.

        Raises: PacketViolationError.
        """
        expiry = packet.properties.session_expiry_interval
        if expiry is None:
            return None
        if expiry and not self.session_expiry:
            raise PacketViolationError(
                "a session that was to end with its connection cannot be kept now",
                "MQTT 5.0 3.14.2.2.2",
            )
        return bounded_expiry(expiry, self._context.options)

    # ------------------------------------------------------------------------------ the broker

    async def _ask_broker(self, authentication_data: bytes) -> None:
        """Raises: RefusedError."""
        request, session = self._request, self._session
        assert request is not None
        try:
            result = await self._context.broker.connect(request, session)
        except GatewayError as error:
            reason = connect_reason(error, has_username=bool(request.username))
            raise RefusedError(reason, told(error, self.client_id), reference_of(error)) from error
        if session.state is SessionState.AUTHENTICATING:
            terms = self._terms
            assert terms is not None
            connack = self._connack(terms, result, authentication_data)
            self._task = None  # what follows runs in it
            self._terms = self._request = (
                None  # an idle client should not keep what it does not need
            )
            session.accept(terms, result, connack)
        else:
            # The client left before CONNACK: it was never accepted, so there is no will.
            result.connection.disconnect(graceful=True)

    def _connack(self, terms: Terms, result: ConnectResult, authentication_data: bytes) -> bytes:
        """Raises: RefusedError, after the broker's side was ended."""
        answers = self.answers
        assert answers is not None
        properties = terms.changes
        if terms.response_prefix:
            told = response_information(terms, result.connection.principal)
            properties = msgspec.structs.replace(properties, response_information=told)
        if self._authentication is not None:  # [MQTT-4.12.0-5]
            properties = msgspec.structs.replace(
                properties,
                authentication_method=terms.authentication_method,
                authentication_data=authentication_data or None,
            )
        present = result.session_present and not terms.is_clean  # [MQTT-3.2.2-2] [MQTT-3.2.2-3]
        try:
            # The client would wait for messages that never come.
            problem = ", ".join(item.name for item in result.refused)
            problem = f"no longer allowed, so not resumed: {problem}" if problem else ""
            return answers.connack(present, properties, problem)
        except PeerProtocolError as error:
            result.connection.disconnect(graceful=True)
            raise RefusedError(ReasonCode.PACKET_TOO_LARGE, error.problem) from error


def _no_connect(data: bytes) -> str:
    """What is wrong with bytes that do not begin a CONNECT; "" when they may begin one."""
    if said := mistaken(data, "MQTT"):
        return said  # TLS begins as a CONNECT with flags would
    return "" if data[0] >> 4 == PacketType.CONNECT else "the first packet must be CONNECT"
