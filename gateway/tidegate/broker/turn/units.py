"""Small things that everything which publishes shares."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from tidegate.spi import Message


def undo_all(steps: Sequence[Callable[[], None]]) -> Callable[[], None] | None:
    """One function that takes *steps* back, the last one first; None when there are none."""
    if not steps:
        return None
    if len(steps) == 1:
        return steps[0]

    def undo() -> None:
        for step in reversed(steps):
            step()

    return undo


def at_least_once(message: Message) -> Message:
    """A QoS 0 message as a queue keeps it: stored, and in flight until it is acknowledged.

    With QoS 0 an MQTT consumer of the queue would never acknowledge it.
    """
    return msgspec.structs.replace(message, qos=1)
