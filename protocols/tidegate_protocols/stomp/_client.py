"""A connected client: what its frames mean to the broker, and what the broker delivers to it.

Checks that need only the frame itself are made here; whether the moment is right for it is the
session's business. Errors are raised here and answered by the session.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, final

import msgspec

from tidegate.spi import (
    BrokerConnection,
    GatewayError,
    LargeBody,
    PeerProtocolError,
    RequestError,
    RetainHandling,
    StoredMessage,
    SubscribeRequest,
    names,
)
from tidegate_protocols._user_headers import DUPLICATE_ID
from tidegate_protocols.stomp._headers import (
    ack_mode,
    check_no_body,
    durable_name_in,
    is_true,
    prefetch,
    required,
    sequence_in,
)
from tidegate_protocols.stomp._options import StompOptions
from tidegate_protocols.stomp._subscriptions import AckMode, Subscription
from tidegate_protocols.stomp.codec.destinations import (
    canonical,
    temporary,
    to_publish,
    to_subscribe,
)
from tidegate_protocols.stomp.codec.encoder import MessageEncoder
from tidegate_protocols.stomp.codec.frames import ACK_RUN, AckRun, Frame, Version
from tidegate_protocols.stomp.codec.messages import message_of

#: Destination names whose canonical form a session caches; when full, the cache starts over.
_DESTINATIONS_REMEMBERED: Final = 256
#: Longer names are not cached: 256 of 64 KB for each connection would be 16 MB.
_REMEMBERED_LENGTH_MAX: Final = 256
#: Ids of ended browsing subscriptions whose UNSUBSCRIBE may still come.
_BROWSED_REMEMBERED: Final = 64


@final
class Client:
    """The frames of one connected client.

    Args:
        connection: the broker's side.
        version, client_id: as negotiated; options: of the listener.
        store_id: makes message ids unique for ever.

    Attributes:
        connection: as given.
        received_at: stamp for messages, microseconds since the epoch; the session sets it once
            for everything that came in one read.
        touched: subscriptions with collected acknowledgements, to be flushed by the session.
    """

    __slots__ = (
        "_browsed",
        "_by_key",
        "_by_number",
        "_client_id",
        "_destinations",
        "_make_temporary",
        "_message_id_prefix",
        "_numbers",
        "_options",
        "_transactions",
        "_version",
        "connection",
        "received_at",
        "touched",
    )

    def __init__(
        self,
        connection: BrokerConnection,
        *,
        version: Version,
        client_id: str,
        options: StompOptions,
        store_id: str,
    ) -> None:
        self.connection = connection
        self._version = version
        self._client_id = client_id
        self._options = options
        self._message_id_prefix = f"{store_id}-"
        self._make_temporary = connection.make_temporary
        self._browsed: frozenset[str] = frozenset()  # one object shared by most clients
        self._numbers = 0
        self._by_key: dict[str, Subscription] = {}
        self._by_number: dict[bytes, Subscription] = {}
        #: Open transactions, and what to restore when one is aborted.
        self._transactions: dict[str, list[tuple[Subscription, list[tuple[int, int]]]]] = {}
        self._destinations: dict[str, tuple[str, str]] = {}
        self.received_at = 0
        self.touched: list[Subscription] = []

    @property
    def is_subscribed(self) -> bool:
        """The client may be sent messages."""
        return bool(self._by_key)

    def deliver(self, key: str, messages: Sequence[StoredMessage]) -> bytes:
        """The MESSAGE frames for *messages*; b"" when the client has unsubscribed meanwhile.

        Raises: LargeBodyMetError: use :meth:`deliver_large`.
        """
        subscription = self._by_key.get(key)
        if subscription is None:
            return b""  # the broker puts them back
        if not messages:
            return self._end_browsing(subscription)
        subscription.delivered(messages)
        return subscription.encoder.encode(messages)

    def deliver_large(
        self, key: str, messages: Sequence[StoredMessage]
    ) -> Iterator[bytes | tuple[StoredMessage, bytes, LargeBody, bytes]]:
        """As :meth:`deliver`, when one of *messages* has a large body: frame by frame.

        Those with a large body come as the message, what precedes the body, the body, and what
        follows it. They are already in flight.
        """
        encoder = self._by_key[key].encoder
        for stored in messages:
            if stored.message.large is None:
                yield encoder.encode((stored,))
            else:
                yield stored, *encoder.encode_large(stored)

    def withdraw(self, key: str, sequence: int) -> None:
        """The message could not be written to the client."""
        subscription = self._by_key.get(key)
        if subscription is not None:
            subscription.withdraw(sequence)

    def _end_browsing(self, subscription: Subscription) -> bytes:
        """The last MESSAGE of an ended browsing subscription, marked as ActiveMQ does."""
        key = subscription.key
        self._forget(subscription)
        if len(self._browsed) >= _BROWSED_REMEMBERED:
            self._browsed = frozenset()
        self._browsed |= {key}
        message_id = f"{self._message_id_prefix}end-{secrets.token_hex(8)}"
        return subscription.encoder.end_of_browsing(message_id, subscription.destination)

    def _forget(self, subscription: Subscription) -> None:
        del self._by_key[subscription.key]
        del self._by_number[b"%d" % subscription.number]

    def check_large(self, frame: Frame) -> None:
        """Refuse a SEND whose body is still to come, as far as that is possible yet.

        Raises: PeerProtocolError, and what the broker's ``check_publish`` raises.
        """
        headers = frame.headers
        written = headers.get("destination")
        if written is None:
            raise PeerProtocolError("SEND needs a destination header")
        known = self._destinations.get(written)
        if known is None:
            known = self._remember(written, headers.get("destination-type", ""))
        transaction = headers.get("transaction")
        if transaction is not None and transaction not in self._transactions:
            raise RequestError(f"there is no open transaction {transaction!r}; send BEGIN first")
        self.connection.check_publish(known[0])

    def send(self, frame: Frame, large: LargeBody | None = None) -> None:
        """STOMP 1.2 "SEND". *large*: handle of its body, when it is not in the frame."""
        headers = frame.headers
        written = headers.pop("destination", None)
        if written is None:
            raise PeerProtocolError("SEND needs a destination header")
        receipt = headers.pop("receipt", None)
        transaction = headers.pop("transaction", None)
        headers.pop("content-length", None)
        try:
            known = self._destinations.get(written)
            if known is None:
                known = self._remember(written, headers.get("destination-type", ""))
            message = message_of(
                frame,
                known[0],
                known[1],
                self.received_at,
                self._client_id,
                self._make_temporary,
            )
            if large is not None:
                message = msgspec.structs.replace(message, large=large)
            if DUPLICATE_ID in headers:
                self.connection.publish(
                    message, receipt, transaction, duplicate_id=headers[DUPLICATE_ID]
                )
            else:
                self.connection.publish(message, receipt, transaction)
        except GatewayError:
            headers["destination"] = written  # the ERROR frame shows what was refused
            if transaction is not None:
                headers["transaction"] = transaction
            if receipt is not None:
                headers["receipt"] = receipt
            raise

    def _remember(self, written: str, routing_type: str) -> tuple[str, str]:
        """Canonical destination, and the name as written if we would write it differently."""
        own = temporary(written)
        destination = (
            to_publish(written, routing_type) if own is None else self._make_temporary(own)
        )
        if written.startswith(("/queue/", "/topic/")):
            known = (destination, "")
        else:
            known = (destination, written)
        if routing_type and own is None and canonical(written) is None:
            return known  # the next SEND to this name may state another type
        if len(written) > _REMEMBERED_LENGTH_MAX:
            return known
        if len(self._destinations) >= _DESTINATIONS_REMEMBERED:
            self._destinations.clear()
        self._destinations[written] = known
        return known

    def acknowledge_run(self, run: AckRun) -> None:
        """Plain ACKs of STOMP 1.2, the other half of the hot path."""
        last = run.ids[0][0]
        subscription = self._touch(self._numbered(last))
        for number, sequence in run.ids:
            if number != last:
                subscription = self._touch(self._numbered(number))
                last = number
            if subscription.is_individual:
                subscription.collected.append(int(sequence))
            else:
                subscription.collected += subscription.cover(int(sequence))

    def _touch(self, subscription: Subscription) -> Subscription:
        if not subscription.collected:
            self.touched.append(subscription)
        return subscription

    def flush_acknowledged(self) -> None:
        """Pass collected acknowledgements to the broker, one call per subscription."""
        connection = self.connection
        touched = self.touched
        while touched:
            subscription = touched.pop()
            sequences = subscription.collected
            subscription.collected = []
            if not sequences:
                continue
            try:
                connection.acknowledge(subscription.key, sequences)
            except RequestError:
                # One of them is not in flight, and nothing was done: those before it count.
                for sequence in sequences:
                    connection.acknowledge(subscription.key, (sequence,))

    def control(self, frame: Frame) -> None:
        """Any frame but SEND and plain ACKs."""
        check_no_body(frame, self._version)
        _CONTROLS[frame.command](self, frame)

    def subscribe(self, frame: Frame) -> None:
        """STOMP 1.2 "SUBSCRIBE"."""
        headers = frame.headers
        version = self._version
        written = required(frame, "destination")
        subscription_id = headers.get("id")
        if subscription_id is None and version is not Version.V1_0:
            raise PeerProtocolError(f"SUBSCRIBE needs an id header in STOMP {version.value}")
        key = written if subscription_id is None else subscription_id
        if key in self._by_key:
            raise PeerProtocolError(f"subscription {key!r} already exists on this connection")
        if len(self._by_key) >= self._options.subscriptions_max:
            raise RequestError(
                "this connection has reached the listener's limit of "
                f"{len(self._by_key)} subscriptions"
            )
        browse = is_true("browser", headers.get("browser", "false"))
        retained = is_true("retained", headers.get("retained", "false"))
        mode = ack_mode(headers.get("ack", "auto"))
        if browse:
            mode = AckMode.AUTO  # copies: there is nothing to acknowledge
        durable_name = durable_name_in(headers)
        own = temporary(written)
        if own is None:
            routing_type = headers.get("subscription-type") or headers.get("destination-type", "")
            destination = to_subscribe(written, routing_type)
        else:
            destination = self._make_temporary(own)
        if durable_name and not self._client_id:
            raise RequestError("a durable subscription needs a client-id header in CONNECT")
        if durable_name and not names.is_topic(destination):
            raise RequestError(
                "only a topic subscription can be durable; queues are durable anyway"
            )
        self._numbers += 1
        number = self._numbers
        names_acks = version is Version.V1_2 and mode is not AckMode.AUTO
        subscription = Subscription(
            key,
            number,
            mode,
            MessageEncoder(
                version,
                subscription_id,
                self._message_id_prefix,
                f"{number}-" if names_acks else "",
            ),
            destination=written,
            durable_name=durable_name,
            tracked=version is Version.V1_0,  # in 1.0 an ACK need not name the subscription
        )
        self._by_key[key] = subscription
        self._by_number[b"%d" % number] = subscription
        self.connection.subscribe(
            SubscribeRequest(
                key=key,
                destination=destination,
                acknowledge=mode is not AckMode.AUTO,
                durable_name=durable_name,
                prefetch_count=prefetch(frame),
                browse=browse,
                retain_handling=RetainHandling.SEND if retained else RetainHandling.DO_NOT_SEND,
                selector=headers.get("selector", ""),
            ),
            headers.get("receipt"),
        )

    def unsubscribe(self, frame: Frame) -> None:
        """STOMP 1.2 "UNSUBSCRIBE"; with a durable name the subscription is also forgotten."""
        headers = frame.headers
        key = headers.get("id")
        if key is None and self._version is Version.V1_0:
            key = headers.get("destination")
        if key is None:
            raise PeerProtocolError("UNSUBSCRIBE needs an id header")
        subscription = self._by_key.get(key)
        if subscription is None and key in self._browsed:
            self.connection.unsubscribe(key, headers.get("receipt"))
            return
        if subscription is None:
            raise RequestError(f"there is no subscription {key!r} on this connection")
        durable_name = durable_name_in(headers)
        if durable_name and durable_name != subscription.durable_name:
            raise RequestError(
                f"subscription {key!r} is not the durable subscription {durable_name!r}"
            )
        self._forget(subscription)
        self.connection.unsubscribe(key, headers.get("receipt"), forget=bool(durable_name))

    def acknowledge(self, frame: Frame) -> None:
        """STOMP 1.2 "ACK"."""
        subscription, sequence = self._acknowledged(frame)
        receipt = frame.headers.get("receipt")
        transaction = frame.headers.get("transaction")
        if receipt is None and transaction is None:
            self._touch(subscription)
            subscription.collected += subscription.cover(sequence)
            return
        self.flush_acknowledged()
        covered = self._cover(subscription, sequence, transaction)
        self.connection.acknowledge(subscription.key, covered, receipt, transaction)

    def reject(self, frame: Frame) -> None:
        """STOMP 1.2 "NACK": the opposite of ACK, and cumulative like it."""
        if self._version is Version.V1_0:
            raise PeerProtocolError("STOMP 1.0 has no NACK")
        self.flush_acknowledged()
        subscription, sequence = self._acknowledged(frame)
        transaction = frame.headers.get("transaction")
        covered = self._cover(subscription, sequence, transaction)
        self.connection.reject(subscription.key, covered, frame.headers.get("receipt"), transaction)

    def _cover(
        self, subscription: Subscription, sequence: int, transaction: str | None
    ) -> list[int]:
        covered = subscription.cover_with_places(sequence)
        if transaction is not None:
            if transaction not in self._transactions:
                raise RequestError(f"there is no open transaction {transaction!r}")
            self._transactions[transaction].append((subscription, covered))
        return [sequence for sequence, _ in covered]

    def _acknowledged(self, frame: Frame) -> tuple[Subscription, int]:
        """The message that an ACK or NACK refers to, by the rules of the version."""
        if self._version is Version.V1_2:
            ack_id = required(frame, "id")
            number, _, sequence = ack_id.partition("-")
            return self._numbered(number.encode()), sequence_in(sequence, ack_id)
        message_id = required(frame, "message-id")
        if not message_id.startswith(self._message_id_prefix):
            raise PeerProtocolError(
                f"message-id {message_id[:80]!r} does not come from this gateway"
            )
        sequence = sequence_in(message_id[len(self._message_id_prefix) :], message_id)
        key = frame.headers.get("subscription")
        if key is None and self._version is Version.V1_0:
            for subscription in self._by_key.values():
                if subscription.holds(sequence):
                    return subscription, sequence
            raise PeerProtocolError(f"message-id {message_id!r} is not in flight")
        if key is None:
            raise PeerProtocolError(f"{frame.command} needs a subscription header in STOMP 1.1")
        subscription = self._by_key.get(key)
        if subscription is None:
            raise PeerProtocolError(f"there is no subscription {key!r} on this connection")
        return subscription, sequence

    def _numbered(self, number: bytes) -> Subscription:
        subscription = self._by_number.get(number)
        if subscription is None:
            raise PeerProtocolError(
                f"the ack id begins with {number.decode()[:20]!r}, which is not a "
                "subscription of this connection; use the value of the MESSAGE frame's "
                "ack header"
            )
        return subscription

    def begin(self, frame: Frame) -> None:
        """STOMP 1.2 "BEGIN"."""
        transaction = required(frame, "transaction")
        if len(self._transactions) >= self._options.transactions_max:
            raise RequestError(
                "this connection has reached the listener's limit of "
                f"{len(self._transactions)} open transactions"
            )
        connection = self.connection
        connection.begin(transaction)
        self._transactions[transaction] = []
        receipt = frame.headers.get("receipt")
        if receipt is not None:
            connection.synchronize(receipt)

    def commit(self, frame: Frame) -> None:
        """STOMP 1.2 "COMMIT"."""
        transaction = required(frame, "transaction")
        self.connection.commit(transaction, frame.headers.get("receipt"))
        self._transactions.pop(transaction, None)

    def abort(self, frame: Frame) -> None:
        """STOMP 1.2 "ABORT"."""
        transaction = required(frame, "transaction")
        self.connection.abort(transaction, frame.headers.get("receipt"))
        for subscription, covered in self._transactions.pop(transaction, ()):
            subscription.restore(covered)


_CONTROLS: Final[Mapping[str, Callable[[Client, Frame], None]]] = {
    "ABORT": Client.abort,
    "ACK": Client.acknowledge,
    "BEGIN": Client.begin,
    "COMMIT": Client.commit,
    "NACK": Client.reject,
    "SUBSCRIBE": Client.subscribe,
    "UNSUBSCRIBE": Client.unsubscribe,
}
#: What to do with each frame that a connected client may send, except DISCONNECT.
ACTIONS: Final[Mapping[str, Callable[[Client, Any], None]]] = {
    **dict.fromkeys(_CONTROLS, Client.control),
    "SEND": Client.send,
    ACK_RUN: Client.acknowledge_run,
}
