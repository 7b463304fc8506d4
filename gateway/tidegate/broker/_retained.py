"""Retained messages: the last one of each topic that a publisher asked to keep.

They take effect when the publish is accepted, so that a client that publishes and then subscribes
finds its own message. Should the store then drop the publish (it is full), the change is undone;
by then others may have changed the same topic again, in the same turn or in the next one.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Final

from tidegate.spi import (
    ClearRetained,
    FlowControlError,
    Message,
    Operation,
    SetRetained,
    format_size,
    memory_bytes,
    names,
)

#: Memory that retained messages may take; a topic more is refused. They are held in memory with
#: their bodies, and any client that may publish can make up topics.
RETAINED_BYTES_MAX: Final = 256 << 20


class _Change:
    """One publish that set or cleared; alive as long as it can be undone."""

    __slots__ = ("__weakref__", "before", "destination", "previous")

    def __init__(
        self, destination: str, before: Message | None, previous: weakref.ref[_Change] | None
    ) -> None:
        self.destination = destination
        self.before = before
        self.previous = previous


class RetainedMessages:
    """Retained messages by topic."""

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self._messages = {message.destination: message for message in messages}
        self._bytes = sum(memory_bytes(message) for message in self._messages.values())
        # Only the functions that undo hold a change; they die with the turn when it is durable.
        self._latest: weakref.WeakValueDictionary[str, _Change] = weakref.WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._messages)

    def get(self, destination: str) -> Message | None:
        """The retained message of canonical topic *destination*."""
        return self._messages.get(destination)

    def matching(self, filter_name: str) -> list[Message]:
        """Every retained message whose topic the filter (a NAME) covers."""
        if not names.is_filter(filter_name):
            message = self._messages.get(names.topic(filter_name))
            return [] if message is None else [message]
        return [
            message
            for destination, message in self._messages.items()
            if names.matches(filter_name, names.name_of(destination))
        ]

    def check_room(self, message: Message) -> None:
        """Call before a publish that retains. Raises: FlowControlError at the limit."""
        if message.body and self._bytes + memory_bytes(message) > RETAINED_BYTES_MAX:
            raise FlowControlError(
                f"retained messages take {format_size(self._bytes)} of memory, and"
                f" {format_size(RETAINED_BYTES_MAX)} is the limit; clear some of them"
            )

    def replace(self, message: Message) -> tuple[Operation | None, Callable[[], None] | None]:
        """Set the retained message of its topic, or clear it when the body is empty.

        Returns: what to write (None: nothing changes) and what undoes it.
        Source: MQTT 3.1.1 [MQTT-3.3.1-5], [MQTT-3.3.1-10], [MQTT-3.3.1-11].
        """
        destination = message.destination
        if not names.is_topic(destination):
            return None, None
        before = self._messages.get(destination)
        if not message.body and before is None:
            return None, None
        latest = self._latest.get(destination)
        change = _Change(destination, before, None if latest is None else weakref.ref(latest))
        self._latest[destination] = change
        self._set(destination, message if message.body else None)
        operation = SetRetained(message) if message.body else ClearRetained(destination)
        return operation, lambda: self._undo(change)

    def _undo(self, change: _Change) -> None:
        destination = change.destination
        later = self._latest.get(destination)
        if later is change:
            self._set(destination, change.before)
            previous = change.previous and change.previous()
            if previous is None:
                self._latest.pop(destination, None)
            else:
                self._latest[destination] = previous
            return
        while later is not None:  # a later publish stands, but must not bring this one back
            previous = later.previous and later.previous()
            if previous is change:
                later.before = change.before
                later.previous = change.previous
                return
            later = previous

    def _set(self, destination: str, message: Message | None) -> None:
        before = self._messages.pop(destination, None)
        if before is not None:
            self._bytes -= memory_bytes(before)
        if message is not None:
            self._messages[destination] = message
            self._bytes += memory_bytes(message)
