"""The exchange between one accepted client and the broker, from CONNACK to the end.

The session decides what ends it, and when; see ``session``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import final

from tidegate.spi import (
    PRIORITY_DEFAULT,
    ConnectResult,
    GatewayError,
    Message,
    StoredMessage,
    Token,
)
from tidegate_protocols.mqtt._answers import Answers
from tidegate_protocols.mqtt.codec.encode import PUBACK, acknowledgement
from tidegate_protocols.mqtt.codec.packets import (
    Event,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    Unsubscribe,
)
from tidegate_protocols.mqtt.messages.incoming import Incoming
from tidegate_protocols.mqtt.messages.names import DESTINATIONS
from tidegate_protocols.mqtt.messages.outgoing import Outgoing
from tidegate_protocols.mqtt.messages.subscriptions import Subscriptions
from tidegate_protocols.mqtt.messages.window import REFUSED, Window, refusal_of
from tidegate_protocols.mqtt.session.connect import Terms
from tidegate_protocols.mqtt.session.context import SessionContext

logger = logging.getLogger("tidegate.mqtt")


@final
class Conversation:
    """Both directions of one connected session, including what came back with it.

    Args: result: of the broker, not resumed yet; send: writes to the client, a LargeWire together with
        its body; expect_large: called before a LargeWire becomes a token.
    Attributes: connection: of the broker; incoming: what the client publishes.
    """

    __slots__ = (
        "_client_id",
        "_is_v5",
        "_outgoing",
        "_subscriptions",
        "_window",
        "connection",
        "incoming",
    )

    def __init__(
        self,
        context: SessionContext,
        terms: Terms,
        answers: Answers,
        result: ConnectResult,
        send: Callable[[bytes], None],
        expect_large: Callable[[], None] = lambda: None,
    ) -> None:
        options = context.options
        connection = self.connection = result.connection
        client_id = self._client_id = terms.client_id
        self._is_v5 = terms.is_v5
        # Also a resumed session that ends with this connection: until then it is persistent.
        is_persistent = terms.session_expiry > 0 or result.session_present
        subscriptions = self._subscriptions = Subscriptions(
            connection,
            answers,
            client_id,
            is_stored=is_persistent,
            subscriptions_max=options.subscriptions_max,
            prefetch_count=terms.window,
        )
        window = self._window = Window(
            connection,
            send,
            answers,
            client_id,
            session=result.session,
            is_persistent=is_persistent,
            size=terms.window,
        )
        self._outgoing = Outgoing(
            connection,
            send,
            window,
            context.runtime.now_us,
            client_id,
            identifiers=subscriptions.identifiers if terms.is_v5 else None,
            packet_bytes_max=answers.packet_bytes_max,
            topic_alias_max=terms.topic_alias_max,
            fan_out=context.fan_out_v5 if terms.is_v5 else context.fan_out,
            expect_large=expect_large,
        )
        self.incoming = Incoming(
            connection,
            send,
            answers,
            options,
            client_id,
            session=result.session,
            is_persistent=is_persistent,
            is_resumed=result.session_present,
            records=result.inflight,
        )
        subscriptions.restore(result.subscriptions, result.refused)
        window.restore(result.inflight, subscriptions.by_key)

    # ------------------------------------------------------------------------- from the client

    def receive(
        self, packets: Iterable[Event], now_us: int, control: Callable[[Event], bool]
    ) -> bool:
        """Handle packets in order. Call :meth:`settle` after the last ones of a step.

        Args:
            now_us: when they came, microseconds since the epoch.
            control: called for every packet but PUBLISH and PUBACK; False: no more for now.
        Returns: False when *control* did, and there may be more of *packets*.
        Raises: PeerProtocolError; any other GatewayError when something fails for which the version
            has no answer.
        """
        client_id = self._client_id
        incoming = self.incoming
        is_v5 = self._is_v5
        publish = self.connection.publish
        publish_v5 = incoming.publish
        puback = self._window.puback
        for packet in packets:
            if isinstance(packet, Publish):
                if is_v5:
                    publish_v5(packet, now_us)
                    continue
                qos = packet.qos
                if qos == 2 or packet.retain:
                    incoming.publish_with_care(packet, now_us)
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
                if is_v5 and packet.reason_code >= REFUSED:
                    puback(packet.packet_id, refusal_of(packet))
                else:
                    puback(packet.packet_id)
            elif not control(packet):
                return False
        return True

    def subscribe(self, packet: Subscribe | Unsubscribe) -> Iterator[None]:
        """Carry it out in steps. Raises: as receive."""
        if isinstance(packet, Subscribe):
            return self._subscriptions.subscribe(packet)
        return self._subscriptions.unsubscribe(packet, self._outgoing)

    def control(self, packet: Packet) -> None:
        """Handle one of the packets about messages in flight. Raises: as receive."""
        match packet:
            case Pubrel():
                self.incoming.pubrel(packet.packet_id)
            case Pubrec():
                self._window.pubrec(packet.packet_id, refusal_of(packet))
            case Pubcomp():
                self._window.pubcomp(packet.packet_id)
            case _:
                raise AssertionError(f"the table lets {packet!r} through")

    def settle(self) -> None:
        """Count what the client has acknowledged so far, which makes room for more."""
        self._outgoing.settle()

    # ------------------------------------------------------------------------- from the broker

    @property
    def is_subscribed(self) -> bool:
        """The client may be sent messages."""
        return bool(self._subscriptions.by_key)

    def confirmed(self, tokens: Sequence[Token]) -> None:
        """These answers are sent to the client now."""
        self.incoming.answered(tokens)
        self._outgoing.confirmed(tokens)

    def failed(self, token: Token, error: GatewayError) -> bool:
        """Answer what was not carried out. Returns: False when there is no answer to it."""
        return self.incoming.failed(token, error)

    def deliver(self, key: str, messages: Sequence[StoredMessage]) -> None:
        """Send messages of one subscription."""
        subscription = self._subscriptions.by_key.get(key)
        if subscription is not None:
            self._outgoing.deliver(subscription, messages)

    # ---------------------------------------------------------------------------------- the end

    def leave(
        self, *, graceful: bool, publish_will: bool, session_expiry: int | None, reason: str = ""
    ) -> None:
        """Leave the broker; see its ``disconnect``. Call once, last."""
        try:
            self._window.leave()  # what the client answered before it left counts
        except GatewayError as error:
            logger.debug("last acknowledgements lost client=%s reason=%s", self._client_id, error)
        self.connection.disconnect(
            graceful=graceful,
            publish_will=publish_will,
            session_expiry=session_expiry,
            unanswered=self._outgoing.unanswered(),
            reason=reason,
        )
