"""STOMP's vocabulary: versions, commands, frames, limits."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

import msgspec


class Version(enum.Enum):
    """A version of the protocol that this gateway speaks; the value is what is on the wire."""

    V1_0 = "1.0"
    V1_1 = "1.1"
    V1_2 = "1.2"


#: Commands a client may send. STOMP 1.2 "Augmented BNF": client-command.
CLIENT_COMMANDS: Final = frozenset(
    {
        "ABORT",
        "ACK",
        "BEGIN",
        "COMMIT",
        "CONNECT",
        "DISCONNECT",
        "NACK",
        "SEND",
        "STOMP",
        "SUBSCRIBE",
        "UNSUBSCRIBE",
    }
)
#: Commands a server may send. STOMP 1.2 "Augmented BNF": server-command.
SERVER_COMMANDS: Final = frozenset({"CONNECTED", "ERROR", "MESSAGE", "RECEIPT"})

#: The decoder's name for a run of plain ACK frames; no wire command has this name.
ACK_RUN: Final = "ACK*"


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One frame, unescaped.

    Attributes:
        command: e.g. ``SEND``.
        headers: in order; of a repeated header the first entry (STOMP 1.2 "Repeated Header
            Entries"). The receiver of the frame owns the dict and may take it apart.
        body: exactly the bytes sent.
        pairs: every header line in order when a name is repeated, else ().
    """

    command: str
    headers: dict[str, str]
    body: bytes = b""
    pairs: tuple[tuple[str, str], ...] = ()


class AckRun(msgspec.Struct, frozen=True, gc=False):
    """Consecutive STOMP 1.2 ACK frames that have only an ``id`` in our own form.

    They are half of what a consumer sends, and decoding them one by one would cost four times as
    much. Attributes: ids: (subscription number, sequence) of each, as ASCII digits.
    """

    ids: list[tuple[bytes, bytes]]
    command: str = ACK_RUN


#: The decoder's name for the head of a SEND with a large body; no wire command has this name.
LARGE_SEND: Final = "SEND+"


class LargeSend(msgspec.Struct, frozen=True, gc=False):
    """The head of a SEND whose body is read piece by piece: :meth:`Decoder.take_body`.

    Attributes: head: without its body; size: bytes of the body; None: it ends at the next NUL.
    """

    head: Frame
    size: int | None
    command: str = LARGE_SEND


class Signal(enum.Enum):
    """Events that are not frames."""

    NEED_DATA = "need data"
    HEART_BEAT = "heart-beat"


NEED_DATA: Final = Signal.NEED_DATA
HEART_BEAT: Final = Signal.HEART_BEAT


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits on one frame. STOMP 1.2 "Size Limits".

    Attributes:
        header_count: header lines of a frame.
        header_line_bytes: of one header line, without its line end.
        header_bytes: of the command and all header lines together.
        body_bytes: of a body that is kept in memory.
        large_bytes_min: a SEND with a body of at least this many bytes that does not ask to be
            retained is returned as a LargeSend; 0: never. Above 1024.
        large_bytes_max: of such a body.
        large_unsized: even without content-length, so that its size is known only at its end.
    """

    header_count: int = 128
    header_line_bytes: int = 16 * 1024
    header_bytes: int = 64 * 1024
    body_bytes: int = 100 * 1024 * 1024
    large_bytes_min: int = 0
    large_bytes_max: int = 0
    large_unsized: bool = False
