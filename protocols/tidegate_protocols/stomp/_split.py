"""STOMP over WebSocket: one frame in each message.

STOMP does not mention WebSocket. Clients that parse a stream do not care, but some parse each message
as one frame and would lose whatever else is in it; every other broker sends one frame per message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidegate_protocols.stomp.codec.frames import Version
from tidegate_protocols.transport import WebSocketProfile

#: Subprotocol to the version that it fixes for a connection, the preferred one first.
SUBPROTOCOLS: Final = {
    "v12.stomp": Version.V1_2,
    "v11.stomp": Version.V1_1,
    "v10.stomp": Version.V1_0,
}

_LENGTH: Final = b"\ncontent-length:"


def split(data: bytes) -> Sequence[bytes]:
    """Split what the gateway itself encoded into frames; heart-beats stay before the next one.

    Relies on the encoder: line ends are LF, and each frame with a body has ``content-length``.
    """
    frames: list[bytes] = []
    position = 0
    size = len(data)
    while position < size:
        head_end = data.find(b"\n\n", _command_at(data, position))
        if head_end < 0:
            break
        at = data.find(_LENGTH, position, head_end)
        body_size = 0
        if at >= 0:
            at += len(_LENGTH)
            body_size = int(data[at : data.find(b"\n", at)])
        stop = head_end + 2 + body_size + 1  # the NUL
        if position == 0 and stop == size:
            return (data,)
        frames.append(data[position:stop])
        position = stop
    if position < size:
        frames.append(data[position:])
    return frames


def _command_at(data: bytes, position: int) -> int:
    """Where the first byte is that is not a heart-beat."""
    while data.startswith(b"\n", position):
        position += 1
    return position


#: STOMP's requirements on WebSocket.
PROFILE: Final = WebSocketProfile(subprotocols=tuple(SUBPROTOCOLS), text_allowed=True, split=split)
