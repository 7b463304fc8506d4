"""The session machine of one MQTT client: between its packets and the broker.

States and transitions are in ``_states``, the sending side in ``_outgoing``. A *token* given to the
broker is simply the bytes to send when the operation is durable (PUBACK, PUBREC, SUBACK, a QoS 2
PUBLISH …), so confirming a whole turn is one ``join`` and one write.

Time, tasks and the socket come in through :class:`Runtime` and Link; nothing here waits but
:meth:`Session._authenticate`.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, cast, final

from tidegate.spi import (
    PRIORITY_DEFAULT,
    SESSION_NEVER_EXPIRES,
    AccessError,
    Broker,
    BrokerConnection,
    ConnectRequest,
    ConnectResult,
    GatewayError,
    InflightDirection,
    InflightRecord,
    InflightState,
    Message,
    PeerProtocolError,
    RequestError,
    RetainHandling,
    StoredMessage,
    SubscribeRequest,
    Token,
    names,
)
from tidegate_protocols.mqtt._codec import Codec, NeedData
from tidegate_protocols.mqtt._codes import (
    LEVEL_5_0,
    SUBACK_FAILURE,
    VERSION_NAMES,
    PacketType,
    ReasonCode,
    UnsupportedVersionError,
)
from tidegate_protocols.mqtt._encode import (
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBREC,
    UNSUBACK,
    acknowledgement,
    connack,
    encode,
)
from tidegate_protocols.mqtt._names import DESTINATIONS, target_of
from tidegate_protocols.mqtt._options import MqttOptions
from tidegate_protocols.mqtt._outgoing import Outgoing, OutgoingSubscription
from tidegate_protocols.mqtt._packets import (
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    TopicRequest,
    Unsubscribe,
    Will,
)
from tidegate_protocols.mqtt._states import PACKET_INPUTS, Input, SessionState, next_state
from tidegate_protocols.transport import Link

logger = logging.getLogger("tidegate.mqtt")

#: Largest packet before the client is accepted: a CONNECT whose five fields are all as long as
#: they can be. Strangers cannot make the gateway keep more than this.
CONNECT_BYTES_MAX: Final = 10 + 5 * (2 + 65_535)

#: Answers that may pile up for a client that sends without reading, before it is not read either.
#: Deliveries stop much earlier; the answers to one full socket buffer fit many times.
UNREAD_REPLIES_BYTES_MAX: Final = 1024 * 1024

#: While a packet at least this long is on its way, its bytes count as a sign of life: a client
#: cannot send a PINGREQ in the middle of a packet.
LONG_PACKET_BYTES: Final = 4096

#: A client is given up after this many keep-alive times without a packet [MQTT-3.1.2-24].
KEEP_ALIVE_FACTOR: Final = 1.5

# Why the socket is not read now; any of them pauses it.
_PAUSED_AUTHENTICATING: Final = 1
_PAUSED_BY_BROKER: Final = 2
_PAUSED_UNREAD_REPLIES: Final = 4

_CONNECTED: Final = SessionState.CONNECTED
_IN: Final = InflightDirection.IN


class Timer(Protocol):
    """Something that can be called off: a timer or a task."""

    def cancel(self) -> object: ...


class Runtime(Protocol):
    """What a session needs of the outside world; the front-end gives it the event loop's."""

    def time(self) -> float:
        """Monotonic seconds."""
        ...

    def now_us(self) -> int:
        """Microseconds since the Unix epoch."""
        ...

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer: ...

    def spawn(self, coroutine: Coroutine[None, None, None]) -> Timer:
        """Run *coroutine* as a task that the front-end owns."""
        ...


@dataclass(slots=True)
class SessionContext:
    """What all sessions of a listener share. listener: its address, set once it is bound."""

    broker: Broker
    options: MqttOptions
    runtime: Runtime
    allow_anonymous: bool
    listener: str = ""


class _RefusedError(Exception):
    """A CONNECT that is answered with a refusing CONNACK."""

    def __init__(self, reason: ReasonCode, problem: str) -> None:
        super().__init__(problem)
        self.reason = reason


@final
class Session:
    """One client. Implements :class:`tidegate.spi.ClientPeer`; fed by the link's handler."""

    def __init__(self, context: SessionContext, link: Link) -> None:
        options = context.options
        runtime = context.runtime
        self._context = context
        self._options = options
        self._runtime = runtime
        self._link = link
        self._codec = Codec(min(options.packet_bytes_max, CONNECT_BYTES_MAX))
        self._state = SessionState.CONNECTING
        self._client_id = ""
        self._is_persistent = False
        self._connection: BrokerConnection | None = None
        self._outgoing: Outgoing | None = None
        self._subscriptions: dict[str, OutgoingSubscription] = {}
        self._received: set[int] = set()  # packet ids of QoS 2 messages that came, not released yet
        self._pauses = 0
        self._is_writing_paused = False
        self._unread_bytes = 0
        self._last_heard = runtime.time()
        self._silence_s = 0.0
        self._authentication: Timer | None = None
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
        # While authenticating the bytes stay undecoded [MQTT-3.1.4-5]; reading is paused.

    def link_closed(self, error: Exception | None) -> None:
        """The link is gone. Called once."""
        reason = str(error) if error is not None else "the client closed the connection"
        self._end(Input.LOST, reason, logging.DEBUG)
        self._disconnect()

    def pause_writing(self) -> None:
        """The client does not read fast enough."""
        self._is_writing_paused = True
        if self._connection is not None and self._state is _CONNECTED:
            self._connection.writable(False)

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._is_writing_paused = False
        self._unread_bytes = 0
        self._unpause(_PAUSED_UNREAD_REPLIES)
        if self._connection is not None and self._state is _CONNECTED:
            self._connection.writable(True)

    # ------------------------------------------------------------------------- from the broker

    def confirmed(self, tokens: Sequence[Token]) -> None:
        """Operations are durable: what waited for them leaves, in order."""
        if self._state is _CONNECTED:
            self._send(b"".join(cast("Sequence[bytes]", tokens)))

    def failed(self, token: Token, error: GatewayError) -> None:
        """Something asked for did not happen. MQTT 3.1.1 has no word for that: the connection is
        closed without the confirmation, and the client sends again [MQTT-4.8.0-2]."""
        if self._state is _CONNECTED:
            # Not disconnected from here: the broker is in the middle of telling us.
            self._end(Input.FAILED, str(error), logging.INFO, disconnect=False)
            self._runtime.call_later(0.0, self._disconnect)

    def deliver(self, key: str, messages: Sequence[StoredMessage]) -> None:
        """Send messages of one subscription."""
        subscription = self._subscriptions.get(key)
        if subscription is not None and self._outgoing is not None and self._state is _CONNECTED:
            self._outgoing.deliver(subscription, messages)

    def throttle(self, paused: bool) -> None:
        """The broker wants less, or more again."""
        if paused:
            self._pause(_PAUSED_BY_BROKER)
        else:
            self._unpause(_PAUSED_BY_BROKER)

    def closed(self, error: GatewayError) -> None:
        """The broker ended the connection: take-over [MQTT-3.1.4-2], shutdown."""
        # The packet ids in flight go back with it: the same client is often here again already.
        self._end(Input.ENDED, str(error), logging.INFO)

    # ------------------------------------------------------------------------------ connecting

    def _read_connect(self) -> None:
        try:
            packet = self._codec.next_event()
            if isinstance(packet, NeedData):
                return
            self._state = next_state(self._state, PACKET_INPUTS[type(packet)])
            assert isinstance(packet, Connect), "the table lets nothing else through"
        except UnsupportedVersionError as error:
            level = LEVEL_5_0 if error.level == LEVEL_5_0 else 0
            self._link.send(connack(False, ReasonCode.UNSUPPORTED_PROTOCOL_VERSION, level))
            self._end(Input.BAD_INPUT, error.problem, logging.INFO)  # [MQTT-3.1.2-2]
            return
        except PeerProtocolError as error:
            self._end(Input.BAD_INPUT, error.problem, logging.INFO)  # [MQTT-3.1.4-1]
            return
        try:
            request = self._connect_request(packet)
        except _RefusedError as error:
            self._refuse(error.reason, str(error))
            return
        self._pause(_PAUSED_AUTHENTICATING)
        self._authentication = self._runtime.spawn(self._authenticate(request, packet))

    def _connect_request(self, packet: Connect) -> ConnectRequest:
        """Read a CONNECT. Raises: _RefusedError."""
        options = self._options
        client_id = packet.client_id
        if not client_id:
            if not packet.clean_session:  # [MQTT-3.1.3-7] [MQTT-3.1.3-8]
                raise _RefusedError(
                    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
                    "a session without a client id cannot be kept",
                )
            client_id = f"auto-{uuid.uuid4().hex}"  # [MQTT-3.1.3-6]
        elif len(client_id.encode()) > options.client_id_bytes_max:  # [MQTT-3.1.3-9]
            raise _RefusedError(
                ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
                f"the client id is longer than {options.client_id_bytes_max} bytes",
            )
        keep_alive_max = options.keep_alive_max
        if keep_alive_max and not 0 < packet.keep_alive <= keep_alive_max:
            raise _RefusedError(
                ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
                f"keep-alive {packet.keep_alive}s; the listener allows {keep_alive_max:g}s",
            )
        self._client_id = client_id
        self._is_persistent = not packet.clean_session
        self._silence_s = (packet.keep_alive or options.keep_alive_default) * KEEP_ALIVE_FACTOR
        session_expiry = 0  # the session ends with its connection [MQTT-3.1.2-6]
        if self._is_persistent:
            session_expiry = int(options.session_expiry) or SESSION_NEVER_EXPIRES
        return ConnectRequest(
            protocol="mqtt",
            version=VERSION_NAMES[packet.level],
            client_id=client_id,
            peer=self._link.peer,
            listener=self._context.listener,
            username=packet.username or "",
            password=packet.password,
            clean_start=packet.clean_session,
            session_expiry=session_expiry,
            will=self._will_message(packet.will),
            anonymous_allowed=self._context.allow_anonymous,
            prefetch_count=options.inflight_max,
        )

    def _will_message(self, will: Will | None) -> Message | None:
        if will is None:
            return None
        try:
            destination = DESTINATIONS[will.topic]
        except (AccessError, RequestError) as error:
            raise _RefusedError(ReasonCode.NOT_AUTHORIZED, f"will: {error}") from error
        return self._message(destination, will.body, will.qos, will.retain)

    def _message(self, destination: str, body: bytes, qos: int, retain: bool) -> Message:
        return Message(
            destination,
            body,
            (),
            self._runtime.now_us(),
            0,
            PRIORITY_DEFAULT,
            qos > 0,
            qos,
            retain and names.is_topic(destination),  # a queue keeps its messages anyway
            "mqtt",
            self._client_id,
        )

    async def _authenticate(self, request: ConnectRequest, packet: Connect) -> None:
        try:
            await self._ask_broker(request, packet)
        except Exception:  # nobody awaits this task, and a half-open session would stay for ever
            logger.exception("connect failed client=%s peer=%s", self._client_id, self._link.peer)
            self._link.abort()

    async def _ask_broker(self, request: ConnectRequest, packet: Connect) -> None:
        try:
            result = await self._context.broker.connect(request, self)
        except AccessError as error:
            shown = packet.username is not None
            reason = ReasonCode.BAD_USER_NAME_OR_PASSWORD if shown else ReasonCode.NOT_AUTHORIZED
            self._refuse(reason, str(error))
        except RequestError as error:
            self._refuse(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, str(error))
        except GatewayError as error:
            self._refuse(ReasonCode.SERVER_UNAVAILABLE, str(error))
        else:
            if self._state is SessionState.AUTHENTICATING:
                self._accept(result, packet)
            else:
                # The client left before CONNACK: it was never accepted, so there is no will.
                result.connection.disconnect(graceful=True)

    def _refuse(self, reason: ReasonCode, problem: str) -> None:
        if self._state is SessionState.AUTHENTICATING:
            self._link.send(connack(False, reason, self._codec.level))
            self._end(Input.REFUSED, problem, logging.INFO)  # [MQTT-3.2.2-5]

    def _accept(self, result: ConnectResult, packet: Connect) -> None:
        options = self._options
        self._state = next_state(self._state, Input.ACCEPTED)
        self._cancel_timers()
        connection = self._connection = result.connection
        outgoing = self._outgoing = Outgoing(
            connection,
            self._send,
            self._client_id,
            is_persistent=self._is_persistent,
            inflight_max=options.inflight_max,
        )
        present = result.session_present and self._is_persistent  # [MQTT-3.2.2-1]
        # The first packet is the CONNACK [MQTT-3.2.0-1].
        self._send(connack(present, ReasonCode.SUCCESS, packet.level))
        for stored in result.subscriptions:
            self._subscriptions[stored.name] = OutgoingSubscription(
                stored.name, stored.qos, is_storable=True
            )
        self._received = {record.packet_id for record in result.inflight if record.direction is _IN}
        outgoing.restore(result.inflight, self._subscriptions)
        self._codec.packet_bytes_max = options.packet_bytes_max
        self._last_heard = self._runtime.time()
        if self._silence_s:
            self._timer = self._runtime.call_later(self._silence_s, self._check_silence)
        logger.debug("connected client=%s peer=%s", self._client_id, self._link.peer)
        if self._is_writing_paused:
            connection.writable(False)
        connection.resume()
        self._unpause(_PAUSED_AUTHENTICATING)
        self._read()  # what came behind the CONNECT

    # ------------------------------------------------------------------------------- receiving

    def _read(self) -> None:
        """Handle every packet that is complete. Only called when connected."""
        connection, outgoing = self._connection, self._outgoing
        assert connection is not None
        assert outgoing is not None
        codec = self._codec
        client_id = self._client_id
        publish = connection.publish
        puback = outgoing.puback
        try:
            if codec.incomplete_bytes >= LONG_PACKET_BYTES:
                self._last_heard = self._runtime.time()
            # More than one round only when a packet broke the rules: the second one says so.
            while packets := codec.events():
                self._last_heard = self._runtime.time()
                now_us = self._runtime.now_us()
                for packet in packets:
                    if isinstance(packet, Publish):
                        qos = packet.qos
                        if qos == 2 or packet.retain:
                            self._publish_with_care(packet)
                            continue
                        message = Message(
                            DESTINATIONS[packet.topic],
                            packet.body,
                            (),
                            now_us,
                            0,
                            PRIORITY_DEFAULT,
                            qos > 0,
                            qos,
                            False,
                            "mqtt",
                            client_id,
                        )
                        # PUBACK when the message is durable [MQTT-4.3.2-2].
                        publish(message, acknowledgement(PUBACK, packet.packet_id) if qos else None)
                    elif isinstance(packet, Puback):
                        puback(packet.packet_id)
                    else:
                        self._control(packet)
                        if self._state is not _CONNECTED:
                            return
            outgoing.settle()
        except PeerProtocolError as error:
            self._end(Input.BAD_INPUT, error.problem, logging.INFO)  # [MQTT-4.8.0-1]
        except GatewayError as error:
            # A PUBLISH that is not allowed or has no room: not acknowledged [MQTT-3.3.5-2].
            self._end(Input.FAILED, str(error), logging.INFO)

    def _publish_with_care(self, packet: Publish) -> None:
        """A PUBLISH of QoS 2, or one to be retained."""
        connection = self._connection
        assert connection is not None
        packet_id = packet.packet_id
        if packet.qos == 2 and packet_id in self._received:
            # Known already: answered again, not published again [MQTT-4.3.3-2]; behind the first
            # one's batch, which may not be durable yet.
            connection.synchronize(acknowledgement(PUBREC, packet_id))
            return
        destination = DESTINATIONS[packet.topic]
        message = self._message(destination, packet.body, packet.qos, packet.retain)
        if packet.qos < 2:
            token = acknowledgement(PUBACK, packet_id) if packet.qos else None
            connection.publish(message, token)
            return
        record = None
        if self._is_persistent:
            record = InflightRecord(self._client_id, _IN, packet_id, InflightState.RECEIVED)
        connection.publish(message, acknowledgement(PUBREC, packet_id), inflight=record)
        self._received.add(packet_id)

    def _control(self, packet: Packet) -> None:
        """Any packet but PUBLISH and PUBACK, which the table allows in this state only."""
        outgoing = self._outgoing
        assert outgoing is not None
        # PUBACKs that came before must count before what comes now.
        outgoing.settle()
        if isinstance(packet, Disconnect):
            self._end(Input.DISCONNECT, "the client disconnected", logging.DEBUG)
            return
        self._state = next_state(self._state, PACKET_INPUTS[type(packet)])
        match packet:
            case Pubrel():
                self._pubrel(packet.packet_id)
            case Pubrec():
                outgoing.pubrec(packet.packet_id)
            case Pubcomp():
                outgoing.pubcomp(packet.packet_id)
            case Pingreq():
                self._send(PINGRESP)  # [MQTT-3.12.4-1]
            case Subscribe():
                self._subscribe(packet)
            case Unsubscribe():
                self._unsubscribe(packet)
            case _:
                raise AssertionError(f"the table lets {packet!r} through")

    def _pubrel(self, packet_id: int) -> None:
        """The client has forgotten the message: so may we (MQTT 3.1.1 section 4.3.3)."""
        connection = self._connection
        assert connection is not None
        self._received.discard(packet_id)
        complete = acknowledgement(PUBCOMP, packet_id)
        if self._is_persistent:
            # After PUBCOMP the id means another message: the old meaning must be gone for good.
            connection.record_inflight(remove=((_IN, packet_id),), token=complete)
        else:
            self._send(complete)

    def _subscribe(self, packet: Subscribe) -> None:
        connection = self._connection
        assert connection is not None
        # Each filter as if it came alone [MQTT-3.8.4-4]; one code for each [MQTT-3.8.4-5].
        codes = tuple(self._subscribe_one(request) for request in packet.requests)
        connection.synchronize(encode(Suback(packet.packet_id, codes)))  # [MQTT-3.8.4-1]

    def _subscribe_one(self, request: TopicRequest) -> int:
        """Returns: the granted QoS, or 0x80."""
        connection = self._connection
        assert connection is not None
        key = request.topic_filter
        try:
            target = target_of(key)
        except ValueError as error:
            return self._subscription_refused(key, error)  # [MQTT-4.7.1-2] [MQTT-4.7.1-3]
        subscription = self._subscriptions.get(key)
        is_new = subscription is None
        if subscription is None:
            limit = self._options.subscriptions_max
            if len(self._subscriptions) >= limit:
                return self._subscription_refused(key, f"subscriptions_max is {limit}")
            is_storable = self._is_persistent and target.is_storable
            subscription = OutgoingSubscription(key, request.qos, is_storable=is_storable)
            self._subscriptions[key] = subscription  # deliveries may come before we return
        qos_before, subscription.qos = subscription.qos, request.qos
        try:
            connection.subscribe(
                SubscribeRequest(
                    key=key,
                    destination=target.destination,
                    acknowledge=request.qos > 0,
                    durable_name=key if subscription.is_storable else "",
                    qos=request.qos,
                    retain_handling=RetainHandling.SEND,  # [MQTT-3.3.1-6] [MQTT-3.8.4-3]
                    share_group=target.share_group,
                    prefetch_count=self._options.inflight_max,
                )
            )
        except GatewayError as error:
            subscription.qos = qos_before
            if is_new:
                del self._subscriptions[key]
            return self._subscription_refused(key, error)
        return request.qos  # [MQTT-3.8.4-6]

    def _subscription_refused(self, topic_filter: str, problem: object) -> int:
        logger.info(
            "subscription refused client=%s filter=%s reason=%s",
            self._client_id,
            topic_filter,
            problem,
        )
        return SUBACK_FAILURE

    def _unsubscribe(self, packet: Unsubscribe) -> None:
        connection, outgoing = self._connection, self._outgoing
        assert connection is not None
        assert outgoing is not None
        for topic_filter in packet.topic_filters:  # compared as written [MQTT-3.10.4-1]
            subscription = self._subscriptions.pop(topic_filter, None)
            if subscription is not None:
                outgoing.remove(subscription)
                connection.unsubscribe(topic_filter, forget=True)  # [MQTT-3.10.4-2]
        # Also when there was none of them [MQTT-3.10.4-5].
        connection.synchronize(acknowledgement(UNSUBACK, packet.packet_id))

    # --------------------------------------------------------------------------------- writing

    def _send(self, data: bytes) -> None:
        self._link.send(data)
        if self._is_writing_paused:
            self._unread_bytes += len(data)
            if self._unread_bytes > UNREAD_REPLIES_BYTES_MAX:
                self._pause(_PAUSED_UNREAD_REPLIES)

    def _pause(self, reason: int) -> None:
        if not self._pauses:
            self._link.pause_reading()
        self._pauses |= reason

    def _unpause(self, reason: int) -> None:
        if self._pauses & reason:
            self._pauses &= ~reason
            if not self._pauses:
                self._last_heard = self._runtime.time()  # it could not be heard until now
                self._link.resume_reading()

    # ------------------------------------------------------------------------------ the end

    def _connect_timed_out(self) -> None:
        seconds = self._options.connect_timeout
        self._end(Input.TIMED_OUT, f"no accepted CONNECT within {seconds:g}s", logging.INFO)

    def _check_silence(self) -> None:
        """One timer for the whole connection instead of one for each packet."""
        now = self._runtime.time()
        if self._pauses:
            self._last_heard = now  # we do not listen: its silence says nothing
        rest = self._silence_s - (now - self._last_heard)
        if rest > 0:
            self._timer = self._runtime.call_later(rest, self._check_silence)
            return
        reason = f"no packet for {self._silence_s:g}s"
        self._end(Input.TIMED_OUT, reason, logging.INFO)  # [MQTT-3.1.2-24]

    def _end(self, event: Input, reason: str, level: int, *, disconnect: bool = True) -> None:
        """Close, whatever the cause; the first cause counts."""
        if self._state is SessionState.CLOSED:
            return
        self._state = next_state(self._state, event)
        logger.log(
            level,
            "session ended client=%s peer=%s cause=%s reason=%s",
            self._client_id,
            self._link.peer,
            event.name.lower(),
            reason,
        )
        self._cancel_timers()
        if self._authentication is not None and event is not Input.REFUSED:
            self._authentication.cancel()  # no effect when it is done
        if disconnect:
            self._disconnect(graceful=event is Input.DISCONNECT)
        self._link.close()

    def _disconnect(self, *, graceful: bool = False) -> None:
        """Leave the broker, once; not *graceful* publishes the will [MQTT-3.1.2-8]."""
        connection, outgoing = self._connection, self._outgoing
        self._connection = None
        if connection is None or outgoing is None:
            return
        try:
            outgoing.acknowledge_received()  # what the client answered before it went counts
        except GatewayError as error:
            logger.debug("last acknowledgements lost client=%s reason=%s", self._client_id, error)
        connection.disconnect(graceful=graceful, detached=outgoing.detached())

    def _cancel_timers(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
