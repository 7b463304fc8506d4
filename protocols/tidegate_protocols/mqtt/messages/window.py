"""Packet ids towards a client: which are in use, for what, and what each answer does to them.

The rules are those of MQTT sections 4.3 (QoS), 4.4 (resending) and 4.9 (flow control). For a
session that outlives its connection the ids are in the store:

1. A QoS 2 PUBLISH leaves only after its packet id is durable as PUBLISHED. Otherwise a crash would
   lose the id, but the client would keep it, and the message would come again under a new one.
2. PUBREC acknowledges the message and changes the id to RELEASED in the same batch; PUBREL leaves
   after that. Otherwise a crash between the two would republish what the client has released.
3. PUBCOMP removes the id.
QoS 1 does not wait for the store, and recording each id would double the cost of such a message. So
its id is derived from the message's sequence, which never changes: when resent, the message gets the
same id [MQTT-4.4.0-1] without any record. Only when that id is in use by another message (two
sequences 65,535 apart, in flight at the same time) is the substitute recorded, and removed together
with the acknowledgement. While the client is connected the store also knows the highest sequence that
was sent: what comes again after a crash and is not above it may have been sent before and is marked
DUP. If a machine crash loses that, only the mark is lost.

A message of a queue or a group goes to another member when this one is gone. Only a QoS 2 message of
a shared subscription that was sent stays with the client: its id is stored, and the broker is told of
it when the connection ends [MQTT-4.8.2-4].
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Final, TypeAlias, final

from tidegate.spi import (
    BrokerConnection,
    InflightDirection,
    InflightRecord,
    InflightState,
    RequestError,
)
from tidegate_protocols.mqtt._answers import Answers
from tidegate_protocols.mqtt.codec.codes import PacketViolationError
from tidegate_protocols.mqtt.codec.encode import PUBREL, acknowledgement
from tidegate_protocols.mqtt.codec.packets import Puback, Pubrec

logger = logging.getLogger("tidegate.mqtt")

PACKET_ID_MAX: Final = 65_535

#: Half of all packet ids.
NO_LOCAL_ID_OFFSET: Final = 32_768

#: No packet has this id: in the store it stands for all QoS 1 messages that were sent.
SENT_THROUGH_ID: Final = 0

# States of a packet id. Plain integers: they are compared for every PUBACK.
RESERVED: Final = 0  # was in flight on an earlier connection; the broker has yet to bring it back
QOS_1: Final = 1  # PUBLISH sent, PUBACK awaited
QOS_2: Final = 2  # PUBLISH sent or about to be, PUBREC awaited
RELEASED: Final = 3  # PUBREL sent or about to be, PUBCOMP awaited

_OUT: Final = InflightDirection.OUT
_PUBLISHED: Final = InflightState.PUBLISHED
REFUSED: Final = 0x80  # reason codes from this one on

#: Characters kept of a client's reason for a refusal.
_REFUSAL_LENGTH_MAX: Final = 512


def refusal_of(packet: Puback | Pubrec) -> str:
    """Why the client refuses the message for good, in words; "" when it does not."""
    code = packet.reason_code
    if code < REFUSED:
        return ""
    words = f"0x{code:02X} {code.name.lower().replace('_', ' ')}"
    said = packet.properties.reason_string
    return f"{words}: {said[:_REFUSAL_LENGTH_MAX]}" if said else words


@final
class OutgoingSubscription:
    """A subscription as the sending side sees it.

    Attributes:
        key: the topic filter as the client wrote it.
        qos: highest QoS granted.
        is_own: no other client consumes from its list (neither queue nor shared).
        comes_back: QoS 1 messages are resent to this client on any later connection.
        records_qos_2: packet ids of QoS 2 messages are stored.
        id_offset: where its packet ids begin in a session that stays. Subscriptions that get copies of
            the same messages (groups; with no local) have offsets far apart, or the second copy would
            search for a free id among all those used by the first.
        is_active: False once it was unsubscribed; what is in flight is then only completed
            [MQTT-3.10.4-3].
        retain_as_published: RETAIN is passed on as the publisher set it [MQTT-3.3.1-12].
        identifier: the Subscription Identifier, 0 for none.
        filter_name: canonical NAME of what it matches; no_local: as in the SUBSCRIBE.
        acknowledged: sequences whose PUBACK came but was not yet reported to the broker.
        originals: packet ids, by sequence, of what was in flight on an earlier connection.
    """

    __slots__ = (
        "acknowledged",
        "comes_back",
        "filter_name",
        "id_offset",
        "identifier",
        "is_active",
        "is_own",
        "key",
        "no_local",
        "originals",
        "qos",
        "records_qos_2",
        "retain_as_published",
    )

    def __init__(
        self,
        key: str,
        qos: int,
        *,
        is_own: bool,
        is_stored: bool,
        filter_name: str = "",
        no_local: bool = False,
        retain_as_published: bool = False,
        identifier: int = 0,
    ) -> None:
        self.key = key
        self.qos = qos
        self.is_own = is_own
        self.comes_back = is_stored and is_own
        self.records_qos_2 = is_stored
        self.id_offset = NO_LOCAL_ID_OFFSET * no_local if is_own else zlib.crc32(key.encode())
        self.is_active = True
        self.filter_name = filter_name
        self.no_local = no_local
        self.retain_as_published = retain_as_published
        self.identifier = identifier
        self.acknowledged: list[int] = []
        self.originals: dict[int, int] = {}


#: Subscription, sequence (for a reserved id: its QoS, 0 when unknown), stage.
Entry: TypeAlias = tuple[OutgoingSubscription, int, int]


def _nobody() -> OutgoingSubscription:
    """Stands in the table for ids whose message is not in flight on this connection."""
    subscription = OutgoingSubscription("", 0, is_own=False, is_stored=False)
    subscription.is_active = False
    return subscription


_NOBODY: Final = _nobody()


@final
class Window:
    """The packet ids of one connected session.

    Args:
        send: writes to the client.
        is_persistent: the session is in the store.
        size: messages that may be in flight at a time, 1 to 65535 [MQTT-3.3.4-9].

    Attributes:
        inflight: what each id in use stands for.
        last_packet_id: the newest one given, 0 for none.
        sent_before: messages up to this sequence may have been sent before a crash.
    """

    __slots__ = (
        "_answers",
        "_client_id",
        "_connection",
        "_other_id",
        "_recorded",
        "_removals",
        "_reserved_count",
        "_send",
        "_sent_through",
        "_session",
        "_size",
        "_touched",
        "inflight",
        "is_persistent",
        "last_packet_id",
        "sent_before",
    )

    def __init__(
        self,
        connection: BrokerConnection,
        send: Callable[[bytes], None],
        answers: Answers,
        client_id: str,
        *,
        session: str,
        is_persistent: bool,
        size: int,
    ) -> None:
        self._connection = connection
        self._send = send
        self._answers = answers
        self._client_id = client_id
        self._session = session
        self._size = size
        self._reserved_count = 0
        self.last_packet_id: int = 0
        self._other_id = 0  # the newest substitute for an id in use, 0 for none
        self._touched: list[OutgoingSubscription] = []
        self._removals: list[tuple[InflightDirection, int]] = []
        # QoS 1 ids that are in the store; a dict, because an empty set takes three times as much.
        self._recorded: dict[int, None] = {}
        self._sent_through = 0  # highest sequence sent with QoS 1 that the store knows
        self.inflight: dict[int, Entry] = {}
        self.sent_before = 0
        self.is_persistent = is_persistent

    @property
    def limit(self) -> int:
        """How many ids may be in use, including reserved ones, whose messages are not in flight."""
        return min(PACKET_ID_MAX, self._size + self._reserved_count)

    def other_id(self, wanted_id: int) -> int:
        """An unused id [MQTT-2.3.1-4], in place of *wanted_id*, which is in use.

        Where the ids of two subscriptions meet, thousands in a row are in use: the search continues
        where the last one ended. Starting from *wanted_id*, each search would pass all of them again,
        and a window of 40,000 messages would keep everybody waiting for half a minute.
        """
        packet_id = self._other_id or wanted_id
        inflight = self.inflight
        while packet_id in inflight:
            packet_id = packet_id % PACKET_ID_MAX + 1
        self._other_id = packet_id
        return packet_id

    def take_original(self, subscription: OutgoingSubscription, sequence: int) -> int:
        """The recorded id under which the client may already know the message; 0: there is none."""
        packet_id = subscription.originals.pop(sequence, 0)
        if packet_id:
            self._reserved_count -= 1
            self._recorded[packet_id] = None
        return packet_id

    def record(
        self, subscription: OutgoingSubscription, sequence: int, packet_id: int, qos: int
    ) -> InflightRecord:
        """The store's record of a PUBLISH whose id does not follow from its sequence."""
        if qos == 1:
            self._recorded[packet_id] = None
        return InflightRecord(
            self._session, _OUT, packet_id, _PUBLISHED, subscription.key, sequence, qos
        )

    def sent_through(self, sequence: int) -> InflightRecord | None:
        """The store's record after QoS 1 messages up to *sequence* were sent."""
        if sequence <= self._sent_through:
            return None
        self._sent_through = sequence
        return InflightRecord(self._session, _OUT, SENT_THROUGH_ID, _PUBLISHED, "", sequence)

    def consume(self, subscription: OutgoingSubscription, sequence: int) -> None:
        """Count a message as acknowledged by the client; see :meth:`acknowledge_received`."""
        if not subscription.acknowledged:
            self._touched.append(subscription)
        subscription.acknowledged.append(sequence)

    # ------------------------------------------------------------------------- answers

    def puback(self, packet_id: int, refusal: str = "") -> None:
        """The client has a QoS 1 message [MQTT-4.3.2-1], or refused it, which ends it as well
        [MQTT-4.4.0-2]. Args: refusal: see :func:`refusal_of`. Raises: PacketViolationError."""
        entry = self.inflight.pop(packet_id, None)
        if entry is None:
            return  # a second answer to a PUBLISH that was sent twice
        subscription, sequence, stage = entry
        if stage != QOS_1:
            self.inflight[packet_id] = entry
            _check(stage == RESERVED, "PUBACK", packet_id)
            return
        if self._recorded and packet_id in self._recorded:
            del self._recorded[packet_id]
            self._removals.append((_OUT, packet_id))
        if refusal:
            self._refuse(subscription, sequence, refusal)
            return
        acknowledged = subscription.acknowledged
        if not acknowledged:
            self._touched.append(subscription)
        acknowledged.append(sequence)

    def pubrec(self, packet_id: int, refusal: str = "") -> None:
        """The client has a QoS 2 message [MQTT-4.3.3-1], or refused it.

        Args: refusal: see :func:`refusal_of`. Raises: PacketViolationError.
        """
        entry = self.inflight.get(packet_id)
        if entry is None:
            if not refusal:
                # Left over from a session that is gone: the client waits for a PUBREL anyway.
                self._send(self._answers.pubrel(packet_id, is_known=False))
            return
        subscription, sequence, stage = entry
        release = acknowledgement(PUBREL, packet_id)
        if stage == RELEASED and not refusal:
            self._connection.synchronize(release)  # the first one may not be durable yet
            return
        if stage != QOS_2:
            _check(stage == RESERVED, "PUBREC", packet_id)
            return
        if refusal:  # no PUBREL follows, the message is done with [MQTT-4.3.3-4]
            del self.inflight[packet_id]
            if self.is_persistent:
                self._removals.append((_OUT, packet_id))
            self._refuse(subscription, sequence, refusal)
            return
        self.inflight[packet_id] = (_NOBODY, 0, RELEASED)
        record = None
        if self.is_persistent:
            record = InflightRecord(self._session, _OUT, packet_id, InflightState.RELEASED)
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

    def _refuse(self, subscription: OutgoingSubscription, sequence: int, refusal: str) -> None:
        if subscription.is_active:
            try:
                self._connection.refuse(subscription.key, (sequence,), refusal)
            except RequestError as error:
                self._log_not_in_flight(subscription, error)

    def pubcomp(self, packet_id: int) -> None:
        """The packet id is free again. Raises: PacketViolationError."""
        entry = self.inflight.get(packet_id)
        if entry is None:
            return
        if entry[2] != RELEASED:
            _check(entry[2] == RESERVED, "PUBCOMP", packet_id)
            return
        del self.inflight[packet_id]
        if self.is_persistent:
            self._connection.record_inflight(remove=((_OUT, packet_id),))

    def acknowledge_received(self) -> None:
        """Tell the broker what was consumed since the last call."""
        touched = self._touched
        if touched:
            self._touched = []
            for subscription in touched:
                sequences = subscription.acknowledged
                subscription.acknowledged = []
                if subscription.is_active:
                    self._acknowledge(subscription, sequences)
        removals = self._removals
        if removals:
            self._removals = []
            self._connection.record_inflight(remove=removals)

    def _acknowledge(self, subscription: OutgoingSubscription, sequences: list[int]) -> None:
        try:
            self._connection.acknowledge(subscription.key, sequences)
        except RequestError as error:
            # All or nothing: one message that left the list in another way (purged, expired) must not
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
        """The subscription ended: what was sent is completed. A QoS 1 message is not resent after a
        crash, so its id need not be stored any more."""
        subscription.is_active = False
        for packet_id in list(self._recorded):
            entry = self.inflight.get(packet_id)
            if entry is not None and entry[0] is subscription and entry[2] == QOS_1:
                del self._recorded[packet_id]
                self._removals.append((_OUT, packet_id))
        self._complete(subscription, list(subscription.originals))

    def restore(
        self,
        records: Sequence[InflightRecord],
        subscriptions: Mapping[str, OutgoingSubscription],
    ) -> None:
        """Take over packet ids of earlier connections, before anything is delivered.

        Args: records: of the session; subscriptions: the restored ones, by key.
        """
        for record in records:
            if record.direction is not _OUT:
                continue
            packet_id = record.packet_id
            if packet_id == SENT_THROUGH_ID:
                self.sent_before = self._sent_through = record.sequence
                continue
            if record.state is InflightState.RELEASED:
                self.inflight[packet_id] = (_NOBODY, 0, RELEASED)
                self._send(acknowledgement(PUBREL, packet_id))  # [MQTT-4.4.0-1]
                continue
            self.inflight[packet_id] = (_NOBODY, record.qos, RESERVED)
            self._reserved_count += 1
            subscription = subscriptions.get(record.subscription)
            if subscription is None:
                self._complete_one(packet_id)
            else:
                subscription.originals[record.sequence] = packet_id

    def give_up_before(self, subscription: OutgoingSubscription, sequence: int) -> None:
        """A message never sent before has come, and its list is in order: older messages that were in
        flight have left the list (expired, purged, dropped) and will not come back."""
        self._complete(subscription, [lost for lost in subscription.originals if lost < sequence])

    def _complete(self, subscription: OutgoingSubscription, sequences: list[int]) -> None:
        for sequence in sequences:
            self._complete_one(subscription.originals.pop(sequence))

    def _complete_one(self, packet_id: int) -> None:
        """Finish a reserved id whose message is gone."""
        self._reserved_count -= 1
        self.give_up(packet_id)

    def give_up(self, packet_id: int) -> None:
        """Finish an id of an earlier connection: its message is not resent.

        A client that knows the id from QoS 2 must not take the next message under it for a repetition,
        so it is sent the PUBREL; to a client that had it with QoS 1 that would mean nothing.
        """
        if self.inflight[packet_id][1] == 1:
            del self.inflight[packet_id]
            self._removals.append((_OUT, packet_id))
            return
        self.inflight[packet_id] = (_NOBODY, 0, RELEASED)
        record = InflightRecord(self._session, _OUT, packet_id, InflightState.RELEASED)
        release = self._answers.pubrel(packet_id, is_known=False)
        self._connection.record_inflight(put=(record,), token=release)

    def leave(self) -> None:
        """The connection ends in order: the broker counts what is in flight as delivered, so the
        next connection need not guess. Also tells the broker what was consumed."""
        if self._sent_through:
            self._removals.append((_OUT, SENT_THROUGH_ID))
        self.acknowledge_received()

    def unanswered(self, unsent: Container[int]) -> dict[str, list[int]]:
        """By key, sequences of QoS 2 messages of shared subscriptions that the client has, or may
        have, but did not answer. unsent: packet ids whose PUBLISH was held back and never left.
        """
        found: dict[str, list[int]] = {}
        for packet_id, (subscription, sequence, stage) in self.inflight.items():
            if stage == QOS_2 and not subscription.is_own and packet_id not in unsent:
                found.setdefault(subscription.key, []).append(sequence)
        return found


def _check(is_allowed: bool, name: str, packet_id: int) -> None:
    """An answer to a resent PUBLISH may arrive before it was resent; any other is a violation."""
    if not is_allowed:
        raise PacketViolationError(
            f"{name} for packet identifier {packet_id}, which is not waiting for it",
            "MQTT-2.3.1-6",
        )
