"""What a session writes to its client: packets at once, and large bodies in pieces."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import final

from tidegate.spi import Broker, GatewayError
from tidegate_protocols._large_out import LargeOut, LargeWire
from tidegate_protocols._output import Output
from tidegate_protocols.mqtt.session.reading import Reading
from tidegate_protocols.transport import Link, nobody

logger = logging.getLogger("tidegate.mqtt")


@final
class Writing(Output):
    """Owned by one session.

    Args:
        streaming: called when a large body begins (True), and when everything is written (False).
        broken: see :class:`LargeOut`.
    """

    __slots__ = ("_broken", "_broker", "_reading", "_streaming")

    def __init__(
        self,
        link: Link,
        reading: Reading,
        broker: Broker,
        *,
        streaming: Callable[[bool], None],
        broken: Callable[[GatewayError], None],
    ) -> None:
        super().__init__(link)
        self._reading = reading
        self._broker = broker
        self._streaming = streaming
        self._broken = broken

    @property
    def may_stream(self) -> bool:
        """Large bodies may have to be written: then packets are passed on one by one."""
        return self._large is not None

    def send(self, data: bytes) -> None:
        """Write packets, or the head of a large one together with its body."""
        if self._large is not None or type(data) is LargeWire:
            self._send_large(data)
        else:
            self.link.send(data)
        if self._reading.unread.is_paused:
            self._reading.unread.wrote(len(data))

    def flush(self) -> None:
        """Send what was written so far now."""
        self.link.flush()

    def expect_large(self) -> None:
        """From now on large bodies may have to be written."""
        bodies = self._broker.large_bodies
        if self._large is None and bodies is not None:
            idle = partial(self._streaming, False)
            self._large = LargeOut(self.link, bodies, idle=idle, broken=self._broken)
            self._large.writable(not self._reading.unread.is_paused)

    def _send_large(self, data: bytes) -> None:
        self.expect_large()
        out = self._large
        assert out is not None, "a store that streams gave the large body"
        if not isinstance(data, LargeWire):
            out.send(data)
            return
        out.stream(data, data.large, b"", self._missing)
        self._streaming(True)

    def _missing(self, error: GatewayError) -> None:
        logger.error("message not delivered peer=%s error=%s", self.link.peer, error)

    def writable(self, value: bool) -> None:
        """The client does not read fast enough (False), or has caught up."""
        if value:
            self._reading.writing_resumed()
        else:
            self._reading.unread.paused()
        if self._large is not None:
            self._large.writable(value)

    def forget(self) -> None:
        """The link is gone: call nobody any more."""
        self.cancel_large()
        self._large = None
        self._streaming = self._broken = nobody
