"""The incremental decoder: bytes in pieces of any size to packets. No I/O, no clock.

Any bytes either parse or raise :class:`~tidegate.spi.PeerProtocolError`; what came before the
first wrong byte is still returned.
"""

from __future__ import annotations

import sys
from itertools import repeat
from typing import Final, final

from tidegate.spi import FrameTooLargeError, PeerProtocolError
from tidegate_protocols.mqtt._codes import (
    LEVEL_3_1_1,
    LEVEL_5_0,
    MalformedPacketError,
    PacketType,
    ReasonCode,
)
from tidegate_protocols.mqtt._decode import decode, decode_publish, level_of_connect
from tidegate_protocols.mqtt._decode_v5 import decode_publish_v5
from tidegate_protocols.mqtt._packets import Connect, Packet, Puback
from tidegate_protocols.mqtt._validate import validate, validate_publish
from tidegate_protocols.mqtt._validate_v5 import (
    validate_publish_from_client,
    validate_publish_v5,
    validate_sender,
)


class NeedData:
    """The type of :data:`NEED_DATA`."""

    def __repr__(self) -> str:
        return "NEED_DATA"


#: What :meth:`Codec.next_event` returns when no packet is complete.
NEED_DATA: Final = NeedData()


@final
class Codec:
    """Decodes one direction of one connection.

    Attributes:
        level: protocol level of the connection; set by the CONNECT that is decoded.
            A CONNECT that cannot be read sets it too when its version can, so that the answer can
            be in that version.

    Args: from_client: whose packets they are, which MQTT 5.0 has rules for; None: not known.
    """

    __slots__ = (
        "_buffer",
        "_error",
        "_from_client",
        "_needed",
        "_packet_bytes_max",
        "_partial",
        "_position",
        "_remaining_max_v5",
        "_validate_publish_v5",
        "level",
    )

    def __init__(
        self,
        packet_bytes_max: int,
        level: int = LEVEL_3_1_1,
        *,
        from_client: bool | None = None,
    ) -> None:
        self.level: int = level
        self._from_client = from_client
        self._validate_publish_v5 = (
            validate_publish_from_client if from_client else validate_publish_v5
        )
        self.packet_bytes_max = packet_bytes_max  # sets both limits
        self._buffer = b""  # bytes not looked at yet begin at _position
        self._position = 0
        # A packet whose end has not come is collected here until it has _needed bytes: appending
        # is linear, where joining the buffer with each piece would be quadratic.
        self._partial = bytearray()
        self._needed = 0
        self._error: PeerProtocolError | None = None

    @property
    def packet_bytes_max(self) -> int:
        """The largest packet accepted; may be changed at any time.

        MQTT 5.0 counts the whole packet (section 3.2.2.3.6); before it the limit is ours and
        counts what is behind the remaining length.
        """
        return self._packet_bytes_max

    @packet_bytes_max.setter
    def packet_bytes_max(self, value: int) -> None:
        self._packet_bytes_max = value
        # The largest remaining length that fits with the bytes it takes to say it.
        self._remaining_max_v5 = max(
            min(value - 2, 127),
            min(value - 3, 16_383),
            min(value - 4, 2_097_151),
            value - 5,
        )

    @property
    def incomplete_bytes(self) -> int:
        """Length, with its header, of the packet whose end has not come, as far as is known.

        0 when the last byte received was the end of a packet.
        """
        return self._needed if self._partial else 0

    def receive_data(self, data: bytes) -> None:
        """Take bytes from the peer. Never raises; see :meth:`events`."""
        partial = self._partial
        if partial:
            partial += data
            if len(partial) < self._needed:
                return
            self._buffer = bytes(partial)
            self._position = 0
            partial.clear()
        elif self._position < len(self._buffer):
            self._buffer = self._buffer[self._position :] + data
            self._position = 0
        else:
            self._buffer = data
            self._position = 0

    def next_event(self) -> Packet | NeedData:
        """Return the next packet, or NEED_DATA. Raises: as :meth:`events`."""
        events = self.events(1)
        return events[0] if events else NEED_DATA

    def events(self, limit: int = sys.maxsize) -> list[Packet]:
        """Return the packets that are complete, in order, at most *limit*; [] when there is none.

        Raises: MalformedPacketError, PacketViolationError, FrameTooLargeError,
            UnsupportedVersionError. All that came before the error has been returned by then, and
            every further call raises it again.
        """
        if self._error is not None:
            raise self._error
        packets: list[Packet] = []
        append = packets.append
        buffer = self._buffer
        position = self._position
        end = len(buffer)
        remaining_max = self._packet_bytes_max
        level = self.level
        # Chosen once, not for each PUBLISH.
        decode_one, validate_one = decode_publish, validate_publish
        if level == LEVEL_5_0:
            decode_one, validate_one = decode_publish_v5, self._validate_publish_v5
            remaining_max = self._remaining_max_v5
        first = start = 0
        try:
            for _ in repeat(None, limit):  # cheaper than comparing lengths
                if end - position < 2:
                    self._keep(position, 2)
                    break
                first = buffer[position]
                length = buffer[position + 1]
                start = position + 2
                if length > 127:
                    length, start = _long_length(buffer, start, length, level)
                    if not start:
                        self._keep(position, end - position + 1)
                        break
                if length > remaining_max:
                    raise FrameTooLargeError(
                        f"a packet of {length} bytes; the limit is {self._packet_bytes_max}",
                        wire_code=ReasonCode.PACKET_TOO_LARGE,
                    )
                stop = start + length
                if stop > end:
                    self._keep(position, stop - position)
                    break
                if first & 0xF0 == 0x30:
                    publish = decode_one(first, buffer, start, stop)
                    validate_one(publish)
                    append(publish)
                elif first == 0x40 and length == 2 and (buffer[start] or buffer[start + 1]):
                    append(Puback(buffer[start] << 8 | buffer[start + 1]))
                else:
                    packet = decode(first, buffer[start:stop], level)
                    validate(packet, level)
                    if isinstance(packet, Connect):
                        self.level = level = packet.level
                        if level == LEVEL_5_0:
                            decode_one = decode_publish_v5
                            validate_one = self._validate_publish_v5
                            remaining_max = self._remaining_max_v5
                    elif level == LEVEL_5_0 and self._from_client is not None:
                        validate_sender(packet, from_client=self._from_client)
                    append(packet)
                position = stop
            else:
                self._position = position
        except PeerProtocolError as error:
            self._error = error
            if first >> 4 == PacketType.CONNECT:
                self.level = level_of_connect(buffer, start) or level
            self._buffer = b""
            self._partial.clear()
            if not packets:
                raise
        return packets

    def _keep(self, position: int, needed: int) -> None:
        """Collect the incomplete packet at *position* until it has *needed* bytes."""
        if position < len(self._buffer):
            self._partial += self._buffer[position:]
            self._needed = needed
        self._buffer = b""
        self._position = 0


def _long_length(buffer: bytes, start: int, length: int, level: int) -> tuple[int, int]:
    """Finish a remaining length of more than one byte whose first byte is *length*.

    MQTT 5.0 wants it as short as it can be; for a CONNECT the version is not known yet.

    Returns: it and where it ends; (0, 0) when its end has not come yet.
    """
    length &= 127
    for shift in (7, 14, 21):
        if start == len(buffer):
            return 0, 0
        byte = buffer[start]
        start += 1
        length |= (byte & 127) << shift
        if byte < 128:
            if not byte and level == LEVEL_5_0:
                raise MalformedPacketError(
                    "a remaining length of more bytes than it needs", "5.0:MQTT-1.5.5-1"
                )
            return length, start
    raise MalformedPacketError("a remaining length of more than four bytes", "MQTT 3.1.1 2.2.3")
