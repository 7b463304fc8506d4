"""A subscription that is replaced by one of another kind, without missing a message."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from tidegate.broker.lists.pending_list import PendingList, Surroundings
from tidegate.spi import StoredMessage


@dataclass(slots=True, eq=False)
class Succession:
    """A subscription that is replaced by one of another kind, without missing a message.

    A client without a stored session that raises its QoS from 0 gets a stored list where it had one
    in memory. The old list gets no new messages. What waits in it, or is still on its way there, is
    delivered first, as granted before (QoS 0), so that the flow of messages is not interrupted
    [MQTT-3.8.4-3] and each topic stays in order [MQTT-4.6.0-6].

    Args: remove: called with *old* when nothing more comes from it.
    """

    _around: Surroundings
    old: PendingList
    new: PendingList
    _remove: Callable[[PendingList], None]
    _is_due: bool = False

    def __post_init__(self) -> None:
        self.old.succession = self.new.succession = self
        # If the turn fails, nothing comes and there is nothing to wait for.
        self._around.writer.when_durable(self._due, lambda _error: self._due(), synced=False)

    def _due(self) -> None:
        """The turn's messages are handed out next."""
        self._is_due = True
        self._around.mark_ready(self.new)

    def as_granted(self, messages: Sequence[StoredMessage]) -> Sequence[StoredMessage]:
        """*messages* of the old list: at most once, whatever is granted now."""
        return [
            StoredMessage(
                m.sequence, msgspec.structs.replace(m.message, qos=0), m.size, m.delivery_count
            )
            for m in messages
        ]

    def is_over(self) -> bool:
        """Tell whether *new* may hand out; if so, end the old list."""
        self.old.dispatch()
        if not self._is_due or self.old.cursor.size:
            return False
        self.end()
        return True

    def old_dispatched(self) -> None:
        """The old list has handed out what there was room for."""
        if self._is_due and not self.old.cursor.size:
            self._around.mark_ready(self.new)

    def end(self) -> None:
        """Nothing more comes from the old list."""
        self.new.succession = self.old.succession = None
        self._remove(self.old)
