"""What a session writes to its client: frames, heart-beats between them, large bodies in pieces."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from typing import final

from tidegate.spi import Broker, GatewayError, StoredMessage
from tidegate_protocols._large_out import LargeOut
from tidegate_protocols._output import Output
from tidegate_protocols._unread import UnreadOutput
from tidegate_protocols.stomp._client import Client
from tidegate_protocols.stomp._handshake import Handshake
from tidegate_protocols.stomp._heartbeat import HeartBeat, negotiate
from tidegate_protocols.stomp._options import StompOptions
from tidegate_protocols.stomp.codec.encoder import (
    HEART_BEAT_BYTES,
    LargeBodyMetError,
    encode_connected,
)
from tidegate_protocols.transport import Link, nobody

logger = logging.getLogger("tidegate.stomp")


@final
class Wire(Output):
    """The link of one session, and what is written to it.

    Args:
        stop_reading: see :class:`UnreadOutput`.
        idle, broken: see :class:`LargeOut`.

    Attributes:
        is_reading: the client is being read; pauses: how often it was not.
        unread: what the client was sent and does not read.
        heart_beat: once negotiated.
    """

    __slots__ = (
        "_broken",
        "_broker",
        "_idle",
        "_loop",
        "_options",
        "heart_beat",
        "is_reading",
        "pauses",
        "unread",
    )

    def __init__(
        self,
        link: Link,
        loop: asyncio.AbstractEventLoop,
        broker: Broker,
        options: StompOptions,
        *,
        stop_reading: Callable[[], None],
        idle: Callable[[], None],
        broken: Callable[[GatewayError], None],
    ) -> None:
        super().__init__(link)
        self._loop = loop
        self._broker = broker
        self._options = options
        self._idle = idle
        self._broken = broken
        self.heart_beat: HeartBeat | None = None
        self.is_reading = True
        self.pauses = 0
        self.unread = UnreadOutput(
            link,
            options.unread_output_max,
            options.unread_output_timeout,
            loop.call_later,
            stop_reading,
        )

    @property
    def is_writable(self) -> bool:
        """The client reads fast enough."""
        return not self.unread.is_paused

    def write(self, data: bytes) -> None:
        """Write frames."""
        if self.heart_beat is not None:
            self.heart_beat.is_silent = False
        if self._large is not None:
            self._large.send(data)
        else:
            self.link.send(data)
        if self.unread.is_paused:
            self.unread.wrote(len(data))

    def deliver(self, client: Client, key: str, messages: Sequence[StoredMessage]) -> None:
        """Write *messages* of the subscription *key*, at once."""
        try:
            data = client.deliver(key, messages)
        except LargeBodyMetError:
            self._deliver_large(client, key, messages)
            return
        if data:
            self.write(data)

    def _deliver_large(self, client: Client, key: str, messages: Sequence[StoredMessage]) -> None:
        """One of *messages* has a large body: write this one and all after it piece by piece."""
        link, bodies = self.link, self._broker.large_bodies
        if bodies is None:
            logger.error("large messages cannot be read any more peer=%s", link.peer)
            return
        if self._large is None:
            self._large = LargeOut(link, bodies, idle=self._idle, broken=self._broken)
            self._large.writable(self.is_writable)
        for item in client.deliver_large(key, messages):
            if isinstance(item, bytes):
                self.write(item)
                continue
            stored, head, body, tail = item

            def missing(error: GatewayError, sequence: int = stored.sequence) -> None:
                logger.error(
                    "message not delivered peer=%s sequence=%d error=%s", link.peer, sequence, error
                )
                client.withdraw(key, sequence)

            self._large.stream(head, body, tail, missing)
        client.connection.writable(False)

    def writable(self, value: bool) -> None:
        """The client reads too slowly (False), or has caught up."""
        if value:
            self.unread.resumed()
        else:
            self.unread.paused()
        if self._large is not None:
            self._large.writable(value)

    def readable(self, value: bool) -> None:
        """Read from the client, or stop; while it is not read it cannot be heard."""
        if self.is_reading and not value:
            self.pauses += 1
        self.is_reading = value
        if value:
            self.link.resume_reading()
        else:
            self.link.pause_reading()
        if self.heart_beat is not None:
            self.heart_beat.is_reading = value
            self.heart_beat.heard_at = self._loop.time()

    def begin(
        self,
        handshake: Handshake,
        principal: str,
        expired: Callable[[float], None],
    ) -> None:
        """CONNECTED; from now on heart-beats are sent and expected, as negotiated."""
        server = self._options.heart_beat_ms
        self.write(
            encode_connected(
                handshake.version,
                session=secrets.token_hex(8),
                server=f"tidegate/{self._broker.version}",
                heart_beat=server,
            )
        )
        send_ms, receive_ms = negotiate(handshake.heart_beat, server)
        if send_ms or receive_ms:
            self.heart_beat = HeartBeat(
                self._loop,
                send_s=send_ms / 1000,
                receive_s=receive_ms / 1000,
                grace_factor=self._options.heart_beat_grace_factor,
                write=self._write_heart_beat,
                expired=expired,
            )
        logger.debug(
            "connected peer=%s version=%s principal=%s heart_beat_ms=%d,%d",
            self.link.peer,
            handshake.version.value,
            principal,
            send_ms,
            receive_ms,
        )

    def forget(self) -> None:
        """The link is gone: call nobody any more."""
        self.stop_beating()
        self.unread.forget()
        self._large = None
        self._idle = self._broken = nobody

    def _write_heart_beat(self) -> None:
        # A client that does not read already has bytes waiting.
        # In the middle of a body it would become part of that.
        if self.is_writable and not self.is_streaming:
            self.link.send(HEART_BEAT_BYTES)

    def stop_beating(self) -> None:
        """Neither send nor expect heart-beats any more. Idempotent."""
        self.unread.stop()
        if self.heart_beat is not None:
            self.heart_beat.stop()
            self.heart_beat = None
