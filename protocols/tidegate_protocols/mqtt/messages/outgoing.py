"""What a session sends to its client: PUBLISH packets, in order, as far as the window allows.

Packet ids in use, and what becomes of them, are in ``window``.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final, Protocol, TypeAlias, final

from tidegate.spi import (
    BrokerConnection,
    InflightRecord,
    LargeBody,
    LocalProtocolError,
    Message,
    StoredMessage,
    Token,
)
from tidegate_protocols._large_out import LargeWire
from tidegate_protocols.mqtt.codec.encode import REMAINING_LENGTH_MAX, fixed_header
from tidegate_protocols.mqtt.messages.aliases import AliasesOut
from tidegate_protocols.mqtt.messages.bridge import publish_properties
from tidegate_protocols.mqtt.messages.fan_out import FanOut
from tidegate_protocols.mqtt.messages.names import TOPIC_FIELDS
from tidegate_protocols.mqtt.messages.window import PACKET_ID_MAX, OutgoingSubscription, Window

logger = logging.getLogger("tidegate.mqtt")

_NO_PROPERTIES: Final = b"\0"
_Waiting: TypeAlias = tuple[OutgoingSubscription, Sequence[StoredMessage], int]
_ALIAS_BYTES: Final = 3  # what the property of a topic alias takes


class Identifiers(Protocol):
    """Knows the Subscription Identifiers of a session. has_any: False: there is none."""

    has_any: bool

    def of(self, subscription: OutgoingSubscription, message: Message) -> bytes:
        """Those of all subscriptions that *message* is for, as properties; b"" for none."""
        ...


@final
class Outgoing:
    """The sending side of one connected session.

    Args:
        connection: of the broker.
        send: writes to the client.
        now_us: microseconds since the epoch.
        identifiers: None before MQTT 5.0, which has no properties either.
        packet_bytes_max: largest packet that the client takes, whole; a larger one is left out
            [MQTT-3.1.2-24].
        topic_alias_max: aliases that may be used.
        fan_out: of all clients of this version.
    """

    __slots__ = (
        "_aliases",
        "_client_id",
        "_connection",
        "_expect_large",
        "_fan_out",
        "_held",
        "_identifiers",
        "_length_max",
        "_now_us",
        "_send",
        "_waiting",
        "_window",
    )

    def __init__(
        self,
        connection: BrokerConnection,
        send: Callable[[bytes], None],
        window: Window,
        now_us: Callable[[], int],
        client_id: str,
        *,
        identifiers: Identifiers | None,
        packet_bytes_max: int,
        topic_alias_max: int,
        fan_out: FanOut,
        expect_large: Callable[[], None] = lambda: None,
    ) -> None:
        self._connection = connection
        self._send = send
        self._expect_large = expect_large
        self._window = window
        self._now_us = now_us
        self._client_id = client_id
        self._identifiers = identifiers
        self._length_max = remaining_length_of(packet_bytes_max)
        self._aliases = AliasesOut(topic_alias_max) if topic_alias_max else None
        # Not for a client that accepts only smaller packets.
        self._fan_out = fan_out if self._length_max == REMAINING_LENGTH_MAX else None
        # What the window has no room for: (subscription, messages, index of the first unsent).
        # Created when needed: an empty deque would be the largest object of an idle client.
        self._waiting: deque[_Waiting] | None = None
        # Packets held back until they are durable, oldest first, with the packet ids that they record.
        self._held: list[tuple[bytes, list[int]]] = []

    def deliver(
        self, subscription: OutgoingSubscription, messages: Sequence[StoredMessage]
    ) -> None:
        """Send messages of one subscription, in order, as far as the window allows."""
        if not subscription.qos and self._fan_out is not None and self._is_common(subscription):
            wire = self._fan_out.find(messages)
            if wire:
                self._send(wire)
                return
        waiting = self._waiting
        sent = 0
        if not (waiting and subscription.qos):
            sent = self._write(subscription, messages, 0)
            if sent == len(messages):
                return
        if waiting is None:
            waiting = self._waiting = deque()
        waiting.append((subscription, messages, sent))

    def _is_common(self, subscription: OutgoingSubscription) -> bool:
        """Its QoS 0 packets contain nothing specific to this client."""
        return (
            self._aliases is None
            and not subscription.retain_as_published
            and (self._identifiers is None or not self._identifiers.has_any)
        )

    def settle(self) -> None:
        """Tell the broker of all PUBACKs since the last call, then use the room they made."""
        self._window.acknowledge_received()
        waiting = self._waiting
        while waiting:
            subscription, messages, start = waiting.popleft()
            sent = self._write(subscription, messages, start)
            if sent < len(messages):
                waiting.appendleft((subscription, messages, sent))
                return

    def confirmed(self, tokens: Sequence[Token]) -> None:
        """These packets are sent now."""
        held = self._held
        if held:
            for token in tokens:
                if held and token is held[0][0]:
                    del held[0]

    def unanswered(self) -> dict[str, list[int]]:
        """By key, sequences of QoS 2 messages of shared subscriptions that the client has, or may
        have, but did not answer."""
        unsent = {packet_id for _, packet_ids in self._held for packet_id in packet_ids}
        found = self._window.unanswered(unsent)
        for subscription, messages, start in self._waiting or ():
            if subscription.is_own:
                continue
            # Sent on an earlier connection; the window has had no room for it here so far.
            before = subscription.originals
            again = [m.sequence for m in islice(messages, start, None) if m.sequence in before]
            if again:
                found.setdefault(subscription.key, []).extend(again)
        return found

    def remove(self, subscription: OutgoingSubscription) -> None:
        """The subscription ended: waiting messages return to the broker, sent ones are completed
        [MQTT-3.10.4-3]. No other member of a group may get one in doubt [MQTT-4.8.2-5]: the
        broker is told now that it belongs to this client."""
        for sequence in self.unanswered().get(subscription.key, ()):
            self._window.consume(subscription, sequence)
        self._window.acknowledge_received()
        self._window.remove(subscription)
        if self._waiting:
            self._waiting = deque(item for item in self._waiting if item[0] is not subscription)

    def _write(
        self, subscription: OutgoingSubscription, messages: Sequence[StoredMessage], start: int
    ) -> int:
        """Encode and send from *start* on; return the index of the first message without room."""
        sent = self._write_run(subscription, messages, start)
        while sent < len(messages) and messages[sent].message.large is not None:
            if not self._write_run(subscription, messages[sent : sent + 1], 0):
                return sent
            sent = self._write_run(subscription, messages, sent + 1)
        return sent

    def _write_run(
        self, subscription: OutgoingSubscription, messages: Sequence[StoredMessage], start: int
    ) -> int:
        """As :meth:`_write`, but a large message ends the run unless it is the only one."""
        window = self._window
        inflight = window.inflight
        limit = window.limit
        originals = subscription.originals
        comes_back = subscription.comes_back
        id_offset = subscription.id_offset
        is_persistent = window.is_persistent
        sent_before = window.sent_before
        sent_through = 0
        records_qos_2 = subscription.records_qos_2
        as_published = subscription.retain_as_published
        identifiers = self._identifiers
        is_v5 = identifiers is not None
        has_more = self._aliases is not None or (identifiers is not None and identifiers.has_any)
        length_max = self._length_max
        qos_max = subscription.qos
        block = b""
        now: list[bytes] = []  # to be sent now
        later: list[bytes] = []  # to be sent when *held_records* are durable
        is_behind = bool(self._held)  # then nothing may overtake what is held back
        records: list[InflightRecord] = []
        held_records: list[InflightRecord] = []
        fan_out = self._fan_out
        may_keep = not qos_max and not start and self._is_common(subscription)
        index = start
        header = b""  # of the previous packet: most of a run have the same
        header_first = header_length = -1
        large: LargeBody | None = None
        for stored in islice(messages, start, None) if start else messages:
            message = stored.message
            body = message.body
            if not body and message.large is not None:
                may_keep = False
                if len(messages) > 1:
                    break
                large = message.large
            qos = message.qos
            if qos > qos_max:
                qos = qos_max  # the smaller of the two (MQTT 3.1.1 section 3.8.4)
            if qos and len(inflight) >= limit:
                break
            index += 1
            sequence = stored.sequence
            known = 0
            if originals:
                known = window.take_original(subscription, sequence)
                if known:  # with the QoS it was sent with, whatever is granted now
                    qos = inflight[known][1] or qos or 1
                    may_keep = False
                elif qos and not stored.delivery_count:  # QoS 0 goes past what waits
                    window.give_up_before(subscription, sequence)
                limit = window.limit
            is_recorded = qos == 2 and records_qos_2 and not known
            is_held = is_recorded or (is_behind and qos > 0)
            try:
                if message.expires_at:
                    may_keep = False  # its remaining time changes
                    was_sent = known or stored.delivery_count or sequence <= window.sent_before
                    if not was_sent and message.expires_at <= self._now_us():
                        # Not one that was sent before [MQTT-4.3.3-7] [MQTT-3.3.2-5].
                        raise _LeftOutError("it expired while waiting", is_consumed=False)
                topic = TOPIC_FIELDS[message.destination]
                if is_v5:
                    if has_more or not (
                        # True for nearly every message, so it is checked here.
                        message.protocol == "mqtt"
                        and not message.headers
                        and not message.expires_at
                        and message.content_type is None
                        and message.correlation_data is None
                        and not message.reply_to
                        and message.payload_format is None
                    ):
                        topic, block = self._topic_and_properties(
                            subscription, message, topic, is_held=is_held
                        )
                    else:
                        block = _NO_PROPERTIES
                length = len(topic) + len(block) + (len(body) if large is None else large.size)
                if qos:
                    length += 2  # the packet id
                if length > length_max:
                    raise self._too_large(length, is_consumed=subscription.is_own or known > 0)
            except LocalProtocolError as error:
                may_keep = False
                if known:
                    window.give_up(known)
                self._leave_out(subscription, stored, qos, error)
                continue
            # RETAIN says "this was retained" [MQTT-3.3.1-8] [MQTT-3.3.1-9], or what the publisher set, for
            # those who asked for it [MQTT-3.3.1-12] [MQTT-3.3.1-13].
            first = 0x30 | qos << 1 | message.retained
            if as_published and message.retain:
                first |= 1
            if not qos:
                # DUP stays 0 [MQTT-3.3.1-2]; no packet id [MQTT-2.3.1-5]; never in flight.
                if first != header_first or length != header_length:
                    header_first, header_length = first, length
                    header = fixed_header(first, length)
                now += (header, topic, block, body)
                continue
            if known:
                packet_id = wanted_id = known  # again under its own id [MQTT-4.4.0-1]
                first |= 0x08  # [MQTT-3.3.1-1]
            else:
                # In a session that stays, the id that the message would have on any connection.
                before = sequence + id_offset if is_persistent else window.last_packet_id
                packet_id = wanted_id = before % PACKET_ID_MAX + 1
                if packet_id in inflight:
                    packet_id = window.other_id(packet_id)
                window.last_packet_id = packet_id
                if stored.delivery_count or (sequence <= sent_before and comes_back):
                    first |= 0x08
            inflight[packet_id] = (subscription, sequence, qos)
            if first != header_first or length != header_length:
                header_first, header_length = first, length
                header = fixed_header(first, length)
            pieces = (header, topic, packet_id.to_bytes(2, "big"), block, body)
            if is_held:
                later += pieces  # all keep their order [MQTT-4.6.0-6]
                is_behind = True
                if is_recorded:
                    held_records.append(window.record(subscription, sequence, packet_id, 2))
            else:
                now += pieces
            if comes_back and qos == 1:
                sent_through = sequence
                if packet_id != wanted_id:
                    records.append(window.record(subscription, sequence, packet_id, 1))
        if now:
            wire = b"".join(now)
            self._send(wire if large is None else LargeWire.made(wire, large))
            if may_keep and fan_out is not None:
                fan_out.keep(messages, wire)
        if sent_through:
            marker = window.sent_through(sent_through)
            if marker is not None:
                records.append(marker)
            if records:
                self._connection.record_inflight(put=records)
        if later:
            token = b"".join(later)
            if large is not None:
                self._expect_large()
                token = LargeWire.made(token, large)
            self._held.append((token, [record.packet_id for record in held_records]))
            self._connection.record_inflight(put=held_records, token=token)
        return index

    def _topic_and_properties(
        self,
        subscription: OutgoingSubscription,
        message: Message,
        topic: bytes,
        *,
        is_held: bool,
    ) -> tuple[bytes, bytes]:
        """What MQTT 5.0 writes in place of the topic, and after it.

        is_held: the packet leaves later, after packets that would use an alias defined by it.
        Raises: LocalProtocolError.
        """
        identifiers, aliases = self._identifiers, self._aliases
        mine = b""
        if identifiers is not None and identifiers.has_any:
            mine = identifiers.of(subscription, message)
        now_us = self._now_us()
        block = publish_properties(message, now_us, mine)
        if aliases is None or is_held:
            return topic, block
        if message.large is not None:
            return topic, block  # nothing is sent if the body turns out to be unreadable
        if len(topic) + len(block) + len(message.body) + 2 + _ALIAS_BYTES > self._length_max:
            return topic, block  # it might not be sent, and then the alias would be undefined
        topic, alias = aliases.use(message.destination, topic)
        if not alias:
            return topic, block
        return topic, publish_properties(message, now_us, mine, alias)

    def _too_large(self, length: int, *, is_consumed: bool) -> LocalProtocolError:
        if length > REMAINING_LENGTH_MAX:
            return LocalProtocolError(f"{length} bytes are more than an MQTT packet can have")
        # As if it had been delivered [MQTT-3.1.2-25]. But from a queue or a group another member may be
        # able to take it, unless this client may already have it [MQTT-4.8.2-5].
        problem = f"{length} bytes are more than the client accepts"
        return _LeftOutError(problem, is_consumed=is_consumed)

    def _leave_out(
        self,
        subscription: OutgoingSubscription,
        stored: StoredMessage,
        qos: int,
        error: LocalProtocolError,
    ) -> None:
        """A message that is not sent: the broker's policy decides about it, unless the
        specification says that it counts as consumed."""
        is_usual = isinstance(error, _LeftOutError) and stored.message.large is None
        logger.log(
            logging.DEBUG if is_usual else logging.WARNING,
            "message cannot be sent over mqtt client=%s sequence=%d reason=%s",
            self._client_id,
            stored.sequence,
            error,
        )
        if not qos:
            return
        if isinstance(error, _LeftOutError) and error.is_consumed:
            self._connection.refuse(subscription.key, (stored.sequence,), str(error))
        else:
            self._connection.reject(subscription.key, (stored.sequence,))


class _LeftOutError(LocalProtocolError):
    """A message that could be sent, but not to this client, or no longer."""

    def __init__(self, problem: str, *, is_consumed: bool) -> None:
        super().__init__(problem)
        self.is_consumed = is_consumed


def remaining_length_of(packet_bytes: int) -> int:
    """The largest remaining length of a packet of *packet_bytes* bytes in all."""
    for header_bytes, largest in ((2, 127), (3, 16_383), (4, 2_097_151)):
        if packet_bytes - header_bytes <= largest:
            return packet_bytes - header_bytes
    return min(packet_bytes - 5, REMAINING_LENGTH_MAX)
