"""WebSocket frames (RFC 6455 section 5), server side, without I/O.

Payload is passed on as it arrives: neither a message nor a frame is collected first, so all that a
peer can make us hold is one frame header or one control frame, at most 139 bytes. Why the library's
decoder is not used: docs/decisions/0005-websocket-library.md.
"""

from __future__ import annotations

import codecs
import sys
from collections.abc import Callable
from typing import Final, final

from tidegate.spi import PeerProtocolError


def mask_slowly(data: bytes, mask: bytes) -> bytes:
    """*data* XOR the four bytes of *mask*, repeated. RFC 6455 section 5.3."""
    size = len(data)
    repeated = (mask * (size // 4 + 1))[:size]
    number = int.from_bytes(data, "little") ^ int.from_bytes(repeated, "little")
    return number.to_bytes(size, "little")


apply_mask: Callable[[bytes, bytes], bytes]
try:
    from websockets.speedups import apply_mask
except ImportError:  # no wheel for this machine, and no compiler at installation
    apply_mask = mask_slowly

# Opcodes, RFC 6455 section 5.2.
CONTINUATION: Final = 0x0
TEXT: Final = 0x1
BINARY: Final = 0x2
CLOSE: Final = 0x8
PING: Final = 0x9
PONG: Final = 0xA

# Close codes, RFC 6455 section 7.4.1.
CLOSE_NORMAL: Final = 1000
CLOSE_GOING_AWAY: Final = 1001
CLOSE_PROTOCOL_ERROR: Final = 1002
CLOSE_UNSUPPORTED: Final = 1003
CLOSE_NO_STATUS: Final = 1005  # never on the wire: the peer's Close frame was empty
CLOSE_INVALID_DATA: Final = 1007
CLOSE_TOO_BIG: Final = 1009

#: Codes below 3000 that a peer may send: those registered for use on the wire.
_CODES_ON_WIRE: Final = frozenset({1000, 1001, 1002, 1003, *range(1007, 1015)})
_CONTROL_BYTES_MAX: Final = 125  # RFC 6455 section 5.5


@final
class WebSocketError(PeerProtocolError):
    """The peer broke RFC 6455 or a limit. Attributes: code (for the Close frame), reason."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"WebSocket {code}: {reason}")
        self.code = code
        self.reason = reason


def encode_frame(opcode: int, payload: bytes) -> bytes:
    """One unmasked, final frame. RFC 6455 section 5.2."""
    return encode_header(opcode, len(payload)) + payload


def encode_header(opcode: int, size: int, *, last: bool = True) -> bytes:
    """The header of an unmasked frame whose payload has *size* bytes.

    Args: last: it is the final fragment of its message (RFC 6455 section 5.2: FIN).
    """
    first = 0x80 | opcode if last else opcode
    if size < 126:
        return bytes((first, size))
    if size < 65_536:
        return bytes((first, 126, size >> 8, size & 0xFF))
    return bytes((first, 127)) + size.to_bytes(8, "big")


def encode_close(code: int, reason: str = "") -> bytes:
    """A Close frame; *reason* is truncated to fit. ``CLOSE_NO_STATUS`` gives an empty one."""
    if code == CLOSE_NO_STATUS:
        return encode_frame(CLOSE, b"")
    text = reason.encode()[: _CONTROL_BYTES_MAX - 2].decode("utf-8", "ignore").encode()
    return encode_frame(CLOSE, code.to_bytes(2, "big") + text)


@final
class FrameDecoder:
    """Frames of a client to payload bytes.

    Args:
        message_bytes_max: of one message, all its fragments together.
        text_allowed: False refuses text messages with 1003.

    Attributes:
        is_text: the kind of the latest message; False before the first.
        ping: the payload of the last Ping not taken yet, or None. An endpoint may answer only the
            most recent one (RFC 6455 section 5.5.3), so a flood of them costs one Pong.
        close: code and reason of the peer's Close frame, or None.
    """

    __slots__ = (
        "_has_more",
        "_head",
        "_in_message",
        "_is_last",
        "_left",
        "_mask",
        "_message_bytes",
        "_message_bytes_max",
        "_text_allowed",
        "_utf8",
        "close",
        "is_text",
        "ping",
    )

    def __init__(self, message_bytes_max: int, *, text_allowed: bool) -> None:
        self._message_bytes_max = message_bytes_max
        self._text_allowed = text_allowed
        self._head = b""  # the beginning of a header or control frame, or what was left behind
        self._has_more = False
        self._left = 0  # payload bytes of the current data frame not received yet
        self._mask = b""  # rotated to fit the next of those
        self._is_last = True  # the current data frame has the FIN bit
        self._in_message = False  # a frame without FIN came, the one with it has not
        self._message_bytes = 0
        self._utf8: codecs.IncrementalDecoder | None = None  # of a text message in several pieces
        self.is_text = False
        self.ping: bytes | None = None
        self.close: tuple[int, str] | None = None

    @property
    def has_more(self) -> bool:
        """The last call left frames behind: call again, without data."""
        return self._has_more

    def keep(self, data: bytes) -> None:
        """Take bytes from the socket; they follow the frames that were left."""
        self._head += data

    def receive_data(self, data: bytes = b"", *, frames_max: int = sys.maxsize) -> bytes:
        """Take bytes from the socket; returns the payload of data messages in them, in order.

        Nothing is read after a Close frame. Args: frames_max: in one call. Raises: WebSocketError.
        """
        if self.close is not None:
            return b""
        if self._head:
            data = self._head + data
            self._head = b""
        self._has_more = False
        pieces: list[bytes] = []
        position = self._continue_payload(data, pieces) if self._left else 0
        end = len(data)
        while end - position >= 2:
            if not frames_max:
                self._has_more = True
                break
            frames_max -= 1
            first = data[position]
            size = data[position + 1] - 0x80
            if first & 0x70:
                raise WebSocketError(CLOSE_PROTOCOL_ERROR, "a reserved bit is set")
            if size < 0:
                raise WebSocketError(CLOSE_PROTOCOL_ERROR, "a client's frames must be masked")
            if size < 126:
                start = position + 6
            else:
                start = position + (8 if size == 126 else 14)
                if start > end:
                    break
                size = int.from_bytes(data[position + 2 : start - 4], "big")
            if start > end:
                break
            opcode = first & 0x0F
            stop = start + size
            if opcode & 0x08:
                self._check_control(first, size)
                if stop > end:
                    break
                self._control(opcode, apply_mask(data[start:stop], data[start - 4 : start]))
                position = stop
                if self.close is not None:
                    return b"".join(pieces)
                continue
            self._begin(opcode, first >= 0x80, size)
            mask = data[start - 4 : start]
            if stop <= end:
                payload = apply_mask(data[start:stop], mask)
                position = stop
            else:
                payload = apply_mask(data[start:], mask)
                self._left = stop - end
                turn = len(payload) & 3
                self._mask = mask[turn:] + mask[:turn]
                position = end
            if self.is_text:
                self._check_text(payload)
            pieces.append(payload)
        if position < end:
            self._head = data[position:]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _continue_payload(self, data: bytes, pieces: list[bytes]) -> int:
        """Take what *data* has of the current frame's payload. Returns: how many bytes."""
        taken = min(self._left, len(data))
        payload = apply_mask(data if taken == len(data) else data[:taken], self._mask)
        self._left -= taken
        turn = taken & 3
        self._mask = self._mask[turn:] + self._mask[:turn]
        if self.is_text:
            self._check_text(payload)
        pieces.append(payload)
        return taken

    def _begin(self, opcode: int, is_last: bool, size: int) -> None:
        """Begin a data frame. RFC 6455 sections 5.4, 5.6 and 10.4."""
        if opcode == CONTINUATION:
            if not self._in_message:
                raise WebSocketError(CLOSE_PROTOCOL_ERROR, "a continuation without a message")
            self._message_bytes += size
        elif opcode > BINARY:
            raise WebSocketError(CLOSE_PROTOCOL_ERROR, f"unknown opcode {opcode:#x}")
        elif self._in_message:
            raise WebSocketError(CLOSE_PROTOCOL_ERROR, "a new message inside another one")
        else:
            self.is_text = opcode == TEXT
            if self.is_text and not self._text_allowed:
                raise WebSocketError(CLOSE_UNSUPPORTED, "only binary messages are accepted here")
            self._message_bytes = size
        if self._message_bytes > self._message_bytes_max:
            raise WebSocketError(
                CLOSE_TOO_BIG, f"the message is longer than {self._message_bytes_max} bytes"
            )
        self._in_message = not is_last
        self._is_last = is_last

    def _check_text(self, payload: bytes) -> None:
        """Text must be UTF-8, across frames and reads. RFC 6455 section 8.1."""
        is_end = self._is_last and not self._left
        decoder = self._utf8
        try:
            if decoder is None:
                if payload.isascii():
                    return
                if is_end:
                    payload.decode()
                    return
                decoder = self._utf8 = codecs.getincrementaldecoder("utf-8")()
            decoder.decode(payload, is_end)
        except UnicodeDecodeError:
            raise WebSocketError(CLOSE_INVALID_DATA, "a text message is not UTF-8") from None
        if is_end:
            self._utf8 = None

    @staticmethod
    def _check_control(first: int, size: int) -> None:
        """RFC 6455 section 5.5."""
        if first & 0x0F > PONG:
            raise WebSocketError(CLOSE_PROTOCOL_ERROR, f"unknown opcode {first & 0x0F:#x}")
        if first < 0x80:
            raise WebSocketError(CLOSE_PROTOCOL_ERROR, "a control frame is fragmented")
        if size > _CONTROL_BYTES_MAX:
            raise WebSocketError(CLOSE_PROTOCOL_ERROR, "a control frame is longer than 125 bytes")

    def _control(self, opcode: int, payload: bytes) -> None:
        if opcode == PING:
            self.ping = payload
        elif opcode == CLOSE:
            self.close = _parse_close(payload)


def _parse_close(payload: bytes) -> tuple[int, str]:
    """Code and reason of a Close frame. RFC 6455 sections 5.5.1 and 7.4. Raises: WebSocketError."""
    if not payload:
        return CLOSE_NO_STATUS, ""
    code = int.from_bytes(payload[:2], "big")
    if len(payload) == 1 or (code not in _CODES_ON_WIRE and not 3000 <= code <= 4999):
        raise WebSocketError(CLOSE_PROTOCOL_ERROR, "a Close frame has no valid code")
    try:
        return code, payload[2:].decode()
    except UnicodeDecodeError:
        raise WebSocketError(CLOSE_INVALID_DATA, "a Close frame's reason is not UTF-8") from None
