"""What consumers may be given of a subscription whose filter is broader than their right.

Asked for each message when it is handed out, so that what waited is judged by the rights of now.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.broker.lists.pending_list import Consumer, PendingList, Turns
from tidegate.spi import Discard, DiscardReason, StoredMessage


def permitted(
    turns: Turns,
    pending_list: PendingList,
    consumer: Consumer,
    messages: Sequence[StoredMessage],
    now: int,
) -> Sequence[StoredMessage] | None:
    """What *consumer* may be given of *messages*, which were just taken from the list's cursor.

    What it may not is for another member of the group who may; when nobody may who is there, it
    leaves the list.

    Returns: None when one who may has no room just now: everything from that message on is in the
        list again, and what comes before it was handed over.
    """
    allows = consumer.allows
    if allows is None:
        return messages
    if all(map(allows, {stored.message.destination for stored in messages})):
        return messages
    found: list[StoredMessage] = []
    refused: list[int] = []
    for index, stored in enumerate(messages):
        destination = stored.message.destination
        if allows(destination):
            found.append(stored)
            continue
        others = [
            item
            for item in pending_list.consumers
            if item is not consumer and (item.allows is None or item.allows(destination))
        ]
        if not others:
            refused.append(stored.sequence)
            continue
        other = next((item for item in others if item.room() > 0), None)
        if other is None:
            _discard(turns, pending_list, refused)
            if found:
                pending_list.hand_over(consumer, found, now)
            pending_list.cursor.put_back(messages[index:])
            return None
        pending_list.hand_over(other, (stored,), now)
    _discard(turns, pending_list, refused)
    return found


def _discard(turns: Turns, pending_list: PendingList, sequences: list[int]) -> None:
    if sequences and pending_list.is_stored:
        turns.add_operation(Discard(pending_list.id, tuple(sequences), DiscardReason.DROPPED))
