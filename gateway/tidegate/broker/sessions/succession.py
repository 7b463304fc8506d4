"""A subscription that is replaced by one of another kind, without missing a message.

A client without a stored session that raises its QoS from 0 gets a stored list where it had one in
memory. What waits in the old one, and what is accepted and not yet durable, is delivered first, as
it was granted (QoS 0), so that the flow of messages is not interrupted [MQTT-3.8.4-3] and each
topic stays in order [MQTT-4.6.0-6].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from tidegate.spi import GatewayError, StoredMessage, Token

if TYPE_CHECKING:
    from tidegate.broker.core import BrokerCore
    from tidegate.broker.lists.pending_list import PendingList


class Succession:
    """From the list *old*, which gets no new messages, to *new*, which waits for it.

    Both lists know it. Also who is told when the turn that began it is durable: until then messages
    may still be on their way to *old*.
    """

    __slots__ = ("_core", "_is_due", "new", "old")

    def __init__(self, core: BrokerCore, old: PendingList, new: PendingList) -> None:
        self.old = old
        self.new = new
        self._core = core
        self._is_due = False
        old.succession = new.succession = self
        turn = core.writer.turn
        turn.units.append((0, 0, self, self, None))
        core.schedule()

    def confirmed(self, tokens: list[Token]) -> None:
        """From the writer, which hands out the turn's messages next."""
        del tokens
        self._is_due = True
        self._core.mark_ready(self.new)

    def failed(self, token: Token, error: GatewayError) -> None:
        """From the writer: nothing of the turn will come."""
        del error
        self.confirmed([token])

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
            self._core.mark_ready(self.new)

    def end(self) -> None:
        """Nothing comes from the old list any more."""
        self.new.succession = self.old.succession = None
        self._core.remove_subscription(self.old)


def as_granted(messages: Sequence[StoredMessage]) -> list[StoredMessage]:
    """What the old list hands out: at most once, whatever the subscription is granted now."""
    return [
        StoredMessage(m.sequence, msgspec.structs.replace(m.message, qos=0), m.delivery_count)
        for m in messages
    ]
