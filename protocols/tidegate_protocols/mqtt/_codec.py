"""The incremental decoder: bytes in pieces of any size to packets. No I/O, no clock.

Any bytes either parse or raise :class:`~tidegate.spi.PeerProtocolError`; what came before the
first wrong byte is still returned.
"""

from __future__ import annotations

import sys
from typing import Final, final

from tidegate.spi import FrameTooLargeError, PeerProtocolError
from tidegate_protocols.mqtt._codes import LEVEL_3_1_1, MalformedPacketError, ReasonCode
from tidegate_protocols.mqtt._decode import decode, decode_publish
from tidegate_protocols.mqtt._packets import Connect, Packet, Puback
from tidegate_protocols.mqtt._validate import validate, validate_publish


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
        packet_bytes_max: largest remaining length accepted; may be changed at any time.
    """

    __slots__ = (
        "_buffer",
        "_error",
        "_needed",
        "_partial",
        "_position",
        "level",
        "packet_bytes_max",
    )

    def __init__(self, packet_bytes_max: int, level: int = LEVEL_3_1_1) -> None:
        self.level = level
        self.packet_bytes_max = packet_bytes_max
        self._buffer = b""  # bytes not looked at yet begin at _position
        self._position = 0
        # A packet whose end has not come is collected here until it has _needed bytes: appending
        # is linear, where joining the buffer with each piece would be quadratic.
        self._partial = bytearray()
        self._needed = 0
        self._error: PeerProtocolError | None = None

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
        buffer = self._buffer
        position = self._position
        end = len(buffer)
        packet_bytes_max = self.packet_bytes_max
        try:
            while len(packets) < limit:
                if end - position < 2:
                    self._keep(position, 2)
                    break
                first = buffer[position]
                length = buffer[position + 1]
                start = position + 2
                if length > 127:
                    length, start = _long_length(buffer, start, length)
                    if not start:
                        self._keep(position, end - position + 1)
                        break
                if length > packet_bytes_max:
                    raise FrameTooLargeError(
                        f"a packet of {length} bytes; the limit is {packet_bytes_max}",
                        wire_code=ReasonCode.PACKET_TOO_LARGE,
                    )
                stop = start + length
                if stop > end:
                    self._keep(position, stop - position)
                    break
                if first & 0xF0 == 0x30:
                    publish = decode_publish(first, buffer, start, stop)
                    validate_publish(publish)
                    packets.append(publish)
                elif first == 0x40 and length == 2 and (buffer[start] or buffer[start + 1]):
                    packets.append(Puback(buffer[start] << 8 | buffer[start + 1]))
                else:
                    packet = decode(first, buffer[start:stop], self.level)
                    validate(packet)
                    if type(packet) is Connect:
                        self.level = packet.level
                    packets.append(packet)
                position = stop
            else:
                self._position = position
        except PeerProtocolError as error:
            self._error = error
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


def _long_length(buffer: bytes, start: int, length: int) -> tuple[int, int]:
    """Finish a remaining length of more than one byte whose first byte is *length*.

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
            return length, start
    raise MalformedPacketError("a remaining length of more than four bytes", "MQTT 3.1.1 2.2.3")
