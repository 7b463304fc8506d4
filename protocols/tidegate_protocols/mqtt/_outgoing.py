"""What a session sends to its client: packet ids, the in-flight window, QoS 1 and 2 towards it.

The rules are those of MQTT 3.1.1 sections 4.3 (QoS), 4.4 (resending) and 4.6 (order). What must
survive the process is stored before the client sees it:

1. A QoS 2 PUBLISH leaves only after its packet id is durable as PUBLISHED. Otherwise a crash would
   forget the id, the client would not, and the message would come again under a new one.
2. PUBREC acknowledges the message and turns the id to RELEASED in the same batch; PUBREL leaves
   after that. Otherwise a crash between the two would publish again what the client has released.
3. PUBCOMP removes the id.

QoS 1 ids need no store: a PUBLISH that comes again under another id is allowed there.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from itertools import islice
from typing import Final, TypeAlias, final

from tidegate.spi import (
    BrokerConnection,
    InflightDirection,
    InflightRecord,
    InflightState,
    LocalProtocolError,
    RequestError,
    StoredMessage,
)
from tidegate_protocols.mqtt._codes import PacketViolationError
from tidegate_protocols.mqtt._encode import (
    PUBREL,
    REMAINING_LENGTH_MAX,
    acknowledgement,
    fixed_header,
)
from tidegate_protocols.mqtt._names import TOPIC_FIELDS

logger = logging.getLogger("tidegate.mqtt")

PACKET_ID_MAX: Final = 65_535

# Where a packet id stands. Plain integers: they are compared for every PUBACK.
_RESERVED: Final = 0  # was in flight on an earlier connection; the broker has yet to bring it back
_QOS_1: Final = 1  # PUBLISH sent, PUBACK awaited
_QOS_2: Final = 2  # PUBLISH sent or about to be, PUBREC awaited
_RELEASED: Final = 3  # PUBREL sent or about to be, PUBCOMP awaited

_OUT: Final = InflightDirection.OUT


@final
class OutgoingSubscription:
    """A subscription as the sending side sees it.

    Attributes:
        key: the topic filter.
        qos: highest QoS granted.
        is_storable: it belongs to the persistent session and will be there on the next connection.
        is_active: False once it was unsubscribed; what is in flight is then only completed
            [MQTT-3.10.4-3].
        acknowledged: sequences whose PUBACK came and that the broker was not told of yet.
    """

    __slots__ = ("acknowledged", "is_active", "is_storable", "key", "qos")

    def __init__(self, key: str, qos: int, *, is_storable: bool) -> None:
        self.key = key
        self.qos = qos
        self.is_storable = is_storable
        self.is_active = True
        self.acknowledged: list[int] = []


_Entry: TypeAlias = tuple[OutgoingSubscription, int, int]  # subscription, sequence, stage


def _nobody() -> OutgoingSubscription:
    """Stands in the table for ids whose message is not in flight on this connection."""
    subscription = OutgoingSubscription("", 0, is_storable=False)
    subscription.is_active = False
    return subscription


_NOBODY: Final = _nobody()


@final
class Outgoing:
    """The sending side of one connected session.

    Args:
        connection: of the broker.
        send: writes to the client.
        is_persistent: the session outlives the connection, so its QoS 2 ids are stored.
        inflight_max: packet ids in use at a time, 1 to 65535; messages beyond wait here.
    """

    def __init__(
        self,
        connection: BrokerConnection,
        send: Callable[[bytes], None],
        client_id: str,
        *,
        is_persistent: bool,
        inflight_max: int,
    ) -> None:
        self._connection = connection
        self._send = send
        self._client_id = client_id
        self._is_persistent = is_persistent
        self._inflight_max = inflight_max
        self._inflight: dict[int, _Entry] = {}
        self._last_packet_id = 0
        # (subscription, sequence) of what was in flight before, with its packet id.
        self._originals: dict[tuple[str, int], int] = {}
        self._resent: set[int] = set()  # QoS 1 ids that were resent and may be in the store
        # What the window has no room for: (subscription, messages, index of the first unsent).
        self._waiting: deque[tuple[OutgoingSubscription, Sequence[StoredMessage], int]] = deque()
        self._touched: list[OutgoingSubscription] = []

    @property
    def inflight_count(self) -> int:
        """Packet ids in use."""
        return len(self._inflight)

    # ------------------------------------------------------------------------- sending

    def deliver(
        self, subscription: OutgoingSubscription, messages: Sequence[StoredMessage]
    ) -> None:
        """Send messages of one subscription, in order, as far as the window allows."""
        if self._waiting and subscription.qos:
            self._waiting.append((subscription, messages, 0))
            return
        sent = self._write(subscription, messages, 0)
        if sent < len(messages):
            self._waiting.append((subscription, messages, sent))

    def _write(
        self, subscription: OutgoingSubscription, messages: Sequence[StoredMessage], start: int
    ) -> int:
        """Encode and send from *start* on; return the index of the first message without room."""
        inflight = self._inflight
        originals = self._originals
        limit = min(PACKET_ID_MAX, self._inflight_max + len(originals))
        last_packet_id = self._last_packet_id
        qos_max = subscription.qos
        now: list[bytes] = []  # can be sent
        later: list[bytes] = []  # may be sent when *records* are durable
        records: list[InflightRecord] = []
        index = start
        for stored in islice(messages, start, None) if start else messages:
            message = stored.message
            body = message.body
            qos = message.qos
            if qos > qos_max:
                qos = qos_max  # the smaller of the two (MQTT 3.1.1 section 3.8.4)
            if qos and len(inflight) >= limit:
                break
            index += 1
            try:
                topic = TOPIC_FIELDS[message.destination]
                length = len(topic) + len(body) + 2
                if length > REMAINING_LENGTH_MAX:
                    raise LocalProtocolError(f"{length} bytes are longer than MQTT can say")
            except LocalProtocolError as error:
                self._give_back(subscription, stored, qos, error)
                continue
            # RETAIN says "this was retained": the broker set it so [MQTT-3.3.1-8] [MQTT-3.3.1-9].
            first = 0x30 | qos << 1 | message.retain
            if not qos:
                # DUP stays 0 [MQTT-3.3.1-2]; no packet id [MQTT-2.3.1-5]; never in flight.
                now += (fixed_header(first, length - 2), topic, body)
                continue
            sequence = stored.sequence
            known = originals.pop((subscription.key, sequence), 0) if originals else 0
            if known:
                packet_id = known  # again under its own id [MQTT-4.4.0-1]
                first |= 0x08  # [MQTT-3.3.1-1]
            else:
                packet_id = last_packet_id % PACKET_ID_MAX + 1
                while packet_id in inflight:  # one that is not in use [MQTT-2.3.1-4]
                    packet_id = packet_id % PACKET_ID_MAX + 1
                last_packet_id = packet_id
                if stored.delivery_count:
                    first |= 0x08
            inflight[packet_id] = (subscription, sequence, qos)
            pieces = (fixed_header(first, length), topic, packet_id.to_bytes(2, "big"), body)
            if qos == 1:
                now += pieces
                if known:
                    self._resent.add(packet_id)
            elif self._is_persistent and not known:
                records.append(
                    InflightRecord(
                        self._client_id,
                        _OUT,
                        packet_id,
                        InflightState.PUBLISHED,
                        subscription.key,
                        sequence,
                    )
                )
                later += pieces
            elif later:
                later += pieces  # QoS 2 messages keep their order [MQTT-4.6.0-6]
            else:
                now += pieces
        self._last_packet_id = last_packet_id
        if now:
            self._send(b"".join(now))
        if later:
            self._connection.record_inflight(put=records, token=b"".join(later))
        return index

    def _give_back(
        self,
        subscription: OutgoingSubscription,
        stored: StoredMessage,
        qos: int,
        error: LocalProtocolError,
    ) -> None:
        """A message from another protocol that MQTT cannot carry: the broker's policy decides."""
        logger.warning(
            "message cannot be sent over mqtt client=%s sequence=%d reason=%s",
            self._client_id,
            stored.sequence,
            error,
        )
        if qos:
            self._connection.reject(subscription.key, (stored.sequence,))

    # ------------------------------------------------------------------------- answers

    def puback(self, packet_id: int) -> None:
        """The client has a QoS 1 message [MQTT-4.3.2-1]. Raises: PacketViolationError."""
        entry = self._inflight.pop(packet_id, None)
        if entry is None:
            return  # a second answer to a PUBLISH that was sent twice
        subscription, sequence, stage = entry
        if stage != _QOS_1:
            self._inflight[packet_id] = entry
            _check(stage == _RESERVED, "PUBACK", packet_id)
            return
        if self._resent and packet_id in self._resent:
            self._resent.discard(packet_id)
            self._connection.record_inflight(remove=((_OUT, packet_id),))
        acknowledged = subscription.acknowledged
        if not acknowledged:
            self._touched.append(subscription)
        acknowledged.append(sequence)

    def pubrec(self, packet_id: int) -> None:
        """The client has a QoS 2 message [MQTT-4.3.3-1]. Raises: PacketViolationError."""
        entry = self._inflight.get(packet_id)
        release = acknowledgement(PUBREL, packet_id)
        if entry is None:
            # Left over from a session that is gone: the client waits for a PUBREL all the same.
            self._send(release)
            return
        subscription, sequence, stage = entry
        if stage == _RELEASED:
            self._connection.synchronize(release)  # the first one is perhaps not durable yet
            return
        if stage != _QOS_2:
            _check(stage == _RESERVED, "PUBREC", packet_id)
            return
        self._inflight[packet_id] = (_NOBODY, 0, _RELEASED)
        record = None
        if self._is_persistent:
            record = InflightRecord(self._client_id, _OUT, packet_id, InflightState.RELEASED)
        if subscription.is_active:
            try:
                self._connection.acknowledge(
                    subscription.key, (sequence,), token=release, inflight=record
                )
                return
            except RequestError as error:
                self._log_not_in_flight(subscription, error)
        if record is not None:
            self._connection.record_inflight(put=(record,), token=release)
        else:
            self._send(release)

    def pubcomp(self, packet_id: int) -> None:
        """The packet id is free again. Raises: PacketViolationError."""
        entry = self._inflight.get(packet_id)
        if entry is None:
            return
        if entry[2] != _RELEASED:
            _check(entry[2] == _RESERVED, "PUBCOMP", packet_id)
            return
        del self._inflight[packet_id]
        if self._is_persistent:
            self._connection.record_inflight(remove=((_OUT, packet_id),))

    def settle(self) -> None:
        """Tell the broker of all PUBACKs since the last call, then use the room they made."""
        if self._touched:
            self.acknowledge_received()
        waiting = self._waiting
        while waiting:
            subscription, messages, start = waiting.popleft()
            sent = self._write(subscription, messages, start)
            if sent < len(messages):
                waiting.appendleft((subscription, messages, sent))
                return

    def acknowledge_received(self) -> None:
        """The first half of :meth:`settle`, for a connection that is ending."""
        for subscription in self._touched:
            sequences = subscription.acknowledged
            subscription.acknowledged = []
            if subscription.is_active:
                self._acknowledge(subscription, sequences)
        self._touched.clear()

    def _acknowledge(self, subscription: OutgoingSubscription, sequences: list[int]) -> None:
        try:
            self._connection.acknowledge(subscription.key, sequences)
        except RequestError as error:
            # All or nothing: one message that left the list otherwise (purged, expired) must not
            # keep the others in flight.
            self._log_not_in_flight(subscription, error)
            if len(sequences) > 1:
                for sequence in sequences:
                    self._acknowledge(subscription, [sequence])

    def _log_not_in_flight(self, subscription: OutgoingSubscription, error: RequestError) -> None:
        logger.debug(
            "acknowledgement without a message client=%s filter=%s reason=%s",
            self._client_id,
            subscription.key,
            error,
        )

    # --------------------------------------------------------------- subscriptions and sessions

    def remove(self, subscription: OutgoingSubscription) -> None:
        """The subscription ended: what waits is the broker's again, what was sent is completed."""
        subscription.is_active = False
        self._waiting = deque(item for item in self._waiting if item[0] is not subscription)

    def restore(self, records: Sequence[InflightRecord], restored: Collection[str]) -> None:
        """Take up packet ids of earlier connections, before anything is delivered.

        Args: records: of the session; restored: its subscriptions that are there again.
        """
        for record in records:
            if record.direction is not _OUT:
                continue
            packet_id = record.packet_id
            if record.state is InflightState.RELEASED:
                self._inflight[packet_id] = (_NOBODY, 0, _RELEASED)
                self._send(acknowledgement(PUBREL, packet_id))  # [MQTT-4.4.0-1]
            elif record.subscription in restored:
                self._inflight[packet_id] = (_NOBODY, record.sequence, _RESERVED)
                self._originals[record.subscription, record.sequence] = packet_id
            else:
                # QoS 2 from a queue, which gives its message to anyone now: complete the id, so
                # that the client does not take the next message under it for a repetition.
                self._inflight[packet_id] = (_NOBODY, 0, _RELEASED)
                released = InflightRecord(self._client_id, _OUT, packet_id, InflightState.RELEASED)
                release = acknowledgement(PUBREL, packet_id)
                self._connection.record_inflight(put=(released,), token=release)

    def detached(self) -> list[InflightRecord]:
        """QoS 1 packet ids that the next connection of the session should use again."""
        if not self._is_persistent:
            return []
        found = [
            (packet_id, subscription.key, sequence)
            for packet_id, (subscription, sequence, stage) in self._inflight.items()
            if stage == _QOS_1 and subscription.is_active and subscription.is_storable
        ]
        found += [(packet_id, *original) for original, packet_id in self._originals.items()]
        return [
            InflightRecord(
                self._client_id, _OUT, packet_id, InflightState.PUBLISHED, subscription, sequence
            )
            for packet_id, subscription, sequence in found
        ]


def _check(is_allowed: bool, name: str, packet_id: int) -> None:
    """An answer to a resent PUBLISH may come before it was resent; any other is a violation."""
    if not is_allowed:
        raise PacketViolationError(
            f"{name} for packet identifier {packet_id}, which does not wait for it",
            "MQTT-2.3.1-6",
        )
