"""The session machine of one MQTT client: between its packets and the broker.

States and transitions are in ``states``. A client comes in through ``admission``; its publishes go
through ``incoming``, its subscriptions through ``subscriptions``, deliveries through ``outgoing``;
everything it is sent leaves through ``writing``. A *token* given to the broker is simply the bytes to
send when the operation is durable (PUBACK, PUBREC, SUBACK, a QoS 2 PUBLISH …), so confirming a whole
turn is one ``join`` and one write.

Time, tasks and the socket come in through Runtime and Link; nothing here waits except the coroutines
that authenticate.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, cast, final

from tidegate.spi import (
    AuthenticationExchange,
    ConnectionEndedError,
    ConnectResult,
    GatewayError,
    Held,
    PeerProtocolError,
    StoredMessage,
    Token,
)
from tidegate_protocols._farewell import Farewells, answers_in
from tidegate_protocols._intake import Intake
from tidegate_protocols._large_out import LargeWire
from tidegate_protocols._pace import Pace, Timer
from tidegate_protocols.mqtt._reasons import end_reason, reference_of, told
from tidegate_protocols.mqtt.codec.codec import Codec
from tidegate_protocols.mqtt.codec.codes import ReasonCode
from tidegate_protocols.mqtt.codec.encode import PINGRESP
from tidegate_protocols.mqtt.codec.packets import (
    Auth,
    Disconnect,
    Event,
    LargePublish,
    Pingreq,
    Subscribe,
    Unsubscribe,
)
from tidegate_protocols.mqtt.session.admission import Admission
from tidegate_protocols.mqtt.session.connect import Terms
from tidegate_protocols.mqtt.session.context import SessionContext
from tidegate_protocols.mqtt.session.conversation import Conversation
from tidegate_protocols.mqtt.session.reading import Pause, Reading
from tidegate_protocols.mqtt.session.receiving import Receiving
from tidegate_protocols.mqtt.session.states import PACKET_INPUTS, Input, SessionState, next_state
from tidegate_protocols.mqtt.session.writing import Writing
from tidegate_protocols.transport import Link

logger = logging.getLogger("tidegate.mqtt")

#: Largest packet before the client is accepted: a CONNECT whose five fields all have the maximum
#: length. Strangers cannot make the gateway keep more than this.
CONNECT_BYTES_MAX: Final = 10 + 5 * (2 + 65_535)

#: A client is given up after this many keep-alive times without a packet [MQTT-3.1.2-24].
KEEP_ALIVE_FACTOR: Final = 1.5

_CONNECTED: Final = SessionState.CONNECTED
_REFUSED: Final = SessionState.REFUSED
_HAS_ANSWERS: Final = frozenset({_CONNECTED, _REFUSED})
_BEFORE_CONNACK: Final = frozenset({SessionState.AUTHENTICATING, SessionState.CHALLENGED})

# After these there is nobody to tell, or everything has been said.
_UNTOLD: Final = frozenset({Input.DISCONNECT, Input.LOST, Input.REFUSED})


@final
class Session:
    """One client. Implements :class:`tidegate.spi.ClientPeer`; fed by the link's handler.

    Attributes: state: its current state.
    """

    __slots__ = (
        "_admission",
        "_codec",
        "_context",
        "_conversation",
        "_farewells",
        "_intake",
        "_link",
        "_options",
        "_reading",
        "_receiving",
        "_runtime",
        "_silence_s",
        "_timer",
        "_writing",
        "state",
    )

    def __init__(self, context: SessionContext, link: Link) -> None:
        options = context.options
        runtime = context.runtime
        self._context = context
        self._options = options
        self._runtime = runtime
        self._link = link
        self._codec = Codec(min(options.packet_bytes_max, CONNECT_BYTES_MAX), from_client=True)
        self.state = SessionState.CONNECTING
        self._conversation: Conversation | None = None  # from CONNACK to the end
        self._receiving: Receiving | None = None  # for the same time
        self._reading = Reading(
            link, runtime, options.unread_output_max, options.unread_output_timeout
        )
        self._writing = Writing(
            link,
            self._reading,
            context.broker,
            streaming=self._streaming,
            broken=self._large_broke,
        )
        self._admission = Admission(
            self, context, link, self._codec, self._reading, self._writing.send, self._renew
        )
        self._farewells = Farewells()
        self._intake: Intake | None = None  # since CONNACK
        self._silence_s = 0.0
        self._timer: Timer | None = runtime.call_later(
            options.connect_timeout, self._connect_timed_out
        )

    @property
    def is_connected(self) -> bool:
        """From CONNACK to the end."""
        return self.state is _CONNECTED

    def advance(self, event: Input) -> None:
        """Take a step. Raises: PeerProtocolError for one that is not in the table."""
        self.state = next_state(self.state, event)

    # --------------------------------------------------------------------------- from the link

    def data_received(self, data: bytes) -> None:
        """Bytes from the client."""
        if self.state is _REFUSED:
            # Read only so that a client that leaves or falls silent is noticed.
            self._reading.last_heard = self._runtime.time()
            if self._intake is not None:
                self._intake.dropped(len(data))
            return
        receiving, codec = self._receiving, self._codec
        if receiving is None:
            if self.state is not SessionState.CLOSED:
                self._admission.received(data)
            return
        codec.receive_data(data)
        receiving.run()
        if self._intake is not None:
            self._intake.handled(len(data), codec.waiting_bytes)

    def input_ended(self) -> bool:
        """The client sends no more. Complete input counts, and the client is told the outcome.

        Returns: False when there is nothing to say.
        """
        if self._receiving is None or self._writing.is_streaming:
            return False
        self._farewells.has_ended = True
        reason = "the client closed the connection"
        if self.state is _CONNECTED and not self._receiving.lost(reason):
            self.lose(reason)
        return self.state is not SessionState.CLOSED

    def link_closed(self, error: Exception | None) -> None:
        """The link is gone. Called once."""
        reason = str(error) if error is not None else "the client closed the connection"
        self._farewells.has_ended = False
        self._writing.cancel_large()
        if self._receiving is not None and self._receiving.lost(reason):
            return  # complete input counts: the end of the link waits its turn
        self.lose(reason)

    def lose(self, reason: str) -> None:
        """The client sends no more, and everything that arrived completely is handled."""
        say = partial(self.end, Input.LOST, reason, logging.DEBUG)
        if self._farewells.has_ended and (self.state is _REFUSED or self._waits_behind(say)):
            return
        self.end(Input.LOST, reason, logging.DEBUG)
        self._disconnect()
        # Its parts know it: without those references it is freed by reference counting (decision 12).
        self._writing.forget()
        self._reading.unread.forget()
        self._admission.forget()
        self._farewells.forget()
        self._receiving = self._intake = None

    def pause_writing(self) -> None:
        """The client does not read fast enough."""
        self._writing.writable(False)
        if self._conversation is not None and self.state is _CONNECTED:
            self._conversation.connection.writable(False)

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._writing.writable(True)
        if self._writing.is_streaming:
            return  # the broker is told when that is over
        if self._conversation is not None and self.state is _CONNECTED:
            self._conversation.connection.writable(True)

    # ------------------------------------------------------------------------- from the broker

    def confirmed(self, tokens: Sequence[Token]) -> None:
        """Operations are durable: what waited for them leaves, in order."""
        if self.state is _CONNECTED and self._conversation is not None:
            self._conversation.confirmed(tokens)
            writing = self._writing
            if not writing.may_stream:
                writing.send(b"".join(cast("Sequence[bytes]", tokens)))
                if not self._conversation.is_subscribed:
                    writing.flush()  # nothing else will come in this turn
                return
            for token in cast("Sequence[bytes]", tokens):
                writing.send(token)
        elif self.state is _REFUSED and self._conversation is not None:
            self._confirmed_last(self._conversation, tokens)

    def _confirmed_last(self, conversation: Conversation, tokens: Sequence[Token]) -> None:
        """As :meth:`confirmed`; then everything is said. No further large body begins."""
        answers = cast("Sequence[bytes]", answers_in(tokens))
        answers = [answer for answer in answers if type(answer) is not LargeWire]
        conversation.confirmed(answers)
        self._writing.send(b"".join(answers))
        if self._farewells.say(tokens[-1]):
            self._disconnect_soon()

    def _disconnect_soon(self) -> None:
        """Not at once: the broker is in the middle of a call to us."""
        self._runtime.call_later(0.0, self._disconnect)

    def failed(self, token: Token, error: GatewayError) -> None:
        """An operation failed. MQTT 5.0 has an answer for a PUBLISH; otherwise the
        connection is closed without the confirmation, and the client sends again."""
        if self.state not in _HAS_ANSWERS or self._conversation is None:
            return
        # Everything that a farewell waited for was answered.
        if not self._farewells.say(token):
            if self._conversation.failed(token, error):
                return
            self.fail(error, disconnect=False)
        self._disconnect_soon()

    @property
    def has_unsent(self) -> bool:
        """The client has not read everything."""
        return self._writing.has_unsent

    def deliver(self, key: str, messages: Sequence[StoredMessage]) -> None:
        """Send messages of one subscription."""
        if self.state is _CONNECTED and self._conversation is not None:
            self._conversation.deliver(key, messages)

    def throttle(self, paused: bool, *, at_once: bool = False) -> None:
        """The broker wants less input, or more again."""
        if self._receiving is not None:
            self._receiving.hold(at_once)
        if paused:
            self._reading.pause(Pause.BY_BROKER)
        else:
            self._reading.resume(Pause.BY_BROKER)

    def closed(self, error: GatewayError) -> None:
        """The broker ended the connection: take-over [MQTT-3.1.4-2], shutdown, a lost right."""
        self._writing.withhold(error)
        reference = reference_of(error)
        self.end(
            Input.ENDED, error.for_client, logging.INFO, code=end_reason(error), reference=reference
        )

    # ------------------------------------------------------------------------------ connecting

    def accept(self, terms: Terms, result: ConnectResult, connack: bytes) -> None:
        """The client is let in. Called by its admission."""
        answers, options = self._admission.answers, self._options
        assert answers is not None
        self.advance(Input.ACCEPTED)
        self._cancel_timers()
        self._writing.send(connack)  # the first packet [MQTT-3.2.0-1]
        connection = result.connection
        self._conversation = Conversation(
            self._context,
            terms,
            answers,
            result,
            self._writing.send,
            self._writing.expect_large,
        )
        self._receiving = Receiving(
            self,
            self._conversation,
            self._codec,
            self._reading,
            self._link,
            self._runtime,
            self._context.broker,
            self._pace(options.body_timeout),
        )
        self._context.broker.unauthenticated_holds(self, 0)
        self._codec.packet_bytes_max = options.packet_bytes_max
        bodies = self._context.broker.large_bodies
        if bodies is not None:
            self._codec.stream_bodies(bodies.size_min, options.large_packet_bytes_max)
        self._silence_s = terms.keep_alive * KEEP_ALIVE_FACTOR
        self._reading.watch(self._silence_s, self._was_silent)
        logger.debug("connected client=%s peer=%s", self._admission.client_id, self._link.peer)
        self._intake = intake = Intake(
            connection,
            self._pace(options.frame_timeout),
            self.fail,
            lambda: self._codec.waiting_bytes,
        )
        self._reading.unread.tell = partial(connection.holds, Held.OUTPUT)
        if self._reading.unread.is_paused:
            connection.writable(False)
        connection.resume()
        self._reading.resume(Pause.AUTHENTICATING)
        if self.is_connected:
            self._receiving.run()  # what followed the CONNECT
            intake.handled(0, self._codec.waiting_bytes)

    def _pace(self, timeout_s: float) -> Pace:
        reading = self._reading
        return Pace(
            timeout_s,
            self._runtime.call_later,
            lambda: reading.is_paused,
            lambda: reading.pauses,
        )

    # ------------------------------------------------------------------------------- receiving

    def fail(self, error: GatewayError, *, disconnect: bool = True) -> None:
        """A request fails and has no answer for that: the connection ends."""
        # A faulty packet [MQTT-4.8.0-1] [MQTT-4.13.1-1]; or, before MQTT 5.0, a PUBLISH that is not
        # allowed or has no room, which is not acknowledged [MQTT-3.3.5-2].
        event, reason = Input.FAILED, told(error, self._admission.client_id)
        if isinstance(error, PeerProtocolError):
            event, reason = Input.BAD_INPUT, error.problem
        say = partial(self.end, event, reason, logging.INFO, code=end_reason(error))
        if not disconnect or isinstance(error, ConnectionEndedError) or not self._waits_behind(say):
            say(disconnect=disconnect)

    def _waits_behind(self, say: Callable[..., None]) -> bool:
        """The client is first told the outcome of everything it sent. Returns: False: it was, or cannot be."""
        conversation = self._conversation
        if (
            conversation is None
            or self.state is not _CONNECTED
            or self._writing.is_streaming  # nothing can follow before that is over
            or not self._farewells.wait(conversation.connection, partial(say, disconnect=False))
        ):
            return False
        self.advance(Input.WAITS)
        self._stop_receiving()
        return True

    def control(self, packet: Event) -> bool:
        """Handle any packet but PUBLISH and PUBACK, which the table allows in this state only.

        Returns: False when no more is to be handled for now, or ever.
        """
        conversation, receiving = self._conversation, self._receiving
        assert conversation is not None
        assert receiving is not None
        # Earlier PUBACKs must count before what comes now.
        conversation.settle()
        if isinstance(packet, Disconnect):
            self._client_disconnects(packet)
            return False
        self.state = next_state(self.state, PACKET_INPUTS[type(packet)])
        if isinstance(packet, Pingreq):
            self._writing.send(PINGRESP)  # [MQTT-3.12.4-1]
        elif isinstance(packet, LargePublish):
            receiving.begin_large(packet)
        elif isinstance(packet, (Subscribe, Unsubscribe)):
            receiving.carry_out(conversation.subscribe(packet))
            return False
        elif isinstance(packet, Auth):
            self._admission.authenticate_again(packet)
        else:
            conversation.control(packet)
        return self.state is _CONNECTED

    def _client_disconnects(self, packet: Disconnect) -> None:
        """Raises: PacketViolationError."""
        expiry = self._admission.changed_expiry(packet)
        self.end(
            Input.DISCONNECT,
            f"the client disconnected, reason {packet.reason_code:#04x}",
            logging.DEBUG,
            disconnect=False,
        )
        # Only reason 0x00 takes back the will [MQTT-3.1.2-10] [MQTT-3.14.4-3].
        self._disconnect(graceful=True, publish_will=packet.reason_code != 0, session_expiry=expiry)

    # --------------------------------------------------------------------------------- writing

    def _streaming(self, is_busy: bool) -> None:
        """Deliver nothing while a large body is being sent."""
        conversation = self._conversation
        if conversation is None:
            return
        if is_busy:
            conversation.connection.writable(False)
        elif self.state is _CONNECTED and not self._reading.unread.is_paused:
            conversation.connection.writable(True)

    def _large_broke(self, error: GatewayError) -> None:
        """A PUBLISH breaks off in the middle. Only the end of the connection can tell the client."""
        self.end(Input.LOST, f"a large body cannot be read: {error}", logging.ERROR)
        self._link.abort()

    # ------------------------------------------------------------------------------ the end

    def _connect_timed_out(self) -> None:
        problem = f"no CONNECT was accepted within {self._options.connect_timeout:g}s"
        self.end(Input.TIMED_OUT, problem, logging.INFO, code=ReasonCode.SERVER_BUSY)

    def _was_silent(self) -> None:  # [MQTT-3.1.2-24]
        problem = f"no packet from the client for {self._silence_s:g}s"
        self.end(Input.TIMED_OUT, problem, logging.INFO, code=ReasonCode.KEEP_ALIVE_TIMEOUT)

    def end(
        self,
        event: Input,
        reason: str,
        level: int,
        *,
        code: ReasonCode = ReasonCode.UNSPECIFIED_ERROR,
        disconnect: bool = True,
        reference: str = "",
    ) -> None:
        """Close, whatever the cause; the first cause counts. code: what MQTT 5.0 is told; reference: where
        to go instead."""
        if self.state is SessionState.CLOSED:
            return
        before, answers = self.state, self._admission.answers
        self.state = next_state(before, event)
        logger.log(
            level,
            "session ended client=%s peer=%s cause=%s reason=%s",
            self._admission.client_id,
            self._link.peer,
            event.name.lower(),
            reason,
        )
        self._cancel_timers()
        self._admission.cancel()
        if self._receiving is None:
            self._context.broker.unauthenticated_holds(self, 0)
        self._stop_receiving()
        if self._writing.is_streaming:
            self._writing.cancel_large()  # a PUBLISH breaks off: nothing can follow it
        elif event not in _UNTOLD and answers is not None and answers.is_v5:
            is_accepted = before not in _BEFORE_CONNACK
            self._link.send(answers.ending(code, reason, reference, is_accepted=is_accepted))
        if disconnect:
            self._disconnect(reason=reason)
        self._link.close()

    def _stop_receiving(self) -> None:
        """Nothing more of what was read counts. Idempotent."""
        if self._intake is not None:
            self._intake.stop()
        if self._receiving is not None:
            self._receiving.stop()
        self._codec.forget()  # the socket may linger

    def _disconnect(
        self,
        *,
        graceful: bool = False,
        publish_will: bool = False,
        session_expiry: int | None = None,
        reason: str = "",
    ) -> None:
        """Leave the broker, once; not *graceful* publishes the will [MQTT-3.1.2-8]."""
        conversation, self._conversation = self._conversation, None
        if conversation is not None:
            conversation.leave(
                graceful=graceful,
                publish_will=publish_will,
                session_expiry=session_expiry,
                reason=reason,
            )

    def _renew(self, exchange: AuthenticationExchange) -> None:
        assert self._conversation is not None, "only a connected client can authenticate again"
        self._conversation.connection.authenticated_again(exchange)

    def _cancel_timers(self) -> None:
        self._reading.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
