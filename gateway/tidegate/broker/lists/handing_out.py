"""What stands between a list and its consumers: pages to read first, messages withheld after all, and
messages handed out past the list.

Expiry, and the rights of a subscriber whose filter is broader than its rights, are checked when a
message is handed out: what waited is judged by the current time and rights.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import Final

from tidegate.broker.lists.leaving import take_off
from tidegate.broker.lists.pending_list import Consumer, PendingList, Surroundings
from tidegate.plugin_exit import FAILURES, Exit, failure_of
from tidegate.spi import MESSAGE_OVERHEAD_BYTES, Outcome, StoredMessage
from tidegate.spi.events import Event

_log = logging.getLogger("tidegate.broker.pending_list")

#: Delay before an unreadable page is tried again: consumers wait for it.
PAGE_RETRY_S: Final = 5.0

#: A message that came back more often, and now from within its delivery, waits before it is handed out
#: again: its consumer's front-end cannot send it, nobody else takes it, and no delivery limit ends that.
RETURNS_MAX: Final = 100
RETURN_RETRY_S: Final = 1.0


async def page_in(around: Surroundings, pending_list: PendingList) -> None:
    """Have the list's cursor read a page, retrying as long as that fails; then the list goes on."""
    while not pending_list.is_removed:
        try:
            await pending_list.cursor.page_in()
            break
        except FAILURES as error:  # whatever a store raises: consumers wait for it
            await wait_after(around, error, pending_list, _log)
    can_be_read(around, pending_list, _log)
    pending_list.paged_in()


async def wait_after(
    around: Surroundings, error: Exception | Exit, pending_list: PendingList, log: logging.Logger
) -> None:
    """A page of the list could not be read: report it, once per reason, and wait before the next try."""
    reason = str(failure_of(error))
    if around.unreadable.get(pending_list) != reason:
        around.unreadable[pending_list] = reason
        text = "destination=%s page_in=failed: %s"
        around.tell(Event.DESTINATION_UNREADABLE, log, text, pending_list.destination, reason)
    await asyncio.sleep(PAGE_RETRY_S)


def can_be_read(around: Surroundings, pending_list: PendingList, log: logging.Logger) -> None:
    """A page of the list was read, or the list is gone."""
    if around.unreadable.pop(pending_list, "") and not pending_list.is_removed:
        text = "destination=%s page_in=done: its messages are readable again"
        around.tell(Event.DESTINATION_READABLE, log, text, pending_list.destination)


def permitted(
    around: Surroundings,
    pending_list: PendingList,
    consumer: Consumer,
    messages: Sequence[StoredMessage],
    now: int,
) -> Sequence[StoredMessage] | None:
    """What *consumer* may be given of *messages*, which were just taken from the list's cursor.

    What it may not have goes to another member of the group that may; if no member present may,
    it leaves the list.

    Returns: None when a member that may has no room now: everything from that message on is back
        in the list, and everything before it was handed over.
    """
    allows = consumer.allows
    if allows is None:
        return messages
    if all(map(allows, {stored.message.destination for stored in messages})):
        return messages
    found: list[StoredMessage] = []
    refused: list[StoredMessage] = []
    for index, stored in enumerate(messages):
        destination = stored.message.destination
        if allows(destination):
            found.append(stored)
            continue
        others = [
            item
            for item in pending_list.consumers
            if item is not consumer and may_be_for(item, destination)
        ]
        if not others:
            refused.append(stored)
            continue
        other = next((item for item in others if item.room() > 0), None)
        if other is None:
            _discard(around, pending_list, refused)
            if found:
                pending_list.hand_over(consumer, found, now)
            pending_list.cursor.put_back(messages[index:])
            return None
        pending_list.hand_over(other, (stored,), now)
    _discard(around, pending_list, refused)
    return found


def may_be_for(consumer: Consumer, destination: str) -> bool:
    """*consumer* may have it, or that is still undecided after a change of rights."""
    return consumer.client.is_undecided or consumer.allows is None or consumer.allows(destination)


def without_expired(
    around: Surroundings, pending_list: PendingList, messages: Sequence[StoredMessage], now: int
) -> Sequence[StoredMessage]:
    """Those of *messages*, none of them handed out yet, that have not expired.

    The others leave the list, except those a session has half sent (QoS 2): these go on.
    """
    expired = {m.sequence for m in messages if 0 < m.message.expires_at <= now}
    if expired and pending_list.subscription is not None:
        expired -= around.half_sent(pending_list.subscription, messages)
    if not expired:
        return messages
    if pending_list.is_stored:
        gone = [m for m in messages if m.sequence in expired]
        take_off(around.writer, pending_list, gone, Outcome.EXPIRED)
    return [m for m in messages if m.sequence not in expired]


def returned(
    around: Surroundings, pending_list: PendingList, messages: Sequence[StoredMessage]
) -> None:
    """*messages* came back from within their delivery: retry later, or this might never end."""
    if max([message.delivery_count for message in messages]) <= RETURNS_MAX:
        around.mark_ready(pending_list)
    elif not pending_list.is_put_off:  # or each dispatch meanwhile would start its own retries
        pending_list.is_put_off = True
        asyncio.get_running_loop().call_later(RETURN_RETRY_S, _retry, around, pending_list)


def _retry(around: Surroundings, pending_list: PendingList) -> None:
    pending_list.is_put_off = False
    around.mark_ready(pending_list)


def now_or_never(
    around: Surroundings,
    pending_list: PendingList,
    consumer: Consumer,
    messages: Sequence[StoredMessage],
) -> None:
    """Hand out messages that are not stored for a stored list (QoS 0, to a subscription of QoS 1).

    They have no place in its stored order, and at most once is all that was asked (MQTT 3.1.1
    section 4.3.1). If the client acknowledges everything, they are in flight from the list
    *nowhere*, which forgets what comes back. After a change of rights they wait until it is decided
    what the client may have.
    """
    client = consumer.client
    if client.is_undecided:
        size = sum(message.size + MESSAGE_OVERHEAD_BYTES for message in messages)
        if not client.hold_back(partial(pending_list.offer_direct, messages), size):
            around.count_dropped(pending_list, len(messages))
        return
    allows = consumer.allows
    if allows is not None:
        messages = [item for item in messages if allows(item.message.destination)]
    room = len(messages) if client.is_writable else 0
    if room and consumer.acknowledges_all:
        room = max(0, min(room, consumer.room()))
        consumer.hold(messages[:room], around.nowhere, around.writer.now())
        pending_list.changed()
    if room:
        around.sent += room
        client.deliver(consumer, messages[:room])
    if room < len(messages):
        around.count_dropped(pending_list, len(messages) - room)


def _discard(
    around: Surroundings, pending_list: PendingList, messages: list[StoredMessage]
) -> None:
    if messages and pending_list.is_stored:
        reason = "nobody there is allowed to have it"
        take_off(around.writer, pending_list, messages, Outcome.DROPPED, reason)
