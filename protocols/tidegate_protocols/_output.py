"""What waits for a client to take it: the part of writing that both protocols share."""

from __future__ import annotations

from tidegate.spi import AccessError, GatewayError
from tidegate_protocols._large_out import LargeOut
from tidegate_protocols.transport import Link


class Output:
    """The link of one session, and the large body that is on its way over it.

    Attributes: link: as given.
    """

    __slots__ = ("_large", "link")

    def __init__(self, link: Link) -> None:
        self.link = link
        self._large: LargeOut | None = None  # since the first large body

    @property
    def is_streaming(self) -> bool:
        """A large body is on its way: what is written waits behind it."""
        return self._large is not None and self._large.is_busy

    @property
    def has_unsent(self) -> bool:
        """The client has not taken all."""
        return self.is_streaming or self.link.unsent_bytes > 0

    def cancel_large(self) -> None:
        """Forget large bodies that are on their way."""
        if self._large is not None:
            self._large.cancel()

    def withhold(self, error: GatewayError) -> None:
        """The broker ends the connection for *error*. What the client may not have any more does not
        go out: rather it hears nothing."""
        if isinstance(error, AccessError) and self.has_unsent:
            self.cancel_large()
            self.link.abort()
