"""The incremental decoder: turns bytes in pieces of any size into packets. No I/O, no clock.

Any bytes either parse or raise :class:`~tidegate.spi.PeerProtocolError`; what came before the
first wrong byte is still returned.
"""

from __future__ import annotations

import sys
from itertools import repeat
from typing import Final, final

from tidegate.spi import FrameTooLargeError, PeerProtocolError
from tidegate_protocols.mqtt.codec.codes import (
    LEVEL_3_1_1,
    LEVEL_5_0,
    MalformedPacketError,
    PacketType,
    ReasonCode,
)
from tidegate_protocols.mqtt.codec.connect import level_of_connect
from tidegate_protocols.mqtt.codec.decode import decode, decode_publish
from tidegate_protocols.mqtt.codec.decode_v5 import decode_publish_v5
from tidegate_protocols.mqtt.codec.large_head import body_start
from tidegate_protocols.mqtt.codec.packets import Connect, Event, LargePublish, Puback
from tidegate_protocols.mqtt.codec.validate import validate, validate_publish
from tidegate_protocols.mqtt.codec.validate_v5 import (
    validate_publish_from_client,
    validate_publish_v5,
    validate_sender,
)


class NeedData:
    """The type of :data:`NEED_DATA`."""

    def __repr__(self) -> str:
        return "NEED_DATA"


#: A packet other than a PUBLISH with more bytes than this after its remaining length ends a call's
#: results: a SUBSCRIBE can hold thousands of filters, a microsecond or two each.
LONG_BYTES: Final = 1024


#: What :meth:`Codec.next_event` returns when no packet is complete.
NEED_DATA: Final = NeedData()


@final
class Codec:
    """Decodes one direction of one connection.

    Attributes:
        level: protocol level of the connection; set by the decoded CONNECT.
            A CONNECT that cannot be read also sets it if its version can be read, so that the
            answer can be in that version.

    Args: from_client: who sends the packets, which matters in MQTT 5.0; None: unknown.
    """

    __slots__ = (
        "_body_left",
        "_buffer",
        "_error",
        "_from_client",
        "_is_halted",
        "_large_bytes_min",
        "_large_packet_bytes_max",
        "_needed",
        "_packet_bytes_max",
        "_partial",
        "_position",
        "_validate_publish_v5",
        "_whole_max",
        "_whole_max_v5",
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
        self._large_bytes_min = 0  # 0: no body is returned in pieces
        self._large_packet_bytes_max = 0
        self.packet_bytes_max = packet_bytes_max  # also sets _whole_max
        self._buffer = b""  # undecoded bytes begin at _position
        self._position = 0
        # An incomplete packet is collected here until it has _needed bytes: appending is linear, where
        # joining the buffer with each piece would be quadratic.
        self._partial = bytearray()
        self._needed = 0
        self._error: PeerProtocolError | None = None
        self._body_left = 0  # untaken bytes of the LargePublish last returned
        self._is_halted = False  # there is an error, or a body has to be taken first

    @property
    def packet_bytes_max(self) -> int:
        """The largest packet accepted; may be changed at any time.

        MQTT 5.0 counts the whole packet (section 3.2.2.3.6). For earlier versions the limit is ours and
        counts what follows the remaining length.
        """
        return self._packet_bytes_max

    @packet_bytes_max.setter
    def packet_bytes_max(self, value: int) -> None:
        self._packet_bytes_max = value
        # Any remaining length above these is examined further: one comparison per packet covers both
        # what is too large and what is to be returned in pieces.
        self._whole_max = value
        self._whole_max_v5 = _remaining_max(value, LEVEL_5_0)
        if self._large_bytes_min:
            self._whole_max = min(self._whole_max, self._large_bytes_min - 1)
            self._whole_max_v5 = min(self._whole_max_v5, self._large_bytes_min - 1)

    def stream_bodies(self, size_min: int, packet_bytes_max: int) -> None:
        """Return each PUBLISH whose body has *size_min* bytes or more as a LargePublish.

        Except those to be retained that are within :attr:`packet_bytes_max`. After a LargePublish
        nothing is returned until its body has been taken (:meth:`take_body`).

        Args: size_min: 1 or more; packet_bytes_max: for such a PUBLISH, in place of the other limit.
        """
        self._large_bytes_min = size_min
        self._large_packet_bytes_max = packet_bytes_max
        self.packet_bytes_max = self._packet_bytes_max

    @property
    def incomplete_bytes(self) -> int:
        """Length, with its header, of the incomplete packet, as far as it is known.

        0 when the last byte received was the end of a packet.
        """
        return self._needed if self._partial else 0

    @property
    def waiting_bytes(self) -> int:
        """Bytes received but not decoded yet, of that packet and of others."""
        return len(self._partial) + len(self._buffer) - self._position

    @property
    def has_more(self) -> bool:
        """Bytes were received that are not decoded yet."""
        return bool(self._partial) or self._position < len(self._buffer)

    @property
    def left_behind(self) -> bool:
        """Tell whether :meth:`events` left packets, an error or a body behind."""
        return self._is_halted or self._position < len(self._buffer)

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

    def forget(self) -> None:
        """Drop what was received: nothing more is decoded."""
        self._buffer = b""
        self._position = 0
        self._partial = bytearray()
        if self._error is not None:
            # The traceback holds everything that was under way.
            self._error = self._error.with_traceback(None)

    def next_event(self) -> Event | NeedData:
        """Return the next packet, or NEED_DATA. Raises: as :meth:`events`."""
        events = self.events(1)
        return events[0] if events else NEED_DATA

    def events(self, limit: int = sys.maxsize) -> list[Event]:
        """Return the complete packets, in order, at most *limit*; [] when there is none.

        It may return fewer: see `LONG_BYTES`, and :attr:`left_behind`.

        Raises: MalformedPacketError, PacketViolationError, FrameTooLargeError,
            UnsupportedVersionError. Everything before the error has been returned by then, and
            every further call raises it again.
        """
        if self._is_halted:
            if self._error is not None:
                raise self._error
            return []
        packets: list[Event] = []
        append = packets.append
        buffer = self._buffer
        position = self._position
        end = len(buffer)
        whole_max = self._whole_max
        level = self.level
        # Chosen once, not for each PUBLISH.
        decode_one, validate_one = decode_publish, validate_publish
        if level == LEVEL_5_0:
            decode_one, validate_one = decode_publish_v5, self._validate_publish_v5
            whole_max = self._whole_max_v5
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
                    # Nearly every long one has two bytes, and the second is neither 0 nor followed by more:
                    # this is a third of the call.
                    if start < end and 0 < (byte := buffer[start]) < 128:
                        length += (byte << 7) - 128
                        start += 1
                    else:
                        length, start = _long_length(buffer, start, length, level)
                    if not start:
                        self._keep(position, end - position + 1)
                        break
                if length > whole_max:
                    stop = self._find_body(first, buffer, start, length)
                    if stop > end:
                        self._keep(position, stop - position)
                        break
                    if stop:
                        publish = decode_one(first, buffer, start, stop)
                        validate_one(publish)
                        self._body_left = start + length - stop
                        append(LargePublish(publish, self._body_left))
                        self._position = stop
                        self._is_halted = True
                        break
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
                            whole_max = self._whole_max_v5
                    elif level == LEVEL_5_0 and self._from_client is not None:
                        validate_sender(packet, from_client=self._from_client)
                    append(packet)
                    if length > LONG_BYTES:
                        self._position = stop
                        break
                position = stop
            else:
                self._position = position
        except PeerProtocolError as error:
            self._error = error
            self._is_halted = True
            if first >> 4 == PacketType.CONNECT:
                self.level = level_of_connect(buffer, start) or level
            self._buffer = b""
            self._partial.clear()
            if not packets:
                raise
        return packets

    def take_body(self) -> bytes:
        """The received bytes of the LargePublish's body; b"" when there are none."""
        buffer, position = self._buffer, self._position
        left = self._body_left
        size = min(left, len(buffer) - position)
        if not size:
            return b""
        self._body_left = left = left - size
        if not left:
            self._is_halted = False
        if size == len(buffer):
            self._buffer = b""
            return buffer
        self._position = position + size
        return buffer[position : position + size]

    def end_body(self) -> bool:
        """True when all of the LargePublish's body has been taken."""
        return not self._body_left

    def _find_body(self, first: int, buffer: bytes, start: int, length: int) -> int:
        """Where the body of the packet begins, if it is to be returned in pieces.

        Returns: 0 when the packet is to be taken whole; more than ``len(buffer)`` when that many
            bytes are needed to tell.
        Raises: FrameTooLargeError; MalformedPacketError.
        """
        level = self.level
        packet_bytes_max = self._packet_bytes_max
        fits = length <= _remaining_max(packet_bytes_max, level)
        if (
            not self._large_bytes_min
            or first & 0xF0 != 0x30
            or (fits and first & 0x01)  # retained messages are kept in memory
        ):
            if fits:
                return 0
            raise _too_large(length, packet_bytes_max)
        if length > _remaining_max(self._large_packet_bytes_max, level):
            raise _too_large(length, self._large_packet_bytes_max)
        stop = start + length
        found = body_start(first, buffer, start, level)
        if found > stop:
            # It cannot be read, and there is no need to wait for the rest to report that.
            decode_one = decode_publish_v5 if level == LEVEL_5_0 else decode_publish
            decode_one(first, buffer, start, stop)
        if stop - found < self._large_bytes_min:
            if fits:
                return 0
            raise _too_large(length, packet_bytes_max)
        if found - start > packet_bytes_max:
            raise _too_large(found - start, packet_bytes_max)
        return found

    def _keep(self, position: int, needed: int) -> None:
        """Collect the incomplete packet at *position* until it has *needed* bytes."""
        if position < len(self._buffer):
            self._partial += self._buffer[position:]
            self._needed = needed
        self._buffer = b""
        self._position = 0


def _remaining_max(packet_bytes_max: int, level: int) -> int:
    """The largest remaining length of a packet of at most *packet_bytes_max* bytes."""
    if level != LEVEL_5_0:
        return packet_bytes_max  # see Codec.packet_bytes_max
    return max(  # what fits together with its own length bytes
        min(packet_bytes_max - 2, 127),
        min(packet_bytes_max - 3, 16_383),
        min(packet_bytes_max - 4, 2_097_151),
        packet_bytes_max - 5,
    )


def _too_large(length: int, limit: int) -> FrameTooLargeError:
    return FrameTooLargeError(
        f"a packet of {length} bytes is larger than the limit of {limit}",
        wire_code=ReasonCode.PACKET_TOO_LARGE,
    )


def _long_length(buffer: bytes, start: int, length: int, level: int) -> tuple[int, int]:
    """Finish a remaining length of more than one byte whose first byte is *length*.

    MQTT 5.0 requires the shortest form; for a CONNECT the version is not known yet.

    Returns: the length and where it ends; (0, 0) when its end has not arrived yet.
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
                    "the remaining length is not encoded in the fewest possible bytes",
                    "5.0:MQTT-1.5.5-1",
                )
            return length, start
    raise MalformedPacketError("the remaining length has more than four bytes", "MQTT 3.1.1 2.2.3")
