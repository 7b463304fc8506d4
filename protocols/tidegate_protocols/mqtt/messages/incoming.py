"""A client's publishes: from PUBLISH to message, and the QoS 1 and 2 handshakes towards us.

A *token* given to the broker is the answer to send when the message is durable. In MQTT 5.0 it
is a ``bytearray``, because its content (nobody subscribes; the write failed) is known only after
the broker has it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, final

import msgspec

from tidegate.spi import (
    PRIORITY_DEFAULT,
    BrokerConnection,
    GatewayError,
    Held,
    InflightDirection,
    InflightRecord,
    InflightState,
    LargeBody,
    Message,
    PeerProtocolError,
    RequestError,
    Token,
    names,
)
from tidegate_protocols._user_headers import DUPLICATE_ID
from tidegate_protocols.mqtt._answers import PUBLISH_ANSWERS, Answers
from tidegate_protocols.mqtt._options import RECEIVE_MAXIMUM_DEFAULT, MqttOptions
from tidegate_protocols.mqtt._reasons import RefusedError, publish_reason
from tidegate_protocols.mqtt.codec.codes import PacketType, PacketViolationError, ReasonCode
from tidegate_protocols.mqtt.codec.encode import PUBREC, acknowledgement
from tidegate_protocols.mqtt.codec.large_head import TextCheck, text_check
from tidegate_protocols.mqtt.codec.packets import Publish
from tidegate_protocols.mqtt.codec.properties import NO_PROPERTIES
from tidegate_protocols.mqtt.codec.validate_v5 import payload_matches_format
from tidegate_protocols.mqtt.messages.aliases import AliasesIn
from tidegate_protocols.mqtt.messages.bridge import message_of
from tidegate_protocols.mqtt.messages.names import DESTINATIONS

logger = logging.getLogger("tidegate.mqtt")

_IN: Final = InflightDirection.IN
#: Memory of a packet id with its answer, and the step in which their number is reported to the broker.
_ID_BYTES: Final = 170
_ID_STEP: Final = 256

_PUBACK_BYTE: Final = PacketType.PUBACK << 4
_PUBREC_BYTE: Final = PacketType.PUBREC << 4
_PUBCOMP_BYTE: Final = PacketType.PUBCOMP << 4
_NOBODY_TAIL: Final = bytes((ReasonCode.NO_MATCHING_SUBSCRIBERS,))


@final
class Coming:
    """A PUBLISH whose body is still to come.

    Attributes:
        packet: without its body.
        destination: canonical; "" when it is not to be published.
        is_repeated: a QoS 2 message received before: it is only answered again.
        error: why it is refused; the answer is sent once its body has arrived.
        text: checks its body as it arrives; None: no check.
    """

    __slots__ = ("destination", "error", "is_repeated", "packet", "text")

    def __init__(
        self,
        packet: Publish,
        destination: str = "",
        *,
        is_repeated: bool = False,
        error: GatewayError | None = None,
    ) -> None:
        self.packet = packet
        self.destination = destination
        self.is_repeated = is_repeated
        self.error = error
        self.text: TextCheck | None = None

    @property
    def is_wanted(self) -> bool:
        """The body is to be kept."""
        return self.error is None and not self.is_repeated


@final
class Incoming:
    """The receiving side of one connected session.

    Args:
        send: writes to the client.
        is_persistent: the session is in the store.
        is_resumed: the session existed before this connection.
        records: packet-id states of the session.
    """

    __slots__ = (
        "_aliases",
        "_answers",
        "_charged",
        "_client_id",
        "_connection",
        "_is_counting",
        "_is_persistent",
        "_is_resumed",
        "_log_level",
        "_options",
        "_received",
        "_send",
        "_session",
        "_unanswered_count",
    )

    def __init__(
        self,
        connection: BrokerConnection,
        send: Callable[[bytes], None],
        answers: Answers,
        options: MqttOptions,
        client_id: str,
        *,
        session: str,
        is_persistent: bool,
        is_resumed: bool,
        records: Sequence[InflightRecord] = (),
    ) -> None:
        self._connection = connection
        self._send = send
        self._answers = answers
        self._client_id = client_id
        self._session = session
        self._is_persistent = is_persistent
        self._is_resumed = is_resumed
        self._options = options
        self._aliases: AliasesIn | None = None  # most clients use none
        # There are no more packet ids than the default allows, so only a smaller maximum is enforced.
        self._is_counting = answers.is_v5 and options.receive_maximum < RECEIVE_MAXIMUM_DEFAULT
        self._unanswered_count = 0
        self._log_level = logging.INFO  # for the first refused PUBLISH; later ones are not news
        self._charged = 0  # packet ids reported to the broker
        # Packet ids of unreleased QoS 2 messages, with their answers.
        self._received: dict[int, Token] = {
            record.packet_id: acknowledgement(PUBREC, record.packet_id)
            for record in records
            if record.direction is _IN
        }

    # ---------------------------------------------------------------------- before MQTT 5.0

    def publish_with_care(self, packet: Publish, now_us: int) -> None:
        """Handle a PUBLISH of MQTT 3.1 or 3.1.1 that has QoS 2 or is to be retained.

        Raises: GatewayError, which that version cannot express: the connection ends unanswered.
        """
        connection = self._connection
        packet_id, qos = packet.packet_id, packet.qos
        token = acknowledgement(PUBLISH_ANSWERS[qos], packet_id) if qos else None
        if qos == 2 and packet_id in self._received:
            # Already known: answered again, not published again [MQTT-4.3.3-2]; after the first one's
            # batch, which may not be durable yet.
            connection.synchronize(token)
            return
        if qos == 2 and len(self._received) >= self._charged:
            self._charge()
        destination = DESTINATIONS[packet.topic]
        message = Message(
            destination,
            packet.body,
            (),
            now_us,
            0,
            PRIORITY_DEFAULT,
            qos > 0,
            qos,
            packet.retain and names.is_topic(destination),  # a queue keeps its messages anyway
            "mqtt",
            self._client_id,
        )
        connection.publish(message, token, None, self._record(packet_id) if qos == 2 else None)
        if qos == 2:
            self._received[packet_id] = token

    def _charge(self) -> None:
        """Report a changed number of packet ids to the broker. Raises: FlowControlError."""
        count = len(self._received) + _ID_STEP
        self._connection.holds(Held.PACKET_IDS, count * _ID_BYTES)
        self._charged = count

    def _record(self, packet_id: int) -> InflightRecord | None:
        if not self._is_persistent:
            return None
        return InflightRecord(self._session, _IN, packet_id, InflightState.RECEIVED)

    # ------------------------------------------------------------------------------- MQTT 5.0

    def publish(self, packet: Publish, now_us: int) -> None:
        """Handle a PUBLISH of MQTT 5.0; a refused one is answered with the reason.

        Raises: PeerProtocolError; RequestError when the connection has ended.
        """
        qos, packet_id, properties = packet.qos, packet.packet_id, packet.properties
        topic = packet.topic
        if properties is not NO_PROPERTIES and properties.topic_alias is not None:
            topic = self._resolve(topic, properties.topic_alias)
        token: bytearray | None = None
        record: InflightRecord | None = None
        duplicate_id = ""
        if qos:
            if qos == 2:
                if packet_id in self._received:  # [MQTT-4.3.3-10]
                    self._connection.synchronize(self._received[packet_id])
                    return
                record = self._record(packet_id)
            if self._is_counting:
                self._count()
            token = bytearray(acknowledgement(PUBLISH_ANSWERS[qos], packet_id))
        try:
            if qos == 2 and len(self._received) >= self._charged:
                self._charge()
            destination = DESTINATIONS[topic]
            if properties is NO_PROPERTIES and not packet.retain:
                message = Message(
                    destination,
                    packet.body,
                    (),
                    now_us,
                    0,
                    PRIORITY_DEFAULT,
                    qos > 0,
                    qos,
                    False,
                    "mqtt",
                    self._client_id,
                )
            else:
                message = self._message(packet, destination, now_us)
                if message.headers:
                    duplicate_id = _duplicate_id(message)
            published = self._connection.publish(message, token, None, record, duplicate_id)
            if not published and token is not None:
                token[1] = 3
                token += _NOBODY_TAIL
        except PeerProtocolError:
            raise
        except GatewayError as error:
            self._refuse(packet, error)
            return
        if qos == 2:
            self._received[packet_id] = token

    def _resolve(self, topic: str, alias: int) -> str:
        """Raises: PacketViolationError, FlowControlError."""
        if self._aliases is None:
            self._aliases = AliasesIn(
                self._options.topic_alias_max, partial(self._connection.holds, Held.ALIASES)
            )
        return self._aliases.resolve(topic, alias)

    def _message(self, packet: Publish, destination: str, now_us: int) -> Message:
        properties = packet.properties
        is_checked = self._options.payload_format_check
        if is_checked and not payload_matches_format(properties, packet.body):
            raise RefusedError(ReasonCode.PAYLOAD_FORMAT_INVALID, "the payload is not UTF-8")
        retain = packet.retain and names.is_topic(destination)  # a queue keeps its messages anyway
        return message_of(
            properties, destination, packet.body, now_us, packet.qos, retain, self._client_id
        )

    def _count(self) -> None:
        if self._unanswered_count >= self._options.receive_maximum:
            raise PacketViolationError(
                f"more than {self._options.receive_maximum} messages without an "
                "acknowledgement (receive_maximum)",
                "5.0:MQTT-3.3.4-7",
                ReasonCode.RECEIVE_MAXIMUM_EXCEEDED,
            )
        self._unanswered_count += 1

    def _refuse(self, packet: Publish, error: GatewayError) -> None:
        """Answer a PUBLISH that is not accepted; the connection continues."""
        reason = publish_reason(error)
        logger.log(
            self._log_level,
            "publish refused client=%s topic=%s reason=%s",
            self._client_id,
            packet.topic,
            error,
        )
        self._log_level = logging.DEBUG
        if packet.qos:
            answer = self._failure(packet.qos, packet.packet_id, reason, error.for_client)
            # After the answers to everything before it [MQTT-4.6.0-2] [MQTT-4.6.0-3].
            self._connection.synchronize(answer)

    def _failure(self, qos: int, packet_id: int, reason: ReasonCode, problem: str) -> bytes:
        if qos == 1:
            return self._answers.puback(packet_id, reason, problem)
        return self._answers.pubrec(packet_id, reason, problem)

    # ------------------------------------------------------------------------- large messages

    def begin_large(self, packet: Publish) -> Coming:
        """Check a PUBLISH whose body is still to come, in every version.

        Raises: PeerProtocolError; before MQTT 5.0 any GatewayError, which it cannot express.
        """
        qos, packet_id, properties = packet.qos, packet.packet_id, packet.properties
        topic = packet.topic
        if properties.topic_alias is not None:
            topic = self._resolve(topic, properties.topic_alias)
        if qos == 2 and packet_id in self._received:
            return Coming(packet, is_repeated=True)
        if qos and self._is_counting:
            self._count()
        try:
            if qos == 2 and len(self._received) >= self._charged:
                self._charge()
            destination = DESTINATIONS[topic]
            if packet.retain and names.is_topic(destination):
                raise RefusedError(
                    ReasonCode.QUOTA_EXCEEDED,
                    "the packet is larger than packet_bytes_max; a retained message "
                    "must fit, because it is kept in memory",
                )
            self._connection.check_publish(destination)
        except GatewayError as error:
            coming = Coming(packet)
            self.refuse_large(coming, error)
            return coming
        return Coming(packet, destination)

    def refuse_large(self, coming: Coming, error: GatewayError) -> None:
        """It cannot be published; the client is told once the body has arrived.

        Raises: *error*, if the MQTT version cannot express it.
        """
        if not self._answers.is_v5 or isinstance(error, PeerProtocolError):
            raise error
        coming.error = error

    def text_check(self, packet: Publish) -> TextCheck | None:
        """The check for its body; None: no check."""
        return text_check(packet.properties, is_wanted=self._options.payload_format_check)

    def end_large(self, coming: Coming, body: LargeBody | None, now_us: int) -> None:
        """All of a PUBLISH is here. body: its handle, None when it was not kept.

        Raises: as :meth:`publish`; before MQTT 5.0 any GatewayError.
        """
        packet = coming.packet
        qos, packet_id = packet.qos, packet.packet_id
        if coming.error is not None:
            self._refuse(packet, coming.error)
            return
        if coming.is_repeated:  # [MQTT-4.3.3-2] [MQTT-4.3.3-10]
            known = self._received.get(packet_id)
            if known is not None:
                self._connection.synchronize(known)
                return
        if body is None:
            self._refuse(
                packet,
                RequestError("the first message with this packet identifier was not published"),
            )
            return
        token: bytes | bytearray | None = None
        if qos:
            token = acknowledgement(PUBLISH_ANSWERS[qos], packet_id)
            if self._answers.is_v5:
                token = bytearray(token)
        message = message_of(
            packet.properties, coming.destination, b"", now_us, qos, False, self._client_id
        )
        message = msgspec.structs.replace(message, large=body)
        record = self._record(packet_id) if qos == 2 else None
        duplicate_id = _duplicate_id(message)
        try:
            published = self._connection.publish(message, token, None, record, duplicate_id)
        except GatewayError as error:
            self.refuse_large(coming, error)
            self._refuse(packet, error)
            return
        if not published and isinstance(token, bytearray):
            token[1] = 3
            token += _NOBODY_TAIL
        if qos == 2:
            self._received[packet_id] = token

    def failed(self, token: Token, error: GatewayError) -> bool:
        """A PUBLISH that the broker had accepted was not carried out after all.

        Returns: False when *token* is not an answer to a PUBLISH of MQTT 5.0.
        """
        if not isinstance(token, bytearray):
            return False
        packet_id = token[2] << 8 | token[3]
        qos = 1 if token[0] == _PUBACK_BYTE else 2
        # In place: the same answer may be waiting a second time, for a repetition of the PUBLISH.
        token[:] = self._failure(qos, packet_id, publish_reason(error), error.for_client)
        if qos == 2:
            # The id is free again [MQTT-4.3.3-9]: the next PUBLISH under it is another message.
            self._received.pop(packet_id, None)
        self.answered((token,))
        self._send(bytes(token))
        return True

    def pubrel(self, packet_id: int) -> None:
        """The client has forgotten the message, so we may too (MQTT section 4.3.3)."""
        is_known = self._received.pop(packet_id, None) is not None
        if len(self._received) < self._charged - 2 * _ID_STEP:
            self._charge()
        # In a resumed session this is an id whose PUBCOMP was lost with the connection. 0x92 would be
        # allowed ("not an error during recovery", MQTT 5.0 section 3.7.2.1), but clients such as MQTT.js
        # take it as a failed publish, and their users publish again.
        is_released = is_known or self._is_resumed
        complete = self._answers.pubcomp(packet_id, is_known=is_released)
        if self._is_persistent:
            # After PUBCOMP the id means another message: its old meaning must be durably removed.
            self._connection.record_inflight(remove=((_IN, packet_id),), token=complete)
        else:
            self.answered((complete,))
            self._send(complete)

    def answered(self, tokens: Sequence[Token]) -> None:
        """These answers are sent: the client may send as many more [MQTT-4.9.0-2]."""
        if not self._is_counting:
            return
        for token in tokens:
            if not isinstance(token, (bytes, bytearray)):
                continue
            first = token[0]
            if (
                first == _PUBACK_BYTE
                or (first == _PUBCOMP_BYTE and len(token) == 4)
                or (first == _PUBREC_BYTE and len(token) > 4 and token[4] >= 0x80)
            ):
                self._unanswered_count = max(0, self._unanswered_count - 1)


def _duplicate_id(message: Message) -> str:
    """The first user property of that name, "" when there is none."""
    for name, value in message.headers:
        if name == DUPLICATE_ID:
            return value
    return ""
