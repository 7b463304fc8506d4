"""What a list that is being replaced hands out."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tidegate.spi import StoredMessage


def as_granted(messages: Sequence[StoredMessage]) -> list[StoredMessage]:
    """What the old list hands out: at most once, whatever the subscription is granted now."""
    return [
        StoredMessage(m.sequence, msgspec.structs.replace(m.message, qos=0), m.delivery_count)
        for m in messages
    ]
