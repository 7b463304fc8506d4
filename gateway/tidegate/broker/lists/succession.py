"""A subscription that is replaced by one of another kind, without missing a message.

A client without a stored session that raises its QoS from 0 gets a stored list where it had one in
memory. What waits in the old one, and what is accepted and not yet durable, is delivered first, as
it was granted (QoS 0), so that the flow of messages is not interrupted [MQTT-3.8.4-3] and each
topic stays in order [MQTT-4.6.0-6].
"""

from __future__ import annotations

from typing import Protocol

from tidegate.broker.lists.pending_list import PendingList
from tidegate.broker.lists.turns import Turns


class Lists(Protocol):
    """What a succession asks of those around it."""

    def mark_ready(self, pending_list: PendingList) -> None: ...
    def remove_subscription(self, pending_list: PendingList) -> None: ...


class Succession:
    """From the list *old*, which gets no new messages, to *new*, which waits for it.

    Both lists know it. It waits for the turn that began it: until that is durable messages may still
    be on their way to *old*.
    """

    __slots__ = ("_is_due", "_lists", "new", "old")

    def __init__(self, turns: Turns, lists: Lists, old: PendingList, new: PendingList) -> None:
        self.old = old
        self.new = new
        self._lists = lists
        self._is_due = False
        old.succession = new.succession = self
        # When nothing of the turn will come, there is nothing to wait for either.
        turns.when_durable(self._due, lambda _error: self._due(), synced=False)

    def _due(self) -> None:
        """The turn's messages are handed out next."""
        self._is_due = True
        self._lists.mark_ready(self.new)

    def is_over(self) -> bool:
        """Tell whether *new* may hand out; ends the old list then."""
        self.old.dispatch()
        if not self._is_due or self.old.cursor.size:
            return False
        self.end()
        return True

    def old_dispatched(self) -> None:
        """The old list has handed out what there was room for."""
        if self._is_due and not self.old.cursor.size:
            self._lists.mark_ready(self.new)

    def end(self) -> None:
        """Nothing comes from the old list any more."""
        self.new.succession = self.old.succession = None
        self._lists.remove_subscription(self.old)
