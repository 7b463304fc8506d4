"""Output that waits for a client to read it: the part of writing that both protocols share."""

from __future__ import annotations

from tidegate.spi import AccessError, GatewayError
from tidegate_protocols._large_out import LargeOut
from tidegate_protocols.transport import Link


class Output:
    """The link of one session, and the large bodies being sent over it.

    Attributes: link: as given.
    """

    __slots__ = ("_large", "link")

    def __init__(self, link: Link) -> None:
        self.link = link
        self._large: LargeOut | None = None  # since the first large body

    @property
    def is_streaming(self) -> bool:
        """Whether a large body is being sent, so that other output queues behind it."""
        return self._large is not None and self._large.is_busy

    @property
    def has_unsent(self) -> bool:
        """Whether the client has not read everything."""
        return self.is_streaming or self.link.unsent_bytes > 0

    def cancel_large(self) -> None:
        """Drop large bodies being sent."""
        if self._large is not None:
            self._large.cancel()

    def withhold(self, error: GatewayError) -> None:
        """The broker ends the connection for *error*. Drop what the client may no longer receive,
        even if it then hears nothing."""
        if isinstance(error, AccessError) and self.has_unsent:
            self.cancel_large()
            self.link.abort()
