"""QoS 0 to many: packets encoded for one client are reused for others sent the same messages.

Otherwise one message to a hundred subscribers is encoded a hundred times. With QoS 0 the packets
for all clients of one version are the same bytes, unless they contain something of the client's own
(aliases, subscription identifiers, retain as published), and the broker delivers the same messages to
one subscriber after the other. So caching one batch is enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

from tidegate.spi import StoredMessage

#: The newest batch is kept until the next one comes; a larger one is encoded each time.
KEPT_BYTES_MAX: Final = 256 * 1024


@final
class FanOut:
    """The newest batch of one protocol version. Used on the event loop only."""

    __slots__ = ("_messages", "_wire")

    def __init__(self) -> None:
        self._messages: Sequence[StoredMessage] = ()
        self._wire = b""

    def find(self, messages: Sequence[StoredMessage]) -> bytes:
        """The packets for *messages*; b"" when the last batch was a different one.

        The same objects in the same order: lists compare by identity first, so a hit costs little
        and a miss ends at the first message.
        """
        return self._wire if messages == self._messages else b""

    def keep(self, messages: Sequence[StoredMessage], wire: bytes) -> None:
        """*wire* may be sent to any client for *messages*, now and later."""
        if len(wire) <= KEPT_BYTES_MAX:
            self._messages, self._wire = messages, wire
