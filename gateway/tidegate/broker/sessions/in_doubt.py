"""QoS 2 messages of shared subscriptions whose client left in the middle of the handshake.

Whether the client has such a message is unknown until it is back: it alone can complete the
handshake [MQTT-4.8.2-4], and no other member of the group may get the message, even if the client's
session ends before [MQTT-4.8.2-5]. So it stays out of the group's list with the session, is handed
to the same client again, and is discarded with the session.

An unshared subscription needs none of this: what is in doubt returns to a list that only the same
client consumes from. The store has such a message as pending; after a restart it is claimed from
the list before anybody is served.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from tidegate.broker.destinations import Destinations, group_of
from tidegate.broker.lists.leaving import take_off
from tidegate.broker.lists.pending_list import Consumer, PendingList
from tidegate.broker.sessions.state import SessionState
from tidegate.broker.turn.turn import returned
from tidegate.broker.turn.writer import TurnWriter
from tidegate.spi import (
    InflightDirection,
    InflightRecord,
    InflightState,
    MessageStore,
    Outcome,
    PutInflight,
    RemoveInflight,
    StoredMessage,
    Subscription,
)

_log = logging.getLogger("tidegate.broker.in_doubt")


def set_aside(
    writer: TurnWriter,
    session: SessionState | None,
    consumers: Mapping[str, Consumer],
    unanswered: Mapping[str, Sequence[int]],
) -> None:
    """The connection ends: take what is in doubt out of its consumers' hands.

    Args: session: None when it ends with the connection; unanswered: by key, sequences of QoS 2
        messages that were sent but not answered.
    """
    for key, sequences in unanswered.items():
        consumer = consumers.get(key)
        if consumer is None or not _is_shared(consumer):
            continue
        (pending_list,) = consumer.lists
        kept: list[StoredMessage] = []
        for sequence in sequences:
            entry = consumer.in_flight.pop(sequence, None)
            if entry is not None:
                consumer.count(-1, -entry[0].size)
                kept.append(returned(entry[0]))
        if not kept:
            continue
        if session is not None and session.stored.expiry_interval:
            session.in_doubt.setdefault(key, []).extend(kept)
            writer.record_delivery(pending_list, kept)
        else:
            _discard(writer, pending_list, kept)


def settle_ids(writer: TurnWriter, session: SessionState) -> None:
    """Messages that went back to a group or queue may go to anyone: their packet ids are free or,
    for QoS 2, must be completed, so that the client does not take the next message under the same
    id for a repetition."""
    in_doubt = {
        (key, message.sequence) for key, found in session.in_doubt.items() for message in found
    }
    others = session.attached
    for key, record in list(session.inflight.items()):
        if (
            record.state is InflightState.PUBLISHED
            and record.direction is InflightDirection.OUT
            and record.subscription in others
            and (record.subscription, record.sequence) not in in_doubt
        ):
            operations = writer.turn.operations
            if record.qos == 2:
                released = InflightRecord(session.key, *key, InflightState.RELEASED)
                session.inflight[key] = released
                operations.append(PutInflight(released))
            else:
                del session.inflight[key]
                operations.append(RemoveInflight(session.key, *key))
    writer.schedule()


def hand_back(writer: TurnWriter, session: SessionState, consumer: Consumer) -> None:
    """The client is back and can be written to: it gets these first."""
    messages = session.in_doubt.pop(consumer.key, None)
    if not messages:
        return
    (pending_list,) = consumer.lists
    allows = consumer.allows
    if allows is not None:
        refused = [item for item in messages if not allows(item.message.destination)]
        if refused:
            _discard(writer, pending_list, refused)
            messages = [item for item in messages if item not in refused]
    if messages:
        pending_list.hand_over(consumer, messages, writer.now())


def discard(
    writer: TurnWriter,
    destinations: Destinations,
    session: SessionState,
    subscription: Subscription,
) -> None:
    """The session, or this *subscription* of it, ends."""
    messages = session.in_doubt.pop(subscription.name, None)
    pending_list = destinations.shared.get(group_of(subscription))
    if messages and pending_list is not None:
        _discard(writer, pending_list, messages)


async def recover(
    writer: TurnWriter,
    destinations: Destinations,
    store: MessageStore,
    sessions: Sequence[SessionState],
) -> None:
    """After a restart, before anybody is served: claim what the sessions' records name.

    Raises: StoreError.
    """
    for session in sessions:
        shared = {
            item.name: destinations.shared.get(group_of(item))
            for item in session.attached.values()
            if item.share_group and item.qos == 2
        }
        for record in sorted(session.inflight.values(), key=lambda record: record.sequence):
            pending_list = shared.get(record.subscription)
            if pending_list is None or record.qos != 2:
                continue
            page = await store.page_in(pending_list.id, record.sequence - 1, 1, 1)
            found = [message for message in page if message.sequence == record.sequence]
            if found and pending_list.cursor.claim([record.sequence]):
                session.in_doubt.setdefault(record.subscription, []).extend(found)
        settle_ids(writer, session)


def _is_shared(consumer: Consumer) -> bool:
    if len(consumer.lists) != 1:
        return False
    subscription = consumer.first_list.subscription
    return subscription is not None and bool(subscription.share_group)


def _discard(writer: TurnWriter, pending_list: PendingList, messages: list[StoredMessage]) -> None:
    _log.info(
        "destination=%s discarded=%d: in doubt when the session ended [MQTT-4.8.2-5]",
        pending_list.destination,
        len(messages),
    )
    reason = "in doubt when its session ended"
    take_off(writer, pending_list, messages, Outcome.DROPPED, reason)
    pending_list.cursor.remove([message.sequence for message in messages])
